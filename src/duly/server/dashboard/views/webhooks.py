"""Webhooks: received events, and the state of each."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from duly.errors import JobNotFound
from duly.model.inbox import EventState
from duly.server.answers import Refused
from duly.server.api import jobs
from duly.server.api import webhooks as api
from duly.server.api.common import Page
from duly.server.auth import Operator
from duly.server.dashboard.exports import Format, export, pages
from duly.server.dashboard.pages import PageRoute, Sent, Viewer, Viewing, redirect, render

router = APIRouter(route_class=PageRoute)

PAGE = 50
FILE_PAGE = 200
Text = Annotated[str, Query(max_length=200)]


@router.get("/webhooks")
def webhooks(
    viewer: Viewing,
    webhook: Text = "",
    state: Text = "",
    owner: Text = "",
    before: str | None = None,
) -> Response:
    filters = {"webhook": webhook, "state": state, "owner": owner}
    return render(
        viewer,
        "webhooks.html",
        page=_find(viewer, filters, before, PAGE),
        filters=filters,
        filtered=any(filters.values()),
        states=list(EventState),
        declared=sorted(viewer.app.webhooks.declared),
        before=before,
    )


@router.get("/webhooks.{format}")
def webhooks_file(
    viewer: Viewing, format: Format, webhook: Text = "", state: Text = "", owner: Text = ""
) -> Response:
    """The same list as a file."""
    filters = {"webhook": webhook, "state": state, "owner": owner}
    rows, complete = pages(lambda cursor: _find(viewer, filters, cursor, FILE_PAGE))
    return export(rows, "webhooks", format, complete=complete)


def _find(
    viewer: Viewer, filters: dict[str, str], before: str | None, limit: int
) -> Page[api.EventShape]:
    asked = {name: value or None for name, value in filters.items()}
    state = _state(filters["state"])
    given = asked | {"before": before, "limit": limit, "state": state}
    return api.find(viewer.app, viewer.who, **given)  # type: ignore[arg-type]


def _state(name: str) -> EventState | None:
    if not name:
        return None
    try:
        return EventState(name)
    except ValueError:
        known = ", ".join(EventState)
        raise Refused(422, "invalid", f"state: give one of {known}", field="state") from None


@router.get("/webhooks/{event_id}")
def event(viewer: Viewing, event_id: str) -> Response:
    found = api.get(viewer.app, viewer.who, event_id)
    return render(
        viewer,
        "webhook.html",
        event=found,
        job=_job(viewer, found.job_id),
        can_retry=viewer.may("operate") and found.state is EventState.FAILED,
    )


def _job(viewer: Viewer, job_id: str | None) -> jobs.JobShape | None:
    """The job that processes the event, while it is still stored."""
    if job_id is None:
        return None
    try:
        return jobs.get(viewer.app, viewer.who, job_id)
    except JobNotFound:
        return None


@router.post("/webhooks/{event_id}/retry")
def retry(request: Request, viewer: Viewing, who: Operator, event_id: str, form: Sent) -> Response:
    done = api.retry(viewer.app, who, event_id)
    unchanged = f"The event is {done.state}: nothing was done"
    text = "The event will be processed again" if done.retried else unchanged
    kind = "done" if done.retried else "failed"
    return redirect(request, f"/webhooks/{event_id}", text, kind)
