"""Parses and formats times and durations for people."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click

from duly.clock import SystemClock, from_ms, to_ms
from duly.errors import UnknownZone
from duly.model import durations
from duly.zones import zone

Command = TypeVar("Command", bound=Callable[..., Any])
CLOCK = SystemClock()
YEARS = range(1970, 9999)
"""The years in which every zone can convert times."""
_STEPS = ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


class Length(click.ParamType[float]):
    """A duration in seconds: 90, 90s, 5m, 1h30m, 2d."""

    name = "length"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, int | float):
            return float(value)
        seconds = read_length(str(value))
        if seconds is None:
            self.fail(f"{value!r} is not a duration; write 90, 90s, 5m, 1h30m or 2d", param, ctx)
        return seconds


class Moment(click.ParamType[datetime]):
    """A time: 2026-05-01T09:00, with an offset, +5m, -2d, or now.

    A time without an offset is in the zone given by --tz, or in the displayed zone.
    """

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        if isinstance(value, datetime):
            return value
        moment = read_moment(str(value), shown_zone(_given_zone(ctx)))
        if moment is None:
            hint = "write 2026-05-01T09:00, 2026-05-01T09:00Z, +5m, -2d or now"
            self.fail(f"{value!r} is not a time; {hint}", param, ctx)
        return moment


def _given_zone(ctx: click.Context | None) -> str | None:
    if ctx is None:
        return None
    given: str | None = ctx.params.get("tz") or ctx.find_root().params.get("display_tz")
    return given


class ZoneName(click.ParamType[str]):
    """The name of a time zone."""

    name = "zone"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        try:
            return zone(str(value)).name
        except UnknownZone as error:
            self.fail(str(error), param, ctx)


def tz_option(help: str, default: str | None = None) -> Callable[[Command], Command]:
    """`--tz`: the zone of the new or changed object, and of times without an offset."""
    # Before the times that are read in it.
    return click.option("--tz", type=ZoneName(), is_eager=True, default=default, help=help)


def read_length(text: str) -> float | None:
    """A duration in seconds, or None if the text is not a duration."""
    if re.fullmatch(r"\d+(?:\.\d+)?", text):
        return float(text)
    milliseconds = durations.read_length(text)
    return None if milliseconds is None else milliseconds / 1000


def read_moment(text: str, tz: ZoneInfo) -> datetime | None:
    """An aware datetime, or None if the text is not a time."""
    if text == "now":
        return now()
    if text[:1] in "+-" and (seconds := read_length(text[1:])) is not None:
        try:
            return now() + timedelta(seconds=seconds if text[0] == "+" else -seconds)
        except OverflowError:
            return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.year not in YEARS:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=tz)


def now() -> datetime:
    return from_ms(CLOCK.now())


def shown_zone(name: str | None) -> ZoneInfo:
    """The zone in which times are shown: the given one, or this machine's."""
    return zone(name or local_zone()).info


def local_zone() -> str:
    """The name of this machine's zone, or UTC."""
    links = Path("/etc/localtime")
    linked = os.path.realpath(links).partition("zoneinfo/")[2] if links.exists() else ""
    for name in (os.environ.get("TZ", "").lstrip(":"), linked):
        if name and _is_known(name):
            return name
    return "UTC"


def _is_known(name: str) -> bool:
    try:
        zone(name)
    except Exception:  # unknown or malformed
        return False
    return True


def ms_of(text: str | None) -> int | None:
    """Milliseconds of a time in the API's format."""
    return None if text is None else to_ms(datetime.fromisoformat(text))


def relative(at_ms: int, now_ms: int) -> str:
    """in 5m, 2h ago, now."""
    seconds = abs(at_ms - now_ms) / 1000
    if seconds < 1:
        return "now"
    said = length(seconds)
    return f"in {said}" if at_ms > now_ms else f"{said} ago"


def length(seconds: float) -> str:
    """One or two units: 45s, 5m, 2h 10m, 3d 4h."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    whole = int(seconds)
    for index, (size, unit) in enumerate(_STEPS):
        if whole >= size:
            said = f"{whole // size}{unit}"
            if index + 1 < len(_STEPS) and whole // size < 10:
                smaller, name = _STEPS[index + 1]
                rest = whole % size // smaller
                said += f" {rest}{name}" if rest else ""
            return said
    return "0s"


def absolute(at_ms: int, tz: ZoneInfo, now_ms: int | None = None) -> str:
    """2026-05-01 09:00:00 UTC; shorter if `now_ms` is given, and without the date if today."""
    local = from_ms(at_ms).astimezone(tz)
    if now_ms is not None:
        today = from_ms(now_ms).astimezone(tz).date()
        if local.date() == today:
            return f"{local:%H:%M:%S}"
        if abs(local.date() - today) < timedelta(days=7):
            return f"{local:%a %d %H:%M}"
        return f"{local:%Y-%m-%d %H:%M}"
    return f"{local:%Y-%m-%d %H:%M:%S %Z}"
