"""`app.functions`: list the functions of an app and change their status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from duly.errors import InvalidOption, UnknownFunction, WrongStatus
from duly.functions.function import Function
from duly.model.function import MAY_BECOME, FunctionInfo, Published, Status, is_reserved
from duly.model.job import JobFilter, State
from duly.runtime.transaction_guard import is_inside, refuse_inside_mutation

if TYPE_CHECKING:
    from duly.core import Core


class Functions(Mapping[str, Function[..., Any]]):
    """The functions of the app, by name, and the status of every function in the database.

    A status outlives the code: a deleted function stays deleted until it is restored.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    def __getitem__(self, name: str) -> Function[..., Any]:
        return self._core.functions.registered[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._core.functions.registered))

    def __len__(self) -> int:
        return len(self._core.functions.registered)

    def __repr__(self) -> str:
        return f"<functions {', '.join(self)}>"

    def published(self) -> Sequence[FunctionInfo]:
        """Every function in the database, of any service, with its status."""
        store = self._core.ready()
        infos, scheduled = store.functions(), store.scheduled_functions()
        scheduled |= {info.alias_of or info.name for info in infos if info.name in scheduled}
        return [_with_trigger(info, info.name in scheduled) for info in infos]

    def publish(self) -> None:
        """Publish the functions registered here as they are now, replacing earlier versions.

        Workers publish by themselves when they start. Call this only to restore an earlier version,
        or one that another app has replaced: after a rollback, for example.
        """
        refuse_inside_mutation("functions.publish")
        store = self._core.ready()
        store.publish(self._core.functions.published(), self._core.now(), force=True)

    def info(self, function: Function[..., Any] | str) -> FunctionInfo:
        """Return one function; UnknownFunction if it is neither registered here nor published."""
        name = function.name if isinstance(function, Function) else function
        here = self._core.functions.by_any_name(name)
        info = self._info_of(here) if here is not None else self._info_elsewhere(name)
        if info is None:
            known = (each.name for each in self._core.ready().functions())
            raise UnknownFunction(name, [*self._core.functions.registered, *known])
        store = self._core.ready()
        return _with_trigger(info, store.is_scheduled(self._names_of(info.name)))

    def _names_of(self, name: str) -> list[str]:
        """A function's name and its older ones."""
        known = self._core.ready().functions()
        here = [each for each in self._core.functions.names_of(name) if each is not None]
        return [*here, *(info.name for info in known if info.alias_of == name)]

    def _info_of(self, function: Function[..., Any]) -> FunctionInfo | None:
        store = self._core.ready()
        info = store.function(function.name)
        if info is not None:
            return info
        described, now = self._core.functions.published([function.name]), self._core.now()
        if is_inside():
            # Publishing it here would wait for the transaction that this code runs in.
            return _unpublished(described[0], now)
        store.publish(described, now)
        return store.function(function.name)

    def _info_elsewhere(self, name: str) -> FunctionInfo | None:
        """A status set under an old name applies to the function that has it as an alias."""
        store = self._core.ready()
        info = store.function(name)
        if info is None or info.alias_of is None:
            return info
        return store.function(info.alias_of)

    def status(self, function: Function[..., Any] | str) -> Status:
        """Return the status of a function: active, deprecated, paused or deleted."""
        return self.info(function).status

    def pause(
        self, function: Function[..., Any] | str, *, by: str | None = None, note: str | None = None
    ) -> None:
        """Stop starting its jobs; new ones are accepted and wait."""
        self._set("pause", function, Status.PAUSED, by, note)

    def resume(
        self, function: Function[..., Any] | str, *, by: str | None = None, note: str | None = None
    ) -> None:
        """Let the jobs of a paused function start again."""
        self._set("resume", function, Status.ACTIVE, by, note)

    def deprecate(
        self, function: Function[..., Any] | str, *, by: str | None = None, note: str | None = None
    ) -> None:
        """Warn callers of the function; its pending jobs still run."""
        self._set("deprecate", function, Status.DEPRECATED, by, note)

    def delete(
        self, function: Function[..., Any] | str, *, by: str | None = None, note: str | None = None
    ) -> int:
        """Refuse new calls and cancel pending jobs; returns how many were canceled."""
        name = self._set("delete", function, Status.DELETED, by, note)
        store = self._core.ready()
        names = [name, *(info.name for info in store.functions() if info.alias_of == name)]
        waiting = [JobFilter(function=each, state=State.PENDING) for each in names]
        now = self._core.now()
        return sum(store.cancel_matching(filter, "operator", now) for filter in waiting)

    def restore(
        self, function: Function[..., Any] | str, *, by: str | None = None, note: str | None = None
    ) -> None:
        """Make a deleted, deprecated or paused function active again."""
        self._set("restore", function, Status.ACTIVE, by, note)

    def _set(
        self,
        verb: str,
        function: Function[..., Any] | str,
        status: Status,
        by: str | None,
        note: str | None,
    ) -> str:
        refuse_inside_mutation(f"functions.{verb}")
        _refuse_builtin(function)
        name = self.info(function).name
        store, now, allowed = self._core.ready(), self._core.now(), MAY_BECOME[verb]
        if not store.set_status(name, status, allowed, by=by, note=note, now=now):
            raise WrongStatus(name, self.info(name).status, status)
        self._core.functions.refresh()
        if status == Status.ACTIVE:
            store.release_known()
            self._core.wake()
        return name


def _unpublished(described: Published, now: int) -> FunctionInfo:
    """The function as it will be once it is published."""
    fields = msgspec.structs.asdict(described)
    return FunctionInfo(
        **fields,
        published_at=now,
        status=Status.ACTIVE,
        status_by=None,
        status_note=None,
        status_at=None,
    )


def _with_trigger(info: FunctionInfo, scheduled: bool) -> FunctionInfo:
    return msgspec.structs.replace(info, trigger="schedule") if scheduled else info


def _refuse_builtin(function: Function[..., Any] | str) -> None:
    name = function.name if isinstance(function, Function) else function
    if is_reserved(name):
        raise InvalidOption("function", f"{name} is internal to duly; cancel its jobs instead")
