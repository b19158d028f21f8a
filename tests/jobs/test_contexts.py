"""Contexts: what a function receives and returns, and nothing of its caller."""

import asyncio
import threading
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest

from duly import AsyncCtx, AsyncJob, Ctx, Duly, ErrorKind, Job, ManualClock, State, Tx
from duly.errors import JobNotFound
from duly.model.signature import MAX_RESULT_BYTES
from tests.jobs.support import Database, Hire, ManualWorker

current_user: ContextVar[str] = ContextVar("current_user", default="nobody")
local = threading.local()


@pytest.mark.spec("R97")
def test_nothing_of_the_callers_identity_reaches_the_job(app: Duly, hire: Hire):
    seen: dict[str, Any] = {}

    def look(where: str) -> None:
        seen[where] = (current_user.get(), getattr(local, "user", "nobody"))
        # Nor does anything that one job leaves behind reach the next.
        current_user.set(f"left by {where}")

    @app.mutation
    def mutation(tx: Tx) -> None:
        look("mutation")

    @app.action
    def action(ctx: Ctx) -> None:
        look("action")

    @app.action
    async def async_action(ctx: AsyncCtx) -> None:
        look("async")
        await asyncio.sleep(0)

    @app.action
    def again(ctx: Ctx) -> None:
        look("again")

    current_user.set("ada")
    local.user = "ada"
    worker = hire(concurrency=1)
    for function in (mutation, action, async_action, again):
        job = app.run(function)
        worker.work()
        assert job.error is None
        assert job.record.owner is None

    assert seen == dict.fromkeys(("mutation", "action", "async", "again"), ("nobody", "nobody"))
    assert current_user.get() == "ada"


@pytest.mark.spec("R97")
def test_a_child_does_not_inherit_its_parents_owner_or_options(app: Duly, hire: Hire):
    @app.action
    def child(ctx: Ctx) -> None: ...

    @app.action
    def parent(ctx: Ctx) -> None:
        ctx.run(child)

    job = app.run(parent.using(owner="ada", priority=9, tags=["secret"]))
    hire().work()

    (record,) = [one.record for one in job.children()]
    assert (record.owner, record.priority, record.tags) == (None, 5, None)


# Results


class Color(Enum):
    RED = "red"


class Level(Enum):
    LOW = 1


@dataclass
class Point:
    x: int
    at: datetime


class Box(msgspec.Struct):
    points: list[Point]
    color: Color


class Pair(NamedTuple):
    left: int
    right: str


NOW = datetime(2026, 1, 5, 9, 30, 15, 123456, tzinfo=UTC)
VALUES: list[tuple[Any, Any]] = [
    (None, None),
    (bool, True),
    (int, 2**53 + 1),
    (float, 0.1),
    (str, "naïve \0 😀"),
    (bytes, b"\x00\xff"),
    (datetime, NOW),
    (date, NOW.date()),
    (timedelta, timedelta(days=1, microseconds=1)),
    (UUID, UUID(int=7)),
    (Decimal, Decimal("1.10")),
    (Color, Color.RED),
    (Level, Level.LOW),
    (Point, Point(1, NOW)),
    (Box, Box([Point(1, NOW)], Color.RED)),
    (Pair, Pair(1, "x")),
    (tuple[int, str], (1, "x")),
    (set[int], {1, 2, 3}),
    (dict[int, Color], {1: Color.RED}),
    (list[Point | None], [None, Point(2, NOW)]),
    (dict[str, Any], {"a": [1, 2.5, None, True, {"b": "c"}]}),
    (Any, {"plain": [1, "x"]}),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=lambda v: str(v)[:30])
def test_arguments_and_results_keep_their_annotated_types(kind: Any, value: Any):
    app = Duly("sqlite:///:memory:")

    def body(ctx: Ctx, given: Any) -> Any:
        seen.append(given)
        return given

    body.__annotations__ |= {"given": kind, "return": kind}
    echo = app.action(body)
    seen: list[Any] = []
    job = app.run(echo, value)
    worker = ManualWorker(app)
    worker.work()
    worker.stop()

    assert seen == [value]
    assert job.result(0) == value
    assert type(job.result(0)) is type(value)
    # A handle that knows nothing but the id decodes it just so.
    assert app.job(job.id).result(0) == value
    app.close()


def test_a_result_is_plain_data_where_the_function_is_not_known(app: Duly, url: str, hire: Hire):
    @app.action
    def point(ctx: Ctx) -> Point:
        return Point(1, NOW)

    job = app.run(point)
    hire().work()
    elsewhere = Duly(url)
    try:
        found = elsewhere.job(job.id).result(0)
    finally:
        elsewhere.close()

    assert found == {"x": 1, "at": "2026-01-05T09:30:15.123456Z"}
    assert job.result(0) == Point(1, NOW)


@pytest.mark.spec("N18")
@pytest.mark.parametrize(
    "value",
    [
        object(),
        float("nan"),
        [1, float("inf")],
        "half \ud83d",
        {(1, 2): 3},
        "x" * (MAX_RESULT_BYTES + 1),
        lambda: None,
        {"deep": {"er": {1, object}}},
    ],
    ids=["object", "nan", "inf", "surrogate", "tuple key", "large", "lambda", "deep"],
)
def test_a_result_that_cannot_be_stored_fails_the_job_with_a_reason(
    app: Duly, db: Database, hire: Hire, value: Any
):
    @app.action
    def act(ctx: Ctx) -> Any:
        return value

    @app.action
    async def act_async(ctx: AsyncCtx) -> Any:
        return value

    @app.mutation
    def mutate(tx: Tx) -> Any:
        tx.execute("INSERT INTO notes VALUES ('never')")
        return value

    jobs: list[Job[Any]] = [app.run(act), app.run(act_async), app.run(mutate)]
    hire().work()

    for job in jobs:
        assert job.state == State.FAILED
        assert job.error is not None
        assert job.error.kind == ErrorKind.UNSTORABLE_RESULT
        assert f"{job.function}(): the result cannot be stored:" in job.error.message
    assert db.notes() == []


# Statements through tx


def test_execute_takes_question_marks_and_gives_rows_on_both_databases(app: Duly):
    with app.transaction() as tx:
        assert tx.execute("INSERT INTO notes VALUES (?), (?)", ("a", "b")).rowcount == 2
        rows = tx.execute("SELECT text FROM notes WHERE text <> '?' ORDER BY text")
        assert rows.all() == list(rows) == [("a",), ("b",)]
        assert (len(rows), rows.first(), rows.scalar()) == (2, ("a",), "a")
        assert tx.execute("SELECT text FROM notes WHERE text = ?", ("b",)).one() == ("b",)
        assert tx.execute("SELECT text FROM notes WHERE text LIKE '%b'").scalar() == "b"
        empty = tx.execute("SELECT 1 WHERE 1 = 0")
        assert (empty.first(), empty.scalar(), len(empty)) == (None, None, 0)
        with pytest.raises(LookupError):
            empty.one()
        with pytest.raises(LookupError):
            rows.one()
        assert tx.connection is not None


# Contexts of actions


def test_an_async_action_has_the_same_verbs_awaited(
    app: Duly, db: Database, clock: ManualClock, hire: Hire
):
    @app.mutation
    def note(tx: Tx, text: str) -> str:
        tx.execute("INSERT INTO notes VALUES (?)", (text,))
        return text

    @app.action
    async def act(ctx: AsyncCtx) -> list[str]:
        ctx.check()
        now = await ctx.run(note, "now")
        later = await ctx.run_after(60, note, "later")
        at = await ctx.run_at(clock.now() + 120_000, note, "at")
        many = await ctx.run_many([note.bind("many"), note.bind("more")])
        assert all(isinstance(job, AsyncJob) for job in [now, later, at, *many])
        assert await later.state() == State.PENDING
        assert (await ctx.job(at.id)).id == at.id
        assert await later.cancel() is True
        assert await ctx.cancel(at) is True
        with pytest.raises(JobNotFound):
            await ctx.cancel("nonsense")
        pending = await ctx.jobs(state="pending", function=note)
        assert {job.id for job in pending} == {now.id, *(job.id for job in many)}
        assert await ctx.call(note, "called") == "called"
        assert len(await (await ctx.job(ctx.job_id)).children()) == 5
        assert (ctx.attempt, ctx.canceled) == (1, False)
        return [job.id for job in many]

    job = app.run(act)
    hire().work()

    assert job.error is None
    assert db.notes() == ["called", "many", "more", "now"]


def test_an_async_action_may_wait_for_another_job(app: Duly):
    @app.action
    def inner(ctx: Ctx) -> str:
        return "inner"

    @app.action
    async def outer(ctx: AsyncCtx) -> str:
        return await (await ctx.run(inner)).result(timeout=60) + " and outer"

    @app.action
    def sync_outer(ctx: Ctx) -> str:
        return ctx.run(inner).result(timeout=60) + " and outer"

    with app:
        jobs = [app.run(outer), app.run(sync_outer)]
        assert [job.result(timeout=60) for job in jobs] == ["inner and outer"] * 2


def test_a_decorated_function_can_be_called_directly(app: Duly, db: Database):
    @app.mutation
    def note(tx: Tx, text: str) -> str:
        tx.execute("INSERT INTO notes VALUES (?)", (text,))
        return text

    with app.transaction() as tx:
        assert note(tx, "direct") == "direct"

    assert db.notes() == ["direct"]
    assert (note.__name__, note.__module__) == ("note", __name__)
    assert app.jobs() == []


@pytest.mark.spec("R218")
def test_a_running_app_follows_the_clock_that_it_was_given(app: Duly, clock: ManualClock):
    @app.action
    def wave(ctx: Ctx) -> str:
        return "hello"

    with app:
        jobs = [app.run_after(days * 86_400, wave) for days in (1, 30, 365)]
        for job in jobs:
            assert job.state == State.PENDING
            clock.advance((job.record.run_at - clock.now()) / 1000)
            assert job.result(timeout=60) == "hello"


def test_a_running_app_does_it_all_by_itself(url: str, tmp_path: Path):
    """End to end, on the machine's clock, with the threads of `with app:`."""
    app = Duly(url)
    app.migrate()

    @app.mutation
    def save(tx: Tx, n: int) -> int:
        tx.run(send, n)
        return n

    @app.action
    async def send(ctx: AsyncCtx, n: int) -> int:
        await asyncio.sleep(0)
        return n * 2

    with app:
        jobs = [app.run(save, n) for n in range(20)]
        assert [job.result(timeout=60) for job in jobs] == list(range(20))
        children = [child for job in jobs for child in job.children()]
        assert sorted(child.result(timeout=60) for child in children) == list(range(0, 40, 2))
        assert len(app.workers()) == 1
    assert app.workers() == []
    app.close()
