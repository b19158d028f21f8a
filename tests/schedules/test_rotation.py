"""Successive dispatches take their inputs in turn."""

from typing import Any

import pytest

from duly import Ctx, Duly, InvalidRotation, ManualClock
from duly.testing import drain
from tests.jobs.support import Database
from tests.schedules.support import at, ledger, tick_all, utc

THREE = [{"audience": "tech"}, {"audience": "business"}, {"audience": "sports"}]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def post(app: Duly) -> Any:
    @app.action
    def post(ctx: Ctx, audience: str = "all") -> str:
        return audience

    return post


def results(app: Duly) -> list[str]:
    return [job.result(0) for job in sorted(drain(app), key=lambda job: job.id)]


def one_day(app: Duly, clock: ManualClock, day: int) -> list[str]:
    at(clock, utc(2026, 7, day, 9))
    tick_all(app)
    return results(app)


@pytest.mark.spec("R141", "R142", "R146")
def test_entries_are_taken_in_turn_and_the_ledger_says_which(
    app: Duly, clock: ManualClock, post: Any
):
    app.schedules.create("digest", post.bind("bound"), cron="0 9 * * *", rotation=THREE)
    taken = [one_day(app, clock, day) for day in range(1, 5)]
    assert taken == [["tech"], ["business"], ["sports"], ["tech"]]
    ticks = reversed(app.schedules.ticks("digest"))
    assert [tick.rotation_index for tick in ticks] == [0, 1, 2, 0]


@pytest.mark.spec("R143", "R146")
def test_only_a_dispatch_moves_on(app: Duly, db: Database, clock: ManualClock, post: Any):
    schedule = app.schedules.create(
        "digest", post, cron="0 9 * * *", rotation=THREE, calendar="us-federal-holidays-2026"
    )
    assert one_day(app, clock, 2) == ["tech", "business"]
    # A holiday, observed.
    assert one_day(app, clock, 3) == []
    app.functions.pause("post")
    assert one_day(app, clock, 4) == []
    app.functions.resume("post")
    assert app.schedules.get("digest").rotation_index == 2
    assert app.schedules.ticks("digest")[0].rotation_index is None

    # A slot that a backfill has filled before its turn.
    at(clock, utc(2026, 7, 5, 9))
    assert app.schedules.backfill("digest", utc(2026, 7, 5), utc(2026, 7, 5, 9)) == []
    at(clock, utc(2026, 7, 5, 10))
    [filled] = app.schedules.backfill("digest", utc(2026, 7, 5), utc(2026, 7, 5, 10))
    assert (filled.rotation_index, results(app)) == (2, ["sports"])
    tick_all(app)
    assert app.schedules.get("digest").rotation_index == 3
    assert app.schedules.get("digest").next_tick == utc(2026, 7, 6, 9)

    # A dispatch that fails: its function is not known any more.
    db.execute("UPDATE @schedules SET function = 'gone' WHERE id = ?", schedule.id)
    assert one_day(app, clock, 6) == []
    parked = app.schedules.get("digest")
    assert (parked.status, parked.rotation_index) == ("parked", 3)


@pytest.mark.spec("R144")
@pytest.mark.parametrize("nothing", [None, [], ()])
def test_nothing_to_rotate_is_the_bound_arguments(
    app: Duly, clock: ManualClock, post: Any, nothing: Any
):
    app.schedules.create("digest", post.bind("bound"), cron="0 9 * * *", rotation=nothing)
    assert one_day(app, clock, 1) == ["bound"]
    assert app.schedules.ticks("digest")[0].rotation_index is None
    assert app.schedules.get("digest").rotation is None


@pytest.mark.spec("R145")
def test_setting_and_clearing_begin_anew(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create("digest", post.bind("bound"), cron="0 9 * * *", rotation=THREE)
    one_day(app, clock, 2)
    assert app.schedules.get("digest").rotation_index == 2
    changed = app.schedules.set_rotation("digest", THREE[::-1])
    assert (changed.rotation_index, changed.rotation) == (0, THREE[::-1])
    assert one_day(app, clock, 3) == ["sports"]
    cleared = app.schedules.clear_rotation("digest")
    assert (cleared.rotation_index, cleared.rotation) == (0, None)
    assert one_day(app, clock, 4) == ["bound"]
    with pytest.raises(InvalidRotation):
        app.schedules.set_rotation("digest", [{"nobody": "knows"}])
    assert app.schedules.get("digest").rotation is None


@pytest.mark.spec("R145")
def test_a_rotation_that_was_shortened_is_still_in_range(
    app: Duly, db: Database, clock: ManualClock, post: Any
):
    app.schedules.create("digest", post, cron="0 9 * * *", rotation=THREE)
    one_day(app, clock, 5)
    db.execute('UPDATE @schedules SET rotation = \'[{"audience": "one"}]\'')
    assert one_day(app, clock, 6) == ["one"]
    assert app.schedules.ticks("digest")[0].rotation_index == 0


@pytest.mark.spec("R147")
def test_ticks_that_are_caught_up_rotate_in_order(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create("digest", post, cron="0 9 * * *", rotation=THREE, catch_up=5)
    assert one_day(app, clock, 7) == ["tech", "business", "sports", "tech", "business"]
    assert ledger(app, "digest")[-5:] == [("dispatched", None)] * 5


@pytest.mark.spec("R141", "N9")
def test_a_run_now_takes_its_turn_unless_it_has_inputs(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create("digest", post, cron="0 9 * * *", rotation=THREE)
    assert app.schedules.run("digest").rotation_index == 0
    assert results(app) == ["tech"]
    clock.advance(1)
    assert app.schedules.run("digest", inputs={"audience": "other"}).rotation_index is None
    assert results(app) == ["other"]
    assert one_day(app, clock, 1) == ["business"]
