"""Observe > Schedules: every schedule and every gateway cron in one list."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Request
from markupsafe import Markup
from starlette.responses import Response

from duly.app import operations
from duly.clock import to_ms
from duly.errors import DulyError
from duly.observe.view import STATUSES, ObserveFilter
from duly.server.answers import Refused
from duly.server.api import schedules as api
from duly.server.api.common import NoteBody
from duly.server.api.gateways import ObservedPage, ObservedShape, shown
from duly.server.auth import Operator
from duly.server.dashboard import svg
from duly.server.dashboard.exports import Format, export, pages
from duly.server.dashboard.forms import body_of
from duly.server.dashboard.pages import PageRoute, Sent, Viewer, Viewing, once, redirect, render
from duly.server.dashboard.times import HOUR, SECOND
from duly.server.slow_requests import MAX_VIEWS, Waiting

router = APIRouter(route_class=PageRoute)

PAGE = 50
RUNS = 30
WAIT_SECONDS = 1.0
"""How long to wait for gateways; a page that fetches itself again shows their last known state."""
WITHIN = HOUR / SECOND

Status = Annotated[str, Query(max_length=20)]
Text = Annotated[str, Query(max_length=200)]


class Row(NamedTuple):
    """A line of the list."""

    of: ObservedShape
    next_at: int | None
    last_at: int | None
    spark: Markup


@router.get("/schedules")
async def schedules(
    viewer: Viewing,
    waiting: Waiting,
    status: Status = "",
    search: Text = "",
    function: Text = "",
    due: bool = False,
    after: str | None = None,
) -> Response:
    which = _which(status, search, function, due)
    wait = 0.0 if viewer.is_live else WAIT_SECONDS

    def look() -> tuple[ObservedPage, list[Row]]:
        page = _page(viewer, which, after, PAGE, wait)
        return page, _rows(viewer, page)

    page, rows = await waiting("views", look, MAX_VIEWS)
    filters = {"status": status, "search": search, "function": function, "due": due}
    return render(
        viewer,
        "schedules.html",
        rows=rows,
        page=page,
        statuses=STATUSES,
        filters=filters,
        filtered=any(filters.values()),
        after=after,
    )


@router.get("/schedules.{format}")
def schedules_file(
    viewer: Viewing,
    format: Format,
    status: Status = "",
    search: Text = "",
    function: Text = "",
    due: bool = False,
) -> Response:
    """The same list as a file."""
    which = _which(status, search, function, due)

    def ask(cursor: str | None) -> Any:
        page = _page(viewer, which, cursor, 1_000, WAIT_SECONDS)
        return _Part(page.rows, page.next)

    rows, complete = pages(ask)
    return export(rows, "schedules", format, complete=complete)


class _Part(NamedTuple):
    items: list[ObservedShape]
    next: str | None


@router.post("/schedules/bulk")
def bulk(request: Request, viewer: Viewing, who: Operator, form: Sent) -> Response:
    """Apply one action to all selected schedules."""
    verb, ids = form.text("verb"), form.all("id")
    if verb not in VERBS:
        raise Refused(422, "invalid", "choose an action")
    if not ids:
        raise Refused(422, "invalid", "select at least one schedule")
    note = form.given("note")
    done, refused = 0, ""
    for schedule_id in ids:
        try:
            VERBS[verb](viewer, schedule_id, note)
            done += 1
        except (DulyError, Refused) as error:
            refused = refused or str(error)
    text = f"{done} {'schedule' if done == 1 else 'schedules'} {DONE[verb]}"
    if refused:
        text += f"; {len(ids) - done} failed: {refused}"
    return redirect(request, form.text("back"), text, "failed" if refused else "done")


Verb = Callable[[Viewer, str, str | None], object]
VERBS: dict[str, Verb] = {
    "enable": lambda v, each, note: api.enable(v.app, v.who, each, body_of(NoteBody, note=note)),
    "disable": lambda v, each, note: api.disable(v.app, v.who, each, body_of(NoteBody, note=note)),
    "run": lambda v, each, note: api.run(v.app, v.who, once(v), each),
    "remove": lambda v, each, note: api.remove(v.app, v.who, each),
}
DONE = {"enable": "enabled", "disable": "disabled", "run": "run", "remove": "removed"}


# Rows --------------------------------------------------------------------------------------------


def _which(status: str, search: str, function: str, due: bool) -> ObserveFilter:
    return ObserveFilter(
        status=status or None,
        search=search or None,
        function=function or None,
        due_within=WITHIN if due else None,
    )


def _page(
    viewer: Viewer, which: ObserveFilter, after: str | None, limit: int, wait: float
) -> ObservedPage:
    found = viewer.app.observe.schedules(
        owner=viewer.who.owner, tz=viewer.tz, after=after, limit=limit, wait=wait, **which
    )
    return shown(viewer.who, found)


def _rows(viewer: Viewer, page: ObservedPage) -> list[Row]:
    ids = [row.id for row in page.rows if row.source == "schedule"]
    runs = operations.recent_runs(viewer.app, ids, RUNS)
    return [
        Row(row, _ms(row.next_run), _ms(row.last_run), svg.sparkline(runs.get(row.id, [])))
        for row in page.rows
    ]


def _ms(text: str | None) -> int | None:
    return None if text is None else to_ms(datetime.fromisoformat(text))
