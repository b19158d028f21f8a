"""`tx.session` in async code: an AsyncSession, in the transaction with everything else."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import MissingGreenlet
from sqlalchemy.ext.asyncio import AsyncAttrs
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, selectinload

import duly.testing as kit
from duly import AsyncTx, Duly, State
from duly.errors import JobFailed, TransactionEnded
from tests.jobs.support import Database, Undo, on_postgres

pytestmark = pytest.mark.spec("N67")


class Base(AsyncAttrs, DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "notes"

    text: Mapped[str] = mapped_column(primary_key=True)
    lines: Mapped[list["Line"]] = relationship()


class Line(Base):
    __tablename__ = "lines"

    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str] = mapped_column(sa.ForeignKey("notes.text"))


@pytest.fixture
def note(app: Duly) -> Any:
    @app.mutation
    async def note(tx: AsyncTx, text: str) -> int:
        tx.session.add(Note(text=text))
        return tx.attempt

    return note


def in_transaction(app: Duly, body: Any) -> None:
    async def run() -> None:
        async with app.aio.transaction() as tx:
            await body(tx)

    asyncio.run(run())


def test_a_body_writes_through_the_orm(app: Duly, db: Database, note: Any, hire: Any):
    @app.mutation
    async def copy(tx: AsyncTx) -> list[str]:
        session = tx.session
        first = (await session.scalars(sa.select(Note))).one()
        first.text = "changed"
        await tx.execute("INSERT INTO notes VALUES ('plain')")
        await session.flush()
        await tx.run(note, "child")
        found = await session.execute(sa.text("SELECT text FROM notes ORDER BY text"))
        return [type(session).__name__, *found.scalars()]

    written = app.run(note, "first")
    hire().work()
    copied = app.run(copy)
    hire().work()

    assert (written.result(), copied.result()) == (1, ["AsyncSession", "changed", "plain"])
    assert db.notes() == ["changed", "child", "plain"]


def test_an_exception_undoes_all_of_it(app: Duly, db: Database, note: Any, hire: Any):
    @app.mutation
    async def fail(tx: AsyncTx) -> None:
        tx.session.add(Note(text="committed"))
        await tx.session.commit()
        tx.session.add(Note(text="pending"))
        await tx.run(note, "child")
        raise ValueError("no")

    job = app.run(fail)
    hire().work()

    with pytest.raises(JobFailed, match="ValueError: no"):
        job.result()
    assert (db.notes(), len(app.jobs())) == ([], 1)


def test_what_cannot_be_flushed_at_the_end_fails_the_body(
    app: Duly, db: Database, note: Any, hire: Any
):
    db.execute("CREATE UNIQUE INDEX once ON notes (text)")
    db.execute("INSERT INTO notes VALUES ('twice')")
    job = app.run(note, "twice")
    hire().work()

    with pytest.raises(JobFailed, match="IntegrityError"):
        job.result()
    assert db.notes() == ["twice"]


def test_a_commit_ends_nothing_and_a_rollback_goes_back_to_it(app: Duly, db: Database):
    async def body(tx: AsyncTx) -> None:
        kept = Note(text="kept")
        tx.session.add(kept)
        await tx.session.commit()
        assert (kept.text, db.notes()) == ("kept", [])
        tx.session.add(Note(text="undone"))
        await tx.session.flush()
        await tx.session.rollback()
        tx.session.add(Note(text="after"))

    in_transaction(app, body)
    assert db.notes() == ["after", "kept"]


def test_savepoints_of_tx_and_the_session_go_together(app: Duly, db: Database):
    async def body(tx: AsyncTx) -> None:
        async with tx.savepoint():
            tx.session.add(Note(text="kept by both"))
            await tx.session.commit()
        with suppress(Undo):
            async with tx.savepoint():
                tx.session.add(Note(text="undone"))
                await tx.session.commit()
                await tx.execute("INSERT INTO notes VALUES ('undone too')")
                raise Undo
        async with tx.session.begin_nested():
            tx.session.add(Note(text="nested"))
        async with tx.savepoint():
            tx.session.add(Note(text="last"))

    in_transaction(app, body)
    assert db.notes() == ["kept by both", "last", "nested"]


def test_errors_can_be_caught_and_rolled_back(app: Duly, db: Database):
    db.execute("CREATE UNIQUE INDEX once ON notes (text)")

    async def body(tx: AsyncTx) -> None:
        tx.session.add(Note(text="kept"))
        await tx.session.commit()
        with pytest.raises(sa.exc.IntegrityError):
            await tx.session.execute(sa.insert(Note).values(text="kept"))
        await tx.session.rollback()

    in_transaction(app, body)
    assert db.notes() == ["kept"]


def test_rows_and_related_objects_are_loaded(app: Duly, db: Database):
    db.execute("CREATE TABLE lines (id int, note text)")

    async def body(tx: AsyncTx) -> None:
        session = tx.session
        session.add(Note(text="one", lines=[Line(id=1), Line(id=2)]))
        await session.flush()
        await session.execute(sa.insert(Note), [{"text": "two"}, {"text": "three"}])
        session.expunge_all()

        one = await session.get(Note, "one")
        assert one is not None
        with pytest.raises(MissingGreenlet):
            len(one.lines)
        assert len(await one.awaitable_attrs.lines) == 2
        chosen = sa.select(Note).options(selectinload(Note.lines)).order_by(Note.text)
        found = await session.scalars(chosen, execution_options={"populate_existing": True})
        assert [(note.text, len(note.lines)) for note in found] == [
            ("one", 2),
            ("three", 0),
            ("two", 0),
        ]
        streamed = await session.stream_scalars(sa.select(Note.text).order_by(Note.text))
        assert [text async for text in streamed] == ["one", "three", "two"]
        assert (await session.execute(sa.select(Note.text))).fetchmany(2) != []
        assert (await session.run_sync(lambda sync: sync.query(Note).count())) == 3
        connection = await session.connection()
        updated = await connection.execute(sa.update(Line).values(note="two"))
        assert updated.rowcount == 2

    in_transaction(app, body)
    assert db.count("lines") == 2


def test_it_is_gone_with_its_transaction(app: Duly):
    async def test() -> None:
        async with app.aio.transaction() as tx:
            used, unused = tx.session, tx
            await used.execute(sa.text("SELECT 1"))
        with pytest.raises(TransactionEnded):
            _ = unused.session
        with pytest.raises((TransactionEnded, sa.exc.ResourceClosedError)):
            await used.execute(sa.text("SELECT 1"))

        async with app.aio.transaction() as tx:
            late = tx.session
        with pytest.raises(TransactionEnded):
            await late.execute(sa.text("SELECT 1"))

    asyncio.run(test())


def test_a_statement_of_the_session_that_is_canceled_rolls_back(app: Duly, db: Database):
    async def body(tx: AsyncTx) -> None:
        tx.session.add(Note(text="never"))
        flushing = asyncio.create_task(tx.session.flush())
        await asyncio.sleep(0)
        flushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flushing

    with pytest.raises(TransactionEnded, match="canceled"):
        in_transaction(app, body)
    assert db.notes() == []


@on_postgres
def test_after_a_conflict_the_body_runs_again(app: Duly, db: Database, clock: Any, hire: Any):
    bodies: list[int] = []

    @app.mutation
    async def note(tx: AsyncTx) -> None:
        bodies.append(tx.attempt)
        tx.session.add(Note(text="once"))
        await tx.session.commit()
        if len(bodies) < 3:
            conflict = "DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END $$"
            await tx.session.execute(sa.text(conflict))

    job = app.run(note)
    worker = hire()
    while not job.state.is_terminal:
        worker.work()
        clock.advance(60)

    assert (job.state, bodies, db.notes()) == (State.SUCCEEDED, [1, 1, 1], ["once"])


def test_one_engine_serves_every_transaction(app: Duly):
    engines: set[Any] = set()

    async def body(tx: AsyncTx) -> None:
        engines.add((await tx.session.connection()).engine.sync_engine)

    for _ in range(3):
        in_transaction(app, body)
    assert len(engines) == 1


@pytest.mark.parametrize("in_loop", [False, True])
def test_drain_runs_a_body_that_uses_it(app: Duly, db: Database, note: Any, in_loop: bool):
    @app.mutation
    async def lazy(tx: AsyncTx) -> None:
        tx.session.add(Note(text="lazy"))
        async with tx.savepoint():
            await tx.session.execute(sa.text("SELECT 1"))

    async def in_async_test() -> None:
        kit.drain(app)

    app.run_many([note.bind("note"), lazy.bind()])
    work: Coroutine[Any, Any, None] = in_async_test()
    if in_loop:
        asyncio.run(work)
    else:
        work.close()
        kit.drain(app)
    assert db.notes() == ["lazy", "note"]


def test_the_test_kit_refuses_what_a_worker_refuses(app: Duly, db: Database):
    """In a test the body may run in the thread of its connection."""
    db.execute("CREATE TABLE lines (id int, note text)")

    @app.mutation
    async def read(tx: AsyncTx) -> int:
        tx.session.add(Note(text="one"))
        await tx.session.flush()
        tx.session.expunge_all()
        one = await tx.session.get_one(Note, "one")
        return len(one.lines)

    job = app.run(read)
    kit.drain(app, raises=False)
    with pytest.raises(JobFailed, match="MissingGreenlet"):
        job.result()
