"""The janitor: expiry, time limits, holds and retention.

Every process may run a janitor; several can run at once without a leader.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TypedDict

from duly.clock import Clock
from duly.model.job import Claim, Settlement, settle
from duly.runtime.alone import AloneRuns
from duly.runtime.execute import timeout_outcome
from duly.runtime.hooks import HookCalls
from duly.store.table import Store

log = logging.getLogger(__name__)

PASS_SECONDS = 1.0
RETAIN_EVERY = 60.0
WARN_EVERY = 24 * 3600.0
# The worker itself enforces time limits; this is for workers that are alive but cannot.
TIMEOUT_GRACE = 30.0
RETENTION = timedelta(days=7)
EXHAUSTED_RETENTION = timedelta(days=30)
LEDGER_RETENTION = timedelta(days=30)
LEDGER_EVERY = 3600.0

_Attempt = tuple[str, int]
"""The id of a job, and the token of its attempt."""


class RetentionOptions(TypedDict, total=False):
    """How long to keep finished jobs and ticks, if not for the default time."""

    retention: timedelta
    exhausted_retention: timedelta
    ledger_retention: timedelta


class Janitor:
    """Keeps the store in order."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        retention: timedelta = RETENTION,
        exhausted_retention: timedelta = EXHAUSTED_RETENTION,
        ledger_retention: timedelta = LEDGER_RETENTION,
        alone_runs: AloneRuns | None = None,
        hooks: HookCalls | None = None,
        functions: Callable[[], Sequence[str]] = tuple,
        build: Callable[[], str] | None = None,
        queues: Sequence[str] | None = None,
    ) -> None:
        """`functions` and `queues`: whose jobs may run in `alone_runs`, if they must run alone.

        `build`: the code here; held workflows that it has not tried are freed.
        """
        self._store = store
        self._clock = clock
        self._retention_ms = round(retention.total_seconds() * 1000)
        self._exhausted_ms = round(exhausted_retention.total_seconds() * 1000)
        self._ledger_ms = round(ledger_retention.total_seconds() * 1000)
        self._alone_runs = alone_runs
        self._hooks = hooks
        self._functions = functions
        self._build = build
        self._queues = queues
        self._overdue_since: dict[_Attempt, float] = {}
        self._retained_at: float | None = None
        self._warned_at: float | None = None
        self._ledger_at: float | None = None
        self._looked_at_schedule = ""
        self._looked_at_key = ""
        self._looked_at_hook: Sequence[str] = ()
        self._hooks_at: float | None = None
        self._looked_at_event = ""
        self._inbox_at: float | None = None

    def one_pass(self) -> float:
        now = self._clock.now()
        self._start_alone(now)
        more = self._store.expire(now) >= 500
        self._time_out(now)
        more |= self._store.hold_unknown(now) >= 1000
        more |= self._store.release_known() >= 1000
        more |= self._release_held()
        more |= self._admit_waiters(now)
        self._free_hooks()
        more |= self._retain(now)
        self._warn_of_ends(now)
        self._retain_ledger(now)
        self._retain_inbox(now)
        return 0 if more else PASS_SECONDS

    def _time_out(self, now: int) -> None:
        before, self._overdue_since = self._overdue_since, {}
        judged: list[tuple[Claim, Settlement]] = []

        def judge(claim: Claim) -> Settlement | None:
            settlement = self._judge_overdue(before, claim)
            if settlement is not None:
                judged.append((claim, settlement))
            return settlement

        settled = self._store.time_out(now, judge, now)
        if self._hooks is not None:
            self._hooks.timed_out(each for each in judged if each[0].id in settled)

    def _judge_overdue(self, before: Mapping[_Attempt, float], claim: Claim) -> Settlement | None:
        """Deadlines are wall-clock times, and that clock may have jumped.

        So each job gets its full limit once more, by the monotonic clock, from when its deadline
        was first seen here.
        """
        if claim.timeout_ms is None:
            return None
        attempt, since = (claim.id, claim.token), self._clock.monotonic()
        self._overdue_since[attempt] = seen = before.get(attempt, since)
        if since - seen < claim.timeout_ms / 1000 + TIMEOUT_GRACE:
            return None
        return settle(claim, timeout_outcome(claim), self._clock.now(), random.random())

    def _start_alone(self, now: int) -> None:
        if self._alone_runs is not None:
            self._alone_runs.look_after()
            for job_id in self._store.due_alone(self._functions(), self._queues, now):
                self._alone_runs.start(job_id)

    def _admit_waiters(self, now: int) -> bool:
        """Start waiting jobs that were not started when a slot was freed. Return whether there may
        be more.

        Since then a queue or function may have been resumed, or a worker may have started that
        serves it. Or the next job in turn was canceled or paused.
        """
        self._looked_at_key, admitted = self._store.admit_waiters(self._looked_at_key, now)
        if admitted:
            self._store.ring()
        return admitted and self._looked_at_key != ""

    def _release_held(self) -> bool:
        """Let this code try workflows that other code could not continue. Return whether there may
        be more.
        """
        functions = self._functions() if self._build is not None else ()
        if self._build is None or not functions:
            return False
        freed = self._store.release_held(functions, self._build())
        if freed:
            self._store.ring()
        return freed >= 1000

    def _free_hooks(self) -> None:
        """Free hooks that were not freed when their job ended.

        This could happen where transactions of an earlier version had a stricter isolation level.
        """
        since = self._clock.monotonic()
        begins = not self._looked_at_hook
        if begins and self._hooks_at is not None and since - self._hooks_at < RETAIN_EVERY:
            return
        self._hooks_at = since
        self._looked_at_hook, freed = self._store.free_hooks(self._looked_at_hook)
        if freed:
            log.warning(
                "released %s on_complete jobs that waited although their jobs had ended", freed
            )
            self._store.ring()

    def _retain(self, now: int) -> bool:
        since = self._clock.monotonic()
        if self._retained_at is not None and since - self._retained_at < RETAIN_EVERY:
            return False
        while self._store.forget_keys(now) or self._store.forget_requests(now):
            pass
        removed = self._store.retain(now - self._retention_ms, now - self._exhausted_ms, now)
        if not removed:
            self._retained_at = since
        return removed > 0

    def _retain_ledger(self, now: int) -> None:
        """Delete old ticks: some schedules in each pass, all of them over time."""
        since = self._clock.monotonic()
        if self._ledger_at is not None and since - self._ledger_at < LEDGER_EVERY:
            return
        after, _ = self._store.retain_ticks(self._looked_at_schedule, now - self._ledger_ms)
        self._looked_at_schedule = after
        if not after:
            self._ledger_at = since

    def _retain_inbox(self, now: int) -> None:
        """Delete webhooks whose job is gone: some in each pass, all of them over time."""
        since = self._clock.monotonic()
        if self._inbox_at is not None and since - self._inbox_at < RETAIN_EVERY:
            return
        cutoff = now - self._retention_ms
        self._looked_at_event, _ = self._store.retain_events(self._looked_at_event, cutoff)
        if not self._looked_at_event:
            self._inbox_at = since

    def _warn_of_ends(self, now: int) -> None:
        """Log once a day which calendars in use end soon, or have ended."""
        since = self._clock.monotonic()
        if self._warned_at is not None and since - self._warned_at < WARN_EVERY:
            return
        self._warned_at = since
        for calendar in self._store.calendars_in_use().values():
            if (last := calendar.runs_out(now)) is not None:
                log.warning("calendar %r, which schedules use, ends on %s", calendar.name, last)
