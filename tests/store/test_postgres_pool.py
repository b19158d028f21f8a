"""How many connections a process has, which callers wait for one, and when they are closed."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from duly import Ctx, Duly, Tx
from duly.errors import InvalidOption, StoreUnavailable
from duly.store.postgres import pool as pools
from duly.store.postgres.pool import Pool
from tests.jobs.support import wait_until

pytestmark = pytest.mark.postgres
PATIENCE = 30.0

MakeApp = Callable[[int], Duly]


@pytest.fixture
def look(migrated_postgres: str) -> Iterator[Callable[[], int]]:
    """How many connections the database has, apart from this one and those kept for tests."""
    count = """SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND pid <> pg_backend_pid() AND application_name = 'pooled'"""
    with psycopg.connect(migrated_postgres, autocommit=True) as connection:

        def look() -> int:
            return int(connection.execute(count).fetchall()[0][0])

        yield look


@pytest.fixture
def make(migrated_postgres: str) -> Iterator[MakeApp]:
    apps: list[Duly] = []

    def make(pool: int) -> Duly:
        apps.append(Duly(f"{migrated_postgres}?application_name=pooled", pool=pool))
        return apps[-1]

    yield make
    for app in apps:
        app.stop()
        app.close()


@pytest.mark.spec("N42")
def test_many_threads_share_the_connections_of_their_process(
    make: MakeApp, look: Callable[[], int]
):
    app, most = make(3), 0

    def ask() -> None:
        nonlocal most
        app.jobs()
        with app.transaction() as tx:
            tx.execute("SELECT pg_sleep(0.002)")
        most = max(most, look_safely())

    guard = threading.Lock()

    def look_safely() -> int:
        with guard:
            return look()

    with ThreadPoolExecutor(40) as threads:
        for done in [threads.submit(ask) for _ in range(120)]:
            done.result(PATIENCE)

    assert 1 <= most <= 3


def test_a_connection_that_is_left_in_a_transaction_is_not_lent_again(make: MakeApp):
    store: Any = make(3).ready()
    with store._pool.lend() as left:
        left.execute("BEGIN")
    with store._pool.lend() as next_one:
        status = next_one.info.transaction_status
    assert left.closed
    assert status == TransactionStatus.IDLE


@pytest.mark.spec("N42")
def test_a_call_that_gets_no_connection_in_time_says_how_many_there_are(
    make: MakeApp, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pools, "WAIT_SECONDS", 0.05)
    app = make(2)
    entered: list[object] = []
    enter = Pool._enter  # pyright: ignore[reportPrivateUsage]

    def note(self: Pool, loan: Any) -> None:
        entered.append(loan)
        enter(self, loan)

    monkeypatch.setattr(Pool, "_enter", note)

    @app.action
    def anything(ctx: Ctx) -> None: ...

    app.jobs()
    holding, done = threading.Barrier(3), threading.Event()

    def hold() -> None:
        with app.transaction():
            holding.wait(PATIENCE)
            done.wait(PATIENCE)

    with ThreadPoolExecutor(2) as threads:
        held = [threads.submit(hold) for _ in range(2)]
        holding.wait(PATIENCE)
        entered.clear()
        for call in (app.workers, lambda: app.run(anything)):
            with pytest.raises(StoreUnavailable, match=r"all 2 connections .* Duly\(pool="):
                call()
        done.set()
        for each in held:
            each.result(PATIENCE)

    # Nothing was asked of the server, so nothing is in doubt, and asked again.
    assert len(entered) == 2
    assert app.jobs() == []


@pytest.mark.spec("N42")
def test_code_that_has_a_connection_does_not_wait_for_itself(
    make: MakeApp, look: Callable[[], int]
):
    app = make(1)

    @app.action
    def anything(ctx: Ctx) -> None: ...

    job = app.run(anything)
    with app.transaction():
        assert app.job(job.id).function == "anything"
        assert look() == 2
    app.jobs()


@pytest.mark.spec("N42")
def test_async_transactions_leave_connections_for_what_is_asked_in_them(make: MakeApp):
    app = make(2)

    @app.action
    def anything(ctx: Ctx) -> None: ...

    async def ask() -> None:
        async with app.aio.transaction() as tx:
            await tx.run(anything)
            await app.aio.jobs()

    async def ask_all() -> None:
        await asyncio.gather(*(ask() for _ in range(5)))

    asyncio.run(ask_all())
    assert len(app.jobs()) == 5


@pytest.mark.spec("N43")
def test_a_worker_does_not_wait_behind_the_callers_of_its_process(make: MakeApp):
    app, mine = make(1), make(1)

    def register(app: Duly) -> tuple[Any, Any]:
        @app.action
        def act(ctx: Ctx) -> None: ...

        @app.mutation
        def mutate(tx: Tx) -> None:
            tx.execute("SELECT 1")

        return act, mutate

    register(app)
    act, mutate = register(mine)
    app.start()
    [worker] = mine.workers()
    holding, done = threading.Event(), threading.Event()

    def hold() -> None:
        with app.transaction():
            holding.set()
            done.wait(PATIENCE)

    with ThreadPoolExecutor(1) as threads:
        held = threads.submit(hold)
        assert holding.wait(PATIENCE)
        for job in (mine.run(act), mine.run(mutate)):
            job.result(PATIENCE)
        wait_until(lambda: mine.workers()[0].beat > worker.beat + 1, "it goes on beating")
        done.set()
        held.result(PATIENCE)


@pytest.mark.spec("N44")
def test_an_idle_connection_is_closed_after_a_while(
    make: MakeApp, look: Callable[[], int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pools, "IDLE_SECONDS", 0.2)
    of_others = set(threading.enumerate())
    app = make(5)
    together = threading.Barrier(3)

    def ask() -> None:
        with app.transaction():
            together.wait(PATIENCE)

    for _ in range(2):
        with ThreadPoolExecutor(3) as threads:
            for done in [threads.submit(ask) for _ in range(3)]:
                done.result(PATIENCE)
        wait_until(lambda: look() == 0, "every connection is closed")
    wait_until(
        lambda: "duly-pool" not in {t.name for t in set(threading.enumerate()) - of_others},
        "no thread is left behind",
    )


def test_no_thread_outlives_the_store(make: MakeApp, monkeypatch: pytest.MonkeyPatch):
    """Not even one that has to be waited for."""
    take_old = Pool._take_old

    def take_slowly(pool: Pool) -> Any:
        time.sleep(0.05)
        return take_old(pool)

    monkeypatch.setattr(Pool, "_take_old", take_slowly)
    of_others = set(threading.enumerate())
    app = make(1)
    assert app.jobs() == []
    app.close()
    assert "duly-pool" not in {thread.name for thread in set(threading.enumerate()) - of_others}


def test_a_place_is_given_back_whatever_goes_wrong():
    failures: list[BaseException] = [KeyboardInterrupt(), StoreUnavailable("down"), SystemExit()]

    def fail() -> Any:
        raise failures[-1]

    pool = Pool(fail, 1)
    while failures:
        with pytest.raises(type(failures[-1])), pool.lend():
            pass
        failures.pop()
    assert pool._in_use == 0  # pyright: ignore[reportPrivateUsage]


def test_there_is_at_least_one_connection():
    with pytest.raises(InvalidOption, match="pool"):
        Duly("postgresql:///shop", pool=0)
