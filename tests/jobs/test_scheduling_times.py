"""When a job is due, and which times are refused."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from duly import Ctx, Duly, ManualClock, State, SystemClock, Tx
from duly.clock import from_ms
from duly.errors import InvalidOption, InvalidTime
from duly.model.job import FIVE_YEARS_MS
from tests.jobs.support import Database, Hire


@pytest.mark.spec("R53")
def test_a_delay_counts_from_now(app: Duly, clock: ManualClock, hire: Hire):
    @app.action
    def wave(ctx: Ctx) -> str:
        return "hello"

    in_seconds = app.run_after(90, wave)
    as_timedelta = app.run_after(timedelta(minutes=1.5), wave)
    assert in_seconds.run_at == as_timedelta.run_at == from_ms(clock.now() + 90_000)
    worker = hire()
    clock.advance(89.999)
    worker.work()
    assert in_seconds.state == State.PENDING

    clock.advance(0.001)
    worker.work()
    assert in_seconds.result(0) == "hello"
    assert as_timedelta.result(0) == "hello"


@pytest.mark.spec("R53")
def test_a_delay_of_zero_is_due_right_after_the_commit(app: Duly, hire: Hire):
    @app.action
    def wave(ctx: Ctx) -> str:
        return "hello"

    worker = hire()
    with app.transaction() as tx:
        job = tx.run_after(0, wave)
        worker.work()
        assert tx.job(job.id).state == State.PENDING

    worker.work()
    assert job.result(0) == "hello"


@pytest.mark.spec("R53")
def test_a_delay_that_is_no_length_of_time_is_refused(app: Duly, db: Database):
    @app.action
    def wave(ctx: Ctx) -> None: ...

    numbers = [-1, -0.001, float("nan"), float("inf"), -float("inf"), 1e306, 1 << 2000]
    others: list[Any] = [timedelta(seconds=-1), "5", None, True]
    for delay in numbers + others:
        with pytest.raises(InvalidTime, match="delay"):
            app.run_after(delay, wave)

    assert db.count("@jobs") == 0


@pytest.mark.spec("R54")
def test_an_instant_is_an_aware_datetime_or_milliseconds(app: Duly, clock: ManualClock):
    @app.action
    def wave(ctx: Ctx) -> None: ...

    nine_in_istanbul = datetime(2026, 1, 5, 9, 0, 0, 250_000, timezone(timedelta(hours=3)))
    by_datetime = app.run_at(nine_in_istanbul, wave)
    by_milliseconds = app.run_at(round(nine_in_istanbul.timestamp() * 1000), wave)

    assert by_datetime.run_at == by_milliseconds.run_at == nine_in_istanbul
    assert by_datetime.run_at.tzinfo == UTC


@pytest.mark.spec("R54")
def test_an_instant_without_a_zone_or_of_another_kind_is_refused(app: Duly, db: Database):
    @app.action
    def wave(ctx: Ctx) -> None: ...

    naive = datetime(2026, 1, 5, 9)  # noqa: DTZ001
    others: list[Any] = [1.5e12, "2026-01-05T09:00Z", None, True]
    for when in [naive, *others]:
        with pytest.raises(InvalidTime):
            app.run_at(when, wave)

    assert db.count("@jobs") == 0


@pytest.mark.spec("R55")
def test_an_instant_in_the_past_is_due_now_and_remembered(
    app: Duly, clock: ManualClock, hire: Hire
):
    @app.action
    def wave(ctx: Ctx) -> str:
        return "late"

    yesterday = from_ms(clock.now()) - timedelta(days=1)
    job = app.run_at(yesterday, wave)

    assert job.scheduled_at == yesterday
    assert job.run_at == from_ms(clock.now())
    hire().work()
    assert job.result(0) == "late"
    assert app.job(job.id).scheduled_at == yesterday


@pytest.mark.spec("R56")
@pytest.mark.parametrize("side", [-1, 1])
def test_five_years_are_the_limit_on_either_side(
    app: Duly, db: Database, clock: ManualClock, side: int
):
    @app.action
    def wave(ctx: Ctx) -> None: ...

    edge = clock.now() + side * FIVE_YEARS_MS
    app.run_at(edge, wave)
    app.run_at(from_ms(edge), wave)
    for too_far in (edge + side, from_ms(edge) + timedelta(milliseconds=side), edge * 1000):
        with pytest.raises(InvalidTime, match="five years"):
            app.run_at(too_far, wave)

    assert db.count("@jobs") == 2


@pytest.mark.spec("R56")
def test_a_delay_of_more_than_five_years_is_refused(app: Duly, db: Database):
    @app.action
    def wave(ctx: Ctx) -> None: ...

    app.run_after(timedelta(milliseconds=FIVE_YEARS_MS), wave)
    with pytest.raises(InvalidTime, match="five years"):
        app.run_after(timedelta(milliseconds=FIVE_YEARS_MS + 1), wave)
    with pytest.raises(InvalidTime, match="five years"):
        app.run_after(timedelta.max, wave)

    assert db.count("@jobs") == 1


@pytest.mark.spec("R53", "R54", "R56")
def test_a_refused_time_inside_a_mutation_fails_it(app: Duly, db: Database, hire: Hire):
    @app.action
    def wave(ctx: Ctx) -> None: ...

    @app.mutation
    def plan(tx: Tx) -> None:
        tx.execute("INSERT INTO notes VALUES ('planned')")
        tx.run_after(-1, wave)

    job = app.run(plan)
    hire().work()

    assert job.state == State.FAILED
    assert job.error is not None
    assert "InvalidTime" in job.error.message
    assert db.notes() == []


@pytest.mark.spec("N23")
def test_an_expiry_that_makes_no_sense_is_refused(app: Duly, db: Database):
    @app.action
    def wave(ctx: Ctx) -> None: ...

    naive = datetime(2026, 1, 5)  # noqa: DTZ001
    others: list[Any] = [0, -5, float("nan"), 1e300, timedelta(days=4000), "soon"]
    for expires in [naive, *others]:
        with pytest.raises((InvalidTime, InvalidOption)):
            app.run(wave.using(expires=expires))

    assert db.count("@jobs") == 0


# Where "now" comes from


@pytest.mark.spec("R218")
def test_every_stored_instant_is_the_given_clocks(app: Duly, clock: ManualClock, hire: Hire):
    @app.mutation
    def wave(tx: Tx) -> None:
        clock.advance(2)

    clock.jump(20 * 365 * 86_400)
    start = from_ms(clock.now())
    job = app.run(wave)
    clock.advance(1)
    hire().work()

    assert job.created_at == job.scheduled_at == start
    assert job.started_at == start + timedelta(seconds=1)
    assert job.completed_at == start + timedelta(seconds=3)
    assert app.job(job.id).record.created_at == round(start.timestamp() * 1000)


@pytest.mark.spec("R218")
def test_a_clock_that_steps_back_runs_nothing_a_second_time(
    app: Duly, db: Database, clock: ManualClock, hire: Hire
):
    @app.mutation
    def note(tx: Tx, text: str) -> None:
        tx.execute("INSERT INTO notes VALUES (?)", (text,))

    worker = hire()
    done = app.run_after(10, note, "before")
    clock.advance(10)
    worker.work()

    clock.jump(-3600)
    again = app.run_after(5, note, "after")
    worker.work()
    assert done.state == State.SUCCEEDED
    assert db.notes() == ["before"]

    clock.advance(3600 + 10)
    worker.work()
    assert again.state == State.SUCCEEDED
    assert db.notes() == ["after", "before"]


@pytest.mark.spec("R218")
def test_a_job_runs_when_the_clock_steps_back_between_claim_and_finish(
    app: Duly, db: Database, clock: ManualClock, hire: Hire
):
    @app.action
    def wave(ctx: Ctx) -> str:
        clock.jump(-7200)
        return "once"

    job = app.run(wave)
    worker = hire()
    worker.work()
    clock.jump(7200)
    worker.work()

    assert job.result(0) == "once"
    assert db.count("@history") == 1


@pytest.mark.spec("R218")
def test_the_machines_clock_never_goes_back_for_duly():
    wall = iter([100.0, 90.0, 95.0, 101.5])
    clock = SystemClock(wall=lambda: next(wall), monotonic=lambda: 0.0)

    assert [clock.now() for _ in range(4)] == [100_000, 100_000, 100_000, 101_500]
