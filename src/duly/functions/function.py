"""`Function`: a registered callable, its options, and how it is called later."""

# What callers without a type checker hand in is not always what the types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from duly.errors import InvalidOption, InvalidTime
from duly.functions.checks import check_queue, check_text, words_of
from duly.functions.times import Delay, length_ms, seconds_of
from duly.model.function import Published, PublishedOptions
from duly.model.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, MAX_PRIORITY, Kind
from duly.model.keys import Limit, Unique, check_key
from duly.model.retry import Retry, encode_retry
from duly.model.signature import Signature

if TYPE_CHECKING:
    from duly.store.table import Store

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Isolate = Literal["process"]
RetryOn = type[BaseException] | Sequence[type[BaseException]]


class Options(msgspec.Struct, frozen=True):
    """How a job is run, apart from its arguments."""

    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    timeout: Delay | None = None
    expires: Delay | datetime | None = None
    owner: str | None = None
    tags: tuple[str, ...] = ()
    retry: Retry | None = None
    on_complete: Any = None
    """A function that is called with the job's id when it has ended, however it ended."""
    unique: Unique | None = None
    limit: Limit | None = None
    debounce: Delay | None = None
    idempotency_key: str | None = None

    def __post_init__(self) -> None:
        check_queue(self.queue)
        if self.owner is not None:
            check_text("owner", self.owner)
        for tag in self.tags:
            check_text("tags", tag)
        if type(self.priority) is not int or not 0 <= self.priority <= MAX_PRIORITY:
            raise InvalidOption("priority", f"must be 0 to {MAX_PRIORITY}, not {self.priority!r}")
        if self.timeout is not None and not seconds_of("timeout", self.timeout) > 0:
            raise InvalidOption("timeout", "must be positive")
        if self.expires is not None:
            _check_expires(self.expires)
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise InvalidOption("retry", f"give a Retry(...), not {self.retry!r}")
        _check_keys(self)
        if self.on_complete is not None and not isinstance(self.on_complete, Function):
            raise InvalidOption(
                "on_complete", f"give a function of the app's: {self.on_complete!r}"
            )


class Traits(msgspec.Struct, frozen=True):
    """What a function is by its decorator, the same for every call."""

    aliases: tuple[str, ...] = ()
    internal: bool = False
    alone: bool = False
    group: bool = False
    retry_on: tuple[type[BaseException], ...] = ()
    isolate: Isolate | None = None

    def __post_init__(self) -> None:
        for alias in self.aliases:
            check_text("aliases", alias)
        for kind in self.retry_on:
            if not _is_exception(kind):
                raise InvalidOption("retry_on", f"give classes of exceptions, not {kind!r}")
        if self.isolate not in (None, "process"):
            raise InvalidOption("isolate", f'give "process" or None, not {self.isolate!r}')


PLAIN = Traits()


class Call(Generic[R_co]):
    """A function with its arguments, not yet enqueued: what `bind` gives and `run_many` takes."""

    __slots__ = ("args", "function")

    def __init__(self, function: Function[..., R_co], args: str) -> None:
        self.function: Function[..., R_co] = function
        self.args: str = args

    def __repr__(self) -> str:
        return f"<call of {self.function.name}>"


class Function(Generic[P, R_co]):
    """A registered function. Hand it to `run`, `run_after` or `run_at` to call it later."""

    kind: Kind

    def __init__(
        self,
        body: Callable[..., Any],
        name: str,
        options: Options,
        traits: Traits = PLAIN,
        signature: Signature | None = None,
    ) -> None:
        self.body = body
        self.name = name
        self.options = options
        self.traits = traits
        self.signature: Signature = signature or Signature(body, name)
        if name in traits.aliases:
            raise InvalidOption("aliases", f"{name!r} is the name itself")
        self.__name__, self.__qualname__ = body.__name__, body.__qualname__
        self.__module__, self.__doc__ = body.__module__, body.__doc__

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"

    @property
    def is_async(self) -> bool:
        return False

    @property
    def internal(self) -> bool:
        """Whether only code may call it, and not the HTTP API."""
        return self.traits.internal

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """This function with these arguments, checked now, to be enqueued later."""
        return Call(self, self.signature.encode(args, kwargs))

    def using(
        self,
        *,
        queue: str | UnsetType = UNSET,
        priority: int | UnsetType = UNSET,
        timeout: Delay | UnsetType | None = UNSET,
        expires: Delay | datetime | UnsetType | None = UNSET,
        owner: str | UnsetType | None = UNSET,
        tags: Sequence[str] | UnsetType = UNSET,
        retry: Retry | UnsetType | None = UNSET,
        on_complete: Function[..., Any] | UnsetType | None = UNSET,
        unique: Unique | UnsetType | None = UNSET,
        limit: Limit | UnsetType | None = UNSET,
        debounce: Delay | UnsetType | None = UNSET,
        idempotency_key: str | UnsetType | None = UNSET,
    ) -> Function[P, R_co]:
        """The same function with other options for the calls made through it.

        What is not given stays as it was decorated; None takes an option away.
        """
        given = {
            "queue": queue,
            "priority": priority,
            "timeout": timeout,
            "expires": expires,
            "owner": owner,
            "tags": UNSET if tags is UNSET else words_of("tags", tags),
            "retry": retry,
            "on_complete": on_complete,
            "unique": unique,
            "limit": limit,
            "debounce": debounce,
            "idempotency_key": idempotency_key,
        }
        return self._with({key: value for key, value in given.items() if value is not UNSET})

    def _with(self, changes: Mapping[str, Any]) -> Function[P, R_co]:
        options = msgspec.structs.replace(self.options, **changes)
        return type(self)(self.body, self.name, options, self.traits, self.signature)

    def published(self, app: str) -> list[Published]:
        """How the function, and each of its aliases, is described to everybody."""
        schema = self.signature.schema_text
        options = msgspec.json.encode(published_options(self.options)).decode()
        names: list[tuple[str, str | None]] = [(self.name, None)]
        names += [(alias, self.name) for alias in self.traits.aliases]
        return [
            Published(name, self.kind, app, schema, options, self.internal, alias_of)
            for name, alias_of in names
        ]

    def source(self) -> str:
        """Where the function is written, for messages."""
        code = getattr(self.body, "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(self.body)

    def is_redefinition_of(self, other: Function[..., Any]) -> bool:
        """The same place in the same module, as when a notebook cell runs again."""
        mine, theirs = self.body, other.body
        return (mine.__module__, mine.__qualname__) == (theirs.__module__, theirs.__qualname__)


class InStore(ABC):
    """A function whose options are in the store: they are looked up whenever it is called."""

    @abstractmethod
    def looked_up(self, store: Store) -> Function[..., Any]:
        """The same function with the options that the store has for it."""


def with_hook(function: Function[P, R], hook: Function[..., Any]) -> Function[P, R]:
    """The function with its hook as that may be enqueued; all else is as the caller has it."""
    same = copy.copy(function)
    same.options = msgspec.structs.replace(function.options, on_complete=hook)
    return same


# Options ------------------------------------------------------------------------------------------


def _check_keys(options: Options) -> None:
    unique, limit = options.unique, options.limit
    if unique is not None and not isinstance(unique, Unique):
        raise InvalidOption("unique", f"give a Unique(...), not {unique!r}")
    if limit is not None and not isinstance(limit, Limit):
        raise InvalidOption("limit", f"give a Limit(...), not {limit!r}")
    if options.idempotency_key is not None:
        check_key("idempotency_key", options.idempotency_key)
    if options.debounce is None:
        return
    if not seconds_of("debounce", options.debounce) > 0:
        raise InvalidOption("debounce", "must be positive")
    if unique is not None and (unique.scope != "pending" or unique.period is not None):
        raise InvalidOption("debounce", 'goes with unique=Unique(key) of scope "pending" only')


def _check_expires(expires: Delay | datetime) -> None:
    if isinstance(expires, datetime):
        if expires.utcoffset() is None:
            raise InvalidTime(f"expires: {expires!r} is naive; attach a zone")
    elif seconds_of("expires", expires) <= 0:
        raise InvalidOption("expires", "must be later than the time the job is due")


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


def retry_on_of(retry_on: RetryOn) -> tuple[type[BaseException], ...]:
    """One class or several, as they are kept."""
    return (retry_on,) if isinstance(retry_on, type) else tuple(retry_on)


def published_options(options: Options) -> PublishedOptions:
    expires = options.expires
    return PublishedOptions(
        queue=options.queue,
        priority=options.priority,
        timeout=None if options.timeout is None else length_ms("timeout", options.timeout),
        # An instant is for calls of its own process; a length of time holds for everybody.
        expires=None
        if expires is None or isinstance(expires, datetime)
        else length_ms("expires", expires),
        owner=options.owner,
        tags=options.tags,
        retry=encode_retry(options.retry),
        on_complete=None if options.on_complete is None else options.on_complete.name,
        unique=_published_key(options.unique),
        limit=_published_key(options.limit),
        debounce=None if options.debounce is None else length_ms("debounce", options.debounce),
    )


def _published_key(rule: Unique | Limit | None) -> Any:
    """A key that is computed is known only where its code is."""
    return None if rule is None or callable(rule.key) else msgspec.to_builtins(rule)
