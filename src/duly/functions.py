"""What is a function, how is it called later, and with which options?"""

# What callers without a type checker hand in is not always what the types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from duly.clock import to_ms
from duly.errors import InvalidFunction, InvalidOption, InvalidTime, UnknownFunction
from duly.ids import new_id
from duly.model.function import FunctionInfo, Published, PublishedOptions
from duly.model.job import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    FIVE_YEARS_MS,
    MAX_PRIORITY,
    Hold,
    KeyedJob,
    Kind,
    NewJob,
    TrackedJob,
)
from duly.model.keys import (
    Limit,
    Unique,
    check_key,
    encode_rules,
    keyed,
    limit_key,
    rules_of,
)
from duly.model.retry import Retry, decode_retry, encode_retry
from duly.model.signature import PublishedSignature, Signature

if TYPE_CHECKING:
    from duly.context import AsyncCtx, Ctx, Tx

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Delay = float | timedelta
Instant = datetime | int
Isolate = Literal["process"]
MAX_NAME = 200
IDEMPOTENCY_MS = 86_400_000
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
        schema = msgspec.json.encode(self.signature.json_schema()).decode()
        options = msgspec.json.encode(_published_options(self.options)).decode()
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


class Declared(Function[P, R_co]):
    """A function whose code is in another service: it can be called later, not run here.

    What its workers have published decides how its jobs are run.
    """

    def __init__(
        self,
        stub: Callable[..., Any],
        name: str,
        signature: Signature,
        kind: Kind | None = None,
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        self._declared_kind = kind
        self._changes = dict(changes or {})
        options = msgspec.structs.replace(Options(), **self._changes)
        super().__init__(stub, name, options, signature=signature)
        self.kind: Kind = kind or Kind.ACTION

    def __repr__(self) -> str:
        return f"<declared {self.name}>"

    def _with(self, changes: Mapping[str, Any]) -> Declared[P, R_co]:
        changed = {**self._changes, **changes}
        return Declared(self.body, self.name, self.signature, self._declared_kind, changed)

    def as_published(self, info: FunctionInfo | None) -> Declared[P, R_co]:
        """The same with the kind and the options that its workers have given it."""
        if info is None:
            if self._declared_kind is None:
                raise UnknownFunction(self.name, because=NOT_PUBLISHED)
            return self
        known = Declared[P, R_co](self.body, self.name, self.signature, Kind(info.kind))
        published = _options_from(msgspec.json.decode(info.options, type=PublishedOptions))
        known.options = msgspec.structs.replace(published, **self._changes)
        return known


NOT_PUBLISHED = "no worker has published it yet; start one, or give the declaration a kind"


def by_name(info: FunctionInfo) -> Declared[..., Any]:
    """A function that only its published form is known of."""

    def stub() -> None: ...

    schema: dict[str, Any] = msgspec.json.decode(info.schema)
    return Declared(stub, info.name, PublishedSignature(info.name, schema), Kind(info.kind))


def _published_options(options: Options) -> PublishedOptions:
    expires = options.expires
    return PublishedOptions(
        queue=options.queue,
        priority=options.priority,
        timeout=None if options.timeout is None else _timeout_ms(options.timeout),
        # An instant is for calls of its own process; a length of time holds for everybody.
        expires=None
        if expires is None or isinstance(expires, datetime)
        else _length_ms("expires", expires),
        owner=options.owner,
        tags=options.tags,
        retry=encode_retry(options.retry),
        on_complete=None if options.on_complete is None else options.on_complete.name,
        unique=_published_key(options.unique),
        limit=_published_key(options.limit),
        debounce=None if options.debounce is None else _length_ms("debounce", options.debounce),
    )


def _published_key(rule: Unique | Limit | None) -> Any:
    """A key that is computed is known only where its code is."""
    return None if rule is None or callable(rule.key) else msgspec.to_builtins(rule)


def _options_from(published: PublishedOptions) -> Options:
    return Options(
        queue=published.queue,
        priority=published.priority,
        timeout=None if published.timeout is None else published.timeout / 1000,
        expires=None if published.expires is None else published.expires / 1000,
        owner=published.owner,
        tags=published.tags,
        retry=decode_retry(published.retry),
        unique=None if published.unique is None else Unique(**published.unique),
        limit=None if published.limit is None else Limit(**published.limit),
        debounce=None if published.debounce is None else published.debounce / 1000,
    )


CHANGEABLE = ("queue", "priority", "timeout", "expires", "owner", "tags", "retry")


def option_changes(
    function: Function[..., Any], known: Function[..., Any] | None
) -> dict[str, Any]:
    """What the options of a call differ in from those of its function, as data."""
    usual = Options() if known is None else known.options
    for name in ("unique", "limit", "debounce", "idempotency_key", "on_complete"):
        if known is not None and getattr(function.options, name) != getattr(usual, name):
            raise InvalidOption(name, "goes with the function itself; a schedule cannot change it")
    published = msgspec.structs.asdict(_published_options(function.options))
    before = msgspec.structs.asdict(_published_options(usual))
    return {name: published[name] for name in CHANGEABLE if published[name] != before[name]}


def with_changes(function: Function[..., Any], changes: Mapping[str, Any]) -> Function[..., Any]:
    """The function with options that `option_changes` has written down."""
    if not changes:
        return function
    given = dict(changes)
    for name in ("timeout", "expires"):
        if given.get(name) is not None:
            given[name] /= 1000
    if "retry" in given:
        given["retry"] = decode_retry(given["retry"])
    if "tags" in given:
        given["tags"] = tuple(given["tags"])
    return function.using(**given)


MutationBody = Callable[Concatenate["Tx", P], R]
ActionBody = Callable[Concatenate["Ctx", P], R]
AsyncActionBody = Callable[Concatenate["AsyncCtx", P], Coroutine[Any, Any, R]]


# Checking what was decorated ---------------------------------------------------------------------


def check_body(body: object, context: str, decorator: str) -> Callable[..., Any]:
    """Refuse what cannot be named, found and called again later; say what to write instead."""
    checked = check_def(body, decorator)
    _check_context(checked, context, decorator)
    return checked


def check_def(body: object, decorator: str) -> Callable[..., Any]:
    """Refuse what is not a def."""
    if not inspect.isfunction(body):
        raise InvalidFunction(
            f"@{decorator} takes a plain function, not {body!r}; write a def in a module"
        )
    if body.__name__ == "<lambda>":
        raise InvalidFunction(f"@{decorator} takes a named function; write a def, not a lambda")
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise InvalidFunction(f"{body.__qualname__} is a generator; return a value instead")
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


def check_queue(name: object) -> None:
    """Refuse what cannot be the name of a queue."""
    check_text("queue", name)
    if name == "*":
        raise InvalidOption("queue", "'*' stands for everything, see app.pause(); give a name")


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


RetryOn = type[BaseException] | Sequence[type[BaseException]]


def retry_on_of(retry_on: RetryOn) -> tuple[type[BaseException], ...]:
    """One class or several, as they are kept."""
    return (retry_on,) if isinstance(retry_on, type) else tuple(retry_on)


def words_of(option: str, words: Sequence[str]) -> tuple[str, ...]:
    """Tags or aliases as they are kept."""
    if isinstance(words, str):
        raise InvalidOption(option, "give a list of words, not one string")
    return tuple(words)


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
    job = NewJob(
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
    return job if options.limit is None else under_limit(call, tracked(job))


def under_limit(call: Call[Any], job: TrackedJob) -> TrackedJob:
    """The job with the key that it competes for, if its function has a limit."""
    limit = call.function.options.limit
    if limit is None:
        return job
    key = limit_key(limit, call.function.name, partial(_arguments_of, call))
    return tracked(job, limit_key=key, limits=encode_rules(rules_of(limit)))


def _arguments_of(call: Call[Any]) -> dict[str, Any]:
    """What the function gets, also by default."""
    parameters = inspect.signature(call.function.body).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return defaults | call.function.signature.decode(call.args)


def new_jobs(
    call: Call[Any],
    scheduled_at: int,
    now: int,
    parent_id: str | None,
    idempotency_ms: int = IDEMPOTENCY_MS,
) -> list[NewJob]:
    """The row of a call, first; then that of the job which waits for its end, if there is one."""
    debounce = call.function.options.debounce
    if debounce is not None:
        scheduled_at = max(scheduled_at, now) + _length_ms("debounce", debounce)
    job = _with_keys(call, new_job(call, scheduled_at, now, parent_id), now, idempotency_ms)
    hook = call.function.options.on_complete
    if hook is None:
        return [job]
    waiting = hook_job(hook, {"job_id": job.id}, now)
    return [tracked(job, hook_id=waiting.id), waiting]


def hook_job(hook: Function[..., Any], arguments: Mapping[str, Any], now: int) -> TrackedJob:
    """A job that waits, held, for the end of others."""
    call = Call(hook, hook.signature.encode((), arguments))
    return tracked(new_job(call, now, now, None), hold=Hold.BATCH)


def tracked(job: NewJob, **more: Any) -> TrackedJob:
    """The same job with what most do not have."""
    kind = type(job) if isinstance(job, TrackedJob) else TrackedJob
    return kind(**msgspec.structs.asdict(job) | more)


def _with_keys(call: Call[Any], job: NewJob, now: int, idempotency_ms: int) -> NewJob:
    """The job with the keys that keep others like it from being stored, if it has any."""
    options = call.function.options
    if options.unique is None and options.debounce is None and options.idempotency_key is None:
        return job
    keys = keyed(
        call.function.name,
        call.args,
        partial(_arguments_of, call),
        unique=options.unique,
        debounced=options.debounce is not None,
        idempotency_key=options.idempotency_key,
        idempotency_ms=idempotency_ms,
        now=now,
    )
    return KeyedJob(**msgspec.structs.asdict(job) | keys)


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


def _timeout_ms(timeout: Delay) -> int:
    return _length_ms("timeout", timeout)


def _length_ms(option: str, length: Delay) -> int:
    return max(1, round(seconds_of(option, length) * 1000))


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
    return _within_five_years(run_at + _length_ms("expires", expires), run_at)
