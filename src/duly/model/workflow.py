"""Workflows: what a run has recorded, what it waits for, and when it has to wake up.

A run executes its function from the top each time it is claimed. Each operation has a place: its
scope (the function itself, or one branch) and its number in it. If the place has a record, the
operation returns what was recorded; otherwise it does the work and records it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from duly.ids import derived_id
from duly.model.job import FIVE_YEARS_MS, Hold, JobFailure, JobFilter, State
from duly.model.stored_values import read

MAX_RECORDS = 10_000
MAX_RECORDED_BYTES = 64 << 20
MAX_UNREAD_EVENTS = 1_000
LARGE_RESULT = 32 << 10
"""Longer results are read when they are needed, not at each wake."""
MAX_EVENT_NAME = 200
ROOT = ""
"""The scope of the function itself."""


class StepKind(StrEnum):
    """What was done at a place."""

    MUTATION = "mutation"
    ACTION = "action"
    JOB = "job"
    """A step that runs as a separate job."""
    ENQUEUE = "enqueue"
    CANCEL = "cancel"
    SEND = "send"
    SLEEP = "sleep"
    EVENT = "event"
    WAIT = "wait"
    """For the end of a job."""
    APPROVAL = "approval"
    NOW = "now"
    GATHER = "gather"
    FIRST = "first"


class StepState(StrEnum):
    """How far the operation at a place is."""

    STARTED = "started"
    """An action that runs at most once may have started."""
    RETRYING = "retrying"
    WAITING = "waiting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one place."""

    scope: str
    pos: int
    kind: str
    name: str
    state: str
    token: int
    attempt: int = 1
    started_at: int
    ended_at: int | None = None
    due_at: int | None = None
    args: str | None = None
    result: str | None = None
    error: str | None = None
    result_bytes: int | None = None
    """Of a result that was too long to be read along."""

    @property
    def place(self) -> tuple[str, int]:
        return self.scope, self.pos

    @property
    def failure(self) -> JobFailure:
        return decode_failure(self.error)


Fence = tuple[str, int]
"""The id of a run, and the token under which it is claimed."""
Place = tuple[str, str, int]
"""The id of a run, a scope, and a number in it."""


class Put(NamedTuple):
    """A record to be added, or changed if it still is in the state `was`."""

    fence: Fence
    step: Step
    was: str | None

    @property
    def where(self) -> Place:
        return self.fence[0], self.step.scope, self.step.pos


class Event(msgspec.Struct, frozen=True):
    """An event that the run has not read yet."""

    seq: int
    name: str
    sent_at: int


class NewEvent(NamedTuple):
    """An event to be sent."""

    job_id: str
    name: str
    payload: str | None
    once: str | None = None
    sent_by: str | None = None


class SentEvent(msgspec.Struct, frozen=True):
    """An event as it is stored."""

    seq: int
    name: str
    payload: str | None
    once: str | None
    sent_at: int
    sent_by: str | None
    taken_by: str | None


class Awaited(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that a run waits for; the first that happens wakes it."""

    kind: str
    name: str = ""
    until: int | None = None
    """When it stops waiting, or when a timer ends."""


class Waits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The column `waits`: what a pending run waits for, or which builds cannot continue it."""

    waits: tuple[Awaited, ...] = ()
    builds: tuple[str, ...] = ()


class AwaitedKind(StrEnum):
    """What a run can wait for."""

    EVENT = "event"
    APPROVAL = "approval"
    TIMER = "timer"
    JOB = "job"
    RETRY = "retry"
    """The next attempt of a step."""
    PAUSED = "paused"
    """The function of the next step, which an operator has paused."""


class Phase(StrEnum):
    """How far a run is: its state, which distinguishes the kinds of pending."""

    NOT_STARTED = "not_started"
    WAITING = "waiting"
    HELD = "held"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an approval asks for."""

    text: str
    options: tuple[str, ...]
    schema: Any = None
    to: str | None = None
    self_approval: bool = True


ANY_REQUEST = Request("", ("approve", "reject"))
"""Instead of a request that cannot be read."""


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to an approval; it is true if it was approved."""

    approved: bool
    choice: str | None = None
    """One of the options."""
    data: Any = None
    by: str | None = None
    timed_out: bool = False

    def __bool__(self) -> bool:
        return self.approved


class Progressed(msgspec.Struct, frozen=True):
    """What the row of a live run has beyond that of other jobs."""

    begun_at: int | None
    waits: Waits


class OpenWait(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a run waits for, with what its record says about it."""

    kind: str
    name: str
    label: str | None = None
    """The step that waits."""
    since: int | None = None
    until: int | None = None
    request: Request | None = None
    attempt: int = 0
    failure: JobFailure | None = None


def phase_of(state: State, hold: str | None, begun_at: int | None) -> Phase:
    """How far a run is. `begun_at`: when it started, if it has been given back since."""
    if state != State.PENDING:
        return Phase(state)
    if begun_at is None:
        return Phase.NOT_STARTED
    return Phase.HELD if hold in (Hold.ERROR, Hold.HISTORY) else Phase.WAITING


def in_phase(phase: Phase | None, filter: JobFilter) -> JobFilter:
    """The filter, only for runs that are that far."""
    match phase:
        case None:
            return filter
        case Phase.NOT_STARTED:
            return msgspec.structs.replace(filter, state=State.PENDING, begun=False)
        case Phase.WAITING | Phase.HELD:
            held = phase == Phase.HELD
            return msgspec.structs.replace(filter, state=State.PENDING, begun=True, held=held)
        case _:
            return msgspec.structs.replace(filter, state=State(phase))


def open_waits(
    waits: Sequence[Awaited], steps: Iterable[Step], names: Mapping[tuple[str, int], str]
) -> list[OpenWait]:
    """What a run waits for, with the unfinished steps that belong to it. `names`: their labels."""
    unfinished = list(steps)
    found: list[OpenWait] = []
    for wait in waits:
        step = next((step for step in unfinished if _waits_for(step, wait)), None)
        if step is None:
            found.append(OpenWait(kind=wait.kind, name=wait.name, until=wait.until))
            continue
        unfinished.remove(step)
        found.append(
            OpenWait(
                kind=wait.kind,
                name=wait.name,
                label=names.get(step.place),
                since=step.started_at,
                until=wait.until,
                request=request_in(step) if step.kind == StepKind.APPROVAL else None,
                attempt=step.attempt,
                failure=None if step.error is None else step.failure,
            )
        )
    return found


def _waits_for(step: Step, wait: Awaited) -> bool:
    match wait.kind:
        case AwaitedKind.EVENT | AwaitedKind.APPROVAL:
            return (step.kind, step.name, step.due_at) == (wait.kind, wait.name, wait.until)
        case AwaitedKind.TIMER:
            return step.kind == StepKind.SLEEP and step.due_at == wait.until
        case AwaitedKind.JOB:
            return wait.name in (awaited_job(step), step.name)
        case AwaitedKind.RETRY:
            return step.state == StepState.RETRYING and step.name == wait.name
        case _:
            return False


def awaited_job(step: Step) -> str | None:
    """The id of the job that a step runs as, while it does."""
    if step.kind != StepKind.JOB or step.state != StepState.WAITING:
        return None
    return read(step.result or "", str, "")


def request_in(step: Step) -> Request:
    """What an approval asks for."""
    return read(step.args or "", Request, ANY_REQUEST)


def encode_waits(waits: Waits) -> str:
    return msgspec.json.encode(waits).decode()


def decode_waits(text: str | None) -> Waits:
    """What cannot be read counts as nothing: the run then looks for itself."""
    try:
        return Waits() if text is None else msgspec.json.decode(text, type=Waits)
    except msgspec.MsgspecError:
        return Waits()


def mention(kind: str, name: str) -> str:
    """How the column `waits` mentions a thing, to find out whether a run waits for it."""
    text = msgspec.json.encode(Awaited(kind, name)).decode()
    return text.removesuffix("}")


def wake_at(waits: Iterable[Awaited], now: int, deadline: int | None) -> int:
    """When the run has to wake up if nothing that it waits for happens."""
    ends = [wait.until for wait in waits if wait.until is not None]
    if deadline is not None:
        ends.append(deadline)
    return min(ends, default=now + FIVE_YEARS_MS)


def encode_failure(failure: JobFailure) -> str:
    return msgspec.json.encode(failure).decode()


def decode_failure(text: str | None) -> JobFailure:
    try:
        return msgspec.json.decode(text or "", type=JobFailure)
    except msgspec.MsgspecError:
        return JobFailure(None, "the record of the failure cannot be read", None)


def id_of_place(job_id: str, scope: str, pos: int) -> str:
    """The id of a step: the same in every attempt, and in every process."""
    return derived_id(job_id, f"{scope}/{pos}")


def branch_of(scope: str, pos: int, index: int) -> str:
    """The scope of one branch of the operation at a place."""
    return f"{prefix_of(scope, pos)}{index}"


def prefix_of(scope: str, pos: int) -> str:
    """How the scopes of all branches of the operation at a place begin."""
    return f"{scope}/{pos}."


def numbered(name: str, taken: Collection[str]) -> str:
    """A name that no other record has: `approval`, `approval#2`, …"""
    if name not in taken:
        return name
    number = 2
    while f"{name}#{number}" in taken:
        number += 1
    return f"{name}#{number}"


def reading_key(step: Step) -> tuple[int, ...]:
    """Sorts steps as people read them: those of a branch follow the step that branches."""
    parts = step.scope.replace(".", "/").split("/")
    inside = [int(part) for part in parts if part.isdecimal()]
    return *inside, step.pos


def base_name(name: str) -> str:
    """The name without its number."""
    return name.partition("#")[0]


def labels(steps: Iterable[Step]) -> dict[tuple[str, int], str]:
    """How people refer to each place: `charge`, `charge#2`, …, in the order in which they read."""
    seen: dict[str, int] = {}
    named: dict[tuple[str, int], str] = {}
    for step in steps:
        count = seen[step.name] = seen.get(step.name, 0) + 1
        named[step.place] = step.name if count == 1 else f"{step.name}#{count}"
    return named
