"""Why a schedule has not run: the reasons in order, as data and as a sentence."""

import asyncio
from typing import Any

import pytest

from duly import Budget, Ctx, Duly, ManualClock, ScheduleNotFound
from duly.model.schedule import Reason
from duly.model.why_schedule import in_words
from duly.testing import drain
from tests.jobs.support import Database, Hire
from tests.schedules.support import at, tick_all, utc

pytestmark = pytest.mark.spec("N6")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def post(app: Duly) -> Any:
    @app.action
    def post(ctx: Ctx, audience: str = "all") -> str:
        return audience

    return post


@pytest.fixture
def digest(app: Duly, post: Any) -> Any:
    return app.schedules.create("digest", post, cron="0 9 * * *")


def causes(app: Duly) -> list[str]:
    return [reason.cause for reason in app.schedules.why("digest").reasons]


def test_it_has_not_ticked_and_says_when_it_will(app: Duly, digest: Any):
    why = app.schedules.why(digest)
    assert (why.schedule_id, why.key) == (digest.id, "digest")
    assert str(why) == (
        "digest is waiting for its next tick: it has not ticked yet; "
        "its next tick is 2026-07-01T09:00:00Z."
    )
    assert why.reasons[-1].until == utc(2026, 7, 1, 9).timestamp() * 1000
    assert asyncio.run(app.aio.schedules.why("digest")) == why
    with pytest.raises(ScheduleNotFound):
        app.schedules.of("anna").why(digest.id)


def test_whoever_disabled_it_is_named_even_if_others_came_after(app: Duly, digest: Any):
    app.schedules.disable("digest", by="ann", note="holidays")
    app.schedules.update("digest", jitter=5, by="bob")
    why = app.schedules.why("digest")
    assert (
        why.text == "digest does not run: it is disabled by ann (holidays); it has not ticked yet."
    )
    app.schedules.enable("digest", by="ann")
    app.schedules.update("digest", enabled=False, by="eve")
    assert app.schedules.why("digest").reasons[0].text == "it is disabled by eve"


def test_what_is_paused_says_by_whom(app: Duly, digest: Any, post: Any):
    app.functions.pause(post, by="ann", note="flood")
    app.pause("move", by="bob")
    why = app.schedules.why("digest")
    assert [reason.cause for reason in why.reasons] == [
        "everything_paused",
        "function_paused",
        "never_ticked",
        "next_tick",
    ]
    assert "everything is paused by bob (move)" in why.text
    assert "its function post is paused by ann (flood)" in why.text
    assert why.reasons[-1].reason == Reason.KILL_SWITCH
    assert why.text.endswith("its next tick is 2026-07-01T09:00:00Z, which would be skipped.")


def test_a_due_tick_names_the_missing_ticker_at_once(
    app: Duly, clock: ManualClock, digest: Any, hire: Hire
):
    at(clock, utc(2026, 7, 1, 8, 59, 59))
    assert causes(app) == ["never_ticked", "next_tick"]
    at(clock, utc(2026, 7, 1, 9))
    assert causes(app) == ["overdue", "never_ticked"]
    said = app.schedules.why("digest").text
    due = "its tick of 2026-07-01T09:00:00Z is due"
    assert said.startswith("digest does not run: ")
    assert f"{due}, but no worker is running; start a worker or a ticker" in said

    hire()  # a worker may have a ticker, or have been started with --no-ticker
    assert causes(app) == ["never_ticked", "next_tick"]
    said = app.schedules.why("digest").text
    assert f"{due}; a ticker processes it immediately, if one is running" in said
    # Once a ticker would have processed it, the other processes are no excuse.
    assert app.schedules.why("digest").reasons[-1].until is None
    clock.advance(4)
    assert causes(app) == ["never_ticked", "next_tick"]
    clock.advance(1)
    assert "has been overdue for 5 s; start a ticker" in app.schedules.why("digest").text


def test_nobody_looks_at_it(app: Duly, clock: ManualClock, digest: Any):
    at(clock, utc(2026, 7, 1, 9, 5))
    assert causes(app) == ["overdue", "never_ticked"]
    assert "has been overdue for 300 s; start a ticker" in app.schedules.why("digest").text
    at(clock, utc(2026, 7, 1, 9, 5))
    clock.advance(86_400 * 30)
    tick_all(app)
    assert "last_dispatched" in causes(app)


def test_ticks_that_were_missed(app: Duly, clock: ManualClock, digest: Any):
    app.schedules.update("digest", catch_up=0)
    at(clock, utc(2026, 7, 4))
    tick_all(app)
    assert causes(app) == ["last_missed", "next_tick"]
    text = "its last ticks (3, up to 2026-07-03T09:00:00Z) were missed: no ticker ran in time"
    assert text in app.schedules.why("digest").text


def test_its_last_tick_became_a_job(app: Duly, clock: ManualClock, digest: Any):
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    [job] = app.jobs()
    why = app.schedules.why("digest")
    assert causes(app) == ["last_dispatched", "next_skipped"]
    assert why.reasons[0].jobs == why.reasons[1].jobs == (job.id,)
    assert f"was dispatched as job {job.id}, which is pending" in why.text
    assert why.text.endswith(f"skipped: job {job.id} is unfinished; unless that job ends first.")
    drain(app)
    assert "which succeeded" in app.schedules.why("digest").text
    assert causes(app) == ["last_dispatched", "next_tick"]


def test_the_calendar_forbids_the_last_tick_and_the_next(
    app: Duly, clock: ManualClock, digest: Any
):
    days = {"2026-07-02": "inventory", "2026-07-03": "party", "2028-01-01": "far"}
    app.calendars.create("closed", "skip_dates", dates=days)
    app.schedules.attach("digest", "closed")
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    drain(app)
    at(clock, utc(2026, 7, 2, 9))
    tick_all(app)
    why = app.schedules.why("digest")
    last, coming = why.reasons
    assert (last.cause, last.reason) == ("last_skipped", Reason.CALENDAR)
    assert last.text == (
        "its last tick, 2026-07-02T09:00:00Z, was skipped: 2026-07-02 is inventory in closed; "
        "the schedule was last dispatched at 2026-07-01T09:00:00Z"
    )
    assert coming.text == (
        "its next tick, 2026-07-03T09:00:00Z, would be skipped: 2026-07-03 is party in closed; "
        "the first that would be dispatched is 2026-07-04T09:00:00Z"
    )
    assert coming.until == utc(2026, 7, 4, 9).timestamp() * 1000


def test_a_condition_that_never_holds(app: Duly, digest: Any):
    app.schedules.update("digest", condition={"/prior_run_result/status": {"eq": "completed"}})
    why = app.schedules.why("digest")
    assert why.reasons[-1].reason == Reason.CONDITION_FAILED
    assert "condition not met: /prior_run_result/status" in why.text
    assert why.text.endswith("and so would 99 more after it.")
    assert why.reasons[-1].until is None


def test_it_is_over(app: Duly, clock: ManualClock, post: Any, digest: Any):
    app.schedules.update("digest", remaining=1)
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    assert app.schedules.why("digest").reasons[0].text == (
        "it has ended: it has used up its dispatches"
    )
    app.schedules.create("once", post, at=utc(2026, 7, 1, 10))
    at(clock, utc(2026, 7, 1, 10))
    tick_all(app)
    assert "its trigger has no more ticks" in app.schedules.why("once").text


def test_it_is_parked_or_damaged(app: Duly, clock: ManualClock, digest: Any, db: Database):
    table = "duly_schedules" if db.is_sqlite else "duly.schedules"
    db.execute(f"UPDATE {table} SET trigger = '{{}}'")
    assert causes(app) == ["never_ticked", "next_tick"], "nobody has looked at it yet"
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    why = app.schedules.why("digest")
    assert why.reasons[0].cause == "parked"
    assert why.text.startswith(
        "digest does not run: it has been parked since 2026-07-01T09:00:00Z: "
    )


def test_code_declares_it_no_longer(app: Duly, post: Any):
    app.schedule("digest", post, cron="0 9 * * *")
    app.schedules.apply()
    app.core.declarations.clear()
    app.schedules.apply()
    assert causes(app)[0] == "orphaned"


def test_a_promise_that_it_has_broken_is_among_the_reasons(
    app: Duly, clock: ManualClock, digest: Any, db: Database
):
    table = "duly_schedules" if db.is_sqlite else "duly.schedules"
    db.execute(f"""UPDATE {table} SET late = '{{"at": 0, "problem": "no success by 07:00"}}'""")
    assert "it is late: no success by 07:00" in app.schedules.why("digest").text


def test_a_spent_budget_and_a_word_of_an_operator(app: Duly, clock: ManualClock, digest: Any):
    app.schedules.update("digest", budget=Budget(runs=1, per=86_400 * 2), overlap="allow")
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    why = app.schedules.why("digest").text
    assert "would be skipped: budget used up: 1 of 1 runs in 172800" in why
    app.schedules.skip_next("digest", by="ann")
    assert "would be skipped: skipped by ann" in app.schedules.why("digest").text


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_words_whatever_is_left_of_its_detail(reason: Reason):
    assert len(in_words(reason, {"truncated": True}).split()) > 1
