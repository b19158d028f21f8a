"""The database did what it was asked, and the answer never came: everything ends once.

On PostgreSQL a proxy drops the answer and cuts the connection. SQLite has no wire; there an error
is raised right after the COMMIT.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from duly import Ctx, Duly, State, Tx
from duly.errors import StoreUnavailable
from duly.store.base import ClaimRequest
from duly.store.postgres import PostgresSession
from duly.store.sqlite import SqliteMutationLane, SqliteStore
from tests.cli.processes import wait_until
from tests.jobs.support import Database
from tests.torture.kill.proxy import Proxy

CLAIM = "SET state = 'running'"
FINISH = "RETURNING j.id"
BEAT = 0.1
WAITING_FOR_LOCK = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


class Shop:
    """An app and what its jobs have done."""

    def __init__(self, url: str) -> None:
        self.app = Duly(url)
        self.started: list[str] = []

        @self.app.action
        def touch(ctx: Ctx) -> str:
            self.started.append(ctx.job_id)
            return "touched"

        @self.app.mutation
        def note(tx: Tx) -> str:
            tx.execute("INSERT INTO effects (job_id) VALUES (?)", (tx.job_id,))
            return "noted"

        self.touch, self.note = touch, note


class Loser:
    """Loses one answer, on either store; `happened` says that it did."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.proxy = Proxy(url) if url.startswith("postgres") else None
        self.url = self.proxy.url if self.proxy else url
        self.happened: Callable[[], bool] = lambda: False

    def claim(self) -> None:
        if self.proxy:
            self.happened = self.proxy.lose(CLAIM).happened.is_set
        else:
            self._lose_exchange(lambda settlements, request: request is not None)

    def finish(self) -> None:
        if self.proxy:
            self.happened = self.proxy.lose(FINISH).happened.is_set
        else:
            self._lose_exchange(lambda settlements, request: bool(settlements))

    def commit_of_mutation(self) -> None:
        if self.proxy:
            loss = self.proxy.lose("COMMIT", after="INSERT INTO effects")
            self.happened = loss.happened.is_set
        else:
            self._lose_commit()

    def _lose_exchange(self, when: Callable[[Any, ClaimRequest | None], bool]) -> None:
        lost: list[bool] = []
        exchange = SqliteStore.exchange

        def losing(
            store: SqliteStore, settlements: Any, request: ClaimRequest | None, now: int
        ) -> Any:
            answer = exchange(store, settlements, request, now)
            if not lost and when(settlements, request):
                lost.append(True)
                raise StoreUnavailable("the answer got lost")
            return answer

        self._patch.setattr(SqliteStore, "exchange", losing)
        self.happened = lambda: bool(lost)

    def _lose_commit(self) -> None:
        lost: list[bool] = []
        commit = SqliteMutationLane.commit

        def losing(lane: SqliteMutationLane) -> None:
            commit(lane)
            if not lost:
                lost.append(True)
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
                raise error

        self._patch.setattr(SqliteMutationLane, "commit", losing)
        self.happened = lambda: bool(lost)

    def close(self) -> None:
        if self.proxy:
            self.proxy.close()


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    app = Duly(url)
    app.migrate()
    with app.transaction() as tx:
        tx.execute("CREATE TABLE effects (job_id text)")
    app.close()
    database = Database(url)
    yield database
    database.close()


@pytest.fixture
def loser(url: str, db: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loser]:
    loser = Loser(url, monkeypatch)
    yield loser
    loser.close()


@pytest.fixture
def shop(loser: Loser) -> Iterator[Shop]:
    """The app that loses answers; the jobs come from another one."""
    shop = Shop(loser.url)
    yield shop
    shop.app.close()


@pytest.fixture
def outside(url: str, db: Database) -> Iterator[Shop]:
    """The same app with a connection that never fails."""
    shop = Shop(url)
    yield shop
    shop.app.close()


@pytest.mark.spec("N35", "R80")
def test_a_claim_whose_answer_was_lost_is_given_back_and_runs_once(shop, outside, loser):
    loser.claim()
    jobs = [outside.app.run(outside.touch), outside.app.run(outside.note)]
    shop.app.start(beat_every=BEAT)
    assert [job.result(timeout=60) for job in jobs] == ["touched", "noted"]
    assert loser.happened()
    # What was never begun costs no attempt and counts as no crash.
    assert [(job.attempt, job.record.crashes) for job in jobs] == [(1, 0), (1, 0)]
    assert shop.started == [jobs[0].id]


@pytest.mark.spec("N35")
def test_a_claim_whose_answer_was_lost_does_not_outlive_a_stop(shop, outside, loser, db):
    loser.claim()
    job = outside.app.run(outside.touch)
    # No beat comes between the lost answer and the end.
    shop.app.start(beat_every=3600)
    wait_until(loser.happened, "the answer got lost")
    shop.app.stop()
    assert (job.state, job.attempt, job.record.crashes) in [
        (State.PENDING, 0, 0),
        (State.SUCCEEDED, 1, 0),
    ]
    assert db.count("@workers") == 0


@pytest.mark.spec("R75", "R76")
def test_a_mutation_whose_commit_was_not_answered_has_one_effect(shop, outside, loser, db):
    loser.commit_of_mutation()
    job = outside.app.run(outside.note)
    shop.app.start(beat_every=BEAT)
    assert job.result(timeout=60) == "noted"
    wait_until(loser.happened, "the answer got lost")
    assert db.execute("SELECT job_id FROM effects") == [(job.id,)]
    assert (job.attempt, db.count("@history")) == (1, 1)


@pytest.mark.spec("R82")
def test_an_action_whose_finish_was_not_answered_succeeds_once(shop, outside, loser, db):
    loser.finish()
    job = outside.app.run(outside.touch)
    shop.app.start(beat_every=BEAT)
    assert job.result(timeout=60) == "touched"
    wait_until(loser.happened, "the answer got lost")
    wait_until(lambda: shop.app.core.service.worker.idle, "the worker knows that it is settled")
    assert shop.started == [job.id]
    assert (job.attempt, db.count("@history")) == (1, 1)


# Only over a wire: the question itself can get lost


@pytest.mark.spec("R76", "R78")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_mutation_whose_commit_never_arrived_runs_again(shop, outside, loser, db):
    loss = loser.proxy.lose("COMMIT", after="INSERT INTO effects", arrives=False)
    job = outside.app.run(outside.note)
    shop.app.start(beat_every=BEAT)
    assert job.result(timeout=60) == "noted"
    assert loss.happened.is_set()
    assert db.execute("SELECT job_id FROM effects") == [(job.id,)]
    # The error was not the function's own, so it counts as no attempt.
    assert (job.attempt, job.record.system_retries) == (1, 1)


@pytest.mark.spec("R82")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_finish_that_never_arrived_is_repeated(shop, outside, loser):
    loss = loser.proxy.lose(FINISH, arrives=False)
    job = outside.app.run(outside.touch)
    shop.app.start(beat_every=BEAT)
    assert job.result(timeout=60) == "touched"
    assert loss.happened.is_set()
    assert shop.started == [job.id]


# Enqueue


@pytest.mark.spec("N35")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
@pytest.mark.parametrize("arrives", [True, False])
def test_an_enqueue_whose_answer_was_lost_is_one_job(shop, loser, db, arrives):
    loss = loser.proxy.lose("INSERT INTO duly.jobs", arrives=arrives)
    job = shop.app.run(shop.touch)
    assert loss.happened.is_set()
    assert [str(i) for (i,) in db.execute("SELECT id FROM @jobs")] == [job.id]


@pytest.mark.spec("N35")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_an_enqueue_whose_job_has_even_finished_meanwhile_is_one_job(shop, outside, loser, db):
    outside.app.start()
    loser.proxy.lose(
        "INSERT INTO duly.jobs",
        before_cut=lambda: wait_until(lambda: db.count("@history") == 1, "the job has run"),
    )
    job = shop.app.run(shop.touch)
    assert job.state == State.SUCCEEDED
    assert outside.started == [job.id]
    assert (db.count("@jobs"), db.count("@history")) == (0, 1)


@pytest.fixture
def repeat_fails_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    real = PostgresSession.insert_jobs_once

    def failing(session: PostgresSession, jobs: Any) -> None:
        monkeypatch.setattr(PostgresSession, "insert_jobs_once", real)
        raise psycopg.errors.ReadOnlySqlTransaction("this was a primary a moment ago")

    return lambda: monkeypatch.setattr(PostgresSession, "insert_jobs_once", failing)


@pytest.mark.spec("N35")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_an_enqueue_whose_answer_was_lost_is_never_repeated_as_if_it_had_not_been(
    shop, outside, loser, db, repeat_fails_once
):
    """Several callers share each insert. Its jobs have run when the look for them fails."""

    def lose_after(jobs: int) -> None:
        repeat_fails_once()
        loser.proxy.lose(
            "INSERT INTO duly.jobs",
            before_cut=lambda: wait_until(
                lambda: db.count("@history") == jobs, "the jobs have run"
            ),
        )

    async def enqueue_two() -> list[Any]:
        calls = (shop.app.aio.run(shop.touch) for _ in range(2))
        return await asyncio.gather(*calls, return_exceptions=True)

    def enqueue() -> BaseException | None:
        try:
            shop.app.run(shop.touch)
        except BaseException as error:
            return error
        return None

    outside.app.start()
    shop.app.core.functions.keep_fresh()
    lose_after(2)
    errors = asyncio.run(enqueue_two())

    holder = db.connect()
    holder.execute("BEGIN; LOCK TABLE duly.jobs IN SHARE MODE")
    with ThreadPoolExecutor() as threads:
        first = threads.submit(enqueue)
        wait_until(lambda: db.scalar(WAITING_FOR_LOCK), "the first insert waits")
        others = [threads.submit(enqueue) for _ in range(2)]
        wait_until(lambda: len(shop.app.store._enqueues._waiting) == 2, "the others wait for it")
        lose_after(5)
        holder.execute("COMMIT")
        assert first.result() is None
        errors += [other.result() for other in others]

    assert [type(error) for error in errors] == [StoreUnavailable] * 4
    assert all("the call may have happened" in str(error) for error in errors)
    assert len(outside.started) == len(set(outside.started)) == 5
    assert (db.count("@jobs"), db.count("@history")) == (0, 5)


@pytest.mark.spec("N35")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_an_enqueue_whose_job_is_just_being_finished_is_one_job(shop, outside, loser, db):
    moved = threading.Event()

    def finish_slowly() -> None:
        with outside.app.transaction() as tx:
            assert tx.cancel(str(db.scalar("SELECT id FROM @jobs")))
            moved.set()
            wait_until(lambda: db.scalar(WAITING_FOR_LOCK), "the repeated insert waits")

    def begin_to_finish() -> None:
        threading.Thread(target=finish_slowly).start()
        assert moved.wait(10)

    loser.proxy.lose("INSERT INTO duly.jobs", before_cut=begin_to_finish)
    job = shop.app.run(shop.touch)
    assert job.state == State.CANCELED
    assert (db.count("@jobs"), db.count("@history")) == (0, 1)
