"""Enters `Duly(worker_lifespan=…)`: what the bodies of one process share.

An async one lives in a task on the event loop of async actions, so that it is entered and exited by
the same task, and the clients that it opens can be used by those actions.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, cast

from duly.errors import InvalidOption

WorkerLifespan = Callable[
    [Any],
    AbstractContextManager[Any]
    | AbstractAsyncContextManager[Any]
    | Iterator[Any]
    | AsyncIterator[Any],
]
RunOnLoop = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to its end on the event loop of async actions."""
OPTION = "worker_lifespan"


class Lifespan:
    """The lifespan of one app in this process, and what it has yielded."""

    def __init__(self, make: Callable[[], object] | None) -> None:
        self._make = make
        self._states: list[Any] = []
        self._is_given = False

    @property
    def is_entered(self) -> bool:
        return bool(self._states)

    @property
    def state(self) -> Any:
        """What it has yielded in this process."""
        if self._states:
            return self._states[-1]
        if self._make is None:
            raise InvalidOption(
                OPTION, "there is no state: pass Duly(worker_lifespan=…) a function that yields it"
            )
        raise InvalidOption(
            OPTION,
            "there is no state here: only workers enter it; "
            "in tests, pass state= to override, ctx, async_ctx or tx",
        )

    @contextmanager
    def entered(self, run: RunOnLoop) -> Generator[None]:
        """Within the block, `state` is what it yields. Nothing happens without a lifespan."""
        if self._make is None or self._is_given:
            yield
            return
        manager, state = _enter(self._make, run)
        with _ExitLater(manager), self._sharing(state):
            yield

    @contextmanager
    def given(self, state: Any) -> Generator[None]:
        """Use this state within the block, and do not enter the lifespan; for tests."""
        before, self._is_given = self._is_given, True
        try:
            with self._sharing(state):
                yield
        finally:
            self._is_given = before

    @contextmanager
    def _sharing(self, state: Any) -> Generator[None]:
        self._states.append(state)
        try:
            yield
        finally:
            self._states.pop()


class _ExitLater:
    """Exits a context manager that was entered before, without any exception of the block."""

    def __init__(self, manager: AbstractContextManager[Any]) -> None:
        self._manager = manager

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._manager.__exit__(None, None, None)


class _OnLoop(AbstractContextManager[Any]):
    """An async context manager that is entered and exited by one task of another thread's loop."""

    def __init__(self, manager: AbstractAsyncContextManager[Any], run: RunOnLoop) -> None:
        self._manager = manager
        self._run = run

    def __enter__(self) -> Any:
        return self._run(self._enter())

    def __exit__(self, *_: object) -> None:
        self._run(self._exit())

    async def _enter(self) -> Any:
        self._leave = asyncio.Event()
        entered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(entered))
        await asyncio.wait([entered, self._task], return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            await self._task
        return entered.result()

    async def _live(self, entered: asyncio.Future[Any]) -> None:
        async with self._manager as state:
            entered.set_result(state)
            await self._leave.wait()

    async def _exit(self) -> None:
        self._leave.set()
        await self._task


def _enter(make: Callable[[], object], run: RunOnLoop) -> tuple[AbstractContextManager[Any], Any]:
    try:
        made = make()
        manager = _manager(made, run)
        if manager is not None:
            return manager, manager.__enter__()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise InvalidOption(OPTION, f"it could not be entered: {reason}") from error
    if inspect.iscoroutine(made):
        made.close()
    raise InvalidOption(
        OPTION, f"write a function with one `yield`; it returned {type(made).__name__}"
    )


def _manager(made: object, run: RunOnLoop) -> AbstractContextManager[Any] | None:
    """A context manager for what the function returned; None if there is none."""
    if inspect.isgenerator(made):
        generator = cast("Generator[Any]", made)
        return contextmanager(lambda: generator)()
    if inspect.isasyncgen(made):
        async_generator = cast("AsyncGenerator[Any]", made)
        return _OnLoop(asynccontextmanager(lambda: async_generator)(), run)
    # First: the sync methods of aiohttp.ClientSession only say that it is async.
    if isinstance(made, AbstractAsyncContextManager):
        return _OnLoop(cast("AbstractAsyncContextManager[Any]", made), run)
    if isinstance(made, AbstractContextManager):
        return cast("AbstractContextManager[Any]", made)
    return None
