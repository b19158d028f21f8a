"""Blame: failures of the body, of another transaction and of the database are told apart."""

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duly import Ctx, Duly, ErrorKind, ManualClock, Retry, State, Tx, fault
from duly.errors import (
    NonRetryable,
    QueryTooBroad,
    RetryAfter,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    TransactionEnded,
)
from duly.model.job import LOCK_RETRIES
from duly.store import base
from duly.store.base import Blame
from duly.store.postgres import errors as postgres_errors
from duly.store.sqlite import errors as sqlite_errors
from tests.jobs.support import Database, Hire, make_conflict, on_postgres, raise_state, wait_until

# What a function says --------------------------------------------------------------------------


def postgres_error(sqlstate: str) -> psycopg.Error:
    return psycopg.errors.lookup(sqlstate)("refused")


@pytest.mark.parametrize(
    ("blamed", "sqlstates"),
    [
        (Blame.DATABASE, "08006 25006 25P03 25P04 53100 53200 53300 57P01 57P02 57P03 57P05"),
        (Blame.DATABASE, "58000 58030 XX001 XX002"),
        (Blame.CONFLICT, "40001 40P01"),
        (Blame.LOCK, "55P03"),
        # A limit for one statement, a statement that took too long, an extension's own error.
        (Blame.BODY, "53400 57014 XX000 22012 23505 25P02 42P01"),
    ],
)
def test_what_an_error_of_postgresql_means(blamed: Blame, sqlstates: str):
    found = {s: postgres_errors.blame_one(postgres_error(s)) for s in sqlstates.split()}

    assert found == dict.fromkeys(sqlstates.split(), blamed)


@pytest.mark.parametrize(
    ("blamed", "names"),
    [
        (Blame.DATABASE, "FULL IOERR IOERR_WRITE READONLY READONLY_DBMOVED NOMEM CANTOPEN CORRUPT"),
        (Blame.LOCK, "BUSY BUSY_SNAPSHOT LOCKED"),
        (Blame.BODY, "CONSTRAINT CONSTRAINT_UNIQUE ERROR INTERRUPT"),
    ],
)
def test_what_an_error_of_sqlite_means(blamed: Blame, names: str):
    found: dict[str, Blame] = {}
    for name in names.split():
        error = sqlite3.OperationalError("refused")
        error.sqlite_errorname = f"SQLITE_{name}"
        found[name] = sqlite_errors.blame_one(error)

    assert found == dict.fromkeys(names.split(), blamed)


def test_what_the_stores_own_errors_mean():
    for errors, when_locked in ((postgres_errors, Blame.DATABASE), (sqlite_errors, Blame.CONFLICT)):
        assert errors.blame_one(StoreUnavailable("x")) == when_locked
        assert errors.blame_one(StoreFull("x")) == Blame.DATABASE
        assert errors.blame_one(QueryTooBroad("x")) == Blame.BODY
        assert errors.blame_one(ValueError("x")) == Blame.BODY


def test_an_error_of_the_body_is_blamed_on_what_it_was_raised_from_or_instead_of():
    def blame(error: BaseException, sqlstate: str, *, explicitly: bool) -> Blame:
        try:
            try:
                raise postgres_error(sqlstate)
            except psycopg.Error as cause:
                if explicitly:
                    raise error from cause
                raise error  # noqa: B904
        except Exception as raised:
            return base.blame(raised, postgres_errors.blame_one)

    for explicitly in (True, False):
        assert blame(ValueError(), "53100", explicitly=explicitly) == Blame.DATABASE
        assert blame(ValueError(), "40P01", explicitly=explicitly) == Blame.CONFLICT
        assert blame(ValueError(), "23505", explicitly=explicitly) == Blame.BODY
        # The body has dealt with a lock that was not free, and knows what to make of it.
        assert blame(ValueError(), "55P03", explicitly=explicitly) == Blame.BODY
        # It says itself whether, or when, it should run again.
        assert blame(NonRetryable(), "40P01", explicitly=explicitly) == Blame.BODY
        assert blame(RetryAfter(60), "40P01", explicitly=explicitly) == Blame.BODY


# In a mutation ---------------------------------------------------------------------------------


@pytest.mark.spec("R78")
@on_postgres
@pytest.mark.parametrize("group", [False, True])
def test_trouble_of_the_database_is_not_blamed_on_the_body(app: Duly, hire: Hire, group: bool):
    bad: set[str] = set()

    @app.mutation(group=group)
    def trouble(tx: Tx, sqlstate: str) -> None:
        if sqlstate not in bad:
            bad.add(sqlstate)
            raise_state(tx, sqlstate)

    ours = ["25006", "53100", "53200", "58030", "57P05", "XX001"]
    theirs = ["22012", "53400", "XX000"]
    jobs = {sqlstate: app.run(trouble, sqlstate) for sqlstate in ours + theirs}
    # Of a group one at most is met; alone each of the others is.
    for _ in range(2 if group else 1):
        hire(concurrency=20).work()

    states = {sqlstate: job.state for sqlstate, job in jobs.items()}
    if group:
        assert State.FAILED not in [states[sqlstate] for sqlstate in ours]
    else:
        assert states == dict.fromkeys(ours, State.PENDING) | dict.fromkeys(theirs, State.FAILED)
        assert all(jobs[sqlstate].record.system_retries == 1 for sqlstate in ours)


def wait_until_ended(db: Database, pid: int) -> None:
    look = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}"
    wait_until(lambda: db.scalar(look) == 0, "the server has ended the connection")


def idle_for_too_long(db: Database, tx: Tx) -> None:
    tx.execute("SET LOCAL idle_in_transaction_session_timeout = 20")
    wait_until_ended(db, tx.execute("SELECT pg_backend_pid()").scalar())
    tx.execute("SELECT 1")


def in_transaction_for_too_long(db: Database, tx: Tx) -> None:
    tx.execute("SET LOCAL transaction_timeout = 20")
    tx.execute("SELECT pg_sleep(10)")


def through_sqlalchemy(db: Database, tx: Tx) -> None:
    from sqlalchemy import text

    tx.session.execute(text("SET LOCAL idle_in_transaction_session_timeout = 20"))
    wait_until_ended(db, tx.session.execute(text("SELECT pg_backend_pid()")).scalar_one())
    tx.session.execute(text("SELECT 1"))


def with_an_error_of_its_own(db: Database, tx: Tx) -> None:
    try:
        idle_for_too_long(db, tx)
    except psycopg.Error as error:
        raise NonRetryable("a word of the body's") from error


def without_a_trace_of_it(db: Database, tx: Tx) -> None:
    lost = False
    try:
        idle_for_too_long(db, tx)
    except psycopg.Error:
        lost = True
    if lost:
        raise ValueError("not raised from anything")


def as_if_nothing_had_happened(db: Database, tx: Tx) -> None:
    with suppress(psycopg.Error):
        idle_for_too_long(db, tx)


@pytest.mark.spec("R78")
@on_postgres
@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize(
    "end_the_connection",
    [
        idle_for_too_long,
        in_transaction_for_too_long,
        through_sqlalchemy,
        with_an_error_of_its_own,
        without_a_trace_of_it,
        as_if_nothing_had_happened,
    ],
    ids=lambda each: each.__name__,
)
def test_a_connection_that_the_server_ends_is_lost_whatever_the_body_makes_of_it(
    app: Duly,
    db: Database,
    clock: ManualClock,
    hire: Hire,
    end_the_connection: Callable[[Database, Tx], None],
    group: bool,
):
    version = db.scalar("SELECT current_setting('server_version_num')::int")
    if end_the_connection is in_transaction_for_too_long and version < 170000:
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    app.store.mutation_lanes = 1
    bodies: list[bool] = []

    @app.mutation(group=group)
    def note(tx: Tx, text: str, ends: bool) -> None:
        tx.execute("INSERT INTO notes VALUES (?)", (text,))
        if ends:
            bodies.append(ends)
        # In a group once more, alone: only then it is judged.
        if ends and len(bodies) <= 1 + group:
            end_the_connection(db, tx)

    jobs = [app.run(note, "a", False), app.run(note, "b", True), app.run(note, "c", False)]
    hire().work()
    assert [job.state for job in jobs] == [State.SUCCEEDED, State.PENDING, State.SUCCEEDED]
    assert (jobs[1].attempt, jobs[1].record.system_retries) == (0, 1)

    clock.advance(1)
    hire().work()
    assert jobs[1].state == State.SUCCEEDED
    assert db.notes() == ["a", "b", "c"]


@on_postgres
def test_a_body_that_closes_its_connection_has_ended_its_transaction(app: Duly, hire: Hire):
    @app.mutation
    def close(tx: Tx, goes_on: bool) -> None:
        tx.connection.close()
        if goes_on:
            tx.execute("SELECT 1")

    jobs = [app.run(close, goes_on) for goes_on in (False, True)]
    hire().work()

    for job in jobs:
        assert job.state == State.FAILED
        assert job.error is not None
        assert TransactionEnded.__name__ in job.error.message


@on_postgres
def test_a_store_leaves_a_server_that_has_become_read_only(app: Duly):
    """After a failover a name may lead to another server, but not for connections that live on."""
    with app.transaction() as tx:
        tx.execute("SET default_transaction_read_only = on")

    @app.action
    def anything(ctx: Ctx) -> None: ...

    with pytest.raises(StoreReadOnly):
        app.run(anything)
    app.run(anything)


# A lock that is not free -----------------------------------------------------------------------


def ask_for_a_lock(db: Database, tx: Tx, folder: Path) -> None:
    """In vain: another transaction holds it, on SQLite of another file."""
    if db.is_sqlite:
        make_conflict(db, tx, folder)
    else:
        tx.execute("SELECT 1 FROM notes FOR UPDATE NOWAIT")


@pytest.fixture
def locked(db: Database) -> Any:
    """A row that another transaction has locked."""
    db.execute("INSERT INTO notes VALUES ('locked')")
    holder = db.connect()
    if not db.is_sqlite:
        holder.execute("BEGIN")
        holder.execute("SELECT 1 FROM notes FOR UPDATE")
    return holder


@pytest.mark.spec("R79")
@pytest.mark.usefixtures("locked")
@pytest.mark.parametrize("group", [False, True])
def test_a_body_that_will_not_wait_for_a_lock_is_run_again_ten_times_at_most(
    app: Duly, db: Database, clock: ManualClock, hire: Hire, tmp_path: Path, group: bool
):
    bodies = 0

    @app.mutation(group=group)
    def hurry(tx: Tx) -> None:
        nonlocal bodies
        bodies += 1
        ask_for_a_lock(db, tx, tmp_path)

    job = app.run(hurry)
    db.execute("UPDATE @jobs SET system_retries = 50")
    for runs in range(1, LOCK_RETRIES + 2):
        # A new worker each time: the count is in the database.
        hire().work()
        assert bodies == runs
        if runs <= LOCK_RETRIES:
            assert (job.state, job.attempt) == (State.PENDING, 0)
            clock.advance(60)

    assert job.state == State.FAILED
    assert job.error is not None
    assert job.error.kind == ErrorKind.USER
    assert job.error.message.endswith("(a lock was not available in 11 runs)")
    assert job.error.traceback is not None


@pytest.mark.spec("R79")
def test_a_body_gets_its_lock_when_it_is_free(
    app: Duly, db: Database, clock: ManualClock, hire: Hire, tmp_path: Path, locked: Any
):
    free = False

    @app.mutation
    def hurry(tx: Tx) -> str:
        if not db.is_sqlite or not free:
            ask_for_a_lock(db, tx, tmp_path)
        return "done"

    job = app.run(hurry)
    for _ in range(LOCK_RETRIES):
        hire().work()
        clock.advance(60)
    assert job.state == State.PENDING

    free = True
    if not db.is_sqlite:
        locked.execute("ROLLBACK")
    hire().work()
    assert job.result(0) == "done"


@pytest.mark.usefixtures("locked")
def test_after_that_its_own_retries_count(
    app: Duly, db: Database, clock: ManualClock, hire: Hire, tmp_path: Path
):
    bodies = 0

    @app.mutation(retry=Retry(attempts=2))
    def hurry(tx: Tx) -> None:
        nonlocal bodies
        bodies += 1
        ask_for_a_lock(db, tx, tmp_path)

    job = app.run(hurry)
    for _ in range(LOCK_RETRIES + 2):
        hire().work()
        clock.advance(3600)

    assert (job.state, job.attempt, bodies) == (State.FAILED, 2, LOCK_RETRIES + 2)


@on_postgres
@pytest.mark.spec("R79")
def test_a_lock_that_duly_itself_does_not_get_in_time_counts_as_a_conflict(
    app: Duly, db: Database, clock: ManualClock, hire: Hire
):
    """`lock_timeout` may be set for the whole database."""

    @app.mutation
    def note(tx: Tx) -> None:
        tx.execute("SET LOCAL lock_timeout = 10")

    job = app.run(note)
    db.execute("UPDATE @jobs SET lock_retries = 10")
    holder = db.connect()
    worker = hire()

    def lock(point: str) -> None:
        if point == "mutation.body_done":
            holder.execute("BEGIN")
            holder.execute(db.text("SELECT 1 FROM @jobs FOR UPDATE"))

    with fault.inject(lock):
        worker.start_due()
        worker.wait_for_bodies()
    holder.execute("ROLLBACK")
    worker.settle()

    assert (job.state, job.record.system_retries) == (State.PENDING, 1)
