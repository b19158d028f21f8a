"""Functions: the list with recent figures, and one function with its status."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from math import ceil
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from duly.app import operations
from duly.errors import DulyError
from duly.model.function import MAY_BECOME, Status
from duly.model.history import Run
from duly.model.job import State
from duly.server.answers import Refused, readable
from duly.server.api import functions as api
from duly.server.api import jobs
from duly.server.auth import Caller, Operator
from duly.server.dashboard import svg
from duly.server.dashboard.exports import Format, export
from duly.server.dashboard.forms import body_of
from duly.server.dashboard.pages import PageRoute, Sent, Viewer, Viewing, once, redirect, render
from duly.server.dashboard.views import arguments
from duly.server.dashboard.views.arguments import Kind

router = APIRouter(route_class=PageRoute)

PAGE = 25
PENDING = 20
LATEST, LATEST_OF_ONE = 50, 200
"""How many of a function's latest runs its figures cover."""

Text = Annotated[str, Query(max_length=200)]


class Figures(NamedTuple):
    """Statistics on a function's latest runs."""

    runs: int
    failed: int
    p50: int | None
    p95: int | None

    @property
    def failure_rate(self) -> float:
        return self.failed / self.runs


@router.get("/functions")
def functions(viewer: Viewing, search: Text = "", status: Text = "", after: Text = "") -> Response:
    found = [each for each in _found(viewer, search, status) if each.name > after]
    shown = found[:PAGE]
    runs = _runs(viewer, [each.name for each in shown], LATEST)
    rows = [
        (each, arguments.signature(each.arguments), _figures(runs.get(each.name, ())))
        for each in shown
    ]
    return render(
        viewer,
        "functions.html",
        rows=rows,
        filters={"search": search, "status": status},
        filtered=bool(search or status),
        statuses=list(Status),
        latest=LATEST,
        after=after,
        next=shown[-1].name if len(found) > PAGE else None,
    )


@router.get("/functions.{format}")
def functions_file(
    viewer: Viewing, format: Format, search: Text = "", status: Text = ""
) -> Response:
    """The same list as a file."""
    rows = [readable(each) for each in _found(viewer, search, status)]
    return export(rows, "functions", format, complete=True)


def _found(viewer: Viewer, search: str, status: str) -> list[api.FunctionShape]:
    if status and status not in list(Status):
        known = ", ".join(Status)
        raise Refused(422, "invalid", f"status: give one of {known}", field="status")
    found = [
        each
        for each in api.find(viewer.app, viewer.who)
        if search.lower() in each.name.lower() and status in ("", each.status)
    ]
    return sorted(found, key=lambda each: each.name)


def _runs(viewer: Viewer, names: list[str], limit: int) -> dict[str, list[Run]]:
    # They cover the runs of all owners, so no single owner sees them.
    if viewer.who.owner is not None or not names:
        return {}
    return dict(operations.function_runs(viewer.app, names, limit))


def _figures(runs: Sequence[Run]) -> Figures | None:
    if not runs:
        return None
    took = sorted(run.completed_at - run.started_at for run in runs if run.started_at is not None)
    failed = sum(run.state == "failed" for run in runs)
    return Figures(len(runs), failed, _rank(took, 0.5), _rank(took, 0.95))


def _rank(ordered: Sequence[int], share: float) -> int | None:
    """The smallest value that at least this share of the values does not exceed."""
    return max(0, ordered[ceil(share * len(ordered)) - 1]) if ordered else None


# Detail ------------------------------------------------------------------------------------------


@router.get("/functions/{name:path}")
def function(viewer: Viewing, name: str) -> Response:
    return _page(viewer, name)


def _page(viewer: Viewer, name: str, status: int = 200, **form: Any) -> Response:
    shape = api.get(viewer.app, viewer.who, name)
    asked = arguments.parameters(shape.arguments)
    runs = _runs(viewer, [name], LATEST_OF_ONE).get(name, [])
    pending = jobs.find(
        viewer.app, viewer.who, state=State.PENDING, function=name, before=None, limit=PENDING
    )
    return render(
        viewer,
        "function.html",
        status,
        function=shape,
        signature=arguments.signature(shape.arguments),
        parameters=asked,
        kinds=Kind,
        figures=_figures(runs),
        spark=svg.sparkline(list(islice(runs, 30))),
        pending=pending,
        verbs=_verbs(viewer, shape.status),
        can_call=viewer.may("enqueue")
        and not shape.internal
        and shape.status in (Status.ACTIVE, Status.PAUSED),
        **{"values": {}, "errors": {}, "error": None, "run_after": ""} | form,
    )


def _verbs(viewer: Viewer, status: Status) -> list[str]:
    """The operator actions that would change the function's status."""
    if not viewer.may("operate") or viewer.who.owner is not None:
        return []
    lead_to = {
        "pause": Status.PAUSED,
        "resume": Status.ACTIVE,
        "deprecate": Status.DEPRECATED,
        "delete": Status.DELETED,
        "restore": Status.ACTIVE,
    }
    return [
        verb
        for verb, becomes in lead_to.items()
        if status in MAY_BECOME[verb]
        and status != becomes
        and not (verb == "restore" and status is Status.PAUSED)
    ]


@router.post("/functions/{name:path}/status")
def set_status(request: Request, viewer: Viewing, who: Operator, name: str, form: Sent) -> Response:
    body = body_of(api.StatusBody, verb=form.text("verb"), note=form.given("note"))
    shape = api.set_status(viewer.app, who, name, body)
    return redirect(request, form.text("back"), f"The function is {shape.status}")


@router.post("/functions/{name:path}/run")
def run(request: Request, viewer: Viewing, who: Caller, name: str, form: Sent) -> Response:
    """Call the function with the form's values; errors are shown at their fields."""
    asked = arguments.parameters(api.get(viewer.app, who, name).arguments)
    given = arguments.answers(asked, form)
    errors, error = given.errors, None
    if not errors:
        try:
            body = body_of(
                jobs.NewJobBody,
                function=name,
                args=given.args,
                run_after=form.number("run_after"),
            )
            made = jobs.called(viewer.app, who, once(viewer), body)
            return redirect(request, f"/jobs/{made.id}", "Job enqueued")
        except (DulyError, Refused) as refused:
            errors, error = _said(refused, {each.name for each in asked})
    values = {
        each.name: arguments.written(each, form) for each in asked if each.kind is not Kind.SECRET
    }
    more = {"values": values, "run_after": form.text("run_after")}
    return _page(viewer, name, 422, errors=errors, error=error, **more)


def _said(refused: DulyError | Refused, names: set[str]) -> tuple[dict[str, str], str | None]:
    """The errors by field, and the one that belongs to no field."""
    argument = getattr(refused, "argument", None)
    if argument in names:
        return {str(argument): str(getattr(refused, "reason", refused))}, None
    return {}, str(refused)
