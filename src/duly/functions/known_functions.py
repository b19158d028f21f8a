"""The functions that an app knows, and which calls to them are allowed.

They are registered here, declared here while their code is in another service, or published by
workers that have the code. An operator may have paused, deprecated or deleted any of them.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec

from duly.clock import os_monotonic
from duly.errors import (
    FunctionConflict,
    FunctionDeleted,
    InvalidOption,
    SignatureMismatch,
    StoreError,
    UnknownFunction,
)
from duly.functions.around import Wrapper, add_wrapper, body_of
from duly.functions.function import Call, Function, StoredTarget, with_hook
from duly.functions.hooks import HookList, hooks_of
from duly.functions.new_job import under_limit
from duly.functions.published import Declared, by_name, options_of, schema_of
from duly.model.attempt import Hook, Hooks
from duly.model.function import RESERVED, FunctionInfo, Published, Status, is_reserved
from duly.model.job import JobFilter, JobRecord, State, TrackedJob
from duly.model.signature import check_against
from duly.runtime.transaction_guard import is_inside
from duly.store.table import Store

SAMPLE_ID = "00000000-0000-0000-0000-000000000000"
STATUS_SECONDS = 1.0
"""How old the known status of functions may be when a call is checked."""

F = TypeVar("F", bound=Function[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


class FunctionHost(Protocol):
    """The app, as far as its functions need it."""

    @property
    def name(self) -> str: ...

    @property
    def is_ready(self) -> bool:
        """Whether this process is already connected."""
        ...

    def ready(self) -> Store: ...


class KnownFunctions:
    """The functions that can be called through one app."""

    def __init__(self, app: FunctionHost, builtins: Mapping[str, Function[..., Any]]) -> None:
        self._app = app
        self.builtins = dict(builtins)
        """duly's own functions, which every worker has and which are not published."""
        self.registered: dict[str, Function[..., Any]] = {}
        self.revision = 0
        """Increases whenever a function is registered."""
        self.wrappers: list[Wrapper] = []
        """What `@app.around` puts around every body, the outermost first."""
        self.hooks = HookList()
        """What `@app.on_start` and its siblings have declared."""
        self.aliases: dict[str, str] = {}
        self.declared: dict[str, Declared[..., Any]] = {}
        self._statuses: Mapping[str, Status] = {}
        self._elsewhere: dict[str, tuple[float, Function[..., Any]]] = {}
        """Functions of other services, and until when their published form is considered fresh."""
        self._fresh_until = 0.0

    def forget(self) -> None:
        """Drop everything read from a store; for tests that replace the store."""
        self._fresh_until = 0.0
        self._elsewhere.clear()

    def register(self, function: F) -> F:
        for name in (function.name, *function.traits.aliases):
            _refuse_reserved(name)
            known = self.by_any_name(name)
            if known is not None and not function.is_redefinition_of(known):
                raise FunctionConflict(name, known.source(), function.source())
        self.registered[function.name] = function
        self.aliases |= dict.fromkeys(function.traits.aliases, function.name)
        self.revision += 1
        return function

    def wrap(self, wrapper: Wrapper) -> None:
        add_wrapper(self.wrappers, wrapper)
        # Running workers take the functions again.
        self.revision += 1

    def hook(self, state: State, hook: Hook) -> None:
        self.hooks.add(state, hook)
        self.revision += 1

    def hooks_of(self, function: Function[..., Any]) -> Hooks:
        """The hooks of a function; duly's own functions have none."""
        return {} if function.name in self.builtins else hooks_of(function, self.hooks)

    def body_of(self, function: Function[..., Any]) -> Callable[..., Any]:
        """The body of a function as duly calls it; duly's own functions have no wrappers."""
        return body_of(function, () if function.name in self.builtins else self.wrappers)

    def by_any_name(self, name: str) -> Function[..., Any] | None:
        return self.registered.get(self.aliases.get(name, name))

    def known(self, name: str) -> Function[..., Any] | None:
        """As by_any_name, including functions that cannot be called by name."""
        return self.builtins.get(name) or self.by_any_name(name)

    def names_of(self, name: str | None) -> list[str | None]:
        """A function's name and the names under which its jobs may still be stored."""
        known = None if name is None else self.by_any_name(name)
        return [name] if known is None else [known.name, *known.traits.aliases]

    def for_each_name(self, filter: JobFilter) -> list[JobFilter]:
        """The filter, once for each current or former name of its function."""
        names = self.names_of(filter.function)
        return [msgspec.structs.replace(filter, function=name) for name in names]

    def function(self, name: str) -> Function[..., Any]:
        known = self.by_any_name(name)
        return by_name(self._published(name)) if known is None else known

    def info(self, name: str) -> FunctionInfo | None:
        """A function as its workers have published it; an older name leads to the current one."""
        store = self._app.ready()
        info = store.function(name)
        if info is not None and info.alias_of is not None:
            return store.function(info.alias_of)
        return info

    def _published(self, name: str) -> FunctionInfo:
        info = self._app.ready().function(name)
        if info is None:
            raise UnknownFunction(name, self.registered)
        return info

    def status_of(self, name: str) -> Status:
        """The status that operators gave a function, as far as it is known here."""
        self._know_statuses()
        return self._statuses.get(name, Status.ACTIVE)

    def is_here(self, function: object) -> bool:
        """Whether its code is in this process, so that a call can be checked without the store."""
        if not isinstance(function, Function):
            return True
        hook = function.options.on_complete
        is_elsewhere = isinstance(function, Declared | StoredTarget)
        return not is_elsewhere and (hook is None or self.is_here(hook))

    def has_code_of(self, function: Function[..., Any]) -> bool:
        """Whether this process can run the function itself."""
        known = self.registered.get(function.name)
        return known is not None and known.signature is function.signature

    def admit(self, call: Call[R], seen: dict[str, FunctionInfo | None] | None = None) -> Call[R]:
        """Check a call and return it ready to be enqueued; functions of another app are refused.

        `seen`: published functions that were read from the store, for calls admitted together.
        """
        self._know_statuses()
        function = call.function
        status = self._statuses.get(function.name)
        if status == Status.DELETED:
            raise FunctionDeleted(function.name)
        if status == Status.DEPRECATED:
            warnings.warn(f"function {function.name!r} is deprecated", DeprecationWarning, 4)
        return self.admitted(call, seen)

    def admitted(
        self, call: Call[R], seen: dict[str, FunctionInfo | None] | None = None
    ) -> Call[R]:
        """The same, whatever the status of the function."""
        function = call.function
        if isinstance(function, Declared):
            return self._admit_declared(function, call.args, {} if seen is None else seen)
        if isinstance(function, StoredTarget):
            return self._with_hook(Call(function.looked_up(self._app.ready()), call.args))
        if not self.has_code_of(function):
            raise UnknownFunction(function.name, self.registered)
        return self._with_hook(call)

    def _with_hook(self, call: Call[R], argument: str = "job_id") -> Call[R]:
        """The call, with its hook ready to be enqueued."""
        hook = call.function.options.on_complete
        if hook is None:
            return call
        admitted = self.admit_hook(hook, argument)
        return call if admitted is hook else Call(with_hook(call.function, admitted), call.args)

    def admit_hook(self, hook: Function[..., Any], argument: str) -> Function[..., Any]:
        """Check that a function can be a hook: it must take that argument."""
        return self.admit(Call(hook, hook.signature.encode((), {argument: SAMPLE_ID}))).function

    def _admit_declared(
        self, function: Declared[..., R], args: str, seen: dict[str, FunctionInfo | None]
    ) -> Call[R]:
        if function.name not in seen:
            seen[function.name] = self._app.ready().function(function.name)
        info = seen[function.name]
        if info is None:
            return Call(function.as_published(None), args)
        check_against(function.name, schema_of(info), args)
        return self._with_hook(Call(self._as_published(function, info), args))

    def under_limit(self, job: TrackedJob) -> TrackedJob:
        """A job that is stored again, with the limit that its function has now."""
        function = self.by_any_name(job.function) or self._published_elsewhere(job.function)
        # Jobs whose arguments no longer fit have no key, and do not run either.
        with contextlib.suppress(SignatureMismatch):
            return job if function is None else under_limit(Call(function, job.args), job)
        return job

    def hook_of(self, name: str) -> Function[..., Any] | None:
        """The hook that a function has now."""
        function = self.by_any_name(name) or self._published_elsewhere(name)
        return None if function is None else function.options.on_complete

    def _as_published(self, function: Declared[P, R], info: FunctionInfo) -> Declared[P, R]:
        name = options_of(info).on_complete
        if name is None or "on_complete" in function.changes:
            return function.as_published(info)
        return function.as_published(info, self._hook_elsewhere(name))

    def _hook_elsewhere(self, name: str) -> Function[..., Any]:
        """The hook of a function elsewhere, without a hook itself: hooks of hooks do not run."""
        known = self.by_any_name(name)
        if known is not None:
            return known
        info = self._published(name)
        return by_name(info).as_published(info)

    def _published_elsewhere(self, name: str) -> Function[..., Any] | None:
        """A function whose code is in other workers, if they have published it."""
        known = self._elsewhere.get(name)
        if known is None or os_monotonic() >= known[0]:
            info = self.info(name)
            if info is None:
                # Do not cache this: it may be published at any time.
                return None
            until = os_monotonic() + STATUS_SECONDS
            known = self._elsewhere[name] = until, self._as_published(by_name(info), info)
        return known[1]

    def published(self, names: Iterable[str] | None = None) -> list[Published]:
        """The functions as they are published."""
        chosen = self.without_faulty() if names is None else names
        return [row for name in chosen for row in self.registered[name].published(self._app.name)]

    def without_faulty(self) -> dict[str, Function[..., Any]]:
        """The functions whose type hints can be resolved."""
        return {name: f for name, f in dict(self.registered).items() if f.signature.is_sound()}

    def result_decoder(self, record: JobRecord) -> Callable[[str | None], Any]:
        """How a stored result is decoded: by the return annotation if the function is known."""
        function = self.known(record.function)
        return function.signature.decode_result if function else _plain_json

    def is_fresh(self) -> bool:
        """Whether a call can be checked without a query."""
        return self._app.is_ready and os_monotonic() < self._fresh_until

    def keep_fresh(self) -> None:
        """Refresh before a transaction begins; during it, the state at its beginning counts.

        A query on another connection meanwhile could wait forever, if all of a pooler's connections
        are in transactions that do the same.
        """
        if not self.is_fresh():
            self.refresh()

    def _know_statuses(self) -> None:
        if not self._fresh_until or not is_inside():
            self.keep_fresh()

    def refresh(self) -> None:
        """Read the status of all functions from the store."""
        self._statuses = self._app.ready().statuses()
        self._fresh_until = os_monotonic() + STATUS_SECONDS

    def callable_now(self, name: str) -> Function[..., Any]:
        """A function by its name; published functions are cached for a second."""
        known = self.by_any_name(name)
        if known is not None:
            return known
        elsewhere = self._published_elsewhere(name)
        if elsewhere is None:
            raise UnknownFunction(name, self.registered)
        return elsewhere

    def knows(self, name: str) -> bool:
        """Whether a function and its hook are registered here, or published by other workers."""
        try:
            self.callable_now(name)
        except UnknownFunction:
            return False
        except StoreError:
            raise
        except Exception:  # the tick that calls it will report the problem
            return True
        return True

    def declare(self, function: Declared[P, R]) -> Declared[P, R]:
        """Remember what a declaration redacts, until a worker has published the function."""
        _refuse_reserved(function.name)
        self.declared[function.name] = function
        return function


def _refuse_reserved(name: str) -> None:
    if is_reserved(name):
        raise InvalidOption("name", f"{name!r}: names that start with {RESERVED!r} are reserved")


def _plain_json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
