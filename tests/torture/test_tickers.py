"""kill -9 to tickers, at every fault point and at random moments: no slot is missed or doubled.

Several `duly ticker` and `duly worker` processes tick the same schedules. They die without a word
and others go on. At the end the ledger and the jobs are compared with the instants that follow
from the intervals alone.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from duly import Ctx, Duly, ManualClock, fault
from duly.model.trigger import Every
from tests.cli.processes import Process, duly, environment, wait_until
from tests.jobs.support import Database, prepare
from tests.schedules.support import tick_all
from torture.load.ticks import ANCHOR, SECOND, anchor_of, count_slots, late

APP = "tests.torture.kill.clockwork:app"
POINTS = tuple(p for p in fault.POINTS if p.startswith("ticker."))


def _now() -> int:
    return int(time.time() * 1000)


class Tickers:
    """The processes that tick one database."""

    def __init__(self, url: str, schedules: int) -> None:
        self._env = environment(url, CLOCKWORK_SCHEDULES=str(schedules))
        self._schedules = schedules
        self._processes: list[Process] = []
        self.kills = 0
        prepare(Duly(url)).close()
        self.db = Database(url)

    def start(self, kind: str = "ticker", *, fault: str | None = None) -> Process:
        options = ["--concurrency=4", "--processes=1"] if kind == "worker" else []
        armed = {} if fault is None else {"DULY_FAULT": fault}
        command = duly("--app", APP, kind, *options)
        self._processes.append(Process(command, self._env | armed))
        return self._processes[-1]

    def kill(self, process: Process) -> None:
        process.kill_all()
        self.kills += 1

    def expect_kill(self, process: Process, where: str) -> None:
        wait_until(lambda: not process.is_running, f"it was killed at {where}", patience=60)
        code = process.wait()
        assert code == -signal.SIGKILL, f"{where}: exit {code}, no kill\n{process.errors()}"
        self.kills += 1

    def ticked(self) -> int:
        return self.db.count("@ticks")

    def wait_for_some(self, chance: random.Random) -> None:
        """A random moment: when so many more ticks were decided."""
        until = self.ticked() + chance.randint(1, 2 * self._schedules)
        wait_until(lambda: self.ticked() >= until, "schedules are being ticked", patience=60)

    def fall_silent(self) -> int:
        """Kill all that still run, until each schedule has several ticks to catch up; when."""
        for process in self._processes:
            if process.is_running:
                self.kill(process)
        all_late = lambda: late(self.db, _now() - 2 * SECOND) == self._schedules  # noqa: E731
        wait_until(all_late, "every schedule is late")
        return _now()

    def drain(self) -> None:
        """After an outage, one that nobody kills catches up with the present."""
        now = self.fall_silent()
        clean = self.start()
        wait_until(lambda: not late(self.db, now), "nothing is late", patience=60)
        clean.signal(signal.SIGTERM)
        assert clean.wait() == 0, clean.errors()

    def close(self) -> None:
        for process in self._processes:
            process.close()
        self.db.close()


@pytest.fixture
def tickers(url: str, long_run: bool) -> Iterator[Tickers]:
    tickers = Tickers(url, 300 if long_run else 150)
    yield tickers
    tickers.close()


@pytest.mark.spec("R7", "R219")
def test_killed_tickers_miss_no_slot_and_double_none(tickers: Tickers, long_run, report):
    chance = random.Random(5)
    for _ in range(8 if long_run else 1):
        armed = [f"{point}:{chance.randint(1, 6)}" for point in POINTS]
        started = [(tickers.start(fault=each), each) for each in armed]
        for process, where in started:
            tickers.expect_kill(process, where)
    kinds = ["ticker", "ticker", "worker"]
    running = [tickers.start(kind) for kind in kinds]
    for number in range(60 if long_run else 1):
        tickers.wait_for_some(chance)
        if number % 10 == 9:
            tickers.fall_silent()
            running = [tickers.start(kind) for kind in kinds]
            continue
        which = chance.randrange(len(kinds))
        tickers.kill(running[which])
        running[which] = tickers.start(kinds[which])
    tickers.drain()

    count = count_slots(tickers.db)
    report(f"{tickers.kills} kills, {count}")
    assert count.is_clean, count
    assert count.slots >= (2_000 if long_run else 500)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_the_comparison_sees_what_is_missed_doubled_or_strange(url: str):
    clock = ManualClock(ANCHOR + 12_345)
    app = prepare(Duly(url, clock=clock, min_interval=timedelta(seconds=1)))

    @app.action
    def chime(ctx: Ctx) -> None: ...

    for n in range(3):
        trigger = Every(SECOND, anchor_of(n))
        app.schedules.create(f"chime {n}", chime, trigger=trigger, overlap="allow")
    for _ in range(5):
        clock.advance(1)
        tick_all(app)
    app.close()
    db = Database(url)
    assert str(count_slots(db)) == "15 slots, missed 0, doubled 0, strange 0"

    newest_first = "SELECT job_id FROM @ticks ORDER BY schedule_id, tick_at DESC LIMIT 4"
    (odd,), _, (early,), (gone,) = db.execute(newest_first)
    db.execute("DELETE FROM @ticks WHERE job_id = ?", gone)
    db.execute("UPDATE @jobs SET scheduled_at = scheduled_at + 1000 WHERE id = ?", early)
    db.execute("UPDATE @jobs SET scheduled_at = scheduled_at + 1 WHERE id = ?", odd)
    count = count_slots(db)
    db.close()
    assert count[:3] == (15, 3, 1)
    assert count.strange
