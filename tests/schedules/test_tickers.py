"""Several tickers, killed ones, sleeping ones, and those whose zone data is older."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from importlib import resources
from pathlib import Path

import pytest

from duly import Ctx, Duly, ManualClock, State, fault, zones
from duly.runtime import service as services
from duly.runtime import ticker as tickers
from duly.runtime.loop import Bells
from duly.runtime.service import TICKER_REST_SECONDS, TickerLoop
from duly.runtime.ticker import AFTER_OTHERS, POLL_SECONDS, Ticker
from duly.schedules import Schedule
from tests.jobs.support import Database, on_postgres, wait_until
from tests.levels import at_every_level
from tests.schedules.child import PAGE, make_app, tick_in_a_process
from tests.schedules.support import at, tick_all, utc

HOUR = timedelta(hours=1)
START = utc(2026, 7, 1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def post(app: Duly):
    @app.action
    def post(ctx: Ctx, n: int = 0) -> int:
        return n

    return post


def make_many(app: Duly, post, n: int) -> set[str]:
    rotation = [{"n": 0}, {"n": 1}]
    return {
        app.schedules.create(f"s{i:03}", post, every=HOUR, rotation=rotation).id for i in range(n)
    }


def assert_each_once(db: Database, ids: set[str]) -> None:
    """One row of the ledger and one job each, and all of them moved on by one tick."""
    rows = db.execute("SELECT schedule_id, job_id FROM @ticks WHERE outcome = 'dispatched'")
    jobs = db.execute("SELECT actor, id FROM @jobs")
    assert sorted((str(s), str(j)) for s, j in rows) == sorted((a, str(j)) for a, j in jobs)
    assert sorted(actor for actor, _ in jobs) == sorted(ids)
    states = db.execute("SELECT next_tick_at, due_at, rotation_index, last_tick_at FROM @schedules")
    assert len(set(states)) == 1
    next_tick_at, due_at, rotation_index, last_tick_at = states[0]
    assert (next_tick_at, rotation_index) == (due_at, 1)
    assert next_tick_at - last_tick_at == 3_600_000


@pytest.mark.spec("R7", "R3")
@at_every_level
def test_tickers_side_by_side_dispatch_everything_once(app: Duly, clock, post, url, db):
    ids = make_many(app, post, 200)
    clock.advance(3600)
    apps = [make_app(url, clock) for _ in range(4)]
    begin = threading.Barrier(len(apps))
    errors: list[Exception] = []

    def work(of: Duly) -> None:
        begin.wait()
        try:
            tick_all(of, page=7)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(each,)) for each in apps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in apps:
        each.close()
    assert errors == []
    assert_each_once(db, ids)


@pytest.mark.spec("R7")
@pytest.mark.parametrize("point", ["ticker.decided", "ticker.noted", "ticker.written"])
def test_a_second_ticker_in_the_midst_of_a_tick_changes_nothing(
    app: Duly, clock, post, url, db, point
):
    ids = make_many(app, post, 5)
    clock.advance(3600)
    other = make_app(url, clock)
    second: list[threading.Thread] = []

    def tick_beside(name: str) -> None:
        if name == point and not second:
            second.append(threading.Thread(target=tick_until_idle))
            second[0].start()
            if not db.is_sqlite:  # there it waits for its turn
                second[0].join(20)
                assert not second[0].is_alive()

    def tick_until_idle() -> None:
        ticker = Ticker(other.core)
        while ticker.one_pass() == 0:
            pass

    with fault.inject(tick_beside):
        tick_all(app)
        second[0].join(20)
    assert_each_once(db, ids)
    other.close()


@pytest.mark.spec("R7")
@on_postgres
def test_what_another_ticker_has_locked_is_left_to_it_without_haste(app: Duly, clock, post, db):
    schedule = app.schedules.create("s", post, every=HOUR)
    clock.advance(3600)
    holder = db.connect()
    with holder.transaction():
        holder.execute("SELECT 1 FROM duly.schedules FOR UPDATE")
        assert Ticker(app.core).one_pass() == AFTER_OTHERS
    assert app.jobs() == []
    tick_all(app)
    assert [job.actor for job in app.jobs()] == [schedule.id]


@pytest.mark.spec("R6", "R7", "R8", "R216", "R219")
@pytest.mark.parametrize("point", [p for p in fault.POINTS if p.startswith("ticker.")])
def test_a_ticker_that_is_killed_anywhere_loses_nothing_and_doubles_nothing(
    app: Duly, clock, post, url, db, point
):
    ids = make_many(app, post, 3 * PAGE)
    clock.advance(3600)
    assert tick_in_a_process(url, clock.now(), f"{point}:2") == -signal.SIGKILL
    done = 2 if point == "ticker.committed" else 1
    assert db.count("@jobs") == db.count("@ticks") == done * PAGE
    tick_all(app)
    assert_each_once(db, ids)


@pytest.mark.spec("R216")
def test_after_a_restart_nothing_is_dispatched_again(app: Duly, clock, post, url, db):
    ids = make_many(app, post, 3)
    clock.advance(3600)
    tick_all(app)
    app.close()
    restarted = make_app(url, ManualClock(clock.now()))
    tick_all(restarted)
    restarted.close()
    assert_each_once(db, ids)


# Sleeping and waking ------------------------------------------------------------------------------


def test_the_ticker_sleeps_until_something_is_due_but_never_long(app: Duly, clock, post):
    ticker = Ticker(app.core)
    assert ticker.one_pass() == POLL_SECONDS <= 1
    app.schedules.create("s", post, every=HOUR)
    assert ticker.one_pass() == POLL_SECONDS
    clock.advance(3599.6)
    assert ticker.one_pass() == pytest.approx(0.4)
    app.schedules.disable("s")
    assert ticker.one_pass() == POLL_SECONDS


def done(app: Duly, schedule: Schedule) -> bool:
    jobs = [tick.job for tick in app.schedules.ticks(schedule)]
    return bool(jobs) and all(job and job.state == State.SUCCEEDED for job in jobs)


@pytest.fixture
def hardly_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ticker that is not woken sleeps longer than a test waits."""
    monkeypatch.setattr(tickers, "POLL_SECONDS", 600.0)


def test_a_change_in_the_same_process_wakes_the_ticker(url, app: Duly, hardly_polling, monkeypatch):
    real = make_app(url, None)  # type: ignore[arg-type]
    # Nothing tells it from outside.
    monkeypatch.setattr(real.ready(), "watch", lambda bell, stop: stop.wait())
    post = real.function("post")
    with real:
        for n in range(3):  # the first may come before the ticker sleeps
            schedule = real.schedules.create(f"s{n}", post, every=HOUR, fire_at_once=True)
            wait_until(lambda: real.schedules.ticks(schedule), "it was ticked")  # noqa: B023
        wait_until(lambda: done(real, schedule), "its job ran")
    real.close()


@pytest.mark.parametrize("kind", ["worker", "ticker"])
def test_a_change_by_another_process_wakes_the_ticker(url, app: Duly, hardly_polling, kind):
    ticking = make_app(url, None)  # type: ignore[arg-type]
    elsewhere = make_app(url, None)  # type: ignore[arg-type]
    service = ticking.ticker_service() if kind == "ticker" else ticking.service(concurrency=1)
    service.start()
    try:
        schedule = elsewhere.schedules.create(
            "s", elsewhere.function("post"), every=HOUR, fire_at_once=True
        )
        wait_until(lambda: elsewhere.schedules.ticks(schedule), "it was ticked")
        workers = elsewhere.workers()
        assert len(workers) == (1 if kind == "worker" else 0)
    finally:
        service.stop()
        ticking.close()
        elsewhere.close()


def test_a_service_without_a_ticker_ticks_nothing(url, app: Duly):
    real = make_app(url, None)  # type: ignore[arg-type]
    real.start(ticker=False)
    schedule = real.schedules.create("s", real.function("post"), every=HOUR, fire_at_once=True)
    job = real.run(real.function("post"))
    assert job.result(timeout=60) == 0
    real.stop()
    assert real.schedules.ticks(schedule) == []
    real.close()


def test_many_changes_are_few_wakes_and_the_last_is_never_lost(app: Duly, monkeypatch):
    passes: list[float] = []

    class Counting(Ticker):
        def one_pass(self) -> float:
            passes.append(time.monotonic())
            return 600.0

    monkeypatch.setattr(services, "Ticker", Counting)
    ticking = TickerLoop(app.core)
    bell = Bells(threading.Event(), ticking.changed)
    ticking.start()
    began = time.monotonic()
    while time.monotonic() < began + 1.0:
        bell.set()
    stopped = time.monotonic()
    # Slowness only makes them fewer.
    assert len(passes) <= (stopped - began) / TICKER_REST_SECONDS + 3
    bell.set()
    last = time.monotonic()
    wait_until(lambda: passes[-1] >= last, "the last change was looked at")
    ticking.stop()
    ticking.loop.join(5)


# Zone data ----------------------------------------------------------------------------------------


@pytest.fixture
def newer(tmp_path: Path) -> Iterator[Path]:
    """Zone data of a later version, in which Istanbul keeps the time of London."""
    folder = tmp_path / "zoneinfo"
    (folder / "Europe").mkdir(parents=True)
    (folder / "+VERSION").write_text("2099b\n")
    london = (resources.files("tzdata") / "zoneinfo" / "Europe" / "London").read_bytes()
    (folder / "Europe" / "Istanbul").write_bytes(london)
    yield folder
    zones.forget()


@pytest.fixture
def digest(app: Duly, post) -> str:
    """Nine o'clock in Istanbul: 06:00Z, or 08:00Z with the newer data."""
    return app.schedules.create("digest", post, cron="0 9 * * *", tz="Europe/Istanbul").id


def test_newer_zone_data_computes_stored_ticks_anew(app: Duly, clock, post, digest, newer):
    plain = app.schedules.create("plain", post, cron="0 9 * * *")
    tick_all(app)
    assert app.schedules.get(digest).next_tick == utc(2026, 7, 1, 6)
    before = app.schedules.get(digest).record
    zones.forget([newer])
    tick_all(app)
    after = app.schedules.get(digest)
    assert after.next_tick == after.due == utc(2026, 7, 1, 8)
    assert (after.version, after.record.updated_at) == (before.version, before.updated_at)
    assert app.schedules.get(plain).next_tick == utc(2026, 7, 1, 9)
    [entry, _] = app.ready().audit_of(f"schedule:{digest}")
    assert entry.action == "schedule.zone_data"
    at(clock, utc(2026, 7, 1, 7))
    tick_all(app)
    assert app.schedules.ticks(digest) == []
    at(clock, utc(2026, 7, 1, 8))
    tick_all(app)
    assert [tick.at for tick in app.schedules.ticks(digest)] == [utc(2026, 7, 1, 8)]


def test_more_schedules_than_a_page_are_computed_anew_once(app: Duly, clock, post, newer):
    tick_all(app)
    for n in range(230):
        app.schedules.create(f"s{n}", post, cron="0 9 * * *", tz="Europe/Istanbul")
    zones.forget([newer])
    tick_all(app)
    found = [each for n in (0, 200) for each in app.schedules.list(limit=200)]
    assert {each.next_tick for each in found} == {utc(2026, 7, 1, 8)}
    assert app.ready().take_zone_data("2099b") is False


def test_a_process_with_older_zone_data_leaves_zoned_schedules_alone(
    app: Duly, clock, post, digest, newer, url
):
    plain = app.schedules.create("plain", post, cron="0 8 * * *")
    zones.forget([newer])
    tick_all(app)
    zones.forget()

    old = make_app(url, clock)
    at(clock, utc(2026, 7, 1, 8, 30))
    delay = tick_all(old)
    assert delay == POLL_SECONDS  # and does not turn in circles either
    assert old.schedules.ticks(digest) == []
    assert len(old.schedules.ticks(plain)) == 1
    old.close()

    zones.forget([newer])
    tick_all(app)
    assert [tick.at for tick in app.schedules.ticks(digest)] == [utc(2026, 7, 1, 8)]


def test_one_that_is_running_stops_judging_zones_when_newer_data_comes(
    app: Duly, clock, digest, newer, url
):
    running = Ticker(app.core)
    running.one_pass()
    other = make_app(url, clock)
    zones.forget([newer])
    tick_all(other)
    zones.forget()
    at(clock, utc(2026, 7, 1, 8))
    assert running.one_pass() > 0
    assert app.schedules.ticks(digest) == []
    assert app.schedules.get(digest).next_tick == utc(2026, 7, 1, 8)
    other.close()


@pytest.mark.spec("R216")
def test_new_zone_data_makes_no_slot_twice_and_keeps_what_is_overdue(
    app: Duly, clock, digest, newer
):
    at(clock, utc(2026, 7, 1, 6))
    tick_all(app)
    at(clock, utc(2026, 7, 3, 12))  # two ticks are overdue
    zones.forget([newer])
    tick_all(app)
    ticks = [tick.at for tick in app.schedules.ticks(digest)][::-1]
    # By the new data nine o'clock of the first day came after the tick that was taken for it.
    days = [utc(2026, 7, 1, 6), utc(2026, 7, 1, 8), utc(2026, 7, 2, 8), utc(2026, 7, 3, 8)]
    assert ticks == days
    zones.forget()
    zones.forget([newer])
    tick_all(app)
    assert len(app.schedules.ticks(digest)) == 4


def test_what_an_operator_said_of_the_next_tick_moves_with_it(app: Duly, clock, digest, newer):
    tick_all(app)
    app.schedules.skip_next(digest, by="ada")
    zones.forget([newer])
    at(clock, utc(2026, 7, 1, 8))
    tick_all(app)
    [tick] = app.schedules.ticks(digest)
    assert (tick.at, tick.reason) == (utc(2026, 7, 1, 8), "operator")


def test_a_schedule_whose_zone_was_unknown_is_revived_by_newer_data(
    app: Duly, clock, digest, newer, db: Database
):
    trigger = db.scalar("SELECT trigger FROM @schedules")
    unknown = trigger.replace("Europe/Istanbul", "Mars/Base")
    db.execute("UPDATE @schedules SET trigger = ?", unknown)
    at(clock, utc(2026, 7, 1, 6))
    tick_all(app)
    [parked] = app.schedules.list(parked=True)
    assert "UnknownZone" in (parked.error or "")
    # The newer data calls it so.
    db.execute("UPDATE @schedules SET trigger = ?", trigger)
    tick_all(app)
    assert app.schedules.get(digest).status == "parked"
    zones.forget([newer])
    tick_all(app)
    assert app.schedules.get(digest).next_tick == utc(2026, 7, 1, 8)


def test_what_an_operator_said_moves_with_the_tick_of_a_zone_that_was_unknown(
    app: Duly, clock, digest, newer, db: Database
):
    tick_all(app)
    app.schedules.skip_next(digest, by="ada")
    trigger = db.scalar("SELECT trigger FROM @schedules")
    db.execute("UPDATE @schedules SET trigger = ?", trigger.replace("Europe/Istanbul", "Mars/Base"))
    at(clock, utc(2026, 7, 1, 6))
    tick_all(app)
    db.execute("UPDATE @schedules SET trigger = ?", trigger)
    zones.forget([newer])
    at(clock, utc(2026, 7, 1, 8))
    tick_all(app)
    [tick] = app.schedules.ticks(digest)
    assert (tick.at, tick.reason) == (utc(2026, 7, 1, 8), "operator")


@pytest.mark.spec("R157")
def test_ticks_that_were_moved_to_a_day_before_stay_past_when_zones_are_computed_anew(
    app: Duly, clock, post
):
    at(clock, utc(2026, 7, 3, 12))  # a Friday
    app.calendars.create("working days", "skip_dates", rules=["weekends"])
    for tz in ("UTC", "Europe/Istanbul"):
        app.schedules.create(
            tz, post, cron="0 9 * * *", tz=tz, calendar="working days", shift="previous"
        )
    foreseen = [tick.utc for tick in app.schedules.preview("Europe/Istanbul", 2)]
    # The first ticker computes all zoned ticks with the data that it has.
    tick_all(app)
    for tz, hour in (("UTC", 9), ("Europe/Istanbul", 6)):
        assert app.schedules.ticks(tz) == []
        assert app.schedules.get(tz).next_tick == utc(2026, 7, 6, hour)
    assert foreseen[0] == utc(2026, 7, 6, 6)
