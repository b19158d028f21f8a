"""Expectations: what schedules promise, and that one alert is sent when a promise is broken."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from duly import Ctx, Duly, Expect, ManualClock, Schedule, Unique, ids
from duly.errors import InvalidOption
from duly.testing import advance, drain, enqueued
from tests.jobs.support import tidy
from tests.schedules.support import at, tick_all, utc


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def told(app: Duly):
    """What the alert function was told."""
    heard: list[tuple[str, str]] = []

    @app.action
    def tell(ctx: Ctx, schedule_id: str, problem: str) -> None:
        heard.append((schedule_id, problem))

    @app.action
    def work(ctx: Ctx, fails: bool = False) -> None:
        if fails:
            raise RuntimeError("no luck")

    return heard


def run_everything(app: Duly) -> None:
    tick_all(app)
    drain(app, raises=False)


def jobs_of(app: Duly, name: str) -> int:
    return len(enqueued(app, name))


@pytest.mark.spec("N13")
def test_what_must_have_succeeded_by_a_time_of_day_is_told_when_it_has_not(app, clock, told):
    late = app.schedules.create(
        "books",
        app.function("work").bind(fails=True),
        cron="0 3 * * *",
        tz="Europe/Istanbul",
        expect=Expect(by="07:00"),
        alert=app.function("tell"),
    )
    fine = app.schedules.create(
        "mail",
        app.function("work").bind(),
        cron="0 3 * * *",
        tz="Europe/Istanbul",
        expect=Expect(by="07:00"),
        alert=app.function("tell"),
    )
    # 03:00 in Istanbul is midnight UTC: the first tick is tomorrow's.
    for instant in (utc(2026, 7, 2), utc(2026, 7, 2, 3, 59, 59)):
        at(clock, instant)
        run_everything(app)
    assert told == []
    at(clock, utc(2026, 7, 2, 4))
    run_everything(app)
    assert told == [(late.id, "its last tick did not succeed by 07:00")]
    assert app.schedules.get("books").late == "its last tick did not succeed by 07:00"
    assert app.schedules.get("mail").late is None
    assert fine.expect == Expect(by="07:00")

    # Looked at again, it is not told again; the next day it is.
    run_everything(app)
    assert len(told) == 1
    for instant in (utc(2026, 7, 3), utc(2026, 7, 3, 4)):
        at(clock, instant)
        run_everything(app)
    assert told[1:] == [(late.id, "its last tick did not succeed by 07:00")]


@pytest.mark.spec("N13")
def test_a_tick_that_nobody_has_looked_at_is_late_too(app, clock, told):
    app.schedules.create(
        "books",
        app.function("work").bind(),
        cron="0 3 * * *",
        expect=Expect(within=600),
        alert=app.function("tell"),
    )
    schedule = app.schedules.get("books")
    at(clock, utc(2026, 7, 1, 3, 10))
    # No ticker runs; only expectations are checked.
    app.store.check_promises(clock.now(), app.core.alert_jobs)
    assert jobs_of(app, "tell") == 1
    drain(app)
    assert told == [(schedule.id, "a tick did not succeed within 600 s")]


@pytest.mark.spec("N13")
def test_a_dead_man_alarm_goes_off_when_nothing_succeeds_any_more(app, clock, told):
    schedule = app.schedules.create(
        "heart",
        app.function("work").bind(),
        every=600,
        expect=Expect(every=1800),
        alert=app.function("tell"),
    )
    for minutes in range(10, 70, 10):
        at(clock, utc(2026, 7, 1, minutes // 60, minutes % 60))
        run_everything(app)
    assert told == []
    app.functions.pause("work")
    for minutes in range(70, 100, 10):
        at(clock, utc(2026, 7, 1, minutes // 60, minutes % 60))
        run_everything(app)
    # The last success was at 01:00.
    assert told == [(schedule.id, "no job has succeeded for 1800 s")]


@pytest.mark.spec("N13")
def test_a_day_that_the_calendar_forbids_promises_nothing(app, clock, told):
    app.schedules.create(
        "books",
        app.function("work").bind(),
        cron="0 3 * * *",
        calendar="us-federal-holidays-2026",
        tz="America/New_York",
        expect=Expect(by="07:00"),
        alert=app.function("tell"),
    )
    # 3 July 2026 is a holiday there.
    for day in (1, 2, 3, 4):
        at(clock, utc(2026, 7, day, 7))
        run_everything(app)
        at(clock, utc(2026, 7, day, 11))
        run_everything(app)
    assert [tick.outcome for tick in app.schedules.ticks("books")] == [
        "dispatched",
        "skipped",
        "dispatched",
        "dispatched",
    ]
    assert told == []


@pytest.mark.spec("N13")
def test_every_tick_says_how_late_it_was(app, clock, told):
    app.schedules.create("books", app.function("work").bind(), cron="0 3 * * *")
    at(clock, utc(2026, 7, 1, 3, 0, 7))
    tick_all(app)
    [tick] = app.schedules.ticks("books")
    assert tick.lag.total_seconds() == 7


def test_a_disabled_schedule_promises_nothing_until_it_is_enabled_again(app, clock, told):
    app.schedules.create(
        "books",
        app.function("work").bind(),
        cron="0 3 * * *",
        expect=Expect(within=600),
        alert=app.function("tell"),
    )
    app.schedules.disable("books")
    at(clock, utc(2026, 7, 1, 12))
    run_everything(app)
    assert (told, app.store.next_check()) == ([], None)
    app.schedules.enable("books")
    at(clock, utc(2026, 7, 2, 3, 10))
    app.store.check_promises(clock.now(), app.core.alert_jobs)
    assert jobs_of(app, "tell") == 1


@pytest.mark.parametrize(
    ("expect", "says"),
    [
        ({}, "exactly one"),
        ({"by": "7"}, "time of day"),
        ({"by": "24:00"}, "time of day"),
        ({"within": 0}, "1 s to a year"),
        ({"every": float("nan")}, "1 s to a year"),
        ({"by": "07:00", "within": 5}, "exactly one"),
    ],
)
def test_a_promise_that_makes_no_sense_is_refused(expect, says):
    with pytest.raises(InvalidOption, match=says):
        Expect(**expect)


def test_an_alert_must_take_what_it_is_told(app, told):
    with pytest.raises(ValueError, match="schedule_id"):
        app.schedules.create(
            "books",
            app.function("work").bind(),
            cron="0 3 * * *",
            expect=Expect(within=600),
            alert=app.function("work"),
        )
    with pytest.raises(InvalidOption, match="requires expect"):
        app.schedules.create(
            "books", app.function("work").bind(), cron="0 3 * * *", alert=app.function("tell")
        )
    assert app.schedules.list() == []


class Listener(ThreadingHTTPServer):
    """Hears what is POSTed, and answers as it is told."""

    def __init__(self, *statuses: int) -> None:
        self.heard: list[tuple[str, Any, str | None]] = []
        self.statuses = list(statuses)
        super().__init__(("127.0.0.1", 0), Post)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/late"


class Post(BaseHTTPRequestHandler):
    server: Listener

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.heard.append((self.path, body, self.headers["Idempotency-Key"]))
        self.send_response(self.server.statuses.pop(0))
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(autouse=True)
def sends_to_loopback(app):
    app.endpoints.allow = ["127.0.0.1"]


@contextmanager
def listening(*statuses: int) -> Iterator[Listener]:
    with Listener(*statuses) as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        yield listener
        listener.shutdown()
        thread.join()


@pytest.mark.spec("N13")
def test_an_address_is_told_and_told_again_until_it_answers(app, clock, told):
    with listening(503, 204) as listener:
        schedule = app.schedules.create(
            "books",
            app.function("work").bind(),
            cron="0 3 * * *",
            expect=Expect(within=600),
            alert=listener.url,
        )
        at(clock, utc(2026, 7, 1, 3, 10))
        app.store.check_promises(clock.now(), app.core.alert_jobs)
        ran = advance(app, 3600, raises=False)
    [job] = {job.id: job for job in ran if job.function == "duly.alert"}.values()
    assert (job.state, job.result()) == ("succeeded", 204)
    said = {
        "schedule_id": schedule.id,
        "problem": "a tick did not succeed within 600 s",
        "alert_id": job.id,
    }
    assert listener.heard == [("/late", said, job.id)] * 2


def test_a_worker_for_other_queues_tells_an_address_too(app, clock, told, hire):
    with listening(204) as listener:
        promise(app, Expect(within=600), cron="0 3 * * *", alert=listener.url)
        app.queues.pause("default")
        at(clock, utc(2026, 7, 1, 3, 10))
        app.store.check_promises(clock.now(), app.core.alert_jobs)
        hire(queues=["nothing"]).work()
    assert [body["problem"] for _, body, _ in listener.heard] == [
        "a tick did not succeed within 600 s"
    ]


def test_an_address_that_refuses_is_left_alone(app, clock, told):
    with listening(410) as listener:
        app.schedules.create(
            "books",
            app.function("work").bind(),
            cron="0 3 * * *",
            expect=Expect(within=600),
            alert=listener.url,
        )
        at(clock, utc(2026, 7, 1, 3, 10))
        app.store.check_promises(clock.now(), app.core.alert_jobs)
        ran = advance(app, 3600, raises=False)
    [failed] = [job for job in ran if job.function == "duly.alert"]
    assert failed.error is not None
    assert "the address responded with status 410" in failed.error.message


@pytest.mark.parametrize("alert", ["ftp://x/y", "https://", "nonsense", "https://a:secret@b/c", 5])
def test_an_address_that_makes_no_sense_is_refused(app, told, alert):
    with pytest.raises(InvalidOption, match="alert"):
        app.schedules.create(
            "books",
            app.function("work").bind(),
            cron="0 3 * * *",
            expect=Expect(within=600),
            alert=alert,
        )
    assert app.schedules.list() == []


# What a review found ------------------------------------------------------------------------------


def step(app: Duly, clock: ManualClock, minutes: int, *, until: int) -> None:
    for minute in range(minutes, until + 1, minutes):
        at(clock, utc(2026, 7, 1) + timedelta(minutes=minute))
        run_everything(app)


def promise(app: Duly, expect: Expect, fails: bool = False, **options: Any) -> Schedule:
    call = app.function("work").bind(fails=fails)
    options = {"alert": app.function("tell"), **options}
    return app.schedules.create("books", call, expect=expect, **options)


@pytest.mark.parametrize(
    "bounds",
    [
        {"end_at": utc(2026, 7, 1, 0, 30)},
        {"start_at": utc(2026, 7, 1, 2)},
        {"remaining": 1},
    ],
    ids=["after its end", "before its start", "after its last run"],
)
@pytest.mark.parametrize("expect", [Expect(within=60), Expect(every=1200), Expect(by="00:50")])
def test_a_schedule_that_does_not_tick_promises_nothing(app, clock, told, bounds, expect):
    promise(app, expect, every=600, **bounds)
    step(app, clock, 5, until=115)
    assert told == []


@pytest.mark.parametrize("expect", [Expect(within=600), Expect(by="06:00")])
def test_what_nobody_looked_at_during_an_outage_is_told_once_afterwards(app, clock, told, expect):
    promise(app, expect, cron="0 * * * *", catch_up=0)
    at(clock, utc(2026, 7, 1, 1))
    run_everything(app)
    at(clock, utc(2026, 7, 1, 1, 10))
    run_everything(app)
    assert told == []
    at(clock, utc(2026, 7, 1, 6, 30))
    run_everything(app)
    assert len(told) == 1
    run_everything(app)
    assert len(told) == 1


def test_an_alert_function_that_is_unknown_for_a_while_hears_of_it_later(app, clock, told):
    schedule = promise(app, Expect(within=600), fails=True, cron="0 3 * * *")
    gone = app.core.functions.registered.pop("tell")
    app.core.functions.revision += 1
    at(clock, utc(2026, 7, 1, 3))
    run_everything(app)
    at(clock, utc(2026, 7, 1, 3, 10))
    run_everything(app)
    assert (told, app.schedules.get("books").late) == ([], "a tick did not succeed within 600 s")
    app.core.functions.registered["tell"] = gone
    app.core.functions.revision += 1
    at(clock, utc(2026, 7, 1, 3, 11))
    run_everything(app)
    run_everything(app)
    assert told == [(schedule.id, "a tick did not succeed within 600 s")]
    # And the promise remains.
    for instant in (utc(2026, 7, 2, 3), utc(2026, 7, 2, 3, 10)):
        at(clock, instant)
        run_everything(app)
    assert len(told) == 2


def test_what_ticks_only_once_leaves_no_dead_man_behind(app, clock, told):
    promise(app, Expect(every=3600), at=utc(2026, 7, 1, 0, 10))
    step(app, clock, 5, until=200)
    assert told == []


def test_a_dead_man_alarm_that_has_gone_off_waits_another_period(app, clock, told):
    promise(app, Expect(every=3600), fails=True, every=600)
    step(app, clock, 5, until=190)
    assert [problem for _, problem in told] == ["no job has succeeded for 3600 s"] * 3


def test_a_success_that_has_left_the_history_still_counts(app, clock, told):
    promise(app, Expect(every=40 * 86_400), cron="0 0 30 * *")
    for day in range(1, 45):
        at(clock, utc(2026, 7, 1) + timedelta(days=day))
        run_everything(app)
        tidy(app)
    # It succeeded on 30 July; the history of that day has gone.
    assert told == []


def test_a_forbidden_tick_that_is_looked_at_late_is_excused(app, clock, told):
    calendar: dict[str, Any] = {"calendar": "us-federal-holidays-2026"}
    promise(app, Expect(within=60), cron="0 9 * * *", catch_up=0, **calendar)
    for day in (1, 2):
        at(clock, utc(2026, 7, day, 9))
        run_everything(app)
    at(clock, utc(2026, 7, 3, 9, 5))
    run_everything(app)
    assert told == []


def test_a_tick_that_is_moved_is_waited_for_where_it_was_moved_to(app, clock, told):
    promise(app, Expect(within=600), cron="0 9 * * *")
    app.schedules.move_next("books", utc(2026, 7, 1, 12))
    at(clock, utc(2026, 7, 1, 9, 10))
    run_everything(app)
    at(clock, utc(2026, 7, 1, 12))
    run_everything(app)
    at(clock, utc(2026, 7, 1, 12, 10))
    run_everything(app)
    assert told == []


def test_an_early_success_does_not_make_up_for_the_last_tick(app, clock, told):
    bodies = {"fails": False}

    @app.action
    def fickle(ctx: Ctx) -> None:
        if bodies["fails"]:
            raise RuntimeError("no luck")

    expect = Expect(by="07:00")
    app.schedules.create(
        "books", fickle, cron="0 3,6 * * *", expect=expect, alert=app.function("tell")
    )
    at(clock, utc(2026, 7, 1, 3))
    run_everything(app)
    bodies["fails"] = True
    at(clock, utc(2026, 7, 1, 6))
    run_everything(app)
    at(clock, utc(2026, 7, 1, 7))
    run_everything(app)
    assert len(told) == 1
    # But a later run does: its function has been fixed.
    at(clock, utc(2026, 7, 2, 6))
    run_everything(app)
    bodies["fails"] = False
    at(clock, utc(2026, 7, 2, 6, 30))
    app.schedules.run("books")
    run_everything(app)
    at(clock, utc(2026, 7, 2, 7))
    run_everything(app)
    assert len(told) == 1


def test_what_cannot_be_checked_stays_as_late_as_it_was_and_blocks_nobody(app, clock, told, db):
    schedule = promise(app, Expect(within=600), fails=True, cron="0 3 * * *")
    other = app.schedules.create(
        "other",
        app.function("work").bind(fails=True),
        cron="0 4 * * *",
        expect=Expect(within=600),
        alert=app.function("tell"),
    )
    for instant in (utc(2026, 7, 1, 3), utc(2026, 7, 1, 3, 10)):
        at(clock, instant)
        run_everything(app)
    assert [schedule_id for schedule_id, _ in told] == [schedule.id]
    db.execute("UPDATE @schedules SET policies = 'nonsense' WHERE id = ?", schedule.id)
    db.execute("UPDATE @schedules SET expect_at = ? WHERE id = ?", clock.now(), schedule.id)
    for instant in (utc(2026, 7, 1, 4), utc(2026, 7, 1, 4, 10)):
        at(clock, instant)
        run_everything(app)
    assert [schedule_id for schedule_id, _ in told] == [schedule.id, other.id]
    assert app.schedules.get("books").late == "a tick did not succeed within 600 s"
    assert app.store.next_check() is not None


# What a second review found -----------------------------------------------------------------------


def test_a_parked_schedule_goes_on_promising_also_when_its_next_tick_is_forbidden(app, clock, told):
    at(clock, utc(2026, 7, 3, 8))  # a Friday
    app.calendars.create("weekdays", "skip_dates", rules=["weekends"])
    promise(app, Expect(within=900), fails=True, cron="0 9 * * *", calendar="weekdays")
    gone = app.core.functions.registered.pop("work")
    app.core.functions.revision += 1
    at(clock, utc(2026, 7, 3, 9))
    run_everything(app)
    assert app.schedules.get("books").status == "parked"
    at(clock, utc(2026, 7, 3, 9, 15))
    run_everything(app)
    assert len(told) == 1
    app.core.functions.registered["work"] = gone
    app.core.functions.revision += 1
    for day in (4, 5, 6):
        for instant in (utc(2026, 7, day, 9), utc(2026, 7, day, 9, 15)):
            at(clock, instant)
            run_everything(app)
    assert app.schedules.get("books").status == "enabled"
    assert len(told) == 2


def test_what_has_been_parked_for_long_is_still_late(app, clock, told):
    promise(app, Expect(within=60), every=300)
    app.core.functions.registered.pop("work")
    app.core.functions.revision += 1
    at(clock, utc(2026, 7, 1, 0, 5))
    run_everything(app)
    at(clock, utc(2026, 8, 10))  # more ticks ago than are looked at
    run_everything(app)
    assert len(told) == 1
    at(clock, utc(2026, 8, 10, 0, 1))
    run_everything(app)
    assert [problem for _, problem in told[1:]] == ["a tick did not succeed within 60 s"]


def test_a_tick_at_that_time_of_day_is_none_before_it(app, clock, told):
    promise(app, Expect(by="07:00"), cron="0 * * * *")
    step(app, clock, 60, until=32 * 60)
    assert told == []


def test_a_tick_that_was_moved_beyond_that_time_counts_the_next_day(app, clock, told):
    promise(app, Expect(by="07:00"), fails=True, cron="50 6 * * 3")
    app.schedules.move_next("books", utc(2026, 7, 1, 7, 10))
    for instant in (utc(2026, 7, 1, 7), utc(2026, 7, 1, 7, 10)):
        at(clock, instant)
        run_everything(app)
    assert told == []
    at(clock, utc(2026, 7, 2, 7))
    run_everything(app)
    assert len(told) == 1


def test_a_dead_man_hears_of_jobs_that_had_to_wait_for_each_other(app, clock, told, monkeypatch):
    # Otherwise the ids of other tests, whose clocks were later, hide when these jobs were created.
    monkeypatch.setattr(ids, "_source", ids._Source())
    ended: list[int] = []

    @app.action
    def slow(ctx: Ctx) -> None:
        if len(ended) < 4:
            for _ in range(10):
                clock.advance(300)
                tick_all(app)
        ended.append(clock.now())

    # Each takes fifty minutes, and was made long before the one in front of it had ended.
    app.schedules.create(
        "books",
        slow,
        every=600,
        overlap="buffer_one",
        expect=Expect(every=70 * 60),
        alert=app.function("tell"),
    )
    at(clock, utc(2026, 7, 1, 0, 10))
    run_everything(app)
    assert len(ended) >= 4
    assert told == []


@pytest.mark.parametrize("off", ["everything", "function", "overlap"])
@pytest.mark.parametrize("expect", [Expect(within=900), Expect(by="10:00")], ids=["within", "by"])
def test_a_forbidden_day_promises_nothing_whichever_guard_spoke_first(
    app, clock, told, off, expect
):
    app.calendars.create("weekdays", "skip_dates", rules=["weekends"])
    at(clock, utc(2026, 7, 3, 12))
    promise(app, expect, cron="0 9 * * *", calendar="weekdays")
    if off == "everything":
        app.pause()
    elif off == "function":
        app.functions.pause("work")
    else:
        app.schedules.run("books")
    for day in (4, 5):
        for hour in (9, 10):
            at(clock, utc(2026, 7, day, hour))
            tick_all(app)
    assert {tick.reason for tick in app.schedules.ticks("books") if tick.kind == "slot"} == {
        {"everything": "kill_switch", "function": "target_paused"}.get(off, "overlap_in_flight")
    }
    assert jobs_of(app, "tell") == 0


def test_a_tick_that_an_operator_skips_promises_nothing_before_it_is_decided(app, clock, told):
    promise(app, Expect(within=600), cron="0 3 * * *")
    app.schedules.skip_next("books")
    at(clock, utc(2026, 7, 1, 3, 10))
    app.store.check_promises(clock.now(), app.core.alert_jobs)
    assert jobs_of(app, "tell") == 0


@pytest.mark.parametrize("expect", [Expect(within=900), Expect(by="01:00"), Expect(every=3600)])
def test_a_tick_succeeds_with_the_job_that_was_there_before(app, clock, told, expect):
    @app.action(unique=Unique())
    def lonely(ctx: Ctx) -> None: ...

    schedule = app.schedules.create(
        "books", lonely, cron="30 0 * * *", expect=expect, alert=app.function("tell")
    )
    at(clock, utc(2026, 7, 1, 0, 29))
    job = app.run(lonely)
    at(clock, utc(2026, 7, 1, 0, 30))
    run_everything(app)
    [tick] = app.schedules.ticks(schedule)
    assert tick.job_id == job.id
    for instant in (utc(2026, 7, 1, 0, 45), utc(2026, 7, 1, 1)):
        at(clock, instant)
        run_everything(app)
    assert told == []


def test_ticks_that_share_a_job_of_the_schedule_succeed_with_it(app, clock, told):
    @app.action(unique=Unique())
    def lonely(ctx: Ctx) -> None: ...

    app.schedules.create(
        "books",
        lonely,
        every=300,
        overlap="allow",
        end_at=utc(2026, 7, 1, 0, 10),
        expect=Expect(within=600),
        alert=app.function("tell"),
    )
    for minute in (5, 10):
        at(clock, utc(2026, 7, 1, 0, minute))
        tick_all(app)
    assert len({tick.job_id for tick in app.schedules.ticks("books")}) == 1
    drain(app)
    at(clock, utc(2026, 7, 1, 0, 20))
    run_everything(app)
    assert told == []


@pytest.mark.parametrize("how", ["create", "update", "declare"])
def test_the_first_tick_of_a_promise_is_waited_for_where_it_was_shifted_to(app, clock, told, how):
    app.calendars.create("weekdays", "skip_dates", rules=["weekends"])
    options: dict[str, Any] = {"cron": "0 9 * * 6", "calendar": "weekdays", "shift": "previous"}
    promised: dict[str, Any] = {"expect": Expect(within=900), "alert": app.function("tell")}
    call = app.function("work").bind(fails=True)
    if how == "create":
        app.schedules.create("books", call, **options, **promised)
    elif how == "update":
        app.schedules.create("books", call, **options)
        app.schedules.update("books", **promised)
    else:
        app.schedule("books", call, **options)
        app.schedules.apply()
        app.core.declarations.clear()
        app.schedule("books", call, **options, **promised)
        app.schedules.apply()
    # What is due on Saturday, 4 July, comes on Friday.
    for instant in (utc(2026, 7, 3, 9), utc(2026, 7, 3, 9, 15)):
        at(clock, instant)
        run_everything(app)
    assert len(told) == 1


def test_a_promise_that_is_made_later_is_not_about_a_tick_that_came_a_day_early(app, clock, told):
    app.calendars.create("weekdays", "skip_dates", rules=["weekends"])
    call = app.function("work").bind(fails=True)
    app.schedules.create("books", call, cron="0 9 * * 6", calendar="weekdays", shift="previous")
    at(clock, utc(2026, 7, 3, 9))
    run_everything(app)
    app.schedules.update("books", expect=Expect(within=900), alert=app.function("tell"))
    at(clock, utc(2026, 7, 4, 9, 15))
    run_everything(app)
    assert told == []
    for instant in (utc(2026, 7, 10, 9), utc(2026, 7, 10, 9, 15)):
        at(clock, instant)
        run_everything(app)
    assert len(told) == 1


def through(app: Duly, clock: ManualClock, rounds: int) -> None:
    """Let everything happen when it is due."""
    for _ in range(rounds):
        due = app.schedules.get("books").due
        assert due is not None
        times = [int(due.timestamp() * 1000), app.store.next_check() or clock.now()]
        clock.advance(max(0, min(times) - clock.now()) / 1000)
        run_everything(app)


@pytest.mark.parametrize("fails", [False, True])
def test_a_tick_that_jitter_holds_back_is_due_when_it_can_be_decided(app, clock, told, fails):
    options: dict[str, Any] = {"every": 300, "jitter": 1800, "overlap": "allow"}
    promise(app, Expect(within=60), fails, **options)
    through(app, clock, 80)
    ticks = app.schedules.ticks("books", limit=1000)
    assert len(ticks) > 20
    assert any(tick.decided > tick.due + timedelta(seconds=60) for tick in ticks)
    assert bool(told) == fails
    if fails:
        # Each is told once.
        many = [int(problem.split()[0].replace("a", "1")) for _, problem in told]
        assert sum(many) <= len(ticks)
