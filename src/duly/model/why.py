"""Explains why a job has not run yet, with the reasons in the order in which to resolve them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from duly.clock import from_ms
from duly.model.durations import length_in_words
from duly.model.function import FunctionInfo, Status
from duly.model.job import Hold, JobRecord, State, serves
from duly.model.keys import KeyWait
from duly.model.workflow import AwaitedKind, OpenWait


class Cause(StrEnum):
    """The kind of a reason."""

    FINISHED = "finished"
    RUNNING = "running"
    FUNCTION_DELETED = "function_deleted"
    FUNCTION_PAUSED = "function_paused"
    NO_WORKER_HAS_IT = "no_worker_has_it"
    SIGNATURE = "signature"
    WAITS_FOR_JOBS = "waits_for_jobs"
    WAITS_FOR_EVENT = "waits_for_event"
    WAITS_FOR_APPROVAL = "waits_for_approval"
    SLEEPS = "sleeps"
    CODE_RAISED = "code_raised"
    HISTORY_MISMATCH = "history_mismatch"
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
    """The jobs that block it, by id."""
    until: int | None = None
    """When the reason ends by itself, in milliseconds, if it does."""
    traceback: str | None = None
    """Of the exception because of which a workflow is held."""


class Pause(msgspec.Struct, frozen=True):
    """Who paused a queue, and why."""

    by: str | None
    note: str | None


class Server(msgspec.Struct, frozen=True):
    """What is needed to know about a worker."""

    queues: tuple[str, ...] | None
    functions: tuple[str, ...]
    slots: int
    threads: int = 0
    threaded: tuple[str, ...] = ()


class Facts(msgspec.Struct, frozen=True):
    """What is known at one moment."""

    job: JobRecord
    function: FunctionInfo | None
    queue_pause: Pause | None
    workers: tuple[Server, ...]
    running: int
    """Running jobs, counted up to the number of slots and threads."""
    running_threaded: int = 0
    """How many of them need a thread."""
    in_the_way: tuple[str, ...] = ()
    """The jobs that it waits for."""
    key: KeyWait | None = None
    """What it waits for if it is held for its limit key."""
    kill_switch: Pause | None = None
    """Who engaged the kill switch, if it is engaged."""
    waits: tuple[OpenWait, ...] = ()
    """What it waits for, if it is a workflow that has started."""


def reasons(facts: Facts, now: int) -> list[Reason]:
    """All reasons, in the order in which to resolve them; never empty."""
    job = facts.job
    if job.state.is_terminal:
        return [Reason(Cause.FINISHED, _finished(job))]
    if job.state == State.RUNNING:
        return [Reason(Cause.RUNNING, f"it is running, attempt {job.attempt}")]
    found = [*_of_everything(facts), *_of_function(facts), *_of_hold(facts, now)]
    found += [*(_of_waits(facts, now) or _of_time(job, now)), *_of_queue(facts)]
    return found or [_next(facts)]


def sentence(job: JobRecord, found: Sequence[Reason], *, has_started: bool = False) -> str:
    """The reasons as a sentence. `has_started`: whether it is a workflow that continues later."""
    if found[0].cause in (Cause.FINISHED, Cause.RUNNING):
        return f"{job.function} is not waiting: {found[0].text}."
    head = "is waiting" if has_started else "has not run yet"
    if job.hold in (Hold.ERROR, Hold.HISTORY):
        head = "is held"
    return f"{job.function} {head}: {'; '.join(reason.text for reason in found)}."


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
            why = job.error_message or "its stored arguments no longer fit its function"
            return [Reason(Cause.SIGNATURE, f"no worker can run it: {why}")]
        case Hold.BATCH:
            text = f"it is waiting for {_jobs(facts.in_the_way)} to end"
            return [Reason(Cause.WAITS_FOR_JOBS, text, facts.in_the_way)]
        case Hold.KEY:
            return _of_key(facts, now)
        case Hold.ALONE:
            died = f" ({job.error_message})" if job.error_message else ""
            text = f"it crashed two workers and waits to run in a separate process{died}"
            return [Reason(Cause.ALONE, text)]
        case Hold.ERROR:
            return [_of_error(job)]
        case Hold.HISTORY:
            text = job.error_message or "the history does not fit the code"
            return [Reason(Cause.HISTORY_MISMATCH, f"{text}; {HELD}")]
        case _:
            return [] if _has_it(facts) else [_no_worker_has_it(facts)]


HELD = "it continues when other code starts, or with `duly workflows resume`"


def _of_error(job: JobRecord) -> Reason:
    text = f"its code raised {job.error_message or 'an exception'}; {HELD}"
    return Reason(Cause.CODE_RAISED, text, traceback=job.error_traceback)


def _of_waits(facts: Facts, now: int) -> list[Reason]:
    """What a workflow waits for; nothing if it is about to continue."""
    if facts.job.run_at <= now:
        return []
    return [_of_wait(wait, now) for wait in facts.waits]


def _of_wait(wait: OpenWait, now: int) -> Reason:
    match wait.kind:
        case AwaitedKind.EVENT:
            text = f"it has been waiting for event {wait.name!r}{_how_long(wait, now)}"
            return Reason(Cause.WAITS_FOR_EVENT, text, until=wait.until)
        case AwaitedKind.APPROVAL:
            text = f"it has been waiting for approval {wait.name!r}{_how_long(wait, now)}"
            return Reason(Cause.WAITS_FOR_APPROVAL, text + _request(wait), until=wait.until)
        case AwaitedKind.JOB:
            text = f"it has been waiting for job {wait.name} to end{_how_long(wait, now)}"
            return Reason(Cause.WAITS_FOR_JOBS, text, (wait.name,), until=wait.until)
        case AwaitedKind.RETRY:
            message = "" if wait.failure is None else f" ({wait.failure.message})"
            text = f"attempt {wait.attempt} of its step {wait.label or wait.name} failed{message}"
            text += "" if wait.until is None else f", the next is due at {_when(wait.until)}"
            return Reason(Cause.RETRY_LATER, text, until=wait.until)
        case AwaitedKind.PAUSED:
            text = f"function {wait.name} of its next step is paused"
            return Reason(Cause.FUNCTION_PAUSED, text)
        case _:
            text = "it sleeps" + ("" if wait.until is None else f" until {_when(wait.until)}")
            return Reason(Cause.SLEEPS, text, until=wait.until)


def _how_long(wait: OpenWait, now: int) -> str:
    since = "" if wait.since is None else f" for {length_in_words(now - wait.since)}"
    if wait.until is None:
        return since
    return f"{since}, and times out in {length_in_words(wait.until - now)}"


def _request(wait: OpenWait) -> str:
    """What an approval asks, and whom."""
    if wait.request is None or not (wait.request.text or wait.request.to):
        return ""
    to = f" of {wait.request.to}" if wait.request.to else ""
    return f" (asked{to}: {wait.request.text})"


def _of_key(facts: Facts, now: int) -> list[Reason]:
    """Nothing if it is its turn, or if something else keeps it from taking a free slot."""
    wait = facts.key
    if wait is None:
        return []
    # A limit without its own key applies to the function.
    name = "its limit" if "\n" in wait.key else f"its key {wait.key!r}"
    if wait.starts_at is None:
        text = f"{name} is in use by {_jobs(wait.holders)}"
        return [Reason(Cause.KEY_IN_USE, text, wait.holders)]
    if wait.starts_at > now:
        text = f"the rate of {name} allows the next job to start at {_when(wait.starts_at)}"
        return [Reason(Cause.KEY_IN_USE, text, until=wait.starts_at)]
    stopped = [*_of_everything(facts), *_of_function(facts), *_of_queue(facts)]
    if stopped or wait.first is None or wait.first == facts.job.id:
        return []
    text = f"{name} has a free slot, but job {wait.first} is ahead of it in line"
    return [Reason(Cause.KEY_IN_USE, text, (wait.first,))]


def _jobs(ids: Sequence[str]) -> str:
    return f"job {ids[0]}" if len(ids) == 1 else f"{len(ids)} jobs" if ids else "other jobs"


def _has_it(facts: Facts) -> bool:
    return any(facts.job.function in worker.functions for worker in facts.workers)


def _no_worker_has_it(facts: Facts) -> Reason:
    if not facts.workers:
        return Reason(Cause.NO_WORKER_HAS_IT, "no worker is running")
    name = facts.job.function
    return Reason(Cause.NO_WORKER_HAS_IT, f"no worker has {name} ({len(facts.workers)} running)")


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
    return [
        Reason(Cause.QUEUE_NOT_SERVED, f"no worker that has its function serves queue {queue!r}")
    ]


def _able(facts: Facts) -> list[Server]:
    return [worker for worker in facts.workers if facts.job.function in worker.functions]


def _serves(worker: Server, queue: str) -> bool:
    return serves(worker.queues, queue)


def _next(facts: Facts) -> Reason:
    serving = [worker for worker in _able(facts) if _serves(worker, facts.job.queue)]
    if any(facts.job.function in worker.threaded for worker in serving):
        threads = sum(worker.threads for worker in serving)
        if facts.running_threaded >= threads:
            return Reason(Cause.WORKERS_BUSY, f"all {threads} worker threads are busy")
    else:
        slots = sum(worker.slots for worker in serving)
        if facts.running - facts.running_threaded >= slots:
            return Reason(Cause.WORKERS_BUSY, f"all {slots} worker slots are busy")
    return Reason(Cause.ABOUT_TO_START, "it is due and a worker is free: it starts immediately")
