"""What `app.on` refuses, what it leaves to the handle, and what it never touches."""

import gc
import sqlite3
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, assert_type

import aiosqlite
import asyncpg  # type: ignore[import-untyped]
import django.db.utils
import psycopg
import psycopg2.extras  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa
import sqlalchemy.exc
from psycopg.rows import dict_row
from psycopg.types.json import JsonbDumper
from psycopg.types.numeric import FloatLoader
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from duly import AsyncOn, Ctx, Duly, On, Redact, State, Tx
from duly.calls.context import MAX_JOBS_PER_MUTATION
from duly.errors import BadInput, JobFailed, NotInTransaction, UseTx, WrongDatabase
from duly.testing import override
from tests.callers.handles import (
    Aiosqlite,
    Alchemy,
    AlchemySession,
    AsyncAlchemySession,
    Asyncpg,
    AsyncPsycopg,
    Caller,
    Django,
    OwnTransaction,
    Psycopg,
    Psycopg2,
    Sqlite3,
    over,
    record_of,
)
from tests.jobs.support import Database, on_postgres, on_sqlite, prepare
from tests.loopback import sitecustomize as loopback
from tests.postgres import fresh_database

pytestmark = pytest.mark.spec("N5")


# Another database --------------------------------------------------------------------------------


# Whoever is refused leaves nothing there, so one of each serves every test.
@pytest.fixture(scope="module")
def empty_postgres(postgres_server: str) -> Iterator[str]:
    with fresh_database(postgres_server) as other:
        yield other


@pytest.fixture(scope="module")
def other_postgres(postgres_server: str) -> Iterator[str]:
    with fresh_database(postgres_server) as other:
        prepare(Duly(other)).close()
        yield other


@pytest.fixture
def elsewhere(url: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """An empty database beside the app's."""
    if url.startswith("sqlite"):
        return f"sqlite:///{tmp_path}/elsewhere.db"
    empty: str = request.getfixturevalue("empty_postgres")
    return empty


@pytest.fixture
def another_store(url: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A database with the tables of another app."""
    if url.startswith("sqlite"):
        prepare(Duly(f"sqlite:///{tmp_path}/another.db")).close()
        return f"sqlite:///{tmp_path}/another.db"
    other: str = request.getfixturevalue("other_postgres")
    return other


def refuses(app: Duly, caller: Caller, hello: Any, reason: str) -> bool:
    """The handle is refused, and can go on."""
    for _ in range(2):
        with pytest.raises(WrongDatabase, match=reason):
            caller.on(app).run(hello, "world")
    caller.execute("SELECT 1")
    caller.close()
    return app.jobs() == []


def test_a_database_without_dulys_tables_is_the_wrong_one(app, caller, elsewhere, hello):
    if not isinstance(caller, OwnTransaction):
        assert refuses(app, type(caller)(elsewhere), hello, "no duly tables; the app's store is in")


def test_a_database_with_another_store_is_the_wrong_one(app, caller, another_store, hello):
    assert refuses(app, type(caller)(another_store), hello, "the tables of another duly store")
    other = Duly(another_store)
    assert other.jobs() == []
    other.close()


def test_both_databases_are_named(app: Duly, elsewhere: str, url: str, hello):
    caller = Sqlite3(elsewhere) if url.startswith("sqlite") else Psycopg(elsewhere)
    with pytest.raises(WrongDatabase) as refused:
        caller.on(app).run(hello, "world")
    caller.close()

    for name in (url, elsewhere):
        assert name.rpartition("/")[2] in str(refused.value)


@on_postgres
@pytest.mark.parametrize("kind", [Sqlite3, Aiosqlite, Alchemy, Django])
def test_a_handle_for_sqlite_does_not_suit_postgresql(app: Duly, kind, hello, tmp_path: Path):
    assert refuses(app, kind(f"sqlite:///{tmp_path}/mine.db"), hello, "a handle for SQLite")


@on_sqlite
@pytest.mark.parametrize(
    "kind", [Psycopg, Psycopg2, AsyncPsycopg, Asyncpg, over(Alchemy, "psycopg"), Django]
)
def test_a_handle_for_postgresql_does_not_suit_sqlite(app: Duly, kind, hello, postgres_url: str):
    assert refuses(app, kind(postgres_url), hello, "a handle for PostgreSQL")


def test_a_database_of_another_kind_is_the_wrong_one(app: Duly, hello):
    engine = sa.create_mock_engine("mysql://", lambda *_: None)
    session: Any = Session()
    session.connection = lambda: engine
    with pytest.raises(WrongDatabase, match="mysql"):
        app.on(session).run(hello, "world")


@pytest.mark.spec("N60")
@on_sqlite
@pytest.mark.parametrize("kind", [Asyncpg, over(AsyncAlchemySession, "asyncpg"), Psycopg])
def test_inside_override_the_error_says_how_to_name_the_database(app, kind, hello, postgres_url):
    with override(app):
        assert refuses(app, kind(postgres_url), hello, "DULY_TEST_URL or duly_test_url")


@pytest.mark.spec("N60")
def test_only_inside_override_is_there_talk_of_it(app: Duly, elsewhere: str, url: str, hello):
    def error() -> str:
        caller = Sqlite3(elsewhere) if url.startswith("sqlite") else Psycopg(elsewhere)
        with pytest.raises(WrongDatabase, match="no duly tables") as refused:
            caller.on(app).run(hello, "world")
        caller.close()
        return str(refused.value)

    with override(app, url):
        assert "override()" in error()
    assert "override()" not in error()


# Other refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "handle", [None, "sqlite:///shop.db", object(), sa.create_engine("sqlite://")]
)
def test_an_unknown_handle_is_refused_with_a_list(app: Duly, handle: Any):
    with pytest.raises(BadInput, match=r"sqlite3, aiosqlite, psycopg.*SQLAlchemy.*Django"):
        app.on(handle)


def test_inside_a_mutation_only_tx_may_touch_the_store(app: Duly, db: Database, hello, hire):
    early = app.on(db.connect())

    @app.mutation
    def through_a_handle(tx: Tx) -> None:
        app.on(tx.connection).run(hello, "never")

    @app.mutation
    def through_an_old_one(tx: Tx) -> None:
        early.run(hello, "never")

    jobs = [app.run(through_a_handle), app.run(through_an_old_one)]
    hire().work()

    for job in jobs:
        with pytest.raises(JobFailed, match=r"UseTx: app\.on inside a mutation"):
            job.result()
    assert len(app.jobs()) == 2


def test_a_mutation_called_by_an_action_is_one_too(app: Duly, hello, hire):
    @app.mutation
    def inner(tx: Tx) -> None:
        with pytest.raises(UseTx):
            app.on(tx.connection)

    @app.action
    def outer(ctx: Ctx) -> None:
        ctx.call(inner)

    job = app.run(outer)
    hire().work()

    assert job.state == State.SUCCEEDED


def test_the_limits_are_those_of_the_app(app: Duly, caller: Caller, db, hello, monkeypatch):
    monkeypatch.setattr("duly.calls.context.MAX_BYTES_PER_MUTATION", 1_000)
    caller.on(app).run_many(hello.bind("x" * 10) for _ in range(1_500))
    caller.commit()

    assert db.count("@jobs") == 1_500 > MAX_JOBS_PER_MUTATION


def test_a_session_that_must_be_begun_is_not_begun(app: Duly, url: str, hello):
    caller = (
        AlchemySession(url) if url.startswith("sqlite") else over(AlchemySession, "psycopg")(url)
    )
    session = Session(caller.handle.get_bind(), autobegin=False)

    with pytest.raises(NotInTransaction, match="with session"):
        app.on(session).run(hello, "world")
    with session.begin():
        app.on(session).run(hello, "world")
    session.close()
    caller.close()

    assert len(app.jobs()) == 1


# The handle's own errors -------------------------------------------------------------------------


@on_sqlite
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (Sqlite3, sqlite3.OperationalError),
        (Aiosqlite, sqlite3.OperationalError),
        (Alchemy, sqlalchemy.exc.OperationalError),
        (AsyncAlchemySession, sqlalchemy.exc.OperationalError),
        (Django, django.db.utils.OperationalError),
    ],
)
def test_a_locked_database_is_the_callers_to_handle(app: Duly, url: str, db, kind, error, hello):
    holder = db.connect()
    options = {"timeout": 0} if kind in (Sqlite3, Aiosqlite) else {"connect_args": {"timeout": 0}}
    caller = kind(url, options) if kind is not Django else ImpatientDjango(url)
    holder.execute("BEGIN IMMEDIATE")

    with pytest.raises(error, match="locked"):
        caller.on(app).run(hello, "world")

    holder.execute("ROLLBACK")
    caller.rollback()
    caller.on(app).run(hello, "world")
    caller.commit()
    caller.close()
    assert len(app.jobs()) == 1


class ImpatientDjango(Django):
    def database(self) -> dict[str, Any]:
        return super().database() | {"OPTIONS": {"timeout": 0}}


@on_postgres
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (Psycopg, psycopg.errors.InFailedSqlTransaction),
        (Psycopg2, psycopg2.errors.InFailedSqlTransaction),
        (AsyncPsycopg, psycopg.errors.InFailedSqlTransaction),
        (Asyncpg, asyncpg.InFailedSQLTransactionError),
        (over(Alchemy, "psycopg2"), sqlalchemy.exc.InternalError),
        (Django, django.db.utils.InternalError),
    ],
)
def test_a_failed_transaction_is_the_callers_to_handle(app: Duly, url: str, kind, error, hello):
    caller = kind(url)
    caller.on(app).jobs()
    with pytest.raises(Exception, match="zero"):
        caller.execute("SELECT 1/0")

    with pytest.raises(error, match="current transaction is aborted"):
        caller.on(app).run(hello, "world")
    caller.close()


# What nobody is shown -----------------------------------------------------------------------------


def test_redacted_arguments_stay_hidden(app: Duly, caller: Caller):
    @app.action
    def log_in(ctx: Ctx, token: Annotated[str, Redact]) -> None: ...

    on = caller.on(app)
    job = on.run(log_in, "secret")
    (listed,) = on.jobs()

    for seen in (on.job(job.id), listed):
        assert "secret" not in record_of(caller, seen).args
        assert "secret" not in seen._record.args


# Settings of the handle --------------------------------------------------------------------------


def shout(value: bytes) -> str:
    return value.decode().upper()


@pytest.fixture
def converters() -> Iterator[None]:
    for type_ in ("text", "integer"):
        sqlite3.register_converter(type_, shout)
    yield
    for type_ in ("text", "integer"):
        sqlite3.converters.pop(type_.upper())


def looks_through(app: Duly, caller: Caller, hello: Any) -> None:
    """Whatever is set on the handle, duly reads what it wrote."""
    on = caller.on(app)
    job = on.run(hello, "world")
    (listed,) = on.jobs(state="pending")
    assert record_of(caller, on.job(job.id)).args == '{"name":"world"}'
    assert record_of(caller, listed).priority == 5
    on.cancel(job)
    assert record_of(caller, on.job(job.id)).state == State.CANCELED
    caller.rollback()


@on_sqlite
@pytest.mark.parametrize("kind", [Sqlite3, Aiosqlite])
def test_settings_of_sqlite3_reach_nothing(app: Duly, url: str, kind, converters, hello):
    class Odd(sqlite3.Connection):
        def cursor(self, *args: Any) -> Any:
            raise AssertionError("a cursor of the user's")

    both = sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES
    caller = kind(url, {"detect_types": both, "factory": Odd})
    caller.handle.row_factory = row_factory = lambda cursor, row: {"a": "dict"}
    caller.handle.text_factory = shout

    looks_through(app, caller, hello)

    assert caller.handle.row_factory is row_factory
    assert caller.handle.text_factory is shout
    caller.close()


@on_sqlite
@pytest.mark.parametrize("kind", [Alchemy, AsyncAlchemySession])
def test_settings_of_sqlite3_below_sqlalchemy_reach_nothing(
    app: Duly, url: str, kind, converters, hello
):
    both = sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES
    caller = kind(url, {"connect_args": {"detect_types": both}})
    looks_through(app, caller, hello)
    caller.close()


@on_postgres
@pytest.mark.parametrize("kind", [Psycopg, AsyncPsycopg])
def test_settings_of_psycopg_reach_nothing(app: Duly, url: str, kind, hello):
    cursors = {Psycopg: psycopg.ClientCursor, AsyncPsycopg: psycopg.AsyncClientCursor}
    caller = kind(url, {"row_factory": dict_row, "cursor_factory": cursors[kind]})
    caller.handle.adapters.register_loader("int8", FloatLoader)
    caller.handle.adapters.register_loader("text", FloatLoader)
    caller.handle.adapters.register_dumper(list, JsonbDumper)

    looks_through(app, caller, hello)
    caller.close()


@on_postgres
def test_settings_of_psycopg2_reach_nothing(app: Duly, url: str, hello):
    caller = Psycopg2(url, {"cursor_factory": psycopg2.extras.RealDictCursor})
    looks_through(app, caller, hello)
    caller.close()


@on_postgres
def test_settings_of_asyncpg_reach_nothing(app: Duly, url: str, hello):
    class Odd(asyncpg.Record):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter(())

    caller = Asyncpg(url, {"record_class": Odd})
    for type_ in ("json", "jsonb"):
        caller.wait(
            caller.handle.set_type_codec(type_, encoder=repr, decoder=len, schema="pg_catalog")
        )
    looks_through(app, caller, hello)
    caller.close()


@on_sqlite
@pytest.mark.parametrize(("autocommit", "works"), [(True, False), (False, True), (-1, True)])
def test_autocommit_of_later_pythons_is_respected(app: Duly, url: str, autocommit, works, hello):
    class Later(sqlite3.Connection):
        """On any Python."""

    setattr(Later, "autocommit", autocommit)  # noqa: B010
    caller = Sqlite3(url, {"factory": Later})
    if works:
        caller.on(app).run(hello, "world")
        caller.commit()
    else:
        with pytest.raises(NotInTransaction):
            caller.on(app).run(hello, "world")
    caller.close()

    assert len(app.jobs()) == works


@on_sqlite
def test_reading_begins_nothing_where_the_handle_would_not(app: Duly, url: str, hello):
    caller = Sqlite3(url)
    app.run(hello, "world")

    assert len(caller.on(app).jobs()) == 1
    assert not caller.handle.in_transaction
    caller.close()


@on_sqlite
@pytest.mark.parametrize("kind", [Sqlite3, Alchemy])
def test_what_is_canceled_was_looked_at_in_the_same_transaction(app: Duly, url: str, kind, hello):
    """Python begins only before a write, when the job looked at may have been moved by another."""
    job = app.run(hello, "world")
    caller = kind(url)
    raw = caller.handle if kind is Sqlite3 else caller.handle.connection.driver_connection
    statements: list[str] = []
    raw.set_trace_callback(statements.append)
    caller.on(app).cancel(job)
    caller.rollback()
    caller.close()

    assert statements[0].startswith("BEGIN")


# SQLAlchemy's sessions ---------------------------------------------------------------------------


@on_postgres
def test_a_session_rings_once_when_it_commits_and_not_for_savepoints(
    app: Duly, url: str, hello, monkeypatch
):
    rung: list[str] = []
    monkeypatch.setattr(app.core, "wake", lambda: rung.append("rung"))
    caller = over(AlchemySession, "psycopg")(url)
    session = caller.handle

    with session.begin_nested():
        app.on(session).run(hello, "a")
        app.on(session).run(hello, "b")
    assert rung == []
    session.commit()
    assert rung == ["rung"]
    session.execute(sa.text("SELECT 1"))
    session.commit()
    app.on(session, notify=False).run(hello, "c")
    session.commit()
    app.on(session).run_after(3600, hello, "d")
    session.commit()
    assert rung == ["rung"]
    app.on(session).run(hello, "e")
    session.commit()
    caller.close()
    assert rung == ["rung", "rung"]


def test_a_session_is_not_kept(app: Duly, url: str, hello):
    caller = (
        AlchemySession(url) if url.startswith("sqlite") else over(AlchemySession, "psycopg")(url)
    )
    session = Session(caller.handle.get_bind())
    app.on(session).run(hello, "world")
    session.commit()
    session.close()
    forgotten = weakref.ref(session)
    del session
    gc.collect()
    caller.close()

    assert forgotten() is None


# Libraries ---------------------------------------------------------------------------------------

LONELY = """
import sqlite3, sys
from duly import Ctx, Duly
app = Duly("sqlite:///lonely.db")
app.migrate()
@app.action
def hello(ctx: Ctx) -> None: ...
connection = sqlite3.connect("lonely.db")
app.on(connection).run(hello)
connection.commit()
assert len(app.jobs()) == 1
app.close()
others = {"sqlalchemy", "django", "asyncpg", "aiosqlite", "psycopg", "psycopg2"}
assert not others & set(sys.modules), others & set(sys.modules)
"""

OLD_DJANGO = """
import sys
sys.modules["psycopg"] = None
import django.db.backends.postgresql.base
del sys.modules["psycopg"]
from tests.callers.handles import Django
from duly import Ctx, Duly
app = Duly(sys.argv[1])
@app.action
def hello(ctx: Ctx) -> None: ...
caller = Django(sys.argv[1])
caller.on(app).run(hello)
assert type(caller.handle.connection).__module__.startswith("psycopg2")
caller.rollback()
assert app.jobs() == []
caller.on(app).run(hello)
caller.commit()
assert len(app.jobs()) == 1
caller.close()
app.close()
"""


def run(code: str, *args: str, folder: Path) -> None:
    script = folder / "script.py"
    script.write_text(code, encoding="utf-8")
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, str(script), *args],
        cwd=folder,
        env={"PYTHONPATH": f"{loopback.HERE}:{root}:{root / 'src'}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


def test_no_library_is_imported_that_the_caller_does_not_use(tmp_path: Path):
    run(LONELY, folder=tmp_path)


@on_postgres
def test_django_with_psycopg2(app: Duly, url: str, tmp_path: Path):
    run(OLD_DJANGO, url, folder=tmp_path)


if TYPE_CHECKING:

    def what_the_type_checkers_infer(
        app: Duly,
        plain: sqlite3.Connection,
        aio: aiosqlite.Connection,
        pg: psycopg.Connection[Any],
        async_pg: psycopg.AsyncConnection[Any],
        connection: sa.Connection,
        session: Session,
        scoped: scoped_session[Session],
        async_connection: AsyncConnection,
        async_session: AsyncSession,
        async_scoped: async_scoped_session[AsyncSession],
    ) -> None:
        assert_type(app.on(plain), On)
        assert_type(app.on(pg), On)
        assert_type(app.on(connection), On)
        assert_type(app.on(session), On)
        assert_type(app.on(scoped, notify=False), On)
        assert_type(app.on(aio), AsyncOn)
        assert_type(app.on(async_pg), AsyncOn)
        assert_type(app.on(async_connection), AsyncOn)
        assert_type(app.on(async_session), AsyncOn)
        assert_type(app.on(async_scoped), AsyncOn)
        app.on("sqlite:///shop.db")  # type: ignore[call-overload]
