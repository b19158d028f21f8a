"""Unique keys: which calls return an existing job, and for how long."""

import asyncio
import multiprocessing
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest

from duly import AsyncCtx, AsyncJob, Ctx, Duly, Job, ManualClock, Retry, State, Tx, Unique
from duly.errors import InvalidOption, StoreUnavailable, UnknownFunction
from duly.runtime.teams import MutationTeam
from duly.runtime.worker import LONGEST_WAIT
from duly.store.jobs.cancel import cancel
from duly.store.session import Session
from duly.store.steps import KEY_HOLDER
from tests.jobs.support import (
    Database,
    Hire,
    Undo,
    on_postgres,
    prepare,
    rescue_the_dead,
    state_of,
    tidy,
    undone,
    wait_until,
)
from tests.levels import at_every_level

pytestmark = pytest.mark.spec("N7")
CALLERS = 8


@pytest.fixture
def ran() -> list[int]:
    return []


@pytest.fixture
def note(app: Duly, ran: list[int]) -> Any:
    @app.action
    def note(ctx: Ctx, number: int, why: str = "none") -> int:
        ran.append(number)
        return number

    return note


# Scopes -------------------------------------------------------------------------------------------


def test_a_second_call_gives_the_job_that_waits(
    app: Duly, note: Any, db: Database, hire: Hire, ran: list[int]
):
    once = note.using(unique=Unique("the one"))
    first, second = app.run(once, 1), app.run(once, 2)

    assert (first.existed, second.existed) == (False, True)
    assert second == first
    assert db.count("@jobs") == 1
    hire().work()
    assert ran == [1]
    assert second.result(0) == 1


def test_pending_ends_when_the_body_starts(app: Duly, hire: Hire, clock: ManualClock):
    """Seen from inside the body, which must find its key free."""
    seen: dict[str, Job[Any] | AsyncJob[Any]] = {}

    @app.action(unique=Unique("the one"))
    def sync_action(ctx: Ctx) -> None:
        seen.setdefault("sync_action", ctx.run_after(1, sync_action))

    @app.action(unique=Unique("the one"))
    async def async_action(ctx: AsyncCtx) -> None:
        seen.setdefault("async_action", await ctx.run_after(1, async_action))

    @app.mutation(unique=Unique("the one"))
    def mutation(tx: Tx) -> None:
        seen.setdefault("mutation", tx.run_after(1, mutation))

    first = [app.run(function) for function in (sync_action, async_action, mutation)]
    hire().work()

    assert {job.state for job in first} == {State.SUCCEEDED}
    assert len(seen) == 3
    assert not any(job.existed for job in seen.values())


@pytest.mark.parametrize("how", ["a stop", "a lost answer", "a long wait", "a death"])
def test_a_claimed_job_that_is_given_back_unstarted_keeps_its_key(
    app: Duly,
    db: Database,
    hire: Hire,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
):
    ran: list[int] = []

    @app.mutation(timeout=60, unique=Unique("the one"))
    def note(tx: Tx, number: int) -> None:
        ran.append(number)

    first = app.run(note, 1)
    worker = hire()
    with monkeypatch.context() as nobody_starts:
        nobody_starts.setattr(MutationTeam, "_hire_for", lambda *_: None)
        worker.claim_only() if how == "a lost answer" else worker.start_due()
        assert app.run(note, 2) == first
        assert state_of(first) == State.RUNNING
        if how == "a stop":
            worker.worker._give_back_queued()
            worker.settle()
            worker.stop()
        elif how == "a death":
            worker.die()
            rescue_the_dead(hire())
        else:
            clock.advance(LONGEST_WAIT + 1)
            worker.beat()
            worker.settle()
    assert state_of(first) == State.PENDING
    assert app.run(note, 3) == first
    assert db.count("@jobs") == 1
    hire().work()
    assert ran == [1]
    assert not app.run(note, 4).existed


def test_a_job_whose_arguments_no_longer_fit_keeps_its_key(app: Duly, note: Any, hire: Hire):
    @app.mutation
    def change(tx: Tx, number: int) -> None: ...

    for function in (note, change):
        once = function.using(unique=Unique("the one")).bind(1)
        once.args = '{"number":"one"}'
        (first,) = app.run_many([once])
        hire().work()
        assert first.record.hold == "signature"
        assert app.run(function.using(unique=Unique("the one")), 2) == first


def test_a_job_that_cannot_give_up_its_key_does_not_start(
    app: Duly,
    note: Any,
    hire: Hire,
    ran: list[int],
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
):
    @app.mutation(unique=Unique("the one"))
    def change(tx: Tx) -> None:
        ran.append(2)

    jobs = [app.run(note.using(unique=Unique("the one")), 1), app.run(change)]

    def fail(*_: Any) -> None:
        raise StoreUnavailable("as the test wants it")

    worker = hire()
    with monkeypatch.context() as outage:
        outage.setattr("duly.store.jobs.run._start_bodies", fail)
        worker.start_due()
        worker.wait_for_bodies()
        worker.settle()
    assert ran == []
    assert [(job.state, job.record.attempt) for job in jobs] == [(State.PENDING, 0)] * 2
    assert app.run(change) == jobs[1]
    clock.advance(60)
    worker.work()
    assert sorted(ran) == [1, 2]


def test_a_job_that_waits_for_its_retry_has_started(app: Duly, hire: Hire, clock: ManualClock):
    @app.action(retry=Retry(attempts=3), unique=Unique("the one"))
    def fail(ctx: Ctx) -> None:
        raise ValueError

    first = app.run(fail)
    hire().work()

    assert first.state == State.PENDING
    assert not app.run(fail).existed


@at_every_level
def test_unfinished_ends_when_the_job_ends(app: Duly, note: Any, hire: Hire):
    once = note.using(unique=Unique("the one", "unfinished"))
    first = app.run(once, 1)
    worker = hire()
    worker.claim_only()
    assert app.run(once, 2) == first
    worker.beat()
    worker.work()

    assert not app.run(once, 3).existed


@pytest.mark.parametrize("scope", ["pending", "unfinished"])
def test_a_canceled_job_is_in_nobodys_way(app: Duly, note: Any, scope: Any):
    once = note.using(unique=Unique("the one", scope))
    first = app.run(once, 1)
    first.cancel()

    assert not app.run(once, 2).existed


def test_a_period_counts_from_the_call_and_outlives_the_job(
    app: Duly, note: Any, hire: Hire, clock: ManualClock
):
    hourly = note.using(unique=Unique("the one", period=3600))
    first = app.run(hourly, 1)
    hire().work()
    clock.advance(3599.999)
    assert app.run(hourly, 2) == first
    assert first.state == State.SUCCEEDED

    clock.advance(0.001)

    assert not app.run(hourly, 3).existed


def test_keys_are_forgotten_when_their_time_is_over(
    app: Duly, note: Any, db: Database, clock: ManualClock
):
    app.run(note.using(unique=Unique("a", period=10)), 1)
    app.run(note.using(unique=Unique("b", period=1000)), 1)
    clock.advance(10)
    tidy(app)

    assert db.count("@keys") == 1


# Keys ---------------------------------------------------------------------------------------------


def test_without_a_key_the_arguments_decide(app: Duly, note: Any):
    once = note.using(unique=Unique())
    first = app.run(once, 1, why="x")

    assert app.run(once, number=1, why="x") == first
    assert not app.run(once, 1, why="y").existed
    assert not app.run(once, 2).existed


def test_a_key_can_be_computed_from_the_arguments_also_those_by_default(app: Duly, note: Any):
    once = note.using(unique=Unique(lambda number, why: f"{number % 10}:{why}"))
    first = app.run(once, 1)

    assert app.run(once, 11) == first
    assert app.run(once, 21, why="none") == first
    assert not app.run(once, 2).existed
    assert not app.run(once, 1, why="other").existed


def test_a_key_belongs_to_its_function(app: Duly, note: Any):
    @app.action(unique=Unique("k"))
    def other(ctx: Ctx) -> None: ...

    app.run(note.using(unique=Unique("k")), 1)

    assert not app.run(other).existed
    assert app.run(other).existed


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Unique(7), "a key must be text, not 7"),  # type: ignore[arg-type]
        (lambda: Unique("k" * 201), "1 to 200 printable characters"),
        (lambda: Unique(""), "1 to 200 printable characters"),
        (lambda: Unique("a\nb"), "1 to 200 printable characters"),
        (lambda: Unique("k", "forever"), "scope"),  # type: ignore[arg-type]
        (lambda: Unique("k", period=0), "period"),
        (lambda: Unique("k", period="1 h"), "period"),  # type: ignore[arg-type]
        (lambda: Unique("k", "unfinished", period=5), "a scope or a period"),
    ],
)
def test_what_cannot_be_unique_is_refused(make: Callable[[], Unique], words: str):
    with pytest.raises(InvalidOption, match=words) as refused:
        make()
    assert refused.value.option == "unique"


def test_a_computed_key_that_is_no_text_is_refused(app: Duly, note: Any):
    with pytest.raises(InvalidOption, match="a key must be text, not 1") as refused:
        app.run(note.using(unique=Unique(lambda number, why: number)), 1)
    assert refused.value.option == "unique"


def test_another_thing_than_a_unique_is_refused(note: Any):
    with pytest.raises(InvalidOption, match="give a Unique") as refused:
        note.using(unique="k")
    assert refused.value.option == "unique"


# Idempotency --------------------------------------------------------------------------------------


def test_an_idempotency_key_is_kept_for_a_day(app: Duly, note: Any, hire: Hire, clock: ManualClock):
    first = app.run(note.using(idempotency_key="order 7"), 1)
    hire().work()
    clock.advance(86_399)
    again = app.run(note.using(idempotency_key="order 7"), 2)
    assert again == first
    assert again.existed
    assert again.result(0) == 1
    assert not app.run(note.using(idempotency_key="order 8"), 2).existed

    clock.advance(1)

    assert not app.run(note.using(idempotency_key="order 7"), 3).existed


def test_how_long_it_is_kept_is_a_setting(url: str, clock: ManualClock):
    app = prepare(Duly(url, clock=clock, idempotency=timedelta(seconds=10)))

    @app.action
    def note(ctx: Ctx) -> None: ...

    app.run(note.using(idempotency_key="k"))
    clock.advance(9)
    assert app.run(note.using(idempotency_key="k")).existed
    clock.advance(1)
    assert not app.run(note.using(idempotency_key="k")).existed
    app.close()


@pytest.mark.parametrize(
    "unique", [Unique("u"), Unique("u", "unfinished"), Unique("u", period=5)], ids=str
)
def test_a_call_that_was_merged_is_found_by_its_own_key(
    app: Duly, note: Any, hire: Hire, clock: ManualClock, db: Database, unique: Unique
):
    def call(key: str, number: int) -> Job[Any]:
        return app.run(note.using(unique=unique, idempotency_key=key), number)

    first = call("a", 1)
    assert call("b", 2) == first
    hire().work()
    clock.advance(10)

    assert [call("a", 1), call("b", 2)] == [first, first]
    assert [job.id for job in app.jobs()] == [first.id]
    assert not call("c", 3).existed, "a repeat takes nobody's place"
    assert db.count("@keys") == 3 + (unique.period is not None)


@pytest.mark.parametrize("key", [7, "", "x" * 201])
def test_what_is_no_idempotency_key_is_refused(note: Any, key: Any):
    with pytest.raises(InvalidOption) as refused:
        note.using(idempotency_key=key)
    assert refused.value.option == "idempotency_key"


# Many at once -------------------------------------------------------------------------------------


def test_a_bulk_call_keeps_its_order(app: Duly, note: Any, db: Database):
    once = note.using(unique=Unique(lambda number, why: str(number % 3)))
    there = app.run(once, 1)
    calls = [once.bind(0), note.bind(9), once.bind(4), once.bind(3), once.bind(2), note.bind(9)]
    jobs = app.run_many(calls)

    assert [job.existed for job in jobs] == [False, False, True, True, False, False]
    assert jobs[2] == there
    assert jobs[3] == jobs[0]
    assert db.count("@jobs") == 5
    assert [job.arguments["number"] for job in jobs] == [0, 9, 1, 0, 2, 9]


def test_the_hook_of_a_job_that_existed_is_not_stored(app: Duly, note: Any, db: Database):
    @app.action
    def after(ctx: Ctx, job_id: str) -> None: ...

    once = note.using(unique=Unique("k"), on_complete=after)
    app.run(once, 1)
    app.run(once, 2)

    assert db.count("@jobs") == 2


def test_a_batch_whose_members_all_existed_calls_its_hook(app: Duly, note: Any, hire: Hire):
    done: list[str] = []

    @app.action
    def after(ctx: Ctx, batch_id: str) -> None:
        done.append(batch_id)

    once = note.using(unique=Unique("k"))
    app.run_after(60, once, 1)
    batch = app.batch([once.bind(2)], on_complete=after)
    hire().work()

    assert done == [batch.id]


# Transactions -------------------------------------------------------------------------------------


def test_a_transaction_sees_its_own_keys_and_gives_them_up(app: Duly, note: Any):
    once = note.using(unique=Unique("k"))
    with undone(), app.transaction() as tx:
        first = tx.run(once, 1)
        assert tx.run(once, 2) == first
        raise Undo

    with app.transaction() as tx:
        kept = tx.run(once, 3)
    assert not kept.existed
    with app.transaction() as tx:
        found = tx.run(once, 4)
    assert found == kept
    assert found.existed


def test_mutations_and_actions_find_the_job_too(app: Duly, note: Any, hire: Hire):
    there = app.run_after(60, note.using(unique=Unique("k", "unfinished")), 1)

    @app.mutation
    def from_mutation(tx: Tx) -> tuple[str, bool]:
        job = tx.run(note.using(unique=Unique("k", "unfinished")), 2)
        return job.id, job.existed

    @app.action
    def from_action(ctx: Ctx) -> tuple[str, bool]:
        job = ctx.run(note.using(unique=Unique("k", "unfinished")), 2)
        return job.id, job.existed

    jobs: list[Job[Any]] = [app.run(from_mutation), app.run(from_action)]
    hire().work()

    assert [job.result(0) for job in jobs] == [(there.id, True)] * 2


def test_a_handle_of_the_users_finds_the_job(app: Duly, note: Any, url: str):
    once = note.using(unique=Unique("k"), idempotency_key="i")
    there = app.run(once, 1)
    with closing(_connect(url)) as connection:
        found = app.on(connection).run(once, 2)
        fresh = app.on(connection).run(note.using(unique=Unique("other")), 3)
        again = app.on(connection).run(note.using(unique=Unique("other")), 4)
        connection.commit()

    assert found.existed
    assert found == there
    assert found.state == State.PENDING
    assert (fresh.existed, again.existed, again) == (False, True, fresh)


def test_async_code_finds_the_job(app: Duly, note: Any):
    once = note.using(unique=Unique("k"))

    async def call() -> list[AsyncJob[int]]:
        jobs = [await app.aio.run(once, 1), await app.aio.run(once, 2)]
        async with app.aio.transaction() as tx:
            jobs.append(await tx.run(once, 3))
        return jobs + await app.aio.run_many([once.bind(4), note.bind(5)])

    jobs = asyncio.run(call())

    assert [job.existed for job in jobs] == [False, True, True, True, False]
    assert len({job.id for job in jobs[:4]}) == 1


@on_postgres
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_async_handles_find_the_job(app: Duly, note: Any, url: str, driver: str):
    once = note.using(unique=Unique("k", "unfinished"), idempotency_key="i")
    there = app.run(once, 1)
    late = note.using(debounce=5)

    async def calls(connection: Any) -> list[AsyncJob[int]]:
        on = app.on(connection)
        return [await on.run(once, 2), await on.run(late, 1), await on.run(late, 2)]

    async def with_asyncpg() -> list[AsyncJob[int]]:
        connection: Any = await asyncpg.connect(url)
        async with connection.transaction():
            jobs = await calls(connection)
        await connection.close()
        return jobs

    async def with_psycopg() -> list[AsyncJob[int]]:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            return await calls(connection)

    jobs = asyncio.run(with_asyncpg() if driver == "asyncpg" else with_psycopg())

    assert [job.existed for job in jobs] == [True, False, True]
    assert jobs[0].id == there.id
    assert app.job(jobs[2].id).arguments == {"number": 2}


def _connect(url: str) -> Any:
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    return psycopg.connect(url)


# Races --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unique", [Unique("k"), Unique("k", "unfinished"), Unique("k", period=60)])
def test_of_many_callers_at_once_one_stores_the_job(
    app: Duly, note: Any, db: Database, unique: Unique
):
    once = note.using(unique=unique)
    app.ready()
    together = threading.Barrier(CALLERS)

    def call(number: int) -> Job[int]:
        together.wait()
        return app.run(once, number)

    with ThreadPoolExecutor(CALLERS) as pool:
        for _ in range(10):
            jobs = list(pool.map(call, range(CALLERS)))
            assert len({job.id for job in jobs}) == 1
            assert [job.existed for job in jobs].count(False) <= 1
    assert db.count("@jobs") == 1


def test_processes_that_call_while_jobs_start_never_store_two_that_wait(
    app: Duly, url: str, hire: Hire, db: Database
):
    @app.action
    def note(ctx: Ctx, number: int, why: str = "none") -> int:
        return number

    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        calls = pool.starmap_async(_call_often, [(url, 60), (url, 60)])
        worker = hire()
        while not calls.ready():
            worker.start_due()
            worker.settle()
            assert db.scalar("SELECT count(*) FROM @jobs WHERE pending_key IS NOT NULL") <= 1
        given = [job_id for ids in calls.get(20) for job_id in ids]
    worker.work()

    # Every call was given a job that ran, and no two jobs waited at the same time.
    done = {job.id for job in app.jobs(state="succeeded", limit=1000)}
    assert set(given) == done


def _waiting(db: Database) -> bool:
    return bool(db.scalar("SELECT count(*) FROM pg_locks WHERE NOT granted"))


def _call_often(url: str, times: int) -> list[str]:
    app = Duly(url, clock=ManualClock())

    @app.action
    def note(ctx: Ctx, number: int, why: str = "none") -> int:
        return number

    try:
        return [app.run(note.using(unique=Unique("k")), number).id for number in range(times)]
    finally:
        app.close()


@on_postgres
def test_a_holder_that_has_not_committed_is_waited_for(
    app: Duly, note: Any, db: Database, hire: Hire
):
    once = note.using(unique=Unique("k"))
    with ThreadPoolExecutor(1) as pool:
        with app.transaction() as tx:
            mine = tx.run(once, 1)
            other = pool.submit(app.run, once, 2)
            wait_until(lambda: _waiting(db))
            assert not other.done()
        assert other.result(20) == mine
        with undone(), app.transaction() as tx:
            tx.cancel(mine)
            lost = tx.run(once, 3)
            other = pool.submit(app.run, once, 4)
            wait_until(lambda: _waiting(db))
            raise Undo
        assert other.result(20) == mine
    assert lost != mine


@at_every_level
def test_the_holder_may_end_between_the_insert_and_the_look(
    app: Duly, note: Any, monkeypatch: pytest.MonkeyPatch
):
    once = note.using(unique=Unique("k"))
    first = app.run(once, 1)
    taken = Session.answer
    gone: list[bool | None] = []

    def answer(session: Any, ask: Any) -> Any:
        if ask.statement is KEY_HOLDER and not gone:
            gone.append(cancel(session, first.id, "operator", 1))
        return taken(session, ask)

    monkeypatch.setattr(Session, "answer", answer)
    second = app.run(once, 2)

    assert gone == [True]
    assert not second.existed
    assert first.state == State.CANCELED
    assert second.state == State.PENDING


@on_postgres
def test_an_insert_whose_answer_was_lost_is_not_taken_for_another_job(
    app: Duly, note: Any, db: Database, monkeypatch: pytest.MonkeyPatch, hire: Hire
):
    store: Any = app.ready()
    write = store.write
    lost: list[bool] = []

    def lose(work: Any) -> Any:
        answer = write(work)
        if not lost:
            lost.append(True)
            hire().work()
            raise StoreUnavailable("the answer was lost")
        return answer

    monkeypatch.setattr(store, "write", lose)
    job = app.run(note.using(unique=Unique("k"), idempotency_key="i"), 1)

    assert not job.existed
    assert job.state == State.SUCCEEDED
    assert db.count("@jobs") == 0


# Elsewhere ----------------------------------------------------------------------------------------


def test_a_declared_function_has_the_keys_that_its_workers_published(
    app: Duly, url: str, clock: ManualClock, hire: Hire
):
    @app.action(unique=Unique(scope="unfinished"))
    def sync(ctx: Ctx, account: int) -> None: ...

    hire()
    other = Duly(url, clock=clock, name="other")

    @other.declare(name="sync")
    def declared(account: int) -> None: ...

    assert not other.run(declared, 7).existed
    assert other.run(declared, 7).existed
    assert not other.run(declared, 8).existed
    other.close()


def test_a_foreign_function_is_still_refused(app: Duly, note: Any, url: str):
    other = Duly(url)
    with pytest.raises(UnknownFunction):
        other.run(note.using(unique=Unique("k")), 1)
    other.close()
