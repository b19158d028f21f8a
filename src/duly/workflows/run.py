"""One claim of a run: its records, its scopes, and how it ends."""

from __future__ import annotations

import asyncio
import re
import threading
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from duly import fault
from duly.errors import (
    Fail,
    InvalidOption,
    StepFailed,
    StoreError,
    UseCtx,
    WaitTimeout,
    WorkflowTooLong,
)
from duly.functions.events import ANY, decode_event
from duly.functions.function import Function
from duly.model.job import (
    Conflicted,
    Hold,
    Outcome,
    Suspended,
    SystemFailed,
)
from duly.model.keys import decode_rules, encode_rules
from duly.model.stored_values import attempt
from duly.model.text import storable
from duly.model.workflow import (
    MAX_RECORDED_BYTES,
    MAX_RECORDS,
    ROOT,
    Awaited,
    Event,
    Put,
    Step,
    StepKind,
    StepState,
    Waits,
    decode_waits,
    encode_waits,
    wake_at,
)
from duly.nearest import or_nearest
from duly.runtime.execute import MESSAGE_LIMIT, TRACEBACK_LIMIT, Unwound, timeout_outcome

if TYPE_CHECKING:
    from duly.core import Core
    from duly.model.workflow import Fence
    from duly.runtime.program import RunningAttempt
    from duly.store.table import Store
    from duly.store.workflows import RunState

FOREIGN = (
    "a workflow's operations belong to the {0} that runs it; use ctx.gather with ctx.branch "
    "instead of another {0}"
)


INSIDE = (
    "the context of a workflow was used while one of its operations runs; in a branch or a step, "
    "use the context that it is given"
)
FAILURES: tuple[type[Exception], ...] = (StepFailed, WaitTimeout, Fail, WorkflowTooLong)
"""What may fail a run without being a mistake in its code."""
BRANCHES = "branches of a gather or first"
SOON_SECONDS = 0.005
"""How long the result of an action may wait for another record."""


class Suspension(Unwound):
    """The scope waits, so the code in it ends here; it continues from its records."""

    def __init__(self, waits: Sequence[Awaited]) -> None:
        super().__init__(None)
        self.waits = waits


class NeedsStore:
    """Unwinds a run if the store fails in the block."""

    # Not a generator: each record enters it.
    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StoreError):
            raise self._run.unwind(SystemFailed(f"the store failed: {error}")) from None


class Run:
    """A run while it is claimed here."""

    def __init__(
        self,
        core: Core,
        function: Function[..., Any],
        running: RunningAttempt,
        state: RunState,
        *,
        replays: bool = False,
    ) -> None:
        """`replays`: end with the history, and do nothing."""
        self.core = core
        self.running = running
        self.build = core.build
        self.is_async = function.is_async
        self._function = function
        self._event_types: Mapping[str, Any] | None = function.traits.events
        self.failures: tuple[type[BaseException], ...] = (*FAILURES, *function.traits.raises)
        """What fails the run; any other exception is a mistake in its code."""
        self.closed: list[str] = []
        """The prefixes of scopes that end at their next operation."""
        self.approvals: set[str] = set()
        """The names of approvals, including those that are about to be recorded."""
        self.paranoid = core.paranoid
        self.replays = replays
        claim = running.claim
        self.queue = claim.queue
        self.id = claim.id
        self.fence: Fence = (claim.id, claim.token)
        self.mail = state.mail
        self.begun_at = state.begun_at
        self.builds_before = decode_waits(state.waits).builds
        self.deadline = None if claim.timeout_ms is None else state.begun_at + claim.timeout_ms
        self.advanced = False
        """Whether it has recorded anything since it was claimed."""
        self.end: Outcome | None = None
        self.ended = False
        self._unwritten: list[Put] = []
        self._writing: set[asyncio.Task[None]] = set()
        self.spent = 0.0
        """The cost that was reported since it was claimed."""
        self.spending = threading.Lock()
        self.records = {step.place: step for step in state.steps}
        self.last: dict[str, int] = {}
        """The last recorded place of each scope."""
        self.reached: dict[str, int] = {}
        """The last place of each scope that its code has reached, if only with a branch."""
        for step in state.steps:
            self._reach(step)
        self.bytes = sum(_size(step) for step in state.steps)
        self.events: list[Event] = list(state.events)
        self._limits = state.limits

    @property
    def store(self) -> Store:
        return self.core.ready()

    def now(self) -> int:
        return self.core.clock.now()

    def is_quiet(self) -> bool:
        """Whether log lines were stored before: the code that runs repeats what it has done."""
        scope = _current.get()
        return scope is not None and scope.run is self and scope.replaying

    # How it ends

    def mistake(self, error: BaseException) -> Outcome:
        """How the run ends after an exception that it does not declare: its code has to change."""
        return self.held(Hold.ERROR, *self.for_people(error))

    def for_people(self, error: BaseException) -> tuple[str, str]:
        """The message and the traceback of an exception, without redacted arguments."""
        return shown(error, partial(self._scrub, args=self.running.claim.args))

    def _scrub(self, text: str, args: str) -> str:
        for scrub, of in [(self._function.signature.scrub, args), *self.running.failed_calls]:
            text = scrub(text, of)
        return text

    def unwind(self, outcome: Outcome | None) -> Unwound:
        """End the run's code; the first reason counts. To be raised."""
        if not self.ended:
            self.end, self.ended = outcome, True
        return Unwound(self.end)

    def suspended(self, waits: Sequence[Awaited]) -> Suspended:
        """It waits, and leaves nothing in this process."""
        return Suspended(
            run_at=wake_at(waits, self.now(), self.deadline),
            waits=encode_waits(Waits(tuple(waits))),
            mail=self.mail,
            advanced=self.advanced,
            limits=self._limits_when_begun(),
        )

    def held(self, hold: Hold, message: str, traceback: str | None = None) -> Suspended:
        """It cannot continue with this code."""
        tried = (*(b for b in self.builds_before if b != self.build), self.build)
        return Suspended(
            run_at=self.running.claim.run_at,
            waits=encode_waits(Waits(builds=tried)),
            advanced=self.advanced,
            hold=hold,
            error_kind=None,
            message=message,
            traceback=traceback,
            limits=self._limits_when_begun(),
        )

    def _limits_when_begun(self) -> str | None:
        """A run that has started is not another start that counts for a rate."""
        if self._limits is None:
            return None
        rules = attempt(lambda: decode_rules(self._limits or ""), None)
        if rules is None:
            return None
        return encode_rules(msgspec.structs.replace(rules, rate=None, per=None))

    def taken_away(self) -> Unwound:
        """Another worker has the run, or it has ended; what is recorded says how it continues."""
        return self.unwind(Conflicted("the workflow was taken over by another worker"))

    def needs_store(self) -> NeedsStore:
        """If the store fails in the block, the run continues later; its records tell from where."""
        return NeedsStore(self)

    def reach(self, point: str) -> None:
        """Reach a fault point, as if the store were used there."""
        with self.needs_store():
            fault.point(point)

    def check(self) -> None:
        """Raise if the run must not do anything any more."""
        if self.ended:
            raise Unwound(self.end)
        if self.running.canceled:
            raise self.unwind(None)
        if self.running.stopping or (self.running.is_silent and self.running.is_silent()):
            raise self.unwind(self.suspended_now())
        if self.replays:
            return
        if self.paranoid and self.advanced:
            # Whatever the code keeps in memory is lost after each operation.
            raise self.unwind(self.suspended_now())
        if self.deadline is not None and self.now() >= self.deadline:
            raise self.unwind(timeout_outcome(self.running.claim))

    def suspended_now(self) -> Suspended:
        """It continues elsewhere, immediately."""
        outcome = self.suspended(())
        return msgspec.structs.replace(outcome, run_at=self.running.claim.run_at)

    def spend(self, amount: float) -> None:
        """Add to the cost of the run."""
        # The sum is stored, not the amount, so a repeated write counts once.
        with self.spending:
            self.store.set_cost(*self.fence, self.spent + amount)
            self.spent += amount

    # Events

    def check_event(self, name: str) -> None:
        """Refuse to wait for an event that no sender may send."""
        known = self._event_types
        if known is not None and name not in known:
            raise InvalidOption(
                "name", f"the workflow declares no event {name!r}{or_nearest(name, known)}"
            )

    def payload(self, name: str, text: str | None, kind: Any) -> Any:
        """The payload of an event, in the type that the wait or the function declares."""
        if kind is ANY and self._event_types is not None:
            kind = self._event_types[name]
        return decode_event(name, text, kind)

    # What it records

    def compare(self, record: Step | None, args: str) -> None:
        """In tests, find code that does not do the same when it runs again."""
        if not self.paranoid and not self.replays:
            return
        if record is not None and record.args != args:
            raise AssertionError(
                f"{record.name} was recorded with {record.args}, but the workflow calls it with "
                f"{args} when it runs again; use ctx.now(), ctx.random() or ctx.uuid(), or "
                "compute the value in a step"
            )

    def will_record(self, size: int) -> None:
        """Refuse to record more than the limits, before anything is written."""
        if len(self.records) >= MAX_RECORDS:
            message = f"a run can record at most {MAX_RECORDS:,} steps; use ctx.run or a child"
        elif self.bytes + size > MAX_RECORDED_BYTES:
            message = f"a run can record at most {MAX_RECORDED_BYTES >> 20} MiB of results"
        else:
            return
        raise WorkflowTooLong(message)

    def note(self, step: Step) -> None:
        """A record was written."""
        before = self.records.get(step.place)
        self.bytes += _size(step) - (_size(before) if before else 0)
        self.records[step.place] = step
        self._reach(step)
        self.advanced = True

    def _reach(self, step: Step) -> None:
        if step.kind == StepKind.APPROVAL:
            self.approvals.add(step.name)
        scope, pos = step.place
        self.last[scope] = max(pos, self.last.get(scope, -1))
        while self.reached.get(scope, -1) < pos:
            self.reached[scope] = pos
            if scope == ROOT:
                return
            scope, place = scope.rsplit("/", 1)
            pos = int(place.partition(".")[0])

    def put_soon(self, put: Put) -> None:
        """Write a record with the next one; if none comes soon, by itself."""
        self._unwritten.append(put)
        if len(self._unwritten) == 1:
            asyncio.get_running_loop().call_later(SOON_SECONDS, self._begin_writing)

    def take_unwritten(self, scope: str = ROOT) -> list[Put]:
        """The records of a scope and its branches that wait for others; the caller writes them.

        Not those of other branches: these would continue before the caller has written them.
        """
        puts = [put for put in self._unwritten if is_within(put.step.scope, scope)]
        if puts:
            self._unwritten = [put for put in self._unwritten if put not in puts]
        return puts

    @property
    def is_writing(self) -> bool:
        """Whether records are being written that no operation waits for."""
        return bool(self._writing)

    async def written(self) -> None:
        """Wait for them: what happens next may depend on what they record."""
        while self._writing:
            await asyncio.wait(set(self._writing))

    def bring_back(self, puts: list[Put]) -> None:
        """They were not written."""
        self._unwritten = [*puts, *self._unwritten]

    def _begin_writing(self) -> None:
        if self._unwritten:
            task = asyncio.get_running_loop().create_task(self._write(self.take_unwritten()))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def _write(self, puts: list[Put]) -> None:
        try:
            stored = await self.core.threads.join(self.core.records.put_each, puts)
        except Exception:
            self.bring_back(puts)
        else:
            if not stored:
                self.taken_away()

    async def write_the_rest(self) -> None:
        """Called when the code has ended: nothing that it did may be missing."""
        await self.written()
        puts = self.take_unwritten()
        with suppress(Unwound), self.needs_store():
            if puts and not await self.core.threads.join(self.core.records.put_each, puts):
                self.taken_away()

    def result(self, step: Step) -> str | None:
        """The recorded result; a long one is read now."""
        if step.result_bytes is None:
            return step.result
        return self.store.result_of_step(self.id, step)


def _size(step: Step) -> int:
    return step.result_bytes or len(step.result or "")


class Scope:
    """The operations of the function itself, or of one branch, in order."""

    def __init__(
        self, run: Run, name: str = ROOT, cutoff: int | None = None, *, is_over: bool = False
    ) -> None:
        """`is_over`: everything that happens in it is recorded."""
        self.run = run
        self.name = name
        self.pos = 0
        self.suspension: Suspension | None = None
        self.cutoff = cutoff
        """Events that were sent later than this do not count: a timer was first."""
        self.is_over = is_over
        self._owner: object = current_owner()
        self._operates = False

    @contextmanager
    def is_current(self) -> Generator[None]:
        """The block is the code of this scope."""
        before = _current.set(self)
        try:
            yield
        finally:
            _current.reset(before)

    @contextmanager
    def operating(self) -> Generator[None]:
        """One operation of the code at a time. One that fails without a record takes no place."""
        self._check_owner()
        self._operates, pos = True, self.pos
        try:
            yield
        except Exception:
            if (self.name, pos) not in self.run.records:
                self.pos = pos
            raise
        finally:
            self._operates = False

    @property
    def replaying(self) -> bool:
        """Whether the code has reached the next operation before."""
        return self.is_over or self.run.reached.get(self.name, -1) >= self.pos

    def check(self) -> None:
        if self.suspension is not None:
            raise self.suspension
        self.run.check()
        if any(self.name.startswith(prefix) for prefix in self.run.closed):
            raise self.suspend(())

    def _check_owner(self) -> None:
        if current_owner() is not self._owner:
            kind = "task" if isinstance(self._owner, asyncio.Task) else "thread"
            raise UseCtx(FOREIGN.format(kind))
        if self._operates:
            raise UseCtx(INSIDE)

    def suspend(self, waits: Sequence[Awaited]) -> Suspension:
        """End the code of this scope until one of these things happens. To be raised."""
        self.suspension = Suspension(waits)
        return self.suspension

    def skip(self) -> int:
        """Take a place without a record."""
        self._check_owner()
        self.check()
        pos = self.pos
        self.pos += 1
        return pos

    def place(self, kind: str, name: str, aliases: Sequence[str] = ()) -> tuple[int, Step | None]:
        """The next place, and its record if there is one.

        A record of something else means that the code has changed since.
        """
        self.check()
        pos = self.pos
        record = self.run.records.get((self.name, pos))
        wanted = f"{kind} {name}"
        if record is None:
            if self.is_over or self._is_behind:
                raise self._mismatch(pos, "nothing", wanted)
            if self._has_branches and kind not in (StepKind.GATHER, StepKind.FIRST):
                raise self._mismatch(pos, BRANCHES, wanted)
            self.run.will_record(0)
        elif record.kind != kind or not any(_is_named(record, n) for n in (name, *aliases)):
            raise self._mismatch(pos, f"{record.kind} {record.name}", wanted)
        is_over = record is not None and (is_final(record) or self.run.last[self.name] > pos)
        if self.run.replays and not is_over:
            raise self.run.unwind(None)
        self.pos += 1
        return pos, record

    @property
    def _is_behind(self) -> bool:
        """Whether later operations are recorded."""
        return self.run.last.get(self.name, -1) >= self.pos

    @property
    def _has_branches(self) -> bool:
        """Whether branches of this operation, or of a later one, have recorded anything."""
        return self.run.reached.get(self.name, -1) >= self.pos

    def check_all_read(self) -> None:
        """The code has ended: records that it has not read mean that it has changed."""
        if self._is_behind and not self.run.ended:
            after = min(
                (
                    step
                    for step in self.run.records.values()
                    if step.scope == self.name and step.pos >= self.pos
                ),
                key=lambda step: step.pos,
            )
            raise self._mismatch(after.pos, f"{after.kind} {after.name}", "the end")
        if self._has_branches and not self.run.ended:
            raise self._mismatch(self.pos, BRANCHES, "the end")

    def has_not_failed(self, pos: int) -> Unwound:
        """The history says that a branch has failed, but in the code it has not. To be raised."""
        return self._mismatch(pos, "a branch that fails", "one that succeeds")

    def _mismatch(self, pos: int, recorded: str, wanted: str) -> Unwound:
        where = f"operation {pos + 1}" + (f" of branch {self.name}" if self.name else "")
        message = (
            f"the history does not fit the code: at {where} the history has {recorded}, but the "
            f"code has {wanted}"
        )
        return self.run.unwind(self.run.held(Hold.HISTORY, message))


def shown(error: BaseException, scrub: Callable[[str], str]) -> tuple[str, str]:
    """The message and the traceback of an exception, however oddly it behaves."""
    name = type(error).__name__
    try:
        text = scrub(str(error))
    except Exception:
        text = "(its message cannot be shown)"
    message = storable(f"{name}: {text}" if text else name, MESSAGE_LIMIT)
    trace = scrub("".join(traceback.format_exception(error)))
    return message, storable(trace[-TRACEBACK_LIMIT:], TRACEBACK_LIMIT)


_current: ContextVar[Scope | None] = ContextVar("duly_scope", default=None)
_NUMBER = re.compile(r"#[0-9]+")


def _is_named(record: Step, name: str) -> bool:
    """Approvals with the same name are numbered."""
    rest = record.name.removeprefix(name)
    return record.name == name or (
        record.kind == StepKind.APPROVAL
        and rest != record.name
        and _NUMBER.fullmatch(rest) is not None
    )


def current_owner() -> object:
    """The task, or otherwise the thread, that runs the code."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task if task is not None else threading.current_thread()


def is_within(scope: str, branch: str) -> bool:
    """Whether a scope is that branch, or one in it."""
    return scope == branch or scope.startswith(f"{branch}/")


def is_final(step: Step) -> bool:
    """Whether nothing about the step will change."""
    return step.state in (StepState.SUCCEEDED, StepState.FAILED, StepState.TIMED_OUT)
