"""Many jobs at once: all or none, in one statement, and none spoils another."""

import asyncio
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest

from duly import Ctx, Duly, ErrorKind, State, Tx, fault
from duly.errors import (
    InvalidArgument,
    InvalidFunction,
    QueryTooBroad,
    StoreError,
    UnknownFunction,
)
from tests.jobs.support import (
    Database,
    Hire,
    in_thread,
    on_sqlite,
)


@pytest.fixture
def note(app: Duly) -> Any:
    @app.mutation
    def note(tx: Tx, text: str) -> None:
        tx.execute("INSERT INTO notes VALUES (?)", (text,))

    return note


@pytest.mark.spec("N14")
def test_ten_thousand_jobs_are_one_write(app: Duly, db: Database, note: Any, tmp_path: Path):
    app.run(note, "the first write makes the log").cancel()
    before = _commits(tmp_path) if db.is_sqlite else 0
    jobs = app.run_many(note.bind(str(n)) for n in range(10_000))

    assert len({job.id for job in jobs}) == 10_000
    assert [job.id for job in jobs] == sorted(job.id for job in jobs)
    assert db.count("@jobs") == 10_000
    assert db.scalar("SELECT args FROM @jobs WHERE id = ?", jobs[777].id) == '{"text":"777"}'
    if db.is_sqlite:
        assert _commits(tmp_path) == before + 1
    else:
        # The same transaction, and the same command inside it.
        (written,) = db.execute("SELECT DISTINCT xmin::text, cmin::text FROM @jobs")
        assert written[1] == "0"


def _commits(folder: Path) -> int:
    """How many transactions SQLite's write-ahead log holds: frames that carry a database size."""
    log = (folder / "duly.db-wal").read_bytes()
    page = struct.unpack_from(">I", log, 8)[0]
    frames = range(32, len(log), page + 24)
    salt = log[16:24]
    return sum(1 for at in frames if log[at + 8 : at + 16] == salt and any(log[at + 4 : at + 8]))


def test_bulk_calls_take_the_options_of_each_function(app: Duly, note: Any):
    @app.action(queue="mail")
    def send(ctx: Ctx) -> None: ...

    jobs = app.run_many([note.using(priority=9).bind("x"), send.bind(), note.bind(text="y")])

    assert [(j.record.function, j.record.queue, j.record.priority) for j in jobs] == [
        ("note", "default", 9),
        ("send", "mail", 5),
        ("note", "default", 5),
    ]


def test_no_calls_are_no_jobs(app: Duly, db: Database):
    assert app.run_many([]) == []
    assert app.run_many(iter(())) == []
    assert db.count("@jobs") == 0


@pytest.mark.spec("N14")
def test_one_bad_call_among_many_stores_none(app: Duly, db: Database, note: Any):
    other = Duly("sqlite:///:memory:")

    @other.action
    def foreign(ctx: Ctx) -> None: ...

    with pytest.raises(InvalidArgument):
        app.run_many(note.bind(text) for text in ["a", "b", 3, "d"])
    with pytest.raises(UnknownFunction):
        app.run_many([note.bind("a"), foreign.bind()])
    with pytest.raises(InvalidFunction, match="bind"):
        app.run_many([note.bind("a"), note])
    other.close()

    assert db.count("@jobs") == 0


# What the database itself refuses


def refuse(db: Database, table: str, condition: str) -> None:
    """Let the database refuse some rows, as a trigger or constraint of the user's might."""
    if db.is_sqlite:
        db.execute(
            f"CREATE TRIGGER refuse BEFORE INSERT ON {table} WHEN {condition}"
            " BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
    else:
        db.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN IF {condition} THEN RAISE EXCEPTION 'refused'; END IF; RETURN NEW; END $$"
        )
        db.execute(
            f"CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()"
        )


@pytest.mark.spec("N36")
def test_an_enqueue_that_is_refused_spares_those_it_shares_a_commit_with(
    app: Duly, db: Database, note: Any
):
    refuse(db, "@jobs", "NEW.owner = 'poison'")
    poison = note.using(owner="poison")
    holder = db.connect()
    if db.is_sqlite:
        holder.execute("BEGIN IMMEDIATE")
    else:
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE duly.jobs IN SHARE MODE")
    # All of these wait for the lock; the first writes alone, the others together.
    with (
        in_thread(lambda: app.run(note, "first")) as first,
        in_thread(lambda: app.run(note, "second")) as second,
        in_thread(lambda: app.run(poison, "third")) as third,
        in_thread(lambda: app.run_many([note.bind("fourth"), poison.bind("fourth")])) as fourth,
        in_thread(lambda: app.run(note, "fifth")) as fifth,
    ):
        holder.execute("ROLLBACK")
        kept = [first(), second(), fifth()]
        for refused in (third, fourth):
            with pytest.raises(StoreError, match="refused"):
                refused()

    assert sorted(job.id for job in app.jobs()) == sorted(job.id for job in kept)
    assert db.count("@jobs") == 3


@pytest.mark.spec("N36")
def test_an_enqueue_that_is_refused_spares_those_that_are_awaited_with_it(
    app: Duly, db: Database, note: Any
):
    refuse(db, "@jobs", "NEW.owner = 'poison'")
    poison = note.using(owner="poison")

    async def scenario() -> list[Any]:
        calls = [app.aio.run(each, "text") for each in (note, poison, note, poison, note)]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    first, second, third, fourth, fifth = asyncio.run(scenario())

    assert [type(refused) for refused in (second, fourth)] == [StoreError] * 2
    assert sorted(job.id for job in app.jobs()) == sorted(job.id for job in (first, third, fifth))


@pytest.mark.spec("N36", "N18")
def test_an_end_that_cannot_be_stored_spares_its_batch(app: Duly, db: Database, hire: Hire):
    @app.action
    def act(ctx: Ctx, n: int) -> str:
        return "poison" if n in (3, 4, 11) else f"fine {n}"

    jobs = [app.run(act, n) for n in range(16)]
    worker = hire(concurrency=20)
    refuse(db, "@history", "NEW.result = '\"poison\"'")
    worker.start_due()
    worker.wait_for_bodies()
    # All sixteen ends are written in this one pass.
    worker.settle()

    for n, job in enumerate(jobs):
        if n in (3, 4, 11):
            assert job.state == State.FAILED
            assert job.error is not None
            assert job.error.kind == ErrorKind.UNSTORABLE_RESULT
        else:
            assert job.result(0) == f"fine {n}"
    assert worker.worker.idle


@pytest.mark.spec("N36")
@pytest.mark.parametrize("error", [ValueError, OverflowError, UnicodeEncodeError, StoreError])
def test_whatever_goes_wrong_with_one_row_the_rest_of_the_batch_is_stored(
    app: Duly, hire: Hire, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
):
    """Even errors that the driver raises before the database sees the row."""

    @app.action
    def act(ctx: Ctx, n: int) -> int:
        return n

    jobs = [app.run(act, n) for n in range(5)]
    worker = hire()
    exchange = app.store.exchange

    def refuse_the_third(settlements: Any, request: Any, now: int) -> Any:
        if any(getattr(s, "result", None) == "2" for s in settlements):
            raised = error("utf-8", "x", 0, 1, "no") if error is UnicodeEncodeError else error("no")
            raise raised from sqlite3.DataError("string or blob too big")
        return exchange(settlements, request, now)

    monkeypatch.setattr(app.store, "exchange", refuse_the_third)
    worker.work()

    assert [job.state for job in jobs] == ["succeeded", "succeeded", "failed"] + ["succeeded"] * 2
    assert jobs[2].error is not None
    assert jobs[2].error.kind == ErrorKind.UNSTORABLE_RESULT


@pytest.mark.spec("N36")
def test_trouble_of_the_database_falsifies_no_end(
    app: Duly, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    @app.action
    def act(ctx: Ctx) -> str:
        return "done"

    job = app.run(act)
    worker = hire()
    exchange = app.store.exchange
    troubles = [QueryTooBroad("canceling statement due to statement timeout")] * 5

    def be_in_trouble(settlements: Any, request: Any, now: int) -> Any:
        if settlements and troubles:
            raise troubles.pop()
        return exchange(settlements, request, now)

    monkeypatch.setattr(app.store, "exchange", be_in_trouble)
    worker.work()

    assert not troubles
    assert job.result(0) == "done"


@pytest.mark.spec("N36")
def test_a_mutation_whose_end_is_refused_fails_alone(
    app: Duly, db: Database, note: Any, hire: Hire
):
    @app.mutation
    def poison(tx: Tx) -> str:
        tx.execute("INSERT INTO notes VALUES ('poison')")
        return "poison"

    refuse(db, "@history", "NEW.result = '\"poison\"'")
    good = [app.run(note, "1"), app.run(note, "2")]
    bad = app.run(poison)
    good.append(app.run(note, "3"))
    worker = hire()
    with fault.inject(lambda point: None):
        worker.work()

    assert [job.state for job in good] == [State.SUCCEEDED] * 3
    assert bad.state == State.FAILED
    assert db.notes() == ["1", "2", "3"]


@pytest.mark.spec("N36")
@pytest.mark.parametrize(
    "args", ["not json", "[1, 2]", '{"n": "two"}', "{}", "", '{"n": 1, "m": 2}']
)
def test_arguments_that_cannot_be_read_hold_only_their_own_job(
    app: Duly, db: Database, hire: Hire, args: str
):
    @app.action
    def act(ctx: Ctx, n: int) -> int:
        return n

    @app.mutation
    def mutate(tx: Tx, n: int) -> int:
        return n

    jobs = [app.run(function, n) for n in range(4) for function in (act, mutate)]
    for job in jobs[2:4]:
        db.execute("UPDATE @jobs SET args = ? WHERE id = ?", args, job.id)
    hire().work()

    assert [job.result(0) for job in jobs[:2] + jobs[4:]] == [0, 0, 2, 2, 3, 3]
    for job in jobs[2:4]:
        assert (job.state, job.record.hold) == (State.PENDING, "signature")
        assert job.error is not None
    assert [(held.function, held.count) for held in app.held()] == [("act", 1), ("mutate", 1)]


@pytest.mark.spec("N36")
@on_sqlite
def test_a_damaged_row_holds_up_nobody_else(app: Duly, db: Database, hire: Hire):
    """PostgreSQL refuses to store it; in an SQLite file anything can be found."""

    @app.action
    def act(ctx: Ctx, n: int) -> int:
        return n

    jobs = [app.run(act, n) for n in range(5)]
    damaged = jobs.pop(2)
    db.execute("UPDATE @jobs SET args = CAST(x'7bff7d' AS TEXT) WHERE id = ?", damaged.id)
    worker = hire()
    with pytest.raises(StoreError, match="Could not decode"):
        worker.start_due()
    worker.work()

    assert [job.result(0) for job in jobs] == [0, 1, 3, 4]
    assert (damaged.state, damaged.record.hold) == (State.PENDING, "signature")
    assert len(app.jobs()) == 5
    assert damaged.cancel() is True


@pytest.mark.spec("N36")
def test_every_text_that_json_can_hold_arrives_unchanged(app: Duly, hire: Hire):
    @app.action
    def echo(ctx: Ctx, text: str) -> str:
        return text

    @app.mutation
    def echo_in_mutation(tx: Tx, text: str) -> str:
        return text

    texts = ["nul \0 inside", "\\u0000", "😀", "\u2028", "\ufeff", "\x7f\x1b", "x" * 900_000]
    jobs = [app.run(echo, text) for text in texts]
    jobs += [app.run(echo_in_mutation, text=text) for text in texts]
    jobs += app.run_many(echo.bind(text) for text in texts)
    hire().work()

    assert [job.result(0) for job in jobs] == texts * 3
