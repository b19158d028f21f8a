"""Wrappers: `@app.around` puts a context manager around every body."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

import duly
from duly import AsyncCtx, AsyncTx, Ctx, Duly, Group, NonRetryable, Retry, State, Tx
from duly.errors import InvalidFunction
from duly.testing import ctx, drain
from tests.jobs.support import Database, Hire, on_sqlite

tenant: ContextVar[str] = ContextVar("tenant", default="none")
AnyCtx = Tx | AsyncTx | Ctx | AsyncCtx


@pytest.mark.spec("N63")
def test_wrappers_nest_around_the_bodies_that_their_annotation_names(app: Duly, hire: Hire):
    seen: dict[str, list[str]] = {}
    group = Group("shop")

    def note(context: AnyCtx, word: str) -> None:
        assert duly.current() is context
        seen.setdefault(context.function or "", []).append(word)

    @app.around
    def everything(ctx) -> Iterator[None]:
        note(ctx, "all")
        yield
        note(ctx, "/all")

    @app.around
    def sync_ones(ctx: Tx | Ctx) -> Iterator[None]:
        note(ctx, f"sync {ctx.arguments['n']}")
        yield
        note(ctx, "/sync")

    @app.around
    async def async_ones(ctx: "AsyncCtx") -> AsyncIterator[None]:
        note(ctx, "async")
        await asyncio.sleep(0)
        yield
        note(ctx, "/async")

    @group.around
    def of_group(ctx: Any) -> Iterator[None]:
        note(ctx, "group")
        yield
        note(ctx, "/group")

    @app.mutation
    def move(tx: Tx, n: int) -> None:
        note(tx, "body")

    @app.action
    def call(ctx: Ctx, n: int) -> None:
        ctx.call(move, n + 1)
        note(ctx, "body")

    @app.action
    async def fetch(n: int) -> None:
        note(duly.current(), "body")

    @group.action
    def send(ctx: Ctx, n: int) -> int:
        note(ctx, "body")
        return n

    app.include(group)
    with ctx(app) as own:
        assert send(own, 5) == 5
    assert seen.pop("test") == ["body"], "a direct call has no wrappers"
    for start in (hire().work, lambda: drain(app)):
        jobs = [app.run(f, 1) for f in (call, fetch, send.using(priority=9))]
        start()
        assert [job.error for job in jobs] == [None] * 3
        assert seen == {
            "move": ["all", "sync 2", "body", "/sync", "/all"],
            "call": ["all", "sync 1", "body", "/sync", "/all"],
            "fetch": ["all", "async", "body", "/async", "/all"],
            "shop.send": ["all", "sync 1", "group", "body", "/group", "/sync", "/all"],
        }
        seen.clear()


@pytest.mark.spec("N63")
def test_a_wrapper_of_a_mutation_is_part_of_its_transaction(app: Duly, hire: Hire, db: Database):
    runs: list[int] = []

    @app.around
    def audit(tx: Tx) -> Iterator[None]:
        tx.execute("INSERT INTO notes VALUES (?)", (f"{tx.function} {tx.arguments['n']}",))
        try:
            yield
        finally:
            tx.execute("INSERT INTO notes VALUES ('after')")

    @app.mutation(group=True)
    def write(tx: Tx, n: int) -> None:
        tx.execute("INSERT INTO notes VALUES (?)", (f"body {n}",))
        if n == 2:
            raise NonRetryable("two")
        if n == 3:
            runs.append(n)
            _ = tx.connection  # refused in a shared transaction: this one runs again, alone

    jobs = app.run_many([write.bind(n) for n in range(1, 5)])
    worker = hire()
    worker.work()
    assert [job.state for job in jobs] == ["succeeded", "failed", "succeeded", "succeeded"]
    expected = [text for n in (1, 3, 4) for text in (f"write {n}", f"body {n}", "after")]
    assert sorted(db.notes()) == sorted(expected)


@pytest.mark.spec("N63")
@pytest.mark.parametrize("kind", ["mutation", "action", "async"])
def test_an_error_in_a_wrapper_counts_as_the_bodys_own(
    app: Duly, hire: Hire, db: Database, kind: str
):
    seen: list[str] = []

    @app.around
    def guard(ctx: AnyCtx) -> Iterator[None]:
        when = ctx.arguments["when"]
        if when == "before":
            raise ValueError(when)
        try:
            yield
        except KeyError as error:
            seen.append(repr(error))
            if when != "swallowed":
                raise NonRetryable("no use") from error
        if when == "after" and ctx.attempt == 1:
            raise ValueError(when)

    def work(when: str) -> str:
        if when in ("swallowed", "changed"):
            raise KeyError(when)
        return f"ran {when}"

    body: Any
    options: Any = {"retry": Retry(attempts=2, delay=0, jitter=0)}
    if kind == "mutation":

        @app.mutation(**options)
        def mutation(tx: Tx, when: str) -> str:
            tx.execute("INSERT INTO notes VALUES (?)", (when,))
            return work(when)

        body = mutation
    elif kind == "action":
        body = app.action(**options)(work)
    else:

        @app.action(**options)
        async def asynchronous(when: str) -> str:
            return work(when)

        body = asynchronous
    cases = ("before", "after", "swallowed", "changed")
    jobs = {when: app.run(body, when) for when in cases}
    hire().work()
    before, after, swallowed, changed = jobs.values()
    assert before.error
    assert before.error.message == "ValueError: before (after 2 attempts)"
    assert (before.attempt, before.error.kind) == (2, "user")
    assert (after.state, after.attempt, after.result(0)) == (State.SUCCEEDED, 2, "ran after")
    assert (swallowed.state, swallowed.attempt, swallowed.result(0)) == (State.SUCCEEDED, 1, None)
    assert changed.error
    assert changed.error.message == "NonRetryable: no use"
    assert changed.attempt == 1
    assert sorted(seen) == ["KeyError('changed')", "KeyError('swallowed')"]
    if kind == "mutation":
        assert sorted(db.notes()) == ["after", "swallowed"]


@pytest.mark.spec("N63")
def test_what_a_wrapper_sets_is_seen_by_its_body_and_by_no_other(app: Duly, hire: Hire):
    tasks: list[int] = []

    @app.around
    def set_tenant(ctx: AnyCtx) -> Iterator[None]:
        tenant.set(ctx.arguments["name"])
        yield

    @app.around
    async def set_more(ctx: AsyncCtx) -> AsyncIterator[None]:
        tenant.set(tenant.get() + "!")
        yield

    @app.around
    async def reset(ctx: AsyncCtx) -> AsyncIterator[None]:
        token = tenant.set(tenant.get() + "?")
        yield
        tenant.reset(token)

    @app.action
    def sync(name: str) -> str:
        return tenant.get()

    @app.mutation
    def mutation(tx: Tx, name: str) -> str:
        return tenant.get()

    @app.action
    async def quick(name: str) -> str:
        tasks.append(id(asyncio.current_task()))
        return tenant.get()

    @app.action
    async def slow(name: str) -> str:
        await asyncio.sleep(0)
        return tenant.get()

    @app.action
    async def without(name: str) -> str:
        return tenant.get()

    calls = [f.bind(f"{f.name} {n}") for n in range(3) for f in (sync, mutation, quick, slow)]
    jobs = app.run_many(calls)
    hire().work()
    names = [f"{f} {n}" for n in range(3) for f in ("sync", "mutation", "quick", "slow")]
    marks = {"quick": "!?", "slow": "!?"}
    assert [job.result(0) for job in jobs] == [n + marks.get(n.split()[0], "") for n in names]
    assert tenant.get() == "none"


@on_sqlite
@pytest.mark.spec("N63")
def test_a_wrapper_is_canceled_and_timed_out_with_its_body(app: Duly, hire: Hire):
    ended: list[str] = []
    began = threading.Event()

    @app.around
    def end(ctx: AnyCtx) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            ended.append(f"{ctx.function} {type(error).__name__}")
            raise

    @app.action(timeout=5)
    async def wait() -> None:
        began.set()
        await asyncio.sleep(60)

    @app.mutation(timeout=5)
    def spin(tx: Tx) -> None:
        began.set()
        tx.execute(
            "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
        )

    worker = hire()
    for function in (wait, spin):
        began.clear()
        job = app.run(function)
        worker.start_due()
        assert began.wait(20)
        app.clock.advance(6)  # type: ignore[attr-defined]  # pyright: ignore
        worker.insist()
        worker.work()
        assert job.error
        assert job.error.kind == "timeout"
    assert ended == ["wait CancelledError", f"spin {sqlite3.OperationalError.__name__}"]


@pytest.mark.spec("N63")
def test_what_cannot_be_a_wrapper_is_refused(app: Duly):
    def no_yield(ctx: Ctx) -> None: ...

    def no_parameter() -> Iterator[None]:
        yield

    def no_context(n: int) -> Iterator[None]:
        yield

    async def around_sync(ctx: AsyncCtx | Tx) -> AsyncIterator[None]:
        yield

    async def around_all(ctx) -> AsyncIterator[None]:
        yield

    wrong: dict[Any, str] = {
        no_yield: "with one `yield`",
        no_parameter: "has one parameter, the context; this one has 0",
        no_context: "Tx, AsyncTx, Ctx, AsyncCtx or a union of them, not int",
        around_sync: "annotate its parameter with `AsyncTx` or `AsyncCtx`, without Tx",
        around_all: "can only wrap async functions",
    }
    for wrapper, reason in wrong.items():
        with pytest.raises(InvalidFunction, match=reason):
            app.around(wrapper)
    assert app.core.functions.wrappers == []


@on_sqlite
def test_a_wrapper_that_is_added_later_wraps_the_next_job(app: Duly, hire: Hire):
    group = Group("late")
    app.include(group)
    seen: list[str] = []

    @group.action
    def act() -> None:
        seen.append("body")

    def work() -> list[str]:
        seen.clear()
        app.run(act)
        worker.work()
        return list(seen)

    worker = hire()
    assert work() == ["body"]
    for target in (app, group):

        @target.around
        def outer(ctx: Ctx) -> Iterator[None]:
            seen.append("wrapper")
            yield

    assert work() == ["wrapper", "wrapper", "body"]
