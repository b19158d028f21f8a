"""Jobs that were scheduled in a test's transaction run inside it, and vanish with it."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

import duly.testing as kit
from duly import AsyncCtx, Ctx, Duly, ManualClock, Retry, State, Tx
from duly.errors import InvalidOption, JobFailed
from tests.jobs.support import Database, on_sqlite


@contextmanager
def plain(url: str) -> Iterator[Any]:
    if url.startswith("sqlite"):
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"))
        connection.row_factory = sqlite3.Row
    else:
        connection = psycopg.connect(url, row_factory=psycopg.rows.dict_row)
    yield connection
    connection.close()


def engine_for(url: str) -> Any:
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://"))


@contextmanager
def session(url: str) -> Iterator[Any]:
    engine = engine_for(url)
    with Session(engine) as opened:
        yield opened
    engine.dispose()


@contextmanager
def joined_session(url: str) -> Iterator[Any]:
    """A session in a transaction of the test's own, whose commits are savepoints."""
    engine = engine_for(url)
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as opened:
            yield opened
        outer.rollback()
    engine.dispose()


HANDLES: list[Callable[[str], Any]] = [plain, session, joined_session]


@pytest.fixture(params=HANDLES, ids=lambda handle: handle.__name__)
def handle(request: pytest.FixtureRequest, url: str, app: Duly) -> Iterator[Any]:
    with request.param(url) as opened:
        yield opened


@pytest.fixture
def shop(app: Duly) -> Duly:
    @app.action
    def send(ctx: Ctx, to: str) -> str:
        if to == "nobody":
            raise ValueError("no such person")
        app.run(note, f"app {to}")
        ctx.call(app.function("note"), f"call {to}")  # type: ignore[arg-type]
        return to

    @app.mutation
    def note(tx: Tx, what: str) -> None:
        tx.execute("INSERT INTO notes VALUES (?)", (what,))

    @app.mutation
    def order(tx: Tx, to: str) -> None:
        tx.execute("INSERT INTO notes VALUES (?)", (f"order {to}",))
        tx.run(send, to)
        if to == "bad":
            raise ValueError("bad order")

    return app


def notes(handle: Any) -> list[str]:
    if isinstance(handle, Session):
        rows = handle.execute(text("SELECT text FROM notes ORDER BY text")).all()
        return [row[0] for row in rows]
    rows = handle.execute("SELECT text FROM notes ORDER BY text").fetchall()
    return [dict(row)["text"] for row in rows]


@pytest.mark.spec("N30")
def test_everything_happens_in_the_transaction_and_goes_with_it(
    shop: Duly, handle: Any, db: Database, url: str
):
    job = shop.on(handle).run(shop.function("order"), "ada")
    ran = kit.drain(shop, on=handle)
    assert [(found.function, found.state) for found in ran] == [
        ("order", State.SUCCEEDED),
        ("send", State.SUCCEEDED),
        ("note", State.SUCCEEDED),
    ]
    assert ran[0].id == job.id
    assert notes(handle) == ["app ada", "call ada", "order ada"]
    handle.rollback()
    assert (db.count("@jobs"), db.count("@history"), db.notes()) == (0, 0, [])
    assert db.count("@workers") == 0
    assert shop.jobs() == [], "the app is back on its own store"


@pytest.mark.spec("N30")
def test_a_mutation_that_fails_leaves_only_its_failure(shop: Duly, handle: Any, db: Database):
    shop.on(handle).run(shop.function("order"), "bad")
    shop.on(handle).run(shop.function("note"), "fine")
    with pytest.raises(JobFailed, match="bad order"):
        kit.drain(shop, on=handle)
    assert notes(handle) == ["fine"]
    kit.assert_not_enqueued(shop, on=handle)
    handle.rollback()
    assert db.notes() == []


def test_what_waits_is_seen_inside_the_transaction_only(
    shop: Duly, handle: Any, clock: ManualClock
):
    send: Any = shop.function("send")
    shop.on(handle).run_after(60, send, "ada")
    assert kit.drain(shop, on=handle) == []
    assert kit.assert_enqueued(shop, send.bind("ada"), on=handle, after=60).function == "send"
    kit.assert_not_enqueued(shop)
    clock.advance(60)
    assert next(job.arguments for job in kit.drain(shop, on=handle)) == {"to": "ada"}
    handle.rollback()


@pytest.mark.spec("N30")
def test_a_job_is_read_in_its_transaction_and_stays_as_it_was(
    shop: Duly, handle: Any, clock: ManualClock, db: Database
):
    @shop.action(retry=Retry(attempts=2, delay=60, jitter=0))
    def fail(ctx: Ctx) -> None:
        raise ValueError("again")

    job = shop.on(handle).run(fail)
    waiting = kit.assert_enqueued(shop, fail, on=handle)
    assert (waiting.state, waiting.run_at) == (State.PENDING, waiting.scheduled_at)
    [ran] = kit.drain(shop, on=handle)
    assert (ran.id, ran.state, ran.attempt, waiting.attempt) == (job.id, State.PENDING, 1, 1)
    clock.advance(60)
    with pytest.raises(JobFailed, match="again"):
        kit.drain(shop, on=handle)
    assert (ran.state, ran.attempt) == (State.FAILED, 2)
    handle.rollback()
    assert (ran.state, waiting.attempt) == (State.FAILED, 1), "as last seen"
    assert db.count("@jobs") == 0


def test_a_job_is_read_where_it_was_committed(shop: Duly, url: str):
    with plain(url) as connection:
        shop.on(connection).run_after(60, shop.function("send"), "ada")
        [job] = kit.enqueued(shop, on=connection)
        connection.commit()
        assert job.state == State.PENDING
        assert shop.cancel(job.id)
        assert job.canceled_by == "operator"


def test_a_job_is_canceled_in_its_transaction(shop: Duly, handle: Any):
    shop.on(handle).run_after(60, shop.function("send"), "ada")
    [job] = kit.enqueued(shop, on=handle)
    assert job.cancel()
    assert job.state == State.CANCELED
    handle.rollback()
    assert shop.jobs() == []


@pytest.fixture
def async_shop(shop: Duly) -> Duly:
    note: Any = shop.function("note")

    @shop.action
    async def visit(ctx: AsyncCtx) -> None:
        async def write(number: int) -> None:
            async with shop.aio.transaction() as tx:
                await tx.execute("INSERT INTO notes VALUES (?)", (f"tx {number}",))
                await tx.run(note, f"job of tx {number}")

        await asyncio.gather(write(1), write(2), ctx.run(note, "run"), shop.aio.run(note, "aio"))
        await ctx.call(note, "call")
        assert len(await shop.aio.jobs(state="pending")) == 4

    return shop


VISITED = ["aio", "call", "job of tx 1", "job of tx 2", "run", "tx 1", "tx 2"]


@pytest.mark.spec("N30")
def test_async_actions_do_everything_in_the_transaction_too(
    async_shop: Duly, handle: Any, db: Database
):
    async_shop.on(handle).run(async_shop.function("visit"))
    kit.drain(async_shop, on=handle)
    assert notes(handle) == VISITED
    handle.rollback()
    assert db.notes() == []
    assert not [t for t in threading.enumerate() if t.name.startswith("duly-transaction")]


def test_async_actions_do_so_inside_an_async_test(async_shop: Duly, handle: Any, db: Database):
    async def test() -> None:
        async_shop.on(handle).run(async_shop.function("visit"))
        kit.drain(async_shop, on=handle)
        assert notes(handle) == VISITED
        handle.rollback()

    asyncio.run(asyncio.wait_for(test(), 60))
    assert db.notes() == []


def test_what_must_end_the_test_ends_an_async_one_too(shop: Duly, handle: Any):
    @shop.action
    async def stop(ctx: AsyncCtx) -> None:
        await ctx.run(shop.function("note"), "before")
        pytest.fail("here")

    async def test() -> None:
        shop.on(handle).run(stop)
        kit.drain(shop, on=handle)

    with pytest.raises(pytest.fail.Exception, match="here"):
        asyncio.run(asyncio.wait_for(test(), 60))
    assert len(kit.enqueued(shop, on=handle)) == 1
    handle.rollback()


@on_sqlite
@pytest.mark.parametrize("factory", [bytes, bytearray])
def test_factories_of_a_connection_are_for_the_user_only(shop: Duly, url: str, factory: type):
    seen: list[Any] = []

    @shop.mutation
    def look(tx: Tx) -> None:
        seen.append(tx.execute("SELECT 'text'").scalar())
        seen.append(tx.connection.execute("SELECT 'text'").fetchone())
        assert tx.job(tx.run(shop.function("note"), "noted").id).function == "note"

    with plain(url) as connection:
        connection.text_factory = factory
        connection.row_factory = lambda _, row: list(row)
        shop.on(connection).run(look)
        assert [job.function for job in kit.drain(shop, on=connection)] == ["look", "note"]
        assert [job.result(0) for job in kit.enqueued(shop, on=connection)] == []
        assert seen == ["text", [factory(b"text")]]
        assert connection.text_factory is factory
        connection.rollback()


def test_a_transaction_of_the_app_can_be_drained_in(shop: Duly, db: Database):
    with kit.tx(shop) as tx:
        order: Any = shop.function("order")
        order(tx, "ada")
        ran = kit.drain(shop, on=tx.connection)
        assert [job.function for job in ran] == ["send", "note"]
    assert db.notes() == []


def test_an_app_that_runs_is_not_drained_in_a_transaction(shop: Duly, handle: Any):
    with shop, pytest.raises(InvalidOption, match="stop the app first"):
        kit.drain(shop, on=handle)


def test_a_handle_that_cannot_be_drained_is_refused(shop: Duly, url: str):
    engine = create_async_engine(
        url.replace("postgresql://", "postgresql+asyncpg://").replace(
            "sqlite:", "sqlite+aiosqlite:"
        )
    )
    with pytest.raises(InvalidOption, match="use override"):
        kit.drain(shop, on=engine.connect())
