"""Runs of workflows: what the page of a job shows of them, and answers from that page."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Request, Response

from duly.model.function import is_reserved
from duly.model.workflow import Phase
from duly.server.api import workflows as api
from duly.server.api.common import Page
from duly.server.api.jobs import JobShape, ReasonShape, WhyShape
from duly.server.auth import Caller, Operator
from duly.server.dashboard.forms import body_of
from duly.server.dashboard.pages import PageRoute, Sent, Viewer, Viewing, once, redirect

router = APIRouter(route_class=PageRoute)

STEPS = 100
MAX_EVENTS = 200
WAITS = ("waits_for_event", "waits_for_approval", "waits_for_jobs", "sleeps", "retry_later")
"""Reasons that the page shows as waits."""
Name = Annotated[str, Query(min_length=1, max_length=500)]


class RunPage(NamedTuple):
    """What the page of a job shows if it is a run."""

    phase: Phase
    waits: list[api.WaitShape]
    steps: Page[api.StepShape]
    after: str | None
    """The cursor of this page of steps."""
    unread: list[api.WorkflowEventShape]
    """Events that no step has received."""
    more_unread: bool
    reasons: list[ReasonShape]
    """Why it does not continue, apart from its waits."""
    may_send: bool


def run_page(
    viewer: Viewer, job: JobShape, after: str | None, why: WhyShape | None
) -> RunPage | None:
    """What the page shows of a run; None for other jobs."""
    if job.kind != "workflow":
        return None
    run = api.get(viewer.app, viewer.who, job.id)
    events = api.events(viewer.app, viewer.who, job.id, unread=True, limit=MAX_EVENTS)
    reasons = [] if why is None else why.reasons
    return RunPage(
        phase=run.phase,
        waits=run.waits,
        steps=api.steps(viewer.app, viewer.who, job.id, after, STEPS),
        after=after,
        unread=events.items,
        more_unread=events.next is not None,
        reasons=[each for each in reasons if not run.waits or each.cause not in WAITS],
        may_send=viewer.may("enqueue") and not is_reserved(job.function),
    )


@router.post("/jobs/{job_id}/send")
def send(
    request: Request,
    viewer: Viewing,
    who: Caller,
    job_id: str,
    form: Sent,
    name: Name | None = None,
) -> Response:
    """`name`: the event; otherwise the form names it."""
    body = body_of(api.NewEventBody, name=name or form.text("name"), payload=form.json("payload"))
    sent = api.send(viewer.app, who, once(viewer), job_id, body)
    return redirect(request, f"/jobs/{job_id}", f"Event {sent.name} sent")


@router.post("/jobs/{job_id}/approve")
def approve(
    request: Request, viewer: Viewing, who: Operator, job_id: str, form: Sent, name: Name
) -> Response:
    body = body_of(api.ApproveBody, name=name, choice=form.given("choice"), data=form.json("data"))
    decision = api.approve(viewer.app, who, job_id, body)
    return redirect(request, f"/jobs/{job_id}", f"Answered with {decision.choice}")


@router.post("/jobs/{job_id}/reject")
def reject(
    request: Request, viewer: Viewing, who: Operator, job_id: str, form: Sent, name: Name
) -> Response:
    body = body_of(api.RejectBody, name=name, data=form.json("data"))
    decision = api.reject(viewer.app, who, job_id, body)
    return redirect(request, f"/jobs/{job_id}", f"Answered with {decision.choice}")


@router.post("/jobs/{job_id}/resume")
def resume(request: Request, viewer: Viewing, who: Operator, job_id: str, form: Sent) -> Response:
    done = api.resume(viewer.app, who, job_id)
    text = "The run continues" if done.resumed else "The run is not held"
    return redirect(request, f"/jobs/{job_id}", text, "done" if done.resumed else "failed")
