"""What is a function, how is it called later, and with which options?"""

# What callers without a type checker hand in is not always what the types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from duly.clock import to_ms
from duly.errors import InvalidFunction, InvalidOption, InvalidTime
from duly.ids import new_id
from duly.model.job import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    FIVE_YEARS_MS,
    MAX_PRIORITY,
    Kind,
    NewJob,
)
from duly.model.retry import Retry, encode_retry
from duly.model.signature import Signature

if TYPE_CHECKING:
    from duly.context import AsyncCtx, Ctx, Tx

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Delay = float | timedelta
Instant = datetime | int
MAX_NAME = 200
LONGEST = 1e12
"""Seconds; whatever is longer would not fit into a stored instant."""


class Options(msgspec.Struct, frozen=True):
    """How a job is run, apart from its arguments."""

    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    timeout: Delay | None = None
    expires: Delay | datetime | None = None
    owner: str | None = None
    tags: tuple[str, ...] = ()
    retry: Retry | None = None

    def __post_init__(self) -> None:
        check_text("queue", self.queue)
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


class Call(Generic[R_co]):
    """A function with its arguments, not yet enqueued: what `bind` gives and `run_many` takes."""

    __slots__ = ("args", "function")

    def __init__(self, function: Function[..., R_co], args: str) -> None:
        self.function = function
        self.args = args

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
        *,
        internal: bool = False,
        alone: bool = False,
        group: bool = False,
        signature: Signature | None = None,
    ) -> None:
        self.body = body
        self.name = name
        self.options = options
        self.internal = internal
        self.alone = alone
        self.group = group
        self.signature = signature or Signature(body, name)
        self.__name__, self.__qualname__ = body.__name__, body.__qualname__
        self.__module__, self.__doc__ = body.__module__, body.__doc__

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"

    @property
    def is_async(self) -> bool:
        return False

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
            "tags": UNSET if tags is UNSET else words_of(tags),
            "retry": retry,
        }
        changes = {option: value for option, value in given.items() if value is not UNSET}
        return type(self)(
            self.body,
            self.name,
            msgspec.structs.replace(self.options, **changes),
            internal=self.internal,
            alone=self.alone,
            group=self.group,
            signature=self.signature,
        )

    def source(self) -> str:
        """Where the function is written, for messages."""
        code = getattr(self.body, "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(self.body)

    def is_redefinition_of(self, other: Function[..., Any]) -> bool:
        """The same place in the same module, as when a notebook cell runs again."""
        mine, theirs = self.body, other.body
        return (mine.__module__, mine.__qualname__) == (theirs.__module__, theirs.__qualname__)


class Mutation(Function[P, R_co]):
    """A function that is one database transaction, run exactly once."""

    kind = Kind.MUTATION

    def __call__(self, tx: Tx, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run it now, inside the transaction of `tx`."""
        result: R_co = self.body(tx, *args, **kwargs)
        return result


class Action(Function[P, R_co]):
    """A function with side effects, run at most once unless it asks for retries."""

    kind = Kind.ACTION

    def __call__(self, ctx: Ctx, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run it now, in this thread."""
        result: R_co = self.body(ctx, *args, **kwargs)
        return result


class AsyncAction(Function[P, R_co]):
    """An action that is a coroutine."""

    kind = Kind.ACTION

    @property
    def is_async(self) -> bool:
        return True

    def __call__(
        self, ctx: AsyncCtx, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R_co]:
        """Run it now, in this event loop."""
        result: Coroutine[Any, Any, R_co] = self.body(ctx, *args, **kwargs)
        return result


MutationBody = Callable[Concatenate["Tx", P], R]
ActionBody = Callable[Concatenate["Ctx", P], R]
AsyncActionBody = Callable[Concatenate["AsyncCtx", P], Coroutine[Any, Any, R]]


# Checking what was decorated ---------------------------------------------------------------------


def check_body(body: object, context: str, decorator: str) -> Callable[..., Any]:
    """Refuse what cannot be named, found and called again later; say what to write instead."""
    if not inspect.isfunction(body):
        raise InvalidFunction(
            f"@{decorator} takes a plain function, not {body!r}; write a def in a module"
        )
    if body.__name__ == "<lambda>":
        raise InvalidFunction(f"@{decorator} takes a named function; write a def, not a lambda")
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise InvalidFunction(f"{body.__qualname__} is a generator; return a value instead")
    _check_context(body, context, decorator)
    return body


def _check_context(body: Callable[..., Any], context: str, decorator: str) -> None:
    parameters = list(inspect.signature(body).parameters.values())
    annotation = parameters[0].annotation if parameters else inspect.Parameter.empty
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if name.strip("'\"").split(".")[-1] != context:
        found = f"{parameters[0]}" if parameters else "no parameter"
        word = {"Tx": "tx", "Ctx": "ctx", "AsyncCtx": "ctx"}[context]
        raise InvalidFunction(
            f"{body.__qualname__}: the first parameter of a function under @{decorator} is "
            f"`{word}: {context}`, found {found}"
        )


def name_of(body: Callable[..., Any], name: str | None) -> str:
    chosen = body.__name__ if name is None else name
    check_text("name", chosen)
    return chosen


def check_text(option: str, value: object) -> None:
    """Refuse what cannot be a name."""
    if not isinstance(value, str):
        raise InvalidOption(option, f"must be text, not {value!r}")
    if not value or len(value) > MAX_NAME or not value.isprintable():
        raise InvalidOption(option, f"must be 1 to {MAX_NAME} printable characters: {value!r}")


def words_of(tags: Sequence[str]) -> tuple[str, ...]:
    """Tags as they are kept."""
    if isinstance(tags, str):
        raise InvalidOption("tags", "give a list of words, not one string")
    return tuple(tags)


# Making a job ------------------------------------------------------------------------------------


def seconds_of(option: str, delay: Delay) -> float:
    """A length of time in seconds."""
    if isinstance(delay, timedelta):
        return delay.total_seconds()
    if isinstance(delay, bool) or not isinstance(delay, int | float):
        raise InvalidTime(f"{option}: give seconds or a timedelta, not {delay!r}")
    # Comparing works for NaN, infinities and integers of any size; converting does not.
    if not -LONGEST <= delay <= LONGEST:
        number = delay if type(delay) is float else "such a number"
        raise InvalidTime(f"{option}: {number} is no length of time")
    return float(delay)


def after(delay: Delay, now: int) -> int:
    """The instant so much later than now."""
    seconds = seconds_of("delay", delay)
    if seconds < 0:
        raise InvalidTime(f"delay: {seconds:g} s is negative; use run_at for a time in the past")
    return _within_five_years(now + round(seconds * 1000), now)


def at(when: Instant, now: int) -> int:
    """The instant as stored."""
    if isinstance(when, datetime):
        if when.utcoffset() is None:
            raise InvalidTime(f"{when!r} is naive; attach a zone, for example tzinfo=UTC")
        return _within_five_years(to_ms(when), now)
    if isinstance(when, bool) or not isinstance(when, int):
        raise InvalidTime(f"give an aware datetime or integer milliseconds, not {when!r}")
    return _within_five_years(when, now)


def _within_five_years(instant: int, now: int) -> int:
    if abs(instant - now) > FIVE_YEARS_MS:
        raise InvalidTime("the time is more than five years away; is it in milliseconds?")
    return instant


def new_job(call: Call[Any], scheduled_at: int, now: int, parent_id: str | None) -> NewJob:
    """The row of a call: due at its scheduled time, or now if that has passed."""
    function, options = call.function, call.function.options
    run_at = max(scheduled_at, now)
    return NewJob(
        id=new_id(now),
        function=function.name,
        kind=function.kind,
        queue=options.queue,
        priority=options.priority,
        created_at=now,
        scheduled_at=scheduled_at,
        run_at=run_at,
        expires_at=_expires_at(options.expires, run_at, now),
        timeout_ms=None if options.timeout is None else _timeout_ms(options.timeout),
        retry=encode_retry(options.retry),
        args=call.args,
        parent_id=parent_id,
        owner=options.owner,
        tags=msgspec.json.encode(options.tags).decode() if options.tags else None,
    )


def _timeout_ms(timeout: Delay) -> int:
    return max(1, round(seconds_of("timeout", timeout) * 1000))


def _check_expires(expires: Delay | datetime) -> None:
    if isinstance(expires, datetime):
        if expires.utcoffset() is None:
            raise InvalidTime(f"expires: {expires!r} is naive; attach a zone")
    elif seconds_of("expires", expires) <= 0:
        raise InvalidOption("expires", "must be later than the time the job is due")


def _expires_at(expires: Delay | datetime | None, run_at: int, now: int) -> int | None:
    if expires is None:
        return None
    if isinstance(expires, datetime):
        return at(expires, now)
    length = max(1, round(seconds_of("expires", expires) * 1000))
    return _within_five_years(run_at + length, run_at)
