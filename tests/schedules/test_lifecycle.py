"""Disable, enable, edit, remove; the function's own status; the switch that stops everything."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from duly import Ctx, Duly, ErrorKind, Limit, ManualClock, State, fault
from duly.clock import to_ms
from duly.errors import InvalidOption, ScheduleNotFound, StoreFull, StoreUnavailable
from duly.testing import advance, drain, override
from tests.jobs.child import make_app, run_until_killed
from tests.jobs.support import (
    PATIENCE,
    Database,
    Hire,
    ManualWorker,
    prepare,
    rescue_the_dead,
    state_of,
)
from tests.schedules.support import at, tick_all, utc

HOUR = timedelta(hours=1)
START = utc(2026, 7, 1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def post(app: Duly):
    @app.action
    def post(ctx: Ctx, audience: str = "all") -> str:
        return audience

    return post


# Disable, enable, edit, remove


@pytest.mark.spec("R28")
def test_a_disabled_schedule_has_no_next_tick_and_what_is_due_does_not_fire(
    app: Duly, clock, post, db: Database
):
    app.schedules.create("s", post, every=HOUR)
    clock.advance(3600)
    disabled = app.schedules.disable("s", note="too loud", by="ada")
    assert (disabled.status, disabled.next_tick, disabled.due) == ("disabled", None, None)
    assert db.execute("SELECT next_tick_at, due_at FROM @schedules") == [(None, None)]
    tick_all(app)
    assert app.jobs() == app.schedules.ticks("s") == []


@pytest.mark.spec("R28")
def test_a_disabled_schedule_with_a_next_tick_cannot_be_stored(app: Duly, clock, post, db):
    app.schedules.create("s", post, every=HOUR)
    with pytest.raises(Exception, match=r"(?i)check"):
        db.execute(f"UPDATE @schedules SET enabled = {'0' if db.is_sqlite else 'false'}")


@pytest.mark.spec("R29")
@pytest.mark.parametrize("verb", ["disable", "remove"])
def test_whoever_disables_between_the_look_and_the_tick_prevents_it(
    app: Duly, clock, post, verb, monkeypatch
):
    app.schedules.create("s", post, every=HOUR)
    clock.advance(3600)
    store = app.ready()
    tick = store.tick

    def late(*args, **kwargs):
        getattr(app.schedules, verb)("s")
        return tick(*args, **kwargs)

    monkeypatch.setattr(store, "tick", late)
    tick_all(app)
    assert app.jobs() == []


@pytest.mark.spec("R30")
def test_enabled_again_it_counts_from_now(app: Duly, clock, post):
    app.schedules.create("s", post, cron="0 * * * *")
    app.schedules.disable("s")
    clock.advance(3 * 86_400 + 60)
    enabled = app.schedules.enable("s")
    assert enabled.next_tick == utc(2026, 7, 4, 1)
    tick_all(app)
    assert app.schedules.ticks("s") == []
    clock.advance(3600)
    tick_all(app)
    assert [tick.at for tick in app.schedules.ticks("s")] == [utc(2026, 7, 4, 1)]


@pytest.mark.spec("R31")
def test_enabling_what_is_enabled_changes_nothing(app: Duly, clock, post):
    before = app.schedules.create("s", post, every=HOUR)
    clock.advance(1800)
    assert app.schedules.enable("s").record == before.record


@pytest.mark.spec("R32")
def test_a_removed_schedule_is_gone_and_its_job_goes_on(app: Duly, clock, post, hire: Hire):
    def trigger() -> str:
        return app.functions.info(post).trigger

    assert trigger() == "manual"
    app.schedules.create("one", post, every=HOUR)
    two = app.schedules.create("two", post, every=HOUR)
    assert trigger() == "schedule"
    assert {i.name: i.trigger for i in app.functions.published()} == {"post": "schedule"}
    clock.advance(3600)
    tick_all(app)
    worker = hire()
    worker.claim_only()

    app.schedules.remove("one")
    assert trigger() == "schedule"
    app.schedules.remove(two)
    assert trigger() == "manual"
    with pytest.raises(ScheduleNotFound):
        app.schedules.get("two")
    assert {job.state for job in app.jobs()} == {State.RUNNING}
    clock.advance(3600)
    tick_all(app)
    assert len(app.jobs()) == 2
    assert {entry.action for entry in app.ready().audit_of(f"schedule:{two.id}")} == {
        "schedule.create",
        "schedule.remove",
    }


@pytest.mark.spec("R32")
def test_a_schedule_under_an_older_name_counts_for_the_function(app: Duly, clock):
    @app.action(name="old")
    def first(ctx: Ctx) -> None: ...

    app.schedules.create("s", first, every=HOUR)
    del app.core.functions.registered["old"]

    @app.action(name="new", aliases=("old",))
    def second(ctx: Ctx) -> None: ...

    app.functions.publish()
    assert app.functions.info("new").trigger == "schedule"
    assert app.functions.info("old").trigger == "schedule"
    clock.advance(3600)
    assert [job.function for job in drain(app)] == ["new"]


@pytest.mark.spec("R33")
@pytest.mark.parametrize(
    ("change", "following"),
    [
        ({"cron": "30 * * * *"}, utc(2026, 7, 1, 1, 30)),
        ({"tz": "Asia/Kolkata"}, utc(2026, 7, 1, 1, 30)),
        ({"every": timedelta(minutes=50)}, utc(2026, 7, 1, 1, 55)),
    ],
)
def test_an_edited_trigger_counts_from_now(app: Duly, clock, post, change, following):
    app.schedules.create("s", post, cron="0 * * * *")
    at(clock, utc(2026, 7, 1, 1, 5))  # the tick of one o'clock is due
    assert app.schedules.update("s", **change).next_tick == following
    tick_all(app)
    assert app.schedules.ticks("s") == []


@pytest.mark.spec("R33")
def test_an_edit_of_something_else_keeps_the_next_tick(app: Duly, clock, post):
    app.schedules.create("s", post, every=HOUR)
    clock.advance(1800)
    assert app.schedules.update("s", overlap="allow").next_tick == START + HOUR
    assert app.schedules.update("s", every=HOUR).next_tick == START + HOUR


# The function's status


@pytest.mark.spec("R41", "N27")
def test_the_schedules_of_a_deleted_function_go_with_it(app: Duly, clock, post, db: Database):
    schedule = app.schedules.create("s", post, every=HOUR)

    @app.action
    def other(ctx: Ctx) -> None: ...

    stays = app.schedules.create("other", other, every=HOUR)
    clock.advance(3600)
    app.functions.delete(post, by="ada")
    assert [each.id for each in app.schedules.list()] == [stays.id]
    assert app.functions.info(post).trigger == "manual"
    tick_all(app)
    assert [job.function for job in app.jobs()] == ["other"]
    app.functions.restore(post)
    clock.advance(3600)
    tick_all(app)
    assert {job.function for job in app.jobs()} == {"other"}
    [removed, _] = app.ready().audit_of(f"schedule:{schedule.id}")
    assert (removed.action, removed.actor) == ("schedule.remove", "ada")


@pytest.mark.spec("R41")
def test_a_schedule_of_a_deleted_function_that_came_in_between_goes_at_its_tick(
    app: Duly, clock, post, db: Database
):
    app.functions.publish()
    app.schedules.create("s", post, every=HOUR)
    db.execute("UPDATE @functions SET status = 'deleted'")
    clock.advance(3600)
    tick_all(app)
    assert app.schedules.list() == []
    assert db.count("@jobs") == db.count("@ticks") == 0


@pytest.mark.spec("R104")
def test_an_action_that_was_cut_off_is_an_error_and_the_next_tick_comes(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    marks = tmp_path / "marks"
    app = prepare(make_app(url, marks))
    app.schedules.create("s", app.function("die"), every=HOUR, fire_at_once=True)
    run_until_killed(url, marks)
    assert marks.read_text().split() == ["die"]
    [job] = app.jobs()
    assert state_of(job) == State.RUNNING

    clock = ManualClock(app.clock.now())
    again = make_app(url, marks, clock)
    worker = ManualWorker(again)
    rescue_the_dead(worker)
    assert job.state == State.FAILED
    assert job.error is not None
    assert (job.error.kind, job.error.message) == (
        ErrorKind.WORKER_LOST,
        "the worker died while running this job",
    )
    assert "is dead; jobs rescued: 1" in caplog.text
    [tick] = again.schedules.ticks("s")
    assert again.schedules.get("s").next_tick == tick.at + HOUR
    clock.advance(3600)
    tick_all(again)
    worker.work()
    assert [tick.outcome for tick in again.schedules.ticks("s")] == ["dispatched"] * 2
    assert [job.state for job in again.jobs()] == [State.SUCCEEDED, State.FAILED]
    assert marks.read_text().split() == ["die", "die"]
    worker.stop()
    for each in (app, again):
        each.close()


# Everything at once


@pytest.mark.spec("R96", "R160")
def test_the_switch_stops_every_claim_and_every_tick(app: Duly, clock, post, hire: Hire):
    go = threading.Event()

    @app.action(queue="mail")
    def mail(ctx: Ctx) -> None: ...

    @app.action(timeout=None)
    def long(ctx: Ctx) -> bool:
        return go.wait(PATIENCE)

    app.schedules.create("s", post, every=HOUR, overlap="allow")
    running = app.run(long)
    worker = hire()
    worker.start_due()
    assert app.paused is None

    app.pause("flood", by="ada")
    assert app.paused is not None
    assert (app.paused.paused_by, app.paused.note) == ("ada", "flood")
    assert app.paused.paused_at == clock.now()
    waiting = [app.run(post), app.run(mail)]
    for _ in range(2):
        clock.advance(3600)
        tick_all(app)
        worker.start_due()
    ticks = app.schedules.ticks("s")
    assert [(tick.outcome, tick.reason) for tick in ticks] == [("skipped", "kill_switch")] * 2
    assert ticks[0].detail == {"by": "ada"}
    assert app.schedules.run("s").reason == "kill_switch"
    assert running.state == State.RUNNING
    assert {job.state for job in waiting} == {State.PENDING}
    go.set()
    worker.wait_for_bodies()
    worker.settle()
    assert running.result() is True
    assert drain(app) == []

    assert app.resume(by="bob") is True
    assert app.resume() is False
    assert app.paused is None
    worker.work()
    assert {job.state for job in waiting} == {State.SUCCEEDED}
    clock.advance(3600)
    tick_all(app)
    assert app.schedules.ticks("s")[0].outcome == "dispatched"
    said = [(entry.action, entry.actor) for entry in app.ready().audit_of("everything")]
    assert said == [("resume", "bob"), ("pause", "ada")]


@pytest.mark.spec("R96")
def test_under_the_switch_jobs_with_limits_and_those_that_run_alone_wait_too(
    app: Duly, clock, hire: Hire, db: Database
):
    @app.action(limit=Limit("k", at_once=1))
    def limited(ctx: Ctx) -> None: ...

    @app.action
    def alone(ctx: Ctx) -> None: ...

    one, two = app.run(limited), app.run(alone)
    db.execute("UPDATE @jobs SET hold = 'alone' WHERE function = 'alone'")
    app.pause()
    worker = hire()
    worker.claim_only()
    assert app.ready().due_alone(["alone"], None, clock.now()) == []
    assert {one.state, two.state} == {State.PENDING}
    app.resume()
    assert app.ready().due_alone(["alone"], None, clock.now()) == [two.id]
    worker.work()
    assert one.state == State.SUCCEEDED


@pytest.mark.spec("R96", "N6")
def test_why_says_that_everything_is_paused(app: Duly, post, hire: Hire):
    hire()
    job = app.run(post)
    app.pause("flood", by="ada")
    why = app.why(job)
    assert [reason.cause for reason in why.reasons] == ["everything_paused"]
    assert "everything is paused by ada (flood)" in str(why)


@pytest.mark.spec("R96")
def test_the_switch_is_no_queue(app: Duly, post):
    app.pause()
    assert app.queues.paused() == []
    assert app.queues.limits() == {}
    refused: list[Callable[[], object]] = [
        lambda: app.queues.pause("*"),
        lambda: app.queues.resume("*"),
        lambda: app.queues.limit("*", 3),
        lambda: post.using(queue="*"),
        lambda: app.action(queue="*")(post.body),
    ]
    for verb in refused:
        with pytest.raises(InvalidOption, match=r"'\*' means everything"):
            verb()
    assert app.paused is not None


# Parked for want of a function


@pytest.mark.spec("N8", "R5")
def test_a_schedule_whose_function_nobody_knows_is_parked_until_somebody_does(
    app: Duly, clock, post, url: str
):
    @app.action
    def gone(ctx: Ctx) -> None: ...

    app.schedules.create("s", gone, cron="0 * * * *")
    good = app.schedules.create("good", post, cron="0 * * * *")
    clock.advance(3600)
    del app.core.functions.registered["gone"]
    tick_all(app)
    [parked] = app.schedules.list(parked=True)
    assert (parked.key, parked.status, parked.next_tick) == ("s", "parked", None)
    assert "UnknownFunction" in (parked.error or "")
    assert len(app.schedules.ticks(good)) == 1
    clock.advance(3600)
    tick_all(app)
    assert app.schedules.get("s").status == "parked"

    # Another service describes it: that is enough to enqueue.
    elsewhere = Duly(url, clock=clock)

    @elsewhere.action(name="gone")
    def back(ctx: Ctx) -> None: ...

    elsewhere.functions.publish()
    clock.advance(1800)
    tick_all(app)
    revived = app.schedules.get("s")
    assert (revived.status, revived.error) == ("enabled", None)
    assert revived.next_tick == utc(2026, 7, 1, 3)
    # Nothing is lost: what it would have done meanwhile is caught up.
    ticks = app.schedules.ticks("s")[::-1]
    assert [(tick.at.hour, tick.outcome) for tick in ticks] == [
        (1, "dispatched"),
        (2, "dispatched"),
    ]
    elsewhere.close()


@pytest.mark.spec("N1", "N8")
@pytest.mark.parametrize("catch_up", [0, 1])
def test_a_ticker_that_does_not_know_the_function_loses_no_tick(
    app: Duly, clock, url: str, catch_up: int
):
    new = Duly(url, clock=clock)

    @new.action
    def f(ctx: Ctx) -> None: ...

    new.schedules.create("daily", f, cron="0 9 * * *", catch_up=catch_up, overlap="allow")
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    assert app.schedules.get("daily").status == "parked"
    clock.advance(1)
    tick_all(new)
    [tick] = new.schedules.ticks("daily")
    assert (tick.at, tick.outcome) == (utc(2026, 7, 1, 9), "dispatched")
    # Much later, its policies decide: every instant is in the ledger.
    at(clock, utc(2026, 7, 2, 9))
    tick_all(app)
    at(clock, utc(2026, 7, 4, 12))
    tick_all(app)
    tick_all(new)
    ticks = new.schedules.ticks("daily")[::-1]
    found = [(tick.at.day, tick.outcome, tick.count) for tick in ticks]
    if catch_up:
        assert found[1:] == [(3, "missed", 2), (4, "dispatched", None)]
    else:
        assert found[1:] == [(4, "missed", 3)]
    assert new.schedules.get("daily").next_tick == utc(2026, 7, 5, 9)
    new.close()


@pytest.mark.spec("N1", "N8")
def test_what_a_declared_schedule_calls_is_described_when_it_is_applied(app: Duly, clock, url: str):
    new = Duly(url, name="new", clock=clock)

    @new.action
    def f(ctx: Ctx) -> None: ...

    new.schedule("daily", f, cron="0 9 * * *")
    tick_all(new)
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    [tick] = new.schedules.ticks("daily")
    assert tick.outcome == "dispatched"
    new.close()


@pytest.mark.spec("N8")
def test_an_alias_of_the_renamed_function_revives_its_schedules(app: Duly, clock, url: str):
    @app.action
    def old(ctx: Ctx) -> None: ...

    for n in range(120):
        app.schedules.create(f"s{n}", old, cron="0 * * * *")
    app.close()

    renamed = Duly(url, clock=clock)
    clock.advance(3600)
    tick_all(renamed)
    assert len(renamed.schedules.list(parked=True, limit=200)) == 120

    @renamed.action(aliases=("old",))
    def new(ctx: Ctx) -> None: ...

    clock.advance(60)
    tick_all(renamed)
    assert renamed.schedules.list(parked=True) == []
    clock.advance(3600)
    assert len(drain(renamed)) == 120
    renamed.close()


@pytest.mark.spec("N8")
def test_what_is_parked_for_another_reason_waits_for_an_operator(app: Duly, clock, post, db):
    schedule = app.schedules.create("s", post, every=HOUR)
    good = db.scalar("SELECT policies FROM @schedules")
    db.execute("UPDATE @schedules SET policies = '7'")
    clock.advance(3600)
    tick_all(app)
    db.execute("UPDATE @schedules SET policies = ?", good)
    clock.advance(60)
    tick_all(app)
    assert app.schedules.get("s").status == "parked"
    assert app.schedules.enable(schedule, by="ada").next_tick == START + 2 * HOUR


@pytest.mark.spec("R5")
def test_an_outage_while_a_function_is_looked_up_parks_nothing(app: Duly, clock, post, monkeypatch):
    """What a schedule calls may be known only to the store, and that may not answer."""
    app.functions.publish()
    app.schedules.create("s", post, every=HOUR)
    del app.core.functions.registered["post"]
    clock.advance(3600)

    def unavailable(name: str) -> None:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patched:
        patched.setattr(app.ready(), "function", unavailable)
        with pytest.raises(StoreUnavailable):
            tick_all(app)
    assert app.schedules.get("s").status == "enabled"
    tick_all(app)
    assert [tick.outcome for tick in app.schedules.ticks("s")] == ["dispatched"]


# In a user's own tests


@pytest.mark.spec("N4")
def test_time_that_passes_in_a_test_ticks_schedules_at_their_own_instants(app: Duly, clock):
    ran: list[tuple[int, int]] = []

    @app.action
    def post(ctx: Ctx) -> None:
        now = clock.now() - to_ms(START)
        ran.append(divmod(now // 60_000, 60))

    app.schedules.create("a", post, cron="0,30 * * * *")
    app.schedules.create("b", post, every=timedelta(minutes=45))
    jobs = advance(app, timedelta(hours=2))
    assert ran == [(0, 30), (0, 45), (1, 0), (1, 30), (1, 30), (2, 0)]
    assert [job.trigger for job in jobs] == ["schedule"] * 6
    assert {tick.lag for tick in app.schedules.ticks("a")} == {timedelta(0)}


@pytest.mark.spec("N4")
def test_drain_ticks_what_is_due(app: Duly, clock, post):
    app.schedules.create("s", post.bind("x"), every=HOUR)
    assert drain(app) == []
    clock.advance(3600)
    assert [job.result() for job in drain(app)] == ["x"]
    assert drain(app) == []


@pytest.mark.long("postgres")
@pytest.mark.spec("N4")
def test_months_pass_in_a_test_and_old_ticks_go(post, app: Duly):
    with override(app):
        app.schedules.create("s", post, cron="0 */2 * * *")
        advance(app, timedelta(days=45))
        ticks = app.schedules.ticks("s", limit=1000)
        assert 30 * 12 <= len(ticks) <= 31 * 12
        assert len(app.jobs(limit=1000)) <= 8 * 12 + 1


@pytest.mark.spec("R6")
def test_a_tick_that_fails_for_no_fault_of_a_row_parks_nothing(app: Duly, clock, post):
    app.schedules.create("s", post, every=HOUR)
    clock.advance(3600)

    def full(point: str) -> None:
        if point == "ticker.noted":
            raise StoreFull("no space")

    with fault.inject(full), pytest.raises(StoreFull):
        tick_all(app)
    assert app.schedules.get("s").status == "enabled"
    tick_all(app)
    assert len(app.schedules.ticks("s")) == 1
