from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.store import statements as sql
from duly.store.placeholders import named_to_psycopg, to_psycopg, to_sqlite

POSTGRES_OPAQUE = [
    "'what?'",
    "'it''s ?'",
    r"'back\slash?'",
    r"E'it\'s ?'",
    r"e'\\'",
    "E'a'\n'b\\'?'",
    '"odd?column"',
    '"a""?"',
    "-- really?\n",
    "/* ? */",
    "/* ? /* ' */ ? */",
    "$$ ? $$",
    "$tag$ ? $$ ? $tag$",
    "':name'",
    "/* :name */",
    "'100 %, %s, %(a)s'",
]
SQLITE_OPAQUE = ["'a??'", "'it''s ??'", '"a??"', "`a??`", "[a??]", "-- ??\n", "/* ?? /* */"]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT ?", "SELECT %s"),
        ("SELECT ?, ?", "SELECT %s, %s"),
        ("doc ?? 'key' AND id = ?", "doc ? 'key' AND id = %s"),
        ("doc ??| ?", "doc ?| %s"),
        ("a[?]", "a[%s]"),
        ("a % ?", "a %% %s"),
        ("LIKE '%?%'", "LIKE '%%?%%'"),
        ("?::int", "%s::int"),
        ("", ""),
    ],
)
def test_question_marks_become_psycopg_parameters(sql: str, expected: str) -> None:
    assert to_psycopg(sql) == expected


@pytest.mark.parametrize("opaque", POSTGRES_OPAQUE)
def test_literals_and_comments_keep_their_question_marks(opaque: str) -> None:
    assert to_psycopg(f"? {opaque} ?") == f"%s {opaque.replace('%', '%%')} %s"


@pytest.mark.parametrize("opened", ["'a ?", '"a ?', "/* ? /* ? */ ?", "$$ ? $", "$a$ ? $$", "-- ?"])
def test_what_is_never_closed_reaches_to_the_end(opened: str) -> None:
    assert to_psycopg(f"? {opened}") == f"%s {opened}"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("price$$ ? $$", "price$$ %s $$"),
        (r"date'\' ?", r"date'\' %s"),
        ("$1$ ? $1$", "$1$ %s $1$"),
    ],
)
def test_the_end_of_an_identifier_or_number_opens_no_literal(sql: str, expected: str) -> None:
    assert to_psycopg(sql) == expected


@given(st.lists(st.sampled_from([*POSTGRES_OPAQUE, "?", "??", "%", "::int", "a", "(", "\n"])))
def test_any_mixture_is_translated_piece_by_piece(pieces: list[str]) -> None:
    marks = {"?": "%s", "??": "?"}
    expected = [marks.get(piece, piece.replace("%", "%%")) for piece in pieces]

    # A word between the pieces, or E'…' would be continued by a literal after it.
    assert to_psycopg(" x ".join(pieces)) == " x ".join(expected)


@given(st.text(alphabet="?%'\"$ae/*-:\\\n"))
def test_any_text_has_every_percent_sign_doubled_or_made_by_us(sql: str) -> None:
    for translated in (to_psycopg(sql), named_to_psycopg(sql)):
        rest = translated.replace("%%", "").replace("%s", "")
        assert rest.count("%") == rest.count("%(")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (":id", "%(id)s"),
        ("id = :id AND run_at <= :now_ms", "id = %(id)s AND run_at <= %(now_ms)s"),
        (":ids::uuid[]", "%(ids)s::uuid[]"),
        ("x::text", "x::text"),
        ("a[1:2]", "a[1:2]"),
        ("5 % :n", "5 %% %(n)s"),
        ("':id' || :id", "':id' || %(id)s"),
        ("a ? :b", "a ? %(b)s"),
    ],
)
def test_names_become_psycopg_parameters(sql: str, expected: str) -> None:
    assert named_to_psycopg(sql) == expected


@pytest.mark.parametrize("opaque", POSTGRES_OPAQUE)
def test_literals_and_comments_keep_their_names(opaque: str) -> None:
    assert named_to_psycopg(f":a {opaque} :b") == f"%(a)s {opaque.replace('%', '%%')} %(b)s"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT ?", "SELECT ?"),
        ("a ?? ?", "a ? ?"),
        ("a % ? LIKE '%'", "a % ? LIKE '%'"),
        (r"'\' ??", r"'\' ?"),
    ],
)
def test_sqlite_takes_question_marks_as_they_are(sql: str, expected: str) -> None:
    assert to_sqlite(sql) == expected


@pytest.mark.parametrize("opaque", SQLITE_OPAQUE)
def test_sqlite_literals_and_comments_stay(opaque: str) -> None:
    assert to_sqlite(f"? {opaque} ??") == f"? {opaque} ?"


def test_no_statement_has_numbered_placeholders() -> None:
    """Python 3.12 warns of each that is run with a sequence."""
    numbered = [n for n, s in sql.named_statements() if re.search(r"\?\d", s.sqlite)]
    assert not numbered
