"""Schedules as data: made, changed, listed, owned; and everything that is refused at the edge."""

import asyncio
import inspect
import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Annotated, Any

import pytest

from duly import (
    Budget,
    CalendarNotFound,
    Cron,
    Ctx,
    Duly,
    DulyError,
    Every,
    Expect,
    InvalidCondition,
    InvalidCron,
    InvalidRotation,
    Limit,
    ManualClock,
    Redact,
    ScheduleExists,
    ScheduleNotFound,
    Schedules,
    StaleVersion,
    Tx,
    UnknownZone,
    daily,
    every,
    hourly,
    monthly,
    weekly,
)
from duly.clock import to_ms
from duly.errors import InvalidOption, InvalidTime, JobFailed
from duly.testing import drain
from tests.jobs.support import Database
from tests.schedules.support import at, dump, ledger, tick_all, utc

DAY = timedelta(days=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def post(app: Duly) -> Any:
    @app.action
    def post(ctx: Ctx, audience: str = "all", tone: str = "neutral") -> str:
        return f"{audience}:{tone}"

    return post


# What is refused ---------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, Any], type[DulyError], str]] = {
    "bad cron": ({"cron": "61 * * * *"}, InvalidCron, "minute"),
    "cron of four fields": ({"cron": "* * * *"}, InvalidCron, "expression"),
    "cron that is no text": ({"cron": 5}, InvalidOption, "cron"),
    "a day that never comes": ({"cron": "0 0 31 2 *"}, InvalidCron, "day of month"),
    "unknown zone": ({"cron": "0 9 * * *", "tz": "Mars/Base"}, UnknownZone, "tz"),
    "unknown zone of an interval": ({"every": 600, "tz": "Mars/Base"}, UnknownZone, "tz"),
    "a zone for an instant": ({"at": utc(2026, 7, 2), "tz": "Europe/Paris"}, InvalidOption, "tz"),
    "more than once a minute": ({"cron": "5,35 * * * * *"}, InvalidOption, "cron"),
    "at once by the clock": (
        {"cron": "0 9 * * *", "fire_at_once": True},
        InvalidOption,
        "fire_at_once",
    ),
    "at once, and anchored": (
        {"every": Every(600_000, 7), "fire_at_once": True},
        InvalidOption,
        "fire_at_once",
    ),
    "under the floor": ({"every": timedelta(milliseconds=299_999)}, InvalidOption, "every"),
    "under the floor, as a trigger": ({"trigger": Every(299_999)}, InvalidOption, "every"),
    "no interval": ({"every": math.nan}, InvalidOption, "every"),
    "half a millisecond": ({"every": 600.00055}, InvalidOption, "every"),
    "no trigger": ({}, InvalidOption, "trigger"),
    "two triggers": ({"cron": "0 9 * * *", "every": 600}, InvalidOption, "trigger"),
    "no such trigger": ({"trigger": "daily"}, InvalidOption, "trigger"),
    "in the past": ({"at": utc(2026, 6, 1)}, InvalidOption, "trigger"),
    "naive": ({"at": datetime(2026, 8, 1)}, InvalidTime, "at"),  # noqa: DTZ001
    "naive start": ({"every": 600, "start_at": datetime(2026, 8, 1)}, InvalidTime, "start_at"),  # noqa: DTZ001
    "naive end": ({"every": 600, "end_at": datetime(2026, 8, 1)}, InvalidTime, "end_at"),  # noqa: DTZ001
    "ends before it starts": (
        {"every": 600, "start_at": utc(2026, 8, 2), "end_at": utc(2026, 8, 1)},
        InvalidOption,
        "end_at",
    ),
    "ended": ({"every": 600, "end_at": utc(2026, 6, 1)}, InvalidOption, "trigger"),
    "unknown calendar": ({"every": 600, "calendar": "holidays"}, CalendarNotFound, "calendar"),
    "no calendar": ({"every": 600, "calendar": 5}, InvalidOption, "calendar"),
    "shift without a calendar": ({"every": 600, "shift": "next"}, InvalidOption, "shift"),
    "no condition": ({"every": 600, "condition": "ok"}, InvalidCondition, "condition"),
    "no operator": ({"every": 600, "condition": {"/a": {"is": 1}}}, InvalidCondition, "condition"),
    "no rotation": ({"every": 600, "rotation": {"audience": "a"}}, InvalidRotation, "rotation"),
    "rotation of words": ({"every": 600, "rotation": ["tech"]}, InvalidRotation, "rotation"),
    "rotation that does not fit": (
        {"every": 600, "rotation": [{"audience": "a"}, {"volume": 11}]},
        InvalidRotation,
        "rotation",
    ),
    "rotation of another type": (
        {"every": 600, "rotation": [{"audience": 5}]},
        InvalidRotation,
        "rotation",
    ),
    "catch_up below": ({"every": 600, "catch_up": -1}, InvalidOption, "catch_up"),
    "catch_up above": ({"every": 600, "catch_up": 1_001}, InvalidOption, "catch_up"),
    "catch_up of a kind": ({"every": 600, "catch_up": True}, InvalidOption, "catch_up"),
    "catch_up_window": ({"every": 600, "catch_up_window": 0}, InvalidOption, "catch_up_window"),
    "jitter": ({"every": 600, "jitter": timedelta(days=2)}, InvalidOption, "jitter"),
    "negative jitter": ({"every": 600, "jitter": -1}, InvalidOption, "jitter"),
    "overlap": ({"every": 600, "overlap": "queue"}, InvalidOption, "overlap"),
    "budget": ({"every": 600, "budget": 5}, InvalidOption, "budget"),
    "remaining": ({"every": 600, "remaining": 0}, InvalidOption, "remaining"),
    "enabled": ({"every": 600, "enabled": "no"}, InvalidOption, "enabled"),
    "note": ({"every": 600, "note": "a\0b"}, InvalidOption, "note"),
    "by": ({"every": 600, "by": ""}, InvalidOption, "by"),
    "owner": ({"every": 600, "owner": "\n"}, InvalidOption, "owner"),
    "unknown option": ({"every": 600, "frequency": 1}, InvalidOption, "frequency"),
}


@pytest.mark.spec("R18", "R20")
@pytest.mark.parametrize(("options", "error", "field"), BAD.values(), ids=BAD)
def test_bad_input_is_refused_by_its_name_and_nothing_is_written(
    app: Duly, db: Database, post: Any, options: Any, error: type[DulyError], field: str
):
    before = dump(db)
    with pytest.raises(error) as raised:
        app.schedules.create("digest", post, **options)
    refused: Any = raised.value
    assert refused.field == field
    assert refused.reason
    assert isinstance(refused.hint, str)
    assert dump(db) == before


# Without any option nothing is changed, and an owner is not.
CHANGES = {name: bad for name, bad in BAD.items() if bad[0] and "owner" not in bad[0]}


@pytest.mark.parametrize(("options", "error", "field"), CHANGES.values(), ids=CHANGES)
def test_what_cannot_be_made_cannot_be_changed_into(
    app: Duly, db: Database, post: Any, options: Any, error: type[DulyError], field: str
):
    app.schedules.create("digest", post, every=600)
    before = dump(db)
    with pytest.raises(error):
        app.schedules.update("digest", **options)
    assert dump(db) == before


@pytest.mark.parametrize("key", ["", "a\nb", "\x00", 5, None, "x" * 1_000])
def test_a_key_is_printable(app: Duly, db: Database, post: Any, key: Any):
    before = dump(db)
    with pytest.raises(InvalidOption) as raised:
        app.schedules.create(key, post, every=600)
    assert raised.value.field == "key"
    assert dump(db) == before


def test_a_key_is_no_id(app: Duly, post: Any):
    schedule = app.schedules.create("digest", post, every=600)
    with pytest.raises(InvalidOption, match="looks like a schedule id"):
        app.schedules.create(schedule.id, post, every=600)


def test_a_key_is_taken_once(app: Duly, db: Database, post: Any):
    app.schedules.create("digest", post, every=600)
    app.schedules.create("digest", post, every=600, owner="anna")
    before = dump(db)
    for owner in (None, "anna"):
        with pytest.raises(ScheduleExists) as raised:
            app.schedules.create("digest", post, every=900, owner=owner)
        assert (raised.value.field, raised.value.hint) == (
            "key",
            "update it, or choose another key",
        )
    assert dump(db) == before


def test_only_functions_of_the_app_can_be_scheduled(app: Duly, post: Any):
    with pytest.raises(InvalidOption, match="must be a function of the app"):
        app.schedules.create("digest", print, every=600)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"unique": 1}, {"limit": Limit("k", at_once=1)}])
def test_what_goes_with_the_function_cannot_be_changed_by_a_schedule(app: Duly, post: Any, change):
    with pytest.raises(InvalidOption):
        app.schedules.create("digest", post.using(**change), every=600)


def test_a_mutation_cannot_make_or_run_schedules(app: Duly, post: Any):
    app.schedules.create("digest", post, every=600)

    @app.mutation
    def meddle(tx: Tx, verb: str) -> None:
        getattr(app.schedules, verb)("digest")

    for verb in ("run", "skip_next", "enable", "disable", "remove"):
        app.run(meddle, verb)
        with pytest.raises(JobFailed, match="UseTx"):
            drain(app)
    assert app.schedules.get("digest").version == 1


# Intervals ---------------------------------------------------------------------------------------


@pytest.mark.spec("R18")
def test_the_shortest_interval_is_five_minutes_unless_the_app_says_otherwise(
    app: Duly, url: str, clock: ManualClock, post: Any
):
    schedule = app.schedules.create("least", post, every=timedelta(milliseconds=300_000))
    assert schedule.next_tick == utc(2026, 7, 1, 0, 5)
    with pytest.raises(InvalidOption, match="declare it in code") as raised:
        app.schedules.create("less", post, every=timedelta(milliseconds=299_999))
    assert raised.value.option == "every"

    other = Duly(url, clock=clock, min_interval=timedelta(seconds=10))
    other.core.functions.register(post)
    assert other.schedules.create("often", post, every=10).next_tick == utc(2026, 7, 1, 0, 0, 10)
    with pytest.raises(InvalidOption, match="10 s"):
        other.schedules.create("too often", post, every=9.999)
    # What stands already may be changed in other ways.
    assert app.schedules.update("often", note="why so often?").note == "why so often?"
    with pytest.raises(InvalidOption, match="300 s"):
        app.schedules.update("often", every=11)
    other.close()


@pytest.mark.spec("R18")
def test_seconds_in_an_expression_do_not_get_around_the_shortest_interval(
    app: Duly, url: str, clock: ManualClock, post: Any
):
    # Once a minute is what five fields can say too.
    for n, cron in enumerate(["* * * * *", "30 * * * * *", "H * * * * *"]):
        assert app.schedules.create(f"s{n}", post, cron=cron).enabled
    for cron in ("* * * * * *", "0,59 0 0 * * *", "H/20 * * * * *"):
        with pytest.raises(InvalidOption, match="more than once a minute") as raised:
            app.schedules.update("s0", cron=cron)
        assert "in code" in (raised.value.hint or "")
    app.schedule("declared", post, cron="*/2 * * * * *")
    app.schedules.apply()
    assert app.schedules.get("declared").next_tick == utc(2026, 7, 1, 0, 0, 2)

    other = Duly(url, clock=clock, min_interval=timedelta(seconds=10))
    other.core.functions.register(post)
    assert other.schedules.create("often", post, cron="*/10 * * * * *").enabled
    assert other.schedules.create("seldom", post, cron="0,55 0 * * * *").enabled
    for cron in ("*/9 * * * * *", "0,55 * * * * *", "0,55 0,59 * * * *"):
        with pytest.raises(InvalidOption, match="min_interval"):
            other.schedules.create("too often", post, cron=cron)
    # What stands already may be changed in other ways.
    assert app.schedules.update("often", note="why so often?").note == "why so often?"
    other.close()


@pytest.mark.spec("R102")
def test_an_interval_counts_from_a_start_that_is_given_later(app: Duly, post: Any):
    def hour(key: str, **options: Any) -> tuple[int, int]:
        tick = app.schedules.update(key, **options).next_tick
        assert tick is not None
        return tick.hour, tick.minute

    app.schedules.create("s", post, every=3600)
    half_past = utc(2026, 7, 1, 0, 30)
    assert hour("s", start_at=half_past) == (0, 30)
    assert hour("s", every=3600, start_at=utc(2026, 7, 1, 0, 20)) == (0, 20)
    # The same start again, or the same interval, changes nothing.
    assert hour("s", start_at=utc(2026, 7, 1, 0, 20), every=3600) == (0, 20)
    assert hour("s", every=3600) == (0, 20)
    assert hour("s", start_at=None) == (1, 0)
    # An anchor that is given says it all.
    quarter = Every(3_600_000, to_ms(utc(2026, 7, 1, 0, 15)))
    assert hour("s", trigger=quarter, start_at=half_past) == (1, 15)


def test_what_is_made_already_cannot_fire_at_once(app: Duly, db: Database, post: Any):
    app.schedules.create("s", post, every=3600)
    before = dump(db)
    with pytest.raises(InvalidOption, match="run it now") as raised:
        app.schedules.update("s", fire_at_once=True)
    assert raised.value.option == "fire_at_once"
    assert dump(db) == before
    app.schedules.update("s", fire_at_once=False)


def test_a_schedule_whose_alert_function_is_gone_can_be_changed(
    app: Duly, url: str, clock: ManualClock, post: Any
):
    @app.action
    def tell(ctx: Ctx, schedule_id: str, problem: str) -> None: ...

    expect = Expect(every=3600)
    app.schedules.create("s", post, cron="0 9 * * *", expect=expect, alert=tell)
    other = Duly(url, clock=clock)
    other.core.functions.register(post)
    changed = other.schedules.update("s", note="x", expect=Expect(every=7200))
    assert (changed.note, changed.alert, changed.expect) == ("x", "tell", Expect(every=7200))
    with pytest.raises(InvalidOption, match="expect"):
        other.schedules.update("s", expect=None)
    changed = other.schedules.update("s", alert=None, expect=None)
    assert (changed.alert, changed.expect) == (None, None)
    other.close()


def test_a_promise_that_cannot_be_read_can_be_replaced(app: Duly, db: Database, post: Any):
    app.schedules.create("s", post, cron="0 9 * * *", expect=Expect(every=3600))
    db.execute("UPDATE @schedules SET expect = '{}'")
    assert app.schedules.update("s", expect=Expect(every=7200)).expect == Expect(every=7200)


@pytest.mark.parametrize("option", ["min_interval", "signal_timeout"])
def test_settings_are_lengths_of_time(url: str, option: str):
    with pytest.raises(InvalidOption, match="positive"):
        Duly(url, **{option: timedelta(0)})  # type: ignore[arg-type]


@pytest.mark.spec("R19")
def test_an_interval_does_not_see_clocks_change(app: Duly, clock: ManualClock, post: Any):
    at(clock, utc(2026, 10, 24, 12))
    app.schedules.create("daily", post, every=DAY)
    ticks = [row.utc for row in app.schedules.preview("daily", 3, tz="Europe/Berlin")]
    assert ticks == [utc(2026, 10, 25, 12), utc(2026, 10, 26, 12), utc(2026, 10, 27, 12)]
    assert app.schedules.get("daily").tz == "UTC"


@pytest.mark.spec("R19")
def test_the_zone_of_an_interval_has_no_effect(app: Duly, clock: ManualClock, post: Any):
    at(clock, utc(2026, 10, 24, 12))
    closed = ["2026-10-25", "2026-12-31"]
    app.calendars.create("closed", "skip_dates", dates=closed, tz="America/New_York")
    moved: dict[str, Any] = {"every": DAY, "calendar": "closed", "shift": "next"}
    app.schedules.create("plain", post, **moved, expect=Expect(by="07:00"))
    zoned = app.schedules.create("zoned", post, **moved, tz="Europe/Berlin")
    zoned = app.schedules.update("zoned", expect=Expect(by="07:00"))
    assert zoned.tz == "Europe/Berlin"
    plain, rows = app.schedules.preview("plain", 4), app.schedules.preview("zoned", 4)
    assert [(row.utc, row.due) for row in rows] == [(row.utc, row.due) for row in plain]
    assert rows[0].due != rows[0].utc, "moved by a day, whose clock is set back in Berlin"
    assert zoned.record.expect_at == app.schedules.get("plain").record.expect_at
    assert rows[0].local.utcoffset() == timedelta(hours=1), "Berlin's clock, to read it by"


@pytest.mark.spec("R19")
def test_another_zone_of_an_interval_changes_no_tick(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create("digest", post, every=3600)
    clock.advance(2 * 3600 + 600)
    due = app.schedules.get("digest").next_tick
    changed = app.schedules.update("digest", tz="Asia/Tokyo")
    assert (changed.tz, changed.next_tick) == ("Asia/Tokyo", due), "an overdue tick stays due"
    tick_all(app)
    assert len(app.schedules.ticks("digest")) == 2
    with pytest.raises(UnknownZone):
        app.schedules.update("digest", tz="Mars/Olympus")


@pytest.mark.spec("R19")
def test_from_cron_to_an_interval_and_back_the_zone_stays(app: Duly, post: Any):
    app.schedules.create("digest", post, cron="0 9 * * *", tz="Asia/Tokyo")
    assert app.schedules.update("digest", every=3600).tz == "Asia/Tokyo"
    assert app.schedules.update("digest", every=Every(7_200_000)).tz == "Asia/Tokyo"
    assert app.schedules.update("digest", start_at=utc(2026, 7, 3)).tz == "Asia/Tokyo"
    back = app.schedules.update("digest", cron="0 9 * * *", start_at=None)
    assert (back.tz, back.next_tick) == ("Asia/Tokyo", utc(2026, 7, 2, 0))
    assert app.schedules.update("digest", every=3600, tz=None).tz == "UTC"
    own = Every(3_600_000, tz="Europe/Berlin")
    assert app.schedules.update("digest", every=own).tz == "Europe/Berlin"


@pytest.mark.spec("R20")
def test_no_zone_is_utc(app: Duly, post: Any):
    schedule = app.schedules.create("digest", post, cron="0 9 * * *", tz=None)
    assert (schedule.tz, schedule.next_tick) == ("UTC", utc(2026, 7, 1, 9))
    schedule = app.schedules.update("digest", tz="Asia/Tokyo")
    assert (schedule.tz, schedule.next_tick) == ("Asia/Tokyo", utc(2026, 7, 2, 0))
    assert app.schedules.update("digest", tz=None).tz == "UTC"


@pytest.mark.spec("R20")
def test_an_empty_zone_is_refused(app: Duly, post: Any):
    app.schedules.create("digest", post, cron="0 9 * * *", tz="Asia/Tokyo")
    app.calendars.create("closed", "skip_dates", dates=["2026-10-26"], tz="Asia/Tokyo")
    for asked in (
        lambda: app.schedules.create("other", post, cron="0 9 * * *", tz=""),
        lambda: app.schedules.create("other", post, every=3600, tz=""),
        lambda: app.schedules.update("digest", tz=""),
        lambda: app.schedules.preview("digest", tz=""),
        lambda: app.calendars.create("open", "skip_dates", dates=["2026-10-26"], tz=""),
        lambda: app.calendars.update("closed", tz=""),
        lambda: app.observe.schedules(tz=""),
        lambda: app.tokens.create("ann", ["read"], tz=""),
    ):
        with pytest.raises(UnknownZone, match="an empty string is not a time zone"):
            asked()
    assert [schedule.tz for schedule in app.schedules.list()] == ["Asia/Tokyo"]
    assert app.calendars.get("closed").tz == "Asia/Tokyo"


@pytest.mark.spec("R99")
@pytest.mark.parametrize(
    "make",
    [
        lambda: every(seconds=1, minutes=1),
        lambda: every(),
        lambda: every(hours=0),
        lambda: every(minutes=1.5),  # type: ignore[arg-type]
        lambda: hourly(60),
        lambda: daily(24),
        lambda: daily(9, 60),
        lambda: weekly("someday", 9),
        lambda: monthly(0, 9),
        lambda: monthly(32, 9),
    ],
)
def test_triggers_have_ranges(make: Callable[[], Any]):
    with pytest.raises(DulyError):
        make()


@pytest.mark.spec("R99")
def test_triggers_by_their_names(app: Duly, post: Any):
    made = {
        "every": app.schedules.create("every", post, every=every(hours=6)),
        "hourly": app.schedules.create("hourly", post, trigger=hourly(15)),
        "daily": app.schedules.create("daily", post, trigger=daily(9, 30)),
        "weekly": app.schedules.create("weekly", post, trigger=weekly("fri", 9, 0)),
        "monthly": app.schedules.create("monthly", post, trigger=monthly(31, 9, 0)),
    }
    assert {key: schedule.next_tick for key, schedule in made.items()} == {
        "every": utc(2026, 7, 1, 6),
        "hourly": utc(2026, 7, 1, 0, 15),
        "daily": utc(2026, 7, 1, 9, 30),
        "weekly": utc(2026, 7, 3, 9),
        "monthly": utc(2026, 7, 31, 9),
    }
    months = [row.utc.month for row in app.schedules.preview("monthly", 5)]
    assert months == [7, 8, 10, 12, 1]


# Changing ----------------------------------------------------------------------------------------


@pytest.mark.spec("R33")
def test_another_cron_or_zone_counts_from_now(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create("digest", post, cron="0 9 * * *", tz="Europe/Istanbul")
    at(clock, utc(2026, 7, 1, 12))
    changed = app.schedules.update("digest", cron="0 18 * * *")
    assert (changed.tz, changed.next_tick) == ("Europe/Istanbul", utc(2026, 7, 1, 15))
    assert app.schedules.update("digest", tz="America/New_York").next_tick == utc(2026, 7, 1, 22)
    # The ticks that were due before are not caught up.
    tick_all(app)
    assert app.schedules.ticks("digest") == []


def test_what_does_not_concern_the_times_leaves_them(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create("digest", post, every=3600, jitter=60)
    before = app.schedules.get("digest")
    clock.advance(600)
    after = app.schedules.update("digest", post.bind("tech"), overlap="allow", note="x", by="anna")
    assert (after.next_tick, after.due) == (before.next_tick, before.due)
    assert after.arguments == {"audience": "tech"}
    assert (after.note, after.changed_by, after.version) == ("x", "anna", 2)
    assert app.schedules.update("digest", every=3600).next_tick == before.next_tick
    assert app.schedules.update("digest", every=7200).next_tick == utc(2026, 7, 1, 2, 10)
    assert app.schedules.update("digest", jitter=None).due == utc(2026, 7, 1, 2, 10)


def test_an_update_may_insist_on_the_version_it_has_seen(app: Duly, post: Any):
    seen = app.schedules.create("digest", post, every=600)
    app.schedules.update("digest", note="first")
    with pytest.raises(StaleVersion):
        app.schedules.update("digest", note="second", version=seen.version)
    assert app.schedules.update("digest", note="second", version=2).note == "second"


def test_updates_that_meet_are_all_made(app: Duly, post: Any, monkeypatch: pytest.MonkeyPatch):
    app.schedules.create("digest", post, every=600)
    store = app.core.ready()
    edit = store.edit_schedule
    meddled: list[int] = []

    def slow(schedule_id: str, *args: Any) -> Any:
        if not meddled:
            meddled.append(1)
            app.schedules.update("digest", overlap="allow")
        return edit(schedule_id, *args)

    monkeypatch.setattr(store, "edit_schedule", slow)
    assert app.schedules.update("digest", catch_up=3).policies.overlap == "allow"
    assert app.schedules.get("digest").policies.catch_up == 3


@pytest.mark.spec("N3")
def test_a_pause_has_a_note_and_an_actor(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create("digest", post, cron="0 9 * * *")
    at(clock, utc(2026, 7, 1, 9))
    paused = app.schedules.disable("digest", note="the feed is broken", by="anna")
    assert (paused.status, paused.note, paused.changed_by) == (
        "disabled",
        "the feed is broken",
        "anna",
    )
    assert (paused.next_tick, paused.due) == (None, None)
    tick_all(app)
    at(clock, utc(2026, 7, 4, 12))
    tick_all(app)
    assert app.schedules.ticks("digest") == []
    resumed = app.schedules.enable("digest", by="bert")
    assert (resumed.status, resumed.note, resumed.changed_by) == ("enabled", None, "bert")
    assert resumed.next_tick == utc(2026, 7, 5, 9)
    entries = app.core.ready().audit_of(f"schedule:{paused.id}")
    assert [(entry.action, entry.actor) for entry in entries] == [
        ("schedule.enable", "bert"),
        ("schedule.disable", "anna"),
        ("schedule.create", None),
    ]


@pytest.mark.spec("N3")
def test_it_ticks_between_start_and_end(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create(
        "digest",
        post,
        cron="0 9 * * *",
        start_at=utc(2026, 7, 3, 9),
        end_at=utc(2026, 7, 5, 9),
    )
    assert app.schedules.get("digest").next_tick == utc(2026, 7, 3, 9)
    for day in range(1, 9):
        at(clock, utc(2026, 7, day, 9))
        tick_all(app)
        drain(app)
    assert [tick.at.day for tick in app.schedules.ticks("digest")] == [5, 4, 3]
    ended = app.schedules.get("digest")
    assert (ended.status, ended.next_tick) == ("ended", None)
    # It can still be described differently, and brought back.
    assert app.schedules.update("digest", note="over").status == "ended"
    with pytest.raises(InvalidOption, match="it would never run"):
        app.schedules.update("digest", end_at=utc(2026, 7, 7, 9))
    assert app.schedules.update("digest", end_at=None).next_tick == utc(2026, 7, 9, 9)


@pytest.mark.spec("N78")
def test_a_cron_ends_with_its_years(app: Duly, clock: ManualClock, post: Any):
    with pytest.raises(InvalidOption, match="it would never run"):
        app.schedules.create("launch", post, cron="0 0 9 3 7 * 2025")
    launch = app.schedules.create("launch", post, cron="0 0 9 3 7 * 2026")
    assert launch.next_tick == utc(2026, 7, 3, 9)
    at(clock, utc(2026, 7, 3, 9))
    tick_all(app)
    launch = app.schedules.get("launch")
    assert (launch.status, launch.next_tick, launch.enabled) == ("ended", None, True)
    assert [*app.schedules.preview("launch", 5)] == []


@pytest.mark.spec("N3")
def test_remaining_counts_dispatches_and_no_skips(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create("digest", post, cron="0 9 * * *", remaining=2)
    app.functions.pause("post")
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    assert app.schedules.get("digest").remaining == 2
    app.functions.resume("post")
    for day in range(2, 6):
        at(clock, utc(2026, 7, day, 9))
        tick_all(app)
        drain(app)
    assert ledger(app, "digest") == [
        ("skipped", "target_paused"),
        ("dispatched", None),
        ("dispatched", None),
    ]
    assert app.schedules.get("digest").status == "ended"
    assert app.schedules.update("digest", cron="0 10 * * *").status == "ended"
    assert app.schedules.preview("digest") == []
    # An operator may run it, which brings nothing back.
    assert app.schedules.run("digest").outcome == "dispatched"
    assert app.schedules.get("digest").remaining == 0
    again = app.schedules.update("digest", remaining=1)
    assert (again.status, again.next_tick) == ("enabled", utc(2026, 7, 5, 10))


def test_to_say_again_how_many_remain_brings_nothing_back(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create("once", post, at=utc(2026, 7, 2, 9), remaining=2)
    app.schedules.move_next("once", utc(2026, 7, 1, 9))
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    done = app.schedules.get("once")
    assert (done.next_tick, done.remaining) == (None, 1)
    said = app.schedules.update("once", overlap="allow", remaining=1)
    assert said.next_tick is None


def test_what_cannot_be_read_any_more_is_parked_and_repaired_by_an_update(
    app: Duly, db: Database, clock: ManualClock, post: Any
):
    schedule = app.schedules.create("digest", post, cron="0 9 * * *")
    app.schedules.create("other", post, cron="0 9 * * *")
    db.execute("UPDATE @schedules SET trigger = '{}' WHERE id = ?", schedule.id)
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    [parked] = app.schedules.list(parked=True)
    assert (parked.key, parked.status) == ("digest", "parked")
    assert len(app.schedules.ticks("other")) == 1
    with pytest.raises(InvalidOption, match="cannot be read") as raised:
        app.schedules.preview("digest")
    assert raised.value.hint
    with pytest.raises(InvalidOption, match="exactly one of cron"):
        app.schedules.update("digest", note="x")
    repaired = app.schedules.update("digest", cron="0 10 * * *")
    assert (repaired.status, repaired.next_tick) == ("enabled", utc(2026, 7, 1, 10))
    assert repaired.error is None


# Owners ------------------------------------------------------------------------------------------

VERBS: dict[str, Callable[[Schedules, str], object]] = {
    "get": lambda s, key: s.get(key),
    "update": lambda s, key: s.update(key, note="mine"),
    "enable": lambda s, key: s.enable(key),
    "disable": lambda s, key: s.disable(key),
    "remove": lambda s, key: s.remove(key),
    "ticks": lambda s, key: s.ticks(key),
    "preview": lambda s, key: s.preview(key),
    "run": lambda s, key: s.run(key),
    "backfill": lambda s, key: s.backfill(key, utc(2026, 6, 1), utc(2026, 6, 2)),
    "skip_next": lambda s, key: s.skip_next(key),
    "move_next": lambda s, key: s.move_next(key, utc(2026, 7, 1, 8)),
    "attach": lambda s, key: s.attach(key, "us-federal-holidays-2026"),
    "detach": lambda s, key: s.detach(key),
    "set_rotation": lambda s, key: s.set_rotation(key, [{"audience": "mine"}]),
    "clear_rotation": lambda s, key: s.clear_rotation(key),
    "health": lambda s, key: s.health(key),
    "explain": lambda s, key: s.explain(key),
    "why": lambda s, key: s.why(key),
}
FOR_ALL = {"of", "create", "list", "forecast", "plan", "apply", "prune"}


def test_every_verb_is_tried_by_strangers():
    public = {name for name, _ in inspect.getmembers(Schedules, callable) if name[0] != "_"}
    assert public == VERBS.keys() | FOR_ALL


@pytest.mark.spec("R122", "R155")
@pytest.mark.parametrize("verb", VERBS)
def test_an_owner_neither_sees_nor_changes_what_belongs_to_others(
    app: Duly, db: Database, post: Any, verb: str
):
    others = [
        app.schedules.create("digest", post, cron="0 9 * * *"),
        app.schedules.of("bert").create("digest", post, cron="0 9 * * *"),
    ]
    anna = app.schedules.of("anna")
    before = dump(db)
    for name in ("digest", "nothing", *(other.id for other in others)):
        with pytest.raises(ScheduleNotFound):
            VERBS[verb](anna, name)
    with pytest.raises(ScheduleNotFound):
        VERBS[verb](anna, others[1])  # type: ignore[arg-type]
    assert dump(db) == before


@pytest.mark.spec("R122")
def test_owners_have_lists_and_calendars_of_their_own(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create("digest", post, cron="0 9 * * *")
    anna, bert = app.schedules.of("anna"), app.schedules.of("bert")
    mine = anna.create("digest", post, cron="0 9 * * *")
    assert (mine.owner, [s.id for s in anna.list()], bert.list()) == ("anna", [mine.id], [])
    assert len(app.schedules.list()) == 2
    assert [s.id for s in app.schedules.list(owner="anna")] == [mine.id]
    assert app.schedules.get(mine.id).key == "digest"
    with pytest.raises(InvalidOption, match="must be 'anna'"):
        anna.create("other", post, every=600, owner="bert")
    with pytest.raises(InvalidOption, match="must be 'anna'"):
        anna.list(owner="bert")
    for verb in (anna.plan, anna.apply, anna.prune):
        with pytest.raises(InvalidOption, match="belong to the app"):
            verb()

    app.calendars.of("anna").create("off", "skip_dates", dates=["2026-07-01", "2027-01-01"])
    with pytest.raises(CalendarNotFound):
        bert.create("digest", post, cron="0 9 * * *", calendar="off")
    with pytest.raises(CalendarNotFound):
        app.schedules.attach("digest", "off")
    assert anna.attach("digest", "off").calendar == "off"
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    assert anna.ticks("digest")[0].reason == "calendar"
    [job] = drain(app)
    assert job.record.owner is None
    at(clock, utc(2026, 7, 2, 9))
    tick_all(app)
    assert {job.record.owner for job in app.jobs(state="pending")} == {None, "anna"}


# Secrets -----------------------------------------------------------------------------------------


def test_what_is_redacted_is_never_shown(app: Duly, db: Database, clock: ManualClock):
    seen: list[str] = []

    @app.action
    def call(ctx: Ctx, token: Annotated[str, Redact], name: str = "a") -> None:
        seen.append(token)

    app.schedules.create("bound", call.bind("s3cret-1"), cron="0 9 * * *", overlap="allow")
    app.schedules.create(
        "turning", call.bind("s3cret-2"), cron="0 9 * * *", rotation=[{"token": "s3cret-3"}]
    )
    app.schedules.update("bound", call.bind("s3cret-4"), by="anna")
    app.schedules.set_rotation("turning", [{"token": "s3cret-5", "name": "b"}])
    with pytest.raises(DulyError) as raised:
        app.schedules.set_rotation("turning", [{"token": "s3cret-6", "nam": "b"}])
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    run = app.schedules.run("bound", inputs={"token": "s3cret-7"}, by="anna")
    filled = app.schedules.backfill("bound", utc(2026, 6, 1), utc(2026, 6, 2))
    drain(app)
    assert set(seen) == {"s3cret-4", "s3cret-5", "s3cret-7"}

    bound, turning = app.schedules.get("bound"), app.schedules.get("turning")
    assert bound.arguments == {"token": "***"}
    assert turning.rotation == [{"token": "***", "name": "b"}]
    assert app.schedules.preview("turning", 1)[0].inputs == {"token": "***", "name": "b"}
    shown = [
        bound,
        turning,
        bound.arguments,
        turning.rotation,
        str(raised.value),
        run,
        run.job,
        run.detail,
        *filled,
        *app.schedules.ticks("bound"),
        *app.schedules.preview("bound"),
        *app.schedules.preview("turning"),
        *(row for entry in (bound, turning) for row in _audited(app, entry.id)),
        *db.execute("SELECT detail FROM @audit"),
        *db.execute("SELECT detail FROM @ticks"),
    ]
    assert "s3cret" not in " ".join(map(repr, shown))


def _audited(app: Duly, schedule_id: str) -> Any:
    return app.core.ready().audit_of(f"schedule:{schedule_id}")


# Awaited -----------------------------------------------------------------------------------------


def test_the_verbs_awaited(app: Duly, post: Any):
    asyncio.run(_use_all(app, post))


async def _use_all(app: Duly, post: Any) -> None:
    schedules = app.aio.schedules
    made = await schedules.create("digest", post, cron="0 9 * * *", overlap="allow", by="anna")
    assert (await schedules.get("digest")).id == made.id
    assert [s.key for s in await schedules.list()] == ["digest"]
    with pytest.raises(ScheduleNotFound):
        await schedules.of("anna").get("digest")
    await schedules.set_rotation("digest", [{"audience": "tech"}, {"audience": "business"}])
    rows = await schedules.preview("digest", 2)
    assert [row.inputs for row in rows] == [{"audience": "tech"}, {"audience": "business"}]
    await schedules.clear_rotation("digest")
    await schedules.skip_next("digest")
    assert (await schedules.preview("digest", 1))[0].reason == "operator"
    assert (await schedules.move_next("digest", utc(2026, 7, 1, 8))).due == utc(2026, 7, 1, 8)
    await schedules.attach("digest", "us-federal-holidays-2026")
    await schedules.detach("digest")
    ticks = await schedules.backfill("digest", utc(2026, 6, 1), utc(2026, 6, 3), dry_run=True)
    assert len(ticks) == 2
    assert (await schedules.run("digest", inputs={"audience": "x"})).outcome == "dispatched"
    assert len(await schedules.ticks("digest", outcome="dispatched")) == 1
    assert (await schedules.update("digest", note="x")).note == "x"
    assert (await schedules.disable("digest")).status == "disabled"
    assert (await schedules.enable("digest")).status == "enabled"
    assert len(await schedules.health()) == 1
    await schedules.forecast(days=1)
    await schedules.remove("digest")
    with pytest.raises(ScheduleNotFound):
        await schedules.get("digest")


# Listing -----------------------------------------------------------------------------------------


def test_lists_are_pages(app: Duly, clock: ManualClock, post: Any):
    @app.action
    def other(ctx: Ctx) -> None: ...

    for n in range(5):
        app.schedules.create(f"post {n}", post, every=600, enabled=n % 2 == 0)
        clock.advance(0.001)
    app.schedules.create("other", other, cron="0 9 * * *", calendar="us-federal-holidays-2026")
    first = app.schedules.list(limit=4)
    rest = app.schedules.list(limit=4, after=first[-1].id)
    assert [s.key for s in first + rest] == [*(f"post {n}" for n in range(5)), "other"]
    assert len(app.schedules.list(function=post)) == len(app.schedules.list(function="post")) == 5
    assert len(app.schedules.list(enabled=False)) == 2
    assert [s.key for s in app.schedules.list(calendar="us-federal-holidays-2026")] == ["other"]
    bad: Any
    for bad in ({"limit": 0}, {"limit": 10_001}, {"after": "x"}, {"limit": "5"}):
        with pytest.raises(InvalidOption):
            app.schedules.list(**bad)
    for bad in ({"outcome": "done"}, {"reason": "because"}, {"limit": -1}):
        with pytest.raises(InvalidOption):
            app.schedules.ticks("other", **bad)
    with pytest.raises(InvalidTime):
        app.schedules.ticks("other", after=datetime(2026, 7, 1))  # noqa: DTZ001


def test_a_schedule_says_what_it_is(app: Duly, post: Any):
    schedule = app.schedules.create(
        "digest",
        post.bind("tech"),
        cron="0 9 * * 1-5",
        tz="Europe/Istanbul",
        condition={"/last_24h_stats/failed": {"lt": 3}},
        budget=Budget(runs=3, per=86_400),
        remaining=9,
    )
    read = app.schedules.get(schedule.id)
    assert repr(read) == "<schedule 'digest' of post: enabled>"
    assert isinstance(read.trigger, Cron)
    assert read.condition == {"/last_24h_stats/failed": {"lt": 3}}
    assert read.policies.budget == Budget(runs=3, per=86_400)
    assert (read.arguments, read.remaining, read.owner, read.declared) == (
        {"audience": "tech"},
        9,
        None,
        False,
    )


def test_what_cannot_be_named_or_read_is_said(app: Duly, clock: ManualClock, post: Any, db: Any):
    schedule = app.schedules.create("bad", post, cron="0 9 * * *")
    good = app.schedules.create("good", post, cron="0 9 * * *")
    for wrong in (5, None, b"bad"):
        with pytest.raises(InvalidOption, match="key"):
            app.schedules.get(wrong)  # type: ignore[arg-type]
    db.execute("UPDATE @schedules SET trigger = '{' WHERE id = ?", schedule.id)
    clock.advance(86_400)
    tick_all(app)
    assert [s.id for s in app.schedules.list(parked=True)] == [schedule.id]
    assert [s.id for s in app.schedules.list(parked=False)] == [good.id]
    now = clock.now()
    verbs: list[Callable[[], object]] = [
        lambda: app.schedules.run("bad"),
        lambda: app.schedules.enable("bad"),
        lambda: app.schedules.backfill("bad", now - 1000, now),
        lambda: app.schedules.backfill("bad", now - 1000, now, dry_run=True),
        lambda: app.schedules.preview("bad"),
        lambda: app.schedules.explain("bad"),
    ]
    for verb in verbs:
        with pytest.raises(InvalidOption, match="cannot be read"):
            verb()
