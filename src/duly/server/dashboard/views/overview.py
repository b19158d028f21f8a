"""Overview: warnings, running jobs, and the next day."""

from __future__ import annotations

from itertools import islice
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from duly.app import operations
from duly.model.decide import Dispatch
from duly.model.forecast import forecast, outlook
from duly.model.schedule import Plan, ScheduleFilter
from duly.observe.health import LATE_MS, HealthReport
from duly.schedules.health import understood
from duly.server.dashboard import svg
from duly.server.dashboard.pages import PageRoute, Viewer, Viewing, render
from duly.server.dashboard.times import DAY, HOUR, MINUTE

router = APIRouter(route_class=PageRoute)

LANES = 14
DENSE = 60
"""More ticks than this in a lane are drawn as one band."""
STEPS = (MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR)
MAX_BARS = 120


@router.get("/")
def overview(viewer: Viewing) -> Response:
    owner = viewer.who.owner
    now = viewer.now
    # The system's health covers all owners, so no single owner sees it.
    health = viewer.app.health() if owner is None else None
    return render(
        viewer,
        "overview.html",
        tally=operations.tally(viewer.app, now, now - LATE_MS, now - DAY, owner),
        health=health,
        banners=[] if health is None else _banners(health),
        chart=_chart(viewer),
        **_coming(viewer),
    )


def _banners(health: HealthReport) -> list[str]:
    """Problems, and the switches that an operator has turned off."""
    said = list(health.warnings)
    if health.workers == 0 and not any("no worker" in each for each in said):
        said.append("no worker is running: jobs wait until one starts")
    return said


def _chart(viewer: Viewer) -> dict[str, Any]:
    """How many jobs ended over time: in the last day, or for as long as the newest ones cover."""
    found = operations.throughput(viewer.app, viewer.now - DAY, MINUTE, viewer.who.owner)
    first = max(viewer.now - DAY, min((each.at for each in found), default=viewer.now - HOUR))
    step = next(s for s in STEPS if (viewer.now - first) // s <= MAX_BARS or s == STEPS[-1])
    start = first - first % step
    slots = list(range(start, viewer.now + 1, step))
    counts = {state: [0] * len(slots) for state in ("succeeded", "failed", "canceled")}
    for each in found:
        place = (each.at - start) // step
        if 0 <= place < len(slots):
            counts[each.state][place] += each.jobs
    return {
        "step": step,
        "series": {"x": [slot // 1000 for slot in slots], **counts, "tz": viewer.tz},
        "svg": svg.bars(counts["succeeded"], counts["failed"]),
        "total": sum(map(sum, counts.values())),
        "failed": sum(counts["failed"]),
    }


def _coming(viewer: Viewer) -> dict[str, Any]:
    """The next 24 hours: a lane for each of the schedules that are due first."""
    start, end = viewer.now, viewer.now + DAY
    wanted = ScheduleFilter(owner=viewer.who.owner, due_before=end, limit=LANES + 1)
    records = operations.find_schedules(viewer.app, wanted)
    plans = list(understood(records[:LANES]))
    calendars = operations.calendars_of(
        viewer.app, [p for p in plans if p.record.calendar is not None]
    )

    def lane(plan: Plan) -> svg.Lane:
        found = outlook(plan, calendars, start, end, start)
        decided = islice(found, DENSE + 1)
        ticks = [tick.due_at for tick in decided if isinstance(tick.decision, Dispatch)]
        shown = sorted(tick for tick in ticks if start <= tick < end)
        record = plan.record
        total = len(shown)
        if len(ticks) > DENSE:
            total = forecast([plan], calendars, start, 24, start).total
        return svg.Lane(record.id, record.key, record.function, shown, total)

    lanes = [lane(plan) for plan in plans]
    return {
        "lanes": [(each, svg.lane(each, start, end)) for each in lanes],
        "hours": [start + n * 3 * HOUR for n in range(8)],
        "more_lanes": len(records) > LANES,
    }
