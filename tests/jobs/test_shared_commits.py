"""Mutations that share a commit do not affect each other.

On SQLite waiting mutations share a transaction, a savepoint each; on PostgreSQL they do with
`group=True`. Each test puts a troublemaker between members that behave.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from duly import Duly, ErrorKind, Job, ManualClock, State, Tx, fault
from duly.store.base import MEMBER
from duly.store.postgres.tx import may_end_transaction
from tests.jobs.support import (
    Database,
    Gate,
    Hire,
    ManualWorker,
    enforce_foreign_keys,
    make_conflict,
    on_postgres,
    on_sqlite,
)
from tests.levels import at_every_level

Trouble = Callable[[Tx], object]


class Group:
    """Members that run in one shared transaction, unless one of them breaks it."""

    def __init__(self, app: Duly, db: Database, hire: Hire) -> None:
        self.app, self.db, self._hire = app, db, hire
        # One connection, so that all members are waiting for the same one.
        app.store.mutation_lanes = 1
        self.commits = 0
        self.bodies: list[str] = []

        @app.mutation(group=True)
        def note(tx: Tx, text: str) -> str:
            self.bodies.append(text)
            tx.execute("INSERT INTO notes VALUES (?)", (text,))
            tx.run_after(3600, note, f"child of {text}")
            return text

        self.note = note

    def add(self, trouble: Trouble) -> Any:
        """Register a troublemaker; what it raises is raised by its body."""

        @self.app.mutation(group=True)
        def troublemaker(tx: Tx) -> Any:
            self.bodies.append("trouble")
            tx.execute("INSERT INTO notes VALUES ('trouble')")
            return trouble(tx)

        return troublemaker

    def run(self, *functions: Any) -> list[Job[Any]]:
        """Run a member, the functions, and two more members, all claimed together."""
        first = self.app.run(self.note, "1 before")
        others = [self.app.run(function) for function in functions]
        last = [self.app.run(self.note, text) for text in ("2 after", "3 after")]
        self.work()
        return [first, *others, *last]

    def work(self) -> ManualWorker:
        worker = self._hire(concurrency=50)

        def count(point: str) -> None:
            self.commits += point == "mutation.committed"

        with fault.inject(count):
            worker.work()
        return worker

    def assert_unharmed(self, *jobs: Job[Any]) -> None:
        """The members that behave have happened exactly once, whole."""
        assert [job.result(0) for job in jobs] == ["1 before", "2 after", "3 after"]
        assert [len(job.children()) for job in jobs] == [1, 1, 1]
        assert self.db.notes() == ["1 before", "2 after", "3 after"]


@pytest.fixture
def group(app: Duly, db: Database, hire: Hire) -> Group:
    return Group(app, db, hire)


@pytest.mark.spec("N25")
@at_every_level
def test_members_that_behave_share_one_commit(group: Group):
    jobs = group.run()

    group.assert_unharmed(*jobs)
    assert group.commits == 1


@pytest.mark.spec("N25")
def test_an_error_of_one_undoes_only_that_one(group: Group):
    def trouble(tx: Tx) -> None:
        tx.run(group.note, "never")
        raise ValueError("mine alone")

    first, bad, *last = group.run(group.add(trouble))

    group.assert_unharmed(first, *last)
    assert bad.error is not None
    assert (bad.error.kind, bad.error.message) == (ErrorKind.USER, "ValueError: mine alone")
    assert group.commits == 1
    assert group.bodies.count("trouble") == 1


@pytest.mark.spec("N25")
@pytest.mark.parametrize("way_out", [SystemExit, KeyboardInterrupt])
def test_a_member_that_wants_to_leave_the_process_undoes_only_itself(
    group: Group, way_out: type[BaseException]
):
    def trouble(tx: Tx) -> None:
        raise way_out("bye")

    first, bad, *last = group.run(group.add(trouble))

    group.assert_unharmed(first, *last)
    assert bad.state == State.FAILED


@pytest.mark.spec("N25")
def test_a_statement_that_fails_undoes_only_its_member(group: Group):
    def trouble(tx: Tx) -> None:
        tx.execute("INSERT INTO no_such_table VALUES (1)")

    first, bad, *last = group.run(group.add(trouble))

    group.assert_unharmed(first, *last)
    assert bad.error is not None
    assert "no_such_table" in bad.error.message


@pytest.mark.spec("N25")
def test_a_member_that_swallows_a_failed_statement_harms_nobody(group: Group):
    def trouble(tx: Tx) -> str:
        try:
            tx.execute("INSERT INTO no_such_table VALUES (1)")
        except Exception:
            tx.execute("DELETE FROM notes WHERE text = 'trouble'")
        return "swallowed"

    first, bad, *last = group.run(group.add(trouble))

    group.assert_unharmed(first, *last)
    assert bad.state == (State.SUCCEEDED if group.db.is_sqlite else State.FAILED)


@pytest.mark.spec("N25")
def test_a_result_that_cannot_be_stored_undoes_only_its_member(group: Group):
    first, bad, *last = group.run(group.add(lambda tx: float("nan")))

    group.assert_unharmed(first, *last)
    assert bad.error is not None
    assert bad.error.kind == ErrorKind.UNSTORABLE_RESULT


@pytest.mark.spec("N25")
def test_a_deferred_constraint_fails_only_its_member(group: Group, monkeypatch: pytest.MonkeyPatch):
    """It is checked by the COMMIT that all of them share."""
    enforce_foreign_keys(group.app, monkeypatch)
    group.db.execute("CREATE TABLE parents (id integer PRIMARY KEY)")
    group.db.execute(
        "CREATE TABLE children (parent integer REFERENCES parents (id)"
        " DEFERRABLE INITIALLY DEFERRED)"
    )

    def trouble(tx: Tx) -> None:
        tx.execute("INSERT INTO children VALUES (99)")

    first, bad, *last = group.run(group.add(trouble))

    group.assert_unharmed(first, *last)
    assert bad.error is not None
    assert bad.error.kind == ErrorKind.USER
    assert "foreign key" in bad.error.message.lower()
    assert group.db.count("children") == 0


@pytest.mark.spec("N25")
def test_a_setting_of_one_does_not_reach_the_next(group: Group):
    """SET LOCAL on PostgreSQL; on SQLite the pragma that lasts until the COMMIT."""
    seen: list[Any] = []
    db = group.db

    def change(tx: Tx) -> None:
        tx.execute("DELETE FROM notes WHERE text = 'trouble'")
        if db.is_sqlite:
            tx.execute("PRAGMA defer_foreign_keys = ON")
        else:
            tx.execute("SET LOCAL search_path = 'nowhere'")
            tx.execute("SET LOCAL statement_timeout = '77s'")

    @group.app.mutation(group=True)
    def look(tx: Tx) -> None:
        if db.is_sqlite:
            seen.append(tx.execute("PRAGMA defer_foreign_keys").scalar())
        else:
            seen.append(tx.execute("SHOW search_path").scalar())
            seen.append(tx.execute("SHOW statement_timeout").scalar())

    first, change_job, look_job, *last = group.run(group.add(change), look)

    group.assert_unharmed(first, *last)
    assert change_job.state == look_job.state == State.SUCCEEDED
    assert seen == ([0] if db.is_sqlite else ['"$user", public', "0"])


AWKWARD = 'it\'s \\ "quoted" $1 %s; COMMIT; ünï \u2028'


@pytest.mark.parametrize("setting", ["", "standard_conforming_strings = off"])
@on_postgres
def test_any_result_of_a_member_is_kept_as_it_is(group: Group, setting: str):
    def awkward(tx: Tx) -> list[str | None]:
        tx.execute("DELETE FROM notes WHERE text = 'trouble'")
        if setting:
            tx.execute(f"SET LOCAL escape_string_warning = off; SET LOCAL {setting}")
        return [AWKWARD, None]

    first, odd, *last = group.run(group.add(awkward))

    group.assert_unharmed(first, *last)
    assert odd.result(0) == [AWKWARD, None]
    assert group.commits == 1


@on_postgres
def test_a_member_that_makes_the_server_forget_what_it_was_told_harms_nobody(group: Group):
    def forget(tx: Tx) -> None:
        tx.execute("DELETE FROM notes WHERE text = 'trouble'")
        tx.execute("DEALLOCATE ALL")

    first, bad, *last = group.run(group.add(forget))
    group.assert_unharmed(first, *last)
    assert bad.state is State.SUCCEEDED
    group.commits = 0
    for text in ("4", "5"):
        group.app.run(group.note, text)
    group.work()
    assert group.commits == 1
    assert group.db.notes() == ["1 before", "2 after", "3 after", "4", "5"]


@pytest.mark.spec("N25")
@on_postgres
def test_a_member_cannot_turn_off_durable_commits_for_the_others(
    app: Duly, db: Database, hire: Hire
):
    """The database's own default is off; what duly insists on must survive the members."""
    name = db.scalar("SELECT current_database()")
    db.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    app.close()
    group = Group(app, db, hire)
    seen: list[str] = []

    @app.mutation(group=True)
    def look(tx: Tx) -> None:
        seen.append(tx.execute("SHOW synchronous_commit").scalar())

    group.run(look, look)
    group.run(look)

    assert seen == ["on"] * 3


@pytest.mark.spec("N25")
@on_postgres
def test_what_lasts_until_the_end_of_a_transaction_ends_with_its_member(group: Group):
    """Alone each of these would work; that they share a transaction must not show."""
    db = group.db
    db.execute("CREATE TABLE parents (id integer PRIMARY KEY)")
    db.execute(
        "CREATE TABLE children (parent integer REFERENCES parents (id)"
        " DEFERRABLE INITIALLY DEFERRED)"
    )

    @group.app.mutation(group=True)
    def impatient(tx: Tx) -> None:
        tx.execute("SET CONSTRAINTS ALL IMMEDIATE")

    @group.app.mutation(group=True)
    def child_first(tx: Tx) -> None:
        tx.execute("INSERT INTO children VALUES (1)")
        tx.execute("INSERT INTO parents VALUES (1)")

    @group.app.mutation(group=True)
    def scratch(tx: Tx) -> None:
        tx.execute("CREATE TEMP TABLE scratch (x integer) ON COMMIT DROP")

    @group.app.mutation(group=True)
    def cursor(tx: Tx) -> None:
        tx.execute("DECLARE c CURSOR FOR SELECT 1")

    jobs = group.run(impatient, child_first, scratch, scratch, cursor, cursor)

    assert [job.error for job in jobs] == [None] * 9
    group.assert_unharmed(jobs[0], *jobs[-2:])


@pytest.mark.spec("N25")
@pytest.mark.parametrize("swallow", [False, True])
@on_sqlite
def test_what_outlasts_a_transaction_stays_with_the_mutation_that_made_it(
    group: Group, swallow: bool
):
    """On SQLite a pragma or a temporary table would still be there for the next member."""
    db = group.db
    db.execute("CREATE TABLE odd (n integer CHECK (n % 2 = 1))")

    @group.app.mutation
    def alter(tx: Tx) -> None:
        for statement in (
            "PRAGMA ignore_check_constraints = ON",
            "CREATE TEMP TABLE notes (text text)",
        ):
            try:
                tx.execute(statement)
            except Exception:
                if not swallow:
                    raise
        tx.execute("INSERT INTO odd VALUES (2)")

    @group.app.mutation
    def obey(tx: Tx) -> None:
        tx.execute("INSERT INTO odd VALUES (4)")

    first, altered, obeyed, *last = group.run(alter, obey)

    group.assert_unharmed(first, *last)
    assert altered.error is None
    assert obeyed.error is not None
    assert "CHECK constraint failed" in obeyed.error.message
    assert db.execute("SELECT n FROM odd") == [(2,)]


class RepoError(Exception):
    """What a body makes of an error of the database."""


@pytest.mark.spec("N25")
@pytest.mark.parametrize("way", ["wraps", "hides", "undoes"])
def test_a_refusal_that_a_body_makes_an_error_of_its_own_is_not_its_failure(group: Group, way: str):
    """Alone each would succeed; that they share a transaction must not show."""
    statement = "DECLARE c CURSOR FOR SELECT 1"
    if group.db.is_sqlite:
        statement = "CREATE TEMP TABLE scratch (a)"

    @group.app.mutation(group=True)
    def repository(tx: Tx) -> None:
        was_refused = False
        try:
            with tx.savepoint() if way == "undoes" else nullcontext():
                tx.execute(statement)
        except Exception as error:
            if way != "hides":
                raise RepoError from error
            was_refused = True
        if was_refused:
            raise RepoError

    first, one, two, *last = group.run(repository, repository)

    group.assert_unharmed(first, *last)
    assert [one.error, two.error] == [None, None]


@pytest.mark.spec("N25")
@on_sqlite
def test_insert_or_rollback_ends_no_other_member(group: Group):
    group.db.execute("CREATE UNIQUE INDEX once ON notes (text)")

    def trouble(tx: Tx) -> None:
        tx.execute("INSERT OR ROLLBACK INTO notes VALUES ('trouble')")

    first, bad, *last = group.run(group.add(trouble))

    group.assert_unharmed(first, *last)
    assert bad.error is not None
    assert bad.error.message == "IntegrityError: UNIQUE constraint failed: notes.text"


@pytest.mark.spec("N25")
@on_sqlite
def test_a_swallowed_insert_or_rollback_ends_no_other_member(group: Group):
    group.db.execute("CREATE UNIQUE INDEX once ON notes (text)")

    def trouble(tx: Tx) -> str:
        try:
            tx.execute("INSERT OR ROLLBACK INTO notes VALUES ('trouble')")
        except Exception:
            return "as if nothing had been"
        return "never"

    first, bad, *last = group.run(group.add(trouble))

    group.assert_unharmed(first, *last)
    assert bad.error is not None
    assert bad.error.message.startswith("TransactionEnded")


@pytest.mark.spec("N25")
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK", "ROLLBACK; BEGIN", "COMMIT; BEGIN"])
def test_a_body_that_ends_the_transaction_ends_no_other_member(group: Group, end: str):
    def trouble(tx: Tx) -> None:
        tx.execute("DELETE FROM notes WHERE text = 'trouble'")
        for statement in end.split("; "):
            tx.execute(statement)

    first, bad, *last = group.run(group.add(trouble))

    group.assert_unharmed(first, *last)
    assert bad.state == State.FAILED
    assert bad.error is not None
    assert bad.error.kind == ErrorKind.USER


@pytest.mark.spec("N25")
@pytest.mark.parametrize("fails", [False, True])
@on_postgres
def test_a_body_that_swallows_that_it_must_not_commit_here_commits_alone(group: Group, fails: bool):
    def trouble(tx: Tx) -> None:
        tx.execute("DELETE FROM notes WHERE text = 'trouble'")
        try:
            tx.execute("COMMIT")
        except BaseException as error:
            if fails:
                raise RepoError from error
            tx.execute("SELECT 1")

    first, bad, *last = group.run(group.add(trouble))

    group.assert_unharmed(first, *last)
    assert bad.error is not None
    assert bad.error.message.startswith("TransactionEnded")


@pytest.mark.parametrize(
    "text",
    ["COMMIT", "commit work", " end", "END;", "SELECT 1; END", "abort", "ROLLBACK", "/* x */ END",
     "-- CASE\nEND", "/* /* a */ b */ END", "PREPARE TRANSACTION 'a'", "SELECT 1;COMMIT"],
)  # fmt: skip
def test_what_could_end_the_transaction_of_a_group_is_kept_out_of_it(text: str):
    assert may_end_transaction(text)


@pytest.mark.parametrize(
    "text",
    ["SELECT CASE WHEN a THEN 1 ELSE 2 END FROM t", "INSERT INTO commits VALUES (?)", "SELECT 1;",
     "UPDATE t SET ended = now(), weekend = true", "SAVEPOINT a", "INSERT INTO t VALUES ('x')"],
)  # fmt: skip
def test_what_ends_nothing_shares_a_transaction(text: str):
    assert not may_end_transaction(text)


@pytest.mark.spec("N25")
def test_a_body_that_meddles_with_the_savepoint_of_its_member_harms_nobody(group: Group):
    def trouble(tx: Tx) -> None:
        tx.execute("DELETE FROM notes WHERE text = 'trouble'")
        tx.execute(f"RELEASE SAVEPOINT {MEMBER}")

    first, bad, *last = group.run(group.add(trouble))

    group.assert_unharmed(first, *last)
    assert bad.state == State.FAILED


@pytest.mark.spec("N25")
def test_a_savepoint_of_a_bodys_own_never_bears_the_name_of_its_members(group: Group):
    def trouble(tx: Tx) -> None:
        tx.execute("SAVEPOINT duly_member")
        tx.execute("INSERT INTO notes VALUES ('more trouble')")
        raise ValueError("all of it is undone")

    first, bad, *last = group.run(group.add(trouble))

    group.assert_unharmed(first, *last)
    assert bad.state == State.FAILED
    assert group.commits == 1


@pytest.mark.spec("N25")
def test_a_lost_connection_fails_no_other_member(group: Group, clock: ManualClock):
    """On SQLite a full database, which also takes the whole transaction away."""
    db = group.db
    broken = True

    def trouble(tx: Tx) -> str:
        tx.execute("DELETE FROM notes WHERE text = 'trouble'")
        if not broken:
            return "fine now"
        if db.is_sqlite:
            tx.execute("PRAGMA max_page_count = 1")
            tx.execute("INSERT INTO notes SELECT hex(zeroblob(1000000))")
        else:
            tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return "never"

    first, bad, *last = group.run(group.add(trouble))
    group.assert_unharmed(first, *last)
    assert (bad.state, bad.record.system_retries) == (State.PENDING, 1)

    broken = False
    clock.advance(1)
    group.work()
    assert bad.result(0) == "fine now"


@pytest.mark.spec("N25")
def test_a_conflict_of_one_is_retried_alone(group: Group, clock: ManualClock, tmp_path: Any):
    in_conflict = True

    def trouble(tx: Tx) -> str:
        tx.execute("DELETE FROM notes WHERE text = 'trouble'")
        if in_conflict:
            make_conflict(group.db, tx, tmp_path)
        return "won"

    first, bad, *last = group.run(group.add(trouble))
    group.assert_unharmed(first, *last)
    assert (bad.state, bad.record.system_retries) == (State.PENDING, 1)

    in_conflict = False
    clock.advance(60)
    group.work()
    assert bad.result(0) == "won"


@pytest.mark.spec("N25")
def test_a_body_that_wants_the_raw_connection_gets_a_transaction_of_its_own(group: Group):
    def trouble(tx: Tx) -> str:
        tx.execute("DELETE FROM notes WHERE text = 'trouble'")
        tx.connection.execute("SELECT 1")
        return "raw"

    troublemaker = group.add(trouble)
    first, raw, *last = group.run(troublemaker)

    group.assert_unharmed(first, *last)
    assert raw.result(0) == "raw"
    assert group.commits == 2
    # From then on it is known, and runs once.
    again = group.app.run(troublemaker)
    group.app.run(group.note, "more")
    before = group.bodies.count("trouble")
    group.work()
    assert again.result(0) == "raw"
    assert group.bodies.count("trouble") <= before + 2


@pytest.mark.spec("N25")
@pytest.mark.parametrize("fails", [False, True])
def test_a_body_that_swallows_that_it_gets_no_raw_connection_here_gets_it_alone(
    group: Group, fails: bool
):
    def trouble(tx: Tx) -> str:
        tx.execute("DELETE FROM notes WHERE text = 'trouble'")
        found = "nothing"
        try:
            tx.connection.execute("SELECT 1")
            found = "raw"
        except BaseException:
            if fails:
                raise RepoError from None
        return found

    first, raw, *last = group.run(group.add(trouble))

    group.assert_unharmed(first, *last)
    assert raw.result(0) == "raw"


@pytest.mark.spec("N25")
def test_a_member_that_takes_too_long_times_out_alone(
    app: Duly, db: Database, clock: ManualClock, hire: Hire
):
    """While it runs, the time limits of the members before it pass as well."""
    gate = Gate()
    group = Group(app, db, hire)
    endless = (
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
        " INSERT INTO notes SELECT 'never' FROM n WHERE i < 0"
    )

    def trouble(tx: Tx) -> None:
        gate.pass_through()
        tx.execute(endless)

    troublemaker = group.add(trouble)
    first = app.run(group.note, "1 before")
    bad = app.run(troublemaker)
    last = [app.run(group.note, text) for text in ("2 after", "3 after")]
    worker = hire(concurrency=50)
    worker.start_due()
    gate.wait_for_one()
    gate.open()
    clock.advance(app.store.mutation_seconds + 1)
    worker.insist()
    worker.work()

    group.assert_unharmed(first, *last)
    assert bad.error is not None
    assert bad.error.kind == ErrorKind.TIMEOUT


@pytest.mark.spec("N25")
def test_a_canceled_member_takes_no_other_along(group: Group):
    app, db = group.app, group.db
    victim = group.add(lambda tx: "dropped")
    first = app.run(group.note, "1 before")
    bad = app.run(victim)
    last = [app.run(group.note, text) for text in ("2 after", "3 after")]

    def cancel_after_claim(point: str) -> None:
        if point == "worker.claimed" and not bad.state.is_terminal:
            assert app.cancel(bad) is True

    with fault.inject(cancel_after_claim):
        group._hire(concurrency=50).work()

    group.assert_unharmed(first, *last)
    assert bad.state == State.CANCELED
    assert db.count("@history") == 4


@pytest.mark.spec("N25")
def test_two_members_that_fail_the_commit_in_turn_are_both_found(
    group: Group, monkeypatch: pytest.MonkeyPatch
):
    enforce_foreign_keys(group.app, monkeypatch)
    group.db.execute("CREATE TABLE parents (id integer PRIMARY KEY)")
    group.db.execute(
        "CREATE TABLE children (parent integer REFERENCES parents (id)"
        " DEFERRABLE INITIALLY DEFERRED)"
    )

    def trouble(tx: Tx) -> None:
        tx.execute("INSERT INTO children VALUES (99)")

    bad = group.add(trouble)
    first, one, two, *last = group.run(bad, bad)

    group.assert_unharmed(first, *last)
    assert [one.state, two.state] == [State.FAILED] * 2


@pytest.mark.spec("N25")
@on_postgres
def test_on_postgres_nobody_shares_without_asking(app: Duly, db: Database, hire: Hire):
    @app.mutation
    def alone(tx: Tx) -> int:
        return int(tx.execute("SELECT pg_current_xact_id()::text").scalar())

    app.store.mutation_lanes = 1
    jobs = [app.run(alone) for _ in range(5)]
    hire().work()

    assert len({job.result(0) for job in jobs}) == 5


@pytest.mark.spec("N25")
def test_alone_never_shares(app: Duly, db: Database, hire: Hire):
    commits: list[str] = []

    @app.mutation(alone=True, group=True)
    def alone(tx: Tx) -> None:
        tx.execute("INSERT INTO notes VALUES ('x')")

    app.store.mutation_lanes = 1
    for _ in range(5):
        app.run(alone)
    worker = hire()
    with fault.inject(lambda point: commits.append(point)):
        worker.work()

    assert commits.count("mutation.committed") == 5
