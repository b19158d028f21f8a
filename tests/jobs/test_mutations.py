"""A mutation is one transaction, exactly once, whatever happens around it."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from duly import Duly, ErrorKind, ManualClock, Retry, State, Tx, fault
from duly.errors import StoreUnavailable, TransactionEnded
from duly.runtime import teams
from tests.jobs.child import make_app, run_until_killed
from tests.jobs.support import (
    PATIENCE,
    Database,
    Gate,
    Hire,
    ManualWorker,
    in_thread,
    lose_patience,
    on_postgres,
    on_sqlite,
    prepare,
    raise_state,
    rescue_the_dead,
    state_of,
    wait_until,
)
from tests.levels import at_every_level


@pytest.fixture
def note(app: Duly) -> Any:
    @app.mutation
    def note(tx: Tx, text: str) -> str:
        tx.execute("INSERT INTO notes VALUES (?)", (text,))
        return text

    return note


@pytest.fixture
def middle_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every random delay comes out in the middle of its range."""
    monkeypatch.setattr("duly.runtime.outcomes.random.random", lambda: 0.5)


@pytest.mark.spec("R75")
@at_every_level
def test_effects_children_and_success_become_visible_together(
    app: Duly, db: Database, note: Any, hire: Hire
):
    seen: list[tuple[int, str, int]] = []

    @app.mutation
    def plan(tx: Tx) -> None:
        tx.execute("INSERT INTO notes VALUES ('effect')")
        tx.run_after(60, note, "child")

    job = app.run(plan)
    worker = hire()

    def look(point: str) -> None:
        if point in ("mutation.body_done", "mutation.finished", "mutation.committed"):
            children = db.scalar("SELECT count(*) FROM @jobs WHERE function = 'note'")
            state = db.scalar("SELECT state FROM @all_jobs WHERE function = 'plan'")
            seen.append((len(db.notes()), state, children))

    with fault.inject(look):
        worker.work()

    assert seen == [(0, "running", 0), (0, "running", 0), (1, job.state, 1)]
    assert job.state == State.SUCCEEDED


@pytest.mark.spec("R75")
def test_a_mutation_whose_job_was_taken_away_leaves_nothing(
    app: Duly, db: Database, note: Any, hire: Hire
):
    job = app.run(note, "never")
    worker = hire()

    def cancel_after_claim(point: str) -> None:
        if point == "worker.claimed":
            assert app.cancel(job) is True

    with fault.inject(cancel_after_claim):
        worker.start_due()
    worker.work()

    assert job.state == State.CANCELED
    assert db.notes() == []
    assert worker.worker.idle


@pytest.mark.spec("R75", "R76")
@on_postgres
def test_the_late_commit_of_an_attempt_that_was_given_up_changes_nothing(
    app: Duly, db: Database, hire: Hire
):
    """Its worker was taken for dead, and another one runs the job again.

    On SQLite the body holds the lock that the rescue would need.
    """
    gates = [Gate(), Gate()]
    bodies: list[str] = []

    @app.mutation
    def note(tx: Tx) -> str:
        mine = f"body {len(bodies)}"
        bodies.append(mine)
        tx.execute("INSERT INTO notes VALUES (?)", (mine,))
        gates[len(bodies) - 1].pass_through()
        return mine

    job = app.run(note)
    silent, living = hire(), hire()
    silent.start_due()
    gates[0].wait_for_one()
    silent.fall_silent()
    rescue_the_dead(living)
    living.start_due()
    gates[1].wait_for_one()

    gates[0].open()
    silent.wait_for_bodies()
    assert (state_of(job), db.notes()) == (State.RUNNING, [])
    gates[1].open()
    living.work()

    assert job.result(0) == "body 1"
    assert db.notes() == ["body 1"]


# Killed processes


@pytest.fixture
def killable(url: str, tmp_path: Path) -> Iterator[Duly]:
    """An app with the machine's clock, for workers in their own processes."""
    app = prepare(make_app(url, tmp_path / "marks"))
    yield app
    app.close()


def _marks(tmp_path: Path) -> list[str]:
    return (tmp_path / "marks").read_text().split()


def _finish_in_this_process(app: Duly) -> None:
    worker = ManualWorker(app)
    rescue_the_dead(worker)
    worker.work()
    worker.stop()


@pytest.mark.spec("R76", "N66")
@pytest.mark.parametrize("name", ["note", "note_async"])
def test_a_mutation_killed_before_its_commit_runs_again(
    killable: Duly, url: str, tmp_path: Path, name: str
):
    job = killable.run(killable.function(name), "text")
    run_until_killed(url, tmp_path / "marks", "mutation.finished:1")
    assert state_of(job) == State.RUNNING

    _finish_in_this_process(killable)

    assert job.state == State.SUCCEEDED
    assert _marks(tmp_path) == [name, name]
    assert len(job.children()) == 1
    with killable.transaction() as tx:
        assert tx.execute("SELECT text FROM notes").all() == [("text",)]


@pytest.mark.spec("R76", "N66")
@pytest.mark.parametrize("name", ["note", "note_async"])
def test_a_mutation_killed_after_its_commit_never_runs_again(
    killable: Duly, url: str, tmp_path: Path, name: str
):
    job = killable.run(killable.function(name), "text")
    run_until_killed(url, tmp_path / "marks", "mutation.committed:1")
    assert job.state == State.SUCCEEDED

    _finish_in_this_process(killable)

    assert _marks(tmp_path) == [name]
    assert len(job.children()) == 1
    with killable.transaction() as tx:
        assert tx.execute("SELECT text FROM notes").all() == [("text",)]


@pytest.mark.spec("R81", "N18")
def test_an_action_killed_in_its_body_is_lost_and_not_repeated(
    killable: Duly, url: str, tmp_path: Path
):
    job = killable.run(killable.function("die"))
    run_until_killed(url, tmp_path / "marks")

    _finish_in_this_process(killable)

    assert job.state == State.FAILED
    assert job.error is not None
    assert job.error.kind == ErrorKind.WORKER_LOST
    assert _marks(tmp_path) == ["die"]


@pytest.mark.spec("R81", "R179")
def test_an_action_that_asked_for_retries_survives_its_worker(
    killable: Duly, url: str, tmp_path: Path
):
    job = killable.run(killable.function("die_once"))
    run_until_killed(url, tmp_path / "marks")

    _finish_in_this_process(killable)

    assert job.result(0) == 2
    assert _marks(tmp_path) == ["die_once", "die_once"]


# Its own errors


@pytest.mark.spec("R77")
def test_an_error_of_its_own_fails_a_mutation_for_good(
    app: Duly, db: Database, clock: ManualClock, hire: Hire
):
    bodies: list[str] = []

    @app.mutation
    def explode(tx: Tx) -> None:
        bodies.append("body")
        tx.execute("INSERT INTO notes VALUES ('never')")
        raise ValueError("no")

    job = app.run(explode)
    worker = hire()
    worker.work()
    clock.advance(86_400)
    worker.work()

    assert job.state == State.FAILED
    assert job.error is not None
    assert (job.error.kind, job.error.message) == (ErrorKind.USER, "ValueError: no")
    assert bodies == ["body"]
    assert db.notes() == []


@pytest.mark.spec("R77")
def test_a_statement_that_fails_is_an_error_of_its_own(
    app: Duly, db: Database, clock: ManualClock, hire: Hire
):
    @app.mutation
    def explode(tx: Tx) -> None:
        tx.execute("INSERT INTO notes VALUES ('never')")
        tx.execute("INSERT INTO no_such_table VALUES (1)")

    job = app.run(explode)
    worker = hire()
    worker.work()
    clock.advance(86_400)
    worker.work()

    assert job.state == State.FAILED
    assert job.error is not None
    assert job.error.kind == ErrorKind.USER
    assert "no_such_table" in job.error.message
    assert db.notes() == []


@pytest.mark.spec("R77")
@pytest.mark.usefixtures("middle_chance")
def test_a_mutation_may_ask_for_retries(app: Duly, db: Database, clock: ManualClock, hire: Hire):
    attempts: list[int] = []

    @app.mutation(retry=Retry(attempts=3))
    def flaky(tx: Tx) -> None:
        attempts.append(tx.attempt)
        tx.execute("INSERT INTO notes VALUES (?)", (str(tx.attempt),))
        raise ValueError("no")

    job = app.run(flaky)
    worker = hire()
    worker.work()
    assert (job.state, job.run_at - job.scheduled_at) == (State.PENDING, timedelta(seconds=2.5))
    clock.advance(2.5)
    worker.work()
    assert (job.state, job.run_at - job.scheduled_at) == (State.PENDING, timedelta(seconds=7))
    clock.advance(4.5)
    worker.work()

    assert attempts == [1, 2, 3]
    assert job.state == State.FAILED
    assert job.error is not None
    assert job.error.message == "ValueError: no (after 3 attempts)"
    assert db.notes() == []


# The system's errors


def _break_the_system(db: Database, tx: Tx) -> None:
    """Run into an error that no code caused: a full database, a lost connection."""
    if db.is_sqlite:
        tx.execute("PRAGMA max_page_count = 1")
        tx.execute("INSERT INTO notes SELECT hex(zeroblob(1000000))")
    else:
        tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")


@pytest.mark.spec("R78")
@pytest.mark.usefixtures("middle_chance")
def test_after_an_error_of_the_system_a_mutation_waits_ever_longer(
    app: Duly, db: Database, clock: ManualClock, hire: Hire
):
    bodies: list[int] = []

    @app.mutation
    def note(tx: Tx) -> str:
        bodies.append(tx.attempt)
        tx.execute("INSERT INTO notes VALUES ('text')")
        if len(bodies) <= 4:
            _break_the_system(db, tx)
        return "done"

    job = app.run(note)
    for retries, delay in enumerate((0.25, 0.5, 1.0, 2.0), 1):
        # A new worker each time: the count is in the database.
        worker = hire()
        worker.work()
        assert job.state == State.PENDING
        assert job.record.system_retries == retries
        assert job.record.run_at == clock.now() + round(delay * 1000)
        assert job.error is not None
        assert job.error.kind is None
        clock.advance(delay)
    hire().work()

    assert job.result(0) == "done"
    assert bodies == [1] * 5
    assert db.notes() == ["text"]


@pytest.mark.spec("R78")
@pytest.mark.usefixtures("middle_chance")
def test_the_wait_after_an_error_of_the_system_is_at_most_two_hours(
    app: Duly, db: Database, clock: ManualClock, hire: Hire
):
    @app.mutation
    def note(tx: Tx) -> None:
        _break_the_system(db, tx)

    job = app.run(note)
    db.execute("UPDATE @jobs SET system_retries = 100")
    hire().work()

    assert job.record.run_at == clock.now() + 3_600_000
    assert job.record.system_retries == 101


@pytest.mark.spec("R78")
@pytest.mark.usefixtures("middle_chance")
def test_a_mutation_for_which_there_is_no_connection_waits_ever_longer(
    app: Duly,
    note: Any,
    clock: ManualClock,
    hire: Hire,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(teams, "CONNECT_AGAIN_SECONDS", 0)
    connect, tries = app.store.mutation_lane, 0

    def refuse() -> Any:
        nonlocal tries
        tries += 1
        if tries <= 3:
            raise StoreUnavailable("too many connections")
        return connect()

    monkeypatch.setattr(app.store, "mutation_lane", refuse)
    job = app.run(note, "text")
    worker = hire()
    for retries, delay in enumerate((0.25, 0.5, 1.0), 1):
        worker.work()
        assert (tries, job.state, job.record.system_retries) == (retries, State.PENDING, retries)
        assert job.record.run_at == clock.now() + round(delay * 1000)
        clock.advance(delay)
    worker.work()

    assert job.result(0) == "text"
    lines = [record for record in caplog.records if "too many connections" in record.message]
    assert [bool(line.exc_info) for line in lines] == [False] * 3


@on_postgres
def test_who_has_no_connection_leaves_the_mutations_to_who_has_one(
    app: Duly, note: Any, clock: ManualClock, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(teams, "CONNECT_AGAIN_SECONDS", PATIENCE)
    app.store.mutation_lanes = 3
    connections = [app.store.mutation_lane()]
    tries: list[str] = []

    def connect() -> Any:
        tries.append("again")
        # Exactly one of the threads gets it.
        with suppress(IndexError):
            return connections.pop()
        raise StoreUnavailable("too many connections")

    monkeypatch.setattr(app.store, "mutation_lane", connect)
    jobs = [app.run(note, str(number)) for number in range(9)]
    worker = hire()
    worker.work()
    assert len([job for job in jobs if job.state == State.SUCCEEDED]) >= 7

    clock.advance(1)
    worker.work()
    assert [job.state for job in jobs] == [State.SUCCEEDED] * 9
    assert len(tries) <= 3


@pytest.mark.spec("R79")
@pytest.mark.parametrize(("chance", "longest"), [(0.0, 0.1), (1.0 - 1e-9, 60.0)])
def test_conflicts_are_retried_without_limit(
    app: Duly,
    db: Database,
    clock: ManualClock,
    hire: Hire,
    monkeypatch: pytest.MonkeyPatch,
    chance: float,
    longest: float,
):
    """On SQLite another transaction is in the way."""
    monkeypatch.setattr("duly.runtime.outcomes.random.random", lambda: chance)
    lose_patience(app, monkeypatch)
    runs, other = 0, db.connect()

    @app.mutation
    def note(tx: Tx) -> int:
        tx.execute("INSERT INTO notes VALUES ('text')")
        if runs <= 30:
            raise_state(tx, "40001")
        return tx.attempt

    job = app.run(note)
    worker = hire()
    waits: list[float] = []

    def lock(point: str) -> None:
        if db.is_sqlite and runs <= 30 and point == "worker.claimed":
            other.execute("BEGIN IMMEDIATE")

    while runs <= 30:
        runs += 1
        with fault.inject(lock):
            worker.start_due()
        worker.wait_for_bodies()
        other.execute("ROLLBACK" if db.is_sqlite and runs <= 30 else "SELECT 1")
        worker.settle()
        wait = (job.record.run_at - clock.now()) / 1000
        if job.state == State.PENDING:
            waits.append(wait)
            clock.advance(wait)

    assert job.result(0) == 1
    assert len(waits) == 30
    assert waits[0] == pytest.approx(0.1)
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(longest)
    assert db.notes() == ["text"]


@pytest.mark.spec("R79")
@pytest.mark.usefixtures("middle_chance")
def test_a_real_conflict_over_a_row_is_retried(
    app: Duly, db: Database, clock: ManualClock, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    """Another open transaction is in the way for a while."""
    lose_patience(app, monkeypatch)
    db.execute("INSERT INTO notes VALUES ('shared')")

    @app.mutation
    def change(tx: Tx) -> None:
        if not db.is_sqlite:
            tx.execute("SET LOCAL lock_timeout = '10ms'")
        tx.execute("UPDATE notes SET text = 'changed'")

    job = app.run(change)
    worker = hire()
    other = db.connect()

    def lock(point: str) -> None:
        # Once the job is claimed, so that only the body meets the lock.
        if point == "worker.claimed":
            other.execute("BEGIN IMMEDIATE" if db.is_sqlite else "BEGIN")
            other.execute("UPDATE notes SET text = 'theirs'")

    with fault.inject(lock):
        worker.start_due()
    worker.wait_for_bodies()
    other.execute("ROLLBACK")
    worker.settle()
    assert state_of(job) == State.PENDING
    assert job.record.system_retries == 1
    assert job.attempt == 0

    clock.advance(1)
    worker.work()
    assert job.state == State.SUCCEEDED
    assert db.notes() == ["changed"]


# What a body may do with its transaction


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK", "END", "commit; -- why not"])
def test_a_body_that_ends_its_transaction_fails(
    app: Duly, db: Database, note: Any, hire: Hire, end: str
):
    @app.mutation
    def meddle(tx: Tx) -> None:
        tx.run_after(60, note, "child")
        tx.execute(end)
        tx.execute("INSERT INTO notes VALUES ('outside')")

    job = app.run(meddle)
    worker = hire()
    worker.work()
    after = app.run(note, "after")
    worker.work()

    assert job.state == State.FAILED
    assert after.state == State.SUCCEEDED
    assert db.notes() == ["after"]
    # SQLite asks before it obeys. PostgreSQL does as it is told, and duly can only notice.
    was_committed = not db.is_sqlite and end != "ROLLBACK"
    assert len(job.children()) == was_committed


def test_a_body_that_ends_the_transaction_of_the_raw_connection_fails(
    app: Duly, db: Database, note: Any, hire: Hire
):
    @app.mutation
    def meddle(tx: Tx) -> None:
        tx.connection.commit()

    job = app.run(meddle)
    worker = hire()
    worker.work()
    after = app.run(note, "after")
    worker.work()

    assert job.state == State.FAILED
    assert job.error is not None
    assert after.state == State.SUCCEEDED


@on_sqlite
def test_a_body_that_goes_on_after_insert_or_rollback_writes_nothing(
    app: Duly, db: Database, note: Any, hire: Hire
):
    db.execute("CREATE UNIQUE INDEX once ON notes (text)")

    @app.mutation
    def meddle(tx: Tx) -> None:
        tx.execute("INSERT INTO notes VALUES ('same')")
        try:
            tx.execute("INSERT OR ROLLBACK INTO notes VALUES ('same')")
        except Exception:
            tx.execute("INSERT INTO notes VALUES ('committed by itself?')")
            tx.run(note, "child")

    job = app.run(meddle)
    hire().work()

    assert job.state == State.FAILED
    assert job.error is not None
    assert job.error.message.startswith(TransactionEnded.__name__)
    assert db.notes() == []
    assert db.count("@jobs") == 0


def test_a_body_that_goes_on_after_a_failed_statement_fails_on_postgres(
    app: Duly, db: Database, hire: Hire
):
    @app.mutation
    def careless(tx: Tx) -> None:
        tx.execute("INSERT INTO notes VALUES ('before')")
        try:
            tx.execute("INSERT INTO no_such_table VALUES (1)")
        except Exception:
            return

    job = app.run(careless)
    hire().work()

    if db.is_sqlite:
        # SQLite undoes only the statement, so nothing is lost by continuing.
        assert (job.state, db.notes()) == (State.SUCCEEDED, ["before"])
    else:
        assert job.error is not None
        assert "tx.savepoint()" in job.error.message
        assert db.notes() == []


@pytest.mark.spec("N18")
def test_a_mutation_that_takes_too_long_times_out_and_leaves_nothing(
    app: Duly, db: Database, clock: ManualClock, hire: Hire
):
    gate = Gate()

    @app.mutation(timeout=3)
    def slow(tx: Tx) -> None:
        tx.execute("INSERT INTO notes VALUES ('never')")
        gate.pass_through()
        tx.execute("INSERT INTO notes VALUES ('nor this')")

    job = app.run(slow)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    clock.advance(2.9)
    worker.watch()
    assert state_of(job) == State.RUNNING
    clock.advance(0.2)
    worker.watch()
    gate.open()
    worker.work()

    assert job.state == State.FAILED
    assert job.error is not None
    assert job.error.kind == ErrorKind.TIMEOUT
    assert job.error.message == "slow ran longer than 3 s"
    assert db.notes() == []


@pytest.mark.spec("N18")
@pytest.mark.parametrize("timeout", [None, 3600])
def test_no_mutation_may_take_longer_than_the_store_allows(
    app: Duly, clock: ManualClock, hire: Hire, timeout: float | None
):
    gate = Gate()

    @app.mutation(timeout=timeout)
    def slow(tx: Tx) -> None:
        gate.pass_through()

    job = app.run(slow)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    clock.advance(app.store.mutation_seconds)
    worker.watch()
    gate.open()
    worker.work()

    assert job.error is not None
    assert job.error.message == f"slow ran longer than {app.store.mutation_seconds:g} s"


@pytest.mark.spec("N18")
def test_a_statement_that_runs_past_the_limit_is_interrupted(
    app: Duly, db: Database, clock: ManualClock, hire: Hire
):
    gate = Gate()

    @app.mutation
    def slow(tx: Tx) -> None:
        tx.execute("INSERT INTO notes VALUES ('never')")
        gate.pass_through()
        tx.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
        )

    job = app.run(slow)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    gate.open()
    clock.advance(app.store.mutation_seconds + 0.1)
    worker.insist()
    worker.work()

    assert job.error is not None
    assert job.error.kind == ErrorKind.TIMEOUT
    assert db.notes() == []


# Cancel against commit


@pytest.mark.spec("R89")
def test_a_cancel_that_comes_after_the_finish_waits_and_loses(
    app: Duly, db: Database, note: Any, hire: Hire
):
    gate = Gate()
    job = app.run(note, "kept")
    worker = hire()

    def hold(point: str) -> None:
        if point == "mutation.finished":
            gate.pass_through()

    with fault.inject(hold):
        worker.start_due()
        gate.wait_for_one()
        with in_thread(lambda: app.cancel(job)) as canceled:
            gate.open()
            assert canceled() is False
        worker.work()

    assert job.result(0) == "kept"
    assert db.notes() == ["kept"]


@pytest.mark.spec("R89")
def test_a_cancel_that_comes_while_the_body_runs(app: Duly, db: Database, hire: Hire):
    """PostgreSQL takes it at once; on SQLite it waits for the body, which then has won."""
    gate = Gate()

    @app.mutation
    def note(tx: Tx) -> str:
        tx.execute("INSERT INTO notes VALUES ('text')")
        gate.pass_through()
        return "done"

    job = app.run(note)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    with in_thread(lambda: app.cancel(job)) as canceled:
        if not db.is_sqlite:
            assert canceled() is True
        gate.open()
        worker.work()
        won = canceled()

    assert won is not db.is_sqlite
    assert job.state == (State.CANCELED if won else State.SUCCEEDED)
    assert db.notes() == ([] if won else ["text"])


@pytest.mark.spec("R89")
@on_postgres
def test_a_statement_of_a_canceled_mutation_is_interrupted(app: Duly, db: Database, hire: Hire):
    gate = Gate()

    @app.mutation
    def slow(tx: Tx) -> None:
        tx.execute("INSERT INTO notes VALUES ('never')")
        gate.pass_through()
        tx.execute("SELECT pg_sleep(60)")

    job = app.run(slow)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    gate.open()
    asleep = "pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    wait_until(lambda: db.count(asleep), "the long statement")
    assert job.cancel() is True
    worker.beat()
    worker.work()

    assert job.state == State.CANCELED
    assert db.count(asleep) == 0
    assert db.notes() == []


@pytest.mark.spec("R89")
@at_every_level
def test_of_cancel_and_commit_exactly_one_wins(app: Duly, db: Database, note: Any, hire: Hire):
    jobs = [app.run(note, f"{n:02}") for n in range(40)]
    worker = hire(concurrency=4)
    with in_thread(lambda: [app.cancel(job) for job in reversed(jobs)]) as cancel_all:
        worker.work()
        won = cancel_all()
    worker.work()

    canceled = dict(zip(reversed(jobs), won, strict=True))
    for job in jobs:
        assert job.state == (State.CANCELED if canceled[job] else State.SUCCEEDED)
    assert db.notes() == [job.result(0) for job in jobs if not canceled[job]]
