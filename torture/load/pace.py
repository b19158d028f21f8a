"""Measures the pace of work from the log, not in the busy processes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tests.jobs.support import Database
from tests.torture.kill.trace import Trace
from torture.load.history import LIVE, Change, for_one_job, pids, stories

PATIENCE_MS = 20_000
"""Longer reruns are counted even when faults interfered."""


class Pace:
    """When things happened, for all jobs together, in milliseconds since 1970."""

    def __init__(self, db: Database, trace: Trace) -> None:
        self._pid_of = pids(db)
        self._for_one_job = for_one_job(db)
        deaths = (line for line in trace.lines("keys") if line[0] == "dies")
        self._died_at = {int(pid): int(at) for _, at, _, pid in deaths}
        self._claims: list[int] = []
        self._ends: list[int] = []
        self._reruns: list[tuple[int, int]] = []
        self.cut_off = 0
        """Attempts whose worker was killed before they had ended."""
        for story in stories(db):
            self._claims += [change.at for change in story if change.became == "running"]
            self._ends += [change.at for change in story if change.became not in LIVE]
            self._reruns += self._reruns_of(story)
            self.cut_off += sum(self._death_between(*pair) is not None for pair in pairwise(story))
        self._claims.sort()
        self._ends.sort()

    def _reruns_of(self, story: Sequence[Change]) -> Iterator[tuple[int, int]]:
        """When the worker of a job was killed, and when the job started again.

        Without jobs that have lost two workers: those wait for their own process.
        """
        for claim, rescue, again in zip(story, story[1:], story[2:], strict=False):
            died_at = self._death_between(claim, rescue)
            started_again = (rescue.became, again.became) == ("pending", "running")
            if died_at is not None and started_again and again.worker_id not in self._for_one_job:
                yield died_at, again.at

    def _death_between(self, claim: Change, end: Change) -> int | None:
        """When the worker of this attempt was killed, if that is how it ended."""
        died_at = self._died_at.get(self._pid_of.get(claim.worker_id or "", 0))
        if claim.became != "running" or died_at is None:
            return None
        return died_at if claim.at <= died_at <= end.at else None

    def reruns(self, until: float) -> list[float]:
        """Seconds from a kill until interrupted jobs started again.

        A worker that sees the database fail starts counting rounds again, and at the end no worker
        is left to run anything: so only jobs that were settled before then count.
        """
        return [
            (again - died_at) / 1000
            for died_at, again in self._reruns
            if again <= until or died_at < until - PATIENCE_MS
        ]

    def resumed(self, back_at: Iterable[int]) -> list[float]:
        """Seconds from each return of the database to the first claim."""
        firsts = ((at, bisect_left(self._claims, at)) for at in back_at)
        return [(self._claims[i] - at) / 1000 for at, i in firsts if i < len(self._claims)]

    def ended_in_a_second(self, since: float, until: float) -> float:
        ended = bisect_left(self._ends, until) - bisect_left(self._ends, since)
        return ended / max(0.001, (until - since) / 1000)
