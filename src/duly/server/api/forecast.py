"""Forecasts: dispatches by the hour, an iCalendar feed, and cron expressions explained."""

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
"""So many are looked at for one request, whether or not they bring a job."""
FEED_DAYS = 31
DAY_MS = 24 * HOUR_MS

Days = Annotated[int, Meta(ge=1, le=MAX_FORECAST_DAYS)]


class Moment(Shape):
    at: Time
    at_ms: Ms
    dispatches: int


class ForecastShape(Shape):
    start_at: Time
    start_at_ms: Ms
    end_at: Time
    end_at_ms: Ms
    total: int
    hours: Annotated[list[Moment], Meta(description="Every hour from the start on.")]
    busiest: Annotated[
        list[Moment], Meta(description="The minutes with most dispatches, most first.")
    ]
    schedules: int
    complete: Annotated[
        bool, Meta(description="False: these are the figures of only some schedules.")
    ]


class FireShape(Shape):
    at: Time
    at_ms: Ms
    local: str
    dst_adjusted: Annotated[
        bool, Meta(description="It stands for a time that does not exist that day.")
    ]
    note: Annotated[
        str | None, Meta(description="What clocks that are set forward or back do to it.")
    ]


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
    """Dispatches per hour for the next days, and the busiest minutes.

    Triggers and calendars are asked; conditions, budgets and overlapping are not.
    """
    if start is not None:
        _check_start(app, start)
    schedules = _schedules(app, owner_of(who, owner))
    found = schedules.forecast(days=days, start=start, most_ticks=MAX_TICKS)
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
        complete=found.complete,
    )


@api.get("/forecast.ics", media="text/calendar")
def ical(
    app: Duly,
    who: Reader,
    days: Annotated[int, Meta(ge=1, le=FEED_DAYS)] = 7,
    schedule: Annotated[str | None, Meta(description="The id of one; else all.")] = None,
    owner: str | None = None,
) -> Text:
    """The coming ticks as an iCalendar feed: the first 1,000 of them.

    `X-Duly-Complete: false` says that there may be more than it shows.
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
    after: Annotated[Instant | None, Meta(description="Now, if it is not given.")] = None,
    key: Annotated[str, Meta(description="Of the schedule, which chooses for `H`.")] = "",
) -> ExpressionShape:
    """A cron expression in words, and when it fires next."""
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
    """What lies between now and the start is looked at too, where it uses up what remains."""
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
    """The first ticks of some schedules that bring a job."""

    def __init__(self, app: Duly, plans: list[Plan], start: int, end: int) -> None:
        self._start, self._end = start, end
        self._left = MAX_TICKS
        self._calendars = operations.calendars_of(app, plans)
        # Each is as good as in order: only what was moved is not.
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
