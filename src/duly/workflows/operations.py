"""The operations of workflows: each looks for its record first, and otherwise does its work once.

They are written as generators, for sync and async workflows alike: see driver.py. Whenever it is in
doubt what was stored, the run unwinds and reads it when it is claimed again.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from duly import errors, fault
from duly.calls.batches import batch_rows
from duly.calls.jobs import AsyncJob, Job, decoder_of
from duly.calls.verbs import admit_all, bind
from duly.clock import from_ms
from duly.errors import (
    InvalidFunction,
    InvalidOption,
    NonRetryable,
    RetryAfter,
    StepFailed,
    WaitTimeout,
)
from duly.functions.events import encode_event
from duly.functions.function import Call, Function, StoredTarget
from duly.functions.new_job import new_jobs
from duly.functions.published import Declared
from duly.functions.times import Delay, Instant, after, at
from duly.model.function import Status
from duly.model.job import (
    DEFAULT_QUEUE,
    LOCK_RETRIES,
    Conflicted,
    ErrorKind,
    JobFailure,
    JobRecord,
    Kind,
    LockRefused,
    Raised,
    State,
    SystemFailed,
)
from duly.model.retry import Retry
from duly.model.workflow import (
    Awaited,
    Decision,
    NewEvent,
    Put,
    Request,
    Step,
    StepKind,
    StepState,
    branch_of,
    encode_failure,
    id_of_place,
    numbered,
    prefix_of,
)
from duly.store.base import Blame
from duly.store.workflows import REFUSED
from duly.workflows.driver import Branches, Do, Nested, Op, Outcome, Record, Written
from duly.workflows.run import Run, Scope, is_final, is_within, shown
from duly.workflows.steps import PlaceTaken, RunAction, RunMutation, StepTimedOut

T = TypeVar("T")

NO_DEFAULT: Any = object()
MAX_BRANCHES = 1_000
PAUSED_MS = 5_000
"""How often a run looks whether the function of its next step is still paused."""


class Wait(NamedTuple):
    """A timer or an event for `gather` and `first`."""

    operation: Callable[[Scope], Op[Any]]
    is_timer: bool = False


class Branch(NamedTuple):
    """A part of a workflow for `gather` and `first`, with its own context."""

    call: Callable[[Scope], Any]


# Steps -------------------------------------------------------------------------------------------


def step(
    scope: Scope, function: Function[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Op[Any]:
    """Run a function once, and record its result."""
    scope.check()
    return (yield from step_of(scope, Call(function, function.signature.encode(args, kwargs))))


def step_of(scope: Scope, call: Call[Any]) -> Op[Any]:
    function = call.function
    if runs_as_job(scope.run, function):
        return (yield from _job_step(scope, call))
    if function.is_async and not scope.run.is_async:
        raise InvalidFunction(
            f"{function.name} is async, so it can only be a step of an async workflow; make the "
            "workflow an async def, or enqueue the function with ctx.run"
        )
    kind = StepKind.MUTATION if function.kind == Kind.MUTATION else StepKind.ACTION
    pos, record = scope.place(kind, function.name, function.traits.aliases)
    scope.run.compare(record, call.args)
    if record is not None and record.state == StepState.STARTED:
        record = yield from _lost(scope, record)
    if record is not None and is_final(record):
        return (yield from _outcome(scope.run, record, function.signature.decode_result))
    if record is not None and record.due_at is not None and record.due_at > scope.run.now():
        raise scope.suspend([Awaited("retry", function.name, record.due_at)])
    run, known = scope.run, scope.run.core.functions
    if not known.is_fresh():
        yield Do(run, known.refresh)
    status = known.status_of(function.name)
    if status == Status.DELETED:
        raise errors.FunctionDeleted(function.name)
    if status == Status.PAUSED:
        raise scope.suspend([Awaited("paused", function.name, scope.run.now() + PAUSED_MS)])
    return (yield from _attempt(scope, pos, call, kind, record))


def runs_as_job(run: Run, function: Function[..., Any]) -> bool:
    """Whether it has options that only a job can have, or its code may be elsewhere."""
    if isinstance(function, Declared | StoredTarget):
        return True
    if not run.core.functions.has_code_of(function):
        return True
    options, is_sync = function.options, not function.is_async
    return (
        options.expires is not None
        or options.owner is not None
        or options.on_complete is not None
        or options.unique is not None
        or options.limit is not None
        or options.debounce is not None
        or options.idempotency_key is not None
        or function.traits.isolate is not None
        or function.kind == Kind.WORKFLOW
        or options.queue not in (DEFAULT_QUEUE, run.queue)
        # A thread cannot be stopped; the worker of a job can.
        or (options.timeout is not None and (is_sync or function.kind == Kind.MUTATION))
    )


def _attempt(
    scope: Scope, pos: int, call: Call[Any], kind: StepKind, record: Step | None
) -> Op[Any]:
    """Run the body once more."""
    run, function = scope.run, call.function
    attempt = 1 if record is None else record.attempt + 1
    started_at = run.now() if record is None else record.started_at
    base = Step(
        scope=scope.name, pos=pos, kind=kind, name=function.name, state=StepState.STARTED,
        token=run.fence[1], attempt=attempt, started_at=started_at, args=call.args,
    )  # fmt: skip
    run.will_record(len(call.args))
    was = None if record is None else record.state
    if kind == StepKind.ACTION and function.options.retry is None:
        # At most once: that it may have started is durable before it does.
        yield from _put(run, base, was)
        was = StepState.STARTED
    elif kind == StepKind.ACTION:
        # What it depends on is durable before it does.
        yield from _flush(scope)
    arguments = function.signature.decode(call.args)
    run.reach("workflow.step_starting")

    def success(value: Any) -> Step:
        text = function.signature.encode_result(value)
        run.will_record(len(text or ""))
        return msgspec.structs.replace(
            base, state=StepState.SUCCEEDED, result=text, ended_at=run.now()
        )

    try:
        if kind == StepKind.MUTATION:
            done = yield RunMutation(run, function, arguments, base, success, was)
            fault.point("workflow.step_committed")
        else:
            done = success((yield RunAction(run, function, arguments, base)))
    except PlaceTaken:
        raise run.taken_away() from None
    except errors.WorkflowTooLong:
        raise
    except (Exception, SystemExit, GeneratorExit) as error:
        return (yield from _failed(scope, base, call, error, was))
    if kind == StepKind.MUTATION:
        run.note(done)
    else:
        run.reach("workflow.step_returned")
        if function.options.retry is None:
            yield from _put_soon(run, done, was)
        else:
            yield from _put(run, done, was)
    return function.signature.decode_result(done.result)


def _failed(
    scope: Scope, base: Step, call: Call[Any], error: BaseException, was: str | None
) -> Op[Any]:
    """Decide what an exception of the body means: another attempt, or a failed step."""
    run, function = scope.run, call.function
    if run.running.canceled:
        raise run.unwind(None) from None
    failure = _failure_of(run, function, call.args, error)
    if base.kind == StepKind.MUTATION:
        if isinstance(error, errors.StoreError):
            raise run.unwind(SystemFailed(failure.message)) from None
        match run.store.blame(error):
            case Blame.DATABASE:
                # It may have committed: what is recorded tells.
                raise run.unwind(SystemFailed(failure.message)) from None
            case Blame.CONFLICT:
                raise run.unwind(Conflicted(failure.message)) from None
            case Blame.LOCK if run.running.claim.lock_retries < LOCK_RETRIES:
                raised = Raised(ErrorKind.USER, failure.message, failure.traceback)
                raise run.unwind(LockRefused(raised)) from None
            case _:
                pass
    now = run.now()
    delay = _delay(function, base.attempt, error, failure)
    if delay is not None:
        due_at = now + round(delay * 1000)
        again = msgspec.structs.replace(
            base, state=StepState.RETRYING, due_at=due_at, error=encode_failure(failure)
        )
        yield from _put(run, again, was)
        raise scope.suspend([Awaited("retry", function.name, due_at)]) from None
    failed = msgspec.structs.replace(
        base, state=StepState.FAILED, ended_at=now, error=encode_failure(failure)
    )
    yield from _put(run, failed, was)
    raise StepFailed(function.name, failure.kind, failure.message) from None


def _delay(
    function: Function[..., Any], attempt: int, error: BaseException, failure: JobFailure
) -> float | None:
    """Seconds until the next attempt; None if there is none."""
    retry: Retry | None = function.options.retry
    if retry is None or not retry.allows(attempt) or isinstance(error, NonRetryable):
        return None
    if failure.kind == ErrorKind.UNSTORABLE_RESULT:
        return None
    only = function.traits.retry_on
    if only and not isinstance(error, (RetryAfter, *only)):
        return None
    if isinstance(error, RetryAfter):
        return retry.within(error.seconds)
    return retry.delay_after(attempt, random.random())


def _failure_of(
    run: Run, function: Function[..., Any], args: str, error: BaseException
) -> JobFailure:
    def scrub(text: str) -> str:
        for each, of in [(function.signature.scrub, args), *run.running.failed_calls]:
            text = each(text, of)
        return text

    if isinstance(error, errors.UnstorableResult):
        return JobFailure(ErrorKind.UNSTORABLE_RESULT, scrub(str(error)), None)
    if isinstance(error, StepTimedOut):
        return JobFailure(ErrorKind.TIMEOUT, str(error), None)
    return JobFailure(ErrorKind.USER, *shown(error, scrub))


def _lost(scope: Scope, record: Step) -> Op[Step]:
    """An action that runs at most once had started when its worker died or stopped."""
    run = scope.run
    failure = JobFailure(
        ErrorKind.WORKER_LOST, "the worker died or stopped while the step was running", None
    )
    lost = msgspec.structs.replace(
        record, state=StepState.FAILED, token=run.fence[1], ended_at=run.now(),
        error=encode_failure(failure),
    )  # fmt: skip
    yield from _put(run, lost, StepState.STARTED)
    return lost


def _outcome(run: Run, record: Step, decode: Callable[[str | None], Any]) -> Op[Any]:
    """What a recorded step returned or raised."""
    if record.state == StepState.SUCCEEDED:
        text = record.result
        if record.result_bytes is not None:
            text = yield Do(run, partial(run.result, record))
        return decode(text)
    failure = record.failure
    raise StepFailed(record.name, failure.kind, failure.message)


def _put(run: Run, step: Step, was: str | None) -> Op[None]:
    """Write a record. If it is refused, the run was taken away, or another worker was first."""
    run.note(step)
    if run.is_writing:
        yield Written(run)
    puts = [*run.take_unwritten(step.scope), Put(run.fence, step, was)]
    if not (yield Record(run, puts)):
        raise run.taken_away()
    run.reach("workflow.recorded")


def _put_soon(run: Run, step: Step, was: str | None) -> Op[None]:
    """Write a record together with the next one, or very soon."""
    if not run.is_async:
        return (yield from _put(run, step, was))
    run.note(step)
    run.put_soon(Put(run.fence, step, was))
    return None


def _flush(scope: Scope) -> Op[None]:
    """Write the records of this scope that wait for others."""
    run = scope.run
    if run.is_writing:
        yield Written(run)
    if puts := run.take_unwritten(scope.name):
        if not (yield Record(run, puts)):
            raise run.taken_away()
        run.reach("workflow.recorded")


def _base(scope: Scope, pos: int, kind: StepKind, name: str, **more: Any) -> Step:
    return Step(
        scope=scope.name, pos=pos, kind=kind, name=name, token=scope.run.fence[1],
        started_at=scope.run.now(), **more,
    )  # fmt: skip


# Jobs --------------------------------------------------------------------------------------------


class Enqueued(msgspec.Struct, frozen=True, omit_defaults=True):
    """The jobs that an operation has enqueued."""

    ids: tuple[str, ...]
    existed: tuple[bool, ...]
    batch_id: str | None = None


def enqueue(
    scope: Scope,
    name: str,
    calls: Callable[[], list[Call[Any]]],
    due: Callable[[int], int] | None = None,
    on_complete: Function[..., Any] | None = None,
    *,
    is_batch: bool = False,
) -> Op[tuple[list[Call[Any]], Enqueued]]:
    """Enqueue jobs once, with their record."""
    run = scope.run
    pos, record = scope.place(StepKind.ENQUEUE, name)
    if record is not None and record.state == StepState.FAILED:
        raise _refusal(record)
    if record is not None:
        text = yield from _outcome(run, record, _text)
        bound = yield Do(run, calls)
        return bound, msgspec.json.decode(text, type=Enqueued)

    def store() -> tuple[list[Call[Any]], Step | None]:
        bound, now = calls(), run.now()
        keep = run.core.settings.idempotency_ms
        if is_batch:
            hook = None
            if on_complete is not None:
                hook = run.core.functions.admit_hook(on_complete, "batch_id")
            batch_id, rows = batch_rows(bound, hook, now, run.id, keep)
            first = rows[: len(bound)]
        else:
            scheduled_at = now if due is None else due(now)
            jobs = [new_jobs(call, scheduled_at, now, run.id, keep) for call in bound]
            batch_id, rows = None, [row for each in jobs for row in each]
            first = [each[0] for each in jobs]
        run.will_record(50 * len(first))

        def recorded(found: Mapping[str, str]) -> Step:
            ids = tuple(found.get(row.id, row.id) for row in first)
            result = Enqueued(ids, tuple(row.id in found for row in first), batch_id)
            return _base(
                scope, pos, StepKind.ENQUEUE, name, state=StepState.SUCCEEDED, ended_at=now,
                result=msgspec.json.encode(result).decode(),
            )  # fmt: skip

        try:
            step = run.store.enqueue_recorded(run.fence, rows, recorded)
        except REFUSED:
            step = None
        if step is not None and run.core.is_due_soon(rows):
            run.core.wake()
        return bound, step

    bound, step = yield from _unless_refused(scope, pos, StepKind.ENQUEUE, name, store)
    if step is None:
        raise run.taken_away()
    run.note(step)
    return bound, msgspec.json.decode(step.result or "", type=Enqueued)


def _text(text: str | None) -> str:
    return text or ""


def bound_call(
    run: Run, function: Function[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Callable[[], list[Call[Any]]]:
    return lambda: [bind(run.core, function, args, kwargs)]


def admitted(run: Run, calls: Sequence[Call[Any]]) -> Callable[[], list[Call[Any]]]:
    return lambda: admit_all(run.core, calls)


def cancel(scope: Scope, job_id: str) -> Op[bool]:
    """Cancel a job once."""
    run = scope.run
    pos, record = scope.place(StepKind.CANCEL, job_id)
    if record is not None and record.state == StepState.FAILED:
        raise _refusal(record)
    if record is None:
        by, now = f"job:{run.id}", run.now()

        def recorded(won: bool | None) -> Step:
            return _base(
                scope, pos, StepKind.CANCEL, job_id, state=StepState.SUCCEEDED, ended_at=now,
                result=msgspec.json.encode(won).decode(),
            )  # fmt: skip

        def store() -> Step | None:
            if job_id == run.id:
                raise errors.CannotCancelSelf
            try:
                step = run.store.cancel_recorded(run.fence, job_id, by, now, recorded)
            except REFUSED:
                return None
            run.core.tell_bodies()
            return step

        record = yield from _unless_refused(scope, pos, StepKind.CANCEL, job_id, store)
        if record is None:
            raise run.taken_away()
        run.note(record)
    won = msgspec.json.decode(record.result or "null")
    if won is None:
        raise errors.JobNotFound(job_id)
    return bool(won)


def send(scope: Scope, job_id: str, name: str, payload: Any, once: str | None) -> Op[None]:
    """Send an event to another run once."""
    run = scope.run
    pos, record = scope.place(StepKind.SEND, name)
    if record is not None:
        if record.state == StepState.FAILED:
            raise _refusal(record)
        return
    step = _base(
        scope, pos, StepKind.SEND, name, state=StepState.SUCCEEDED, ended_at=run.now(),
        args=msgspec.json.encode({"job": job_id}).decode(),
    )  # fmt: skip

    def store() -> bool:
        job = run.store.get(job_id)
        encoded = encode_event(
            run.core.functions, job.function if job else None, name, payload, once
        )
        event = NewEvent(job_id, name, encoded, once, f"job:{run.id}")
        try:
            return run.store.send_recorded(run.fence, event, step, run.now())
        except REFUSED:
            return False

    if not (yield from _unless_refused(scope, pos, StepKind.SEND, name, store)):
        raise run.taken_away()
    run.note(step)
    run.core.wake()


def _unless_refused(
    scope: Scope, pos: int, kind: StepKind, name: str, work: Callable[[], T]
) -> Op[T]:
    """Do the work of an operation. If it is refused, the code may catch that.

    It is recorded, so that it is refused again when the code runs again.
    """
    run = scope.run
    yield from _flush(scope)
    try:
        answer: T = yield Do(run, work)
    except errors.DulyError as error:
        known = {k: v for k, v in vars(error).items() if v is None or isinstance(v, str | int)}
        failure = JobFailure(type(error).__name__, run.for_people(error)[0], None)
        failed = _base(
            scope, pos, kind, name, state=StepState.FAILED, ended_at=run.now(),
            result=msgspec.json.encode((str(error), known)).decode(),
            error=encode_failure(failure),
        )  # fmt: skip
        yield from _put(run, failed, None)
        raise
    return answer


def _refusal(record: Step) -> Exception:
    """The error with which an operation was refused."""
    text, known = msgspec.json.decode(record.result or "", type=tuple[str, dict[str, Any]])
    kind: Any = getattr(errors, record.failure.kind or "", errors.WorkflowError)
    error: Exception = kind.__new__(kind, text)
    vars(error).update(known)
    return error


def _job_step(scope: Scope, call: Call[Any]) -> Op[Any]:
    """A step with options that only a job can have: it runs as one, and is waited for."""
    run, name = scope.run, call.function.name
    decode = call.function.signature.decode_result
    pos, record = scope.place(StepKind.JOB, name, call.function.traits.aliases)
    if record is not None and record.state == StepState.FAILED and record.result is not None:
        raise _refusal(record)
    if record is not None and is_final(record):
        return (yield from _outcome(run, record, decode))
    if record is None:

        def store() -> Step | None:
            admitted_call = run.core.functions.admit(call)
            now = run.now()
            keep = run.core.settings.idempotency_ms
            rows = new_jobs(admitted_call, now, now, run.id, keep)
            run.will_record(50)

            def recorded(found: Mapping[str, str]) -> Step:
                job_id = found.get(rows[0].id, rows[0].id)
                return _base(
                    scope, pos, StepKind.JOB, name, state=StepState.WAITING, args=call.args,
                    result=msgspec.json.encode(job_id).decode(),
                )  # fmt: skip

            try:
                step = run.store.enqueue_recorded(run.fence, rows, recorded)
            except REFUSED:
                return None
            run.core.wake()
            return step

        record = yield from _unless_refused(scope, pos, StepKind.JOB, name, store)
        if record is None:
            raise run.taken_away()
        run.note(record)
    job_id = msgspec.json.decode(record.result or "", type=str)
    return (yield from _end_of(scope, record, job_id, name, decode, None))


def wait(
    scope: Scope, job_id: str, decode: Callable[[str | None], Any] | None, timeout: Delay | None
) -> Op[Any]:
    """Wait for the end of a job, and record its result."""
    run = scope.run
    pos, record = scope.place(StepKind.WAIT, job_id)

    if record is not None and is_final(record):
        if record.state == StepState.TIMED_OUT:
            raise WaitTimeout(f"job {job_id}")
        return (yield from _outcome(run, record, decode or _plain))
    if record is None:
        now = run.now()
        record = _base(
            scope, pos, StepKind.WAIT, job_id, state=StepState.WAITING,
            due_at=None if timeout is None else after(timeout, now),
        )  # fmt: skip
        yield from _put(run, record, None)
    return (yield from _end_of(scope, record, job_id, job_id, decode or _plain, record.due_at))


def _end_of(
    scope: Scope,
    record: Step,
    job_id: str,
    name: str,
    decode: Callable[[str | None], Any],
    due_at: int | None,
) -> Op[Any]:
    """Suspend until a job has ended; then record how."""
    run = scope.run
    job: JobRecord | None = yield Do(run, partial(run.store.get, job_id))
    if job is not None and not job.state.is_terminal:
        if due_at is not None and due_at <= run.now():
            yield from _put(run, _ended(run, record, StepState.TIMED_OUT), record.state)
            raise WaitTimeout(f"job {job_id}")
        if (yield Do(run, partial(run.store.watch_job, job_id, run.id))):
            raise scope.suspend([Awaited("job", job_id, due_at)])
        # It has ended meanwhile.
        job = yield Do(run, partial(run.store.get, job_id))
    if job is None:
        raise errors.JobNotFound(job_id)
    if job.state == State.SUCCEEDED:
        run.will_record(len(job.result or ""))
        done = _ended(run, record, StepState.SUCCEEDED, result=job.result)
        yield from _put(run, done, record.state)
        return decode(job.result)
    kind = job.error_kind or ("canceled" if job.state == State.CANCELED else ErrorKind.USER)
    message = job.error_message or f"canceled by {job.canceled_by or 'expiry'}"
    failure = JobFailure(kind, message, job.error_traceback)
    failed = _ended(run, record, StepState.FAILED, result=None, error=encode_failure(failure))
    yield from _put(run, failed, record.state)
    raise StepFailed(name, kind, message)


def _ended(run: Run, record: Step, state: StepState, **more: Any) -> Step:
    return msgspec.structs.replace(
        record, state=state, ended_at=run.now(), token=run.fence[1], **more
    )


def _plain(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


# Waits -------------------------------------------------------------------------------------------


def sleep(scope: Scope, due: Callable[[int], int]) -> Op[None]:
    """Wait until an instant, which is recorded when it is first reached."""
    run = scope.run
    pos, record = scope.place(StepKind.SLEEP, "sleep")
    if record is None:
        now = run.now()
        record = _base(
            scope, pos, StepKind.SLEEP, "sleep", state=StepState.WAITING, due_at=due(now)
        )
        yield from _put(run, record, None)
    # What was recorded behind it proves that it was over, even if a clock has gone back since.
    if record.due_at is not None and record.due_at > run.now() and not scope.replaying:
        raise scope.suspend([Awaited("timer", "", record.due_at)])


def sleep_for(scope: Scope, delay: Delay) -> Op[None]:
    return sleep(scope, partial(after, delay))


def sleep_until(scope: Scope, when: Instant) -> Op[None]:
    return sleep(scope, partial(at, when))


def wait_for(
    scope: Scope, name: str, kind: Any, timeout: Delay | None, default: Any = NO_DEFAULT
) -> Op[Any]:
    """Wait for an event, and take the first one that has not been read."""
    run = scope.run
    run.check_event(name)
    pos, record = scope.place(StepKind.EVENT, name)
    was = None if record is None else record.state
    if record is None:
        now = run.now()
        due_at = None if timeout is None else after(timeout, now)
        record = _base(scope, pos, StepKind.EVENT, name, state=StepState.WAITING, due_at=due_at)
    if record.state == StepState.WAITING:
        cutoffs = [at for at in (record.due_at, scope.cutoff) if at is not None]
        cutoff = min(cutoffs, default=None)
        event = next(
            (e for e in run.events if e.name == name and (cutoff is None or e.sent_at <= cutoff)),
            None,
        )
        if event is not None:
            # Before anything else: a branch that waits for the same name takes the next one.
            run.events.remove(event)
            done = _ended(run, record, StepState.SUCCEEDED)
            yield from _flush(scope)
            taken, payload = yield Do(run, partial(_take, run, done, was, event.seq))
            if not taken:
                raise run.taken_away()
            record = msgspec.structs.replace(done, result=payload)
            run.note(record)
        elif record.due_at is not None and record.due_at <= run.now():
            record = _ended(run, record, StepState.TIMED_OUT)
            yield from _put(run, record, was)
        else:
            if was is None:
                yield from _put(run, record, None)
            raise scope.suspend([Awaited(StepKind.EVENT, name, record.due_at)])
    if record.state == StepState.TIMED_OUT:
        if default is NO_DEFAULT:
            raise WaitTimeout(f"event {name!r}")
        return default
    return run.payload(name, record.result, kind)


def _take(run: Run, step: Step, was: str | None, seq: int) -> tuple[bool, str | None]:
    try:
        return run.store.take_event(run.fence, step, was, seq)
    except REFUSED:
        return False, None


def approval(scope: Scope, name: str, request: Request, timeout: Delay | None) -> Op[Decision]:
    """Wait for a decision."""
    run = scope.run
    pos, record = scope.place(StepKind.APPROVAL, name)
    if record is None:
        now = run.now()
        label = numbered(name, run.approvals)
        # Before anything else: another branch may ask under the same name.
        run.approvals.add(label)
        record = _base(
            scope, pos, StepKind.APPROVAL, label, state=StepState.WAITING,
            due_at=None if timeout is None else after(timeout, now),
            args=msgspec.json.encode(request).decode(),
        )  # fmt: skip
        yield from _put(run, record, None)
    if record.state == StepState.WAITING:
        if record.due_at is None or record.due_at > run.now():
            raise scope.suspend([Awaited(StepKind.APPROVAL, record.name, record.due_at)])
        decision = Decision(approved=False, timed_out=True)
        text = msgspec.json.encode(decision).decode()
        record = _ended(run, record, StepState.TIMED_OUT, result=text)
        # If it is refused, an answer came first.
        yield from _put(run, record, StepState.WAITING)
    return msgspec.json.decode(record.result or "", type=Decision)


# Values ------------------------------------------------------------------------------------------


def now(scope: Scope) -> Op[datetime]:
    """The current time, the same whenever the run continues."""
    run = scope.run
    pos, record = scope.place(StepKind.NOW, "now")
    if record is None:
        record = _base(
            scope, pos, StepKind.NOW, "now", state=StepState.SUCCEEDED, ended_at=run.now()
        )
        yield from _put(run, record, None)
    return from_ms(record.started_at)


def unique_id(scope: Scope) -> uuid.UUID:
    """A UUID that belongs to this place."""
    return uuid.UUID(id_of_place(scope.run.id, scope.name, scope.skip()))


def random_source(scope: Scope) -> random.Random:
    """A source of random numbers that belongs to this place."""
    return random.Random(id_of_place(scope.run.id, scope.name, scope.skip()))


# Branches ----------------------------------------------------------------------------------------

What = "Call[Any] | Job[Any] | AsyncJob[Any] | Wait | Branch"


def gather(
    scope: Scope, what: Sequence[Any], limit: int | None, mode: Literal["raise", "return"]
) -> Op[list[Any]]:
    """Wait until all of these have ended."""
    run = scope.run
    if mode not in ("raise", "return"):
        raise InvalidOption("errors", f'must be "raise" or "return", not {mode!r}')
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidOption("limit", f"must be a whole number from 1, not {limit!r}")
    pos, record = scope.place(StepKind.GATHER, "gather")
    names, operations = _operations(scope, pos, what, is_over=record is not None)
    prefix = prefix_of(scope.name, pos)
    if record is not None and record.state == StepState.FAILED:
        # Only this branch: what the others had not done by then must not be done now.
        failed_at = msgspec.json.decode(record.result or "", type=int)
        [failed] = yield Branches(run, operations[failed_at : failed_at + 1], lambda _: True)
        if failed is None or failed.error is None:
            raise scope.has_not_failed(pos)
        raise failed.error
    # Each branch may depend on what was done before it.
    yield from _flush(scope)
    outcomes: list[Outcome | None] = yield Branches(
        run, operations, lambda i: names[i] in run.last, limit,
        prefix=prefix, until_failed=mode == "raise",
    )  # fmt: skip
    failures = [i for i, o in enumerate(outcomes) if o is not None and o.error is not None]
    if failures and mode == "raise":
        outcome = outcomes[failures[0]]
        assert outcome is not None
        assert outcome.error is not None
        failure = JobFailure(
            getattr(outcome.error, "kind", ErrorKind.USER), run.for_people(outcome.error)[0], None
        )
        yield from _put(
            run,
            _base(
                scope, pos, StepKind.GATHER, "gather", state=StepState.FAILED, ended_at=run.now(),
                result=str(failures[0]), error=encode_failure(failure),
            ),
            None,
        )  # fmt: skip
        raise outcome.error
    _suspend_unless_done(scope, outcomes)
    if record is None:
        done = _base(
            scope, pos, StepKind.GATHER, "gather", state=StepState.SUCCEEDED, ended_at=run.now()
        )
        yield from _put(run, done, None)
    return [o.error or o.value for o in outcomes if o is not None]


def _suspend_unless_done(scope: Scope, outcomes: Sequence[Outcome | None]) -> None:
    suspensions = [o.suspension for o in outcomes if o is not None and o.suspension is not None]
    if suspensions or any(outcome is None for outcome in outcomes):
        raise scope.suspend([wait for each in suspensions for wait in each.waits])


def first(scope: Scope, what: Sequence[Any]) -> Op[tuple[int, Any]]:
    """Wait until one of these has happened. Return its place in the list, and its value."""
    run = scope.run
    if not what:
        raise InvalidOption("first", "give at least one thing to wait for")
    pos, record = scope.place(StepKind.FIRST, "first")
    cutoff = _cutoff(scope, pos, what)
    names, operations = _operations(scope, pos, what, cutoff, is_over=record is not None)
    if record is not None:
        index = msgspec.json.decode(record.result or "", type=int)
        [outcome] = yield Branches(run, operations[index : index + 1], lambda _: True)
    else:
        order = _timers_last(scope, pos, what)
        yield from _flush(scope)
        outcomes: list[Outcome | None] = yield Branches(
            run, [operations[i] for i in order], lambda _: True, until_done=True
        )
        found = next((n for n, o in enumerate(outcomes) if o is not None and o.is_done), None)
        if found is None:
            _suspend_unless_done(scope, outcomes)
            raise AssertionError("not reached")
        index, outcome = order[found], outcomes[found]
        yield from _put(
            run,
            _base(
                scope, pos, StepKind.FIRST, "first", state=StepState.SUCCEEDED,
                ended_at=run.now(), result=str(index),
            ),
            None,
        )  # fmt: skip
    if not scope.replaying:
        # Again after a crash in between: canceling twice changes nothing.
        for loser, name in enumerate(names):
            if loser != index:
                yield from _abandon(run, name, what[loser])
    assert outcome is not None
    if outcome.error is not None:
        raise outcome.error
    return index, outcome.value


def _due_of(scope: Scope, pos: int, index: int, what: Any) -> int | None:
    """When a timer is over; None for anything else, and for a timer that has not started."""
    record = scope.run.records.get((branch_of(scope.name, pos, index), 0))
    is_timer = isinstance(what, Wait) and what.is_timer
    return record.due_at if is_timer and record is not None else None


def _timers_last(scope: Scope, pos: int, what: Sequence[Any]) -> list[int]:
    """What has happened before a timer was over counts, even if no worker looked until later."""

    def turn(index: int) -> tuple[bool, int]:
        due_at = _due_of(scope, pos, index, what[index])
        return due_at is not None, due_at or 0

    return sorted(range(len(what)), key=turn)


def _cutoff(scope: Scope, pos: int, what: Sequence[Any]) -> int | None:
    """When the first of the timers was over, if one is: later events come too late."""
    now = scope.run.now()
    dues = [_due_of(scope, pos, index, each) for index, each in enumerate(what)]
    return min((due for due in dues if due is not None and due <= now), default=None)


def _abandon(run: Run, scope: str, what: Any) -> Op[None]:
    """This branch is not awaited any more: close its approvals, cancel the run's own jobs."""
    if _is_job(what):
        yield Do(run, partial(_cancel_own, run, what.id))
    for step in [s for s in run.records.values() if is_within(s.scope, scope)]:
        if step.state != StepState.WAITING:
            continue
        if step.kind == StepKind.APPROVAL:
            closed = Decision(approved=False)
            text = msgspec.json.encode(closed).decode()
            yield from _put(
                run, _ended(run, step, StepState.TIMED_OUT, result=text), StepState.WAITING
            )
        elif step.kind == StepKind.JOB:
            job_id = msgspec.json.decode(step.result or "", type=str)
            yield Do(run, partial(_cancel_own, run, job_id))


def _cancel_own(run: Run, job_id: str) -> None:
    """Cancel a job if the run has enqueued it; others may wait for any other job."""
    job = run.store.get(job_id)
    if job is not None and job.parent_id == run.id:
        run.core.cancel(job_id, f"job:{run.id}")


def _is_job(what: object) -> bool:
    return isinstance(what, Job | AsyncJob)


def _operations(
    scope: Scope, pos: int, what: Sequence[Any], cutoff: int | None = None, *, is_over: bool
) -> tuple[list[str], list[Callable[[], Op[Any]]]]:
    """The scope of each branch, and what runs in it."""
    if len(what) > MAX_BRANCHES:
        raise InvalidOption("gather", f"at most {MAX_BRANCHES:,} at a time; use ctx.run_many")
    names = [branch_of(scope.name, pos, index) for index in range(len(what))]
    return names, [
        partial(_operation, scope.run, name, each, cutoff, is_over=is_over)
        for name, each in zip(names, what, strict=True)
    ]


def _operation(run: Run, name: str, what: Any, cutoff: int | None, *, is_over: bool) -> Op[Any]:
    scope = Scope(run, name, cutoff, is_over=is_over)
    if isinstance(what, Call):
        return (yield from step_of(scope, what))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(what, Wait):
        return (yield from what.operation(scope))
    if isinstance(what, Branch):
        try:
            value = yield Nested(scope, partial(what.call, scope))
        finally:
            # Whatever the code made of it, it waits.
            if scope.suspension is not None:
                raise scope.suspension
        scope.check_all_read()
        return value
    if _is_job(what):
        return (yield from wait(scope, what.id, decoder_of(what), None))
    raise InvalidOption(
        "gather",
        f"takes bound calls, jobs, ctx.timer, ctx.event and ctx.branch, not {what!r}",
    )
