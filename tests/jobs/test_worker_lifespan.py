"""`Duly(worker_lifespan=…)`: what the bodies of a worker process share."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypedDict

import pytest

from duly import AsyncCtx, AsyncTx, Ctx, Duly, State, Tx
from duly.errors import InvalidOption
from duly.runtime.lifeline import Lifeline
from duly.runtime.service import Service, run_alone
from duly.testing import async_ctx, ctx, drain, override, tx
from tests.jobs.support import PATIENCE, Gate, on_sqlite, wait_until

pytestmark = pytest.mark.spec("N65")


class Shared(TypedDict):
    place: int
    log: list[str]


@contextmanager
def managed(app: Duly) -> Iterator[Shared]:
    yield from plain(app)


def plain(app: Duly) -> Iterator[Shared]:
    log = LOGS[app.name]
    log.append("entered")
    yield {"place": 0, "log": log}
    log.append("exited")


@asynccontextmanager
async def managed_async(app: Duly) -> AsyncIterator[Shared]:
    async for shared in plain_async(app):
        yield shared


async def plain_async(app: Duly) -> AsyncIterator[Shared]:
    log = LOGS[app.name]
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    log.append("entered")
    yield {"place": id(loop), "log": log}
    await asyncio.sleep(0)
    # As task groups and cancel scopes demand.
    assert asyncio.get_running_loop() is loop
    assert asyncio.current_task() is task
    log.append("exited")


LOGS: dict[str, list[str]] = {}
ASYNC = (managed_async, plain_async)


def make(url: str, lifespan: Any, **options: Any) -> Duly:
    LOGS["shop"] = []
    app = Duly(url, name="shop", worker_lifespan=lifespan, **options)
    app.migrate()

    @app.mutation
    def mutate(tx: Tx) -> int:
        tx.state["log"].append("mutate")
        return 0

    @app.action
    def act(ctx: Ctx) -> int:
        ctx.state["log"].append("act")
        return 0

    @app.action
    async def fetch(ctx: AsyncCtx) -> int:
        assert ctx.state["place"] in (0, id(asyncio.get_running_loop()))
        ctx.state["log"].append("fetch")
        return 0

    @app.mutation
    async def mutate_async(tx: AsyncTx) -> int:
        assert tx.state["place"] in (0, id(asyncio.get_running_loop()))
        await tx.execute("SELECT 1")
        tx.state["log"].append("mutate_async")
        return 0

    @app.action
    def call(ctx: Ctx) -> int:
        return ctx.call(mutate)

    return app


NAMES = ("mutate", "act", "fetch", "call", "mutate_async")
SHARED = ["act", "fetch", "mutate", "mutate", "mutate_async"]


@pytest.mark.parametrize("lifespan", [managed, plain, managed_async, plain_async])
@pytest.mark.parametrize("kind", ["start", "drain", "async drain", "alone"])
def test_it_is_entered_before_the_first_claim_and_exited_after_the_last_body(
    url: str, lifespan: Any, kind: str
):
    app = make(url, lifespan)
    jobs = [app.run(app.function(name)) for name in NAMES]
    if kind == "start":
        with app:
            assert [job.result(PATIENCE) for job in jobs] == [0] * 5
    elif kind == "alone":
        for job in jobs:
            with app.transaction() as tx:
                prefix = "" if url.startswith("sqlite") else "duly."
                table = "duly_jobs" if url.startswith("sqlite") else f"{prefix}jobs"
                tx.execute(f"UPDATE {table} SET hold = 'alone' WHERE id = ?", (job.id,))
            run_alone(app.core, job.id, None, lambda: False)
    elif kind == "drain":
        drain(app)
    else:

        async def in_async_test() -> None:
            drain(app)

        asyncio.run(in_async_test())
    assert [job.state for job in jobs] == [State.SUCCEEDED] * 5
    log = LOGS["shop"]
    times = 5 if kind == "alone" else 1
    assert (log.count("entered"), log.count("exited")) == (times, times)
    assert (log[0], log[-1]) == ("entered", "exited")
    assert sorted(word for word in log if word not in ("entered", "exited")) == SHARED
    with pytest.raises(InvalidOption, match="only workers enter it"):
        _ = app.core.lifespan.state
    app.close()


async def fail_async(app: Duly) -> AsyncIterator[None]:
    await asyncio.sleep(0)
    raise ConnectionError("no answer")
    yield


def fail(app: Duly) -> Iterator[None]:
    raise ConnectionError("no answer")
    yield


@pytest.mark.parametrize("lifespan", [fail, fail_async])
def test_a_worker_whose_lifespan_fails_does_not_start(url: str, lifespan: Any):
    app = make(url, lifespan)
    job = app.run(app.function("act"))
    before = threading.active_count()
    message = "worker_lifespan: it could not be entered: ConnectionError: no answer"
    for _ in range(2):
        with pytest.raises(InvalidOption) as refused:
            app.start()
        assert message in str(refused.value)
        assert isinstance(refused.value.__cause__, ConnectionError)
    with pytest.raises(InvalidOption, match="no answer"):
        drain(app)
    assert (job.state, job.attempt, app.workers()) == (State.PENDING, 0, [])
    wait_until(lambda: threading.active_count() <= before, "no thread is left")
    app.close()


@on_sqlite
def test_it_is_exited_when_the_worker_cannot_register(url: str, monkeypatch: pytest.MonkeyPatch):
    app = make(url, plain_async)

    @app.action(isolate="process")
    def needs_module(ctx: Ctx) -> None: ...

    with pytest.raises(Exception, match="needs an app that another process can import"):
        app.start()
    assert LOGS["shop"] == ["entered", "exited"]
    app.close()


@on_sqlite
def test_an_error_at_its_end_does_not_keep_the_worker_from_stopping(
    url: str, caplog: pytest.LogCaptureFixture
):
    async def lifespan(app: Duly) -> AsyncIterator[int]:
        yield 7
        raise ValueError("not flushed")

    app = make(url, lifespan)
    with app:
        pass
    assert app.workers() == []
    assert "worker_lifespan failed when it was exited" in caplog.text
    assert "not flushed" in caplog.text
    app.close()


@on_sqlite
def test_a_body_that_is_interrupted_ends_before_the_lifespan(url: str):
    app = make(url, plain_async)
    gate = Gate()

    @app.action
    async def wait(ctx: AsyncCtx) -> None:
        try:
            gate.open()
            gate.pass_through()
            await asyncio.sleep(PATIENCE)
        finally:
            await asyncio.sleep(0.01)
            ctx.state["log"].append("canceled")

    app.start()
    app.run(wait)
    gate.wait_for_one()
    app.stop(0)
    assert LOGS["shop"] == ["entered", "canceled", "exited"]
    app.close()


@on_sqlite
def test_a_slow_start_does_not_look_stuck(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("duly.runtime.lifeline.PROGRESS_SECONDS", 0.001)
    progress = threading.Event()

    class Noted(Lifeline):
        def progress(self) -> None:
            progress.set()

    def slow(app: Duly) -> Iterator[None]:
        progress.clear()
        assert progress.wait(PATIENCE)
        yield

    app = make(url, slow)
    lifeline, _ = Noted.create()
    service = app.service(lifeline=lifeline)
    assert isinstance(service, Service)
    service.start()
    service.stop()
    app.close()


@on_sqlite
def test_without_a_lifespan_the_state_names_the_option(url: str):
    app = Duly(url)
    app.migrate()

    @app.action
    def act(ctx: Ctx) -> None:
        _ = ctx.state

    job = app.run(act)
    drain(app, raises=False)
    assert job.error
    assert "there is no state: pass Duly(worker_lifespan=…)" in job.error.message
    app.close()


@on_sqlite
def test_tests_can_give_a_state(url: str):
    app = make(url, plain)
    given: Shared = {"place": 0, "log": []}
    with override(app, state=given):
        for name in NAMES:
            app.run(app.function(name))
        drain(app)
        with app:
            app.run(app.function("act")).result(PATIENCE)
    assert sorted(given["log"]) == ["act", *SHARED]
    assert LOGS["shop"] == []

    given["log"].clear()
    functions: Any = app.functions
    functions["act"](ctx(app, state=given))
    functions["call"](ctx(app, state=given))
    asyncio.run(functions["fetch"](async_ctx(app, state=given)))
    with tx(app, state=given) as opened:
        functions["mutate"](opened)
    assert given["log"] == ["act", "mutate", "fetch", "mutate"]
    with pytest.raises(InvalidOption, match="in tests, pass state= to override"):
        _ = ctx(app).state
    assert ctx(app, state=None).state is None
    app.close()


@on_sqlite
def test_what_is_not_a_lifespan_is_refused(url: str, caplog: pytest.LogCaptureFixture):
    def without() -> Iterator[None]:
        yield

    for wrong in (7, without):
        with pytest.raises(InvalidOption, match="a function with one parameter, the app"):
            Duly(url, worker_lifespan=wrong)  # type: ignore[arg-type]  # pyright: ignore

    async def no_yield(app: Duly) -> int:
        return 7

    for lifespan in (no_yield, lambda app: 7):
        app = make(url, lifespan)
        with pytest.raises(InvalidOption, match="write a function with one `yield`"):
            app.start()
        app.close()
