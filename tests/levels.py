"""PostgreSQL databases whose transactions are stricter than READ COMMITTED unless they say so.

A test marked `at_every_level` runs on SQLite, on PostgreSQL as it comes, and on databases of both
stricter levels. With `--long` all tests of FOLDERS do that use `url` and do not choose themselves.
"""

import pytest

READ_COMMITTED = "read committed"
STRICTER = ("repeatable read", "serializable")
FOLDERS = {"jobs", "schedules"}

STORES = [
    "sqlite",
    *(
        pytest.param(name, marks=pytest.mark.postgres)
        for name in ("postgres", *(f"postgres_{level.replace(' ', '_')}" for level in STRICTER))
    ),
]
at_every_level = pytest.mark.parametrize("url", STORES, indirect=True)


def is_parametrized(metafunc: pytest.Metafunc, argument: str) -> bool:
    marks = metafunc.definition.iter_markers("parametrize")
    return any(argument in mark.args[0] for mark in marks)
