"""A preview says what will happen, changes nothing, and is right."""

from datetime import datetime, timedelta
from itertools import count
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duly import Budget, Ctx, Duly, ManualClock, ScheduleNotFound, UnknownZone
from duly.errors import InvalidOption, InvalidTime
from duly.schedules import checks
from duly.testing import drain
from tests.jobs.support import Database
from tests.schedules.support import at, dump, tick_all, utc

HOUR, DAY = 3600, 86_400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def post(app: Duly) -> Any:
    @app.action
    def post(ctx: Ctx, audience: str = "all") -> str:
        return audience

    return post


# What it shows -----------------------------------------------------------------------------------


@pytest.mark.spec("R148", "R149", "R150")
def test_ten_ticks_strictly_after_now_unless_told_otherwise(
    app: Duly, clock: ManualClock, post: Any
):
    app.schedules.create("digest", post.bind("tech"), cron="0 9 * * *")
    at(clock, utc(2026, 7, 1, 9))
    rows = app.schedules.preview("digest")
    assert [row.utc for row in rows] == [utc(2026, 7, day, 9) for day in range(2, 12)]
    row = rows[0]
    assert (row.decision, row.reason, row.detail) == ("dispatch", None, {})
    assert (row.inputs, row.rotation_index, row.dst_adjusted) == ({"audience": "tech"}, None, False)
    assert row.tick_ms == round(row.utc.timestamp() * 1000)
    assert len(app.schedules.preview("digest", 200)) == 200
    later = app.schedules.preview("digest", 2, after=utc(2026, 9, 1, 9))
    assert [row.utc for row in later] == [utc(2026, 9, 2, 9), utc(2026, 9, 3, 9)]
    for bad in (0, -1, 10_001, True, "5"):
        with pytest.raises(InvalidOption):
            app.schedules.preview("digest", bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidTime):
        app.schedules.preview("digest", after=datetime(2026, 9, 1))  # noqa: DTZ001


@pytest.mark.spec("R148")
def test_there_is_no_wall_however_far_the_ticks_are_apart(app: Duly, post: Any):
    app.schedules.create("leap", post, cron="0 0 29 2 *")
    years = [row.utc.year for row in app.schedules.preview("leap", 20)]
    assert years == [year for year in range(2028, 2112, 4) if year != 2100]


@pytest.mark.spec("R148", "R151")
def test_a_calendar_that_allows_nothing_gives_skips_and_does_not_hang(app: Duly, post: Any):
    app.calendars.create("once", "only_dates", dates=["2027-07-01"])
    app.schedules.create("often", post, cron="* * * * *", calendar="once")
    app.schedules.create("moved", post, cron="0 9 * * *", calendar="once", shift="next")
    for key in ("often", "moved"):
        rows = app.schedules.preview(key, 200)
        assert {row.reason for row in rows[:100]} <= {"calendar", None}
        assert len(rows) == 200
    assert {row.reason for row in app.schedules.preview("often", 200)} == {"calendar"}


@pytest.mark.spec("R148")
def test_it_looks_ahead_as_long_as_there_is_time(
    app: Duly, post: Any, monkeypatch: pytest.MonkeyPatch
):
    app.schedules.create("often", post, cron="* * * * *", rotation=[{}, {}])
    looks = count()
    # Each look at the clock takes a millisecond.
    monkeypatch.setattr(checks, "os_monotonic", lambda: next(looks) / 1000)
    with pytest.raises(InvalidOption, match="too far ahead") as raised:
        app.schedules.preview("often", 10_000, after=utc(2031, 6, 1))
    assert raised.value.option == "after"
    rows = app.schedules.preview("often", 10_000, after=utc(2026, 7, 1, 0, 1))
    assert 0 < len(rows) < checks.PREVIEW_SECONDS * 1000


def test_an_end_before_the_wanted_instant_is_no_lack_of_time(app: Duly, post: Any):
    app.schedules.create("often", post, cron="0 9 * * *", end_at=utc(2026, 7, 9))
    assert app.schedules.preview("often", after=utc(2031, 6, 1)) == []


@pytest.mark.spec("R148")
def test_what_is_due_already_is_counted(app: Duly, clock: ManualClock, post: Any):
    entries = [{"audience": "a"}, {"audience": "b"}, {"audience": "c"}]
    app.schedules.create("once", post, cron="0 9 * * *", remaining=1)
    app.schedules.create("turns", post, cron="0 9 * * *", rotation=entries)
    app.schedules.create("off", post, cron="0 9 * * *", rotation=entries, enabled=False)
    at(clock, utc(2026, 7, 1, 12))
    assert app.schedules.preview("once") == []
    foreseen = {key: app.schedules.preview(key, 3) for key in ("turns", "off")}
    assert [row.rotation_index for row in foreseen["turns"]] == [1, 2, 0]
    assert [row.rotation_index for row in foreseen["off"]] == [0, 1, 2]
    tick_all(app)
    drain(app)
    assert app.schedules.preview("turns", 3) == foreseen["turns"]
    assert app.schedules.preview("once") == []


@pytest.mark.spec("N2")
def test_a_row_is_shown_in_three_zones(app: Duly, post: Any):
    app.schedules.create("digest", post, cron="0 9 * * *", tz="Europe/Istanbul")
    [row] = app.schedules.preview("digest", 1, tz="America/New_York")
    assert row.utc.isoformat() == "2026-07-01T06:00:00+00:00"
    assert row.local.isoformat() == "2026-07-01T09:00:00+03:00"
    assert row.viewer.isoformat() == "2026-07-01T02:00:00-04:00"
    [row] = app.schedules.preview("digest", 1)
    assert row.viewer == row.local
    with pytest.raises(UnknownZone):
        app.schedules.preview("digest", 1, tz="Mars/Base")


@pytest.mark.spec("N2")
def test_a_tick_that_was_moved_by_a_clock_change_says_so(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create("night", post, cron="30 2 * * *", tz="Europe/Berlin")
    rows = app.schedules.preview("night", 10, after=utc(2027, 3, 25))
    adjusted = [row.local.isoformat() for row in rows if row.dst_adjusted]
    assert adjusted == ["2027-03-28T03:00:00+02:00"]


@pytest.mark.spec("N2", "R151")
def test_a_skip_says_why(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create(
        "digest",
        post,
        cron="0 9 * * *",
        calendar="us-federal-holidays-2026",
        condition={"/last_24h_stats/total": {"lt": 1}},
        overlap="allow",
    )
    rows = {row.utc.day: row for row in app.schedules.preview("digest", 5)}
    assert rows[3].reason == "calendar"
    assert rows[3].detail["date"] == "2026-07-03"
    assert rows[2].decision == rows[4].decision == "dispatch"
    app.run_after(DAY, post)
    rows = {row.utc.day: row for row in app.schedules.preview("digest", 5)}
    # Of the condition only a snapshot is known, and it holds for all of them.
    assert [row.reason for row in rows.values()] == [
        "condition_failed",
        "condition_failed",
        "calendar",
        "condition_failed",
        "condition_failed",
    ]
    assert rows[1].detail["why"] == "/last_24h_stats/total is 1, expected < 1"
    assert rows[1].detail["checks"] == [
        {
            "pointer": "/last_24h_stats/total",
            "operator": "lt",
            "expected": 1,
            "found": True,
            "actual": 1,
            "passes": False,
        }
    ]


@pytest.mark.spec("R151")
def test_what_succeeds_may_be_fed_back(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create(
        "digest", post, cron="0 */6 * * *", condition={"/last_24h_stats/succeeded": {"lt": 2}}
    )
    hours = [
        (row.utc.day - 1) * 24 + row.utc.hour
        for row in app.schedules.preview("digest", 10, simulate=True)
        if row.decision == "dispatch"
    ]
    assert hours == [6, 12, 30, 36, 54, 60]
    # And so it comes to pass.
    for hour in range(6, 66, 6):
        at(clock, utc(2026, 7, 1 + hour // 24, hour % 24))
        tick_all(app)
        drain(app)
    ticks = reversed(app.schedules.ticks("digest", outcome="dispatched"))
    assert [(tick.at.day - 1) * 24 + tick.at.hour for tick in ticks] == hours

    app.schedules.update("digest", condition={"/prior_run_result/more": {"neq": False}})
    rows = app.schedules.preview("digest", 3, simulate=True, result={"more": False})
    assert [row.decision for row in rows] == ["dispatch", "skip", "skip"]
    assert [row.decision for row in app.schedules.preview("digest", 3)] == ["dispatch"] * 3


@pytest.mark.spec("R153")
def test_a_previewed_rotation_moves_on_with_dispatches_only(app: Duly, post: Any):
    three = [{"audience": name} for name in "abc"]
    app.schedules.create(
        "digest", post, cron="0 9 * * *", rotation=three, calendar="us-federal-holidays-2026"
    )
    rows = app.schedules.preview("digest", 6)
    assert [row.rotation_index for row in rows] == [0, 1, None, 2, 0, 1]
    assert [row.inputs and row.inputs["audience"] for row in rows] == [
        "a",
        "b",
        None,
        "c",
        "a",
        "b",
    ]
    # Even where the first rows are not shown.
    [row] = app.schedules.preview("digest", 1, after=utc(2026, 7, 5, 12))
    assert row.rotation_index == 1
    assert app.schedules.get("digest").rotation_index == 0


def test_schedules_that_sleep_show_what_would_come_and_those_that_ended_nothing(
    app: Duly, db: Database, clock: ManualClock, post: Any
):
    app.schedules.create("off", post, cron="0 9 * * *", enabled=False)
    app.schedules.create("parked", post, cron="0 9 * * *")
    db.execute("UPDATE @schedules SET function = 'gone' WHERE key = 'parked'")
    app.schedules.create("once", post, at=utc(2026, 7, 1, 9))
    app.schedules.create("twice", post, cron="0 9 * * *", end_at=utc(2026, 7, 2, 9))
    assert len(app.schedules.preview("twice")) == 2
    assert len(app.schedules.preview("once")) == 1
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    assert app.schedules.get("parked").status == "parked"
    for key in ("off", "parked"):
        assert app.schedules.preview(key, 1)[0].utc == utc(2026, 7, 2, 9)
    assert app.schedules.preview("once") == []
    assert len(app.schedules.preview("twice")) == 1


def test_a_tick_that_was_moved_to_later_is_still_to_come(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create("late", post, cron="0 9 * * *", jitter=6 * HOUR)
    schedule = app.schedules.get("late")
    assert schedule.due is not None
    assert utc(2026, 7, 1, 9) < schedule.due
    at(clock, schedule.due - timedelta(seconds=1))
    row = app.schedules.preview("late", 1)[0]
    assert (row.utc, row.due) == (utc(2026, 7, 1, 9), schedule.due)
    at(clock, schedule.due)
    assert app.schedules.preview("late", 1)[0].utc == utc(2026, 7, 2, 9)


def test_a_tick_that_was_moved_to_an_earlier_day_is_not_shown_again(
    app: Duly, clock: ManualClock, post: Any
):
    app.calendars.create("off", "skip_dates", dates=["2026-07-03", "2027-01-01"])
    app.schedules.create("early", post, cron="0 9 * * *", calendar="off", shift="previous")
    at(clock, utc(2026, 7, 2, 9))
    tick_all(app)
    drain(app)
    assert [tick.at.day for tick in app.schedules.ticks("early")] == [3, 2, 1]
    assert app.schedules.preview("early", 1)[0].utc == utc(2026, 7, 4, 9)
    # Nor is it run again when the schedule counts anew.
    app.schedules.update("early", end_at=utc(2026, 8, 1))
    assert app.schedules.preview("early", 1)[0].utc == utc(2026, 7, 4, 9)
    for day in (3, 4):
        at(clock, utc(2026, 7, day, 9))
        tick_all(app)
        drain(app)
    assert [tick.at.day for tick in app.schedules.ticks("early")] == [4, 3, 2, 1]


@pytest.mark.parametrize(("catch_up", "decisions"), [(5, ["dispatch", "skip"]), (1, ["dispatch"])])
def test_ticks_of_coming_days_that_are_overdue_are_foreseen_as_one_pass(
    app: Duly, clock: ManualClock, post: Any, catch_up: int, decisions: list[str]
):
    app.calendars.create("off", "skip_dates", dates=["2026-07-04", "2026-07-05", "2027-01-01"])
    moved: dict[str, Any] = {"calendar": "off", "shift": "previous", "jitter": HOUR}
    late: dict[str, Any] = {"overlap": "buffer_one", "catch_up": catch_up}
    # Which of both is due first differs by the schedule.
    keys = [f"early {n}" for n in range(8)]
    for key in keys:
        app.schedules.create(key, post, cron="0 9 4,5 * *", **moved, **late)
    # No ticker has looked since both were due.
    at(clock, utc(2026, 7, 3, 16))
    foreseen = {key: app.schedules.preview(key, len(decisions)) for key in keys}
    tick_all(app)
    for key in keys:
        assert [row.decision for row in foreseen[key]] == decisions
        happened = [tick for tick in app.schedules.ticks(key)[::-1] if tick.outcome != "missed"]
        rows = [(row.utc, row.due, row.reason, row.detail) for row in foreseen[key]]
        assert [(tick.at, tick.due, tick.reason, tick.detail) for tick in happened] == rows


@pytest.mark.spec("R155")
def test_nobody_previews_what_belongs_to_others(app: Duly, post: Any):
    mine = app.schedules.of("anna").create("digest", post, cron="0 9 * * *")
    for key in ("digest", mine.id):
        with pytest.raises(ScheduleNotFound):
            app.schedules.of("bert").preview(key)
    assert len(app.schedules.of("anna").preview("digest")) == 10


# It changes nothing ------------------------------------------------------------------------------


@pytest.mark.spec("R152")
def test_every_table_stays_as_it_is(app: Duly, db: Database, clock: ManualClock, post: Any):
    app.calendars.create("off", "skip_dates", dates=["2026-07-02", "2027-01-01"])
    app.core.settings = msgspec.structs.replace(
        app.core.settings, signal=lambda schedule: {"open": True}
    )
    app.schedules.create(
        "digest",
        post,
        cron="0 9 * * *",
        tz="Europe/Berlin",
        calendar="off",
        shift="next",
        condition={
            "/signal_rpc_result/open": {"eq": True},
            "/prior_run_result/status": {"neq": "failed"},
            "/last_24h_stats/failed": {"lt": 3},
        },
        rotation=[{"audience": "a"}, {"audience": "b"}],
        budget=Budget(runs=3, per=DAY),
        remaining=20,
        jitter=60,
    )
    app.schedules.create("interval", post, every=600, budget=Budget(cost=3, per=DAY))
    app.schedules.skip_next("digest")
    at(clock, utc(2026, 7, 3, 9))
    tick_all(app)
    drain(app)
    before = dump(db)
    for key in ("digest", "interval"):
        for simulate in (False, True):
            assert app.schedules.preview(key, 50, simulate=simulate, tz="Asia/Tokyo")
    assert dump(db) == before


# It is right -------------------------------------------------------------------------------------

STARTS = [
    utc(2026, 3, 6, 20),
    utc(2026, 3, 27, 7),
    utc(2026, 4, 3, 1),
    utc(2026, 10, 2, 12),
    utc(2026, 10, 23, 5),
    utc(2026, 10, 30, 6),
]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Tehran"]
CRONS = ["30 2 * * *", "*/30 1 * * *", "0,30 2 * * *", "15 */6 * * *", "0 9 * * 1-5", "0 0 L * *"]

triggers = st.one_of(
    st.builds(
        lambda cron, tz: {"cron": cron, "tz": tz}, st.sampled_from(CRONS), st.sampled_from(ZONES)
    ),
    st.builds(
        lambda minutes, at_once: {"every": 60 * minutes, "fire_at_once": at_once},
        st.integers(30, 3000),
        st.booleans(),
    ),
)
calendars = st.none() | st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["skip_dates", "only_dates"]),
        "tz": st.sampled_from(ZONES),
        "days": st.sets(st.integers(0, 12), min_size=1, max_size=8),
        "shift": st.sampled_from([None, "next", "previous", "nearest"]),
    }
)
policies = st.fixed_dictionaries(
    {},
    optional={
        "rotation": st.lists(
            st.sampled_from([{"audience": "a"}, {"audience": "b"}, {}]), min_size=1, max_size=4
        ),
        "budget": st.builds(Budget, runs=st.integers(1, 4), per=st.integers(HOUR, 3 * DAY)),
        "remaining": st.integers(1, 6),
        "jitter": st.integers(1, 2 * HOUR),
        "overlap": st.sampled_from(["skip", "allow", "buffer_one", "buffer_all", "cancel_other"]),
        "condition": st.sampled_from([{"/signal_rpc_result": {"eq": n}} for n in (1, 2)]),
        "ends": st.integers(1, 200),
        "catch_up": st.integers(1, 10),
    },
)
overrides = st.sampled_from([None, "skip", "move"])
keys = count()


@pytest.mark.long("postgres")
@pytest.mark.spec("R154", "N2", "R151", "R153")
@settings(
    max_examples=settings().max_examples // 4,  # each is a life on a database
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.sampled_from(STARTS), triggers, calendars, policies, overrides)
def test_what_was_foreseen_is_what_happens(
    app: Duly, post: Any, start, trigger, calendar, policies, override
):
    clock = app.core.clock = ManualClock(start)
    app.core.settings = msgspec.structs.replace(app.core.settings, signal=lambda schedule: 1)
    key = f"schedule {next(keys)}"
    options: dict[str, Any] = {**trigger, **policies}
    if "ends" in options:
        options["end_at"] = start + timedelta(hours=options.pop("ends"))
    if calendar is not None:
        days = [start + timedelta(days=day) for day in calendar["days"]]
        name = f"calendar {next(keys)}"
        dates = [*(day.date() for day in days), (start + timedelta(days=400)).date()]
        app.calendars.create(name, calendar["kind"], tz=calendar["tz"], dates=dates)
        options |= {"calendar": name, "shift": calendar["shift"]}
    try:
        app.schedules.create(key, post.bind("bound"), **options)
    except InvalidOption as error:
        # Nothing is to come, or a shift would move several ticks to one time.
        if error.field not in ("trigger", "shift"):
            raise
        return
    # What is due at once is not to come any more.
    tick_all(app)
    drain(app)
    before = len(app.schedules.ticks(key))
    schedule = app.schedules.get(key)
    if schedule.next_tick is None:
        assert app.schedules.preview(key) == []
        return
    if override == "skip":
        app.schedules.skip_next(key, by="anna")
    elif override == "move" and schedule.next_tick > start:
        app.schedules.move_next(key, start + (schedule.next_tick - start) / 2, by="anna")

    foreseen = app.schedules.preview(key, 12)
    happened: list[Any] = []
    while len(happened) < len(foreseen):
        due = app.schedules.get(key).due
        assert due is not None, "fewer ticks than foreseen"
        if due > clock_time(clock):
            at(clock, due)
        tick_all(app)
        drain(app)
        happened = app.schedules.ticks(key)[::-1][before:]
    if len(foreseen) < 12:
        assert app.schedules.get(key).status == "ended"
        assert len(happened) == len(foreseen)
    for row, tick in zip(foreseen, happened, strict=False):
        assert row.utc == tick.at
        assert row.due == tick.due
        assert (row.decision == "dispatch") == (tick.outcome == "dispatched")
        assert (row.reason, row.detail) == (tick.reason, tick.detail)
        assert (row.rotation_index, row.dst_adjusted) == (tick.rotation_index, tick.dst_adjusted)
        assert row.inputs == (tick.job.arguments if tick.job else None)
    app.schedules.remove(key)


def clock_time(clock: ManualClock) -> datetime:
    return datetime.fromtimestamp(clock.now() / 1000, ZoneInfo("UTC"))
