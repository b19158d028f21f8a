"""Exports lists as files: CSV for spreadsheets, JSON for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from starlette.responses import Response

from duly.server.answers import encoded, readable
from duly.server.api.common import Page

Format = Literal["csv", "json"]
MAX_ROWS = 10_000
"""The most rows in a file; a response header says whether there are more."""
MAX_BYTES = 32 << 20
"""The most bytes in a file, give or take one page."""
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""The last four are full-width forms, which some spreadsheets treat like the first four."""


def pages(ask: Callable[[str | None], Page[Any]]) -> tuple[list[dict[str, Any]], bool]:
    """The rows of a list, fetched page by page, and whether they are all of them."""
    rows: list[dict[str, Any]] = []
    cursor: str | None = None
    size = 0
    while len(rows) < MAX_ROWS and size < MAX_BYTES:
        page = ask(cursor)
        size += sum(len(encoded(item)) for item in page.items)
        rows += [readable(item) for item in page.items]
        if page.next is None:
            return rows, True
        cursor = page.next
    return rows, False


def export(rows: list[dict[str, Any]], name: str, format: Format, *, complete: bool) -> Response:
    text = _csv(rows) if format == "csv" else json.dumps(readable(rows), ensure_ascii=False)
    headers = {
        "Content-Disposition": f'attachment; filename="{name}.{format}"',
        "X-Duly-Complete": "true" if complete else "false",
    }
    kind = "text/csv; charset=utf-8" if format == "csv" else "application/json"
    return Response(text.encode("utf-8", "backslashreplace"), media_type=kind, headers=headers)


def _csv(rows: Iterable[Mapping[str, Any]]) -> str:
    listed = list(rows)
    file = io.StringIO()
    names = list(listed[0]) if listed else []
    # Quote every cell, so that a spreadsheet that separates cells by `;` does not split it.
    writer = csv.writer(file, quoting=csv.QUOTE_ALL)
    writer.writerow(names)
    writer.writerows([_cell(row[name]) for name in names] for row in listed)
    return file.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(readable(value), ensure_ascii=False)
    return f"'{text}" if isinstance(value, str) and _is_formula(text) else text


def _is_formula(text: str) -> bool:
    """Whether a spreadsheet would treat the text as a formula; some skip leading white space."""
    return text.lstrip().startswith(FORMULA) or text.startswith(("\t", "\r", "\n"))
