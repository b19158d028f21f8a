"""Formats instants for display: relative to now, and exactly in a time zone."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from markupsafe import Markup

from duly.clock import from_ms
from duly.server.answers import iso

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
SOON = 2 * SECOND


def distance(milliseconds: int) -> str:
    """A duration in at most two units."""
    length = abs(milliseconds)
    if length < MINUTE:
        return f"{length // SECOND} s"
    if length < HOUR:
        return f"{length // MINUTE} min"
    if length < 2 * DAY:
        minutes = length % HOUR // MINUTE
        return f"{length // HOUR} h {minutes} min" if minutes else f"{length // HOUR} h"
    return f"{length // DAY} d"


def relative(ms: int, now: int) -> str:
    if abs(ms - now) < SOON:
        return "now"
    return f"in {distance(ms - now)}" if ms > now else f"{distance(now - ms)} ago"


def duration(milliseconds: int | None) -> str:
    """How long something took."""
    if milliseconds is None:
        return "–"
    if milliseconds < SECOND:
        return f"{milliseconds} ms"
    if milliseconds < MINUTE:
        return f"{milliseconds / SECOND:.1f} s"
    return distance(milliseconds)


def absolute(ms: int, zone: ZoneInfo) -> str:
    """Such as Mon 2 Mar 2026, 09:00:00 CET (Europe/Berlin)."""
    local = from_ms(ms).astimezone(zone)
    return f"{local:%a} {local.day} {local:%b %Y, %H:%M:%S} {abbreviation(local)} ({zone.key})"


def abbreviation(local: datetime) -> str:
    """The zone's abbreviation at that time, or its offset if the abbreviation is only digits."""
    name = local.tzname() or ""
    return name if name[:1].isalpha() else offset(local)


def offset(local: datetime) -> str:
    """Such as UTC+5:30."""
    shift = local.utcoffset()
    minutes = 0 if shift is None else round(shift.total_seconds()) // 60
    sign = "+" if minutes >= 0 else "−"
    hours, rest = divmod(abs(minutes), 60)
    return f"UTC{sign}{hours}" + (f":{rest:02d}" if rest else "")


def short(ms: int, zone: ZoneInfo, now: int) -> str:
    """The time of day, with the date if it is not today, and the year if it is not this year."""
    local, today = from_ms(ms).astimezone(zone), from_ms(now).astimezone(zone)
    if local.date() == today.date():
        return f"{local:%H:%M:%S}"
    if local.year == today.year:
        return f"{local.day} {local:%b %H:%M}"
    return f"{local.day} {local:%b %Y %H:%M}"


def element(ms: int | None, now: int, zone: ZoneInfo, *, exact: bool = False) -> Markup:
    """A <time>: relative (kept up to date by the page) or `exact`, with full details on hover."""
    if ms is None:
        return Markup('<span class="none">–</span>')
    return Markup('<time datetime="{}" title="{}"{}>{}</time>').format(
        iso(from_ms(ms)),
        absolute(ms, zone) if not exact else f"{absolute(ms, zone)}, {relative(ms, now)}",
        "" if exact else Markup(" data-relative"),
        short(ms, zone, now) if exact else relative(ms, now),
    )
