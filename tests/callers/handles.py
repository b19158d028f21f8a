"""Every handle that `app.on` takes, behind one face: begin, write, commit, roll back.

A caller owns a connection of its own to the app's database. What is awaited is run to its end in an
event loop of the caller's, so that a test reads the same for every handle.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import aiosqlite
import asyncpg  # type: ignore[import-untyped]
import django
import psycopg
import psycopg2  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa
from django.conf import settings
from django.db import transaction
from django.db.utils import ConnectionHandler
from django.utils.connection import ConnectionProxy
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from duly import AsyncJob, Duly, Job, Tx
from duly.model.job import JobRecord

T = TypeVar("T")


class Caller:
    """User code with a handle. `handle` is what it gives to `app.on`."""

    handle: Any

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        self.url = url
        self.path = url.removeprefix("sqlite:///")
        self.options = options or {}
        self.stack = ExitStack()
        self.connect()

    def connect(self) -> None:
        raise NotImplementedError

    def connect_in_autocommit(self) -> None:
        raise NotImplementedError

    def execute(self, text: str) -> None:
        self.handle.execute(text)

    def commit(self) -> None:
        self.handle.commit()

    def rollback(self) -> None:
        self.handle.rollback()

    @contextmanager
    def undone_savepoint(self) -> Iterator[None]:
        self.execute("SAVEPOINT mine")
        yield
        self.execute("ROLLBACK TO SAVEPOINT mine")

    def wait(self, value: Any) -> Any:
        """What an async handle gives is awaited."""
        return value

    def on(self, app: Duly, **how: Any) -> Verbs:
        return Verbs(self, app.on(self.handle, **how))

    def close(self) -> None:
        self.stack.close()


class Verbs:
    """The verbs of `app.on(handle)`, each run to its end."""

    def __init__(self, caller: Caller, on: Any) -> None:
        self._caller = caller
        self._on = on

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        method = getattr(self._on, verb)
        return lambda *args, **kwargs: self._caller.wait(method(*args, **kwargs))


class AsyncCaller(Caller):
    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        self.runner = asyncio.Runner()
        super().__init__(url, options)
        self.stack.callback(self.runner.close)

    def wait(self, value: Awaitable[T]) -> T:
        async def to_its_end() -> T:
            return await value

        return self.runner.run(to_its_end())

    def execute(self, text: str) -> None:
        self.wait(self.handle.execute(text))

    def commit(self) -> None:
        self.wait(self.handle.commit())

    def rollback(self) -> None:
        self.wait(self.handle.rollback())

    def close(self) -> None:
        self.wait(self.end())
        super().close()

    async def end(self) -> None:
        await self.handle.close()


def record_of(caller: Caller, job: Job[Any] | AsyncJob[Any]) -> JobRecord:
    """Read a job that a verb gave."""
    record: JobRecord = caller.wait(job.record()) if isinstance(job, AsyncJob) else job.record
    return record


# Drivers -----------------------------------------------------------------------------------------


class Sqlite3(Caller):
    def connect(self) -> None:
        self.handle = sqlite3.connect(self.path, **self.options)
        self.stack.callback(self.handle.close)

    def connect_in_autocommit(self) -> None:
        self.handle.isolation_level = None


class OwnTransaction(Caller):
    """`tx.connection` inside `app.transaction()`."""

    def connect(self) -> None:
        self.app = Duly(self.url)
        self.block: Any = None

    @property
    def handle(self) -> Any:
        return self.tx.connection

    @property
    def tx(self) -> Tx:
        if self.block is None:
            self.block = self.app.transaction()
            self.own = self.block.__enter__()
        tx: Tx = self.own
        return tx

    def execute(self, text: str) -> None:
        self.tx.execute(text)

    def commit(self) -> None:
        block, self.block = self.block, None
        block.__exit__(None, None, None)

    def rollback(self) -> None:
        block, self.block = self.block, None
        assert not block.__exit__(ZeroDivisionError, ZeroDivisionError(), None)

    def close(self) -> None:
        if self.block is not None:
            self.rollback()
        self.app.close()


class Aiosqlite(AsyncCaller):
    def connect(self) -> None:
        async def connect() -> aiosqlite.Connection:
            return await aiosqlite.connect(self.path, **self.options)

        self.handle = self.wait(connect())

    def connect_in_autocommit(self) -> None:
        self.wait(self.handle.close())
        self.options = {"isolation_level": None}
        self.connect()


class Psycopg(Caller):
    def connect(self) -> None:
        self.handle = psycopg.connect(self.url, **self.options)
        self.stack.callback(self.handle.close)

    def connect_in_autocommit(self) -> None:
        self.handle.autocommit = True


class PsycopgBlock(Psycopg):
    """In autocommit, but inside a block."""

    def connect(self) -> None:
        super().connect()
        self.handle.autocommit = True
        self.handle.execute("BEGIN")

    def commit(self) -> None:
        self.handle.execute("COMMIT")
        self.handle.execute("BEGIN")

    def rollback(self) -> None:
        self.handle.execute("ROLLBACK")
        self.handle.execute("BEGIN")

    def connect_in_autocommit(self) -> None:
        self.handle.execute("ROLLBACK")


class Psycopg2(Caller):
    def connect(self) -> None:
        self.handle = psycopg2.connect(self.url, **self.options)
        self.stack.callback(self.handle.close)

    def connect_in_autocommit(self) -> None:
        self.handle.autocommit = True

    def execute(self, text: str) -> None:
        with self.handle.cursor() as cursor:
            cursor.execute(text)


class AsyncPsycopg(AsyncCaller):
    def connect(self) -> None:
        self.handle = self.wait(psycopg.AsyncConnection.connect(self.url, **self.options))

    def connect_in_autocommit(self) -> None:
        self.wait(self.handle.set_autocommit(True))


class Asyncpg(AsyncCaller):
    def connect(self) -> None:
        async def connect() -> Any:
            return await asyncpg.connect(self.url, **self.options)

        self.handle = self.wait(connect())
        self.begin()

    def begin(self) -> None:
        self.block = self.handle.transaction()
        self.wait(self.block.start())

    def commit(self) -> None:
        self.wait(self.block.commit())
        self.begin()

    def rollback(self) -> None:
        self.wait(self.block.rollback())
        self.begin()

    def connect_in_autocommit(self) -> None:
        self.wait(self.block.rollback())


class AsyncpgPool(Asyncpg):
    def connect(self) -> None:
        async def connect() -> Any:
            self.pool = await asyncpg.create_pool(self.url, min_size=1, max_size=1)
            return await self.pool.acquire()

        self.handle = self.wait(connect())
        self.begin()

    async def end(self) -> None:
        await self.pool.release(self.handle)
        await self.pool.close()


# SQLAlchemy --------------------------------------------------------------------------------------


class Alchemy(Caller):
    driver = ""

    def engine(self, **options: Any) -> sa.Engine:
        url = f"sqlite:///{self.path}"
        if self.driver:
            url = f"postgresql+{self.driver}://{self.url.partition('://')[2]}"
        engine = sa.create_engine(url, poolclass=sa.NullPool, **options)
        self.stack.callback(engine.dispose)
        return engine

    def connect(self) -> None:
        self.open(self.engine(**self.options))

    def connect_in_autocommit(self) -> None:
        self.handle.close()
        self.open(self.engine(isolation_level="AUTOCOMMIT"))

    def open(self, engine: sa.Engine) -> None:
        self.handle = engine.connect()
        self.stack.callback(self.handle.close)

    def execute(self, text: str) -> None:
        self.handle.execute(sa.text(text))

    @contextmanager
    def undone_savepoint(self) -> Iterator[None]:
        nested = self.handle.begin_nested()
        yield
        nested.rollback()


class AlchemySession(Alchemy):
    def open(self, engine: sa.Engine) -> None:
        self.handle = Session(engine)
        self.stack.callback(self.handle.close)


class AlchemyScoped(Alchemy):
    def open(self, engine: sa.Engine) -> None:
        self.handle = scoped_session(sessionmaker(engine))
        self.stack.callback(self.handle.remove)


class AsyncAlchemy(AsyncCaller):
    driver = ""

    def connect(self) -> None:
        self.wait(self.open(**self.options))

    def connect_in_autocommit(self) -> None:
        async def again() -> None:
            await self.end()
            await self.open(isolation_level="AUTOCOMMIT")

        self.wait(again())

    async def open(self, **options: Any) -> None:
        url = f"sqlite+aiosqlite:///{self.path}"
        if self.driver:
            url = f"postgresql+{self.driver}://{self.url.partition('://')[2]}"
        self.engine = create_async_engine(url, poolclass=sa.NullPool, **options)
        self.handle = await self.open_on(self.engine)

    async def open_on(self, engine: Any) -> Any:
        return await engine.connect()

    def execute(self, text: str) -> None:
        self.wait(self.handle.execute(sa.text(text)))

    @contextmanager
    def undone_savepoint(self) -> Iterator[None]:
        async def begin() -> Any:
            return await self.handle.begin_nested()

        nested = self.wait(begin())
        yield
        self.wait(nested.rollback())

    async def end(self) -> None:
        await self.handle.close()
        await self.engine.dispose()


class AsyncAlchemySession(AsyncAlchemy):
    async def open_on(self, engine: Any) -> Any:
        return AsyncSession(engine)


class AsyncAlchemyScoped(AsyncAlchemy):
    async def open_on(self, engine: Any) -> Any:
        return async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)


def over(kind: type[T], driver: str) -> type[T]:
    """The same with another driver."""
    return type(f"{kind.__name__}_{driver}", (kind,), {"driver": driver})


# Django ------------------------------------------------------------------------------------------

if not settings.configured:
    settings.configure()
    django.setup()


class Django(Caller):
    def connect(self) -> None:
        self.connections = ConnectionHandler({"default": self.database()})
        self.handle = self.pick()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(transaction, "connections", self.connections)
        self.stack.callback(self.patch.undo)
        self.stack.callback(self.connections.close_all)
        self.begin()

    def database(self) -> dict[str, Any]:
        if self.url.startswith("sqlite"):
            return {"ENGINE": "django.db.backends.sqlite3", "NAME": self.path}
        given = psycopg.conninfo.conninfo_to_dict(self.url)
        names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password"}
        names |= {"HOST": "host", "PORT": "port"}
        return {"ENGINE": "django.db.backends.postgresql"} | {
            key: given.get(name) or "" for key, name in names.items()
        }

    def pick(self) -> Any:
        return ConnectionProxy(self.connections, "default")

    def begin(self) -> None:
        self.atomic = transaction.atomic()
        self.atomic.__enter__()

    def execute(self, text: str) -> None:
        with self.handle.cursor() as cursor:
            cursor.execute(text)

    def commit(self) -> None:
        self.atomic.__exit__(None, None, None)
        self.begin()

    def rollback(self) -> None:
        self.connect_in_autocommit()
        self.begin()

    def connect_in_autocommit(self) -> None:
        self.atomic.__exit__(ZeroDivisionError, ZeroDivisionError(), None)

    @contextmanager
    def undone_savepoint(self) -> Iterator[None]:
        point = self.handle.savepoint()
        yield
        self.handle.savepoint_rollback(point)


class DjangoWrapper(Django):
    def pick(self) -> Any:
        return self.connections["default"]


ON_SQLITE: list[type[Caller]] = [
    Sqlite3,
    Aiosqlite,
    OwnTransaction,
    Alchemy,
    AlchemySession,
    AlchemyScoped,
    AsyncAlchemy,
    AsyncAlchemySession,
    AsyncAlchemyScoped,
    Django,
    DjangoWrapper,
]
ON_POSTGRES: list[type[Caller]] = [
    Psycopg,
    PsycopgBlock,
    AsyncPsycopg,
    Psycopg2,
    Asyncpg,
    AsyncpgPool,
    OwnTransaction,
    *(over(Alchemy, driver) for driver in ("psycopg", "psycopg2")),
    *(over(AlchemySession, driver) for driver in ("psycopg", "psycopg2")),
    over(AlchemyScoped, "psycopg"),
    *(over(AsyncAlchemy, driver) for driver in ("psycopg", "asyncpg")),
    *(over(AsyncAlchemySession, driver) for driver in ("psycopg", "asyncpg")),
    over(AsyncAlchemyScoped, "asyncpg"),
    Django,
    DjangoWrapper,
]
