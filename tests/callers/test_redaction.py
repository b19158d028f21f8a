"""Arguments marked with Redact are never shown."""

import enum
import logging
from typing import Annotated

import pytest

from duly import Ctx, Duly, ManualClock, Redact, Tx
from duly.errors import InvalidArgument
from tests.jobs.support import Database, Hire

SECRET = "hunter2'\n☃"
Token = Annotated[str, Redact]


@pytest.mark.spec("N28")
def test_a_redacted_argument_reaches_the_function_and_nobody_else(
    app: Duly, hire: Hire, caplog: pytest.LogCaptureFixture
):
    seen = []

    @app.action
    def log_in(ctx: Ctx, user: str, token: Token, again: Annotated[list[str], Redact()]) -> None:
        seen.append((token, again))
        raise ValueError(f"no {user} with {token} or {token!r} or {again}")

    caplog.set_level(logging.DEBUG)
    job = app.run(log_in, "ada", SECRET, ["swordfish"])
    hire().work()
    assert seen == [(SECRET, ["swordfish"])]
    error = job.error
    assert error is not None
    assert "ValueError: no ada with *** or " in error.message
    shown = [repr(job), str(job.record), str(job.arguments), error.message, str(error.traceback)]
    shown += [str(found.record) for found in app.jobs()]
    shown += [record.getMessage() + str(record.__dict__) for record in caplog.records]
    for text in shown:
        assert "hunter2" not in text
        assert "swordfish" not in text
    assert job.arguments == {"user": "ada", "token": "***", "again": "***"}


@pytest.mark.spec("N28")
def test_what_the_database_says_about_a_redacted_value_is_scrubbed(app: Duly, hire: Hire):
    with app.transaction() as tx:
        tx.execute("CREATE TABLE tokens (token text PRIMARY KEY, used integer NOT NULL)")

    @app.mutation
    def spend(tx: Tx, token: Token) -> None:
        tx.execute("INSERT INTO tokens VALUES (?, 1)", (token,))

    first, second = app.run(spend, "swordfish"), app.run(spend, "swordfish")
    hire().work()
    errors = [job.error for job in (first, second) if job.error]
    assert len(errors) == 1
    assert "swordfish" not in errors[0].message + str(errors[0].traceback)


@pytest.mark.spec("N28")
def test_a_service_without_the_code_hides_it_too(
    app: Duly, hire: Hire, url: str, clock: ManualClock
):
    @app.action
    def log_in(ctx: Ctx, token: Token) -> None: ...

    hire()
    other = Duly(url, name="other", clock=clock)
    job = other.run(other.function("log_in"), token="swordfish")
    for read in (job, other.job(job.id), *other.jobs()):
        assert read.arguments == {"token": "***"}
        assert "swordfish" not in read.record.args
    other.close()


@pytest.mark.spec("N28")
def test_a_refused_value_is_not_repeated(app: Duly):
    class Colour(enum.Enum):
        RED = "red"

    @app.action
    def paint(ctx: Ctx, colour: Annotated[Colour, Redact]) -> None: ...

    with pytest.raises(InvalidArgument, match="does not fit") as refusal:
        app.run(paint, "swordfish")  # type: ignore[arg-type]
    assert "swordfish" not in str(refusal.value)


def test_the_store_keeps_the_value(app: Duly, db: Database):
    @app.action
    def log_in(ctx: Ctx, token: Token) -> None: ...

    app.run(log_in, "swordfish")
    assert db.scalar("SELECT args FROM @jobs") == '{"token":"swordfish"}'
