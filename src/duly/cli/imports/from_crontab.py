"""Reads crontabs: user crontabs, and system crontabs, which have a user column.

Lines are parsed as Debian's cron and cronie parse them. duly parses expressions in the same way,
with one difference: if the day of the month or of the week starts with `*`, cron requires both to
match, while duly does so only if one of them is exactly `*`. See `_days`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from duly.cli.imports import fields
from duly.cli.imports.entry import Entry, NotImportable, ReadEntry, UniqueNames
from duly.errors import InvalidCron, UnknownZone
from duly.model.cron import MACROS
from duly.model.trigger import Cron
from duly.zones import zone

_SETTING = re.compile(r"""\s*(["']?)([A-Za-z_]\w*)\1\s*=\s*(.*?)\s*""")
_VALUE = r"(?:\d+|[A-Za-z]{3})"
_ITEM = rf"(?:\*|{_VALUE}(?:-{_VALUE})?)(?:/\d+)?"
_FIELD = re.compile(rf"{_ITEM}(?:,{_ITEM})*", re.ASCII)
_PERCENT = re.compile(r"(?<!\\)%")
LONGEST_NAME = 40


class Crontab(NamedTuple):
    """The contents of a crontab, by line."""

    found: list[ReadEntry]
    settings: dict[str, int]
    """Variables for the commands, with their line numbers; they are not imported."""


class _Refused(Exception):
    """Why a line cannot be imported."""


def read_crontab(text: str, tz: str, *, system: bool = False) -> Crontab:
    """All lines of a crontab that run a command; `tz` is the zone of cron itself."""
    settings: dict[str, int] = {}
    found = list(_found(text, tz, system, settings))
    return Crontab(found, settings)


def _found(text: str, tz: str, system: bool, settings: dict[str, int]) -> Iterator[ReadEntry]:
    numbered = UniqueNames()
    current = tz
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if setting := _SETTING.fullmatch(line):
            name, value = setting[2], setting[3].strip("\"'")
            if name == "CRON_TZ":
                current = value or tz
            else:
                settings[name] = number
            continue
        where = f"line {number}"
        try:
            yield _entry(where, line, current, system, numbered)
        except _Refused as refused:
            yield NotImportable(where, line, str(refused))


def _entry(where: str, line: str, tz: str, system: bool, numbered: UniqueNames) -> Entry:
    expression, rest = _macro(line) if line.startswith("@") else _five_fields(line)
    user, command = _parted(rest) if system else ("", rest)
    if not command:
        raise _Refused("the user or the command is missing" if system else "the command is missing")
    if _PERCENT.search(command):
        raise _Refused("text after % is the command's standard input; move it into the command")
    command = command.replace("\\%", "%")
    offered = {"command": command, "user": user} if system else {"command": command}
    name = numbered(_name(command, user))
    times = {"cron": expression, "tz": _checked(expression, tz)}
    return Entry(where, line, name, times, calls=command, offered=offered)


def _macro(line: str) -> tuple[str, str]:
    macro, rest = _parted(line)
    if macro.lower() == "@reboot":
        raise _Refused("@reboot means at system start, which is not a time")
    if macro.upper() not in MACROS:
        raise _Refused(f"duly does not support {macro}")
    return macro.lower(), rest


def _five_fields(line: str) -> tuple[str, str]:
    # A minus sign before the minute disables cronie's logging.
    words = line.removeprefix("-").split(None, 5)
    if len(words) < 6:
        raise _Refused("a line needs five fields and a command")
    for field, word in enumerate(words[:5], fields.MINUTE):
        _check(word, field)
    minute, hour, day, month, weekday = words[:5]
    day, weekday = _days(day, weekday)
    return f"{minute} {hour} {day} {month} {weekday}", words[5]


def _check(word: str, field: int) -> None:
    if "~" in word:
        raise _Refused(f"{word} is a random time; in duly, write H({word.replace('~', '-')})")
    if not _FIELD.fullmatch(word) or fields.read(word, field) is None:
        raise _Refused(_what_is_wrong(word, field))


def _what_is_wrong(word: str, field: int) -> str:
    words = ["*"] * 5
    words[field - fields.MINUTE] = word
    try:
        Cron(" ".join(words))
    except InvalidCron as error:
        return f"{error.field}: {error.reason}; {error.hint}"
    return f"{word!r} is not valid in a crontab"


def _days(day: str, weekday: str) -> tuple[str, str]:
    """The two day fields, written for duly.

    If one of them starts with `*`, cron requires both to match; otherwise either is enough. duly
    requires both only if one is exactly `*`, that is, every day.
    """
    if not day.startswith("*") and not weekday.startswith("*"):
        return day, weekday
    if fields.read(day, fields.DAY) == fields.all_values(fields.DAY):
        return "*", weekday
    if fields.read(weekday, fields.WEEKDAY) == fields.all_values(fields.WEEKDAY):
        return day, "*"
    raise _Refused(
        "a day field starts with *, so cron requires both to match; duly requires either"
    )


def _checked(expression: str, tz: str) -> str:
    try:
        name = zone(tz).name
        Cron(expression, name)
    except (InvalidCron, UnknownZone) as error:
        raise _Refused(f"{error.reason}; {error.hint}") from error
    return name


def _parted(text: str) -> tuple[str, str]:
    """The first word, and the rest."""
    first, *rest = text.split(None, 1)
    return first, rest[0] if rest else ""


def _name(command: str, user: str) -> str:
    """A name that depends only on the command and the user."""
    words = re.sub(r"[^\w.]+", "-", command, flags=re.ASCII)[:LONGEST_NAME].strip("-.")
    digest = hashlib.sha256(f"{user}\0{command}".encode("utf-8", "surrogateescape")).hexdigest()
    return f"{words}-{digest[:6]}"
