"""Converts an alias of Django's DATABASES to a duly store."""

# Django has no type hints.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlencode

from django.db import connections as _connections
from django.db.backends.sqlite3._functions import register

from duly.clock import Clock
from duly.errors import InvalidOption
from duly.store.base import POOL
from duly.store.connect import make_store
from duly.store.sqlite import Connection, SqliteStore
from duly.store.table import Store

connections: Any = _connections
_register: Any = register

# OPTIONS that Django and psycopg use themselves; the rest is for libpq.
_NOT_FOR_LIBPQ = {
    *("assume_role", "isolation_level", "pool", "server_side_binding"),
    *("client_encoding", "context", "cursor_factory", "prepare_threshold", "row_factory"),
}


class LateStore:
    """The store of an alias, created on first use: a test runner renames the database."""

    def __init__(
        self, alias: str, clock: Clock, schema: str, pooler: bool, sync: str, pool: int
    ) -> None:
        self.alias = alias
        self._options = clock, schema, pooler, sync, pool
        self._made: Store | None = None
        self._name: object = None

    def made(self) -> Store:
        if self._made is None:
            self._name = _name(self.alias)
            self._made = _make(self.alias, *self._options)
        return self._made

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.made(), attribute)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()

    def leave_renamed(self) -> bool:
        """Close a database whose alias now stands for another one; False if it does not."""
        if self._made is None or self._name == _name(self.alias):
            return False
        self._made.close()
        self._made = None
        return True


def late_store(
    url: str,
    clock: Clock,
    schema: str,
    pooler: bool,
    synchronous: str,
    pool: int = POOL,
) -> Store:
    """Like `make_store`, with an alias of DATABASES in place of the URL."""
    return cast(Store, LateStore(url, clock, schema, pooler, synchronous, pool))


def _name(alias: str) -> object:
    # Not through connections[alias], which would create a connection object for each thread.
    return connections.settings[alias]["NAME"]


def _make(
    alias: str, clock: Clock, schema: str, pooler: bool, synchronous: str, pool: int
) -> Store:
    wrapper = connections[alias]
    if wrapper.vendor == "sqlite":
        return DjangoSqliteStore(sqlite_path(wrapper), synchronous=synchronous)
    if wrapper.vendor == "postgresql":
        url = postgres_url(wrapper.settings_dict)
        return make_store(url, clock, schema, pooler, synchronous, pool)
    raise _wrong(alias, f"is {wrapper.display_name}; duly supports SQLite and PostgreSQL")


def _wrong(alias: str, why: str) -> InvalidOption:
    return InvalidOption(f"DATABASES[{alias!r}]", why)


# SQLite ------------------------------------------------------------------------------------------


class DjangoSqliteStore(SqliteStore):
    """Its connections are set up as Django's own, so that the ORM can use them.

    Foreign keys must be switched on before a transaction starts.
    """

    def connect(self) -> Connection:
        raw = super().connect()
        _register(raw)
        raw.execute("PRAGMA foreign_keys = ON")
        raw.execute("PRAGMA legacy_alter_table = OFF")
        return raw


def sqlite_path(wrapper: Any) -> Path:
    name: str = os.fspath(wrapper.settings_dict["NAME"])
    if wrapper.is_in_memory_db():
        raise _wrong(
            wrapper.alias,
            "is in memory, where duly cannot share it; name a file, for tests as TEST: {'NAME': …}",
        )
    if name.startswith("file:"):
        raise _wrong(wrapper.alias, "is a URI; duly needs the path of the file as NAME")
    return Path(name).absolute()


# PostgreSQL --------------------------------------------------------------------------------------


def postgres_url(settings: dict[str, Any]) -> str:
    """The URL of the database to which Django itself connects."""
    given: dict[str, Any] = settings["OPTIONS"]
    parameters = {
        "dbname": settings["NAME"],
        "host": settings["HOST"],
        "port": settings["PORT"],
        **{key: value for key, value in given.items() if key not in _NOT_FOR_LIBPQ},
    }
    if role := given.get("assume_role"):
        parameters["options"] = f"{given.get('options', '')} -c role={_escaped(role)}".strip()
    chosen = {key: str(value) for key, value in parameters.items() if value not in ("", None)}
    return f"postgresql://{_who(settings)}/?{urlencode(chosen, quote_via=quote)}"


def _who(settings: dict[str, Any]) -> str:
    """The user and password, where tools that show URLs look for a password to hide."""
    user, password = quote(settings["USER"], safe=""), quote(settings["PASSWORD"], safe="")
    return f"{user}:{password}@" if password else f"{user}@" if user else ""


def _escaped(value: str) -> str:
    """Escaped for libpq, which splits `options` at spaces."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
