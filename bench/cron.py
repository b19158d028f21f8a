"""Measures how fast the next tick of a cron expression is found, compared with croniter.

Both proceed from tick to tick; croniter keeps its parsed expression, and gets aware datetimes. Only
processor time counts: nothing here waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import count
from zoneinfo import ZoneInfo

from croniter import croniter

from bench.figures import DULY, Figure, Trial, one
from duly.clock import to_ms
from duly.model.trigger import Cron

ROW = "cron, next tick"
FIRST = "cron, parse and first tick"
CRONITER = "croniter"
EXPRESSIONS = [
    "*/5 * * * *",
    "0 9 * * 1-5",
    "30 2 * * *",
    "0 */4 * * *",
    "15 14 1 * *",
    "0 0 * * 0",
    "0,30 8-18 * * 1-5",
    "0 0 L * *",
    "5 4 13 * 5",
    "0 0 29 2 *",
]
ZONES = ["UTC", "America/New_York", "Europe/Istanbul", "Australia/Lord_Howe"]
CASES = [(text, tz) for text in EXPRESSIONS for tz in ZONES]
START = datetime(2026, 1, 1, tzinfo=UTC)
Follow = Callable[[str, str, int], object]

_numbers = count()


def cron_trials(ticks: int) -> Iterator[list[Trial]]:
    """This many ticks of every expression in every zone; and the first ticks of as many others."""
    setting = f"{len(EXPRESSIONS)} expressions in {len(ZONES)} zones"

    def trial(row: str, side: str, measure: Callable[[], float]) -> Trial:
        figure = Figure("any store", row, side, setting, "ticks/s", default=side == DULY)
        return one(figure, measure)

    both = ((CRONITER, _croniter), (DULY, _duly))
    # Otherwise the first one would load the zones for the others.
    for _, follow in both:
        _rate(follow, ticks)
    yield [trial(ROW, side, partial(_rate, follow, ticks)) for side, follow in both]
    yield [trial(FIRST, side, partial(_first_rate, follow, ticks)) for side, follow in both]


def _rate(follow: Follow, ticks: int) -> float:
    began = time.process_time()
    for text, tz in CASES:
        follow(text, tz, ticks)
    return len(CASES) * ticks / (time.process_time() - began)


def _first_rate(follow: Follow, ticks: int) -> float:
    """Each expression is new to the process, so none of it is cached."""
    new = [(_new_expression(), ZONES[n % len(ZONES)]) for n in range(ticks * len(ZONES))]
    began = time.process_time()
    for text, tz in new:
        follow(text, tz, 1)
    return len(new) / (time.process_time() - began)


def _new_expression() -> str:
    number = next(_numbers)
    return f"{number % 60} {number // 60 % 24} {number // 1440 % 28 + 1} * *"


def _croniter(text: str, tz: str, ticks: int) -> object:
    iterator = croniter(text, START.astimezone(ZoneInfo(tz)))
    return [iterator.get_next(float) for _ in range(ticks)]


def _duly(text: str, tz: str, ticks: int) -> object:
    return Cron(text, tz).upcoming(ticks, to_ms(START))
