"""SQL statements: each is written once, under one name, in the module of its verb.

A statement is one text for both databases if that works, and two if one would be slow or wrong.
`@jobs`, `@history` … stand for the tables, `@id`, `@state` … for a job's columns as they are read
(ids as text); parameters are `:name`. No statement takes "now" from the database: SERVER_TIME sets
the clock by it, and two others measure how long a transaction has been open.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal

from duly.model.job import LEFT_OUT, JobRecord
from duly.store.placeholders import Style, named_to_psycopg, named_to_style

Dialect = Literal["sqlite", "postgres"]
Table = Literal["jobs", "history", "kept"]
"""The tables that hold jobs."""

HISTORY_BUCKETS = 16
DAY_MS = 86_400_000
LISTED_BYTES = 8_192
"""Longer arguments and results are left out of lists."""


class Statement:
    """One statement in both dialects."""

    __slots__ = ("postgres", "sqlite")

    def __init__(self, sqlite: str, postgres: str) -> None:
        self.sqlite = sqlite
        self.postgres = postgres


def both(sql: str) -> Statement:
    return Statement(sql, sql)


def each(*, sqlite: str, postgres: str) -> Statement:
    return Statement(sqlite, postgres)


def words_for(dialect: Dialect, schema: str = "duly") -> dict[str, str]:
    """The replacements for the names behind an @."""
    prefix = "duly_" if dialect == "sqlite" else f"{schema}."
    tables = "jobs history kept workers queues functions meta migrations".split()
    tables += "keys slots starts progress logs".split()
    tables += "schedules ticks calendars costs days audit declarations".split()
    tables += "tokens requests inbox endpoints gateways counters traces".split()
    tables += "steps events watches".split()
    columns = {column: _read_as(column, dialect) for column in RECORD_COLUMNS}
    short = {f"short_{name}": _short(name, dialect) for name in ("args", "result")}
    # SQLite would read through a long result to reach the arguments behind it, so short ones are
    # kept before it.
    before = f"coalesce(short_args, {short['short_args']})"
    short["final_args"] = before if dialect == "sqlite" else short["short_args"]
    return {table: prefix + table for table in tables} | columns | short | {"schema": schema}


def _read_as(column: str, dialect: Dialect) -> str:
    if dialect == "sqlite":
        # With a + in front a column has no declared type, so a user's converters do not apply to
        # it.
        return f"+{column}"
    return f"{column}::text" if column in _IDS else column


def _short(column: str, dialect: Dialect) -> str:
    """A column that may be long, for lists: longer values are not even loaded."""
    size = f"{column}_bytes" if dialect == "sqlite" else f"octet_length({column})"
    return f"CASE WHEN {size} > {LISTED_BYTES} THEN '{LEFT_OUT}' ELSE {column} END"


def render(sql: str, dialect: Dialect, words: dict[str, str]) -> str:
    """The text that the driver gets."""
    text = re.sub(r"@(\w+)", lambda match: words[match[1]], sql)
    return text if dialect == "sqlite" else named_to_psycopg(text)


@lru_cache(maxsize=1024)
def render_for(
    statement: Statement | str, dialect: Dialect, schema: str, style: Style
) -> tuple[str, tuple[str, ...] | None]:
    """The text for another driver, and the order of its parameters unless it takes names."""
    text = statement if isinstance(statement, str) else getattr(statement, dialect)
    words = words_for(dialect, schema)
    return named_to_style(re.sub(r"@(\w+)", lambda match: words[match[1]], text), style)


class Texts(dict[Statement, str]):
    """The texts of statements for one dialect and schema, each built when first used."""

    def __init__(self, dialect: Dialect, schema: str) -> None:
        super().__init__()
        self._dialect: Dialect = dialect
        self._words = words_for(dialect, schema)

    def __missing__(self, statement: Statement) -> str:
        text = render(getattr(statement, self._dialect), self._dialect, self._words)
        self[statement] = text
        return text


@lru_cache(maxsize=16)
def texts(dialect: Dialect, schema: str = "duly") -> Texts:
    """The text that the driver gets for each statement."""
    return Texts(dialect, schema)


def named_statements() -> Iterator[tuple[str, Statement]]:
    """Every statement of the loaded modules, with its name."""
    stores = [module for name, module in sys.modules.items() if name.startswith("duly.store")]
    for module in stores:
        yield from ((name, s) for name, s in vars(module).items() if isinstance(s, Statement))


# Columns -----------------------------------------------------------------------------------------

_IDS = "id parent_id worker_id retry_of hook_id batch_id".split()
_TIMES = "created_at scheduled_at run_at expires_at timeout_ms".split()
_TYPES: dict[str, str] = {"priority": "int2"}
_TYPES.update((name, "uuid") for name in _IDS)
_TYPES.update((name, "int8") for name in _TIMES)


class Fields:
    """The columns of an insert."""

    def __init__(self, names: Sequence[str]) -> None:
        self.columns = ", ".join(names)
        self.values = ", ".join(["?"] * len(names))
        self.named = ", ".join(f":{name}" for name in names)
        self.arrays = ", ".join(f":{name}::{_TYPES.get(name, 'text')}[]" for name in names)


RECORD_COLUMNS = JobRecord.__struct_fields__


# PostgreSQL only ---------------------------------------------------------------------------------


# Each statement has to see what was committed before it, whatever the database's default is.
BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED"
# At these levels a statement does not see what was committed after the first one of its
# transaction.
SNAPSHOT_LEVELS = ("repeatable read", "serializable")
