"""Arguments marked with Redact are never shown."""

import enum
import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NewType, Optional
from unittest.mock import Mock

import msgspec
import pydantic
import pytest

from duly import AsyncCtx, Ctx, Duly, ManualClock, Redact, Tx
from duly.clock import os_monotonic
from duly.errors import InvalidArgument, InvalidFunction, SignatureMismatch
from duly.functions.known_functions import STATUS_SECONDS
from duly.model.redact import is_redacted
from duly.model.signature import Signature, check_against
from tests.jobs.support import Database, Hire

SECRET = "hunter2'\n☃"
Token = Annotated[str, Redact]


class Colour(str, enum.Enum):  # noqa: UP042
    RED = "red"


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
    @app.action
    def paint(ctx: Ctx, colour: Annotated[Colour, Redact]) -> None: ...

    with pytest.raises(InvalidArgument, match="does not fit") as refusal:
        app.run(paint, "swordfish")  # type: ignore[arg-type]
    assert "swordfish" not in whole(refusal.value)


@pytest.mark.spec("N28")
def test_a_refusal_inside_a_job_is_stored_without_the_value(app: Duly, hire: Hire):
    @app.action
    def charge(ctx: Ctx, card: Annotated[Card, Redact]) -> None: ...

    @app.action
    def shop(ctx: Ctx, number: str) -> None:
        ctx.run(charge, {"number": number})  # type: ignore[arg-type]

    job = app.run(shop, "swordfish")
    hire().work()
    error = job.error
    assert error is not None
    assert "does not fit" in error.message
    assert "swordfish" not in error.message + str(error.traceback)


# Where the mark stands


class Card(pydantic.BaseModel):
    number: int


class Login(msgspec.Struct):
    user: str
    password: Annotated[str, Redact]


@dataclass
class Account:
    logins: list[Login]


@pytest.mark.spec("N28")
@pytest.mark.parametrize(
    "hint",
    [
        Annotated[str, Redact] | None,
        Optional[Annotated[str, Redact()]],  # noqa: UP045
        int | Annotated[str, Redact],
        Annotated[Annotated[str, Redact], "a token"],
        Annotated[Annotated[str, Redact] | None, "a token"],
        Annotated[Login, Redact],
        NewType("Token", Annotated[str, Redact]),
    ],
)
def test_a_mark_holds_for_an_argument_that_may_be_something_else(hint: Any):
    assert is_redacted(hint)
    assert signature(hint).redacted == {"token"}


@pytest.mark.spec("N28")
@pytest.mark.parametrize(
    "hint",
    [
        list[Annotated[str, Redact]],
        dict[str, Annotated[str, Redact] | None] | None,
        Login,
        list[Account] | None,
    ],
)
def test_a_mark_that_would_hide_nothing_is_refused(hint: Any):
    with pytest.raises(InvalidFunction, match=r"'token': Redact hides a whole argument"):
        signature(hint).resolve()
    assert signature(Annotated[hint, Redact]).redacted == {"token"}


@pytest.mark.spec("N28")
def test_a_result_cannot_be_marked():
    def log_in(ctx: object) -> Annotated[str, Redact]:
        raise NotImplementedError

    with pytest.raises(InvalidFunction, match="results are shown"):
        Signature(log_in, "log_in").resolve()


@pytest.mark.spec("N28")
def test_an_argument_that_may_be_none_is_hidden_from_the_list(app: Duly):
    @app.action
    def log_in(ctx: Ctx, token: Annotated[str, Redact] | None = None) -> None: ...

    assert app.run(log_in, "swordfish").arguments == {"token": "***"}


# What is said of it


@pytest.mark.spec("N28")
@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Any, {"swordfish": object()}),
        (Any, {"swordfish": datetime(2026, 11, 15)}),  # noqa: DTZ001
        (Any, {"swordfish": float("nan")}),
        (Card, {"number": "swordfish"}),
        (dict[str, int], {"swordfish": "x"}),
    ],
)
def test_a_refusal_names_no_key_and_has_no_cause(hint: Any, value: object):
    with pytest.raises(InvalidArgument) as refusal:
        signature(Annotated[hint, Redact]).encode((value,), {})
    assert refusal.value.argument == "token"
    assert "swordfish" not in whole(refusal.value)


@pytest.mark.spec("N28")
def test_what_no_longer_fits_is_not_repeated():
    with pytest.raises(SignatureMismatch, match="'token' no longer fits: does not fit") as refusal:
        signature(Annotated[Card, Redact]).decode('{"token":{"number":"swordfish"}}')
    assert "swordfish" not in whole(refusal.value)


@pytest.mark.spec("N28")
def test_a_published_schema_that_says_more_than_the_mark_gives_no_key_away():
    token = {"additionalProperties": {"type": "integer"}, "writeOnly": True}
    schema = {"properties": {"token": token}, "required": ["token"]}
    with pytest.raises(InvalidArgument, match="does not fit") as refusal:
        check_against("log_in", schema, '{"token":{"swordfish":"x"}}')
    assert "swordfish" not in whole(refusal.value)
    with pytest.raises(InvalidArgument, match="missing"):
        check_against("log_in", schema, "{}")


BORN = datetime(1987, 6, 5, 4, 3, tzinfo=UTC)


@pytest.mark.spec("N28")
@pytest.mark.parametrize(
    ("hint", "value", "secret"),
    [
        (bytes, b"swordfish", "swordfish"),
        (bytes, b"\xffswordfish", "swordfish"),
        (dict[str, int], {"swordfish": 1}, "swordfish"),
        (dict[bytes, int], {b"swordfish": 1}, "swordfish"),
        (list[datetime], [BORN], "1987"),
        (dict[datetime, int], {BORN: 1}, "1987"),
        (Login, Login("ada", "swordfish"), "swordfish"),
        (Colour, Colour.RED, "RED"),
        (tuple[Login, int], (Login("ada", "swordfish"), 54321), "54321"),
    ],
)
@pytest.mark.parametrize("write", [str, repr, lambda value: str(msgspec.json.encode(value))])
def test_every_way_to_write_a_value_is_scrubbed(
    hint: Any, value: object, secret: str, write: Callable[[object], str]
):
    signed = signature(Annotated[hint, Redact])
    args = signed.encode((value,), {})
    text = f"cannot log in with {write(signed.decode(args)['token'])}"
    assert text != (scrubbed := signed.scrub(text, args))
    assert secret not in scrubbed
    assert scrubbed.startswith("cannot log in with")
    assert signed.scrub("user and password", args) == "user and password"


@pytest.mark.spec("N28")
def test_the_text_in_bytes_is_scrubbed():
    signed = signature(Annotated[bytes, Redact])
    assert signed.scrub("no ☃fish", signed.encode(("☃fish".encode(),), {})) == "no ***"


@pytest.mark.spec("N28")
def test_what_a_called_mutation_was_given_is_taken_out_of_the_actions_error(app: Duly, hire: Hire):
    @app.mutation
    def spend(tx: Tx, token: Token) -> None:
        raise ValueError(f"{token} is spent")

    @app.action
    def shop(ctx: Ctx, name: str) -> None:
        ctx.call(spend, name + "fish")

    @app.action
    async def shop_async(ctx: AsyncCtx, name: str) -> None:
        await ctx.call(spend, name + "fish")

    jobs = [app.run(shop, "sword"), app.run(shop_async, "sword")]
    hire().work()
    for job in jobs:
        error = job.error
        assert error is not None
        assert error.message == "ValueError: *** is spent"
        assert "swordfish" not in str(error.traceback)


@pytest.mark.spec("N28")
def test_a_result_that_cannot_be_stored_is_described_without_the_value(app: Duly, hire: Hire):
    @app.action
    def act(ctx: Ctx, token: Token) -> object:
        return {token: object()}

    @app.mutation
    def change(tx: Tx, token: Token) -> object:
        return {token: object()}

    jobs = [app.run(act, "swordfish"), app.run(change, "swordfish")]
    hire().work()
    for job in jobs:
        error = job.error
        assert error is not None
        assert "result['***']" in error.message


@pytest.mark.spec("N28")
@pytest.mark.parametrize(
    "url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_the_failure_of_a_shared_transaction_is_logged_without_the_values(
    app: Duly, hire: Hire, caplog: pytest.LogCaptureFixture
):
    with app.transaction() as tx:
        tx.execute("CREATE TABLE spent (token text UNIQUE DEFERRABLE INITIALLY DEFERRED)")

    @app.mutation(group=True)
    def spend(tx: Tx, token: Token) -> None:
        tx.execute("INSERT INTO spent VALUES (?)", (token,))

    app.store.mutation_lanes = 1  # in several, each may take one of them
    caplog.set_level(logging.DEBUG)
    app.run_many([spend.bind("swordfish") for _ in range(4)])
    hire().work()
    assert (
        "a shared transaction failed; running its members one by one: UniqueViolation"
        in caplog.text
    )
    assert "swordfish" not in caplog.text


# Where the code is not


@pytest.mark.spec("N28")
def test_nothing_but_the_mark_is_published():
    class Creds(msgspec.Struct):
        user: str
        password: str = "swordfish"

    schema = signature(Annotated[Creds, Redact]).json_schema()
    assert schema["properties"] == {"token": {"writeOnly": True}}
    assert schema["required"] == ["token"]
    assert "$defs" not in schema


@pytest.mark.spec("N28")
def test_a_declaration_hides_what_it_marks_before_anybody_published_it(app: Duly):
    @app.declare(kind="action")
    def log_in(token: Token) -> None: ...

    assert app.run(log_in, "swordfish").arguments == {"token": "***"}


def test_a_list_asks_once_about_a_function_that_nobody_has_published(
    app: Duly, monkeypatch: pytest.MonkeyPatch
):
    @app.declare(kind="action")
    def far(token: Token) -> None: ...

    app.run_many(far.bind(SECRET) for _ in range(3))
    asked = Mock(wraps=app.store.function)
    monkeypatch.setattr(app.store, "function", asked)
    lists = [app.jobs()]
    with app.transaction() as tx:
        lists.append(tx.jobs())
    for listed in lists:
        assert [job.arguments for job in listed] == [{"token": "***"}] * 3
    assert asked.call_count == len(lists)


@pytest.mark.spec("N28")
def test_a_reader_hears_of_a_mark_when_it_is_published(
    app: Duly, url: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    reader, old, new = (Duly(url, name=name, clock=clock) for name in ("reader", "old", "new"))

    @app.declare(kind="action")
    def log_in(user: str, token: str) -> None: ...

    job = reader.job(app.run(log_in, "ada", "swordfish").id)
    assert reader.job(job.id).arguments == {"user": "ada", "token": "swordfish"}

    @old.action(name="log_in")
    def with_one(ctx: Ctx, user: str, token: Token) -> None: ...

    old.functions.publish()
    assert reader.job(job.id).arguments == {"user": "ada", "token": "***"}, "nothing was cached"

    @new.action(name="log_in")
    def with_two(ctx: Ctx, user: Token, token: Token) -> None: ...

    new.functions.publish()
    later = os_monotonic() + STATUS_SECONDS
    monkeypatch.setattr("duly.functions.redaction.os_monotonic", lambda: later)
    assert reader.job(job.id).arguments == {"user": "***", "token": "***"}
    for service in (reader, old, new):
        service.close()


@pytest.mark.spec("N28")
def test_what_is_known_of_one_database_is_not_believed_of_another(tmp_path: Path):
    first, second = (Duly(f"sqlite:///{tmp_path}/{name}.db", name=name) for name in ("a", "b"))

    @first.action(name="log_in")
    def without_mark(ctx: Ctx, token: str) -> None: ...

    @second.action(name="log_in")
    def with_mark(ctx: Ctx, token: Token) -> None: ...

    reader = Duly(f"sqlite:///{tmp_path}/a.db")
    for service in (first, second):
        service.migrate()
        service.functions.publish()
    hidden = second.run(with_mark, "swordfish")
    assert reader.job(first.run(without_mark, "cod").id).arguments == {"token": "cod"}
    own = reader.core.exchange(second.store, second.clock)
    assert reader.job(hidden.id).arguments == {"token": "***"}
    reader.core.exchange(*own)
    for service in (first, second, reader):
        service.close()


def whole(error: BaseException) -> str:
    """What is printed of an error and its causes, without the lines of the test itself."""
    return "".join(traceback.TracebackException(type(error), error, None).format())


def signature(hint: Any) -> Signature:
    def log_in(ctx: object, token: Any) -> None: ...

    log_in.__annotations__["token"] = hint
    return Signature(log_in, "log_in")


def test_the_store_keeps_the_value(app: Duly, db: Database):
    @app.action
    def log_in(ctx: Ctx, token: Token) -> None: ...

    app.run(log_in, "swordfish")
    assert db.scalar("SELECT args FROM @jobs") == '{"token":"swordfish"}'
