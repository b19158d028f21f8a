"""Reads the jobs of an APScheduler 3 scheduler, without APScheduler.

Its crontabs count weekdays from Monday, and all fields have to match, both the day of the month and
the day of the week. Jobs are read from an object in the user's module, never from the database of a
job store: that contains pickles, and reading a pickle can run any code.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any, cast

from duly.cli.imports import fields
from duly.cli.imports.entry import Entry, NotImportable, ReadEntry, UniqueNames
from duly.cli.imports.from_celery import BOTH_DAYS, NAMES, Refused, interval, zone_name

FROM_MONDAY = {name: (number - 1) % 7 for name, number in NAMES[fields.WEEKDAY].items()}
POSITIONS = {"1st": "#1", "2nd": "#2", "3rd": "#3", "4th": "#4", "5th": "#5", "last": "L"}
_ID_OF_ITS_OWN = re.compile(r"[0-9a-f]{32}")
_POSITION = re.compile(r"(1st|2nd|3rd|4th|5th|last) ([a-z]{3})")


def read_jobs(scheduler: Any) -> Iterator[ReadEntry]:
    """All jobs of a scheduler."""
    numbered = UniqueNames()
    jobs = list(scheduler.get_jobs())
    times_named = Counter(map(_name, jobs))
    for job in jobs:
        where = f"job {job.id}"
        name = _name(job)
        key = name if times_named[name] == 1 else f"{name}-{_digest(job)}"
        try:
            yield _entry(job, where, numbered(key))
        except Refused as refused:
            yield NotImportable(where, str(job.trigger), str(refused))


def _calls(job: Any) -> str:
    return str(getattr(job, "func_ref", None) or job.name)


def _name(job: Any) -> str:
    # A generated id is different each time.
    return _calls(job) if _ID_OF_ITS_OWN.fullmatch(str(job.id)) else str(job.id)


def _digest(job: Any) -> str:
    """A digest that distinguishes jobs of the same name, whatever their order."""
    args: list[Any] = list(job.args or ())
    kwargs: dict[str, Any] = dict(job.kwargs or {})
    called = (str(job.trigger), args, sorted(kwargs.items()))
    return hashlib.sha256(repr(called).encode("utf-8", "surrogateescape")).hexdigest()[:6]


def _entry(job: Any, where: str, key: str) -> Entry:
    times, more = _times(job.trigger)
    # A job that has not been started has no such attribute; a paused one has None.
    if getattr(job, "next_run_time", job) is None:
        more["enabled"] = False
    return Entry(
        where=where,
        text=str(job.trigger),
        key=key,
        times=times,
        calls=_calls(job),
        args=tuple(job.args or ()),
        kwargs=dict(job.kwargs or {}),
        made_with=more,
    )


def _times(trigger: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """When it fires, and further fields of a new schedule."""
    more: dict[str, Any] = {
        name: _instant(value)
        for name, value in (
            ("start_at", getattr(trigger, "start_date", None)),
            ("end_at", getattr(trigger, "end_date", None)),
        )
        if value is not None
    }
    if jitter := getattr(trigger, "jitter", None):
        more["jitter"] = float(jitter)
    if hasattr(trigger, "run_date"):
        return {"at": _instant(trigger.run_date)}, {}
    if hasattr(trigger, "interval"):
        # The start of an interval is its first tick.
        if start := more.pop("start_at", None):
            more["anchor_at"] = start
        return interval(trigger.interval), more
    named = {str(getattr(field, "name", "")): str(field) for field in _fields(trigger)}
    if {"minute", "hour", "day_of_week"} <= named.keys():
        return {"cron": expression_of(named), "tz": zone_name(trigger.timezone)}, more
    raise Refused(f"{type(trigger).__name__} is not a cron, interval or date trigger")


def _fields(trigger: Any) -> list[Any]:
    found = getattr(trigger, "fields", None)
    return list(cast("list[Any]", found)) if isinstance(found, list | tuple) else []


def _instant(value: Any) -> str:
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise Refused(f"{value} has no time zone")
    return value.isoformat()


def expression_of(named: dict[str, str]) -> str:
    """A cron expression equivalent to a trigger with these fields."""
    if named.get("week", "*") != "*":
        raise Refused("cron has no field for weeks; declare it with trigger=Rule(…)")
    days, weekdays = _days(named.get("day", "*"))
    weekday = _weekdays(named["day_of_week"])
    if weekday != "*":
        if days != "*":
            raise Refused(BOTH_DAYS)
        weekdays = weekday
    second = _plain(named.get("second", "0"), fields.SECOND)
    words = [
        _plain(named["minute"], fields.MINUTE),
        _plain(named["hour"], fields.HOUR),
        days,
        _plain(named.get("month", "*"), fields.MONTH),
        weekdays,
    ]
    year = _plain(named.get("year", "*"), fields.YEAR)
    if year != "*":
        return " ".join([second, *words, year])
    return " ".join(words if second == "0" else [second, *words])


def _plain(text: str, field: int) -> str:
    return fields.write(_expand(text, field, NAMES.get(field, {})), field, text)


def _weekdays(text: str) -> str:
    numbers = _expand(text, fields.WEEKDAY, FROM_MONDAY)
    return fields.write({(number + 1) % 7 for number in numbers}, fields.WEEKDAY)


def _days(text: str) -> tuple[str, str]:
    """The day field as the two day fields of a cron expression, either of which may match."""
    days: list[str] = []
    weekdays: list[str] = []
    plain: list[str] = []
    for item in text.split(","):
        if item == "last":
            days.append("L")
        elif found := _POSITION.fullmatch(item):
            weekdays.append(f"{NAMES[fields.WEEKDAY][found[2]]}{POSITIONS[found[1]]}")
        else:
            plain.append(item)
    if plain:
        written = _plain(",".join(plain), fields.DAY)
        if written == "*":
            return "*", "*"
        days.insert(0, written)
    # With `?` in one field, only the other one counts.
    return ",".join(days) or ("?" if weekdays else "*"), ",".join(weekdays) or "*"


def _expand(text: str, field: int, names: dict[str, int]) -> frozenset[int]:
    return frozenset(number for part in text.split(",") for number in _part(part, field, names))


def _part(part: str, field: int, names: dict[str, int]) -> range:
    every = sorted(fields.all_values(field))
    base, slash, step = part.partition("/")
    first, dash, last = base.partition("-")
    try:
        start = every[0] if base == "*" else _number(first, names)
        # With a step, a single number is the start of a range to the end.
        end = every[-1] if base == "*" or (slash and not dash) else _number(last or first, names)
        numbers = range(start, end + 1, int(step) if slash else 1)
    except (KeyError, ValueError) as error:
        raise Refused(f"{part!r} is not a valid value") from error
    if not numbers or not set(numbers) <= set(every):
        raise Refused(f"{part!r} is not a valid value")
    return numbers


def _number(text: str, names: dict[str, int]) -> int:
    return int(text) if text.isdigit() else names[text.lower()]
