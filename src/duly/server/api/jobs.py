"""Jobs: call functions by name; list, inspect, cancel and retry jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, field
from msgspec.structs import asdict

from duly.app import Duly, operations
from duly.calls.bulk import BulkOrder, JobSelection
from duly.calls.jobs import MAX_CHILDREN, Job, failure_of
from duly.calls.verbs import job_filter
from duly.clock import from_ms
from duly.endpoints import EndpointTarget
from duly.errors import FunctionDeleted, InvalidArgument, JobNotFound, UnknownFunction
from duly.functions.function import Call, Function
from duly.functions.options import CallOptions
from duly.functions.times import after as in_seconds
from duly.functions.times import at
from duly.ids import is_id, new_id
from duly.model.access import Principal, Scope
from duly.model.audit import NewAuditEntry
from duly.model.function import FunctionInfo, Status, is_reserved
from duly.model.job import JobFailure, JobFilter, JobRecord, State, Trigger
from duly.model.redact import masked
from duly.model.stored_values import word
from duly.model.why import Cause
from duly.server.answers import (
    SAFE_INTEGER,
    Instant,
    Ms,
    Refused,
    Shape,
    Time,
    stored,
    time_of,
)
from duly.server.api.common import (
    Cursor,
    Limit,
    Page,
    is_foreign,
    owner_of,
    page,
)
from duly.server.api.operation import Caller, Operations, Operator, Reader
from duly.server.api.repeatable import Repeatable, gone

api = Operations("jobs", "/jobs")

MAX_LINES = 1_000
NAME_OR_ID = "The endpoint's name or id."
AuditEntryOf = Callable[[str], NewAuditEntry]
"""Makes the audit entry for a job, given its id."""


# Shapes ------------------------------------------------------------------------------------------


class JobOptions(Shape):
    """Options for this call; the function's options apply to everything else."""

    queue: str | None = None
    priority: Annotated[int, Meta(ge=0, le=9)] | None = None
    timeout: Annotated[float, Meta(gt=0, description="Seconds.")] | None = None
    expires: Annotated[float, Meta(gt=0, description="Seconds after the job is due.")] | None = None
    tags: list[str] | None = None

    def given(self) -> CallOptions:
        if self.queue is not None and is_reserved(self.queue):
            where = "options.queue"
            message = f"{where}: queue names that start with duly. are reserved"
            raise Refused(422, "invalid", message, field=where)
        options = {name: value for name, value in asdict(self).items() if value is not None}
        return cast(CallOptions, options)


Arguments = Annotated[
    dict[str, Any], Meta(description='By name; for an endpoint {"body": …} or nothing.')
]


class NewJobBody(Shape):
    """A call of a `function` or an `endpoint`."""

    function: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    endpoint: Annotated[str, Meta(min_length=1, max_length=500, description=NAME_OR_ID)] | None = (
        None
    )
    args: Arguments = field(default_factory=dict[str, Any])
    run_at: Annotated[Instant | None, Meta(description="When to run; not with run_after.")] = None
    run_after: Annotated[float, Meta(ge=0, description="Seconds from now.")] | None = None
    owner: str | None = None
    options: JobOptions = field(default_factory=JobOptions)


class ErrorOfJob(Shape):
    kind: str | None
    message: str
    traceback: str | None


class ProgressOfJob(Shape):
    value: float
    note: str | None
    at: Time
    at_ms: Ms


class JobShape(Shape):
    id: str
    function: str
    kind: Literal["mutation", "action", "workflow"]
    state: State
    queue: str
    priority: int
    args: dict[str, Any]
    hold: str | None
    attempt: int
    crashes: int
    trigger: Trigger
    actor: str | None
    owner: str | None
    tags: list[str]
    parent_id: str | None
    retry_of: str | None
    batch_id: str | None
    canceled_by: str | None
    result: Any
    error: ErrorOfJob | None
    created_at: Time
    created_at_ms: Ms
    scheduled_at: Time
    scheduled_at_ms: Ms
    run_at: Time
    run_at_ms: Ms
    started_at: Time | None
    started_at_ms: Ms | None
    completed_at: Time | None
    completed_at_ms: Ms | None


class KnownJob(Shape):
    """A job as shown to a principal that may enqueue but not read."""

    id: str
    function: str
    state: State


class JobWithProgress(JobShape):
    progress: ProgressOfJob | None


class Line(Shape):
    seq: int
    at: Time
    level: str
    text: str


class Lines(Shape):
    items: list[Line]
    next: int | None


class Canceled(Shape):
    canceled: bool


class ReasonShape(Shape):
    cause: Cause
    text: str
    jobs: list[str]
    until: Time | None
    until_ms: Ms | None
    traceback: Annotated[
        str | None, Meta(description="Of the exception because of which a workflow is held.")
    ]


class WhyShape(Shape):
    job_id: str
    text: str
    reasons: list[ReasonShape]


class BulkAnswer(Shape):
    """The job that makes the change; for a dry run, how many jobs match, with examples."""

    job: JobShape | None
    matched: int | None
    sample: list[str]


class BulkFilter(Shape):
    """Which jobs; at least one filter is required."""

    state: State | None = None
    function: str | None = None
    queue: str | None = None
    owner: str | None = None
    after: Annotated[Instant | None, Meta(description="Due at this time or later.")] = None
    before: Annotated[Instant | None, Meta(description="Due before this time.")] = None


class BulkBody(BulkFilter, kw_only=True):
    verb: Literal["cancel", "retry", "reschedule"]
    dead: Annotated[bool, Meta(description="retry: only jobs that used up their attempts.")] = False
    run_at: Annotated[Instant | None, Meta(description="reschedule: the new due time.")] = None
    run_after: Annotated[float, Meta(ge=0, description="reschedule: seconds from now.")] | None = (
        None
    )
    dry_run: bool = False


# Routes ------------------------------------------------------------------------------------------


@api.post("", status=201, shape=JobShape, again=JobShape | KnownJob)
def create(app: Duly, who: Caller, once: Repeatable, body: NewJobBody) -> JobShape | KnownJob:
    """Enqueue a job: call a function or POST to an endpoint.

    201 with the new job, or 200 with the existing job for its key. A caller without the `read`
    scope gets only the id and state of an existing job.
    """
    job = called(app, who, once, body)
    if job.existed:
        once.made_nothing()
        if not who.may(Scope.READ):
            return KnownJob(id=job.id, function=job.record.function, state=job.record.state)
    return shape_of(job.record)


@api.get("")
def find(
    app: Duly,
    who: Reader,
    state: State | None = None,
    function: str | None = None,
    queue: str | None = None,
    owner: str | None = None,
    before: Cursor = None,
    dead: Annotated[bool, Meta(description="Only jobs that used up their attempts.")] = False,
    limit: Limit = 100,
) -> Page[JobShape]:
    """List jobs, newest first. Arguments and results over 8 KiB are only in single jobs."""
    of = job_filter(
        None if dead else state, function, queue, owner_of(who, owner), before, limit + 1
    )
    which = msgspec.structs.replace(of, exhausted=dead or None)
    found = operations.find_jobs(app, which)
    return page([shape_of(job) for job in found], limit, lambda job: job.id)


@api.get("/{job_id}")
def get(app: Duly, who: Reader, job_id: str) -> JobWithProgress:
    """Get a job with its progress."""
    job = visible(app, who, job_id)
    said = job.progress
    progress = None
    if said is not None:
        at_ms = round(said.at.timestamp() * 1000)
        progress = ProgressOfJob(value=said.value, note=said.note, at=said.at, at_ms=at_ms)
    return JobWithProgress(**asdict(shape_of(job.record)), progress=progress)


@api.post("/{job_id}/cancel")
def cancel(app: Duly, who: Operator, job_id: str) -> Canceled:
    """Cancel a job and its unfinished descendants; `canceled` is false if it had finished."""
    job = visible(app, who, job_id)
    return Canceled(canceled=operations.cancel(app, job.id, who.name))


@api.post("/{job_id}/retry", status=201)
def retry(app: Duly, who: Operator, job_id: str) -> JobShape:
    """Retry a failed or canceled job; returns the new job."""
    job = visible(app, who, job_id)
    return shape_of(operations.retry(app, job.id, who.name).record)


@api.get("/{job_id}/children")
def children(app: Duly, who: Reader, job_id: str) -> list[JobShape]:
    """List the jobs that the job's code has enqueued."""
    return children_of(app, who, job_id, MAX_CHILDREN)


@api.get("/{job_id}/logs")
def logs(
    app: Duly,
    who: Reader,
    job_id: str,
    after: Annotated[
        int, Meta(ge=0, le=SAFE_INTEGER, description="The `next` value of the previous page.")
    ] = 0,
) -> Lines:
    """List a job's log lines, oldest first."""
    lines = visible(app, who, job_id).logs(after=after)
    shown = lines[:MAX_LINES]
    items = [Line(seq=line.seq, at=line.at, level=line.level, text=line.text) for line in shown]
    return Lines(items=items, next=items[-1].seq if len(lines) > MAX_LINES else None)


@api.get("/{job_id}/why")
def why(app: Duly, who: Reader, job_id: str) -> WhyShape:
    """Explain why a job has not run yet."""
    said = app.why(visible(app, who, job_id))
    hidden = hidden_jobs(app, who, [job for reason in said.reasons for job in reason.jobs])
    reasons = [
        ReasonShape(
            cause=reason.cause,
            text=without_jobs(hidden, reason.text),
            jobs=[job for job in reason.jobs if job not in hidden],
            until=time_of(reason.until),
            until_ms=reason.until,
            traceback=reason.traceback,
        )
        for reason in said.reasons
    ]
    return WhyShape(job_id=said.job_id, text=without_jobs(hidden, said.text), reasons=reasons)


@api.post("/bulk", status=202, again=BulkAnswer)
def bulk(app: Duly, who: Operator, once: Repeatable, body: BulkBody) -> BulkAnswer:
    """Cancel, retry or reschedule all matching jobs, as one job whose progress you can follow."""
    _check_words(body)
    asked = {name: getattr(body, name) for name in BulkFilter.__struct_fields__ if name != "owner"}
    which = {name: value for name, value in asked.items() if value is not None} | {"by": who.name}
    if (owner := owner_of(who, body.owner)) is not None:
        which["owner"] = owner
    if body.dry_run:
        preview = operations.look_at_bulk(app, _order(app, body, which))
        once.made_nothing()
        return BulkAnswer(job=None, matched=preview.matched, sample=list(preview.sample))

    def make(job_id: str | None) -> Job[Any]:
        now = operations.now(app)
        job_id = job_id or new_id(now)
        detail = {name: str(value) for name, value in which.items()}
        audit_entry = NewAuditEntry(f"jobs.{body.verb}", f"job:{job_id}", who.name, detail, now)
        return app.job(
            operations.enqueue_bulk(
                app, _order(app, body, which), id=job_id, audit_entry=audit_entry
            )
        )

    return BulkAnswer(
        job=shape_of(once.make(who, body, make, app.job).record), matched=None, sample=[]
    )


def _order(app: Duly, body: BulkBody, which: dict[str, Any]) -> BulkOrder:
    words = {name: value for name, value in which.items() if name != "state"}
    match body.verb:
        case "cancel":
            return operations.cancel_order(app, body.state, cast(JobSelection, words))
        case "retry":
            return operations.retry_order(app, body.state, body.dead, cast(JobSelection, words))
        case "reschedule":
            return operations.reschedule_order(
                app, body.run_at, body.run_after, cast(JobSelection, words)
            )


def _check_words(body: BulkBody) -> None:
    """Refuse fields that the verb would ignore."""
    unread = {
        "cancel": ("dead", "run_at", "run_after"),
        "retry": ("run_at", "run_after"),
        "reschedule": ("dead", "state"),
    }
    for name in unread[body.verb]:
        given: object = getattr(body, name)
        if given is not None and given is not False:
            raise Refused(422, "invalid", f"{body.verb} does not take {name}", field=name)


# Helpers -----------------------------------------------------------------------------------------


def callable_by_http(app: Duly, name: str) -> Function[..., Any]:
    """A function that may be called over HTTP: not internal, deprecated, deleted or duly's own."""
    if is_reserved(name) or not name.isprintable():
        raise UnknownFunction(name, ())
    try:
        info: FunctionInfo = app.functions.info(name)
    except UnknownFunction:
        raise UnknownFunction(name, _names_callable(app)) from None
    if info.internal:
        raise UnknownFunction(name, _names_callable(app))
    match info.status:
        case Status.DELETED:
            raise FunctionDeleted(name)
        case Status.DEPRECATED:
            raise Refused(
                409, "function_deprecated", f"{name} is deprecated and accepts no new calls"
            )
        case _:
            return app.function(name)


def _names_callable(app: Duly) -> list[str]:
    """The functions that outsiders may call, for suggestions."""
    stored, here = app.functions.published(), operations.published(app)
    hidden = {info.name for info in stored if info.internal or info.status == Status.DELETED}
    hidden |= {info.name for info in here if info.internal}
    known = [*(info.name for info in stored), *(info.name for info in here)]
    return [name for name in known if name not in hidden and not is_reserved(name)]


def callee(
    app: Duly, who: Principal, function: str | None, endpoint: str | None, owner: str | None
) -> Function[..., Any]:
    """The target of a call, exactly one of the two. `owner`: the owner of the named endpoints."""
    if function is not None and endpoint is None:
        return callable_by_http(app, function)
    if endpoint is None or function is not None:
        message = "give either function or endpoint"
        raise Refused(422, "invalid", message, field="function")
    of = who.owner if is_id(endpoint) else owner
    found = (app.endpoints if of is None else app.endpoints.of(of)).get(endpoint)
    return app.endpoint(found.name, owner=found.owner)


def called_with(function: Function[..., Any], args: dict[str, Any]) -> Call[Any]:
    """Like `bind`, but also accepts argument names that are special in Python, such as self."""
    if isinstance(function, EndpointTarget) and args.keys() - {"body"}:
        raise Refused(422, "invalid", "an endpoint takes only a body", field="args")
    refuse_masks(function, args)
    return Call(function, function.signature.encode((), args))


def refuse_masks(function: Function[..., Any], args: dict[str, Any]) -> None:
    """Refuse the mask of a redacted argument, which is not its value."""
    for name in masked(args, function.signature.redacted):
        raise InvalidArgument(function.name, name, "*** is not the value; give the value itself")


def called(app: Duly, who: Principal, once: Repeatable, body: NewJobBody) -> Job[Any]:
    """Enqueue the requested call."""
    owner = owner_of(who, body.owner)
    function = callee(app, who, body.function, body.endpoint, owner)
    if isinstance(function, EndpointTarget):
        owner = owner or function.owner or None
    options: CallOptions = {**body.options.given(), "owner": owner}
    function = function.using(**options)
    return run_once(app, who, once, body, function, body.args, _due(app, body))


def _due(app: Duly, body: NewJobBody) -> int:
    if body.run_at is not None and body.run_after is not None:
        raise Refused(422, "invalid", "give run_at or run_after, not both", field="run_after")
    now = operations.now(app)
    return at(body.run_at, now) if body.run_at else in_seconds(body.run_after or 0, now)


def run_once(
    app: Duly,
    who: Principal,
    once: Repeatable,
    body: Shape,
    function: Function[..., Any],
    args: dict[str, Any],
    due: int,
    audit_entry: AuditEntryOf | None = None,
) -> Job[Any]:
    """Enqueue a call, or return the job that the request's key already has."""
    if once.key is None:
        return _run(app, who, function, args, due, audit_entry)
    with once.claimed(who, body):
        return _run(
            app, who, function.using(idempotency_key=once.digest(who)), args, due, audit_entry
        )


def _run(
    app: Duly,
    who: Principal,
    function: Function[..., Any],
    args: dict[str, Any],
    due: int,
    audit_entry: AuditEntryOf | None,
) -> Job[Any]:
    """Enqueue a call as a job that records the principal."""
    job = operations.run(app, called_with(function, args), due, who.name, audit_entry)
    if job is None:
        # The key outlives the job.
        raise gone()
    if is_foreign(who, job.record.owner):
        raise JobNotFound(job.id)
    return job


def visible(app: Duly, who: Principal, job_id: str) -> Job[Any]:
    """The job, if it exists and the principal may see it."""
    job = app.job(job_id)
    if is_foreign(who, job.record.owner):
        raise JobNotFound(job_id)
    return job


def children_of(app: Duly, who: Principal, job_id: str, limit: int) -> list[JobShape]:
    """The newest children of a job that the principal may see."""
    parent = visible(app, who, job_id)
    found = operations.find_jobs(app, JobFilter(parent_id=parent.id, limit=limit))
    mine = [record for record in found if not is_foreign(who, record.owner)]
    return [shape_of(record) for record in mine]


def hidden_jobs(app: Duly, who: Principal, job_ids: Sequence[str]) -> set[str]:
    """The jobs of other owners among them: a function's limits are shared by all owners."""
    if who.owner is None:
        return set()
    found = {job_id: operations.stored_job(app, job_id) for job_id in job_ids}
    return {each for each, job in found.items() if job is None or is_foreign(who, job.owner)}


def without_jobs(hidden: set[str], text: str) -> str:
    for job_id in hidden:
        text = text.replace(f"job {job_id}", "another job")
    return text


def shape_of(record: JobRecord) -> JobShape:
    return JobShape(
        id=record.id,
        function=record.function,
        kind=record.kind.value,
        state=record.state,
        queue=record.queue,
        priority=record.priority,
        args=stored(record.args, dict[str, Any]),
        hold=record.hold,
        attempt=record.attempt,
        crashes=record.crashes,
        trigger=word(record.trigger, Trigger, Trigger.MANUAL),
        actor=record.actor,
        owner=record.owner,
        tags=_tags(record.tags),
        parent_id=record.parent_id,
        retry_of=record.retry_of,
        batch_id=record.batch_id,
        canceled_by=record.canceled_by,
        result=None if record.result is None else stored(record.result),
        error=failure_shape(failure_of(record)),
        created_at=from_ms(record.created_at),
        created_at_ms=record.created_at,
        scheduled_at=from_ms(record.scheduled_at),
        scheduled_at_ms=record.scheduled_at,
        run_at=from_ms(record.run_at),
        run_at_ms=record.run_at,
        started_at=time_of(record.started_at),
        started_at_ms=record.started_at,
        completed_at=time_of(record.completed_at),
        completed_at_ms=record.completed_at,
    )


def failure_shape(failure: JobFailure | None) -> ErrorOfJob | None:
    if failure is None:
        return None
    return ErrorOfJob(kind=failure.kind, message=failure.message, traceback=failure.traceback)


def _tags(text: str | None) -> list[str]:
    tags: Any = None if text is None else stored(text, list[str])
    return cast("list[str]", tags) if isinstance(tags, list) else []
