"""The functions of an app, and what operators decide about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from duly.errors import UnknownFunction
from duly.functions import Function
from duly.inside import refuse_inside_mutation
from duly.model.function import FunctionInfo, Status, check_change, check_resume
from duly.model.job import JobFilter, State

if TYPE_CHECKING:
    from duly.core import Core


class Functions(Mapping[str, Function[..., Any]]):
    """Every function registered here, by name; and the status of any function in the database.

    A status outlives the code: what an operator deleted stays deleted until it is restored.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def __getitem__(self, name: str) -> Function[..., Any]:
        return self._core.functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._core.functions))

    def __len__(self) -> int:
        return len(self._core.functions)

    def __repr__(self) -> str:
        return f"<functions {', '.join(self)}>"

    def published(self) -> Sequence[FunctionInfo]:
        """Every function in the database, of whichever service, with its status."""
        return self._core.ready().functions()

    def publish(self) -> None:
        """Describe the functions registered here as they are now, whatever was published before.

        Workers do this by themselves when they start; only what was published before and replaced,
        or what another app has published, has to be forced: after a roll-back, for example.
        """
        store = self._core.ready()
        store.publish(self._core.published(), self._core.now(), force=True)

    def info(self, function: Function[..., Any] | str) -> FunctionInfo:
        """One of them; UnknownFunction if it is neither registered here nor published."""
        name = function.name if isinstance(function, Function) else function
        store = self._core.ready()
        info = store.function(name)
        if info is None and name in self._core.functions:
            store.publish(self._core.published([name]), self._core.now())
            info = store.function(name)
        if info is None:
            raise UnknownFunction(name, self._core.functions)
        # What is decided about an old name holds for the function that answers to it.
        return info if info.alias_of is None else self.info(info.alias_of)

    def status(self, function: Function[..., Any] | str) -> Status:
        return self.info(function).status

    def pause(
        self, function: Function[..., Any] | str, *, by: str | None = None, note: str | None = None
    ) -> None:
        """Start no more of its jobs; new ones are accepted and wait."""
        self._set(function, Status.PAUSED, by, note)

    def resume(
        self, function: Function[..., Any] | str, *, by: str | None = None, note: str | None = None
    ) -> None:
        """Start jobs of a paused function again."""
        info = self._info_to_change("resume", function)
        check_resume(info.name, info.status)
        self._store(info, Status.ACTIVE, by, note)

    def deprecate(
        self, function: Function[..., Any] | str, *, by: str | None = None, note: str | None = None
    ) -> None:
        """Let pending jobs finish, and warn whoever calls it."""
        self._set(function, Status.DEPRECATED, by, note)

    def delete(
        self, function: Function[..., Any] | str, *, by: str | None = None, note: str | None = None
    ) -> int:
        """Accept no more calls, and cancel those that wait; how many there were."""
        name = self._set(function, Status.DELETED, by, note)
        waiting = JobFilter(function=name, state=State.PENDING)
        return self._core.ready().cancel_matching(waiting, "operator", self._core.now())

    def restore(
        self, function: Function[..., Any] | str, *, by: str | None = None, note: str | None = None
    ) -> None:
        """Make a deleted, deprecated or paused function active again."""
        info = self._info_to_change("restore", function)
        self._store(info, Status.ACTIVE, by, note)

    def _info_to_change(self, verb: str, function: Function[..., Any] | str) -> FunctionInfo:
        refuse_inside_mutation(f"functions.{verb}")
        return self.info(function)

    def _set(
        self, function: Function[..., Any] | str, status: Status, by: str | None, note: str | None
    ) -> str:
        info = self._info_to_change(status, function)
        check_change(info.name, info.status, status)
        self._store(info, status, by, note)
        return info.name

    def _store(self, info: FunctionInfo, status: Status, by: str | None, note: str | None) -> None:
        store = self._core.ready()
        store.set_status(info.name, status, by, note, self._core.now())
        self._core.refresh()
        if status == Status.ACTIVE:
            store.release_known()
            self._core.wake()
