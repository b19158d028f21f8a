"""Writes upcoming ticks as an iCalendar feed (RFC 5545) for calendar programs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from duly.clock import from_ms

LONGEST_LINE = 75
"""Octets, without the line end."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|[\ud800-\udfff]")

# A calendar must have a component, even if there are no events.
_NOTHING = (
    "BEGIN:VTIMEZONE",
    "TZID:UTC",
    "BEGIN:STANDARD",
    "DTSTART:19700101T000000",
    "TZOFFSETFROM:+0000",
    "TZOFFSETTO:+0000",
    "END:STANDARD",
    "END:VTIMEZONE",
)


class Event(NamedTuple):
    """One upcoming tick."""

    at: int
    uid: str
    summary: str
    description: str


def feed(name: str, events: Iterable[Event], now: int) -> str:
    """The text of the feed."""
    return "".join(f"{part}\r\n" for line in _lines(name, events, now) for part in folded(line))


def _lines(name: str, events: Iterable[Event], now: int) -> Iterator[str]:
    yield from ("BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//duly//schedules//EN")
    yield from ("CALSCALE:GREGORIAN", f"X-WR-CALNAME:{escaped(name)}")
    is_empty = True
    for event in events:
        is_empty = False
        yield "BEGIN:VEVENT"
        yield f"UID:{escaped(event.uid)}"
        yield f"DTSTAMP:{_utc(now)}"
        yield f"DTSTART:{_utc(event.at)}"
        yield f"SUMMARY:{escaped(event.summary)}"
        yield f"DESCRIPTION:{escaped(event.description)}"
        yield from ("TRANSP:TRANSPARENT", "END:VEVENT")
    if is_empty:
        yield from _NOTHING
    yield "END:VCALENDAR"


def escaped(text: str) -> str:
    """Text, escaped as the value of a property."""
    text = _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
    text = text.replace("\\", "\\\\").replace(";", "\\;").replace(",", "\\,")
    return text.replace("\r\n", "\\n").replace("\r", "\\n").replace("\n", "\\n")


def folded(line: str) -> Iterator[str]:
    """A line in parts that are short enough; no character is split."""
    part, size = "", 0
    for character in line:
        width = len(character.encode())
        if size + width > LONGEST_LINE:
            yield part
            part, size = " ", 1
        part += character
        size += width
    yield part


def _utc(instant: int) -> str:
    return from_ms(instant).strftime("%Y%m%dT%H%M%SZ")
