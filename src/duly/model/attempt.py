"""The values that hooks such as `@app.on_failure` get about an attempt of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

import msgspec

from duly.clock import from_ms
from duly.model.job import Again, Claim, Finish, JobFailure, JobRecord, Settlement, State


class AttemptInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a job: it has started, or its outcome has been stored."""

    job_id: str
    function: str
    """The name of the function, as the job has it."""
    queue: str
    attempt: int
    """The number of the attempt, from 1."""
    state: State
    """The state of the job: running, succeeded, failed, or pending if it will run again."""
    duration: float | None = None
    """How many seconds the function ran; None if that is unknown, and when it has just started."""
    error: JobFailure | None = None
    next_attempt_at: datetime | None = None
    """When the job will run again."""


Hook = Callable[[AttemptInfo], object]
Hooks = Mapping[State, tuple[Hook, ...]]
"""The hooks of a function, by the state that a job enters."""


def started(claim: Claim) -> AttemptInfo:
    """The function is about to start."""
    return _info(claim, claim.attempt, State.RUNNING)


def succeeded(claim: Claim, duration: float | None) -> AttemptInfo:
    """A mutation has committed itself."""
    return _info(claim, claim.attempt, State.SUCCEEDED, duration)


def settled(
    job: Claim | JobRecord, attempt: int, settlement: Settlement, duration: float | None = None
) -> AttemptInfo:
    """The outcome of an attempt has been stored."""
    error = None
    if settlement.error_kind or settlement.error_message:
        message = settlement.error_message or ""
        error = JobFailure(settlement.error_kind, message, settlement.error_traceback)
    if isinstance(settlement, Finish):
        return _info(job, attempt, State(settlement.state), duration, error)
    return _info(job, attempt, State.PENDING, duration, error, from_ms(settlement.run_at))


def is_retry(claim: Claim, again: Again) -> bool:
    """Whether an attempt was used up, although its function may not have started."""
    return again.attempt == claim.attempt


def _info(
    job: Claim | JobRecord,
    attempt: int,
    state: State,
    duration: float | None = None,
    error: JobFailure | None = None,
    next_attempt_at: datetime | None = None,
) -> AttemptInfo:
    return AttemptInfo(
        job_id=job.id,
        function=job.function,
        queue=job.queue,
        attempt=attempt,
        state=state,
        duration=duration,
        error=error,
        next_attempt_at=next_attempt_at,
    )
