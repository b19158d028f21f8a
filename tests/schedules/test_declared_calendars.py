"""Calendars that code declares: applied with the schedules, never against an operator."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from duly import (
    Calendar,
    CalendarExists,
    CalendarNotFound,
    Ctx,
    Duly,
    InvalidCalendar,
    ManualClock,
    UnknownZone,
    fault,
)
from duly.errors import InvalidOption
from duly.observe.doctor import Level, examine
from duly.runtime.ticker import Ticker
from duly.schedules.declarations import Declarations
from tests.jobs.support import Database, on_postgres
from tests.schedules.support import at, tick_all, utc

NOWHERE = "postgresql://nobody@nowhere.invalid/nothing"
Release = Callable[..., Duly]
DAILY: dict[str, Any] = {"cron": "0 9 * * *"}
CLOSED: dict[str, Any] = {"dates": {"2026-07-02": "inventory", "2027-12-31": "feast"}}
USES = {"report": DAILY | {"calendar": "closed"}}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def release(app: Duly, url: str, clock: ManualClock) -> Iterator[Release]:
    """Make an app as one release of the code would: its calendars and its schedules."""
    made: list[Duly] = []

    def make(
        calendars: Mapping[str, Any], schedules: Mapping[str, Any] = USES, *, name: str = "default"
    ) -> Duly:
        release = Duly(url, name=name, clock=clock)
        made.append(release)

        @release.action
        def post(ctx: Ctx) -> None: ...

        for key, options in schedules.items():
            release.schedule(key, post, **options)
        for name, options in calendars.items():
            release.calendar(name, **options)
        return release

    yield make
    for each in made:
        each.close()


def start(app: Duly) -> Duly:
    """What a process with a ticker does first."""
    tick_all(app)
    return app


def kinds(plan: Any) -> dict[str, str]:
    return {entry.name: entry.kind for entry in plan}


def days(app: Duly, name: str = "closed") -> dict[str, str]:
    return {str(day): label for day, label in app.calendars.get(name).dates.items()}


def reasons(app: Duly, n: int = 3) -> list[str | None]:
    return [tick.reason for tick in app.schedules.preview("report", n)]


# Declaring ---------------------------------------------------------------------------------------


@pytest.mark.spec("N71")
def test_a_declaration_is_checked_at_once_and_touches_no_database():
    app = Duly(NOWHERE)

    @app.action
    def post(ctx: Ctx) -> None: ...

    for _ in range(2):
        closed = app.calendar(
            "closed", tz="Europe/Berlin", dates=["2026-12-24"], rules=["weekends"]
        )
    assert (closed.name, closed.calendar.kind, closed.calendar.tz) == (
        *("closed", "skip_dates", "Europe/Berlin"),
    )
    assert closed.source.startswith(__file__)
    app.schedule("report", post, **DAILY, calendar=closed, shift="next")
    assert app.core.declarations["report"].spec()["calendar"] == "closed"
    made = Calendar("fair", "only_dates", dates=["2026-09-14"])
    assert app.calendar(made).calendar == made

    wrong: list[tuple[type[Exception], Any, dict[str, Any]]] = [
        (CalendarExists, "closed", {"dates": ["2026-12-25"]}),
        (CalendarExists, "weekends", {}),
        (UnknownZone, "other", {"tz": "Europe/Instanbul"}),
        (InvalidCalendar, "other", {"dates": ["Christmas"]}),
        (InvalidCalendar, "other", {"kind": "sometimes"}),
        (InvalidCalendar, "01890a5d-ac96-774b-bcce-b302099a8057", {}),
        (InvalidOption, made, {"kind": "only_dates"}),
    ]
    for error, name, options in wrong:
        with pytest.raises(error):
            app.calendar(name, **options)
    assert list(app.core.declared_calendars) == ["closed", "fair"]


# Applying ----------------------------------------------------------------------------------------


@pytest.mark.spec("N71")
def test_it_is_applied_in_the_set_of_the_schedules_and_before_them(release: Release, clock):
    app = release({"closed": CLOSED | {"kind": "skip_dates", "tz": "Europe/Istanbul"}})
    plan = app.schedules.plan()
    assert list(kinds(plan).items()) == [("calendar closed", "create"), ("report", "create")]
    assert "+ calendar closed: create" in str(plan)

    start(app)
    closed = app.calendars.get("closed")
    assert (closed.declared, closed.orphaned, closed.tz) == (True, False, "Europe/Istanbul")
    assert app.schedules.get("report").calendar == "closed"
    assert reasons(app) == [None, "calendar", None]
    assert set(kinds(app.schedules.plan()).values()) == {"unchanged"}
    assert app.schedules.plan().applied_before

    # The set is a different one if only a calendar changes; the pending tick moves with it.
    later = release({"closed": CLOSED | {"rules": ["weekends"], "kind": "only_dates"}})
    assert not later.schedules.plan().applied_before
    [change, _] = later.schedules.plan()
    assert change.fields["kind"] == ("skip_dates", "only_dates")
    assert change.fields["rules"] == ([], ["weekends"])
    start(later)
    assert reasons(later) == ["calendar", None, "calendar"]
    # An old process that starts again changes nothing.
    start(app)
    assert app.calendars.get("closed").kind == "only_dates"
    entries = app.store.audit_of(f"calendar:{closed.id}")
    assert [entry.action for entry in entries] == ["calendar.update", "calendar.create"]


@pytest.mark.spec("N71")
def test_an_operators_days_and_settings_are_kept_until_code_changes_the_same_ones(release: Release):
    app = start(release({"closed": CLOSED}))
    app.calendars.update(
        "closed", add={"2026-07-03": "flood", "2027-12-31": "party"}, remove=["2026-07-02"]
    )
    app.calendars.update("closed", tz="Asia/Tokyo")
    assert kinds(app.schedules.apply())["calendar closed"] == "unchanged"

    more = {"dates": {**CLOSED["dates"], "2026-12-24": "Christmas"}}
    app = release({"closed": more})
    [change, *_] = app.schedules.plan()
    assert (change.is_calendar, change.fields) == (
        *(True, {"dates": ({}, {"2026-12-24": "Christmas"})}),
    )
    start(app)
    kept = {"2026-07-03": "flood", "2026-12-24": "Christmas", "2027-12-31": "party"}
    assert (days(app), app.calendars.get("closed").tz) == (kept, "Asia/Tokyo")

    app = start(release({"closed": {"tz": "Europe/Paris", "dates": {"2027-12-31": "the end"}}}))
    last = {"2026-07-03": "flood", "2027-12-31": "the end"}
    assert (days(app), app.calendars.get("closed").tz) == (last, "Europe/Paris")
    with pytest.raises(InvalidOption, match="declared in code"):
        app.calendars.update("closed", name="shut")
    assert app.calendars.clone("closed", "shut").declared is False


@pytest.mark.spec("N71")
def test_a_changed_calendar_moves_the_ticks_of_all_that_use_it(release: Release):
    shifted = {"report": DAILY | {"calendar": "closed", "shift": "next"}}
    app = start(release({"closed": CLOSED}, shifted))
    theirs = app.schedules.create(
        "theirs",
        app.function("post"),
        calendar="closed",
        shift="next",
        **DAILY,
    )
    assert theirs.due == app.schedules.get("report").due == utc(2026, 7, 1, 9)
    start(release({"closed": {"dates": ["2026-07-01", "2026-07-02"]}}, shifted))
    for key in ("report", "theirs"):
        assert app.schedules.get(key).due == utc(2026, 7, 3, 9)


@pytest.mark.spec("N71")
def test_one_that_is_no_longer_declared_stays_while_a_schedule_uses_it(release: Release):
    app = start(release({"closed": CLOSED, "unused": {"rules": ["weekends"]}}))
    app.schedules.create("theirs", app.function("post"), calendar="closed", **DAILY)

    new = release({}, {"other": DAILY})
    assert kinds(new.schedules.plan()) == {
        "calendar closed": "orphan",
        "calendar unused": "orphan",
        "other": "create",
        "report": "orphan",
    }
    start(new)
    orphan = new.calendars.get("closed")
    assert (orphan.declared, orphan.orphaned) == (False, True)
    assert new.schedules.get("theirs").calendar == "closed"

    pruned = {"report": "remove", "calendar unused": "remove", "calendar closed": "blocked"}
    plan = new.schedules.prune(dry_run=True)
    assert kinds(plan) == pruned
    assert "! calendar closed: blocked, a schedule uses it" in str(plan)
    assert kinds(new.schedules.prune()) == pruned
    with pytest.raises(CalendarNotFound):
        new.calendars.get("unused")
    assert new.schedules.get("theirs").calendar == "closed"

    # Declared again it is the same calendar, with what an operator has added to it.
    new.calendars.update("closed", add=["2026-07-05"])
    again = release({"closed": CLOSED}, {"other": DAILY})
    assert kinds(again.schedules.apply()) == {"calendar closed": "revive", "other": "unchanged"}
    assert (again.calendars.get("closed").id, len(days(again))) == (orphan.id, 3)
    new.schedules.apply()
    new.schedules.remove("theirs")
    assert kinds(new.schedules.prune()) == {"calendar closed": "remove"}


@pytest.mark.spec("N71")
def test_a_calendar_that_code_did_not_create_is_not_overwritten(
    app: Duly, release: Release, caplog
):
    app.calendars.create("closed", "skip_dates", dates=["2026-07-03"])
    app.calendars.of("anna").create("closed", "skip_dates", dates=["2026-07-04"])

    new = start(release({"closed": CLOSED}))
    assert days(app) == {"2026-07-03": ""}
    assert new.schedules.get("report").calendar == "closed"
    assert "calendar 'closed' was not applied: a different calendar with this name" in caplog.text
    [closed, report] = new.schedules.plan()
    assert (closed.kind, report.kind) == ("blocked", "unchanged")
    [found] = [each for each in examine(new.core).findings if "was not applied" in each.text]
    assert (found.check, found.level) == ("calendars", Level.WRONG)

    # Once it is the same, or gone, the ticker applies the declaration.
    app.calendars.update("closed", dates=CLOSED["dates"])
    start(new)
    assert app.calendars.get("closed").declared
    other = release({"closed": CLOSED}, {}, name="billing")
    [entry] = other.schedules.apply()
    assert (entry.kind, entry.reason) == (
        "blocked",
        "the app 'default' declares a calendar with this name; choose another name",
    )
    app.calendars.remove("closed")
    start(other)
    assert app.calendars.get("closed").declared
    [entry, _] = new.schedules.plan()
    assert "the app 'billing' declares" in str(entry)


@pytest.mark.spec("N71")
def test_one_that_an_operator_removed_comes_back_with_its_schedules(release: Release):
    app = start(release({"closed": CLOSED}))
    app.calendars.remove("closed")
    start(app)
    assert app.schedules.get("report").calendar is None
    plan = app.schedules.apply()
    assert kinds(plan) == {"calendar closed": "create", "report": "change"}
    assert app.schedules.get("report").calendar == "closed"


@pytest.mark.spec("N71")
def test_a_set_with_calendars_is_applied_as_a_whole_and_once(release: Release, db: Database):
    app = release({"closed": CLOSED})

    def fail(point: str) -> None:
        if point == "declared.written":
            raise OSError("the power is gone")

    with fault.inject(fail), pytest.raises(OSError, match="power"):
        app.schedules.apply()
    assert "closed" not in [each.name for each in app.calendars.list()]

    apps = [app, *(release({"closed": CLOSED}) for _ in range(3))]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, apps))
    assert len([each for each in app.calendars.list() if not each.read_only]) == 1
    # A declaration that cannot be read any more counts as changed.
    db.execute("UPDATE @calendars SET declared = '[', definition = '['")
    assert kinds(app.schedules.apply())["calendar closed"] == "change"
    assert len(days(app)) == 2


@on_postgres
def test_a_name_that_is_taken_at_the_last_moment_is_looked_at_again(app: Duly, release: Release):
    new = release({"closed": CLOSED})
    taken = threading.Event()

    def take(point: str) -> None:
        if point == "declared.read" and not taken.is_set():
            taken.set()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(app.calendars.create, "closed", "skip_dates").result()

    with fault.inject(take):
        assert kinds(new.schedules.apply())["calendar closed"] == "blocked"


# Unknown calendars -------------------------------------------------------------------------------


@pytest.mark.spec("N72")
def test_an_unknown_calendar_leaves_out_its_schedule_and_nothing_else(
    release: Release, clock, caplog
):
    given = {"report": DAILY | {"calendar": "closde"}, "digest": DAILY}
    app = release({"closed": CLOSED}, given)
    ticker = Ticker(app.core)
    for _ in range(3):
        ticker.one_pass()
        clock.advance(2)

    assert [s.key for s in app.schedules.list()] == ["digest"]
    said = "there is no calendar 'closde'; did you mean 'closed'?"
    assert caplog.text.count(f"schedule 'report' was not applied: {said}") == 1
    assert "Traceback" not in caplog.text
    plan = app.schedules.plan()
    assert kinds(plan) == {
        "calendar closed": "unchanged",
        "report": "blocked",
        "digest": "unchanged",
    }
    assert (plan.applied_before, [each.reason for each in plan.blocked]) == (True, [said])
    assert f"! report: blocked, {said}" in str(plan)
    [found] = [each for each in examine(app.core).findings if "was not applied" in each.text]
    assert "'report' was not applied: there is no calendar 'closde'" in found.text
    assert found.hint == "did you mean 'closed'?"

    # The running ticker applies it once the calendar exists; nothing else is applied again.
    app.schedules.remove("digest")
    app.calendars.create("closde", "skip_dates", dates=["2026-07-02"])
    clock.advance(2)
    ticker.one_pass()
    assert [s.key for s in app.schedules.list()] == ["report"]
    assert reasons(app, 2) == [None, "calendar"]
    assert not [each for each in examine(app.core).findings if "was not applied" in each.text]


@pytest.mark.spec("N72")
def test_a_stored_schedule_is_left_as_it_is_while_its_calendar_is_unknown(release: Release, clock):
    app = start(release({"closed": CLOSED}, {"report": DAILY}))
    new = start(release({}, {"report": {"cron": "0 10 * * *", "calendar": "soon"}}))
    assert new.schedules.get("report").next_tick == utc(2026, 7, 1, 9)
    # An older set that starts again changes nothing, and neither does a process of the new one.
    start(app)
    assert not Declarations(app.core).apply(only_new=True)
    restarted = start(release({}, {"report": {"cron": "0 10 * * *", "calendar": "soon"}}))
    assert restarted.schedules.get("report").next_tick == utc(2026, 7, 1, 9)

    app.calendars.create("soon", "skip_dates", dates=["2027-01-01"])
    start(app)
    assert app.schedules.get("report").next_tick == utc(2026, 7, 1, 9)
    start(restarted)
    found = app.schedules.get("report")
    assert (found.next_tick, found.calendar) == (utc(2026, 7, 1, 10), "soon")

    # A calendar that goes and comes back is attached again; a renamed one stays attached.
    app.calendars.remove("soon")
    assert kinds(restarted.schedules.apply()) == {"report": "blocked"}
    app.calendars.create("soon", "skip_dates", dates=["2027-01-01"])
    start(restarted)
    assert app.schedules.get("report").calendar == "soon"
    app.calendars.update("soon", name="later")
    assert kinds(restarted.schedules.apply()) == {"report": "unchanged"}
    at(clock, utc(2026, 7, 1, 10))
    tick_all(restarted)
    assert [tick.outcome for tick in app.schedules.ticks("report")] == ["dispatched"]
    assert dt.date(2027, 1, 1) in app.calendars.get("later").dates
