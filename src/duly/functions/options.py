"""The options of jobs and functions: their types, checks and published form.

To add an option for jobs, add a line to `JobOptions`, `Options` and `PublishedOptions`, its use in
`new_job`, and a line in the body of a request. `tools/option_places.py` counts such places.
"""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypedDict,
    get_args,
    get_type_hints,
)

import msgspec
from msgspec.structs import force_setattr

from duly.errors import InvalidOption, InvalidTime
from duly.functions.checks import check_queue, check_text, words_of
from duly.functions.times import Delay, length_ms, seconds_of
from duly.model.function import PublishedOptions
from duly.model.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, MAX_PRIORITY
from duly.model.keys import Limit, Unique, check_key
from duly.model.retry import Retry, decode_retry, encode_retry

if TYPE_CHECKING:
    from duly.functions.function import Function

Isolate = Literal["process"]
RetryOn = type[BaseException] | Sequence[type[BaseException]]


# Types -------------------------------------------------------------------------------------------


class JobOptions(TypedDict, total=False):
    """How jobs run: the options of a function, and of calls through `using`."""

    queue: str
    priority: int
    timeout: Delay | None
    expires: Delay | datetime | None
    owner: str | None
    tags: Sequence[str]
    retry: Retry | None
    on_complete: Function[..., Any] | None
    unique: Unique | None
    limit: Limit | None
    debounce: Delay | None


class CallOptions(JobOptions, total=False):
    """The options of calls through `using`."""

    idempotency_key: str | None


class FunctionOptions(JobOptions, total=False):
    """The options of both decorators."""

    name: str | None
    aliases: Sequence[str]
    internal: bool
    retry_on: RetryOn


class MutationOptions(FunctionOptions, total=False):
    """The options of `@app.mutation`."""

    alone: bool
    group: bool


class ActionOptions(FunctionOptions, total=False):
    """The options of `@app.action`."""

    isolate: Isolate | None


class WorkflowOptions(FunctionOptions, total=False):
    """The options of `@app.workflow`: its steps have `retry`, the run as a whole has not."""

    events: Mapping[str, Any] | None
    raises: RetryOn


def refuse_unknown(verb: str, given: Mapping[str, object], known: type) -> None:
    """Raise the error that Python raises for an unexpected keyword argument."""
    for name in given.keys() - known.__annotations__.keys():
        raise TypeError(f"{verb}() got an unexpected keyword argument {name!r}")


# Checks and publication --------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


class Form(NamedTuple):
    """How an option that differs from its default is checked, and how it is written as JSON."""

    check: Callable[[str, Any], object]
    publish: Callable[[Any], Any] = _same
    read: Callable[[Any], Any] = _same
    fixed: bool = False
    """Whether it belongs to the function itself, so that a schedule cannot change it."""


def _check_queue(_: str, queue: object) -> None:
    check_queue(queue)


def _check_priority(option: str, priority: object) -> None:
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        raise InvalidOption(option, f"must be 0 to {MAX_PRIORITY}, not {priority!r}")


def _check_length(option: str, length: Delay) -> None:
    if not seconds_of(option, length) > 0:
        raise InvalidOption(option, "must be positive")


def _check_expires(option: str, expires: Delay | datetime) -> None:
    if isinstance(expires, datetime):
        if expires.utcoffset() is None:
            raise InvalidTime(f"{option}: {expires!r} is naive; attach a zone")
    elif seconds_of(option, expires) <= 0:
        raise InvalidOption(option, "must be later than the time the job is due")


def _check_tags(option: str, tags: Sequence[str]) -> None:
    for tag in tags:
        check_text(option, tag)


def _is_a(kind: type) -> Callable[[str, object], None]:
    def check(option: str, value: object) -> None:
        if not isinstance(value, kind):
            raise InvalidOption(option, f"give a {kind.__name__}(...), not {value!r}")

    return check


def _milliseconds(length: Delay | datetime) -> int | None:
    # An instant applies to calls in its own process only; a duration is published.
    return None if isinstance(length, datetime) else length_ms("length", length)


def _seconds(milliseconds: int) -> float:
    return milliseconds / 1000


def _check_nothing(option: str, hook: object) -> None:
    """Only the app that has the function can check it."""


def _name_of(hook: Function[..., Any]) -> str:
    return hook.name


def _rule_as_data(rule: Unique | Limit) -> Any:
    """A computed key is only known where its code is."""
    return None if callable(rule.key) else msgspec.to_builtins(rule)


def _rule(kind: type[Unique] | type[Limit]) -> Form:
    def read(data: Mapping[str, Any]) -> Unique | Limit:
        return kind(**data)

    return Form(_is_a(kind), _rule_as_data, read, fixed=True)


TEXT = Form(check_text)
LENGTH = Form(_check_length, _milliseconds, _seconds)
EXPIRES = LENGTH._replace(check=_check_expires)
RETRY = Form(_is_a(Retry), encode_retry, decode_retry)
HOOK = Form(_check_nothing, _name_of, fixed=True)


class Options(msgspec.Struct, frozen=True):
    """How a job runs, apart from its arguments."""

    queue: Annotated[str, Form(_check_queue)] = DEFAULT_QUEUE
    priority: Annotated[int, Form(_check_priority)] = DEFAULT_PRIORITY
    timeout: Annotated[Delay | None, LENGTH] = None
    expires: Annotated[Delay | datetime | None, EXPIRES] = None
    owner: Annotated[str | None, TEXT] = None
    tags: Annotated[tuple[str, ...], Form(_check_tags)] = ()
    retry: Annotated[Retry | None, RETRY] = None
    on_complete: Annotated[Any, HOOK] = None
    """A function that is called with the job's id when the job has ended, whatever its outcome."""
    unique: Annotated[Unique | None, _rule(Unique)] = None
    limit: Annotated[Limit | None, _rule(Limit)] = None
    debounce: Annotated[Delay | None, LENGTH._replace(fixed=True)] = None
    idempotency_key: Annotated[str | None, Form(check_key, fixed=True)] = None

    def __post_init__(self) -> None:
        force_setattr(self, "tags", words_of("tags", self.tags))
        for name, form in FORMS.items():
            value: object = getattr(self, name)
            if value is not DEFAULTS[name]:
                form.check(name, value)
        if self.debounce is not None and self.unique is not None:
            _check_merge(self.unique)


def _check_merge(unique: Unique) -> None:
    if unique.scope != "pending" or unique.period is not None:
        raise InvalidOption("debounce", 'requires unique=Unique(key) with scope "pending"')


FORMS: dict[str, Form] = {
    name: next(form for form in get_args(hint) if isinstance(form, Form))
    for name, hint in get_type_hints(Options, include_extras=True).items()
}
DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Options)}
CHANGEABLE = tuple(name for name, form in FORMS.items() if not form.fixed)
FIXED = tuple(name for name, form in FORMS.items() if form.fixed)


def published_options(options: Options) -> PublishedOptions:
    """The options as JSON data."""
    published: dict[str, Any] = {}
    for name in PublishedOptions.__struct_fields__:
        value = getattr(options, name)
        published[name] = None if value is None else FORMS[name].publish(value)
    return PublishedOptions(**published)


def read_options(published: Mapping[str, Any]) -> dict[str, Any]:
    """Published options, or some of them, in the form in which `using` takes them."""
    return {
        name: value if value is None or name not in FORMS else FORMS[name].read(value)
        for name, value in published.items()
    }


def _classes(retry_on: RetryOn) -> tuple[type[BaseException], ...]:
    """One class or several, as a tuple."""
    return (retry_on,) if isinstance(retry_on, type) else tuple(retry_on)


def _is_exception(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseException)


class Traits(msgspec.Struct, frozen=True):
    """Properties that the decorator gives a function, the same for every call."""

    aliases: tuple[str, ...] = ()
    internal: bool = False
    alone: bool = False
    group: bool = False
    retry_on: tuple[type[BaseException], ...] = ()
    isolate: Isolate | None = None
    events: Mapping[str, Any] | None = None
    raises: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "aliases", words_of("aliases", self.aliases))
        force_setattr(self, "retry_on", _classes(self.retry_on))
        force_setattr(self, "raises", _classes(self.raises))
        for kind in self.raises:
            if not _is_exception(kind):
                raise InvalidOption("raises", f"must be exception classes, not {kind!r}")
        for name in self.events or ():
            check_text("events", name)
        for alias in self.aliases:
            check_text("aliases", alias)
        for kind in self.retry_on:
            if not _is_exception(kind):
                raise InvalidOption("retry_on", f"must be exception classes, not {kind!r}")
        if self.isolate not in (None, "process"):
            raise InvalidOption("isolate", f'must be "process" or None, not {self.isolate!r}')


DEFAULT_TRAITS = Traits()


def decorated(given: Mapping[str, Any]) -> tuple[Options, Traits]:
    """The arguments of a decorator, without the name."""
    options = {name: given[name] for name in Options.__struct_fields__ if name in given}
    traits = {name: given[name] for name in Traits.__struct_fields__ if name in given}
    return Options(**options), Traits(**traits)
