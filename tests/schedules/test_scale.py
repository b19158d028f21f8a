"""Threads and memory do not grow with the number of schedules."""

import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from duly import Ctx, Duly, ManualClock
from duly.ids import new_ids
from duly.runtime.ticker import Ticker
from duly.store.schedules import data
from duly.store.session import Session
from tests.schedules.support import utc

FEW, MANY = 300, 6_000
DUE = 200


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


def fill(app: Duly, count: int) -> None:
    """This many schedules; some are due in an hour and the others in a year."""

    @app.action
    def post(ctx: Ctx) -> None: ...

    soon = app.schedules.create("soon", post, cron="0 1 * * *").record
    later = app.schedules.create("later", post, cron="0 1 1 1 *").record

    def write(session: Session) -> None:
        for place, schedule_id in enumerate(new_ids(app.clock.now(), count)):
            like = soon if place < DUE - 1 else later
            record = msgspec.structs.replace(like, id=schedule_id, key=f"schedule {place}")
            data.add(session, record, None, app.clock.now())

    app.store.write(write)


def peak_of(app: Duly, clock: ManualClock) -> int:
    """How many bytes a ticker needs at most while it decides all that is due."""
    ticker = Ticker(app.core)
    ticker.one_pass()
    clock.advance(3600)
    tracemalloc.start()
    try:
        while ticker.one_pass() == 0:
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Duly]:
    """Another, private store."""
    made = Duly(f"sqlite:///{tmp_path / 'other.db'}", clock=ManualClock(utc(2026, 7, 1)))
    made.migrate()
    yield made
    made.close()


@pytest.mark.long("postgres")
def test_a_tick_among_many_schedules_takes_no_more_than_among_few(app, clock, other):
    fill(app, MANY)
    fill(other, FEW)
    few = peak_of(other, other.clock)
    threads = threading.active_count()
    many = peak_of(app, clock)
    ticks = sum(len(app.schedules.ticks(s, limit=1)) for s in app.schedules.list(limit=DUE + 10))
    assert ticks == DUE
    assert many < 2 * few + 1_000_000
    assert threading.active_count() <= threads
