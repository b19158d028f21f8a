"""Workflows: list runs, see what they did and what they wait for, answer them and resume them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import asdict

from duly.app import Duly, operations
from duly.calls.jobs import Job
from duly.calls.runs import EventInfo, StepInfo, WaitInfo
from duly.calls.verbs import job_filter
from duly.clock import from_ms
from duly.errors import JobNotFound, NotAWorkflow
from duly.model.access import Principal, Scope
from duly.model.job import Kind
from duly.model.workflow import MAX_EVENT_NAME, Decision, Phase
from duly.server.answers import SAFE_INTEGER, Ms, Refused, Shape, Time, ms_of
from duly.server.api.common import Cursor, Limit, Page, check_cursor, owner_of, page
from duly.server.api.jobs import ErrorOfJob, JobShape, failure_shape, shape_of, visible
from duly.server.api.operation import Caller, Operations, Operator, Reader
from duly.server.api.repeatable import Repeatable

api = Operations("workflows", "/workflows")


# Shapes ------------------------------------------------------------------------------------------


class WaitShape(Shape):
    kind: Annotated[
        str, Meta(description="event, approval, timer, job, retry (of a step) or paused.")
    ]
    name: Annotated[str, Meta(description="The event, approval, job id or function.")]
    step: Annotated[str | None, Meta(description="The label of the step that waits.")]
    since: Time | None
    since_ms: Ms | None
    until: Annotated[Time | None, Meta(description="When the wait ends by itself.")]
    until_ms: Ms | None
    text: Annotated[str | None, Meta(description="What an approval asks.")]
    options: Annotated[list[str], Meta(description="The answers to an approval.")]
    data_schema: Annotated[
        Any, Meta(description="The JSON Schema of the data to be given with an approval.")
    ]
    to: Annotated[str | None, Meta(description="Who should answer an approval.")]
    error: Annotated[ErrorOfJob | None, Meta(description="Of the last attempt of a step.")]


class RunShape(JobShape):
    phase: Annotated[
        Phase, Meta(description="The state, in which not_started, waiting and held are pending.")
    ]
    waits: list[WaitShape]


class StepShape(Shape):
    id: str
    label: Annotated[str, Meta(description="charge, charge#2, …")]
    name: str
    kind: str
    state: Annotated[
        str, Meta(description="started, retrying, waiting, succeeded, failed or timed_out.")
    ]
    branch: Annotated[str, Meta(description="The branch that it belongs to; empty: none.")]
    attempt: int
    args: dict[str, Any]
    result: Any
    error: ErrorOfJob | None
    job_id: Annotated[str | None, Meta(description="The job that it runs as, while it does.")]
    started_at: Time
    started_at_ms: Ms
    ended_at: Time | None
    ended_at_ms: Ms | None
    due_at: Time | None
    due_at_ms: Ms | None


class SentEventShape(Shape):
    """An event as shown to the sender."""

    seq: int
    name: str
    once: str | None
    sent_at: Time
    sent_at_ms: Ms


class WorkflowEventShape(SentEventShape, kw_only=True):
    payload: Any
    sent_by: str | None
    step: Annotated[str | None, Meta(description="The label of the step that received it.")]
    is_read: bool


class WorkflowEvents(Shape):
    items: list[WorkflowEventShape]
    next: int | None


class NewEventBody(Shape):
    name: Annotated[str, Meta(min_length=1, max_length=MAX_EVENT_NAME)]
    payload: Any = None
    once: Annotated[
        str | None, Meta(description="A key; events with the same one are stored once.")
    ] = None


ApprovalName = Annotated[str, Meta(min_length=1, max_length=500)]


class ApproveBody(Shape):
    name: ApprovalName = "approval"
    choice: Annotated[str | None, Meta(description="One of the options; default: the first.")] = (
        None
    )
    data: Any = None


class RejectBody(Shape):
    name: ApprovalName = "approval"
    data: Any = None


APPROVE, REJECT = ApproveBody(), RejectBody()


class DecisionShape(Shape):
    approved: bool
    choice: str | None
    data: Any
    by: str | None


class Resumed(Shape):
    resumed: bool


# Reading -----------------------------------------------------------------------------------------


@api.get("")
def find(
    app: Duly,
    who: Reader,
    phase: Phase | None = None,
    function: str | None = None,
    owner: str | None = None,
    before: Cursor = None,
    limit: Limit = 100,
) -> Page[RunShape]:
    """List runs, newest first, with the first few things that each waits for."""
    of = job_filter(None, None, None, owner_of(who, owner), before, limit + 1)
    found = operations.find_runs(app, function, phase, of)
    shapes = [
        _run_shape(shape_of(record), summary.phase, summary.waits) for record, summary in found
    ]
    return page(shapes, limit, lambda run: run.id)


@api.get("/{run_id}")
def get(app: Duly, who: Reader, run_id: str) -> RunShape:
    """Get a run with everything that it waits for."""
    job = run_of(app, who, run_id)
    [summary] = operations.summaries(app, [job.record])
    return _run_shape(shape_of(job.record), summary.phase, job.waits)


@api.get("/{run_id}/steps")
def steps(
    app: Duly, who: Reader, run_id: str, after: Cursor = None, limit: Limit = 100
) -> Page[StepShape]:
    """List a run's steps in order. Values over 8 KiB are only in single steps."""
    check_cursor("after", after)
    job = run_of(app, who, run_id)
    found = operations.steps_after(app, job.id, after, limit + 1)
    return page([step_shape(step) for step in found], limit, lambda step: step.id)


@api.get("/{run_id}/steps/{step}")
def step(app: Duly, who: Reader, run_id: str, step: str) -> StepShape:
    """Get a step, by its label or id, with its full arguments and result."""
    job = run_of(app, who, run_id)
    found = operations.step_called(app, job.id, step)
    if found is None:
        raise Refused(404, "step_not_found", f"run {job.id} has no step {step!r}")
    return step_shape(found)


@api.get("/{run_id}/events")
def events(
    app: Duly,
    who: Reader,
    run_id: str,
    after: Annotated[
        int, Meta(ge=0, le=SAFE_INTEGER, description="The `next` value of the previous page.")
    ] = 0,
    unread: Annotated[bool, Meta(description="Only events that no step has received.")] = False,
    limit: Limit = 100,
) -> WorkflowEvents:
    """List the events that were sent to a run, in order. Payloads over 8 KiB are left out."""
    job = run_of(app, who, run_id)
    # No run has so many events.
    found = operations.events_after(app, job.id, min(after, MAX_SEQ), limit + 1, unread=unread)
    shapes = [_event_shape(event) for event in found[:limit]]
    return WorkflowEvents(items=shapes, next=shapes[-1].seq if len(found) > limit else None)


MAX_SEQ = 2**31 - 1


# Changing ----------------------------------------------------------------------------------------


@api.post("/{run_id}/events", status=201, again=SentEventShape)
def send(
    app: Duly, who: Caller, once: Repeatable, run_id: str, body: NewEventBody
) -> SentEventShape:
    """Send an event to a run. A repeated `once` returns the first event."""
    job = run_of(app, who, run_id)
    _check_callable(app, who, job)
    if once.key is None:
        return _sent(app, who, once, job, body, body.once)
    with once.claimed(who, body):
        return _sent(app, who, once, job, body, body.once or once.digest(who))


def _sent(
    app: Duly, who: Principal, once: Repeatable, job: Job[Any], body: NewEventBody, key: str | None
) -> SentEventShape:
    sent, is_new = operations.send_event(app, job.record, body.name, body.payload, key, who.name)
    if not is_new:
        once.made_nothing()
    return SentEventShape(
        seq=sent.seq,
        name=sent.name,
        once=sent.once,
        sent_at=from_ms(sent.sent_at),
        sent_at_ms=sent.sent_at,
    )


@api.post("/{run_id}/approve")
def approve(app: Duly, who: Operator, run_id: str, body: ApproveBody = APPROVE) -> DecisionShape:
    """Answer an approval with one of its options; by default with the first."""
    job = run_of(app, who, run_id)
    decision = operations.approve(app, job.id, body.name, body.choice, body.data, who.name)
    return _decision_shape(decision)


@api.post("/{run_id}/reject")
def reject(app: Duly, who: Operator, run_id: str, body: RejectBody = REJECT) -> DecisionShape:
    """Answer an approval with its last option."""
    job = run_of(app, who, run_id)
    return _decision_shape(operations.reject(app, job.id, body.name, body.data, who.name))


@api.post("/{run_id}/resume")
def resume(app: Duly, who: Operator, run_id: str) -> Resumed:
    """Let a held run continue with any code; `resumed` is false if it is not held."""
    job = run_of(app, who, run_id)
    return Resumed(resumed=operations.resume_run(app, job.id, who.name))


# Helpers -----------------------------------------------------------------------------------------


def run_of(app: Duly, who: Principal, run_id: str) -> Job[Any]:
    """The run, if it exists and the principal may see it."""
    job = visible(app, who, run_id)
    if job.record.kind != Kind.WORKFLOW:
        raise NotAWorkflow(job.id, job.function)
    return job


def _check_callable(app: Duly, who: Principal, job: Job[Any]) -> None:
    """Refuse events for internal workflows, as calls of them are refused."""
    if who.may(Scope.OPERATE):
        return
    if any(info.internal for info in app.functions.published() if info.name == job.function):
        raise JobNotFound(job.id)


def _run_shape(job: JobShape, phase: Phase, waits: tuple[WaitInfo, ...]) -> RunShape:
    return RunShape(**asdict(job), phase=phase, waits=[wait_shape(wait) for wait in waits])


def wait_shape(wait: WaitInfo) -> WaitShape:
    return WaitShape(
        kind=wait.kind,
        name=wait.name,
        step=wait.step,
        since=wait.since,
        since_ms=ms_of(wait.since),
        until=wait.until,
        until_ms=ms_of(wait.until),
        text=wait.text,
        options=list(wait.options),
        data_schema=wait.data_schema,
        to=wait.to,
        error=failure_shape(wait.error),
    )


def step_shape(step: StepInfo) -> StepShape:
    return StepShape(
        id=step.id,
        label=step.label,
        name=step.name,
        kind=step.kind,
        state=step.state,
        branch=step.branch,
        attempt=step.attempt,
        args=step.arguments,
        result=step.result,
        error=failure_shape(step.error),
        job_id=step.job_id,
        started_at=step.started_at,
        started_at_ms=round(step.started_at.timestamp() * 1000),
        ended_at=step.ended_at,
        ended_at_ms=ms_of(step.ended_at),
        due_at=step.due_at,
        due_at_ms=ms_of(step.due_at),
    )


def _event_shape(event: EventInfo) -> WorkflowEventShape:
    return WorkflowEventShape(
        seq=event.seq,
        name=event.name,
        payload=event.payload,
        once=event.once,
        sent_at=event.sent_at,
        sent_at_ms=round(event.sent_at.timestamp() * 1000),
        sent_by=event.sent_by,
        step=event.step,
        is_read=event.is_read,
    )


def _decision_shape(decision: Decision) -> DecisionShape:
    return DecisionShape(
        approved=decision.approved, choice=decision.choice, data=decision.data, by=decision.by
    )
