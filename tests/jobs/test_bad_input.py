"""Every mistake gives one clear duly error, and nothing is half written."""

import os
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duly import Ctx, Duly, Retry, Tx, errors
from duly.errors import (
    ArgumentsTooLarge,
    InvalidArgument,
    InvalidOption,
    InvalidURL,
    NotMigrated,
    StoreError,
    StoreFull,
    StoreMissing,
    StoreReadOnly,
    StoreTooNew,
    StoreUnavailable,
)
from duly.store.sqlite import SqliteStore
from tests.jobs.support import (
    Database,
    Hire,
    lose_patience,
    on_postgres,
    on_sqlite,
    wait_until,
)

SECRET = "s3cret-pa55word"


@pytest.fixture
def act(app: Duly) -> Any:
    @app.action
    def act(ctx: Ctx, value: Any = None, *, when: datetime | None = None) -> None: ...

    return act


# Arguments


@pytest.mark.spec("R68")
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "object cannot be stored as JSON"),
        (lambda: None, "function cannot be stored as JSON"),
        ({"a": [1, {2: object()}]}, "at `value['a'][1][2]`"),
        (float("nan"), "nan is not a JSON number"),
        ([1.0, float("inf")], "inf is not a JSON number - at `value[1]`"),
        (datetime(2026, 1, 1), "naive datetime; attach a zone"),  # noqa: DTZ001
        ("half \ud83d", "surrogates not allowed"),
        ({(1, 2): 3}, "a key must be a string or number"),
    ],
    ids=["object", "lambda", "nested", "nan", "inf", "naive", "surrogate", "key"],
)
def test_an_argument_that_cannot_be_stored_is_named_when_it_is_scheduled(
    app: Duly, db: Database, act: Any, value: Any, reason: str
):
    for schedule in (
        lambda: app.run(act, value),
        lambda: app.run_after(1, act, value=value),
        lambda: app.run_many([act.bind("fine"), act.bind(value)]),
    ):
        with pytest.raises(InvalidArgument) as refused:
            schedule()
        assert (refused.value.function, refused.value.argument) == ("act", "value")
        assert reason in str(refused.value)
    with pytest.raises(InvalidArgument), app.transaction() as tx:  # noqa: PT012
        tx.run(act, "fine")
        tx.run(act, value)

    assert db.count("@jobs") == 0


@pytest.mark.spec("R68")
def test_an_argument_that_does_not_fit_the_function_is_named(app: Duly, db: Database):
    @app.mutation
    def save(tx: Tx, name: str, count: int = 1, *, when: datetime | None = None) -> None: ...

    for arguments, options, named in (
        ((), {}, "name"),
        ((1,), {}, "name"),
        (("a", "1"), {}, "count"),
        (("a", True), {}, "count"),
        (("a", 1, 2), {}, "#3"),
        (("a",), {"name": "b"}, "name"),
        (("a",), {"colour": 1}, "colour"),
        (("a",), {"when": "2026-01-01T09:00:00"}, "when"),
        (("a",), {"when": datetime(2026, 1, 1)}, "when"),  # noqa: DTZ001
    ):
        with pytest.raises(InvalidArgument) as refused:
            app.run(save, *arguments, **options)
        assert refused.value.argument == named

    assert db.count("@jobs") == 0


@pytest.mark.spec("R68")
def test_arguments_that_are_too_large_are_refused(app: Duly, db: Database, act: Any):
    with pytest.raises(ArgumentsTooLarge, match="the limit is 8,388,608"):
        app.run(act, "x" * 8_388_608)

    assert db.count("@jobs") == 0


@pytest.mark.spec("R68")
def test_a_refused_argument_inside_a_mutation_fails_it_whole(
    app: Duly, db: Database, act: Any, hire: Hire
):
    @app.mutation
    def plan(tx: Tx) -> None:
        tx.execute("INSERT INTO notes VALUES ('never')")
        tx.run(act, "fine")
        tx.run(act, object())

    job = app.run(plan)
    hire().work()

    assert job.error is not None
    assert job.error.message.startswith("InvalidArgument: act(): argument 'value': object cannot")
    assert (db.notes(), db.count("@jobs")) == ([], 0)


# Options


def test_an_option_that_makes_no_sense_is_refused(app: Duly, db: Database, act: Any):
    bad: list[dict[str, Any]] = [
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"timeout": 1e300},
        {"timeout": "1"},
        {"owner": ""},
        {"owner": "nul\0"},
        {"tags": "one"},
        {"tags": [""]},
        {"tags": [1]},
        {"retry": 3},
        {"retry": True},
    ]
    for options in bad:
        with pytest.raises(errors.BadInput):
            app.action(**options)
        with pytest.raises(errors.BadInput):
            app.run(act.using(**options))

    assert db.count("@jobs") == 0


def test_every_mistake_in_the_options_of_an_app_is_told():
    wrong: dict[str, Any] = {
        "name": 5,
        "imports": "shop.tasks",
        "apply": "later",
        "concurrency": True,
        "threads": "5",
        "retention": 7,
        "signal_timeout": timedelta(0),
        "synchronous": ["FULL"],
        "pool": 2.5,
    }
    for option, value in wrong.items():
        with pytest.raises(InvalidOption, match=re.escape(f"not {value!r}")) as caught:
            Duly("sqlite:///:memory:", **{option: value})
        assert caught.value.option == option
    with pytest.raises(InvalidOption) as all_of_them:
        Duly("sqlite:///:memory:", **wrong)
    assert [option for option in wrong if f"{option}: " not in str(all_of_them.value)] == []
    with pytest.raises(InvalidURL, match="is text"):
        Duly(Path("shop.db"))  # type: ignore[arg-type]


def test_an_option_that_does_not_exist_is_refused(app: Duly, act: Any):
    verbs: list[tuple[Any, str, list[str]]] = [
        (app.action, "action", ["retries", "alone", "group", "idempotency_key"]),
        (app.mutation, "mutation", ["retries", "idempotency_key"]),
        (act.using, "using", ["retries", "name", "aliases", "internal", "retry_on"]),
    ]
    for verb, name, options in verbs:
        for option in options:
            message = rf"^{name}\(\) got an unexpected keyword argument '{option}'$"
            with pytest.raises(TypeError, match=message):
                verb(**{option: None})


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"attempts": 0}, "attempts must be a whole number from 1, not 0"),
        ({"attempts": -1}, "attempts must be a whole number from 1, not -1"),
        ({"attempts": 1.5}, "attempts must be a whole number from 1, not 1.5"),
        ({"delay": -1}, "delay must be 0 s to five years, not -1"),
        ({"delay": "10"}, "delay must be 0 s to five years, not '10'"),
        ({"delay": True}, "delay must be 0 s to five years, not True"),
        ({"delay": float("nan")}, "delay must be 0 s to five years, not nan"),
        ({"cap": float("inf"), "delay": float("inf")}, "cap must be 0 s to five years, not inf"),
        ({"delay": 10**400}, "delay must be 0 s to five years, not 1000"),
        ({"delay": []}, "a list must have 1 to 100 delays"),
        ({"delay": [1] * 101}, "a list must have 1 to 100 delays"),
        ({"delay": [1, -1]}, "delay must be 0 s to five years, not -1"),
        ({"delay": [1, 10, 60], "attempts": 3}, "3 delays make 4 attempts, not 3"),
        ({"delay": [1, 10], "factor": 3}, "give either a list of delays or a factor, not both"),
        ({"delay": 7200}, "delay 7200 s is longer than cap 3600 s"),
        ({"delay": [1, 7200]}, "give cap=7200"),
        ({"cap": 1}, "delay 2 s is longer than cap 1 s"),
        ({"cap": 1e300}, "cap must be 0 s to five years, not 1e"),
        ({"factor": 0.5}, "factor must be 1 to 1000, not 0.5"),
        ({"factor": float("nan")}, "factor must be 1 to 1000, not nan"),
        ({"factor": float("inf")}, "factor must be 1 to 1000, not inf"),
        ({"factor": "2"}, "factor must be 1 to 1000, not '2'"),
        ({"jitter": float("nan")}, "jitter must be 0 s to five years, not nan"),
        ({"jitter": "20"}, 'jitter must be seconds or a percentage like "20%"'),
        ({"jitter": "-5%"}, "jitter must be seconds or a percentage"),
        ({"jitter": "101%"}, "at most 100%: '101%'"),
    ],
    ids=str,
)
def test_a_retry_policy_that_could_not_be_followed_is_refused(policy: dict[str, Any], reason: str):
    with pytest.raises(InvalidOption, match=f"retry: .*{re.escape(reason)}"):
        Retry(**policy)


def test_a_filter_that_makes_no_sense_is_refused(app: Duly):
    bad: list[dict[str, Any]] = [
        {"state": "done"},
        {"limit": -1},
        {"limit": 0},
        {"limit": 10**9},
        {"limit": "5"},
        {"before": "nonsense"},
    ]
    for filter in bad:
        with pytest.raises(InvalidOption):
            app.jobs(**filter)
        with pytest.raises(InvalidOption), app.transaction() as tx:
            tx.jobs(**filter)


def test_a_bulk_cancel_with_a_bad_time_cancels_nothing(app: Duly, act: Any):
    job = app.run(act)
    for limits in ({"after": datetime(2026, 1, 1)}, {"before": 1.5}):  # noqa: DTZ001
        with pytest.raises(errors.InvalidTime):
            app.cancel_all(act, **limits)

    assert job.state == "pending"


def test_every_fault_of_an_app_is_reported_at_once():
    with pytest.raises(InvalidOption) as refused:
        Duly("sqlite:///:memory:", name="", concurrency=0, synchronous="OFF")

    for fault in ("name:", "concurrency:", "synchronous:"):
        assert fault in str(refused.value)


# The URL


@pytest.mark.parametrize(
    "url",
    [
        "mysql://localhost/db",
        "shop.db",
        "sqlite:shop.db",
        "sqlite://",
        "sqlite:///",
        "sqlite://shop.db",
        "redis://localhost",
        "://",
        f"mysql://ada:{SECRET}@localhost/db",
    ],
)
def test_a_url_that_makes_no_sense_is_refused_at_once(url: str):
    with pytest.raises(InvalidURL, match="use sqlite:///") as refused:
        Duly(url)

    assert SECRET not in str(refused.value)


def test_no_url_is_refused_with_the_name_of_the_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DULY_DATABASE_URL", raising=False)
    with pytest.raises(InvalidURL, match="DULY_DATABASE_URL"):
        Duly()


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        (f"ada:{SECRET}@127.0.0.1:notaport/db", "'notaport'"),
        (f"ada:{SECRET}@127.0.0.1:1/db?nonsense=1", 'parameter: "nonsense"'),
        (f"ada:{SECRET}@[::1/db", "%xx"),
        (f"ada:{SECRET}%zz@127.0.0.1/db", "%xx"),
    ],
    ids=["port", "parameter", "bracket", "percent"],
)
def test_a_postgres_url_that_cannot_be_read_is_refused_without_its_password(rest: str, reason: str):
    with pytest.raises(InvalidURL) as refused:
        Duly(f"postgresql://{rest}")

    assert reason in str(refused.value)
    assert SECRET not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("address", ["127.0.0.1:1", ":1", "", "no-such-host.invalid"])
def test_a_server_that_cannot_be_reached_gives_one_clear_error(
    address: str, monkeypatch: pytest.MonkeyPatch
):
    def nowhere(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    if address == "no-such-host.invalid":  # nothing asks another machine for its address
        monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", "1")
    app = Duly(f"postgresql://ada:{SECRET}@{address}/db")

    @app.action
    def act(ctx: Ctx) -> None: ...

    for verb in (app.migrate, lambda: app.run(act), app.start, lambda: app.job("x"), app.workers):
        with pytest.raises(StoreUnavailable, match="cannot connect to PostgreSQL") as refused:
            verb()
        assert SECRET not in str(refused.value)
        assert len(str(refused.value).splitlines()) == 1
    app.close()


def test_a_database_or_role_that_does_not_exist_gives_one_clear_error(postgres_url: str):
    server = postgres_url.rpartition("/")[0]
    address = server.rpartition("@")[2]
    for url, word in (
        (f"{server}/no_such_database", "no_such_database"),
        (f"postgresql://ada:{SECRET}@{address}/postgres", "ada"),
    ):
        app = Duly(url)
        with pytest.raises(StoreUnavailable, match=word) as refused:
            app.migrate()
        assert SECRET not in str(refused.value)
        app.close()


# The store


def test_a_missing_file_is_missing_and_not_made(tmp_path: Path):
    app = Duly(f"sqlite:///{tmp_path}/none.db")

    @app.action
    def act(ctx: Ctx) -> None: ...

    for verb in (lambda: app.run(act), app.start, app.jobs, lambda: app.transaction().__enter__()):
        with pytest.raises(StoreMissing, match=r"none.db; create it with `duly migrate`"):
            verb()

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path):
    app = Duly(f"sqlite:///{tmp_path}/no/such/folder/none.db")
    with pytest.raises(StoreError, match="no/such/folder"):
        app.migrate()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"x" * 4000]
)
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes):
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    app = Duly(f"sqlite:///{file}")
    for verb in (app.migrate, app.jobs):
        with pytest.raises(StoreError, match=r"notes\.txt"):
            verb()
    app.close()

    assert file.read_bytes() == content


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path):
    app = Duly(f"sqlite:///{tmp_path}")
    for verb in (app.migrate, app.jobs):
        with pytest.raises(StoreError):
            verb()
    app.close()


def test_an_empty_file_gets_its_tables_at_once(tmp_path: Path):
    (tmp_path / "duly.db").touch()
    app = Duly(f"sqlite:///{tmp_path}/duly.db")

    @app.action
    def act(ctx: Ctx) -> None: ...

    assert app.run(act).state == "pending"
    app.close()


def test_a_server_without_tables_says_what_to_do(postgres_url: str):
    app = Duly(postgres_url)

    @app.action
    def act(ctx: Ctx) -> None: ...

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA duly CASCADE")
        for verb in (lambda: app.run(act), app.start, app.jobs, app.transaction().__enter__):
            with pytest.raises(NotMigrated, match="run `duly migrate`"):
                verb()
        schemas = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'duly'")
        assert schemas.fetchall() == []
    app.close()


@pytest.mark.parametrize("table", ["jobs", "history", "workers", "queues"])
def test_a_missing_table_gives_one_clear_error(
    app: Duly, db: Database, act: Any, hire: Hire, table: str
):
    job = app.run(act)
    app.queues.pause("default")
    cascade = "" if db.is_sqlite else " CASCADE"
    if db.is_sqlite:
        db.execute("DROP VIEW @all_jobs")
    db.execute(f"DROP TABLE @{table}{cascade}")
    verbs: dict[str, list[Any]] = {
        "jobs": [lambda: app.run(act), job.cancel, lambda: app.run_many([act.bind()])],
        "history": [app.jobs, job.cancel, lambda: app.cancel_all(act)],
        "workers": [app.workers, app.start],
        "queues": [app.queues.paused, lambda: app.queues.resume("default")],
    }
    for verb in verbs[table]:
        with pytest.raises(NotMigrated, match=table):
            verb()
    if table == "jobs":
        with pytest.raises(NotMigrated), app.transaction() as tx:
            tx.run(act)
    else:
        assert db.count("@jobs") == 1


def test_a_store_that_needs_newer_code_is_refused_and_left_as_it_is(
    app: Duly, db: Database, act: Any
):
    app.run(act)
    db.execute("UPDATE @meta SET value = '99' WHERE key = 'min_code'")
    db.execute("UPDATE @meta SET value = '100' WHERE key = 'version'")
    app.close()
    before = db.snapshot()

    for verb in (lambda: app.run(act), app.start, app.jobs, app.transaction().__enter__):
        with pytest.raises(StoreTooNew, match="requires code of schema version 99 or newer"):
            verb()
    assert db.snapshot() == before


def test_a_store_that_is_newer_but_still_allows_this_code_is_used(
    app: Duly, db: Database, act: Any
):
    db.execute("UPDATE @meta SET value = '100' WHERE key = 'version'")
    app.close()

    assert app.run(act).state == "pending"


def test_a_store_migrated_by_another_build_is_refused(app: Duly, db: Database, act: Any):
    db.execute("UPDATE @migrations SET checksum = 'different'")
    app.close()
    with pytest.raises(StoreError, match="different text"):
        app.migrate()


# Read-only and full


@pytest.mark.new_database
def test_a_read_only_server_gives_one_clear_error(postgres_url: str):
    app = Duly(postgres_url)
    app.migrate()

    @app.action
    def act(ctx: Ctx) -> None: ...

    job = app.run(act)
    app.close()
    name = postgres_url.rpartition("/")[2]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    for verb in (lambda: app.run(act), job.cancel, app.start, lambda: app.queues.pause("a")):
        with pytest.raises(StoreReadOnly, match="read-only transaction"):
            verb()
    assert [found.id for found in app.jobs()] == [job.id]
    app.close()


READ_ONLY_CHILD = """
    import sys
    from duly import Ctx, Duly, errors
    from tests.rights import obey_modes
    app = Duly(sys.argv[1])

    @app.action
    def act(ctx: Ctx) -> None: ...

    obey_modes()
    for name, verb in {
        "run": lambda: app.run(act),
        "cancel": lambda: app.cancel_all(act),
        "pause": lambda: app.queues.pause("a"),
        "transaction": lambda: app.transaction().__enter__(),
        "start": app.start,
        "migrate": app.migrate,
    }.items():
        try:
            verb()
            print(name, "did not raise")
        except errors.StoreReadOnly as error:
            print(name, "StoreReadOnly", len(str(error).splitlines()))
        except BaseException as error:
            print(name, repr(error))
    print("refused", flush=True)
    sys.stdin.readline()
    app.run(act)
    with app.transaction() as tx:
        tx.run(act)
    print(len(app.jobs()))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that can be removed in the end, whatever a test did to it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
        os.chmod(folder, 0o755)


@pytest.mark.parametrize("what", ["file", "folder", "both"])
def test_a_read_only_file_gives_one_clear_error(open_folder: Path, what: str):
    """In a process that file permissions bind, as they do not bind root."""
    file = open_folder / "shop.db"
    app = Duly(f"sqlite:///{file}")

    @app.action
    def act(ctx: Ctx) -> None: ...

    app.migrate()
    app.run(act)
    app.close()
    before = file.read_bytes()
    make_writable(*open_folder.rglob("*"))
    if what in ("file", "both"):
        file.chmod(0o444)
    if what in ("folder", "both"):
        (open_folder / "shop.db-duly").chmod(0o555)
        open_folder.chmod(0o555)
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(READ_ONLY_CHILD), f"sqlite:///{file}"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    verbs = ("run", "cancel", "pause", "transaction", "start", "migrate")
    told = [line.strip() for line in iter(child.stdout.readline, "refused\n") if line]
    assert told == [f"{verb} StoreReadOnly 1" for verb in verbs]
    assert file.read_bytes() == before

    make_writable(open_folder, *open_folder.rglob("*"))
    output, errors = child.communicate("\n", timeout=60)
    assert (output, errors) == ("3\n", "")


def make_writable(*paths: Path) -> None:
    """For everybody."""
    for path in paths:
        path.chmod(0o777 if path.is_dir() else 0o666)


def test_a_full_database_gives_one_clear_error_and_keeps_what_it_has(
    app: Duly, db: Database, act: Any, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    kept = app.run(act, "kept")
    refill = _fill_up(app, db, monkeypatch)
    for verb in (
        lambda: app.run(act, "x" * 100_000),
        lambda: app.run_many(act.bind("x" * 10_000) for _ in range(20)),
    ):
        with pytest.raises(StoreFull, match="nothing was written"):
            verb()
    with pytest.raises(StoreFull), app.transaction() as tx:
        tx.run(act, "x" * 100_000)
    assert [job.id for job in app.jobs()] == [kept.id]

    refill()
    app.run(act, "x" * 100_000)
    hire().work()
    assert kept.state == "succeeded"
    assert db.count("@history") == 2


def _fill_up(app: Duly, db: Database, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Leave no room in the database; how to make room again."""
    if not db.is_sqlite:
        db.execute(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " RAISE EXCEPTION 'could not extend file: No space left' USING ERRCODE = '53100';"
            " END $$"
        )
        db.execute(
            "CREATE TRIGGER fail BEFORE INSERT ON @jobs FOR EACH ROW EXECUTE FUNCTION fail()"
        )
        return lambda: db.execute("DROP TRIGGER fail ON @jobs")
    connect = SqliteStore.connect

    def small(store: SqliteStore) -> sqlite3.Connection:
        connection = connect(store)
        connection.execute("PRAGMA max_page_count = 1")
        return connection

    app.close()
    monkeypatch.setattr(SqliteStore, "connect", small)

    def make_room() -> None:
        app.close()
        monkeypatch.setattr(SqliteStore, "connect", connect)

    return make_room


@on_sqlite
def test_a_locked_database_gives_one_clear_error(
    app: Duly, db: Database, act: Any, monkeypatch: pytest.MonkeyPatch
):
    lose_patience(app, monkeypatch)
    other = db.connect()
    other.execute("BEGIN IMMEDIATE")
    for verb in (lambda: app.run(act), lambda: app.transaction().__enter__()):
        with pytest.raises(StoreUnavailable, match="is a transaction left open somewhere"):
            verb()
    other.execute("ROLLBACK")

    assert app.run(act).state == "pending"
    assert db.count("@jobs") == 1


@on_postgres
def test_connections_that_the_server_has_ended_are_replaced_unseen(
    app: Duly, db: Database, act: Any, hire: Hire
):
    """As after a restart of the server, or a proxy that closes what is idle."""
    others = "datname = current_database() AND pid <> pg_backend_pid()"

    def all_gone() -> bool:
        # Repeatedly: the thread that rings for the last verb may connect only now.
        db.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
        return not db.count(f"pg_stat_activity WHERE {others}")

    def hang_up() -> None:
        wait_until(all_gone)

    @app.mutation
    def note(tx: Tx) -> None:
        tx.execute("INSERT INTO notes VALUES ('x')")

    @app.action
    def schedule(ctx: Ctx) -> None:
        hang_up()
        ctx.run(act)

    def in_transaction() -> None:
        with app.transaction() as tx:
            tx.run(act)

    worker = hire()
    job = app.run(note)
    worker.work()
    for verb in (
        lambda: app.run(act),
        lambda: app.run_many([act.bind()]),
        lambda: app.job(job.id),
        job.cancel,
        lambda: app.cancel_all(act),
        lambda: app.queues.pause("other"),
        in_transaction,
        app.workers,
        lambda: app.run(schedule),
        worker.work,
        lambda: app.run(note),
        worker.work,
    ):
        hang_up()
        verb()

    assert [found.state for found in app.jobs(function=schedule)] == ["succeeded"]
    assert [found.record.system_retries for found in app.jobs(function=note)] == [0, 0]
    assert db.notes() == ["x", "x"]
