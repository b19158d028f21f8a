"""Derives the class for async code from the sync one, with one line per verb.

    class AsyncSchedules(Twin[Schedules]):
        create: Final = awaited(Schedules.create)
        list: Final = awaited(Schedules.list, reads=True)

`Final` lets type checkers infer the type from the line itself.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from duly.core import Core

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class AsyncRunner(Protocol[S_co]):
    """An object that can await work done with an S."""

    async def _do(self, work: Callable[[S_co], R], reads: bool) -> R: ...


class Twin(Generic[S_co]):
    """Runs the methods of a sync object in threads, so that the event loop is not blocked."""

    def __init__(self, core: Core, sync: S_co) -> None:
        self._core = core
        self._sync = sync

    async def _do(self, work: Callable[[S_co], R], reads: bool) -> R:
        threads = self._core.threads
        return await (threads.read if reads else threads.call)(partial(work, self._sync))


def awaited(
    verb: Callable[Concatenate[S, P], R], *, reads: bool = False
) -> Callable[Concatenate[AsyncRunner[S], P], Coroutine[Any, Any, R]]:
    """The verb, awaited, with its name, types and docstring.

    `reads`: the verb only reads and is quick, so it does not wait behind writes.
    """

    @wraps(verb)
    async def twin(self: AsyncRunner[S], /, *args: P.args, **kwargs: P.kwargs) -> R:
        # By name, since a subclass may override it.
        work = methodcaller(verb.__name__, *args, **kwargs)
        return await self._do(work, reads)  # pyright: ignore[reportPrivateUsage]

    return twin
