"""Queues: their depths, and the switches that pause one queue or everything."""

from __future__ import annotations

from typing import NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from duly.model.function import is_reserved
from duly.observe.health import QueueHealth
from duly.server.answers import readable
from duly.server.api import operations as api
from duly.server.api.common import NoteBody
from duly.server.auth import Operator
from duly.server.dashboard.exports import Format, export
from duly.server.dashboard.forms import body_of
from duly.server.dashboard.pages import PageRoute, Sent, Viewer, Viewing, redirect, render

router = APIRouter(route_class=PageRoute)


class Row(NamedTuple):
    """A queue; its depth is only for viewers who see the jobs of all owners."""

    of: api.QueueShape
    depth: QueueHealth | None


@router.get("/queues")
def queues(viewer: Viewing) -> Response:
    return render(
        viewer,
        "queues.html",
        rows=_rows(viewer),
        paused=api.kill_switch(viewer.app, viewer.who).paused,
        can_turn=viewer.may("operate") and viewer.who.owner is None,
    )


@router.get("/queues.{format}")
def queues_file(viewer: Viewing, format: Format) -> Response:
    """The same list as a file."""
    rows = [readable(each.of) for each in _rows(viewer)]
    return export(rows, "queues", format, complete=True)


def _rows(viewer: Viewer) -> list[Row]:
    known = {each.name: each for each in api.queues(viewer.app, viewer.who)}
    depths: dict[str, QueueHealth] = {}
    if viewer.who.owner is None:
        depths = {each.name: each for each in viewer.app.health().queues}
    for name in depths.keys() - known.keys():
        known[name] = api.QueueShape(name=name, paused=None, at_once=None)
    shown = [known[name] for name in sorted(known) if not is_reserved(name)]
    return [Row(each, depths.get(each.name)) for each in shown]


@router.post("/queues/{name:path}/pause")
def pause(request: Request, viewer: Viewing, who: Operator, name: str, form: Sent) -> Response:
    body = body_of(NoteBody, note=form.given("note"))
    api.pause_queue(viewer.app, who, name, body)
    return redirect(request, "/queues", f"Queue {name} paused; running jobs continue")


@router.post("/queues/{name:path}/resume")
def resume(request: Request, viewer: Viewing, who: Operator, name: str, form: Sent) -> Response:
    api.resume_queue(viewer.app, who, name)
    return redirect(request, "/queues", f"Queue {name} resumed")


@router.post("/queues/{name:path}/limit")
def limit(request: Request, viewer: Viewing, who: Operator, name: str, form: Sent) -> Response:
    body = body_of(api.LimitBody, at_once=form.whole("at_once"))
    api.limit_queue(viewer.app, who, name, body)
    text = "has no limit" if body.at_once is None else f"runs at most {body.at_once} jobs at once"
    return redirect(request, "/queues", f"Queue {name} {text}")


# The kill switch ---------------------------------------------------------------------------------


@router.post("/kill-switch/pause")
def pause_all(request: Request, viewer: Viewing, who: Operator, form: Sent) -> Response:
    api.pause(viewer.app, who, body_of(NoteBody, note=form.given("note")))
    text = "Everything is paused: no job starts and no tick is dispatched"
    return redirect(request, "/queues", text)


@router.post("/kill-switch/resume")
def resume_all(request: Request, viewer: Viewing, who: Operator, form: Sent) -> Response:
    api.resume(viewer.app, who)
    return redirect(request, "/queues", "Everything resumed")
