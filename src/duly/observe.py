"""`app.observe`: one view across schedules and the crons of gateways, in six columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from duly.clock import from_ms
from duly.core import Core
from duly.errors import DulyError, InvalidOption
from duly.gateway.crons import GatewayCron
from duly.gateway.registered import ASK_SECONDS, Gateways, RegisteredGateway
from duly.ids import is_id
from duly.model.schedule import ScheduleRecord
from duly.model.trigger import At, Cron, Every, Trigger
from duly.schedules.ahead import zone_info
from duly.schedules.views import Schedule
from duly.store.base import Store
from duly.store.schedules.data import ScheduleFilter

MAX_PAGE = 1_000


class ObservedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the view. The six columns are `resource`, `type` with `expression`, `tz`,
    `status`, `next_run` and `last_run` with `last_status`."""

    source: str
    """schedule or gateway."""
    id: str
    owner: str | None
    resource: str
    """The function that is called; for a gateway its name and that of the cron."""
    key: str
    """The key of the schedule, or the name of the cron."""
    type: str
    """cron, interval or at; empty if it cannot be read."""
    expression: str
    """The cron expression, the milliseconds, or the instant."""
    words: str
    """The same in words."""
    tz: str
    """The zone; empty for UTC."""
    status: str
    """enabled, disabled, parked, orphaned or ended."""
    next_run: datetime | None
    """In the viewer's zone."""
    last_run: datetime | None
    last_status: str | None
    """How the last run ended, or that it has not yet."""
    stale_since: datetime | None = None
    """Since when its gateway has given no answer: this is what that said before."""
    error: str | None = None
    """Why it is parked, or its gateway stale; of a cron also what was wrong with it last."""


class ObservedGateway(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway in the view, whether it has crons or not."""

    id: str
    name: str
    owner: str | None
    url: str
    seen: datetime | None
    stale_since: datetime | None
    error: str | None


class ObservedPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of schedules; on the first one the gateways and their crons stand beside them."""

    schedules: tuple[ObservedSchedule, ...]
    crons: tuple[ObservedSchedule, ...] = ()
    gateways: tuple[ObservedGateway, ...] = ()
    after: str | None = None
    """What leads to the next page, if there is one."""

    @property
    def rows(self) -> tuple[ObservedSchedule, ...]:
        """All lines: the schedules, then the crons of gateways."""
        return self.schedules + self.crons


def as_data(page: ObservedPage) -> dict[str, Any]:
    """A page as plain values that JSON can hold; times are ISO 8601 with their offset."""
    return {
        "rows": [msgspec.to_builtins(row) for row in page.rows],
        "gateways": [msgspec.to_builtins(gateway) for gateway in page.gateways],
        "after": page.after,
    }


class Observe:
    """Views across an app."""

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
    ) -> ObservedPage:
        """All schedules, and the crons of all gateways, with times in the zone of whoever looks.

        Schedules come in pages, oldest first: `after` is that of the page before. Gateways are
        asked with the first page, all at the same time, for `wait` seconds at most; one that gives
        no answer is shown as stale with what it said last.
        """
        if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
            raise InvalidOption("limit", f"must be 1 to {MAX_PAGE:,}, not {limit!r}")
        if after is not None and not is_id(after):
            raise InvalidOption("after", f"must be that of the page before, not {after!r}")
        viewer = zone_info(tz)
        store = self._core.ready()
        found = store.schedules(ScheduleFilter(owner=owner, after_id=after, limit=limit + 1))
        gateways = self._look(owner, wait) if after is None else ()
        return ObservedPage(
            schedules=tuple(self._schedule(store, each, viewer) for each in found[:limit]),
            crons=tuple(_cron(g, cron, viewer) for g in gateways for cron in g.crons),
            gateways=tuple(_gateway(gateway) for gateway in gateways),
            after=found[limit - 1].id if len(found) > limit else None,
        )

    def _look(self, owner: str | None, wait: float) -> Iterable[RegisteredGateway]:
        gateways = self._gateways if owner is None else self._gateways.of(owner)
        return gateways.look(wait)

    def _schedule(self, store: Store, record: ScheduleRecord, viewer: ZoneInfo) -> ObservedSchedule:
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
            last_status=_last_status(store, record),
            error=record.error,
            **_described(lambda: schedule.trigger),
        )


def _last_status(store: Store, record: ScheduleRecord) -> str | None:
    job = None if record.last_job_id is None else store.get(record.last_job_id)
    return None if job is None else str(job.state)


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
    """Type, expression, words and zone; one that cannot be read is shown without them."""
    try:
        trigger = read()
    except DulyError:
        return {"type": "", "expression": "", "words": "", "tz": ""}
    kind, expression = _expression(trigger)
    zone_name = trigger.tz if isinstance(trigger, Cron) else "UTC"
    tz = "" if zone_name == "UTC" else zone_name
    # The zone has a column of its own.
    words = trigger.describe().removesuffix(f" ({zone_name})")
    return {"type": kind, "expression": expression, "words": words, "tz": tz}


def _expression(trigger: Trigger) -> tuple[str, str]:
    if isinstance(trigger, Cron):
        return "cron", trigger.expression
    if isinstance(trigger, Every):
        return "interval", str(trigger.milliseconds)
    assert isinstance(trigger, At)
    return "at", from_ms(trigger.instant).isoformat().replace("+00:00", "Z")


def _in(viewer: ZoneInfo, ms: int | None) -> datetime | None:
    return None if ms is None else from_ms(ms).astimezone(viewer)


def _at(viewer: ZoneInfo, when: datetime | None) -> datetime | None:
    return None if when is None else when.astimezone(viewer)


class AsyncObserve:
    """`app.aio.observe`: the views of `app.observe`, awaited."""

    def __init__(self, core: Core, observe: Observe) -> None:
        self._core = core
        self._observe = observe

    async def schedules(
        self,
        *,
        owner: str | None = None,
        tz: str = "UTC",
        after: str | None = None,
        limit: int = 100,
        wait: float = ASK_SECONDS,
    ) -> ObservedPage:
        """All schedules, and the crons of all gateways."""
        return await self._core.threads.call(
            partial(
                self._observe.schedules, owner=owner, tz=tz, after=after, limit=limit, wait=wait
            )
        )
