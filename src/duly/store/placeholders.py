"""Converts the parameter placeholders of statements for each driver.

Only code is translated: literals, quoted identifiers and comments stay as they are. psycopg looks
for `%` in the whole text, including those parts, so every literal `%` is doubled. Its `execute`
must then always be given parameters, an empty tuple if there are none; otherwise it does not undo
the doubling.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Literal

Style = Literal["named", "numeric_dollar", "format", "pyformat"]
"""How a driver's parameters are written: PEP 249's paramstyle, and `$1` for asyncpg."""

# An unclosed literal reaches to the end; the database then reports the error.
_POSTGRES_OPAQUE = re.compile(
    r"""
      (?<![\w$]) [eE] ' (?:[^'\\] | \\. | '')* (?:'|\Z)     # E'…' with escapes,
        (?:\s+ ' (?:[^'\\] | \\. | '')* (?:'|\Z))*          #   continued on further lines
    | ' [^']* (?:'|\Z)                                      # '…'; a doubled '' is two in a row
    | " [^"]* (?:"|\Z)
    | -- [^\r\n]*
    | /\*                                                   # comments nest: see _comment_end
    | (?<![\w$]) \$ ((?:[^\W\d]\w*)?) \$ .*? (?:\$\1\$|\Z)   # $$…$$, $tag$…$tag$
    """,
    re.VERBOSE | re.DOTALL,
)
_SQLITE_OPAQUE = re.compile(
    r"""
      ' [^']* (?:'|\Z)
    | " [^"]* (?:"|\Z)
    | ` [^`]* (?:`|\Z)
    | \[ [^\]]* (?:\]|\Z)
    | -- [^\n]*
    | /\* .*? (?:\*/|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)
_MARK = re.compile(r"\?\??|%")
_NAME = re.compile(r"::|:([A-Za-z_]\w*)|%")
_POSTGRES_MARKS = {"?": "%s", "??": "?", "%": "%%"}


@lru_cache(maxsize=1024)
def to_psycopg(sql: str) -> str:
    """Write `?` as psycopg's `%s`; `??` is the operator `?`."""
    return _rewrite_postgres(sql, lambda code: _MARK.sub(_psycopg_mark, code))


@lru_cache(maxsize=1024)
def named_to_psycopg(sql: str) -> str:
    """Write `:name` as psycopg's `%(name)s`; casts such as `::text` stay."""
    return _rewrite_postgres(sql, lambda code: _NAME.sub(_psycopg_name, code))


@lru_cache(maxsize=1024)
def to_sqlite(sql: str) -> str:
    """Leave `?` as it is; `??` is a literal `?`, as on PostgreSQL."""
    pieces = _pieces(sql, _SQLITE_OPAQUE)
    return "".join(code.replace("??", "?") + opaque for code, opaque in pieces)


def named_to_style(sql: str, style: Style) -> tuple[str, tuple[str, ...] | None]:
    """Write `:name` in the style of any driver, for duly's own statements.

    The second value is the order of the parameters for a driver that counts them; None if it takes
    names.
    """
    if style == "named":
        return sql, None
    if style == "pyformat":
        return named_to_psycopg(sql), None
    order: list[str] = []

    def mark(match: re.Match[str]) -> str:
        if not match[1]:
            return match[0].replace("%", escape)
        if style == "format" or match[1] not in order:
            order.append(match[1])
        return "%s" if style == "format" else f"${order.index(match[1]) + 1}"

    pieces = _pieces(sql, _POSTGRES_OPAQUE)
    escape = "%%" if style == "format" else "%"
    text = "".join(_NAME.sub(mark, code) + raw.replace("%", escape) for code, raw in pieces)
    return text, tuple(order)


def _rewrite_postgres(sql: str, rewrite: Callable[[str], str]) -> str:
    pieces = _pieces(sql, _POSTGRES_OPAQUE)
    return "".join(rewrite(code) + opaque.replace("%", "%%") for code, opaque in pieces)


def _psycopg_mark(match: re.Match[str]) -> str:
    return _POSTGRES_MARKS[match[0]]


def _psycopg_name(match: re.Match[str]) -> str:
    if match[1]:
        return f"%({match[1]})s"
    return match[0].replace("%", "%%")


def _pieces(sql: str, opaque: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Cut a statement into pairs of code and the literal or comment that follows it."""
    at = 0
    while match := opaque.search(sql, at):
        end = _comment_end(sql, match.end()) if match[0] == "/*" else match.end()
        yield sql[at : match.start()], sql[match.start() : end]
        at = end
    yield sql[at:], ""


def _comment_end(sql: str, at: int) -> int:
    """The end of the comment that starts just before `at`, including nested comments."""
    depth = 1
    for edge in re.finditer(r"/\*|\*/", sql[at:]):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return at + edge.end()
    return len(sql)
