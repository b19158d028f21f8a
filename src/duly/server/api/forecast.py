"""Forecasts: dispatches per hour, an iCalendar feed, and explanations of cron expressions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Annotated

from msgspec import Meta

from duly.app import Duly, operations
from duly.clock import from_ms, to_ms
from duly.errors import InvalidOption
from duly.functions.times import at
from duly.model.access import Principal
from duly.model.decide import Dispatch
from duly.model.fires import Fire, fires
from duly.model.forecast import HOUR_MS, outlook
from duly.model.ical_feed import Event, feed
from duly.model.schedule import Plan, ScheduleFilter
from duly.model.trigger import Cron
from duly.schedules import Schedules
from duly.schedules.health import understood
from duly.schedules.verbs_read import MAX_FORECAST_DAYS
from duly.server.answers import Instant, Ms, Shape, Time
from duly.server.api.common import check_id, owner_of
from duly.server.api.operation import Operations, Reader, Text

api = Operations("forecast")

MAX_FIRES = 1_000
MAX_EVENTS = 1_000
MAX_FEED_SCHEDULES = 1_000
MAX_TICKS = 100_000
"""The most ticks examined for a feed, whether or not they are dispatched."""
MAX_SHARES = 100
FEED_DAYS = 31
DAY_MS = 24 * HOUR_MS

Days = Annotated[int, Meta(ge=1, le=MAX_FORECAST_DAYS)]


class Moment(Shape):
    at: Time
    at_ms: Ms
    dispatches: int


class Share(Shape):
    schedule_id: str
    key: str
    dispatches: int


class ForecastShape(Shape):
    start_at: Time
    start_at_ms: Ms
    end_at: Time
    end_at_ms: Ms
    total: int
    hours: Annotated[list[Moment], Meta(description="Every hour from the start.")]
    busiest: Annotated[
        list[Moment], Meta(description="The minutes with the most dispatches, busiest first.")
    ]
    schedules: int
    by_schedule: Annotated[
        list[Share], Meta(description="The 100 schedules with the most dispatches, most first.")
    ]
    complete: Annotated[
        bool,
        Meta(
            description="False if the jitter of some schedules is left out: their ticks are many."
        ),
    ]


class FireShape(Shape):
    at: Time
    at_ms: Ms
    local: str
    dst_adjusted: Annotated[
        bool, Meta(description="Whether it replaces a time that does not exist on that day.")
    ]
    note: Annotated[str | None, Meta(description="The effect of a daylight saving time change.")]


class ExpressionShape(Shape):
    expression: str
    tz: str
    description: str
    fires: list[FireShape]


# Routes ------------------------------------------------------------------------------------------


@api.get("/forecast")
def forecast(
    app: Duly,
    who: Reader,
    days: Days = 7,
    start: Instant | None = None,
    owner: str | None = None,
) -> ForecastShape:
    """Forecast the dispatches per hour and per schedule for the next days.

    Triggers and calendars are taken into account; conditions, budgets and overlap are not.
    """
    if start is not None:
        _check_start(app, start)
    schedules = _schedules(app, owner_of(who, owner))
    found = schedules.forecast(days=days, start=start)
    return ForecastShape(
        start_at=from_ms(found.start),
        start_at_ms=found.start,
        end_at=from_ms(found.end),
        end_at_ms=found.end,
        total=found.total,
        hours=[
            _moment(found.start + hour * HOUR_MS, count) for hour, count in enumerate(found.hours)
        ],
        busiest=[_moment(minute.at, minute.dispatches) for minute in found.busiest],
        schedules=found.schedules,
        by_schedule=[Share(**share._asdict()) for share in found.by_schedule[:MAX_SHARES]],
        complete=found.complete,
    )


@api.get("/forecast.ics", media="text/calendar")
def ical(
    app: Duly,
    who: Reader,
    days: Annotated[int, Meta(ge=1, le=FEED_DAYS)] = 7,
    schedule: Annotated[str | None, Meta(description="A schedule's id. Default: all.")] = None,
    owner: str | None = None,
) -> Text:
    """Get the first 1,000 upcoming ticks as an iCalendar feed.

    `X-Duly-Complete: false` means that there may be more.
    """
    plans = _plans(app, who, owner_of(who, owner), schedule)
    now = operations.now(app)
    coming = Coming(app, plans, now, now + days * DAY_MS)
    headers = {} if coming.complete else {"X-Duly-Complete": "false"}
    return Text(feed(f"{app.name}: schedules", coming.events, now), headers)


@api.get("/cron")
def cron(
    app: Duly,
    who: Reader,
    expression: Annotated[str, Meta(min_length=1, max_length=1_000)],
    tz: str = "UTC",
    n: Annotated[int, Meta(ge=1, le=MAX_FIRES)] = 5,
    after: Annotated[Instant | None, Meta(description="Default: now.")] = None,
    key: Annotated[str, Meta(description="The schedule's key, which sets `H`.")] = "",
) -> ExpressionShape:
    """Explain a cron expression in words, with its next times."""
    trigger = Cron(expression, tz, key)
    now = app.clock.now()
    since = now if after is None else at(after, now)
    return ExpressionShape(
        expression=expression,
        tz=trigger.tz,
        description=trigger.describe(),
        fires=[_fire(fire) for fire in fires(trigger, n, since)],
    )


# Helpers -----------------------------------------------------------------------------------------


def _schedules(app: Duly, owner: str | None) -> Schedules:
    return app.schedules if owner is None else app.schedules.of(owner)


def _check_start(app: Duly, start: datetime) -> None:
    """Check the start: earlier ticks are examined too, because they count for `remaining`."""
    if abs(to_ms(start) - app.clock.now()) > MAX_FORECAST_DAYS * DAY_MS:
        raise InvalidOption("start", f"must be within {MAX_FORECAST_DAYS} days of now")


def _moment(at: int, count: int) -> Moment:
    return Moment(at=from_ms(at), at_ms=at, dispatches=count)


def _plans(app: Duly, who: Principal, owner: str | None, schedule: str | None) -> list[Plan]:
    if schedule is not None:
        found = _schedules(app, who.owner).get(check_id(schedule, "schedule"))
        records = [found.record] if found.enabled else []
        return list(understood(records))
    wanted = ScheduleFilter(owner=owner, enabled=True, limit=MAX_FEED_SCHEDULES)
    return list(understood(operations.find_schedules(app, wanted)))


class Coming:
    """The first ticks of some schedules that will be dispatched."""

    def __init__(self, app: Duly, plans: list[Plan], start: int, end: int) -> None:
        self._start, self._end = start, end
        self._left = MAX_TICKS
        self._calendars = operations.calendars_of(app, plans)
        # Each is almost in order: only moved ticks are not.
        found = list(islice(merge(*map(self._of, plans)), MAX_EVENTS + 1))
        self.events = sorted(found[:MAX_EVENTS])
        self.complete = (
            self._left >= 0 and len(found) <= MAX_EVENTS and len(plans) < MAX_FEED_SCHEDULES
        )

    def _of(self, plan: Plan) -> Iterator[Event]:
        record = plan.record
        description = f"{record.function}: {plan.trigger.describe()}"
        for tick in outlook(plan, self._calendars, self._start, self._end, self._start):
            self._left -= 1
            if self._left < 0:
                return
            dispatched = isinstance(tick.decision, Dispatch)
            if dispatched and self._start <= tick.due_at < self._end:
                uid = f"{record.id}-{tick.tick_at}@duly"
                yield Event(tick.due_at, uid, record.key, description)


def _fire(fire: Fire) -> FireShape:
    return FireShape(
        at=from_ms(fire.at_ms),
        at_ms=fire.at_ms,
        local=fire.local.isoformat(timespec="seconds"),
        dst_adjusted=fire.dst_adjusted,
        note=fire.note,
    )
