"""Explains why a job has not run yet, with the reasons in the order in which they must go away."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from duly.clock import from_ms
from duly.model.function import FunctionInfo, Status
from duly.model.job import Hold, JobRecord, State, serves
from duly.model.keys import KeyWait


class Cause(StrEnum):
    """What kind of reason it is."""

    FINISHED = "finished"
    RUNNING = "running"
    FUNCTION_DELETED = "function_deleted"
    FUNCTION_PAUSED = "function_paused"
    NO_WORKER_HAS_IT = "no_worker_has_it"
    SIGNATURE = "signature"
    WAITS_FOR_JOBS = "waits_for_jobs"
    KEY_IN_USE = "key_in_use"
    ALONE = "alone"
    NOT_DUE = "not_due"
    RETRY_LATER = "retry_later"
    EVERYTHING_PAUSED = "everything_paused"
    QUEUE_PAUSED = "queue_paused"
    QUEUE_NOT_SERVED = "queue_not_served"
    WORKERS_BUSY = "workers_busy"
    ABOUT_TO_START = "about_to_start"


class Reason(msgspec.Struct, frozen=True):
    """One reason, as data and in words."""

    cause: Cause
    text: str
    jobs: tuple[str, ...] = ()
    """The jobs that stand in the way, by id."""
    until: int | None = None
    """When it goes away by itself, in milliseconds, if it does."""


class Pause(msgspec.Struct, frozen=True):
    """Who paused a queue, and why."""

    by: str | None
    note: str | None


class Server(msgspec.Struct, frozen=True):
    """A worker as far as it matters here."""

    queues: tuple[str, ...] | None
    functions: tuple[str, ...]
    slots: int


class Facts(msgspec.Struct, frozen=True):
    """What is known at one moment."""

    job: JobRecord
    function: FunctionInfo | None
    queue_pause: Pause | None
    workers: tuple[Server, ...]
    running: int
    """Jobs that run now, counted as far as there are slots."""
    in_the_way: tuple[str, ...] = ()
    """The jobs that it waits for."""
    key: KeyWait | None = None
    """What it waits for if it is held for its key."""
    kill_switch: Pause | None = None
    """Who paused everything, if it is paused."""


def reasons(facts: Facts, now: int) -> list[Reason]:
    """Every reason, the first to deal with first; never none."""
    job = facts.job
    if job.state.is_terminal:
        return [Reason(Cause.FINISHED, _finished(job))]
    if job.state == State.RUNNING:
        return [Reason(Cause.RUNNING, f"it runs, attempt {job.attempt}")]
    found = [*_of_everything(facts), *_of_function(facts), *_of_hold(facts, now)]
    found += [*_of_time(job, now), *_of_queue(facts)]
    return found or [_next(facts)]


def sentence(job: JobRecord, found: Sequence[Reason]) -> str:
    """The same for people."""
    if found[0].cause in (Cause.FINISHED, Cause.RUNNING):
        return f"{job.function} is not waiting: {found[0].text}."
    return f"{job.function} has not run yet: {'; '.join(reason.text for reason in found)}."


def _finished(job: JobRecord) -> str:
    words = f"it {job.state}" if job.state != State.CANCELED else "it was canceled"
    return f"{words}: {job.error_message}" if job.error_message else words


def _of_everything(facts: Facts) -> list[Reason]:
    pause = facts.kill_switch
    if pause is None:
        return []
    return [Reason(Cause.EVERYTHING_PAUSED, f"everything is paused{by_whom(pause.by, pause.note)}")]


def _of_function(facts: Facts) -> list[Reason]:
    info = facts.function
    if info is None or info.status == Status.ACTIVE or info.status == Status.DEPRECATED:
        return []
    cause = Cause.FUNCTION_DELETED if info.status == Status.DELETED else Cause.FUNCTION_PAUSED
    word = "deleted" if info.status == Status.DELETED else "paused"
    return [Reason(cause, f"its function is {word}{by_whom(info.status_by, info.status_note)}")]


def by_whom(by: str | None, note: str | None) -> str:
    return (f" by {by}" if by else "") + (f" ({note})" if note else "")


def _of_hold(facts: Facts, now: int) -> list[Reason]:
    job = facts.job
    match job.hold:
        case Hold.SIGNATURE:
            why = job.error_message or "its arguments no longer fit the function"
            return [Reason(Cause.SIGNATURE, f"no worker can run it: {why}")]
        case Hold.BATCH:
            text = f"it waits for {_jobs(facts.in_the_way)} to end"
            return [Reason(Cause.WAITS_FOR_JOBS, text, facts.in_the_way)]
        case Hold.KEY:
            return _of_key(facts, now)
        case Hold.ALONE:
            died = f" ({job.error_message})" if job.error_message else ""
            text = f"it crashed two workers and waits for a process of its own{died}"
            return [Reason(Cause.ALONE, text)]
        case _:
            return [] if _has_it(facts) else [_nobody_has_it(facts)]


def _of_key(facts: Facts, now: int) -> list[Reason]:
    """Nothing if it is its turn, or if something else keeps it from taking a slot that is free."""
    wait = facts.key
    if wait is None:
        return []
    # A limit without a key of its own goes by the function.
    name = "its limit" if "\n" in wait.key else f"its key {wait.key!r}"
    if wait.starts_at is None:
        text = f"{name} is in use by {_jobs(wait.holders)}"
        return [Reason(Cause.KEY_IN_USE, text, wait.holders)]
    if wait.starts_at > now:
        text = f"the rate of {name} lets the next job start at {_when(wait.starts_at)}"
        return [Reason(Cause.KEY_IN_USE, text, until=wait.starts_at)]
    stopped = [*_of_everything(facts), *_of_function(facts), *_of_queue(facts)]
    if stopped or wait.first is None or wait.first == facts.job.id:
        return []
    text = f"{name} has a free slot, and job {wait.first} is before it in line"
    return [Reason(Cause.KEY_IN_USE, text, (wait.first,))]


def _jobs(ids: Sequence[str]) -> str:
    return f"job {ids[0]}" if len(ids) == 1 else f"{len(ids)} jobs" if ids else "other jobs"


def _has_it(facts: Facts) -> bool:
    return any(facts.job.function in worker.functions for worker in facts.workers)


def _nobody_has_it(facts: Facts) -> Reason:
    if not facts.workers:
        return Reason(Cause.NO_WORKER_HAS_IT, "no worker is running")
    name = facts.job.function
    return Reason(Cause.NO_WORKER_HAS_IT, f"none of {len(facts.workers)} workers knows {name}")


def _of_time(job: JobRecord, now: int) -> list[Reason]:
    if job.run_at <= now:
        return []
    when = _when(job.run_at)
    if job.attempt > 0 and job.error_message:
        text = f"attempt {job.attempt} failed ({job.error_message}), the next is due at {when}"
        return [Reason(Cause.RETRY_LATER, text, until=job.run_at)]
    return [Reason(Cause.NOT_DUE, f"it is due at {when}", until=job.run_at)]


def _when(instant: int) -> str:
    return from_ms(instant).isoformat().replace("+00:00", "Z")


def _of_queue(facts: Facts) -> list[Reason]:
    queue, pause = facts.job.queue, facts.queue_pause
    if pause is not None:
        return [
            Reason(Cause.QUEUE_PAUSED, f"queue {queue!r} is paused{by_whom(pause.by, pause.note)}")
        ]
    serving = [worker for worker in _able(facts) if _serves(worker, queue)]
    if serving or not _has_it(facts):
        return []
    return [Reason(Cause.QUEUE_NOT_SERVED, f"no worker that knows it serves queue {queue!r}")]


def _able(facts: Facts) -> list[Server]:
    return [worker for worker in facts.workers if facts.job.function in worker.functions]


def _serves(worker: Server, queue: str) -> bool:
    return serves(worker.queues, queue)


def _next(facts: Facts) -> Reason:
    slots = sum(worker.slots for worker in _able(facts) if _serves(worker, facts.job.queue))
    if facts.running >= slots:
        return Reason(Cause.WORKERS_BUSY, f"all {slots} slots of the workers are busy")
    return Reason(Cause.ABOUT_TO_START, "it is due, and a worker is free: it starts at once")
