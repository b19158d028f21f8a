"""Workers: the processes that run jobs."""

from __future__ import annotations

from typing import NamedTuple

from fastapi import APIRouter
from starlette.responses import Response

from duly.app import operations
from duly.server.answers import readable
from duly.server.api import operations as api
from duly.server.api.operation import require_all_owners
from duly.server.dashboard.exports import Format, export
from duly.server.dashboard.pages import PageRoute, Viewing, render

router = APIRouter(route_class=PageRoute)

MAX_LISTED = 200
"""The most workers shown; any others are only counted."""


class Row(NamedTuple):
    """A line of the list."""

    of: api.WorkerShape
    dead: bool
    running: int


@router.get("/workers")
def workers(viewer: Viewing) -> Response:
    require_all_owners(viewer.who)
    found = sorted(api.workers(viewer.app, viewer.who), key=lambda each: each.id)
    app = viewer.app
    rows = [
        Row(each, operations.is_dead(app, each.id) is True, len(operations.holdings(app, each.id)))
        for each in found[:MAX_LISTED]
    ]
    slots, threads = (sum(each.slots for each in found), sum(each.threads for each in found))
    totals = {"all": len(found), "slots": slots, "threads": threads}
    return render(viewer, "workers.html", rows=rows, **totals)


@router.get("/workers.{format}")
def workers_file(viewer: Viewing, format: Format) -> Response:
    """The same list as a file."""
    rows = [readable(each) for each in api.workers(viewer.app, viewer.who)]
    return export(rows, "workers", format, complete=True)
