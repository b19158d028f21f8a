"""Schedules by rules and by several triggers: stored, ticked, changed, previewed and backfilled."""

from typing import Any
from zoneinfo import ZoneInfo

import pytest

from duly import AnyOf, At, Cron, Ctx, Duly, Every, Expect, ManualClock, Rule
from duly.clock import from_ms, to_ms
from duly.errors import InvalidOption
from duly.testing import drain
from tests.schedules.support import at, tick_all, utc

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def work(app: Duly):
    @app.action
    def work(ctx: Ctx) -> None: ...

    return work


def previewed(app: Duly, key: str, n: int = 4) -> list[str]:
    return [f"{tick.utc:%m-%d %H:%M}" for tick in app.schedules.preview(key, n)]


@pytest.mark.spec("N79")
def test_a_rule_ticks_catches_up_and_ends(app: Duly, clock: ManualClock, work: Any):
    rule = Rule("FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,WE;COUNT=5", utc(2026, 7, 6, 9), "Europe/Berlin")
    made = app.schedules.create("pay", work, trigger=rule, overlap="allow")
    assert (made.trigger, made.tz) == (rule, "Europe/Berlin")
    coming = ["07-06 09:00", "07-08 09:00", "07-20 09:00", "07-22 09:00", "08-03 09:00"]
    assert previewed(app, "pay", 10) == coming
    assert app.schedules.forecast(days=31).total == 4
    # No ticker runs: three ticks are late.
    at(clock, utc(2026, 7, 21))
    tick_all(app)
    assert [f"{tick.at:%m-%d %H:%M}" for tick in reversed(app.schedules.ticks("pay"))] == coming[:3]
    assert app.schedules.get("pay").next_tick == utc(2026, 7, 22, 9)
    # What does not concern its times changes nothing about them.
    assert app.schedules.update("pay", note="twice a month").next_tick == utc(2026, 7, 22, 9)
    moved = app.schedules.update("pay", tz="America/New_York")
    assert (moved.trigger.tz, moved.next_tick) == ("America/New_York", utc(2026, 7, 22, 15))
    app.schedules.update("pay", trigger=rule)
    for _ in range(2):
        at(clock, app.schedules.get("pay").next_tick)  # type: ignore[arg-type]
        tick_all(app)
        drain(app)
    assert (app.schedules.get("pay").status, previewed(app, "pay")) == ("ended", [])
    # One that was made later is backfilled by the same rule.
    app.schedules.create("late", work, trigger=Rule("FREQ=DAILY;INTERVAL=3", utc(2026, 7, 2)))
    filled = app.schedules.backfill("late", utc(2026, 7, 1), utc(2026, 7, 12))
    assert [tick.at.day for tick in filled] == [2, 5, 8, 11]
    assert app.schedules.get("late").next_tick == utc(2026, 8, 4)


@pytest.mark.spec("N80")
def test_any_of_several_triggers_dispatches_once(app: Duly, clock: ManualClock, work: Any):
    trigger = AnyOf(
        Cron("0 9 * * *", "Europe/Berlin"),
        Every(6 * 3_600_000),
        At.of(utc(2026, 7, 1, 7)),
        Rule("FREQ=DAILY;BYHOUR=12", utc(2026, 7, 1)),
    )
    app.schedules.create("often", work, trigger=trigger, overlap="allow", catch_up=100)
    # Its interval counts from now; 07:00, 12:00 and 18:00 are each given by two of them, or one.
    expected = ["07-01 06:00", "07-01 07:00", "07-01 12:00", "07-01 18:00", "07-02 00:00"]
    assert previewed(app, "often", 5) == expected
    at(clock, utc(2026, 7, 1, 10))
    tick_all(app)
    assert [tick.at.hour for tick in reversed(app.schedules.ticks("often"))] == [6, 7]
    # The same triggers again, now or after another change: the interval keeps its phase.
    assert app.schedules.update("often", trigger=trigger).next_tick == utc(2026, 7, 1, 12)
    assert app.schedules.update("often", catch_up=3).next_tick == utc(2026, 7, 1, 12)
    less = app.schedules.update("often", trigger=AnyOf(Every(6 * 3_600_000), Every(10 * 3_600_000)))
    assert less.next_tick == utc(2026, 7, 1, 12)
    assert previewed(app, "often", 3) == ["07-01 12:00", "07-01 18:00", "07-01 20:00"]
    assert [row.words for row in app.observe.schedules().rows] == ["Every 6 hours; every 10 hours"]


@pytest.mark.spec("N79", "N80")
def test_declared_rules_and_several_triggers_stay_as_they_are(app: Duly, clock: Any, work: Any):
    def declare(app: Duly, rule: str) -> None:
        app.schedule("pay", work, trigger=Rule(rule, utc(2026, 7, 3, 9)))
        app.schedule("often", work, trigger=AnyOf(Every(7_000), Cron("H 9 * * *")))

    declare(app, "FREQ=DAILY;INTERVAL=2")
    app.schedules.apply()
    first = {key: app.schedules.get(key).next_tick for key in ("pay", "often")}
    assert first == {"pay": utc(2026, 7, 3, 9), "often": utc(2026, 7, 1, 0, 0, 7)}
    clock.advance(3)
    assert not app.schedules.plan().changes
    app.schedules.apply()
    assert {key: app.schedules.get(key).next_tick for key in first} == first


@pytest.mark.spec("N79", "N80")
def test_what_ticks_too_often_is_refused(app: Duly, clock: ManualClock, work: Any):
    start = utc(2026, 7, 1)
    for text in (
        "FREQ=SECONDLY;INTERVAL=30",
        "FREQ=MINUTELY;BYSECOND=0,30",
        "FREQ=DAILY;BYSECOND=0,59",
        "FREQ=MINUTELY;BYSECOND=0,59",
        "FREQ=SECONDLY;BYSECOND=0,1;BYMINUTE=0",
    ):
        with pytest.raises(InvalidOption, match=r"rule: .* ticks more than once a minute"):
            app.schedules.create("fast", work, trigger=Rule(text, start))
    app.schedule("declared", work, trigger=Rule("FREQ=SECONDLY;INTERVAL=30", start))
    for text in ("FREQ=MINUTELY", "FREQ=SECONDLY;INTERVAL=60", "FREQ=SECONDLY;BYSECOND=0"):
        made = app.schedules.create(text, work, trigger=Rule(text, start))
        assert made.next_tick == utc(2026, 7, 1, 0, 1)
    with pytest.raises(InvalidOption, match="every: the shortest interval is 300 s"):
        app.schedules.create("fast", work, trigger=AnyOf(Every(60_000), Cron("0 9 * * *")))
    minutely = Rule("FREQ=MINUTELY", utc(2026, 7, 1, 0, 0, 30))
    with pytest.raises(InvalidOption, match="together, the triggers tick more than once a minute"):
        app.schedules.create("fast", work, trigger=AnyOf(Cron("* * * * *"), minutely))
    app.schedules.create("fine", work, trigger=AnyOf(Cron("* * * * *"), Cron("*/5 * * * *")))


@pytest.mark.spec("N79", "N80")
def test_shifts_expectations_and_windows_apply(app: Duly, clock: ManualClock, work: Any):
    rule = Rule("FREQ=DAILY", utc(2026, 7, 1, 9), "Europe/Berlin")
    app.calendars.create(
        "closed", "skip_dates", tz="Europe/Berlin", dates=["2026-07-02", "2027-01-01"]
    )
    app.schedules.create("shifted", work, trigger=rule, calendar="closed", shift="next")
    shifted = [f"{tick.due:%m-%d %H:%M}" for tick in app.schedules.preview("shifted", 3)]
    assert shifted == ["07-01 09:00", "07-03 09:00", "07-03 09:00"]
    for trigger in (
        Rule("FREQ=DAILY;BYHOUR=9,10", utc(2026, 7, 1)),
        Rule("FREQ=HOURLY;INTERVAL=24", utc(2026, 7, 1)),
        AnyOf(Cron("0 9 * * *"), Cron("0 10 * * *")),
    ):
        with pytest.raises(InvalidOption, match="at most once a day"):
            app.schedules.create("no", work, trigger=trigger, calendar="closed", shift="next")
    expecting = app.schedules.create("by", work, trigger=rule, expect=Expect(by="11:00"))
    assert expecting.record.expect_at == to_ms(utc(2026, 7, 1, 9))
    app.schedules.create(
        "window", work, trigger=rule, start_at=utc(2026, 7, 5), end_at=utc(2026, 7, 6, 23)
    )
    assert previewed(app, "window") == ["07-05 09:00", "07-06 09:00"]
    over = Rule("FREQ=DAILY;COUNT=2", utc(2026, 6, 1))
    with pytest.raises(InvalidOption, match="it would never run"):
        app.schedules.create("over", work, trigger=over)
    wrong: Any
    for wrong in ("FREQ=DAILY", {"kind": "rule"}):
        with pytest.raises(InvalidOption, match="must be a Cron, Every, At, Rule or AnyOf"):
            app.schedules.create("wrong", work, trigger=wrong)
    with pytest.raises(InvalidOption, match="goes with cron or every"):
        app.schedules.create("wrong", work, trigger=rule, tz="UTC")
    assert from_ms(rule.upcoming(1, 0)[0]) == utc(2026, 7, 1, 9)
