"""Calendars as data: what they forbid, which owners see them, and how changes affect schedules."""

import asyncio
import datetime as dt
import threading
import warnings
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from duly import (
    Calendar,
    CalendarEnds,
    CalendarExists,
    CalendarNotFound,
    Ctx,
    Duly,
    InvalidCalendar,
    ManualClock,
    ReadOnlyCalendar,
    StaleVersion,
    UnknownZone,
    fault,
)
from duly.errors import InvalidOption, UseTx
from duly.model.calendar import SEEDS
from duly.runtime.janitor import Janitor
from tests.jobs.support import Database, wait_until
from tests.schedules.support import at, tick_all, utc

# Most of these calendars are short.
pytestmark = pytest.mark.filterwarnings("ignore::duly.CalendarEnds")

WEDNESDAY, THURSDAY, FRIDAY, SATURDAY, SUNDAY, MONDAY = (utc(2026, 7, n, 9) for n in range(1, 7))
DAILY: dict[str, Any] = {"cron": "0 9 * * *", "overlap": "allow"}
SEED = "us-federal-holidays-2026"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def work(app: Duly) -> Any:
    @app.action
    def work(ctx: Ctx) -> None: ...

    return work


def outcomes(app: Duly, key: str) -> dict[datetime, str]:
    """The outcome of each tick, or the reason why it was skipped."""
    return {tick.at: tick.reason or tick.outcome for tick in app.schedules.ticks(key)}


def tick_at(app: Duly, clock: ManualClock, *instants: datetime) -> None:
    for instant in instants:
        at(clock, instant)
        tick_all(app)


# What a calendar forbids -------------------------------------------------------------------------


@pytest.mark.spec("R112", "R120")
def test_a_listed_date_is_skipped_with_its_name(app: Duly, clock, work):
    app.schedules.create("digest", work, **DAILY, calendar=SEED)

    tick_at(app, clock, THURSDAY, FRIDAY, SATURDAY)

    assert outcomes(app, "digest") == {
        WEDNESDAY: "dispatched",
        THURSDAY: "dispatched",
        FRIDAY: "calendar",
        SATURDAY: "dispatched",
    }
    [skipped] = app.schedules.ticks("digest", reason="calendar")
    assert skipped.detail["label"] == "Independence Day (observed)"
    assert skipped.detail["calendar"] == SEED


@pytest.mark.spec("R112")
def test_a_date_of_ones_own_is_skipped(app: Duly, clock, work):
    app.calendars.create("closed", "skip_dates", dates={"2026-07-03": "inventory"})
    app.schedules.create("digest", work, **DAILY, calendar="closed")

    tick_at(app, clock, THURSDAY, FRIDAY)

    assert list(outcomes(app, "digest").values()) == ["calendar", "dispatched", "dispatched"]
    assert app.schedules.ticks("digest")[0].detail["why"] == "2026-07-03 is inventory in closed"


@pytest.mark.spec("R113")
@pytest.mark.parametrize(("dates", "fired"), [(["2026-07-03"], [FRIDAY]), ([], [])])
def test_only_listed_dates_fire_and_none_if_none_is_listed(app: Duly, clock, work, dates, fired):
    app.calendars.create("open", "only_dates", dates=dates)
    app.schedules.create("digest", work, **DAILY, calendar="open")

    tick_at(app, clock, THURSDAY, FRIDAY)

    assert [t.at for t in app.schedules.ticks("digest", outcome="dispatched")] == fired
    assert len(outcomes(app, "digest")) == 3


@pytest.mark.spec("R114", "R115")
def test_a_date_begins_and_ends_with_the_midnights_of_the_calendars_zone(app: Duly, clock, work):
    app.calendars.create("ny", "skip_dates", tz="America/New_York", dates=["2026-07-03"])
    app.schedules.create(
        "hourly", work, cron="0 * * * *", tz="Asia/Tokyo", overlap="allow", calendar="ny"
    )
    at(clock, utc(2026, 7, 3, 2, 30))
    tick_all(app)

    tick_at(app, clock, *(utc(2026, 7, 3, 3) + timedelta(hours=n) for n in range(27)))

    found = {t: o for t, o in outcomes(app, "hourly").items() if t > utc(2026, 7, 3, 1)}
    assert found.pop(utc(2026, 7, 3, 2)) == "dispatched"
    assert found.pop(utc(2026, 7, 3, 3)) == "dispatched"
    assert found.pop(utc(2026, 7, 4, 4)) == "dispatched"
    assert found.pop(utc(2026, 7, 4, 5)) == "dispatched"
    assert found[utc(2026, 7, 4, 2)] == "calendar"
    assert set(found.values()) == {"calendar"}
    assert sorted(found) == [utc(2026, 7, 3, 4) + timedelta(hours=n) for n in range(24)]


# Changes -----------------------------------------------------------------------------------------


@pytest.mark.spec("R116")
def test_an_edit_is_followed_at_once_by_all_that_it_is_attached_to(app: Duly, clock, work):
    app.calendars.create("closed", "skip_dates", dates=["2026-07-03"])
    for key in ("one", "two"):
        app.schedules.create(key, work, **DAILY, calendar="closed")

    tick_at(app, clock, FRIDAY)
    app.calendars.update("closed", add={"2026-07-04": "fair"}, remove=["2026-07-03"])
    tick_at(app, clock, SATURDAY)
    app.calendars.update("closed", kind="only_dates", dates=["2026-07-06"])
    tick_at(app, clock, SUNDAY, MONDAY)

    for key in ("one", "two"):
        found = outcomes(app, key)
        assert [found[day] for day in (FRIDAY, SATURDAY)] == ["calendar", "calendar"]
        assert [found[day] for day in (SUNDAY, MONDAY)] == ["calendar", "dispatched"]


@pytest.mark.spec("R117")
def test_a_removed_calendar_leaves_schedules_that_fire(app: Duly, clock, work):
    app.calendars.create("never", "only_dates")
    app.schedules.create("digest", work, **DAILY, calendar="never", shift="next")
    before = app.schedules.get("digest")

    app.calendars.remove("never", by="ops")

    after = app.schedules.get("digest")
    assert (after.calendar, after.version) == (None, before.version + 1)
    tick_at(app, clock, WEDNESDAY)
    assert outcomes(app, "digest") == {WEDNESDAY: "dispatched"}
    with pytest.raises(CalendarNotFound):
        app.calendars.get("never")
    # No shift is left behind that would make later updates fail.
    assert app.schedules.update("digest", cron="0 10 * * *").policies.shift is None


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"dates": ["2026-02-30"]}, InvalidCalendar, "dates[0]"),
    ({"dates": ["2026-07-03", "soon"]}, InvalidCalendar, "dates[1]"),
    ({"dates": [datetime(2026, 7, 3, 9)]}, InvalidCalendar, "dates[0]"),  # noqa: DTZ001
    ({"kind": "no_dates"}, InvalidCalendar, "kind"),
    ({"tz": "Europe/Ankara"}, UnknownZone, "tz"),
    ({"rules": ["full-moons"]}, InvalidCalendar, "rules"),
]


@pytest.mark.spec("R118")
@pytest.mark.parametrize(("wrong", "error", "field"), BAD)
def test_what_makes_no_sense_is_refused_and_changes_nothing(app: Duly, wrong, error, field):
    with pytest.raises(error) as refused:
        app.calendars.create("new", **{"kind": "skip_dates"} | wrong)
    assert refused.value.field == field

    stored = app.calendars.create("old", "skip_dates", dates=["2026-07-03"])
    with pytest.raises(error):
        app.calendars.update("old", **wrong)
    with pytest.raises(error):
        app.calendars.clone("old", "new", **wrong)

    assert app.calendars.get("old") == stored
    assert [c.name for c in app.calendars.list() if not c.read_only] == ["old"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"remove": ["2026-07-04"]}, "remove"),
        ({"add": ["2026-7-4"]}, "add[0]"),
        ({"dates": [], "add": ["2026-07-04"]}, "dates"),
        ({"color": "red"}, "color"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(app: Duly, wrong, field):
    app.calendars.create("closed", "skip_dates", dates=["2026-07-03"])

    with pytest.raises((InvalidCalendar, InvalidOption)) as refused:
        app.calendars.update("closed", **wrong)

    assert getattr(refused.value, "field", None) == field


@pytest.mark.spec("R119")
@pytest.mark.parametrize("shift", [None, "next"])
def test_a_zone_that_is_gone_skips_and_is_logged(
    app: Duly, clock, work, shift, db: Database, caplog
):
    app.calendars.create("far", "skip_dates", tz="Asia/Tokyo", dates=["2030-01-01"])
    app.schedules.create("digest", work, **DAILY, calendar="far", shift=shift)
    db.execute("UPDATE @calendars SET definition = replace(definition, 'Asia/Tokyo', 'Asia/Edo')")

    tick_at(app, clock, WEDNESDAY)

    assert outcomes(app, "digest") == {WEDNESDAY: "calendar"}
    [skipped] = app.schedules.ticks("digest")
    assert "Asia/Edo" in skipped.detail["why"]
    assert any("'far' forbids every tick" in record.getMessage() for record in caplog.records)
    assert app.calendars.ending(100_000) == []
    with pytest.raises(UnknownZone):
        app.schedules.create("new", work, **DAILY, calendar="far")
    # What is stored can still be changed.
    assert app.calendars.update("far", add=["2031-01-01"]).tz == "Asia/Edo"
    assert app.calendars.update("far", tz="Japan").tz == "Japan"
    tick_at(app, clock, THURSDAY)
    assert outcomes(app, "digest")[THURSDAY] == "dispatched"


def test_a_calendar_that_cannot_be_read_skips_and_can_be_removed(
    app: Duly, clock, work, db: Database, caplog
):
    app.calendars.create("broken", "skip_dates")
    app.schedules.create("digest", work, **DAILY, calendar="broken")
    db.execute("UPDATE @calendars SET definition = '{}'")

    tick_at(app, clock, WEDNESDAY)

    assert outcomes(app, "digest") == {WEDNESDAY: "calendar"}
    assert all(stored.read_only for stored in app.calendars.list())
    with pytest.raises(InvalidCalendar, match="cannot be read"):
        app.calendars.get("broken")
    app.calendars.remove("broken")
    tick_at(app, clock, THURSDAY)
    assert outcomes(app, "digest")[THURSDAY] == "dispatched"


@pytest.mark.spec("R121")
@pytest.mark.parametrize("name", SEEDS)
def test_what_comes_with_duly_is_not_changed_but_copied(app: Duly, name):
    with pytest.raises(ReadOnlyCalendar):
        app.calendars.update(name, add=["2026-07-06"])
    with pytest.raises(ReadOnlyCalendar):
        app.calendars.remove(name)
    with pytest.raises(ReadOnlyCalendar):
        app.calendars.holidays(name, "TR", 2026, tz="Europe/Istanbul")
    with pytest.raises(ReadOnlyCalendar):
        app.calendars.changes(name, add=["2026-07-06"])
    with pytest.raises(CalendarExists):
        app.calendars.create(name, "skip_dates")
    with pytest.raises(CalendarExists):
        app.calendars.clone(name, name)

    seed = app.calendars.get(name)
    assert (seed.read_only, seed.id, seed.calendar) == (True, name, SEEDS[name])
    mine = app.calendars.clone(name, "mine", add={"2026-07-06": "bridge"})
    assert (mine.kind, mine.tz, mine.rules) == (seed.kind, seed.tz, seed.rules)
    assert mine.dates.keys() == seed.dates.keys() | {dt.date(2026, 7, 6)}
    assert app.calendars.update(mine, remove=["2026-07-06"]).dates == seed.dates
    with pytest.raises(CalendarExists):
        app.calendars.update(mine, name=name)


@pytest.mark.spec("R122")
def test_ones_own_are_invisible_to_others_and_seeds_to_nobody(app: Duly, work):
    ann, bob = app.calendars.of("ann"), app.calendars.of("bob")
    hers = ann.create("closed", "skip_dates", dates=["2026-07-03"])
    his = bob.create("closed", "only_dates", dates=["2026-07-03"])
    shared = app.calendars.create("closed", "skip_dates", dates=["2026-07-06"])

    seeds = list(SEEDS)
    assert [c.id for c in ann.list()] == [*seeds, hers.id]
    assert [c.id for c in bob.list()] == [*seeds, his.id]
    assert [c.id for c in app.calendars.list()] == [*seeds, hers.id, his.id, shared.id]
    assert (ann.get("closed"), bob.get("closed")) == (hers, his)
    assert ann.get("weekends").read_only
    assert (hers.owner, shared.owner) == ("ann", None)
    for of_others in (hers.id, shared.id, hers):
        verbs: list[Callable[[], object]] = [
            partial(bob.get, of_others),
            partial(bob.update, of_others, add=["2026-07-04"]),
            partial(bob.remove, of_others),
            partial(bob.clone, of_others, "copy"),
            partial(bob.changes, of_others, dates=[]),
        ]
        for verb in verbs:
            with pytest.raises(CalendarNotFound):
                verb()
    assert ann.get("closed") == hers


@pytest.mark.spec("R122")
def test_a_schedule_takes_no_calendar_of_another_owner(app: Duly, work):
    hers = app.calendars.of("ann").create("closed", "skip_dates", dates=["2026-07-03"])
    bob = app.schedules.of("bob")
    for name in ("closed", hers.id):
        with pytest.raises(CalendarNotFound):
            bob.create("digest", work, **DAILY, calendar=name)
        with pytest.raises(CalendarNotFound):
            app.schedules.create("digest", work, **DAILY, calendar=name)
    bob.create("digest", work, **DAILY, calendar="weekends")
    with pytest.raises(CalendarNotFound):
        bob.attach("digest", hers.id)
    assert bob.get("digest").calendar == "weekends"


@pytest.mark.spec("R123")
def test_detach_then_attach_binds_again(app: Duly, clock, work):
    app.calendars.create("closed", "skip_dates", dates=["2026-07-02", "2026-07-03", "2026-07-05"])
    app.calendars.create("other", "skip_dates", dates=["2026-07-06"])
    app.schedules.create("digest", work, **DAILY, calendar="closed")

    tick_at(app, clock, WEDNESDAY, THURSDAY)
    app.schedules.detach("digest")
    tick_at(app, clock, FRIDAY)
    app.schedules.attach("digest", "closed")
    tick_at(app, clock, SATURDAY, SUNDAY)
    app.schedules.attach("digest", "other")
    tick_at(app, clock, MONDAY)

    assert list(reversed(outcomes(app, "digest").values())) == [
        "dispatched",
        "calendar",
        "dispatched",
        "dispatched",
        "calendar",
        "calendar",
    ]


# Moving ticks to another day ---------------------------------------------------------------------


@pytest.mark.spec("N11")
@pytest.mark.parametrize(
    ("shift", "moved"), [("next", MONDAY), ("previous", FRIDAY), ("nearest", FRIDAY)]
)
def test_a_tick_on_a_day_off_comes_on_a_business_day(app: Duly, clock, work, shift, moved):
    """The fourth of the month is a Saturday: `nearest` is the Friday."""
    app.calendars.create("days off", "skip_dates", rules=["weekends"])
    app.schedules.create("rent", work, cron="0 9 4 * *", calendar="days off", shift=shift)
    assert app.schedules.get("rent").next_tick == SATURDAY
    assert app.schedules.get("rent").due == moved

    tick_at(app, clock, moved - timedelta(milliseconds=1))
    assert app.schedules.ticks("rent") == []
    tick_at(app, clock, moved)

    [tick] = app.schedules.ticks("rent")
    assert (tick.outcome, tick.at, tick.decided, tick.lag) == (
        "dispatched",
        SATURDAY,
        moved,
        timedelta(),
    )
    assert tick.job is not None
    assert tick.job.scheduled_at == SATURDAY
    tick_at(app, clock, max(moved, SATURDAY), MONDAY)
    assert len(app.schedules.ticks("rent")) == 1
    assert app.schedules.get("rent").next_tick == utc(2026, 8, 4, 9)


@pytest.mark.parametrize(
    "trigger",
    [
        {"cron": "0 9,17 * * *"},
        {"cron": "*/5 9 * * *"},
        {"cron": "30 0,23 * * MON", "tz": "America/New_York"},
        {"every": 3600},
        {"every": 25 * 3600},
    ],
)
def test_only_ticks_at_one_time_of_the_day_can_be_moved(app: Duly, work, trigger):
    with pytest.raises(InvalidOption) as refused:
        app.schedules.create("twice", work, **trigger, calendar="weekends", shift="next")
    assert refused.value.option == "shift"
    app.schedules.create("twice", work, **trigger, calendar="weekends")


@pytest.mark.parametrize(
    "trigger", [{"every": 7 * 86_400}, {"at": SATURDAY}, {"cron": "H H * * *"}]
)
def test_whatever_ticks_once_a_day_can_be_moved(app: Duly, work, trigger):
    app.calendars.create("days off", "skip_dates", rules=["weekends"])
    app.schedules.create("once", work, **trigger, calendar="days off", shift="next")


@pytest.mark.spec("N11", "R116")
def test_an_edit_moves_a_pending_tick_that_was_moved(app: Duly, clock, work):
    app.calendars.create("days off", "skip_dates", rules=["weekends"])
    app.schedules.create("rent", work, cron="0 9 4 * *", calendar="days off", shift="next")
    tick_at(app, clock, SUNDAY)
    assert app.schedules.get("rent").due == MONDAY

    app.calendars.update("days off", add={"2026-07-06": "bridge"})
    assert app.schedules.get("rent").due == utc(2026, 7, 7, 9)
    tick_at(app, clock, MONDAY)
    assert app.schedules.ticks("rent") == []

    app.calendars.update("days off", remove=["2026-07-06"])
    assert app.schedules.get("rent").due == MONDAY
    tick_all(app)
    [tick] = app.schedules.ticks("rent")
    assert (tick.outcome, tick.at) == ("dispatched", SATURDAY)


@pytest.mark.spec("R117")
def test_a_removed_calendar_gives_back_the_ticks_that_it_moved(app: Duly, clock, work):
    app.calendars.create("days off", "skip_dates", rules=["weekends"])
    app.schedules.create("rent", work, cron="0 9 4 * *", calendar="days off", shift="next")

    app.calendars.remove("days off")

    assert app.schedules.get("rent").due == SATURDAY
    tick_at(app, clock, SATURDAY)
    assert outcomes(app, "rent") == {SATURDAY: "dispatched"}


def test_attaching_and_detaching_moves_the_tick_too(app: Duly, work):
    app.calendars.create("days off", "skip_dates", rules=["weekends"])
    app.schedules.create("rent", work, cron="0 9 4 * *")

    moved = app.schedules.update("rent", calendar="days off", shift="previous")
    assert moved.due == FRIDAY
    assert app.schedules.detach("rent").due == SATURDAY


@pytest.mark.spec("R116")
def test_one_broken_schedule_does_not_stop_an_edit(app: Duly, work, db: Database):
    app.calendars.create("days off", "skip_dates", rules=["weekends"])
    for key in ("broken", "rent"):
        app.schedules.create(key, work, cron="0 9 4 * *", calendar="days off", shift="next")
    db.execute("UPDATE @schedules SET trigger = '{}' WHERE key = 'broken'")

    app.calendars.update("days off", add=["2026-07-06"])

    assert app.schedules.get("rent").due == utc(2026, 7, 7, 9)


@pytest.mark.spec("R116")
def test_an_edit_reaches_more_schedules_than_a_page_holds(app: Duly, work):
    app.calendars.create("days off", "skip_dates", rules=["weekends"])
    keys = [f"rent {n}" for n in range(101)]
    for key in keys:
        app.schedules.create(key, work, cron="0 9 4 * *", calendar="days off", shift="next")

    app.calendars.update("days off", add=["2026-07-06"])

    found = app.schedules.list(calendar="days off", limit=200)
    assert [schedule.due for schedule in found] == [utc(2026, 7, 7, 9)] * len(keys)


# Atomic, and one after the other -----------------------------------------------------------------


def audited(app: Duly, calendar_id: str) -> list[tuple[str, str | None]]:
    entries = app.core.ready().audit_of(f"calendar:{calendar_id}")
    return [(entry.action, entry.actor) for entry in reversed(entries)]


def test_every_change_is_audited(app: Duly):
    stored = app.calendars.create("closed", "skip_dates", dates=["2026-07-03"], by="ann")
    app.calendars.update("closed", add=["2026-07-04"], remove=["2026-07-03"], by="bob")
    app.calendars.update("closed", add=["2026-07-04"], by="nobody changes anything")
    app.calendars.import_ical("closed", ical(("20260706", "bridge")), by="cat")
    app.calendars.remove("closed", by="dan")

    assert audited(app, stored.id) == [
        ("calendar.create", "ann"),
        ("calendar.update", "bob"),
        ("calendar.update", "cat"),
        ("calendar.remove", "dan"),
    ]
    detail = app.core.ready().audit_of(f"calendar:{stored.id}")[2].detail
    assert detail is not None
    assert '"added":["2026-07-04"]' in detail
    assert '"removed":["2026-07-03"]' in detail


@pytest.mark.parametrize("point", ["calendar.replaced", "calendar.detached"])
def test_a_change_that_fails_leaves_no_trace(app: Duly, work, point):
    stored = app.calendars.create("days off", "skip_dates", rules=["weekends"])
    app.schedules.create("rent", work, cron="0 9 4 * *", calendar="days off", shift="next")

    def fail(name: str) -> None:
        if name == point:
            raise ZeroDivisionError

    def change() -> None:
        if point == "calendar.replaced":
            app.calendars.update("days off", add=["2026-07-06"], name="other")
        else:
            app.calendars.remove("days off")

    with fault.inject(fail), pytest.raises(ZeroDivisionError):
        change()

    assert app.calendars.get("days off") == stored
    rent = app.schedules.get("rent")
    assert (rent.calendar, rent.due, rent.version) == ("days off", MONDAY, 1)
    assert audited(app, stored.id) == [("calendar.create", None)]


def test_who_has_read_an_older_version_is_refused(app: Duly):
    read = app.calendars.create("closed", "skip_dates")
    app.calendars.update("closed", add=["2026-07-03"], version=read.version)

    with pytest.raises(StaleVersion) as stale:
        app.calendars.update("closed", add=["2026-07-04"], version=read.version)

    assert (stale.value.expected, stale.value.found) == (1, 2)
    assert app.calendars.get("closed").dates.keys() == {dt.date(2026, 7, 3)}


def test_additions_at_the_same_time_all_remain(app: Duly):
    app.calendars.create("closed", "skip_dates")
    days = [dt.date(2026, 7, day) for day in range(1, 9)]
    threads = [
        threading.Thread(target=app.calendars.update, args=("closed",), kwargs={"add": [day]})
        for day in days
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert list(app.calendars.get("closed").dates) == days
    assert app.calendars.get("closed").version == 1 + len(days)


def test_a_name_belongs_to_one(app: Duly):
    app.calendars.create("one", "skip_dates")
    two = app.calendars.create("two", "skip_dates")

    with pytest.raises(CalendarExists):
        app.calendars.create("one", "only_dates")
    with pytest.raises(CalendarExists):
        app.calendars.update("two", name="one")
    with pytest.raises(InvalidCalendar, match="looks like an id"):
        app.calendars.create(two.id, "skip_dates")
    assert app.calendars.get("two") == two

    renamed = app.calendars.update("two", name="three")
    assert (renamed.id, renamed.name) == (two.id, "three")
    assert app.calendars.get("three") == renamed
    with pytest.raises(CalendarNotFound):
        app.calendars.get("two")
    assert app.calendars.create("two", "skip_dates").id != two.id


def test_two_who_want_one_name_do_not_both_get_it(app: Duly):
    ids = [app.calendars.create(f"c{n}", "skip_dates").id for n in range(6)]
    errors: list[Exception] = []

    def rename(calendar_id: str) -> None:
        try:
            app.calendars.update(calendar_id, name="wanted")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=rename, args=(calendar_id,)) for calendar_id in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [type(error) for error in errors] == [CalendarExists] * 5
    assert len(app.calendars.list()) == len(SEEDS) + 6


@pytest.mark.parametrize("change", ["update", "remove"])
@pytest.mark.parametrize("how", ["create", "attach"])
def test_a_schedule_that_takes_it_meanwhile_does_not_escape(app: Duly, work, change, how):
    """It is stored before a change of its calendar or after it, never with what it was."""
    if how == "attach":
        app.schedules.create("rent", work, cron="0 9 4 * *")
    app.calendars.create("days off", "skip_dates", rules=["weekends"])
    paused, go_on = threading.Event(), threading.Event()

    def pause(name: str) -> None:
        if name in ("calendar.replaced", "calendar.detached"):
            paused.set()
            go_on.wait(10)

    def alter() -> None:
        if change == "update":
            app.calendars.update("days off", add=["2026-07-06"])
        else:
            app.calendars.remove("days off")

    taken: list[object] = []

    def take() -> None:
        options: Any = {"cron": "0 9 4 * *", "calendar": "days off", "shift": "next"}
        try:
            if how == "create":
                taken.append(app.schedules.create("rent", work, **options))
            else:
                taken.append(app.schedules.update("rent", **options))
        except CalendarNotFound as error:
            taken.append(error)

    with fault.inject(pause):
        editor = threading.Thread(target=alter)
        editor.start()
        assert paused.wait(10)
        taker = threading.Thread(target=take)
        taker.start()
        taker.join(0.3)
        assert taken == []
        go_on.set()
        editor.join()
        taker.join()

    if change == "update":
        assert app.schedules.get("rent").due == utc(2026, 7, 7, 9)
    else:
        assert isinstance(taken[0], CalendarNotFound)
        assert [schedule.calendar for schedule in app.schedules.list()] in ([], [None])


def test_an_edit_does_not_move_a_tick_that_has_passed_meanwhile(app: Duly, clock, work, url):
    """The ticker holds the schedule: the edit waits for it and moves what is next then."""
    app.calendars.create("days off", "skip_dates", rules=["weekends"])
    app.schedules.create("rent", work, cron="0 9 4 * *", calendar="days off", shift="next")
    at(clock, MONDAY)
    paused, go_on = threading.Event(), threading.Event()

    def pause(name: str) -> None:
        if name == "ticker.noted":
            paused.set()
            go_on.wait(10)

    with fault.inject(pause):
        ticker = threading.Thread(target=tick_all, args=(app,))
        ticker.start()
        assert paused.wait(10)
        editor = threading.Thread(
            target=app.calendars.update, args=("days off",), kwargs={"add": ["2026-08-04"]}
        )
        editor.start()
        editor.join(0.3)
        go_on.set()
        ticker.join()
        editor.join()

    rent = app.schedules.get("rent")
    assert (rent.next_tick, rent.due) == (utc(2026, 8, 4, 9), utc(2026, 8, 5, 9))


def test_changes_are_refused_inside_a_transaction(app: Duly):
    with app.transaction():
        for verb in (
            lambda: app.calendars.create("closed", "skip_dates"),
            lambda: app.calendars.clone(SEED, "closed"),
            lambda: app.calendars.update(SEED, add=[]),
            lambda: app.calendars.remove(SEED),
            lambda: app.calendars.import_ical("closed", ical()),
            lambda: app.calendars.holidays("closed", "TR", 2026),
        ):
            with pytest.raises(UseTx):
                verb()


def test_a_running_ticker_notices_an_edit(app: Duly, clock, work):
    app.calendars.create("days off", "skip_dates", rules=["weekends"])
    app.schedules.create("rent", work, cron="0 9 4 * *", calendar="days off", shift="next")
    app.schedules.create("first", work, cron="0 9 5 * *")
    at(clock, SUNDAY)
    with app:
        wait_until(lambda: app.schedules.ticks("first") != [])
        app.calendars.update("days off", rules=[])
        wait_until(lambda: app.schedules.ticks("rent") != [])
    assert [tick.outcome for tick in app.schedules.ticks("rent")] == ["dispatched"]


# From elsewhere ----------------------------------------------------------------------------------


def ical(*events: tuple[str, str], rule: str = "") -> str:
    lines = ["BEGIN:VCALENDAR"]
    for day, label in events:
        lines += ["BEGIN:VEVENT", f"DTSTART;VALUE=DATE:{day}", f"SUMMARY:{label}"]
        lines += [f"RRULE:{rule}"] if rule else []
        lines += ["END:VEVENT"]
    return "\r\n".join([*lines, "END:VCALENDAR", ""])


@pytest.mark.spec("N11")
def test_dates_come_from_an_ical_file(app: Duly, clock, work, tmp_path: Path):
    file = tmp_path / "closed.ics"
    file.write_text(ical(("20260703", "Betriebsferien, Straße")), encoding="utf-8")

    stored = app.calendars.import_ical("closed", file, tz="Europe/Berlin")
    assert (stored.kind, stored.tz) == ("skip_dates", "Europe/Berlin")
    assert stored.dates == {dt.date(2026, 7, 3): "Betriebsferien, Straße"}
    app.schedules.create("digest", work, **DAILY, calendar="closed")
    tick_at(app, clock, FRIDAY)
    assert outcomes(app, "digest")[FRIDAY] == "calendar"

    # Late on the third in UTC is the fourth in the zone that the calendar has.
    text = ical(("", "later")).replace(";VALUE=DATE:", ":20260703T223000Z")
    again = app.calendars.import_ical("closed", text)
    assert (again.id, again.version, again.tz) == (stored.id, 2, "Europe/Berlin")
    assert again.dates == {dt.date(2026, 7, 4): "later"}
    tick_at(app, clock, SATURDAY)
    assert outcomes(app, "digest")[SATURDAY] == "calendar"


@pytest.mark.spec("N11")
def test_repeating_events_are_followed_through_a_window(app: Duly):
    text = ical(("20200703", "founded"), rule="FREQ=YEARLY")

    stored = app.calendars.import_ical("party", text)
    assert [day.year for day in stored.dates] == list(range(2026, 2032))
    stored = app.calendars.import_ical("party", text, first="2021-01-01", last="2022-12-31")
    assert [day.year for day in stored.dates] == [2021, 2022]
    with pytest.raises(InvalidCalendar, match="no event"):
        app.calendars.import_ical("party", text, first="2010-01-01", last="2011-12-31")
    with pytest.raises(InvalidCalendar) as refused:
        app.calendars.import_ical("party", text, first="2027-01-01", last="2026-12-31")
    assert refused.value.field == "last"
    assert app.calendars.get("party") == stored


def test_text_is_never_taken_for_the_name_of_a_file(app: Duly, tmp_path: Path):
    file = tmp_path / "closed.ics"
    file.write_text(ical(("20260703", "")), encoding="utf-8")

    with pytest.raises(InvalidCalendar):
        app.calendars.import_ical("closed", str(file))

    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidCalendar, match="UTF-8"):
        app.calendars.import_ical("closed", file)


@pytest.mark.spec("N11")
def test_holidays_of_any_country_and_year(app: Duly, clock, work):
    with pytest.raises(InvalidCalendar, match="zone"):
        app.calendars.holidays("by", "DE", 2026)

    stored = app.calendars.holidays("by", "DE", 2026, subdivision="BY", tz="Europe/Berlin")
    assert stored.dates[dt.date(2026, 1, 6)] == "Epiphany"
    longer = app.calendars.holidays("by", "DE", [2026, 2027], subdivision="BY")
    assert (longer.id, longer.tz, longer.kind) == (stored.id, "Europe/Berlin", "skip_dates")
    assert {day.year for day in longer.dates} == {2026, 2027}
    assert dt.date(2031, 7, 14) in app.calendars.holidays("fr", "FR", 2031, tz="Europe/Paris").dates
    with pytest.raises(InvalidCalendar) as refused:
        app.calendars.holidays("by", "DEE", 2026)
    assert refused.value.field == "country"

    app.schedules.create(
        "digest", work, cron="0 9 * * *", tz="Europe/Berlin", calendar="by", overlap="allow"
    )
    at(clock, utc(2026, 12, 25, 8))
    tick_all(app)
    assert outcomes(app, "digest")[utc(2026, 12, 25, 8)] == "calendar"


# Looking ahead -----------------------------------------------------------------------------------


def test_what_an_update_would_change_is_what_it_changes(app: Duly, work):
    app.calendars.create("closed", "skip_dates", dates=["2026-07-03"])
    app.schedules.create("digest", work, **DAILY, calendar="closed", condition=UNMET)
    app.schedules.create("off", work, **DAILY, calendar="closed", enabled=False)
    app.schedules.create("other", work, **DAILY, calendar="weekends")
    app.schedules.create(
        "rent", work, cron="0 9 3 * *", calendar="closed", shift="next", remaining=1
    )

    change: Any = {"remove": ["2026-07-03"], "add": {"2026-07-05": "fair"}}
    found = app.calendars.changes("closed", **change)

    seen = [(c.key, c.at, c.before, c.after, c.due_before, c.due_after, c.why) for c in found]
    assert seen == [
        ("digest", FRIDAY, "skip", "dispatch", FRIDAY, FRIDAY, "2026-07-03 is listed in closed"),
        ("digest", SUNDAY, "dispatch", "skip", SUNDAY, SUNDAY, "2026-07-05 is fair in closed"),
        ("rent", FRIDAY, "dispatch", "dispatch", SATURDAY, FRIDAY, ""),
    ]
    assert app.calendars.get("closed").version == 1
    assert app.calendars.changes("closed", 3, **change) == found[::2]
    assert app.calendars.changes("closed", name="renamed") == []
    app.calendars.update("closed", **change)
    assert app.schedules.get("rent").due == FRIDAY


UNMET = {"/prior_run_result/status": {"eq": "completed"}}


def test_a_tick_whose_time_has_passed_is_among_those_that_change(app: Duly, clock, work):
    app.calendars.create("days off", "skip_dates", rules=["weekends"])
    app.schedules.create("rent", work, cron="0 9 4 * *", calendar="days off", shift="next")
    at(clock, SUNDAY)

    [change] = app.calendars.changes("days off", 1, add=["2026-07-06"])

    assert (change.at, change.due_before, change.due_after) == (
        SATURDAY,
        MONDAY,
        utc(2026, 7, 7, 9),
    )


def test_changes_are_of_the_calendar_alone_not_of_ticks_that_overlap(app: Duly, work):
    app.calendars.create("days off", "skip_dates", rules=["weekends"])
    moved: Any = {"calendar": "days off", "shift": "next", "overlap": "buffer_one"}
    app.schedules.create("rent", work, cron="0 9 4,5 * *", **moved)

    found = app.calendars.changes("days off", 2, add=["2026-07-06"])

    assert [(change.at, change.before, change.after) for change in found] == [
        (SATURDAY, "dispatch", "dispatch"),
        (SUNDAY, "dispatch", "dispatch"),
    ]


@pytest.mark.spec("N11")
def test_a_calendar_that_ends_soon_is_warned_of_and_one_that_has_is_refused(
    app: Duly, clock, work, caplog
):
    app.calendars.create("closed", "skip_dates", dates=["2026-07-31"])
    app.schedules.create("digest", work, **DAILY)
    at(clock, utc(2026, 6, 30, 23) + timedelta(days=1))

    with pytest.warns(
        CalendarEnds, match="'closed' ends soon: its last date is 2026-07-31"
    ) as seen:
        app.schedules.attach("digest", "closed")
    assert seen[0].filename == __file__
    assert any("'closed' ends soon" in record.getMessage() for record in caplog.records)
    # An update that does not attach it gives no warning, and still works when it has ended.
    at(clock, utc(2026, 8, 1))
    assert app.schedules.update("digest", cron="0 10 * * *").calendar == "closed"

    at(clock, utc(2027, 1, 1, 12))
    for name in ("closed", "tr-public-holidays-2026", SEED, "weekends-only"):
        with pytest.raises(InvalidCalendar, match="has ended"):
            app.schedules.create("late", work, **DAILY, calendar=name)


@pytest.mark.spec("N11")
@pytest.mark.parametrize(
    ("name", "soon"),
    [(SEED, utc(2026, 11, 26)), ("weekends-only", utc(2026, 11, 28)), ("weekends", None)],
)
def test_seeds_of_a_year_are_warned_of_too(app: Duly, clock, work, name, soon):
    at(clock, utc(2026, 11, 24))
    app.schedules.create("early", work, **DAILY, calendar=name)
    assert app.calendars.ending() == []
    if soon is None:
        return

    at(clock, soon)
    with pytest.warns(CalendarEnds):
        app.schedules.create("late", work, **DAILY, calendar=name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app.schedules.update("late", catch_up=1)

    [ending] = app.calendars.ending()
    assert ending.calendar.name == name
    assert ending.last_date == max(SEEDS[name].dates)
    assert [schedule.key for schedule in ending.schedules] == ["early", "late"]
    assert app.calendars.of("ann").ending() == []


@pytest.mark.spec("N11")
def test_those_that_run_out_are_listed_with_their_schedules(app: Duly, clock, work):
    for name, last in (("soon", "2026-07-20"), ("later", "2026-09-01"), ("unused", "2026-07-02")):
        app.calendars.create(name, "skip_dates", dates=[last])
    app.calendars.create("over", "skip_dates", dates=["2026-07-01"])
    app.calendars.of("ann").create("hers", "skip_dates", dates=["2026-07-05"])
    for name in ("soon", "later", "over"):
        app.schedules.create(name, work, **DAILY, calendar=name)
    app.schedules.of("ann").create("hers", work, **DAILY, calendar="hers")
    at(clock, utc(2026, 7, 2))

    def ending(*days: int, owner: str | None = None) -> list[tuple[str, list[str]]]:
        calendars = app.calendars if owner is None else app.calendars.of(owner)
        found = calendars.ending(*days)
        return [(one.calendar.name, [s.key for s in one.schedules]) for one in found]

    assert ending() == [("over", ["over"]), ("hers", ["hers"]), ("soon", ["soon"])]
    assert ending(10) == [("over", ["over"]), ("hers", ["hers"])]
    assert ending(100)[-1] == ("later", ["later"])
    assert ending(owner="ann") == [("hers", ["hers"])]
    assert ending(owner="bob") == []


@pytest.mark.spec("N11")
def test_a_service_warns_every_day_of_those_in_use(app: Duly, clock, work, caplog):
    app.calendars.create("closed", "skip_dates", dates=["2026-08-01"])
    app.calendars.create("unused", "skip_dates", dates=["2026-08-01"])
    app.schedules.create("digest", work, **DAILY, calendar="closed")
    app.schedules.create("holiday", work, **DAILY, calendar=SEED)
    janitor = Janitor(app.core.ready(), clock)

    def warned(days: int) -> list[str]:
        clock.advance(days * 86_400)
        caplog.clear()
        janitor.one_pass()
        janitor.one_pass()
        found = [record.getMessage() for record in caplog.records]
        return [message for message in found if "calendar" in message]

    assert warned(0) == []
    assert warned(1) == ["calendar 'closed', which schedules use, ends on 2026-08-01"]
    assert len(warned(1)) == 1
    assert len(warned(150)) == 2


# The rest ----------------------------------------------------------------------------------------


def test_calendars_are_listed_in_pages(app: Duly):
    ids = [app.calendars.create(f"c{n}", "skip_dates").id for n in range(5)]

    first = app.calendars.list(limit=2)
    assert [c.id for c in first] == [*SEEDS, *ids[:2]]
    assert [c.id for c in app.calendars.list(after=first[-1].id, limit=2)] == ids[2:4]
    assert app.calendars.list(after=ids[-1]) == []
    assert [c.id for c in app.calendars.list(after=list(SEEDS)[-1])] == ids
    with pytest.raises(InvalidOption):
        app.calendars.list(limit=0)


def test_a_calendar_is_made_of_a_value(app: Duly):
    value = Calendar("closed", "skip_dates", tz="Asia/Tokyo", dates={"2026-07-03": "fair"})

    stored = app.calendars.create(value)

    assert stored.calendar == value
    assert app.calendars.get("closed") == app.calendars.get(stored.id) == stored
    assert (stored.name, stored.kind, stored.tz) == ("closed", "skip_dates", "Asia/Tokyo")
    assert stored.created == stored.updated == utc(2026, 7, 1)
    with pytest.raises(InvalidOption):
        app.calendars.create(Calendar("other", "skip_dates"), "only_dates")


def test_async_code_has_the_same_verbs(app: Duly, work, tmp_path: Path):
    async def use() -> list[str]:
        calendars = app.aio.calendars.of("ann")
        await calendars.create("closed", "skip_dates", dates=["2026-07-03"])
        await calendars.clone("closed", "copy", kind="only_dates")
        await calendars.update("copy", add=["2026-07-04"], version=1)
        await calendars.import_ical("imported", ical(("20260703", "fair")))
        await calendars.holidays("tr", "TR", 2026, tz="Europe/Istanbul")
        await calendars.remove("closed")
        app.schedules.of("ann").create("digest", work, **DAILY, calendar="copy")
        [change] = await calendars.changes("copy", remove=["2026-07-04"])
        assert change.at == SATURDAY
        assert (await calendars.get("copy")).version == 2
        [ending] = await calendars.ending()
        assert ending.calendar.name == "copy"
        return [stored.name for stored in await calendars.list() if not stored.read_only]

    assert asyncio.run(use()) == ["copy", "imported", "tr"]
    verbs = {name for name in vars(type(app.calendars)) if not name.startswith("_")}
    assert verbs == {name for name in vars(type(app.aio.calendars)) if not name.startswith("_")}
