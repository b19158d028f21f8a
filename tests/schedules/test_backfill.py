"""Ticks of the past, run after all."""

from datetime import datetime
from typing import Any

import pytest

from duly import Budget, Ctx, Duly, ManualClock, ScheduleNotFound, State
from duly.errors import InvalidOption, InvalidTime
from duly.observe.metrics import metrics_text
from duly.testing import drain
from tests.jobs.support import Database, Hire
from tests.schedules.support import at, dump, tick_all, utc


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def post(app: Duly) -> Any:
    @app.action
    def post(ctx: Ctx, audience: str = "all") -> str:
        return audience

    return post


JUNE = utc(2026, 6, 1), utc(2026, 6, 4)


@pytest.mark.spec("R158")
def test_a_half_open_range_is_run_once(
    app: Duly, db: Database, clock: ManualClock, hire: Hire, post: Any
):
    app.schedules.create("digest", post, cron="0 9 * * *")
    before = dump(db)
    dry = app.schedules.backfill("digest", *JUNE, dry_run=True)
    assert dump(db) == before
    assert [(t.at, t.outcome, t.job_id) for t in dry] == [
        (utc(2026, 6, day, 9), "dispatched", None) for day in (1, 2, 3)
    ]
    # The start is inside, the end is not.
    edge = app.schedules.backfill("digest", utc(2026, 6, 1, 9), utc(2026, 6, 3, 9), dry_run=True)
    assert [tick.at.day for tick in edge] == [1, 2]

    ticks = app.schedules.backfill("digest", *JUNE, by="anna")
    assert [(t.at, t.outcome, t.kind) for t in ticks] == [
        (utc(2026, 6, day, 9), "dispatched", "slot") for day in (1, 2, 3)
    ]
    jobs = [tick.job for tick in ticks]
    assert all(
        job is not None and job.scheduled_at == t.at for job, t in zip(jobs, ticks, strict=True)
    )
    worker = hire()
    worker.work()
    assert db.count("@jobs") == 0

    again = app.schedules.backfill("digest", *JUNE, by="bert")
    assert {(t.outcome, t.reason, t.job_id) for t in again} == {
        ("skipped", "schedule_slot_exists", None)
    }
    assert {t.reason for t in app.schedules.backfill("digest", *JUNE, dry_run=True)} == {
        "schedule_slot_exists"
    }
    assert db.count("@jobs") == 0
    # The rows of the ledger are those of the first time.
    assert [t.job_id for t in app.schedules.ticks("digest")] == [t.job_id for t in ticks][::-1]
    (refused,) = app.schedules.ticks("digest", reason="schedule_slot_exists")
    assert (refused.count, refused.outcome, refused.at) == (len(ticks), "skipped", ticks[-1].at)
    for which in ({"before": utc(2026, 6, 1)}, {"after": utc(2026, 7, 1)}, {"outcome": "missed"}):
        found: Any = app.schedules.ticks("digest", reason="schedule_slot_exists", **which)
        assert found == []
    app.core.tell_counts()
    counted = 'duly_ticks_total{outcome="skipped",reason="schedule_slot_exists"} '
    assert f"{counted}{len(ticks)}" in metrics_text(app.core)
    wider = app.schedules.backfill("digest", utc(2026, 5, 31), utc(2026, 6, 3))
    assert [(t.at.day, t.reason) for t in wider] == [
        (31, None),
        (1, "schedule_slot_exists"),
        (2, "schedule_slot_exists"),
    ]
    schedule = app.schedules.get("digest")
    assert schedule.next_tick == utc(2026, 7, 1, 9)
    entries = app.core.ready().audit_of(f"schedule:{schedule.id}")
    found = [(e.action, e.actor) for e in reversed(entries)][1:5]
    assert found == [
        ("schedule.backfill", "anna"),
        ("schedule.backfill", "bert"),
        ("schedule_slot_exists", "bert"),
        ("schedule.backfill", None),
    ]


@pytest.mark.spec("R156", "R158")
def test_the_next_tick_of_a_schedule_that_cancels_cancels_it(
    app: Duly, clock: ManualClock, post: Any
):
    app.schedules.create("digest", post, cron="0 9 * * *", overlap="cancel_other")
    [filled] = app.schedules.backfill("digest", utc(2026, 6, 1), utc(2026, 6, 2))
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    assert app.job(str(filled.job_id)).state == "canceled"
    # The slot is taken; its job can be run again all the same.
    [again] = app.schedules.backfill("digest", utc(2026, 6, 1), utc(2026, 6, 2))
    assert again.reason == "schedule_slot_exists"
    assert app.retry(str(filled.job_id)).state == "pending"


@pytest.mark.spec("R158")
def test_ticks_that_the_ticker_has_decided_are_not_run_again(
    app: Duly, clock: ManualClock, post: Any
):
    app.schedules.create("digest", post, cron="0 9 * * *", overlap="allow")
    app.functions.pause("post")
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    app.functions.resume("post")
    at(clock, utc(2026, 7, 3, 12))
    # The ticker is late; the backfill takes its ticks, and it does not run them again.
    ticks = app.schedules.backfill("digest", utc(2026, 7, 1), utc(2026, 7, 3))
    assert [(t.at.day, t.reason) for t in ticks] == [(1, "schedule_slot_exists"), (2, None)]
    tick_all(app)
    found = {t.at.day: (t.outcome, t.job_id) for t in app.schedules.ticks("digest")}
    assert found[1] == ("skipped", None)
    assert found[2] == ("dispatched", ticks[1].job_id)
    assert found[3][0] == "dispatched"
    assert len(app.jobs()) == 2


@pytest.mark.spec("R158")
def test_they_run_one_after_the_other_and_cancel_nobody(
    app: Duly, db: Database, clock: ManualClock, post: Any
):
    for overlap in ("skip", "cancel_other", "buffer_one", "buffer_all", "allow"):
        schedule = app.schedules.create(overlap, post, cron="0 9 * * *", overlap=overlap)
        run = app.schedules.run(overlap)
        ticks = app.schedules.backfill(overlap, *JUNE)
        assert [tick.outcome for tick in ticks] == ["dispatched"] * 3
        assert run.job is not None
        assert run.job.state == State.PENDING
        one = app.schedules.backfill(overlap, utc(2026, 5, 1), utc(2026, 5, 2))
        ids = {tick.job_id for tick in (*ticks, *one)}
        keys = {
            key
            for job_id, key in db.execute("SELECT id, limit_key FROM @jobs")
            if str(job_id) in ids
        }
        assert keys == {None if overlap == "allow" else f"schedule:{schedule.id}"}


@pytest.mark.spec("R158")
def test_the_past_asks_the_calendar_but_not_the_present(app: Duly, clock: ManualClock, post: Any):
    app.calendars.create("off", "skip_dates", dates=["2026-06-02", "2027-01-01"])
    app.schedules.create(
        "digest",
        post,
        cron="0 9 * * *",
        calendar="off",
        condition={"/signal_rpc_result/nothing": {"eq": 1}},
        budget=Budget(runs=1, per=3600),
        rotation=[{"audience": "a"}, {"audience": "b"}],
    )
    app.schedules.run("digest")
    ticks = app.schedules.backfill("digest", *JUNE)
    assert [(t.reason, t.rotation_index) for t in ticks] == [
        (None, 1),
        ("calendar", None),
        (None, 0),
    ]
    assert ticks[1].detail["date"] == "2026-06-02"
    app.functions.pause("post")
    [tick] = app.schedules.backfill("digest", utc(2026, 5, 1), utc(2026, 5, 2))
    assert tick.reason == "target_paused"
    app.pause()
    [tick] = app.schedules.backfill("digest", utc(2026, 5, 2), utc(2026, 5, 3))
    assert tick.reason == "kill_switch"


@pytest.mark.spec("R158")
def test_it_stays_between_start_and_end_and_ends_with_what_remains(
    app: Duly, clock: ManualClock, post: Any
):
    app.schedules.create(
        "bounded", post, cron="0 9 * * *", start_at=utc(2026, 6, 2, 9), end_at=utc(2026, 8, 1)
    )
    assert [t.at.day for t in app.schedules.backfill("bounded", *JUNE)] == [2, 3]
    app.schedules.create("last", post, cron="0 9 * * *", remaining=2)
    assert [t.at.day for t in app.schedules.backfill("last", *JUNE)] == [1, 2]
    assert app.schedules.get("last").status == "ended"
    # An interval has no ticks before it began.
    app.schedules.create("interval", post, every=600)
    assert app.schedules.backfill("interval", *JUNE) == []


@pytest.mark.spec("R158")
def test_a_million_ticks_are_refused_at_once(app: Duly, db: Database, post: Any):
    app.schedules.create("often", post, cron="* * * * *")
    before = dump(db)
    for dry_run in (True, False):
        with pytest.raises(InvalidOption, match=r"1,\d+,\d+ ticks") as raised:
            app.schedules.backfill("often", utc(2024, 7, 15), utc(2026, 7, 1), dry_run=dry_run)
        assert (raised.value.field, raised.value.hint) == ("backfill", "use shorter ranges")
        with pytest.raises(InvalidOption):
            app.schedules.backfill(
                "often", utc(2026, 6, 24, 1, 19), utc(2026, 7, 1), dry_run=dry_run
            )
    assert dump(db) == before
    dry = app.schedules.backfill("often", utc(2026, 6, 24, 1, 20), utc(2026, 7, 1), dry_run=True)
    assert len(dry) == 10_000


def test_a_range_makes_sense(app: Duly, db: Database, post: Any):
    app.schedules.create("digest", post, cron="0 9 * * *")
    before = dump(db)
    for first, last, field in (
        (utc(2026, 6, 2), utc(2026, 6, 1), "end"),
        (utc(2026, 6, 1), utc(2026, 6, 1), "end"),
        (utc(2026, 6, 1), utc(2026, 8, 1), "end"),
        (datetime(2026, 6, 1), utc(2026, 6, 2), "start"),  # noqa: DTZ001
        (utc(2026, 6, 1), datetime(2026, 6, 2), "end"),  # noqa: DTZ001
        (utc(2001, 6, 1), utc(2026, 6, 2), "start"),
        ("yesterday", utc(2026, 6, 2), "start"),
    ):
        with pytest.raises((InvalidOption, InvalidTime)) as raised:
            app.schedules.backfill("digest", first, last)  # type: ignore[arg-type]
        assert raised.value.field == field  # type: ignore[attr-defined]
    with pytest.raises(ScheduleNotFound):
        app.schedules.backfill("nothing", *JUNE)
    assert dump(db) == before


def test_a_tick_that_clocks_have_moved_says_so(app: Duly, clock: ManualClock, post: Any):
    app.schedules.create("night", post, cron="30 2 * * *", tz="Europe/Berlin")
    ticks = app.schedules.backfill("night", utc(2026, 3, 28), utc(2026, 3, 31))
    assert [t.dst_adjusted for t in ticks] == [False, True, False]
    drain(app)


@pytest.mark.spec("R158")
def test_what_stands_in_the_way_now_burns_no_slots(app: Duly, clock: ManualClock, post: Any):
    schedule = app.schedules.create("digest", post, cron="0 9 * * *")
    app.functions.pause("post")
    assert {t.reason for t in app.schedules.backfill("digest", *JUNE)} == {"target_paused"}
    app.functions.restore("post")
    app.pause()
    assert {t.reason for t in app.schedules.backfill("digest", *JUNE)} == {"kill_switch"}
    app.resume()
    assert app.schedules.ticks("digest") == []
    entries = app.core.ready().audit_of(f"schedule:{schedule.id}")
    assert "schedule_slot_exists" not in {entry.action for entry in entries}
    ticks = app.schedules.backfill("digest", *JUNE)
    assert [(t.outcome, t.reason) for t in ticks] == [("dispatched", None)] * 3


@pytest.mark.spec("R102", "R158")
def test_the_instant_at_which_an_interval_was_made_is_no_tick(
    app: Duly, clock: ManualClock, post: Any
):
    app.schedules.create("later", post, every=3600)
    app.schedules.create("at once", post, every=3600, fire_at_once=True)
    clock.advance(7200)
    for key, hours in (("later", [1]), ("at once", [0, 1])):
        ticks = app.schedules.backfill(key, utc(2026, 6, 30), utc(2026, 7, 1, 2))
        assert [tick.at.hour for tick in ticks] == hours
