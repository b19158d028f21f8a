"""Support for the tests of schedules: a ticker that processes ticks when told."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from duly import Duly, ManualClock
from duly.runtime.ticker import Ticker
from tests.jobs.support import Database

Tick = Callable[[], None]


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]


def tick_all(app: Duly, *, page: int = 100) -> float:
    """Let a ticker work until nothing is due; return how long it would then sleep."""
    ticker = Ticker(app.core, page=page)
    for _ in range(10_000):
        delay = ticker.one_pass()
        if delay > 0:
            return delay
    raise AssertionError("the ticker never comes to rest")


def at(clock: ManualClock, instant: datetime) -> None:
    """Move the clock to an instant."""
    clock.advance((instant.timestamp() * 1000 - clock.now()) / 1000)


def dump(db: Database) -> dict[str, list[str]]:
    """Every row of every duly table."""
    if db.is_sqlite:
        names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = [name for (name,) in names if name.startswith("duly_")]
    else:
        names = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'duly'")
        tables = [f"duly.{name}" for (name,) in names]
    return {name: sorted(map(repr, db.execute(f"SELECT * FROM {name}"))) for name in tables}


def ledger(app: Duly, key: str) -> list[tuple[str, str | None]]:
    """The outcomes of a schedule's ticks, oldest first."""
    return [(tick.outcome, tick.reason) for tick in reversed(app.schedules.ticks(key))]
