"""What a tick does while a job of its schedule is unfinished, with real workers."""

import threading
from typing import Any

import pytest

from duly import Ctx, Duly, Limit, ManualClock, State, Unique
from duly.errors import InvalidOption
from tests.jobs.support import Database, Hire, wait_until
from tests.levels import at_every_level
from tests.schedules.support import at, ledger, tick_all, utc


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


class Bodies:
    """Bodies that run until they are let go, and how many do at once."""

    def __init__(self, app: Duly, **options: Any) -> None:
        self.running: list[str] = []
        self.ended: list[str] = []
        self.most = 0
        self._guard = threading.Lock()
        self._go: dict[str, threading.Event] = {}

        @app.action(**options)
        def body(ctx: Ctx) -> None:
            with self._guard:
                self.running.append(ctx.job_id)
                self.most = max(self.most, len(self.running))
                go = self._go.setdefault(ctx.job_id, threading.Event())
            assert go.wait(20)
            with self._guard:
                self.running.remove(ctx.job_id)
                self.ended.append(ctx.job_id)

        self.function = body

    def let_go(self, job_id: str) -> None:
        with self._guard:
            go = self._go.setdefault(job_id, threading.Event())
        go.set()


@pytest.fixture
def bodies(app: Duly) -> Bodies:
    return Bodies(app)


def hour(app: Duly, clock: ManualClock, n: int) -> str | None:
    """The tick of that hour: the id of its job."""
    at(clock, utc(2026, 7, 1, n))
    tick_all(app)
    return app.schedules.ticks("hourly")[0].job_id


def expect_running(bodies: Bodies, *job_ids: str | None) -> None:
    wait_until(lambda: sorted(bodies.running) == sorted(map(str, job_ids)), "those bodies")


@pytest.mark.spec("R103", "R156")
@at_every_level
def test_skip_leaves_out_the_ticks_while_a_job_is_in_flight(
    app: Duly, db: Database, clock: ManualClock, hire: Hire, bodies: Bodies
):
    app.schedules.create("hourly", bodies.function, cron="0 * * * *")
    assert app.schedules.get("hourly").policies.overlap == "skip"
    worker = hire()
    first = hour(app, clock, 1)
    # Waiting is in flight, and so is running.
    hour(app, clock, 2)
    worker.start_due()
    expect_running(bodies, first)
    hour(app, clock, 3)
    assert ledger(app, "hourly") == [
        ("dispatched", None),
        ("skipped", "overlap_in_flight"),
        ("skipped", "overlap_in_flight"),
    ]
    assert [t.detail for t in app.schedules.ticks("hourly", outcome="skipped")] == [
        {"job": first}
    ] * 2
    assert db.count("@jobs") == 1
    bodies.let_go(str(first))
    worker.work()
    fourth = hour(app, clock, 4)
    assert ledger(app, "hourly")[-1] == ("dispatched", None)
    bodies.let_go(str(fourth))
    worker.work()


@pytest.mark.spec("R156")
def test_allow_lets_them_run_side_by_side(
    app: Duly, clock: ManualClock, hire: Hire, bodies: Bodies
):
    app.schedules.create("hourly", bodies.function, cron="0 * * * *", overlap="allow")
    worker = hire()
    jobs = [hour(app, clock, n) for n in (1, 2, 3)]
    worker.start_due()
    expect_running(bodies, *jobs)
    for job_id in jobs:
        bodies.let_go(str(job_id))
    worker.work()
    assert bodies.most == 3


@pytest.mark.spec("R156")
def test_buffer_one_lets_one_wait(app: Duly, clock: ManualClock, hire: Hire, bodies: Bodies):
    app.schedules.create("hourly", bodies.function, cron="0 * * * *", overlap="buffer_one")
    worker = hire()
    first = hour(app, clock, 1)
    worker.start_due()
    expect_running(bodies, first)
    second = hour(app, clock, 2)
    hour(app, clock, 3)
    worker.start_due()
    assert ledger(app, "hourly")[1:] == [("dispatched", None), ("skipped", "overlap_in_flight")]
    assert app.schedules.ticks("hourly")[0].detail == {"job": second}
    expect_running(bodies, first)
    bodies.let_go(str(first))
    worker.wait_for_bodies()
    worker.settle()
    worker.start_due()
    expect_running(bodies, second)
    fourth = hour(app, clock, 4)
    assert fourth is not None
    for job_id in (second, fourth):
        bodies.let_go(str(job_id))
    worker.work()
    assert (bodies.ended, bodies.most) == ([first, second, fourth], 1)


@pytest.mark.spec("R156", "R157")
def test_buffer_one_lets_one_wait_also_of_those_that_are_caught_up(
    app: Duly, clock: ManualClock, bodies: Bodies
):
    app.schedules.create("hourly", bodies.function, cron="0 * * * *", overlap="buffer_one")
    hour(app, clock, 4)
    assert ledger(app, "hourly") == [
        ("dispatched", None),
        *[("skipped", "overlap_in_flight")] * 3,
    ]
    tick_at = round(utc(2026, 7, 1, 1).timestamp() * 1000)
    assert app.schedules.ticks("hourly")[0].detail == {"tick_at": tick_at}


@pytest.mark.spec("R156")
def test_buffer_all_lets_all_wait_and_run_in_order(
    app: Duly, clock: ManualClock, hire: Hire, bodies: Bodies
):
    app.schedules.create("hourly", bodies.function, cron="0 * * * *", overlap="buffer_all")
    worker = hire()
    jobs = [hour(app, clock, n) for n in (1, 2, 3, 4)]
    assert ledger(app, "hourly") == [("dispatched", None)] * 4
    worker.start_due()
    expect_running(bodies, jobs[0])
    for job_id in jobs:
        bodies.let_go(str(job_id))
    worker.work()
    assert (bodies.ended, bodies.most) == (jobs, 1)


@pytest.mark.spec("R156")
def test_cancel_other_starts_when_the_old_body_has_really_ended(
    app: Duly, clock: ManualClock, hire: Hire, bodies: Bodies
):
    app.schedules.create("hourly", bodies.function, cron="0 * * * *", overlap="cancel_other")
    worker = hire()
    first = hour(app, clock, 1)
    worker.start_due()
    expect_running(bodies, first)
    second = hour(app, clock, 2)
    third = hour(app, clock, 3)
    assert [app.job(str(each)).state for each in (first, second, third)] == [
        State.CANCELED,
        State.CANCELED,
        State.PENDING,
    ]
    worker.start_due()
    worker.settle()
    worker.start_due()
    # The first does not listen; as long as it runs, the third waits.
    expect_running(bodies, first)
    assert app.job(str(third)).state == State.PENDING
    bodies.let_go(str(first))
    worker.wait_for_bodies()
    worker.settle()

    def has_started() -> bool:
        worker.start_due()
        return bool(bodies.running)

    wait_until(has_started, "the third")
    expect_running(bodies, third)
    bodies.let_go(str(third))
    worker.work()
    assert (bodies.ended, bodies.most) == ([first, third], 1)
    assert ledger(app, "hourly") == [("dispatched", None)] * 3


@pytest.mark.spec("R156", "R157")
def test_of_those_that_are_caught_up_the_last_one_cancels_the_others(
    app: Duly, clock: ManualClock, hire: Hire, bodies: Bodies
):
    app.schedules.create("hourly", bodies.function, cron="0 * * * *", overlap="cancel_other")
    hour(app, clock, 3)
    ticks = app.schedules.ticks("hourly")
    states = [tick.job.state for tick in ticks if tick.job is not None]
    assert states == [State.PENDING, State.CANCELED, State.CANCELED]
    bodies.let_go(str(ticks[0].job_id))
    hire().work()
    assert bodies.ended == [ticks[0].job_id]


@pytest.mark.spec("R156", "R157")
def test_a_job_that_several_ticks_share_is_canceled_only_if_it_is_not_the_last_ones(
    app: Duly, clock: ManualClock, hire: Hire
):
    ran: list[str] = []

    @app.action(unique=Unique())
    def note(ctx: Ctx, word: str = "") -> None:
        ran.append(word)

    options: Any = {"cron": "0 * * * *", "overlap": "cancel_other"}
    app.schedules.create("hourly", note, **options)
    turns = [{"word": "a"}, {"word": "b"}]
    app.schedules.create("turns", note, rotation=turns, **options)
    # Another caller has enqueued the job that the second tick of this one asks for.
    app.schedules.create("other", note, rotation=[{"word": w} for w in "cdc"], **options)
    stranger = app.run(note, "d")
    hour(app, clock, 3)
    assert len({tick.job_id for tick in app.schedules.ticks("hourly")}) == 1
    last, second, first = (str(tick.job_id) for tick in app.schedules.ticks("turns"))
    states = [app.job(job_id).state for job_id in (last, second)]
    assert (last, states) == (first, [State.PENDING, State.CANCELED])
    assert app.schedules.ticks("other")[1].job_id == stranger.id
    hire().work()
    assert sorted(ran) == ["", "a", "c", "d"]


@pytest.mark.spec("R156", "N9")
def test_a_run_now_cancels_the_others_too(
    app: Duly, clock: ManualClock, hire: Hire, bodies: Bodies
):
    app.schedules.create("hourly", bodies.function, cron="0 * * * *", overlap="cancel_other")
    first = hour(app, clock, 1)
    clock.advance(60)
    run = app.schedules.run("hourly")
    assert app.job(str(first)).state == State.CANCELED
    assert run.job is not None
    assert run.job.state == State.PENDING


@pytest.mark.spec("R103", "R157")
@pytest.mark.parametrize("overlap", ["skip", "buffer_all"])
def test_ticks_that_are_caught_up_run_one_after_the_other(
    app: Duly, db: Database, clock: ManualClock, hire: Hire, bodies: Bodies, overlap: str
):
    schedule = app.schedules.create("hourly", bodies.function, cron="0 * * * *", overlap=overlap)
    hour(app, clock, 5)
    jobs = [tick.job_id for tick in reversed(app.schedules.ticks("hourly"))]
    assert len(jobs) == 5
    assert set(db.execute("SELECT limit_key FROM @jobs")) == {(f"schedule:{schedule.id}",)}
    for job_id in jobs:
        bodies.let_go(str(job_id))
    workers = [hire(), hire()]
    for _ in jobs:
        for worker in workers:
            worker.work()
    assert (bodies.ended, bodies.most) == (jobs, 1)


@pytest.mark.spec("R156")
def test_ticks_that_are_caught_up_may_overlap_if_that_is_allowed(
    app: Duly, clock: ManualClock, hire: Hire, bodies: Bodies
):
    app.schedules.create("hourly", bodies.function, cron="0 * * * *", overlap="allow")
    hour(app, clock, 3)
    worker = hire()
    worker.start_due()
    jobs = [tick.job_id for tick in app.schedules.ticks("hourly")]
    expect_running(bodies, *jobs)
    for job_id in jobs:
        bodies.let_go(str(job_id))
    worker.work()


# Functions with their own limit ------------------------------------------------------------------


@pytest.mark.spec("R156")
@pytest.mark.parametrize("overlap", ["buffer_one", "buffer_all", "cancel_other"])
def test_two_limits_on_one_job_are_refused(app: Duly, db: Database, overlap: str):
    limited = Bodies(app, limit=Limit("printer", at_once=1)).function
    with pytest.raises(InvalidOption, match="needs its own limit") as raised:
        app.schedules.create("hourly", limited, cron="0 * * * *", overlap=overlap)
    assert (raised.value.field, raised.value.hint) == (
        "overlap",
        "use skip or allow, or remove the function's limit",
    )
    assert db.count("@schedules") == 0
    app.schedules.create("hourly", limited, cron="0 * * * *")
    with pytest.raises(InvalidOption, match="needs its own limit"):
        app.schedules.update("hourly", overlap=overlap)


@pytest.mark.spec("R156")
def test_skip_catches_up_under_the_limit_of_the_function(
    app: Duly, db: Database, clock: ManualClock, hire: Hire
):
    limited = Bodies(app, limit=Limit("printer", at_once=1))
    app.schedules.create("hourly", limited.function, cron="0 * * * *")
    hour(app, clock, 3)
    assert set(db.execute("SELECT limit_key FROM @jobs")) == {("printer",)}
    for tick in app.schedules.ticks("hourly"):
        limited.let_go(str(tick.job_id))
    hire().work()
    assert (len(limited.ended), limited.most) == (3, 1)


def test_a_limit_that_came_later_parks_the_schedule(app: Duly, url: str, clock: ManualClock):
    def make(app: Duly, **options: Any) -> Any:
        @app.action(name="work", **options)
        def work(ctx: Ctx) -> None: ...

        return work

    app.schedules.create("hourly", make(app), cron="0 * * * *", overlap="buffer_all")
    other = Duly(url, clock=clock)
    make(other, limit=Limit("printer", at_once=1))
    at(clock, utc(2026, 7, 1, 1))
    tick_all(other)
    parked = app.schedules.get("hourly")
    assert parked.status == "parked"
    assert "now has its own limit" in str(parked.error)
    other.close()
