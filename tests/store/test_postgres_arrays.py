"""Lists reach PostgreSQL as arrays, whatever is in them."""

from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.store.postgres.arrays import array_text

AWKWARD = ["", "NULL", "null", "a b ", 'a "word"', "\\", "{a,b}", "'\n\t\u2028", "ünï", None]
ITEMS = {
    "text": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    "int8": st.integers(-(2**63), 2**63 - 1),
    "float8": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "bytea": st.binary(),
}


def back(connection: psycopg.Connection, kind: str, values: list[Any]) -> object:
    row = connection.execute(
        f"SELECT %(values)s::{kind}[]".encode(), {"values": array_text(values)}
    ).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.postgres
def test_what_is_sent_comes_back(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        assert back(connection, "text", list(AWKWARD)) == AWKWARD

        @settings(max_examples=100, deadline=None)
        @given(st.data(), st.sampled_from(sorted(ITEMS)))
        def check(data: st.DataObject, kind: str) -> None:
            values = data.draw(st.lists(st.none() | ITEMS[kind], max_size=5))
            assert back(connection, kind, values) == values

        check()


@pytest.mark.postgres
def test_a_zero_byte_is_refused_and_does_not_cut_the_array_short(postgres_url: str) -> None:
    with (
        psycopg.connect(postgres_url, autocommit=True) as connection,
        pytest.raises(psycopg.DataError),
    ):
        back(connection, "text", ["a\0b", "c"])


def test_what_is_no_item_is_not_sent_as_its_name() -> None:
    with pytest.raises(TypeError, match="list"):
        array_text([["a"]])  # type: ignore[list-item]
