"""Jobs: their states, the legal transitions, and what follows from an outcome.

    pending ──claim──▶ running ──▶ succeeded | failed | canceled
       ▲                 │
       └── retry, rescue,┘         pending ──cancel, expiry──▶ canceled
           give-back

There are three separate counters. *token* fences every write: it grows at claim, rescue and
give-back, is even while pending and odd while running. *attempt* counts for the retry policy.
*crashes* counts worker crashes during the body.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, TypedDict, Unpack

import msgspec

from duly.model.function import is_reserved
from duly.model.retry import conflict_delay, decode_retry, system_delay

MAX_PRIORITY = 9
DEFAULT_PRIORITY = 5
DEFAULT_QUEUE = "default"
FIVE_YEARS_MS = 1826 * 86_400_000
CRASHES_BEFORE_ALONE = 2
CRASHES_UNTIL_CONVICTED = 4
"""Two alongside other jobs, and two in a separate process, seen by a worker that survived."""
LOCK_RETRIES = 10
CLAIM_BYTES = 8 << 20
"""Up to this many bytes of arguments are claimed at a time, unless a single job has more."""


class State(StrEnum):
    """The state of a job."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended: succeeded, failed or canceled."""
        return self in TERMINAL


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELED})

LEGAL = frozenset(
    {
        (State.PENDING, State.RUNNING),
        (State.PENDING, State.CANCELED),
        (State.RUNNING, State.PENDING),
        (State.RUNNING, State.SUCCEEDED),
        (State.RUNNING, State.FAILED),
        (State.RUNNING, State.CANCELED),
    }
)


class Kind(StrEnum):
    """The kind of a function."""

    MUTATION = "mutation"
    ACTION = "action"
    WORKFLOW = "workflow"


class ErrorKind(StrEnum):
    """The kind of a job's error."""

    USER = "user"
    TIMEOUT = "timeout"
    WORKER_LOST = "worker_lost"
    CRASH_LOOP = "crash_loop"
    EXPIRED = "expired"
    UNSTORABLE_RESULT = "unstorable_result"


class Hold(StrEnum):
    """Why a due job cannot start; held jobs are in no claim index."""

    FUNCTION = "function"
    PAUSED = "paused"
    KEY = "key"
    SIGNATURE = "signature"
    BATCH = "batch"
    ALONE = "alone"
    ERROR = "error"
    HISTORY = "history"


class NewJob(msgspec.Struct, frozen=True, array_like=True):
    """A job as it is inserted. The fields are in the order of the columns."""

    id: str
    function: str
    kind: str
    queue: str
    priority: int
    created_at: int
    scheduled_at: int
    run_at: int
    expires_at: int | None
    timeout_ms: int | None
    retry: str | None
    args: str
    parent_id: str | None
    owner: str | None
    tags: str | None


class TrackedJob(NewJob, frozen=True, array_like=True):
    """A job with fields that most jobs do not need, so that most inserts are smaller."""

    hold: str | None = None
    trigger: str | None = None
    actor: str | None = None
    retry_of: str | None = None
    hook_id: str | None = None
    batch_id: str | None = None
    unique_key: str | None = None
    pending_key: str | None = None
    limit_key: str | None = None
    limits: str | None = None


class KeyEntry(msgspec.Struct, frozen=True, array_like=True):
    """A key that a job holds until an instant, whatever its outcome."""

    scope: str
    key: str
    expires_at: int


class KeyedJob(TrackedJob, frozen=True, array_like=True):
    """A job that is stored only if its keys are free, or that belongs to a trace; these fields are
    not columns."""

    entries: tuple[KeyEntry, ...] = ()
    debounced: bool = False
    """Whether a job that already holds the pending key gets these arguments and this due time."""
    trace: str | None = None
    """The span of the call, as a `traceparent` header."""

    @property
    def has_keys(self) -> bool:
        return bool(self.entries or self.unique_key or self.pending_key)


class Trigger(StrEnum):
    """What enqueued a job."""

    MANUAL = "manual"
    SCHEDULE = "schedule"
    WEBHOOK = "webhook"
    WORKFLOW = "workflow"
    API = "api"


class Claim(msgspec.Struct, frozen=True):
    """A job that a worker has just claimed, with the token that fences its writes."""

    id: str
    token: int
    attempt: int
    crashes: int
    system_retries: int
    function: str
    kind: str
    queue: str
    priority: int
    run_at: int
    timeout_ms: int | None
    retry: str | None
    args: str
    lock_retries: int = 0
    begun_at: int | None = None
    """When a workflow first started, if this is not its first claim."""
    holds_key: bool = False
    """Whether calls with its key still return this job, until its body starts."""
    holds_slot: bool = False
    """Whether a limit counts it as running until its body has really ended."""


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """The fenced move of a running job to a terminal state."""

    id: str
    token: int
    state: str
    result: str | None = None
    error_kind: str | None = None
    error_message: str | None = None
    error_traceback: str | None = None
    exhausted: bool = False
    cancels: bool = False
    """Whether its unfinished children are canceled with it: a workflow has failed."""


class Again(msgspec.Struct, frozen=True, kw_only=True):
    """The fenced return of a running job to pending, due at `run_at`."""

    id: str
    token: int
    run_at: int
    attempt: int
    crashes: int
    system_retries: int
    hold: str | None = None
    error_kind: str | None = None
    error_message: str | None = None
    error_traceback: str | None = None
    lock_failures: int = 0
    """The new counters of these retries."""
    begun: bool = False
    """Whether this is a workflow that has started, and will continue."""
    mail: int | None = None
    """What it has read; if there is more by now, it is due immediately."""
    waits: str | None = None
    """What it waits for."""
    limits: str | None = None
    """Its limits from now on, if they change."""


Settlement = Finish | Again


class Lost(msgspec.Struct, frozen=True):
    """What rescue needs to know about a job whose worker died."""

    id: str
    token: int
    kind: str
    attempt: int
    crashes: int
    system_retries: int
    run_at: int
    retry: str | None
    advanced: bool = False
    """Whether a workflow recorded a step in this attempt."""


class JobFailure(msgspec.Struct, frozen=True):
    """Why a job, or its last attempt, failed."""

    kind: str | None
    message: str
    traceback: str | None


class JobRecord(msgspec.Struct, frozen=True):
    """One job as stored, live or finished."""

    id: str
    function: str
    kind: Kind
    queue: str
    priority: int
    state: State
    hold: str | None
    token: int
    attempt: int
    crashes: int
    system_retries: int
    created_at: int
    scheduled_at: int
    run_at: int
    started_at: int | None
    completed_at: int | None
    expires_at: int | None
    timeout_ms: int | None
    retry: str | None
    args: str
    parent_id: str | None
    owner: str | None
    tags: str | None
    worker_id: str | None
    result: str | None
    error_kind: str | None
    error_message: str | None
    error_traceback: str | None
    canceled_by: str | None
    trigger: str | None
    actor: str | None
    retry_of: str | None
    batch_id: str | None


LEFT_OUT = '{"…":"too long to be listed"}'
"""What lists show instead of long arguments and results, as JSON."""


class JobFilter(msgspec.Struct, frozen=True, omit_defaults=True):
    """Filters for lists and bulk changes of jobs; None means any."""

    state: State | None = None
    function: str | None = None
    queue: str | None = None
    owner: str | None = None
    parent_id: str | None = None
    run_after: int | None = None
    run_before: int | None = None
    before_id: str | None = None
    batch_id: str | None = None
    exhausted: bool | None = None
    """Finished jobs that have used up their attempts."""
    begun: bool | None = None
    """Pending jobs: whether they are workflows that have started."""
    held: bool | None = None
    """Pending jobs: whether they are workflows that cannot continue with the code."""
    limit: int = 100


def newest_first(pages: Iterable[Iterable[JobRecord]], limit: int) -> list[JobRecord]:
    """The newest of the jobs found by several queries."""
    every = (record for page in pages for record in page)
    return sorted(every, key=lambda record: record.id, reverse=True)[:limit]


def serves(queues: tuple[str, ...] | None, queue: str) -> bool:
    """Whether a worker for these queues serves that one; all workers serve duly's own queues."""
    return queues is None or queue in queues or is_reserved(queue)


# Outcomes of an attempt ---------------------------------------------------------------------


class Succeeded(msgspec.Struct, frozen=True):
    result: str | None


class Raised(msgspec.Struct, frozen=True):
    """The function's own failure: an exception, a timeout, or a result that cannot be stored."""

    kind: ErrorKind
    message: str
    traceback: str | None = None
    final: bool = False
    """Whether another attempt is pointless."""
    after: float | None = None
    """The delay before the next attempt, if the function gave one."""


class Conflicted(msgspec.Struct, frozen=True):
    """A mutation lost a conflict with another transaction: serialization, deadlock, busy."""

    message: str


class SystemFailed(msgspec.Struct, frozen=True):
    """A mutation failed with a system error, such as a lost connection."""

    message: str


class LockRefused(msgspec.Struct, frozen=True):
    """A mutation could not get a lock: its own NOWAIT or `lock_timeout`."""

    failure: Raised


class NeverStarted(msgspec.Struct, frozen=True):
    """The claim is given back: no line of the function has run."""

    hold: str | None = None
    message: str | None = None


class Interrupted(msgspec.Struct, frozen=True):
    """The worker stopped before the body had ended; how far it got is unknown."""


class Suspended(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow waits, or cannot continue with this code. This process keeps no part of it."""

    run_at: int
    waits: str
    mail: int | None = None
    advanced: bool = False
    """Whether it recorded a step in this attempt."""
    hold: str | None = None
    error_kind: str | None = None
    message: str | None = None
    traceback: str | None = None
    limits: str | None = None


Outcome = (
    Succeeded
    | Raised
    | Conflicted
    | LockRefused
    | SystemFailed
    | NeverStarted
    | Interrupted
    | Suspended
)


class Ending(TypedDict, total=False):
    """The fields that can accompany a terminal state."""

    result: str | None
    error_kind: str | None
    error_message: str | None
    error_traceback: str | None
    exhausted: bool


class Changes(TypedDict, total=False):
    """The fields that can change when a job goes back to pending."""

    token: int
    run_at: int
    attempt: int
    crashes: int
    system_retries: int
    hold: str | None
    error_kind: str | None
    error_message: str | None
    error_traceback: str | None
    lock_failures: int
    begun: bool
    mail: int | None
    waits: str | None
    limits: str | None


def finished(job: Claim | Lost, state: str, **ending: Unpack[Ending]) -> Finish:
    """Finish the attempt and its job."""
    cancels = job.kind == Kind.WORKFLOW and state == State.FAILED
    return Finish(id=job.id, token=job.token, state=state, cancels=cancels, **ending)


def again(job: Claim | Lost | JobRecord, **changes: Unpack[Changes]) -> Again:
    """Return a job to pending as it was before the attempt, apart from the changes."""
    given: dict[str, Any] = {
        "token": job.token,
        "run_at": job.run_at,
        "attempt": job.attempt - 1,
        "crashes": job.crashes,
        "system_retries": job.system_retries,
        "hold": _hold_after(changes.get("crashes", job.crashes)),
        "begun": job.kind == Kind.WORKFLOW,
        **changes,
    }
    return Again(id=job.id, **given)


def settle(claim: Claim, outcome: Outcome, now: int, chance: float) -> Settlement:
    """Decide what an attempt's outcome means for its job. `chance` is drawn from [0, 1)."""
    match outcome:
        case Succeeded():
            return settle_success(claim, outcome)
        case Raised():
            return _after_failure(claim, outcome, now, chance)
        case Conflicted(message):
            delay = conflict_delay(claim.system_retries, chance)
            return _again_without_counting(claim, now, delay, message)
        case LockRefused(failure):
            return _after_lock_failure(claim, failure, now, chance)
        case SystemFailed(message):
            delay = system_delay(claim.system_retries, chance)
            return _again_without_counting(claim, now, delay, message)
        case Interrupted():
            return _after_interruption(claim, now)
        case NeverStarted(hold, message):
            hold = hold or _hold_after(claim.crashes)
            return again(claim, hold=hold, error_message=message, begun=False)
        case Suspended():
            return _after_suspension(claim, outcome)


def settle_success(claim: Claim, outcome: Succeeded) -> Finish:
    """The same for most outcomes, which depend on neither time nor chance."""
    return finished(claim, State.SUCCEEDED, result=outcome.result)


def _after_suspension(claim: Claim, outcome: Suspended) -> Again:
    crashes = 0 if outcome.advanced else claim.crashes
    return again(
        claim,
        run_at=outcome.run_at,
        crashes=crashes,
        system_retries=0,
        hold=outcome.hold or _hold_after(crashes),
        error_kind=outcome.error_kind,
        error_message=outcome.message,
        error_traceback=outcome.traceback,
        mail=outcome.mail,
        waits=outcome.waits,
        limits=outcome.limits,
    )


def _after_interruption(claim: Claim, now: int) -> Settlement:
    """A mutation left no trace, and a workflow continues from its last record; an action runs again
    only if its function has `retry`.

    A shutdown is not a failure, so it does not count as an attempt.
    """
    if claim.kind == Kind.ACTION and claim.retry is None:
        return finished(
            claim,
            State.FAILED,
            error_kind=ErrorKind.WORKER_LOST,
            error_message="the worker stopped before the job finished",
        )
    return again(claim)


def settle_lost(job: Lost, now: int, chance: float, *, witnessed: bool = False) -> Settlement:
    """Decide what happens to a job whose worker died while running it.

    A mutation's transaction died with the worker, so it simply runs again, and a workflow continues
    from its last record. An action may have had effects, so it runs again only if its function has
    `retry`. After the second crash, a job runs in a separate process; a workflow that has recorded
    a step since it was claimed starts to count from 0 again.

    A crash of that process counts only if it was `witnessed` by the worker that started the
    process and survived it. If that worker died too, something killed both, which says nothing
    about the job: it runs again, with increasing delays in case it is the job that kills them.
    """
    before = 0 if job.advanced else job.crashes
    alone = before >= CRASHES_BEFORE_ALONE
    crashes = before + (witnessed or not alone)
    if witnessed and crashes >= CRASHES_UNTIL_CONVICTED:
        return finished(
            job,
            State.FAILED,
            error_kind=ErrorKind.CRASH_LOOP,
            error_message=f"its process died {crashes} times, at last while it ran only this job",
        )
    if job.kind in (Kind.MUTATION, Kind.WORKFLOW):
        same = again(job, crashes=crashes)
        return _later(same, now, chance, witnessed) if alone else same
    retry = decode_retry(job.retry)
    message = "the worker died while running this job"
    if retry is None or not retry.allows(job.attempt):
        return finished(
            job,
            State.FAILED,
            error_kind=ErrorKind.WORKER_LOST,
            error_message=message,
            exhausted=retry is not None,
        )
    run_at = now + round(retry.delay_after(job.attempt, chance) * 1000)
    return again(
        job,
        run_at=run_at,
        attempt=job.attempt,
        crashes=crashes,
        error_kind=ErrorKind.WORKER_LOST,
        error_message=message,
    )


def _later(same: Again, now: int, chance: float, witnessed: bool) -> Again:
    """Back off, so that processes, or a whole machine, are not brought down repeatedly."""
    with_whom = "" if witnessed else ", together with the worker that started it"
    return msgspec.structs.replace(
        same,
        run_at=now + round(system_delay(same.system_retries, chance) * 1000),
        system_retries=same.system_retries + 1,
        error_message=f"its separate process died{with_whom}",
    )


def _after_failure(claim: Claim, failure: Raised, now: int, chance: float) -> Settlement:
    retry = decode_retry(claim.retry)
    final = failure.final or failure.kind == ErrorKind.UNSTORABLE_RESULT
    if retry is not None and retry.allows(claim.attempt) and not final:
        delay = retry.delay_after(claim.attempt, chance)
        if failure.after is not None:
            delay = retry.within(failure.after)
        return again(
            claim,
            run_at=now + round(delay * 1000),
            attempt=claim.attempt,
            system_retries=0,
            error_kind=failure.kind,
            error_message=failure.message,
            error_traceback=failure.traceback,
        )
    exhausted = retry is not None and not final
    message = failure.message
    if exhausted and claim.attempt > 1:
        message = f"{message} (after {claim.attempt} attempts)"
    return finished(
        claim,
        State.FAILED,
        error_kind=failure.kind,
        error_message=message,
        error_traceback=failure.traceback,
        exhausted=exhausted,
    )


def _after_lock_failure(claim: Claim, failure: Raised, now: int, chance: float) -> Settlement:
    """The lock may be free soon, but a body that never gets it must not run forever."""
    if claim.lock_retries < LOCK_RETRIES:
        delay = conflict_delay(claim.lock_retries, chance)
        return _again_without_counting(claim, now, delay, failure.message, lock_failures=1)
    message = f"{failure.message} (a lock was not available in {claim.lock_retries + 1} runs)"
    return _after_failure(claim, msgspec.structs.replace(failure, message=message), now, chance)


def _again_without_counting(
    claim: Claim, now: int, delay: float, message: str, lock_failures: int = 0
) -> Again:
    """A failure that is not the function's own does not count as an attempt."""
    return again(
        claim,
        run_at=now + round(delay * 1000),
        system_retries=claim.system_retries + 1,
        error_message=message,
        lock_failures=lock_failures,
    )


def _hold_after(crashes: int) -> Hold | None:
    """A job that crashed two workers keeps running in a separate process."""
    return Hold.ALONE if crashes >= CRASHES_BEFORE_ALONE else None
