"""Checks the options of an app, and reports all mistakes at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import cast

from duly.errors import BadInput, InvalidOption, InvalidURL

ENVIRONMENT_URL = "DULY_DATABASE_URL"
MAX_POOL = 10_000


def check(url: object, **options: object) -> None:
    """Raise if an option is invalid; with several, one InvalidOption names them all."""
    faults = list(_faults(url, options))
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise InvalidOption("Duly(...)", "; ".join(str(fault) for fault in faults))


def _faults(url: object, options: dict[str, object]) -> Iterator[BadInput]:
    if not url:
        yield InvalidURL(f"give a database URL, or set {ENVIRONMENT_URL}")
    elif not isinstance(url, str):
        yield InvalidURL(f"a database URL is text, not {url!r}")
    for option, value in options.items():
        holds, reason = RULES[option]
        if not holds(value):
            yield InvalidOption(option, f"{reason}, not {value!r}")


def _is_count_or_none(value: object) -> bool:
    return value is None or (type(value) is int and value >= 1)


def _is_length(value: object) -> bool:
    return isinstance(value, timedelta) and value > timedelta(0)


def _is_pool(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_POOL


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != "" and value.isprintable()


def _are_modules(value: object) -> bool:
    """A single text would be taken for a list of its letters."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return False
    return all(map(_is_name, cast("Sequence[object]", value)))


def _is_lifespan(value: object) -> bool:
    if value is None or not callable(value):
        return value is None
    try:
        inspect.signature(value).bind(None)
    except TypeError:
        return False
    except ValueError:  # some functions of C have no signature
        pass
    return True


Rule = tuple[Callable[[object], bool], str]

COUNT: Rule = (_is_count_or_none, "must be at least 1")
LENGTH: Rule = (_is_length, "must be a positive timedelta")
APPLY = ("start", "manual")
SYNCHRONOUS = ("FULL", "NORMAL", "EXTRA")
RULES: dict[str, Rule] = {
    "name": (_is_name, "must be printable text"),
    "imports": (_are_modules, "must be a list of module names"),
    "apply": (APPLY.__contains__, 'must be "start" or "manual"'),
    "concurrency": COUNT,
    "threads": COUNT,
    "retention": LENGTH,
    "exhausted_retention": LENGTH,
    "ledger_retention": LENGTH,
    "idempotency": LENGTH,
    "min_interval": LENGTH,
    "signal_timeout": LENGTH,
    "worker_lifespan": (_is_lifespan, "must be a function with one parameter, the app"),
    "build": (lambda value: value is None or _is_name(value), "must be printable text"),
    "synchronous": (SYNCHRONOUS.__contains__, "must be FULL, NORMAL or EXTRA"),
    "pool": (_is_pool, f"must be 1 to {MAX_POOL:,} connections"),
}
