"""How much is to come, and how schedules do."""

import pytest

from duly import Ctx, Duly, ManualClock
from duly.clock import from_ms
from duly.errors import InvalidOption
from duly.testing import drain
from tests.schedules.support import at, tick_all, utc


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def work(app: Duly):
    @app.action
    def work(ctx: Ctx) -> None: ...

    return work


@pytest.mark.spec("N15")
def test_the_forecast_counts_what_the_ticker_will_dispatch(app, clock, db, work):
    free = {"overlap": "allow"}
    app.schedules.create("hourly", work, cron="30 * * * *", **free)
    app.schedules.create("often", work, every=1800, **free)
    app.schedules.create("morning", work, cron="30 9 * * *", **free)
    holidays = "us-federal-holidays-2026"
    app.schedules.create("holiday", work, cron="30 9 * * *", calendar=holidays, **free)
    app.schedules.create("twice", work, cron="0 * * * *", remaining=2, **free)
    app.schedules.create("soon over", work, cron="0 * * * *", end_at=utc(2026, 7, 1, 3), **free)
    app.schedules.create("off", work, cron="* * * * *", enabled=False)

    foreseen = app.schedules.forecast(days=4)
    assert (from_ms(foreseen.start), len(foreseen.hours)) == (utc(2026, 7, 1), 96)
    assert (foreseen.complete, foreseen.schedules) == (True, 6)

    counted = [0] * 96
    for half in range(1, 192):
        at(clock, from_ms(foreseen.start + half * 1_800_000))
        before = db.scalar("SELECT count(*) FROM @jobs")
        tick_all(app)
        counted[half // 2] += db.scalar("SELECT count(*) FROM @jobs") - before
    assert counted == list(foreseen.hours)
    assert foreseen.total == sum(counted)
    # 3 July is a holiday.
    busy = [from_ms(minute.at) for minute in foreseen.busiest if minute.dispatches == 4]
    assert busy == [utc(2026, 7, 1, 9, 30), utc(2026, 7, 2, 9, 30), utc(2026, 7, 4, 9, 30)]
    dispatches = [minute.dispatches for minute in foreseen.busiest]
    assert dispatches == sorted(dispatches, reverse=True)


def test_what_comes_before_the_start_uses_up_what_remains(app, work):
    app.schedules.create("thrice", work, cron="0 9 * * *", remaining=3)
    assert app.schedules.forecast().total == 3
    assert app.schedules.forecast(start=utc(2026, 7, 3)).total == 1
    assert app.schedules.forecast(start=utc(2026, 8, 1)).total == 0
    app.schedules.update("thrice", remaining=None)
    assert app.schedules.forecast(start=utc(2026, 8, 1)).total == 7
    # One that was moved stands where it was moved to, and one with jitter up to a day later.
    app.schedules.update("thrice", cron="0 9 1 * *")
    app.schedules.move_next("thrice", utc(2026, 7, 20))
    assert app.schedules.forecast(start=utc(2026, 7, 19), days=3).total == 1
    app.schedules.update("thrice", cron="0 0 * * *", jitter=86_400)
    assert 60 <= app.schedules.forecast(start=utc(2026, 8, 1), days=62).total <= 64


def test_what_is_due_already_uses_up_what_remains(app, clock, work):
    app.schedules.create("thrice", work, cron="0 9 * * *", remaining=3, overlap="allow")
    app.schedules.create("strict", work, cron="0 9 * * *", remaining=3, catch_up=0)
    # No ticker runs: the one will catch up both, the other none.
    at(clock, utc(2026, 7, 2, 12))
    assert app.schedules.forecast().total == 1 + 3
    tick_all(app)
    assert app.schedules.forecast().total == 1 + 3


def test_a_schedule_that_cannot_be_read_is_left_out(app, db, work):
    app.schedules.create("broken", work, cron="0 9 * * *")
    app.schedules.create("sound", work, cron="0 9 * * *")
    db.execute("UPDATE @schedules SET trigger = '{}' WHERE key = 'broken'")
    foreseen = app.schedules.forecast()
    assert (foreseen.schedules, foreseen.total) == (1, 7)


def test_a_tick_that_an_operator_skips_is_not_counted(app, work):
    app.schedules.create("digest", work, cron="0 9 * * *", remaining=3)
    app.schedules.skip_next("digest")
    assert app.schedules.forecast(days=1).total == 0
    assert app.schedules.forecast(days=7).total == 3


@pytest.mark.spec("N82")
def test_a_forecast_counts_each_schedule_however_often_it_ticks(app, work):
    # Berlin sets its clocks back on 25 October, so the clock shows an hour twice.
    app.schedule("every second", work, cron="* * * * * *", tz="Europe/Berlin")
    app.schedule("interval", work, every=1)
    app.schedule("night", work, cron="30 2 * * *", tz="Europe/Berlin")
    app.schedules.apply()
    start = utc(2026, 9, 1)
    foreseen = app.schedules.forecast(start=start, days=92)
    assert foreseen.complete
    assert [(share.key, share.dispatches) for share in foreseen.by_schedule] == [
        ("every second", 92 * 86_400),
        ("interval", 92 * 86_400),
        ("night", 92),
    ]
    assert foreseen.total == 92 * 2 * 86_400 + 92
    assert set(foreseen.hours) == {7_200, 7_201}
    assert [minute.dispatches for minute in foreseen.busiest] == [121] * 10
    assert from_ms(foreseen.busiest[0].at) == utc(2026, 9, 1, 0, 30)


def test_a_forecast_reaches_no_further_than_three_months(app):
    for days in (0, 93, True, 1.5):
        with pytest.raises(InvalidOption, match="days"):
            app.schedules.forecast(days=days)


def health(app: Duly) -> dict[str, str]:
    return {found.key: str(found.state) for found in app.schedules.health()}


def test_health_says_who_is_late_and_who_only_waits(app, clock, work):
    app.schedules.create("fine", work, cron="0 * * * *")
    app.schedules.create("off", work, cron="0 * * * *", enabled=False)
    app.schedules.create("yearly", work, cron="0 0 1 1 *")
    app.schedules.create("strict", work, cron="0 * * * *", catch_up=0)
    at(clock, utc(2026, 7, 1, 1))
    tick_all(app)
    drain(app)
    assert health(app) == {"fine": "ok", "off": "paused", "yearly": "never_ran", "strict": "ok"}

    # No ticker runs for more than an hour.
    at(clock, utc(2026, 7, 1, 2, 10))
    [found] = app.schedules.health("fine")
    assert (found.state, found.lag_ms) == ("missed", 600_000)
    assert "is a ticker running" in found.why
    tick_all(app)
    drain(app)
    assert health(app) == {"fine": "ok", "off": "paused", "yearly": "never_ran", "strict": "missed"}
    app.functions.pause("work")
    assert set(health(app).values()) == {"paused"}
