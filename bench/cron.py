"""How fast is the next tick of a cron expression found, beside croniter?

Both go on from tick to tick; croniter keeps its parsed expression, and gets aware datetimes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from croniter import croniter

from bench.figures import DULY, Figure, Trial, one
from duly.clock import to_ms
from duly.model.trigger import Cron

ROW = "cron, next tick"
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


def cron_trials(ticks: int) -> Iterator[list[Trial]]:
    """So many ticks of every expression in every zone."""
    setting = f"{len(EXPRESSIONS)} expressions in {len(ZONES)} zones"

    def trial(side: str, follow: Callable[[str, str, int], object]) -> Trial:
        figure = Figure("any store", ROW, side, setting, "ticks/s", default=side == DULY)
        return one(figure, lambda: _rate(follow, ticks))

    yield [trial(CRONITER, _croniter), trial(DULY, _duly)]


def _rate(follow: Callable[[str, str, int], object], ticks: int) -> float:
    began = time.perf_counter()
    for text, tz in CASES:
        follow(text, tz, ticks)
    return len(CASES) * ticks / (time.perf_counter() - began)


def _croniter(text: str, tz: str, ticks: int) -> object:
    iterator = croniter(text, START.astimezone(ZoneInfo(tz)))
    return [iterator.get_next(float) for _ in range(ticks)]


def _duly(text: str, tz: str, ticks: int) -> object:
    return Cron(text, tz).upcoming(ticks, to_ms(START))


def times_croniter(figures: Sequence[Figure]) -> float | None:
    """How many times as fast as croniter, if both were measured."""
    values = {figure.side: figure.value for figure in figures if figure.row == ROW}
    return values[DULY] / values[CRONITER] if len(values) == 2 else None
