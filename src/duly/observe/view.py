"""`app.observe`: one view over schedules and gateway crons, in six columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypedDict, Unpack
from zoneinfo import ZoneInfo

import msgspec

from duly.calls.twins import Twin, awaited
from duly.clock import from_ms
from duly.core import Core
from duly.errors import InvalidOption
from duly.functions.checks import check_stored_text
from duly.functions.times import Delay, length_ms
from duly.gateway.crons import GatewayCron
from duly.gateway.verbs import ASK_SECONDS, MAX_ASKED, Gateways, RegisteredGateway
from duly.ids import is_id
from duly.model.schedule import ScheduleFilter, ScheduleRecord
from duly.model.trigger import At, Cron, Every, Rule, Trigger
from duly.schedules.views import Schedule
from duly.store.table import Store
from duly.zones import zone

MAX_PAGE = 1_000
MAX_DIGITS = 15
STATUSES = ("enabled", "disabled", "parked", "orphaned", "ended", "late")


class ObserveFilter(TypedDict, total=False):
    """Filters for a view of schedules; None means any."""

    status: str | None
    search: str | None
    function: str | None
    due_within: Delay | None


class ObservedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the view. The six columns are `resource`, `type` with `expression`, `tz`,
    `status`, `next_run` and `last_run` with `last_status`."""

    source: str
    """schedule or gateway."""
    id: str
    owner: str | None
    resource: str
    """The function that is called; for a cron, the name of its gateway and its own name."""
    key: str
    """The key of the schedule, or the name of the cron."""
    type: str
    """cron, interval or at; empty if the trigger cannot be read."""
    expression: str
    """The cron expression, the interval in milliseconds, or the instant."""
    words: str
    """The expression in words."""
    tz: str
    """The time zone; empty for UTC."""
    status: str
    """enabled, disabled, parked, orphaned or ended."""
    next_run: datetime | None
    """In the viewer's time zone."""
    last_run: datetime | None
    last_status: str | None
    """How the last run ended, or its current state."""
    stale_since: datetime | None = None
    """Since when its gateway has not answered: the row shows its last answer."""
    error: str | None = None
    """Why it is parked, or its gateway stale; for a cron also its last error."""


class ObservedGateway(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway in the view, with or without crons."""

    id: str
    name: str
    owner: str | None
    url: str
    seen: datetime | None
    stale_since: datetime | None
    error: str | None


class ObservedPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of schedules; the first page also has the gateways and their crons."""

    schedules: tuple[ObservedSchedule, ...]
    crons: tuple[ObservedSchedule, ...] = ()
    gateways: tuple[ObservedGateway, ...] = ()
    after: str | None = None
    """The cursor of the next page, if there is one."""

    @property
    def rows(self) -> tuple[ObservedSchedule, ...]:
        """All rows: the schedules, then the crons of gateways."""
        return self.schedules + self.crons


def as_data(page: ObservedPage) -> dict[str, Any]:
    """A page as plain JSON values; times are ISO 8601 with their offset."""
    return {
        "rows": [msgspec.to_builtins(row) for row in page.rows],
        "gateways": [msgspec.to_builtins(gateway) for gateway in page.gateways],
        "after": page.after,
    }


class Observe:
    """Views across all schedules and gateways of an app."""

    def __init__(self, core: Core, gateways: Gateways) -> None:
        self._core = core
        self._gateways = gateways

    def schedules(
        self,
        *,
        owner: str | None = None,
        tz: str = "UTC",
        after: str | None = None,
        limit: int = 100,
        wait: float = ASK_SECONDS,
        **which: Unpack[ObserveFilter],
    ) -> ObservedPage:
        """Return all schedules, and the crons of all gateways, with times in the viewer's zone.

        Schedules are paged, oldest first: `after` is the cursor of the previous page. Gateways are
        queried together with the first page, in parallel, for at most `wait` seconds; one that does
        not answer is shown as stale with its last answer. With a `wait` of 0 none is queried.

        Filters: `status`, as in the column, or "late"; `search`, a part of the key or of the
        resource; `function`; `due_within`, which sorts by due time.
        """
        if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
            raise InvalidOption("limit", f"must be 1 to {MAX_PAGE:,}, not {limit!r}")
        viewer = zone(tz).info
        store = self._core.ready()
        chosen = _filter(which, after, self._core.now())._replace(owner=owner, limit=limit + 1)
        found = store.schedules(chosen)
        shown = found[:limit]
        states = last_states(store, shown)
        gateways = self._look(owner, wait) if after is None else ()
        crons = tuple(_cron(g, cron, viewer) for g in gateways for cron in g.crons)
        return ObservedPage(
            schedules=tuple(self._schedule(each, viewer, states) for each in shown),
            crons=tuple(cron for cron in crons if _is_wanted(cron, which, self._core.now())),
            gateways=tuple(_gateway(gateway) for gateway in gateways),
            after=_cursor(shown[-1], which) if len(found) > limit else None,
        )

    def _look(self, owner: str | None, wait: float) -> Iterable[RegisteredGateway]:
        gateways = self._gateways if owner is None else self._gateways.of(owner)
        return gateways.look(wait) if wait > 0 else gateways.list(limit=MAX_ASKED)

    def _schedule(
        self, record: ScheduleRecord, viewer: ZoneInfo, states: Mapping[str, str]
    ) -> ObservedSchedule:
        schedule = Schedule(self._core, record)
        return ObservedSchedule(
            source="schedule",
            id=record.id,
            owner=schedule.owner,
            resource=record.function,
            key=record.key,
            status=schedule.status,
            next_run=_in(viewer, record.due_at),
            last_run=_in(viewer, record.last_dispatch_at),
            last_status=states.get(record.last_job_id or ""),
            error=record.error,
            **_described(lambda: schedule.trigger),
        )


def last_states(store: Store, records: Sequence[ScheduleRecord]) -> dict[str, str]:
    """The states of these schedules' last jobs, by job id."""
    job_ids = [record.last_job_id for record in records if record.last_job_id is not None]
    return {look.job_id: str(look.state) for look in store.look(job_ids)}


def _filter(which: ObserveFilter, after: str | None, now: int) -> ScheduleFilter:
    status = which.get("status")
    if status is not None and status not in STATUSES:
        raise InvalidOption("status", f"must be one of {', '.join(STATUSES)}, not {status!r}")
    search, function, within = which.get("search"), which.get("function"), which.get("due_within")
    for option, text in (("search", search), ("function", function)):
        if text is not None:
            check_stored_text(option, text, "text")
    # The cursor also has the due time of the last schedule if the page is sorted by it.
    due, _, last = ("", "", after or "") if within is None else (after or "").rpartition(".")
    if after is not None and not (
        is_id(last) and due.isdecimal() == (within is not None) and len(due) <= MAX_DIGITS
    ):
        raise InvalidOption("after", f"must be the cursor of the previous page, not {after!r}")
    return ScheduleFilter(
        function=function,
        status=status,
        search=None if search is None else search.lower(),
        due_before=None if within is None else now + length_ms("due_within", within),
        after_due=int(due) if due else None,
        after_id=last or None,
    )


def _cursor(last: ScheduleRecord, which: ObserveFilter) -> str:
    return last.id if which.get("due_within") is None else f"{last.due_at}.{last.id}"


def _is_wanted(cron: ObservedSchedule, which: ObserveFilter, now: int) -> bool:
    """Whether a gateway's cron matches the filter."""
    status, search, within = which.get("status"), which.get("search"), which.get("due_within")
    if which.get("function") is not None or status not in (None, cron.status):
        return False
    if search is not None and search.lower() not in cron.resource.lower():
        return False
    if within is None:
        return True
    until = from_ms(now + length_ms("due_within", within))
    return cron.next_run is not None and cron.next_run < until


def _cron(gateway: RegisteredGateway, cron: GatewayCron, viewer: ZoneInfo) -> ObservedSchedule:
    return ObservedSchedule(
        source="gateway",
        id=cron.id,
        owner=gateway.owner,
        resource=f"{gateway.name}/{cron.name}",
        key=cron.name,
        status="enabled" if cron.enabled else "disabled",
        next_run=_at(viewer, cron.next_at),
        last_run=_at(viewer, cron.last_run_at),
        last_status=cron.last_status if cron.running_at is None else "running",
        stale_since=gateway.stale_since,
        error=gateway.error or cron.unreadable or cron.last_error,
        **_described(lambda: cron.trigger),
    )


def _gateway(gateway: RegisteredGateway) -> ObservedGateway:
    return ObservedGateway(
        id=gateway.id,
        name=gateway.name,
        owner=gateway.owner,
        url=gateway.url,
        seen=gateway.seen,
        stale_since=gateway.stale_since,
        error=gateway.error,
    )


def _described(read: Callable[[], Trigger]) -> dict[str, Any]:
    """Type, expression, words and zone; left empty if the trigger cannot be read."""
    try:
        trigger = read()
    except Exception:  # whatever is wrong with it
        return {"type": "", "expression": "", "words": "", "tz": ""}
    kind, expression = _expression(trigger)
    tz = "" if trigger.tz == "UTC" else trigger.tz
    # The zone has its own column.
    words = trigger.describe().removesuffix(f" ({trigger.tz})")
    return {"type": kind, "expression": expression, "words": words, "tz": tz}


def _expression(trigger: Trigger) -> tuple[str, str]:
    if isinstance(trigger, Cron):
        return "cron", trigger.expression
    if isinstance(trigger, Every):
        return "interval", str(trigger.milliseconds)
    if isinstance(trigger, Rule):
        return "rule", trigger.rule
    if not isinstance(trigger, At):
        return "any_of", " | ".join(_expression(each)[1] for each in trigger.triggers)
    return "at", from_ms(trigger.instant).isoformat().replace("+00:00", "Z")


def _in(viewer: ZoneInfo, ms: int | None) -> datetime | None:
    return None if ms is None else from_ms(ms).astimezone(viewer)


def _at(viewer: ZoneInfo, when: datetime | None) -> datetime | None:
    return None if when is None else when.astimezone(viewer)


class AsyncObserve(Twin[Observe]):
    """`app.observe` for async code: the same views, awaited."""

    schedules: Final = awaited(Observe.schedules)
