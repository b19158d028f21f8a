"""Reads the `beat_schedule` of Celery, without Celery.

Its crontabs count weekdays from Sunday, as cron does, but all fields have to match, both the day of
the month and the day of the week. Ranges may wrap around: `fri-mon`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, cast

from duly.cli.imports import fields
from duly.cli.imports.entry import Entry, NotImportable, ReadEntry, is_mapping
from duly.errors import InvalidTime
from duly.functions.times import Delay, length_ms

_DAYS = "sun mon tue wed thu fri sat".split()
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
NAMES = {
    fields.WEEKDAY: {name: number for number, name in enumerate(_DAYS)},
    fields.MONTH: {name: number for number, name in enumerate(_MONTHS, 1)},
}
FIELDS = {
    "minute": fields.MINUTE,
    "hour": fields.HOUR,
    "day_of_month": fields.DAY,
    "month_of_year": fields.MONTH,
    "day_of_week": fields.WEEKDAY,
}
BOTH_DAYS = "both day of month and day of week must match here; in duly either is enough"


class Beat(NamedTuple):
    """A `beat_schedule` and the time zone of its crontabs."""

    schedule: Mapping[str, Any]
    tz: str | None


class Refused(Exception):
    """Why an entry cannot be imported."""


def beat_of(found: Any) -> Beat | None:
    """The schedule of a Celery app or its `conf`, or a plain dict."""
    if is_mapping(found) and "beat_schedule" not in found:
        return Beat(found, None)
    conf = found if is_mapping(found) else getattr(found, "conf", found)
    schedule = _setting(conf, "beat_schedule")
    if not is_mapping(schedule):
        return None
    tz = _setting(conf, "timezone")
    return Beat(schedule, None if tz is None else zone_name(tz))


def zone_name(tz: Any) -> str:
    """The name of a zone, given as text or as a zoneinfo or pytz object."""
    return str(getattr(tz, "key", None) or getattr(tz, "zone", None) or tz)


def read_beat(schedule: Mapping[str, Any], tz: str) -> Iterator[ReadEntry]:
    """All entries; `tz` is the zone of its crontabs."""
    for name, entry in schedule.items():
        try:
            yield _entry(str(name), entry, tz)
        except Refused as refused:
            yield NotImportable(f"entry {name}", _words(entry), str(refused))


def _entry(name: str, entry: Any, tz: str) -> Entry:
    if not is_mapping(entry) or not isinstance(entry.get("task"), str):
        raise Refused("it has no task")
    options: Any = entry.get("options") or {}
    args: Any = entry.get("args") or ()
    kwargs: Any = entry.get("kwargs") or {}
    if not is_mapping(options) or not is_mapping(kwargs):
        raise Refused("its kwargs or options are not a dict")
    taken = {name: take(options[name]) for name, take in OPTIONS.items() if name in options}
    taken = {name: value for name, value in taken.items() if value is not None}
    return Entry(
        where=f"entry {name}",
        text=_words(entry),
        key=name,
        times=_times(entry.get("schedule"), tz),
        calls=entry["task"],
        args=tuple(args),
        kwargs=dict(kwargs),
        options=taken,
        lost=tuple(
            f"option {name}"
            for name, value in options.items()
            if name not in taken and value is not None
        ),
    )


def _seconds(expires: Any) -> float | None:
    """How long a job may wait for its start; an absolute time does not fit repeated jobs."""
    if isinstance(expires, timedelta):
        return expires.total_seconds()
    return expires if type(expires) in (int, float) else None


OPTIONS: dict[str, Callable[[Any], Any]] = {
    "queue": lambda queue: None if queue is None else str(queue),
    "expires": _seconds,
}
"""The options of an entry that are imported, and how; None is not imported."""


def _times(schedule: Any, tz: str) -> dict[str, Any]:
    schedule = getattr(schedule, "run_every", schedule)
    if isinstance(schedule, int | float | timedelta) and not isinstance(schedule, bool):
        return interval(schedule)
    if isinstance(schedule, str) and len(words := schedule.split()) == 5:
        schedule = dict(zip(FIELDS, words, strict=True))
    if _is_crontab(schedule):
        return {"cron": expression_of(schedule), "tz": tz}
    raise Refused(f"{type(schedule).__name__} is not a crontab or an interval")


def interval(length: Delay) -> dict[str, Any]:
    """An interval in the API's form."""
    try:
        return {"every_ms": length_ms("its interval", length)}
    except InvalidTime as error:
        raise Refused(str(error)) from None


def _is_crontab(schedule: Any) -> bool:
    if is_mapping(schedule):
        return bool(schedule) and schedule.keys() <= FIELDS.keys()
    return all(hasattr(schedule, f"_orig_{name}") for name in FIELDS)


def expression_of(crontab: Any) -> str:
    """A cron expression equivalent to a crontab."""
    values = {name: _given(crontab, name) for name in FIELDS}
    words = {
        name: fields.write(expand(value, field), field, str(value))
        for (name, value), field in zip(values.items(), FIELDS.values(), strict=True)
    }
    if words["day_of_month"] != "*" and words["day_of_week"] != "*":
        raise Refused(BOTH_DAYS)
    return " ".join(words.values())


def _given(crontab: Any, name: str) -> Any:
    if is_mapping(crontab):
        return crontab.get(name, "*")
    return getattr(crontab, f"_orig_{name}")


def expand(value: Any, field: int) -> frozenset[int]:
    """The values of a field, as Celery parses it."""
    if isinstance(value, str):
        parts = [number for part in value.split(",") for number in _part(part.strip(), field)]
    elif isinstance(value, Iterable):
        numbers = cast("Iterable[object]", value)
        parts = [_number(str(number), field) for number in numbers]
    else:
        parts = [_number(str(value), field)]
    if not parts:
        raise Refused("a field of its crontab is empty")
    return frozenset(parts)


def _part(part: str, field: int) -> list[int]:
    base, slash, step = part.partition("/")
    first, dash, last = base.partition("-")
    if base == "*":
        numbers = sorted(fields.all_values(field))
    elif dash:
        numbers = _range(_number(first, field), _number(last, field), field)
    else:
        numbers = [_number(base, field)]
    if not slash:
        return numbers
    if not (base == "*" or dash) or not (step.isascii() and step.isdigit() and int(step)):
        raise Refused(f"{part!r} is not a valid value")
    return numbers[:: int(step)]


def _range(first: int, last: int, field: int) -> list[int]:
    if first <= last:
        return list(range(first, last + 1))
    every = sorted(fields.all_values(field))
    return [*range(first, every[-1] + 1), *range(every[0], last + 1)]


def _number(text: str, field: int) -> int:
    names = NAMES.get(field, {})
    number = names.get(text[:3].lower()) if text.isalpha() else None
    if number is None and text.isascii() and text.isdigit():
        number = int(text)
    if number is None or number not in fields.all_values(field):
        raise Refused(f"{text!r} is not a valid value")
    return number


def _setting(conf: Any, name: str) -> Any:
    return conf.get(name) if is_mapping(conf) else getattr(conf, name, None)


def _words(entry: Any) -> str:
    """An entry for people."""
    if not is_mapping(entry):
        return repr(entry)
    return f"{entry.get('task')} {entry.get('schedule')}"
