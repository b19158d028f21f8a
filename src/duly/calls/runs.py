"""What a run of a workflow has recorded, and what it waits for, as people see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from duly.clock import from_ms
from duly.errors import JobNotFound
from duly.functions.events import redacted_events
from duly.model.job import LEFT_OUT, JobFailure, JobRecord, Kind, State
from duly.model.redact import MASK
from duly.model.stored_values import attempt, read
from duly.model.workflow import (
    MAX_RECORDS,
    OpenWait,
    Phase,
    Progressed,
    Request,
    SentEvent,
    Step,
    StepKind,
    StepState,
    awaited_job,
    id_of_place,
    labels,
    open_waits,
    phase_of,
    request_in,
)

if TYPE_CHECKING:
    from duly.core import Core

MAX_WAITS = 10
"""How many of a run's waits a list shows."""
LONG = msgspec.json.decode(LEFT_OUT)
"""Instead of a value that is too long for a list."""
CALLS = (StepKind.MUTATION, StepKind.ACTION, StepKind.JOB)


class StepInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a run: what was called or awaited at one place of its code, and how it went."""

    id: str
    label: str
    """How people refer to it: `charge`, `charge#2`, …"""
    name: str
    """The function, the event or the approval; for a wait or a cancel, the id of the job."""
    kind: str
    """mutation, action, job, enqueue, cancel, send, sleep, event, wait, approval, now, gather or
    first."""
    state: str
    """started, retrying, waiting, succeeded, failed or timed_out."""
    branch: str
    """The branch of `gather` or `first` that it belongs to; empty outside of branches."""
    attempt: int
    arguments: dict[str, Any]
    """As plain JSON data; redacted ones are shown as ***."""
    result: Any
    error: JobFailure | None
    """Why it failed; while it waits for a retry, why the last attempt failed."""
    job_id: str | None
    """The job that it runs as, while it does."""
    started_at: datetime
    ended_at: datetime | None
    due_at: datetime | None
    """When it stops waiting, or when its next attempt is due."""


class WaitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a run waits for; the first that happens continues it."""

    kind: str
    """event, approval, timer, job, retry (of a step) or paused (the function of its next step)."""
    name: str
    """The event, the approval, the id of the job or the function; empty for a timer."""
    step: str | None
    """The label of the step that waits."""
    since: datetime | None
    until: datetime | None
    """When the wait ends by itself."""
    text: str | None = None
    """What an approval asks."""
    options: tuple[str, ...] = ()
    """The answers to an approval."""
    data_schema: Any = None
    """The JSON Schema of the data to be given with an approval."""
    to: str | None = None
    """Who should answer an approval."""
    error: JobFailure | None = None
    """Why the last attempt of a step failed."""


class EventInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An event that was sent to a run."""

    seq: int
    name: str
    payload: Any
    once: str | None
    sent_at: datetime
    sent_by: str | None
    step: str | None
    """The label of the step that received it."""
    is_read: bool


# Steps -------------------------------------------------------------------------------------------


def steps_of(core: Core, job_id: str) -> list[StepInfo]:
    """All steps of a run, in the order in which people read them."""
    found = core.ready().steps_of(job_id, MAX_RECORDS)
    if not found:
        _check_exists(core, job_id)
    return list(_shown(core, job_id, found, labels(found)))


def steps_after(core: Core, job_id: str, after: str | None, limit: int) -> list[StepInfo]:
    """The next steps after the one with that id; long values are left out."""
    store = core.ready()
    places = store.places_of(job_id)
    names = labels(places)
    ids = [id_of_place(job_id, *step.place) for step in places]
    start = ids.index(after) + 1 if after in ids else 0
    wanted = [step.place for step in places[start : start + limit]]
    found = store.steps_at(job_id, wanted) if wanted else ()
    return list(_shown(core, job_id, found, names))


def step_called(core: Core, job_id: str, name: str) -> StepInfo | None:
    """The step with that label or id."""
    store = core.ready()
    places = store.places_of(job_id)
    names = labels(places)
    for place in (step.place for step in places):
        if name in (names[place], id_of_place(job_id, *place)):
            step = store.step_at(job_id, *place)
            return None if step is None else next(_shown(core, job_id, [step], names))
    return None


def _shown(
    core: Core, job_id: str, steps: Iterable[Step], names: Mapping[tuple[str, int], str]
) -> Iterator[StepInfo]:
    payload = _payloads(core, job_id)
    for step in steps:
        yield StepInfo(
            id=id_of_place(job_id, *step.place),
            label=names.get(step.place, step.name),
            name=step.name,
            kind=step.kind,
            state=step.state,
            branch=step.scope,
            attempt=step.attempt,
            arguments=_arguments(core, step),
            result=_result(step, payload),
            error=None if step.error is None else step.failure,
            job_id=awaited_job(step),
            started_at=from_ms(step.started_at),
            ended_at=_instant(step.ended_at),
            due_at=_instant(step.due_at),
        )


def _arguments(core: Core, step: Step) -> dict[str, Any]:
    if step.kind in CALLS:
        if step.args == LEFT_OUT:
            return dict(LONG)
        return core.redaction.shown_arguments(step.name, step.args or "{}")
    match step.kind:
        case StepKind.APPROVAL:
            asked: dict[str, Any] = msgspec.to_builtins(request_in(step))
            return asked
        case StepKind.SEND:
            return read(step.args or "{}", dict[str, Any], {})
        case _:
            return {}


def _result(step: Step, payload: Callable[[str, str | None], Any]) -> Any:
    if step.state != StepState.SUCCEEDED:
        return None
    if step.kind == StepKind.EVENT:
        return payload(step.name, step.result)
    return None if step.result is None else _plain(step.result)


def _plain(text: str) -> Any:
    return attempt(lambda: msgspec.json.decode(text), None)


# Events ------------------------------------------------------------------------------------------


def events_after(
    core: Core, job_id: str, after: int, limit: int, *, unread: bool = False
) -> list[EventInfo]:
    """The next events that were sent to a run, in order; long payloads are left out.

    `unread`: only those that no step has received.
    """
    store = core.ready()
    found = store.events_of(job_id, limit, after, unread=unread)
    taken = any(event.taken_by is not None for event in found)
    steps = store.places_of(job_id) if taken else []
    names = {f"{scope}/{pos}": label for (scope, pos), label in labels(steps).items()}
    payload = _payloads(core, job_id)
    return [_event(event, names, payload) for event in found]


def _event(
    event: SentEvent, names: Mapping[str, str], payload: Callable[[str, str | None], Any]
) -> EventInfo:
    taken_by = event.taken_by
    return EventInfo(
        seq=event.seq,
        name=event.name,
        payload=payload(event.name, event.payload),
        once=event.once,
        sent_at=from_ms(event.sent_at),
        sent_by=event.sent_by,
        step=None if taken_by is None else names.get(taken_by),
        is_read=taken_by is not None,
    )


def _payloads(core: Core, job_id: str) -> Callable[[str, str | None], Any]:
    """Shows the payloads of a run's events, without redacted ones."""
    hidden: frozenset[str] | None = None

    def shown(name: str, text: str | None) -> Any:
        nonlocal hidden
        if text is None:
            return None
        if hidden is None:
            job = core.ready().get(job_id)
            hidden = frozenset() if job is None else redacted_events(core.functions, job.function)
        if name in hidden:
            return MASK
        return LONG if text == LEFT_OUT else read(text, dict[str, Any], {}).get("payload")

    return shown


# Waits -------------------------------------------------------------------------------------------


def waits_of(core: Core, record: JobRecord) -> tuple[WaitInfo, ...]:
    """What a run waits for."""
    return tuple(map(_wait, open_waits_of(core, record)))


class RunSummary(msgspec.Struct, frozen=True):
    """How far a run is, for lists."""

    phase: Phase
    waits: tuple[WaitInfo, ...]
    """The first ones, without what their steps say."""


def summaries(core: Core, records: Sequence[JobRecord]) -> list[RunSummary]:
    """How far these runs are, in one read for all of them."""
    pending = [record.id for record in records if record.state == State.PENDING]
    found = core.ready().progressed(pending) if pending else {}
    return [_summary(record, found.get(record.id)) for record in records]


def _summary(record: JobRecord, known: Progressed | None) -> RunSummary:
    begun_at = None if known is None else known.begun_at
    phase = phase_of(record.state, record.hold, begun_at)
    waits = known.waits.waits[:MAX_WAITS] if known is not None and phase == Phase.WAITING else ()
    return RunSummary(phase, tuple(map(_wait, open_waits(waits, (), {}))))


def phase(core: Core, record: JobRecord) -> Phase:
    """How far a run is."""
    return summaries(core, [record])[0].phase


def open_waits_of(core: Core, record: JobRecord) -> list[OpenWait]:
    """What a pending run waits for, in milliseconds; empty for other jobs."""
    if record.kind != Kind.WORKFLOW or record.state != State.PENDING:
        return []
    store = core.ready()
    found = store.progressed([record.id]).get(record.id)
    if found is None or not found.waits.waits:
        return []
    return open_waits(
        found.waits.waits, store.open_steps(record.id), labels(store.places_of(record.id))
    )


def _wait(wait: OpenWait) -> WaitInfo:
    request = wait.request or Request("", ())
    return WaitInfo(
        kind=wait.kind,
        name=wait.name,
        step=wait.label,
        since=_instant(wait.since),
        until=_instant(wait.until),
        text=request.text or None,
        options=request.options,
        data_schema=request.schema,
        to=request.to,
        error=wait.failure,
    )


def _check_exists(core: Core, job_id: str) -> None:
    if core.ready().get(job_id) is None:
        raise JobNotFound(job_id)


def _instant(ms: int | None) -> datetime | None:
    return None if ms is None else from_ms(ms)
