"""The verbs of `app.schedules` that only read: lists, ledgers, previews, health."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import Any

import msgspec

from duly.clock import from_ms
from duly.core import Core
from duly.errors import InvalidCondition, InvalidOption
from duly.functions.checks import check_flag, check_stored_text
from duly.functions.function import Function
from duly.functions.times import Instant
from duly.model.condition import Explanation
from duly.model.condition import parse_new as parse_condition
from duly.model.decide import Decided, Decision, Skip, encode_detail
from duly.model.decide import explain as explain_condition
from duly.model.forecast import Forecast, forecast
from duly.model.preview import preview
from duly.model.schedule import (
    Malformed,
    Outcome,
    Plan,
    Reason,
    ScheduleFilter,
    ScheduleRecord,
    TickFilter,
    TickRecord,
)
from duly.runtime.signals import ask_for_signal
from duly.schedules.checks import check_after, check_limit, check_result, check_word, in_time, read
from duly.schedules.define import find_calendar, from_json, instant
from duly.schedules.health import Health, health_of, understood
from duly.schedules.verbs_base import Key, Ticks, VerbsBase
from duly.schedules.views import Foreseen, Schedule, Tick
from duly.schedules.why import ScheduleWhy, explain_schedule
from duly.store.table import Store
from duly.zones import zone

MAX_PREVIEW = 10_000
MAX_FORECAST_DAYS = 92
LOOK_AHEAD = 100
"""How many ticks are checked to find the first that would be dispatched."""
PAGE = 1_000


# Inside the class, `list` is a verb.
Preview = list[Foreseen]
Healths = list[Health]
Decisions = list[Decided]


class ReadVerbs(VerbsBase):
    """List, preview and explain schedules and their ledgers."""

    def get(self, key: Key) -> Schedule:
        """Return the schedule as it is now; ScheduleNotFound if there is none."""
        return Schedule(self._core, self._record(key))

    def list(
        self,
        *,
        function: Function[..., Any] | str | None = None,
        enabled: bool | None = None,
        parked: bool | None = None,
        calendar: str | None = None,
        owner: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Schedule]:
        """Return schedules, oldest first; `after` is the last id on the previous page."""
        name = function.name if isinstance(function, Function) else function
        if name is not None:
            check_stored_text("function", name, "a function, or its name")
        chosen = self._owner if owner is None else self._owner_for(owner)
        check_limit(limit)
        check_after(after, "schedule")
        for option, flag in (("enabled", enabled), ("parked", parked)):
            if flag is not None:
                check_flag(option, flag)
        if calendar is not None:
            calendar, _ = find_calendar(self._core, calendar, chosen or "")
        wanted = ScheduleFilter(
            owner=chosen,
            function=name,
            enabled=enabled,
            parked=parked,
            calendar=calendar,
            after_id=after,
            limit=limit,
        )
        return [Schedule(self._core, r) for r in self._core.ready().schedules(wanted)]

    def ticks(
        self,
        key: Key,
        *,
        after: Instant | None = None,
        before: Instant | None = None,
        outcome: str | None = None,
        reason: str | None = None,
        limit: int = 100,
    ) -> Ticks:
        """Return the schedule's ledger rows, newest first: its ticks in [after, before)."""
        now = self._core.clock.now()
        check_word("outcome", outcome, Outcome)
        check_word("reason", reason, Reason)
        check_limit(limit)
        wanted = TickFilter(
            after=None if after is None else instant("after", after, now),
            before=None if before is None else instant("before", before, now),
            outcome=outcome,
            reason=reason,
            limit=limit,
        )
        found = self._core.ready().ticks(self._record(key).id, wanted)
        return [Tick(self._core, record) for record in found]

    def preview(
        self,
        key: Key,
        n: int = 10,
        *,
        after: Instant | None = None,
        tz: str | None = None,
        simulate: bool = False,
        result: Mapping[str, Any] | None = None,
    ) -> Preview:
        """Return the decisions about the next `n` ticks, as of now; nothing is changed.

        For a disabled or parked schedule: the decisions as if it were enabled now. `after`: only
        later ticks. `tz`: the time zone of the viewer. With `simulate`, each dispatch is assumed to
        succeed with `result` when the following ticks are decided. The search is limited to a few
        seconds and returns what it has found by then; an `after` that it has not reached is
        refused.
        """
        if type(n) is not int or not 1 <= n <= MAX_PREVIEW:
            raise InvalidOption("n", f"must be 1 to {MAX_PREVIEW:,}, not {n!r}")
        check_flag("simulate", simulate)
        check_result(result)
        plan = read(self._record(key))
        late = None if after is None else instant("after", after, self._core.now())
        return ahead(self._core, plan, n, late, tz, simulate=simulate, result=result)

    def forecast(self, *, days: int = 7, start: Instant | None = None) -> Forecast:
        """Return the dispatches of the next days: per hour, per schedule, and the busiest minutes.

        Triggers and calendars are considered; conditions, budgets and overlap are not. The counts
        are exact, however many ticks there are, except that `complete` is False if jitter would
        have to be computed for more than a million ticks.
        """
        if type(days) is not int or not 1 <= days <= MAX_FORECAST_DAYS:
            raise InvalidOption("days", f"must be 1 to {MAX_FORECAST_DAYS}, not {days!r}")
        now = self._core.now()
        since = now if start is None else instant("start", start, now)
        plans = [plan for page in self._pages(enabled=True) for plan in understood(page)]
        with_calendar = [plan for plan in plans if plan.record.calendar is not None]
        calendars = self._core.ready().calendars_of(with_calendar)
        return forecast(plans, calendars, since, 24 * days, now)

    def explain(self, key: Key, condition: Mapping[str, Any] | None = None) -> Explanation:
        """Evaluate the schedule's condition, or another one, now: each operator separately."""
        plan = read(self._record(key))
        if condition is not None:
            plan = msgspec.structs.replace(plan, condition=parse_condition(condition))
        if plan.condition is None:
            return Explanation(())
        if isinstance(plan.condition, Malformed):
            raise InvalidCondition(None, plan.condition.error)
        signals = ask_for_signal(self._core, plan)
        facts = self._core.ready().facts([plan], self._core.now(), signals)
        return explain_condition(plan.condition, plan, facts)

    def health(self, key: Key | None = None) -> Healths:
        """Return the health of schedules: ok, missed, paused or never ran, with lag and reason.

        A schedule is missed if it is overdue, its last tick was missed, it is parked, or its
        expectation is missed.
        """
        pages = self._pages() if key is None else [[self._record(key)]]
        return [health for page in pages for health in healths(self._core, page)]

    def why(self, key: Key) -> ScheduleWhy:
        """Explain why it has not run: who paused it, its last tick's outcome and its next tick."""
        record = self._record(key)
        return explain_schedule(self._core, record, self._coming(record))

    # Inside

    def _coming(self, record: ScheduleRecord) -> Decisions:
        """The next ticks of a schedule that is active and can be parsed."""
        plan = next(understood([record]), None)
        return [] if plan is None else in_time(_coming(self._core, plan), LOOK_AHEAD, None)

    def _pages(self, enabled: bool | None = None) -> Iterator[Sequence[ScheduleRecord]]:
        """All schedules, in pages."""
        after: str | None = None
        while True:
            wanted = ScheduleFilter(owner=self._owner, enabled=enabled, after_id=after, limit=PAGE)
            page = self._core.ready().schedules(wanted)
            if page:
                yield page
            if len(page) < PAGE:
                return
            after = page[-1].id


def ahead(
    core: Core,
    plan: Plan,
    n: int,
    after: int | None = None,
    tz: str | None = None,
    *,
    simulate: bool = False,
    result: Mapping[str, Any] | None = None,
) -> list[Foreseen]:
    """Preview the next ticks of a schedule, whether or not it is stored."""
    viewer = zone(plan.trigger.tz if tz is None else tz).info
    coming = _coming(core, plan, simulate=simulate, result=result)
    return [_foreseen(core, plan, tick, viewer) for tick in in_time(coming, n, after)]


def _coming(
    core: Core,
    plan: Plan,
    *,
    simulate: bool = False,
    result: Mapping[str, Any] | None = None,
) -> Iterator[Decided]:
    """The upcoming ticks, each decided as of now."""
    now = core.now()
    facts = core.ready().facts([plan], now, ask_for_signal(core, plan))
    return preview(plan, facts, now, simulate=simulate, result=result)


def _foreseen(core: Core, plan: Plan, tick: Decided, viewer: tzinfo) -> Foreseen:
    utc = from_ms(tick.tick_at)
    return Foreseen(
        tick_ms=tick.tick_at,
        utc=utc,
        local=utc.astimezone(zone(plan.trigger.tz).info),
        viewer=utc.astimezone(viewer),
        due=from_ms(tick.due_at),
        dst_adjusted=plan.trigger.adjusted(tick.tick_at),
        **_decided(core, plan, tick.decision),
    )


def _decided(core: Core, plan: Plan, decision: Decision) -> dict[str, Any]:
    if isinstance(decision, Skip):
        # As the ledger would store it.
        detail = from_json(encode_detail(decision.detail))
        return {"decision": "skip", "reason": str(decision.reason), "detail": detail}
    return {
        "decision": "dispatch",
        "inputs": core.redaction.shown_arguments(plan.record.function, decision.args),
        "rotation_index": decision.rotation_index,
    }


def healths(core: Core, records: Sequence[ScheduleRecord]) -> list[Health]:
    """The health of these schedules."""
    store = core.ready()
    now = core.now()
    statuses = store.statuses()
    killed = store.kill_switch() is not None
    return [
        health_of(record, statuses.get(record.function), killed, _newest(store, record), now)
        for record in records
    ]


def _newest(store: Store, record: ScheduleRecord) -> TickRecord | None:
    rows = store.ticks(record.id, TickFilter(limit=1))
    return rows[0] if rows else None
