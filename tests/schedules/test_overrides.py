"""What an operator decides about one occurrence: skip it, move it, run it now."""

from datetime import datetime
from typing import Any

import pytest

from duly import Ctx, Duly, ManualClock
from duly.errors import InvalidArgument, InvalidOption, InvalidTime, ScheduleNotFound
from duly.testing import drain
from tests.jobs.support import Database
from tests.schedules.support import at, dump, ledger, tick_all, utc


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def post(app: Duly) -> Any:
    @app.action
    def post(ctx: Ctx, audience: str = "all") -> str:
        return audience

    return post


def audited(app: Duly, key: str) -> list[tuple[str, str | None]]:
    schedule = app.schedules.get(key)
    entries = app.core.ready().audit_of(f"schedule:{schedule.id}")
    return [(entry.action, entry.actor) for entry in entries]


@pytest.mark.spec("N9")
def test_skip_the_next_tick_and_only_that(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create("digest", post, cron="0 9 * * *", jitter=600)
    due = app.schedules.get("digest").due
    skipped = app.schedules.skip_next("digest", by="anna")
    assert (skipped.next_tick, skipped.due) == (utc(2026, 7, 1, 9), due)
    for day in (1, 2):
        at(clock, utc(2026, 7, day, 10))
        tick_all(app)
    second, first = app.schedules.ticks("digest")
    assert (first.outcome, first.reason, first.detail) == ("skipped", "operator", {"by": "anna"})
    assert second.outcome == "dispatched"
    assert audited(app, "digest")[0] == ("schedule.skip_next", "anna")


@pytest.mark.spec("N9")
@pytest.mark.parametrize("hour", [3, 20])
def test_move_one_tick_to_earlier_or_later(app: Duly, clock: ManualClock, post: Any, hour: int):
    app.schedules.create("digest", post, cron="0 9 * * *")
    moved = app.schedules.move_next("digest", utc(2026, 7, 1, hour), by="anna")
    assert (moved.next_tick, moved.due) == (utc(2026, 7, 1, 9), utc(2026, 7, 1, hour))
    at(clock, utc(2026, 7, 1, hour - 1, 59, 59))
    tick_all(app)
    assert app.schedules.ticks("digest") == []
    at(clock, utc(2026, 7, 1, hour))
    tick_all(app)
    [tick] = app.schedules.ticks("digest")
    assert (tick.at, tick.due, tick.decided) == (
        utc(2026, 7, 1, 9),
        utc(2026, 7, 1, hour),
        utc(2026, 7, 1, hour),
    )
    # It keeps its nominal time, and runs now.
    [job] = drain(app)
    assert (job.scheduled_at, job.run_at) == (utc(2026, 7, 1, 9), utc(2026, 7, 1, hour))
    after = app.schedules.get("digest")
    assert (after.next_tick, after.due) == (utc(2026, 7, 2, 9), utc(2026, 7, 2, 9))
    assert audited(app, "digest")[0] == ("schedule.move_next", "anna")


@pytest.mark.spec("N9")
def test_the_last_word_counts(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create("digest", post, cron="0 9 * * *")
    app.schedules.skip_next("digest")
    app.schedules.move_next("digest", utc(2026, 7, 1, 12))
    assert app.schedules.preview("digest", 1)[0].decision == "dispatch"
    skipped = app.schedules.skip_next("digest")
    assert skipped.due == utc(2026, 7, 1, 9)
    assert app.schedules.preview("digest", 1)[0].reason == "operator"
    # Another trigger has other ticks.
    app.schedules.update("digest", cron="0 10 * * *")
    assert app.schedules.preview("digest", 1)[0].decision == "dispatch"
    app.schedules.skip_next("digest")
    app.schedules.update("digest", note="still skipped")
    assert app.schedules.preview("digest", 1)[0].reason == "operator"
    app.schedules.disable("digest")
    app.schedules.enable("digest")
    assert app.schedules.preview("digest", 1)[0].decision == "dispatch"


@pytest.mark.spec("N9")
def test_a_moved_tick_cannot_pass_the_following_one(
    app: Duly, db: Database, clock: ManualClock, post: Any
):
    app.schedules.create("digest", post, cron="0 9 * * *")
    app.schedules.create("off", post, cron="0 9 * * *", enabled=False)
    app.schedules.create("once", post, at=utc(2026, 7, 1, 9))
    at(clock, utc(2026, 7, 1, 6))
    before = dump(db)
    for to in (utc(2026, 7, 2, 9), utc(2026, 7, 3), utc(2026, 7, 1, 5, 59)):
        with pytest.raises(InvalidOption) as raised:
            app.schedules.move_next("digest", to)
        assert raised.value.field == "to"
        assert raised.value.hint
    with pytest.raises(InvalidTime):
        app.schedules.move_next("digest", datetime(2026, 7, 1, 12))  # noqa: DTZ001
    for verb in (app.schedules.skip_next, lambda key: app.schedules.move_next(key, clock.now())):
        with pytest.raises(InvalidOption, match="no next tick"):
            verb("off")
        with pytest.raises(ScheduleNotFound):
            verb("nothing")
    assert dump(db) == before
    assert app.schedules.move_next("once", utc(2026, 9, 1)).due == utc(2026, 9, 1)


@pytest.mark.spec("N9")
def test_run_now_with_other_inputs(app: Duly, db: Database, clock: ManualClock, post: Any):
    app.schedules.create("digest", post.bind("tech"), cron="0 9 * * *", remaining=5)
    first = app.schedules.run("digest", by="anna")
    [job] = drain(app)
    assert (job.id, job.result(0)) == (first.job_id, "tech")
    clock.advance(60)
    second = app.schedules.run("digest", inputs={"audience": "sports"}, by="bert")
    [job] = drain(app)
    assert (job.id, job.result(0)) == (second.job_id, "sports")
    assert (second.kind, second.at) == ("manual", utc(2026, 7, 1, 0, 1))
    schedule = app.schedules.get("digest")
    assert (schedule.next_tick, schedule.remaining) == (utc(2026, 7, 1, 9), 3)
    assert (schedule.last_dispatch, schedule.last_job_id) == (second.at, second.job_id)
    assert ledger(app, "digest") == [("dispatched", None)] * 2
    assert audited(app, "digest")[:2] == [("schedule.run", "bert"), ("schedule.run", "anna")]
    newest = app.core.ready().audit_of(f"schedule:{schedule.id}")[0]
    # Which inputs, but not what they are.
    assert newest.detail is not None
    assert '"inputs":["audience"]' in newest.detail
    assert "sports" not in newest.detail


@pytest.mark.spec("N9")
def test_inputs_must_fit(app: Duly, db: Database, post: Any):
    app.schedules.create("digest", post, cron="0 9 * * *")
    before = dump(db)
    inputs: Any
    for inputs in ({"volume": 11}, {"audience": 5}):
        with pytest.raises(InvalidArgument):
            app.schedules.run("digest", inputs=inputs)
    for inputs in ([1], "audience", {5: 1}):
        with pytest.raises(InvalidOption):
            app.schedules.run("digest", inputs=inputs)
    assert dump(db) == before


@pytest.mark.spec("N9")
def test_a_schedule_that_sleeps_can_be_run_and_sleeps_on(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create("digest", post, cron="0 9 * * *", enabled=False)
    assert app.schedules.run("digest").outcome == "dispatched"
    assert app.schedules.get("digest").status == "disabled"
    at(clock, utc(2026, 7, 2))
    tick_all(app)
    assert len(app.schedules.ticks("digest")) == 1


@pytest.mark.spec("N9")
def test_what_was_said_of_a_tick_holds_as_long_as_it_is_the_next_one(
    app: Duly, clock: ManualClock, post: Any
):
    app.schedules.create("digest", post, cron="0 9 * * *")
    app.schedules.skip_next("digest", by="anna")
    app.schedules.update("digest", end_at=utc(2026, 8, 1))
    assert app.schedules.preview("digest", 1)[0].reason == "operator"
    app.schedules.move_next("digest", utc(2026, 7, 1, 7))
    changed = app.schedules.update("digest", end_at=None)
    assert (changed.next_tick, changed.due) == (utc(2026, 7, 1, 9), utc(2026, 7, 1, 7))
    # It begins later: that is another tick.
    changed = app.schedules.update("digest", start_at=utc(2026, 7, 2))
    assert (changed.next_tick, changed.due) == (utc(2026, 7, 2, 9), utc(2026, 7, 2, 9))
    # Back to the first one: what was said of it is forgotten.
    changed = app.schedules.update("digest", start_at=None)
    assert (changed.next_tick, changed.due) == (utc(2026, 7, 1, 9), utc(2026, 7, 1, 9))


def test_a_moved_tick_of_a_parked_schedule_does_not_fire_when_that_is_enabled(
    app: Duly, clock: ManualClock, db: Database, post: Any
):
    app.schedules.create("digest", post, cron="0 9 * * *")
    app.schedules.move_next("digest", utc(2026, 7, 1, 7))
    good = db.scalar("SELECT policies FROM @schedules")
    db.execute("UPDATE @schedules SET policies = '7'")
    at(clock, utc(2026, 7, 1, 8))
    tick_all(app)
    assert app.schedules.get("digest").status == "parked"
    db.execute("UPDATE @schedules SET policies = ?", good)
    assert app.schedules.enable("digest").due == utc(2026, 7, 1, 9)


@pytest.mark.spec("N9", "N8")
@pytest.mark.parametrize("verb", ["skip", "move"])
def test_what_was_said_of_a_tick_holds_when_its_function_is_known_again(
    app: Duly, clock: ManualClock, post: Any, verb: str
):
    app.schedules.create("digest", post, cron="0 20 * * *", overlap="allow")
    if verb == "skip":
        app.schedules.skip_next("digest", by="anna")
        # It is the second one that cannot be dispatched.
        at(clock, utc(2026, 7, 2, 20))
    else:
        app.schedules.move_next("digest", utc(2026, 7, 1, 8), by="anna")
        at(clock, utc(2026, 7, 1, 8))
    known = app.core.functions.registered.pop(post.name)
    tick_all(app)
    assert app.schedules.get("digest").status == "parked"
    clock.advance(60)
    app.core.functions.registered[post.name] = known
    tick_all(app)
    tick = app.schedules.ticks("digest")[-1]
    reason = "operator" if verb == "skip" else None
    assert (tick.at, tick.reason) == (utc(2026, 7, 1, 20), reason)
    # Of the following one nothing was said.
    at(clock, utc(2026, 7, 2, 20, 5))
    tick_all(app)
    assert ledger(app, "digest")[1:] == [("dispatched", None)]
    assert app.schedules.get("digest").due == utc(2026, 7, 3, 20)
