"""Jobs that were scheduled in a test's transaction run inside it, and vanish with it."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

import duly.testing as kit
from duly import Ctx, Duly, ManualClock, State, Tx
from duly.errors import InvalidOption, JobFailed
from tests.jobs.support import Database


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


def test_a_handle_that_cannot_be_drained_is_refused(shop: Duly, url: str):
    engine = create_async_engine(
        url.replace("postgresql://", "postgresql+asyncpg://").replace(
            "sqlite:", "sqlite+aiosqlite:"
        )
    )
    with pytest.raises(InvalidOption, match="use override"):
        kit.drain(shop, on=engine.connect())
