"""What must be true of a workload after any number of kills, counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from typing import Any

from tests.jobs.support import Database

Line = list[str]
# A row can be committed after one that was completed a little later.
OVERLAP_MS = 10_000


@dataclass(frozen=True)
class Verdict:
    """How often each promise was broken; all zeros is the only good one."""

    lost: int
    """acknowledged jobs that are nowhere"""
    doubled: int
    """succeeded mutations without exactly one effect"""
    ghosts: int
    """effects of jobs that did not succeed"""
    torn: int
    """rows of the user's without their job, or the other way round"""
    restarted: int
    """actions without retry that started twice, or an attempt that did"""
    unstarted: int
    """actions that succeeded and never started"""
    changed: int
    """terminal states that were different before"""
    revived: int
    """jobs that ended otherwise although their cancel was acknowledged"""
    unexplained: int
    """failures that nothing in the workload accounts for"""
    unfinished: int
    """jobs that are still live"""
    orphans: int
    """rows of workers that are gone"""

    @property
    def is_clean(self) -> bool:
        return not any(getattr(self, field.name) for field in fields(self))

    def __str__(self) -> str:
        return ", ".join(f"{field.name} {getattr(self, field.name)}" for field in fields(self))


class Auditor:
    """Looks at the database from outside, during the run and after it."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._seen: dict[str, tuple[Any, ...]] = {}
        self._changed: set[str] = set()
        self._newest = 0

    def look(self) -> None:
        """Remember the jobs that have ended since the last look."""
        for row in self._history(since=self._newest - OVERLAP_MS):
            self._newest = max(self._newest, row[-1])
            if self._seen.setdefault(row[0], row) != row:
                self._changed.add(row[0])

    def _history(self, since: int = 0) -> list[tuple[Any, ...]]:
        columns = "function, kind, state, retry, error_kind, attempt, token, result, completed_at"
        query = f"SELECT id, {columns} FROM @history WHERE completed_at >= ?"
        return [(str(row[0]), *row[1:]) for row in self._db.execute(query, since)]

    def live(self) -> int:
        return self._db.count("@jobs")

    def workers(self) -> int:
        return self._db.count("@workers")

    def states(self) -> dict[str, int]:
        """How many jobs have ended in each way."""
        return dict(Counter(_end(row) for row in self._history()))

    def verdict(
        self, *, acknowledged: list[Line], canceled: list[Line], starts: list[Line]
    ) -> Verdict:
        jobs = {row[0]: row for row in self._history()}
        self._changed |= {i for i, row in self._seen.items() if jobs.get(i) != row}
        live = {str(row[0]) for row in self._db.execute("SELECT id FROM @jobs")}
        effects = Counter(self._column("SELECT job_id FROM effects"))
        orders = set(self._column("SELECT job_id FROM orders"))
        starts_of = Counter(job_id for job_id, _ in starts)
        attempts = Counter((job_id, attempt) for job_id, attempt in starts)
        mutations = {i for i, row in jobs.items() if row[2] == "mutation"}
        succeeded = {i for i, row in jobs.items() if row[3] == "succeeded"}
        once = {i for i, row in jobs.items() if row[2] == "action" and row[4] is None}
        served = {i for i, row in jobs.items() if row[1] == "serve"}
        return Verdict(
            lost=len({job_id for (job_id,) in acknowledged} - jobs.keys() - live),
            doubled=sum(effects[job_id] != 1 for job_id in mutations & succeeded),
            ghosts=len(effects.keys() - succeeded),
            torn=len(orders ^ served),
            restarted=sum(n > 1 for job_id, n in starts_of.items() if job_id in once)
            + sum(n > 1 for n in attempts.values()),
            unstarted=len((succeeded - mutations) - starts_of.keys()),
            changed=len(self._changed),
            revived=sum(jobs[i][3] != "canceled" for (i,) in canceled if i in jobs),
            unexplained=sum(not _is_explained(row) for row in jobs.values()),
            unfinished=len(live),
            orphans=self.workers(),
        )

    def _column(self, query: str) -> list[str]:
        return [str(value) for (value,) in self._db.execute(query)]


def _end(row: tuple[Any, ...]) -> str:
    return str(row[5] or row[3])


def _is_explained(row: tuple[Any, ...]) -> bool:
    """Whether a function may end like this when its workers are killed."""
    _, function, kind, state, _, error = map(str, row[:6])
    if state != "failed":
        return state == "canceled" or function != "fail"
    allowed = {"crash_loop"}
    if function == "fail":
        allowed.add("user")
    if kind == "action":
        allowed.add("worker_lost")
    if function.startswith("overrun"):
        allowed.add("timeout")
    return error in allowed
