"""One text serves every driver, however it writes its parameters."""

import pytest

from duly import Duly, State
from duly.store.placeholders import named_to_style
from duly.store.statements import Dialect, named_statements, render_for
from tests.callers.handles import Alchemy, over, record_of
from tests.jobs.support import on_postgres, on_sqlite

TEXT = "SELECT ':no', '5%', a % 2 FROM t WHERE a = :a AND b = :b::text AND c = :a -- :no"


@pytest.mark.parametrize(
    ("style", "written", "order"),
    [
        ("format", "'5%%', a %% 2 FROM t WHERE a = %s AND b = %s::text AND c = %s", "aba"),
        ("numeric_dollar", "'5%', a % 2 FROM t WHERE a = $1 AND b = $2::text AND c = $1", "ab"),
        ("named", "'5%', a % 2 FROM t WHERE a = :a AND b = :b::text AND c = :a", None),
        (
            "pyformat",
            "'5%%', a %% 2 FROM t WHERE a = %(a)s AND b = %(b)s::text AND c = %(a)s",
            None,
        ),
    ],
)
def test_parameters_are_written_as_the_driver_wants_them(style, written, order):
    text, names = named_to_style(TEXT, style)

    assert text == f"SELECT ':no', {written} -- :no"
    assert names == (None if order is None else tuple(order))


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_statement_can_be_written_for_every_driver(dialect: Dialect):
    for _, statement in named_statements():
        text, _ = render_for(statement, dialect, "duly", "numeric_dollar")
        assert "@" not in text


def works(app: Duly, caller: Alchemy, hello) -> None:
    on = caller.on(app)
    first, second = on.run_many(hello.bind(name) for name in "ab")
    assert on.cancel(first)
    assert record_of(caller, on.job(first.id)).state == State.CANCELED
    caller.commit()
    caller.close()
    assert [job.id for job in app.jobs(state="pending")] == [second.id]


@on_sqlite
@pytest.mark.parametrize("style", ["qmark", "named", "numeric", "numeric_dollar"])
def test_every_style_works_on_sqlite(app: Duly, url: str, style: str, hello):
    works(app, Alchemy(url, {"paramstyle": style}), hello)


@on_postgres
@pytest.mark.parametrize("style", ["pyformat", "format"])
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_every_style_works_on_postgresql(app: Duly, url: str, driver: str, style: str, hello):
    works(app, over(Alchemy, driver)(url, {"paramstyle": style}), hello)
