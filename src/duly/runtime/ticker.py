"""The loop that turns due schedules into jobs.

Any number of tickers may run, on any number of machines. Each sleeps until the next due instant or
until something has changed; it also polls, so that a missed notification cannot stop it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from duly import zones
from duly.errors import StoreError
from duly.model.decide import Signal
from duly.model.schedule import ScheduleRecord
from duly.runtime.program import Program
from duly.runtime.signals import ask_for_signals
from duly.store.base import is_refusal_of_a_row
from duly.store.expectations import PAGE as CHECKED_AT_ONCE
from duly.store.schedules.parked import REVIVED_AT_ONCE
from duly.store.schedules.rows import reason_of
from duly.store.schedules.tick import TickPass, added

log = logging.getLogger(__name__)

PAGE = 100
POLL_SECONDS = 1.0
"""How long a change without a notification may stay unnoticed."""
RE_AIM_SECONDS = 600.0
"""How often to look for schedules that were advanced by a clock that was ahead."""
AFTER_OTHERS = 0.05
"""When to look again at schedules that another ticker is processing right now."""


class Ticker:
    """Turns due schedules into jobs, a page at a time."""

    def __init__(self, program: Program, *, page: int = PAGE) -> None:
        self._program = program
        self._page = page
        self._is_applied = False
        self._applied_at = 0.0
        self._zone_data: str | None = None
        self._looked_for_functions: float | None = None
        self._aimed_at: float | None = None
        self._latest = 0

    def one_pass(self) -> float:
        """Decide one page. Return the delay until something is due."""
        self._apply_declared()
        store, now = self._program.store, self._program.clock.now()
        zone_data = self._use_zone_data(now)
        self._revive(now)
        self._re_aim(now, zone_data)
        signals_for = self._program.signals_for
        due = store.due_schedules(now, self._page + 1, zone_data=zone_data, signals_for=signals_for)
        if not due:
            self._check_promises(now)
            return self._delay(now, zone_data)
        ticked = self._tick(due, now, zone_data)
        log.debug("processed a batch of schedules: %s", ticked)
        self._program.counts.ticked(ticked)
        if ticked.dispatched:
            store.ring()
        if ticked.more:
            return 0
        # Ticks that are caught up count, so expectations are checked after that.
        self._check_promises(now)
        return self._delay(now, zone_data) if ticked.looked_at else AFTER_OTHERS

    def _apply_declared(self) -> None:
        """At first; and again while something is left out, such as an unknown calendar's users."""
        since = self._program.clock.monotonic()
        if self._is_applied or 0 < since - self._applied_at < POLL_SECONDS:
            return
        self._is_applied = not self._program.apply_declared()
        self._applied_at = since

    def _tick(self, due: Sequence[ScheduleRecord], now: int, zone_data: str) -> TickPass:
        store, make_jobs = self._program.store, self._program.jobs_of_tick
        signals = ask_for_signals(self._program, due)
        try:
            return store.tick(
                now,
                self._page,
                signals,
                make_jobs,
                zone_data=zone_data,
                signals_for=self._program.signals_for,
            )
        except Exception as error:
            if not _is_about_a_row(error):
                raise
            log.warning(
                "could not store the ticks of a batch (%s); trying its schedules one by one", error
            )
        return self._tick_one_by_one(due, now, signals, zone_data)

    def _tick_one_by_one(
        self, due: Sequence[ScheduleRecord], now: int, signals: Mapping[str, Signal], zone_data: str
    ) -> TickPass:
        """Park those that cannot be stored."""
        store, make_jobs = self._program.store, self._program.jobs_of_tick
        ticked: list[TickPass] = []
        failed: dict[str, Exception] = {}
        for each in due[: self._page]:
            try:
                ticked.append(
                    store.tick(now, 1, signals, make_jobs, zone_data=zone_data, only=each.id)
                )
            except Exception as error:
                if not _is_about_a_row(error):
                    raise
                failed[each.id] = error
        # Errors that the store did not raise, and errors of every schedule, are not a schedule's
        # fault.
        if not any(each.looked_at for each in ticked):
            for why in failed.values():
                if not isinstance(why, StoreError):
                    raise why
        for schedule_id, why in failed.items():
            store.park_schedule(schedule_id, reason_of(why), now)
        ticked += [TickPass(1, 0, 0, 0, 1, more=False) for _ in failed]
        return added(ticked, more=len(due) > self._page)

    def _delay(self, now: int, zone_data: str) -> float:
        store = self._program.store
        due = store.next_due(zone_data=zone_data, signals_for=self._program.signals_for)
        times = (due, store.next_check())
        coming = [at for at in times if at is not None]
        return min([POLL_SECONDS, *(max(0.0, (at - now) / 1000) for at in coming)])

    def _use_zone_data(self, now: int) -> str:
        """The zone data version of this process.

        If it is new to the store, ticks are recomputed.
        """
        version = zones.version()
        if version == self._zone_data:
            return version
        store = self._program.store
        if store.take_zone_data(version):
            log.info(
                "new time zone data %s: recomputing the ticks of schedules with a time zone",
                version,
            )
            after: str | None = ""
            while after is not None:
                after = store.compute_zoned(version, after, now)
        self._zone_data = version
        return version

    def _revive(self, now: int) -> None:
        """Resume schedules that were parked for lack of a function which is known by now."""
        since = self._program.clock.monotonic()
        if self._looked_for_functions is not None and (
            since - self._looked_for_functions < POLL_SECONDS
        ):
            return
        store = self._program.store
        missing = store.missing_functions()
        found = [name for name in missing if self._program.knows(name)]
        while found and store.revive_schedules(found, now) == REVIVED_AT_ONCE:
            pass
        self._looked_for_functions = since

    def _re_aim(self, now: int, zone_data: str) -> None:
        """Runs at first, after this clock has gone back, and regularly: other clocks may have."""
        if now < self._latest:
            self._aimed_at = None
        self._latest = now
        since = self._program.clock.monotonic()
        if self._aimed_at is not None and since - self._aimed_at < RE_AIM_SECONDS:
            return
        moved = self._program.store.re_aim(now, zone_data)
        if moved:
            log.warning(
                "a clock had been ahead; the next ticks of %d schedules are earlier now", moved
            )
        self._aimed_at = since

    def _check_promises(self, now: int) -> None:
        """Check whether schedules meet their expectations."""
        store = self._program.store
        check_at = store.next_check()
        if check_at is None or check_at > now:
            return
        while store.check_promises(now, self._program.alert_jobs) == CHECKED_AT_ONCE:
            pass
        store.ring()


def _is_about_a_row(error: Exception) -> bool:
    """Whether the row being written is at fault, rather than the store as a whole."""
    return not isinstance(error, StoreError) or is_refusal_of_a_row(error)
