"""`tx.session`: the ORM's work, the jobs it schedules and the finish commit together."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from duly import Ctx, Duly, State, Tx, fault
from duly.errors import JobFailed, MissingExtra, StoreUnavailable, TransactionEnded
from tests.jobs.support import Database, Undo, on_postgres, undone
from tests.loopback import sitecustomize as loopback

pytestmark = pytest.mark.spec("N5")


class Base(DeclarativeBase):
    pass


class Note(Base):
    __tablename__ = "notes"

    text: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture
def note(app: Duly) -> Any:
    @app.mutation
    def note(tx: Tx, text: str) -> int:
        tx.session.add(Note(text=text))
        return tx.attempt

    return note


def test_a_body_writes_through_the_orm(app: Duly, db: Database, note, hire):
    @app.mutation
    def copy(tx: Tx) -> list[str]:
        first = tx.session.scalars(sa.select(Note)).one()
        first.text = "changed"
        tx.run(note, "scheduled")
        return [type(tx.session).__name__, first.text]

    written = app.run(note, "first")
    hire().work()
    copied = app.run(copy)
    hire().work()

    assert (written.result(), copied.result()) == (1, ["Session", "changed"])
    assert db.notes() == ["changed", "scheduled"]
    assert [job.id for job in copied.children()] == [app.jobs(function=note)[0].id]


def test_an_exception_undoes_all_of_it(app: Duly, db: Database, note, hire):
    @app.mutation
    def fail(tx: Tx) -> None:
        tx.session.add(Note(text="flushed"))
        tx.session.commit()
        tx.session.add(Note(text="pending"))
        tx.run(note, "child")
        raise ValueError("no")

    job = app.run(fail)
    hire().work()

    with pytest.raises(JobFailed, match="ValueError: no"):
        job.result()
    assert (db.notes(), len(app.jobs())) == ([], 1)


def test_what_cannot_be_flushed_at_the_end_fails_the_body(app: Duly, db: Database, note, hire):
    db.execute("CREATE UNIQUE INDEX once ON notes (text)")
    db.execute("INSERT INTO notes VALUES ('twice')")
    job = app.run(note, "twice")
    hire().work()

    with pytest.raises(JobFailed, match="IntegrityError"):
        job.result()
    assert db.notes() == ["twice"]


def test_a_commit_ends_nothing_and_a_rollback_goes_back_to_it(app: Duly, db: Database):
    with app.transaction() as tx:
        tx.session.add(Note(text="kept"))
        tx.session.commit()
        assert db.notes() == []
        tx.session.add(Note(text="undone"))
        tx.session.flush()
        tx.session.rollback()
        tx.session.add(Note(text="after"))

    assert db.notes() == ["after", "kept"]


def test_the_transaction_is_rolled_back_with_what_the_session_committed(app: Duly, db: Database):
    with undone(), app.transaction() as tx:
        tx.session.add(Note(text="never"))
        tx.session.commit()
        raise Undo

    assert db.notes() == []


def test_errors_can_be_caught_and_rolled_back(app: Duly, db: Database):
    db.execute("CREATE UNIQUE INDEX once ON notes (text)")
    with app.transaction() as tx:
        tx.session.add(Note(text="kept"))
        tx.session.commit()
        tx.session.execute(sa.insert(Note).values(text="undone"))
        with pytest.raises(sa.exc.IntegrityError):
            tx.session.execute(sa.insert(Note).values(text="kept"))
        tx.session.rollback()

    assert db.notes() == ["kept"]


def test_savepoints_of_tx_and_the_session_go_together(app: Duly, db: Database):
    with app.transaction() as tx:
        with tx.savepoint():
            tx.session.add(Note(text="kept by both"))
            tx.session.commit()
        with undone(), tx.savepoint():
            tx.session.add(Note(text="undone"))
            tx.session.commit()
            tx.execute("INSERT INTO notes VALUES ('undone too')")
            raise Undo
        with tx.session.begin_nested():
            tx.session.add(Note(text="nested"))
        with tx.savepoint():
            tx.session.add(Note(text="last"))

    assert db.notes() == ["kept by both", "last", "nested"]


def test_a_session_first_used_in_a_savepoint_that_is_undone_goes_on(app: Duly, db: Database):
    with app.transaction() as tx:
        with undone(), tx.savepoint():
            tx.session.add(Note(text="undone"))
            raise Undo
        tx.session.add(Note(text="kept"))

    assert db.notes() == ["kept"]


def test_actions_call_mutations_that_use_it(app: Duly, db: Database, note, hire):
    @app.action
    def act(ctx: Ctx) -> int:
        attempt: int = ctx.call(note, "called")
        return attempt

    job = app.run(act)
    hire().work()

    assert (job.result(), db.notes()) == (1, ["called"])


def test_a_body_that_uses_it_shares_no_commit(app: Duly, db: Database, hire):
    groups: list[bool] = []

    @app.mutation(group=True)
    def note(tx: Tx, text: str) -> None:
        session = tx.session
        groups.append(tx._shared)
        session.add(Note(text=text))

    jobs = app.run_many(note.bind(str(n)) for n in range(5))
    hire().work()

    assert {job.state for job in jobs} == {State.SUCCEEDED}
    assert groups == [False] * 5
    assert len(db.notes()) == 5


def test_it_is_gone_with_its_transaction(app: Duly, db: Database):
    with app.transaction() as tx:
        session = tx.session
        assert tx.session is session
    with pytest.raises(TransactionEnded):
        _ = tx.session
    with pytest.raises(TransactionEnded), tx.savepoint():
        pass
    with pytest.raises(sa.exc.ResourceClosedError):
        session.execute(sa.text("SELECT 1"))


def test_one_engine_serves_every_transaction(app: Duly):
    engines: set[Any] = set()
    for _ in range(3):
        with app.transaction() as tx:
            bind: Any = tx.session.bind
            engines.add(bind.engine)

    assert len(engines) == 1


def test_no_way_through_sqlalchemy_ends_the_transaction(app: Duly, db: Database):
    with undone(), app.transaction() as tx:
        tx.session.add(Note(text="never"))
        tx.session.flush()
        connection = tx.session.connection()
        connection.connection.dbapi_connection.commit()  # type: ignore[union-attr]
        connection.connection.close()
        tx.execute("INSERT INTO notes VALUES ('never')")
        raise Undo

    assert db.notes() == []


def test_without_sqlalchemy_it_says_so(app: Duly, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    monkeypatch.setitem(sys.modules, "sqlalchemy.orm", None)
    with (
        app.transaction() as tx,
        pytest.raises(MissingExtra, match="needs SQLAlchemy: pip install sqlalchemy"),
    ):
        _ = tx.session


# Exactly once ------------------------------------------------------------------------------------


def conflict_inside(session: Session, folder: Path) -> None:
    """What SQLAlchemy makes of a conflict."""
    if session.get_bind().dialect.name == "postgresql":
        raise_40001 = "DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END $$"
        session.execute(sa.text(raise_40001))
    other = sa.create_engine(
        f"sqlite:///{folder}/other.db", connect_args={"timeout": 0}, poolclass=sa.NullPool
    )
    with closing(sqlite3.connect(folder / "other.db", isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        with closing(other.connect()) as waiter:
            waiter.execute(sa.text("CREATE TABLE locked (x int)"))


def test_after_a_conflict_the_body_runs_again(app: Duly, db: Database, clock, hire, tmp_path: Path):
    bodies: list[int] = []

    @app.mutation
    def note(tx: Tx) -> None:
        bodies.append(tx.attempt)
        tx.session.add(Note(text="once"))
        tx.session.commit()
        if len(bodies) < 3:
            conflict_inside(tx.session, tmp_path)

    job = app.run(note)
    worker = hire()
    while not job.state.is_terminal:
        worker.work()
        clock.advance(60)

    assert (job.state, bodies, db.notes()) == (State.SUCCEEDED, [1, 1, 1], ["once"])


@on_postgres
def test_after_a_commit_that_fails_the_body_runs_again(app: Duly, db: Database, clock, note, hire):
    db.execute("CREATE SEQUENCE commits")
    db.execute(
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('commits') < 3 THEN
                RAISE EXCEPTION 'conflict' USING ERRCODE = '40001';
            END IF;
            RETURN NULL; END $$"""
    )
    db.execute(
        "CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON notes DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    job = app.run(note, "once")
    worker = hire()
    while not job.state.is_terminal:
        worker.work()
        clock.advance(60)

    assert (job.state, db.notes(), db.scalar("SELECT nextval('commits')")) == (
        "succeeded",
        ["once"],
        4,
    )


def test_what_fails_before_the_commit_leaves_nothing_and_runs_again(
    app: Duly, db: Database, clock, note, hire
):
    failures = iter([StoreUnavailable("lost"), StoreUnavailable("lost")])

    def fail(point: str) -> None:
        if point == "mutation.finished" and (error := next(failures, None)):
            assert db.notes() == []
            raise error

    job = app.run(note, "once")
    worker = hire()
    with fault.inject(fail):
        while not job.state.is_terminal:
            worker.work()
            clock.advance(7200)

    assert (job.state, db.notes()) == (State.SUCCEEDED, ["once"])


WORKER = """
import sys
from duly import Duly, Tx
from tests.callers.test_session import Note
app = Duly(sys.argv[1])
@app.mutation
def note(tx: Tx, text: str) -> None:
    tx.session.add(Note(text=text))
job = app.jobs()[0] if app.jobs() else app.run(note, "once")
app.start(beat_every=0.05)
job.result(timeout=60)
app.stop()
app.close()
"""


@pytest.mark.parametrize(
    "point",
    [
        "mutation.body_done",
        pytest.param("mutation.finished", marks=pytest.mark.long),
        pytest.param("mutation.committed", marks=pytest.mark.long("postgres")),
    ],
)
def test_a_worker_that_is_killed_leaves_it_done_once(
    app: Duly, db: Database, url: str, point: str, tmp_path: Path
):
    root = Path(__file__).parents[2]
    paths = [loopback.HERE, str(root), str(root / "src")]
    environment = {"PYTHONPATH": os.pathsep.join(paths), "PATH": os.environ["PATH"]}
    script = tmp_path / "worker.py"
    script.write_text(WORKER, encoding="utf-8")

    def work(**armed: str) -> int:
        command = [sys.executable, str(script), url]
        return subprocess.run(command, env=environment | armed, timeout=60, check=False).returncode

    assert work(DULY_FAULT=f"{point}:1") == -signal.SIGKILL
    assert db.notes() == (["once"] if point == "mutation.committed" else [])
    assert work() == 0
    assert db.notes() == ["once"]
    assert [job.state for job in app.jobs()] == [State.SUCCEEDED]
