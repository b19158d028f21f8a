"""Runs operations, which are written once, in sync and in async workflows.

An operation is a generator: it yields what touches the store or runs a body, and is sent the
outcome. A sync workflow does that in its own thread; an async one awaits it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from duly.model.job import Hold
from duly.model.workflow import Put
from duly.runtime.execute import Unwound
from duly.runtime.transaction_guard import OutsideWorkflow
from duly.workflows.run import Run, Scope, Suspension

if TYPE_CHECKING:
    from duly.core import Core

T = TypeVar("T")

CANCELED = (
    "asyncio canceled an operation of the workflow: a time limit there is not recorded; use "
    "timeout= of the operation, or ctx.first with ctx.timer"
)


class Effect(ABC):
    """What an operation asks for."""

    @abstractmethod
    def run(self) -> Any:
        """Do it in this thread."""

    @abstractmethod
    async def run_async(self, core: Core) -> Any:
        """Do it without blocking the event loop."""


Op = Generator[Effect, Any, T]


class Do(Effect):
    """Work that may wait for the store."""

    def __init__(self, run: Run, work: Callable[[], Any]) -> None:
        self._run = run
        self._work = work

    def run(self) -> Any:
        with OutsideWorkflow(), self._run.needs_store():
            return self._work()

    async def run_async(self, core: Core) -> Any:
        with OutsideWorkflow(), self._run.needs_store():
            return await core.threads.call(self._work)


class Record(Effect):
    """Writes records; those of other runs are written in the same commit."""

    def __init__(self, run: Run, puts: Sequence[Put]) -> None:
        self._run = run
        self._puts = puts

    def run(self) -> bool:
        with self._run.needs_store():
            return self._run.core.records.put(self._puts)

    async def run_async(self, core: Core) -> bool:
        with self._run.needs_store():
            if _is_alone(core):
                return core.records.put(self._puts)
            stored: bool = await core.threads.join(core.records.put_each, self._puts)
        return stored


def _is_alone(core: Core) -> bool:
    """Whether nothing else runs in the event loop.

    If so, a write need not go to another thread and back, which takes as long as the write.
    """
    # To list the tasks takes long when there are many.
    return len(core.records.running) == 1 and len(asyncio.all_tasks()) == 1


class Written(Effect):
    """Waits until the records that are being written are durable."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def run(self) -> None:
        """In a sync workflow each record is written before the next operation."""

    async def run_async(self, core: Core) -> None:
        await self._run.written()


class Outcome(NamedTuple):
    """How one of several operations went."""

    value: Any = None
    error: Exception | None = None
    suspension: Suspension | None = None

    @property
    def is_done(self) -> bool:
        return self.suspension is None


class Branches(Effect):
    """Several operations, each in its own scope.

    A sync workflow runs them one after the other, an async one side by side.
    """

    def __init__(
        self,
        run: Run,
        operations: Sequence[Callable[[], Op[Any]]],
        has_begun: Callable[[int], bool],
        limit: int | None = None,
        *,
        prefix: str = "",
        until_failed: bool = False,
        until_done: bool = False,
    ) -> None:
        """`prefix`: of the names of their scopes."""
        self._run = run
        self._prefix = prefix
        self._operations = operations
        self._has_begun = has_begun
        self._limit = limit or len(operations) or 1
        self._until_failed = until_failed
        self._until_done = until_done

    def run(self) -> list[Outcome | None]:
        outcomes: list[Outcome | None] = [None] * len(self._operations)
        waiting = 0
        for index in self._begun_first():
            if waiting >= self._limit:
                break
            outcome = outcomes[index] = self._outcome(index)
            waiting += not outcome.is_done
            if self._is_enough(outcome):
                break
        return outcomes

    async def run_async(self, core: Core) -> list[Outcome | None]:
        outcomes: list[Outcome | None] = [None] * len(self._operations)
        left = self._begun_first()
        if self._until_done:
            # One after the other, so that only one of them takes what it waits for.
            for index in left:
                outcome = outcomes[index] = await self._outcome_async(core, index)
                if self._is_enough(outcome):
                    break
            return outcomes
        waiting = 0
        over = False
        error: BaseException | None = None
        running: dict[asyncio.Task[Outcome], int] = {}
        while running or (left and not over and waiting < self._limit):
            while left and not over and waiting + len(running) < self._limit:
                index = left.pop(0)
                running[asyncio.create_task(self._outcome_async(core, index))] = index
            for task in await _next_of(running):
                index = running.pop(task)
                if (raised := _raised_by(task)) is not None:
                    error, over = error or raised, True
                    continue
                outcome = outcomes[index] = task.result()
                waiting += not outcome.is_done
                if self._is_enough(outcome):
                    over = True
                    # The others end at their next operation: nothing will read what they do.
                    self._run.closed.append(self._prefix)
        if error is not None:
            raise error
        return outcomes

    def _outcome(self, index: int) -> Outcome:
        try:
            return Outcome(drive(self._operations[index]()))
        except Suspension as suspension:
            return Outcome(suspension=suspension)
        except Exception as error:
            return self._failed(error)

    async def _outcome_async(self, core: Core, index: int) -> Outcome:
        try:
            return Outcome(await drive_async(core, self._operations[index]()))
        except Suspension as suspension:
            return Outcome(suspension=suspension)
        except Exception as error:
            return self._failed(error)

    def _failed(self, error: Exception) -> Outcome:
        """A branch fails only as a run does; anything else is a mistake, which holds the run.

        The other branches must not continue with their effects, nor the code around them: it would
        find nothing recorded of what it has caught.
        """
        if isinstance(error, self._run.failures):
            return Outcome(error=error)
        raise self._run.unwind(self._run.mistake(error)) from None

    def _begun_first(self) -> list[int]:
        """Those that were started in an earlier claim count for the limit."""
        every = range(len(self._operations))
        if self._limit >= len(every):
            return list(every)
        begun = [index for index in every if self._has_begun(index)]
        return [*begun, *(index for index in every if index not in begun)]

    def _is_enough(self, outcome: Outcome) -> bool:
        return (self._until_done and outcome.is_done) or (
            self._until_failed and outcome.error is not None
        )


class Nested(Effect):
    """Code of a branch, which is the user's."""

    def __init__(self, scope: Scope, call: Callable[[], Any]) -> None:
        self._scope = scope
        self._call = call

    def run(self) -> Any:
        with self._scope.is_current():
            return self._call()

    async def run_async(self, core: Core) -> Any:
        with self._scope.is_current():
            return await self._call()


def drive(operation: Op[T]) -> T:
    """Run an operation in this thread."""
    answer: Any = None
    error: BaseException | None = None
    try:
        while True:
            effect = operation.send(answer) if error is None else operation.throw(error)
            answer = error = None
            try:
                answer = effect.run()
            except BaseException as raised:
                error = raised
    except StopIteration as end:
        value: T = end.value
        return value


async def drive_async(core: Core, operation: Op[T]) -> T:
    """Run an operation without blocking the event loop."""
    answer: Any = None
    error: BaseException | None = None
    try:
        while True:
            effect = operation.send(answer) if error is None else operation.throw(error)
            answer = error = None
            try:
                answer = await effect.run_async(core)
            except BaseException as raised:
                error = raised
    except StopIteration as end:
        value: T = end.value
        return value


async def _next_of(running: Mapping[asyncio.Task[Outcome], int]) -> set[asyncio.Task[Outcome]]:
    """Those that have ended first. If this is canceled, all of them are, and have ended."""
    try:
        return (await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))[0]
    except asyncio.CancelledError:
        # A body that is still running must not outlive the workflow.
        while not all(task.done() for task in running):
            for task in running:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait(running)
        for task in running:
            _raised_by(task)
        raise


def _raised_by(task: asyncio.Task[Outcome]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def hold_if_canceled(run: Run, scope: Scope) -> Unwound | None:
    """Code that lets asyncio cancel an operation depends on a clock that is not recorded."""
    if run.running.canceled or run.ended or scope.suspension is not None:
        return None
    return run.unwind(run.held(Hold.ERROR, CANCELED))
