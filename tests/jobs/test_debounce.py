"""Debounce: repeated calls become one job, with a due time and arguments."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from duly import Ctx, Duly, Job, Limit, ManualClock, State, Tx, Unique
from duly.errors import InvalidOption, InvalidTime
from duly.runtime.teams import MutationTeam
from tests.jobs.support import Database, Gate, Hire, Undo, state_of, undone
from tests.levels import at_every_level

pytestmark = pytest.mark.spec("N22")
CALLERS = 8


@pytest.fixture
def saved() -> list[tuple[int, str]]:
    return []


@pytest.fixture
def save(app: Duly, saved: list[tuple[int, str]]) -> Any:
    @app.action(debounce=30)
    def save(ctx: Ctx, document: int, text: str) -> None:
        saved.append((document, text))

    return save


def test_calls_within_the_window_become_one_job_with_the_last_arguments(
    app: Duly, save: Any, hire: Hire, clock: ManualClock, saved: Any, db: Database
):
    jobs: list[Job[None]] = []
    for text in ("a", "ab", "abc"):
        jobs.append(app.run(save, 1, text))
        clock.advance(20)

    assert [job.existed for job in jobs] == [False, True, True]
    assert len({job.id for job in jobs}) == 1
    assert db.count("@jobs") == 1
    worker = hire()
    clock.advance(9.999)
    worker.work()
    assert saved == []
    clock.advance(0.001)
    worker.work()
    assert saved == [(1, "abc")]
    assert jobs[0].arguments == {"document": 1, "text": "abc"}


def test_a_repeat_of_a_call_that_others_followed_changes_nothing(
    app: Duly, save: Any, clock: ManualClock
):
    for text in ("a", "ab", "abc"):
        job = app.run(save.using(idempotency_key=text), 1, text)
        clock.advance(10)
    before = job.record

    assert app.run(save.using(idempotency_key="ab"), 1, "ab") == job
    assert job.record == before


def test_the_first_call_says_when_it_was_wanted(app: Duly, save: Any, clock: ManualClock):
    begin = clock.now()
    job = app.run(save, 1, "a")
    clock.advance(10)
    app.run(save, 1, "b")

    assert job.record.run_at == begin + 40_000
    assert job.record.scheduled_at == begin + 30_000
    assert job.record.created_at == begin


def test_a_call_after_the_job_has_started_begins_a_new_one(
    app: Duly, hire: Hire, clock: ManualClock
):
    gate = Gate()

    @app.action(debounce=30)
    def save(ctx: Ctx, text: str) -> None:
        gate.pass_through()

    first = app.run(save, "a")
    clock.advance(30)
    hire().start_due()
    gate.wait_for_one()
    second = app.run(save, "b")
    gate.open()

    assert first.arguments["text"] == "a"
    assert not second.existed
    assert second.record.run_at == clock.now() + 30_000


def test_by_default_the_key_is_the_function_and_one_can_be_given(app: Duly, save: Any):
    by_document = save.using(unique=Unique(lambda document, text: str(document)))

    assert app.run(save, 1, "a") == app.run(save, 2, "b")
    assert not app.run(by_document, 1, "a").existed
    assert not app.run(by_document, 2, "a").existed
    assert app.run(by_document, 1, "b").existed


def test_a_window_counts_from_the_time_that_was_asked_for(app: Duly, save: Any, clock: ManualClock):
    job = app.run_after(100, save, 1, "a")

    assert job.record.run_at == clock.now() + 130_000
    app.run(save.using(debounce=timedelta(seconds=5)), 1, "b")
    assert job.record.run_at == clock.now() + 5_000


def test_a_job_that_is_due_and_waits_for_its_key_waits_again(
    app: Duly, save: Any, hire: Hire, clock: ManualClock, saved: Any, db: Database
):
    limited = save.using(limit=Limit("k", rate=1, per=1000))
    app.run(save.using(debounce=None, limit=Limit("k", rate=1, per=1000)), 0, "")
    job = app.run(limited, 1, "a")
    clock.advance(30)
    db.execute("UPDATE @jobs SET hold = 'key' WHERE id = ?", job.id)
    app.run(limited, 1, "b")

    assert job.record.hold is None
    assert job.record.run_at == clock.now() + 30_000


def test_a_canceled_job_gathers_nothing(app: Duly, save: Any):
    first = app.run(save, 1, "a")
    first.cancel()

    assert not app.run(save, 1, "b").existed
    assert first.arguments["text"] == "a"


def test_a_rolled_back_call_changes_nothing(app: Duly, save: Any, clock: ManualClock):
    job = app.run(save, 1, "a")
    clock.advance(10)
    with undone(), app.transaction() as tx:
        assert tx.run(save, 1, "b") == job
        raise Undo

    assert job.arguments["text"] == "a"
    assert job.record.run_at == clock.now() + 20_000


def test_of_many_calls_in_one_the_last_counts(app: Duly, save: Any, db: Database):
    jobs = app.run_many(save.bind(1, text) for text in "abc")

    assert [job.existed for job in jobs] == [False, True, True]
    assert jobs[0].arguments["text"] == "c"
    assert db.count("@jobs") == 1


@at_every_level
def test_callers_at_once_store_one_job_and_lose_none_that_starts(
    app: Duly, hire: Hire, db: Database, clock: ManualClock
):
    ran: list[int] = []

    @app.action(debounce=0.001)
    def save(ctx: Ctx, number: int) -> None:
        ran.append(number)

    worker = hire()
    together = threading.Barrier(CALLERS + 1)

    def call(number: int) -> tuple[int, str]:
        together.wait()
        return number, app.run(save, number).id

    def start() -> None:
        together.wait()
        worker.start_due()

    given: set[str] = set()
    with ThreadPoolExecutor(CALLERS + 1) as pool:
        for round in range(15):
            calls = [pool.submit(call, round * CALLERS + n) for n in range(CALLERS)]
            pool.submit(start).result(20)
            given |= {submitted.result(20)[1] for submitted in calls}
            assert db.scalar("SELECT count(*) FROM @jobs WHERE pending_key IS NOT NULL") <= 1
            clock.advance(0.001)
    worker.work()

    # Every job that a call was given has run, and with the arguments of one of its calls.
    assert given == {job.id for job in app.jobs(state="succeeded", limit=1000)}
    assert len(ran) == len(given)


@pytest.mark.parametrize("debounce", [0, -1])
def test_a_window_must_be_positive(save: Any, debounce: float):
    with pytest.raises(InvalidOption) as refused:
        save.using(debounce=debounce)
    assert refused.value.option == "debounce"


def test_a_window_must_be_a_time(save: Any):
    with pytest.raises(InvalidTime):
        save.using(debounce="soon")


@pytest.mark.parametrize("unique", [Unique("k", "unfinished"), Unique("k", period=5)])
def test_other_scopes_do_not_go_with_it(save: Any, unique: Unique):
    with pytest.raises(InvalidOption) as refused:
        save.using(unique=unique)
    assert refused.value.option == "debounce"


def test_a_call_takes_back_a_job_that_was_claimed_and_has_not_started(
    app: Duly, db: Database, hire: Hire, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise it would run with the arguments that the worker has read."""
    saved: list[str] = []

    @app.mutation(debounce=30)
    def save(tx: Tx, text: str) -> None:
        saved.append(text)

    first = app.run(save, "a")
    clock.advance(30)
    worker = hire()
    with monkeypatch.context() as nobody_starts:
        nobody_starts.setattr(MutationTeam, "_hire_for", lambda *_: None)
        worker.start_due()
        assert first.state == State.RUNNING
        assert app.run(save, "ab") == first
    assert first.record.attempt == 0
    worker.worker._mutations._hire_for(1)
    worker.work()
    assert saved == []
    clock.advance(30)
    worker.work()
    assert saved == ["ab"]
    assert state_of(first) == State.SUCCEEDED
    assert db.count("@jobs") == 0
