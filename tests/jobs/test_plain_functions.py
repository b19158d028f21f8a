"""Functions without a context parameter, and `duly.current()`, which finds it."""

import asyncio
import contextvars
import gc
import threading
import weakref
from typing import Annotated, Any

import pytest

import duly
from duly import (
    Action,
    AsyncCtx,
    AsyncPlainAction,
    Ctx,
    Duly,
    Group,
    Limit,
    NoCurrentJob,
    PlainAction,
    Redact,
    Retry,
    Tx,
)
from duly.errors import InvalidArgument, InvalidFunction
from duly.testing import async_ctx, ctx, drain, tx
from tests.jobs.support import Hire


def job_here() -> str | None:
    """What any code in a job can ask, however deep it is called."""
    return (lambda: duly.current().job_id)()


@pytest.mark.spec("N61")
def test_an_action_needs_no_context(app: Duly, hire: Hire):
    group = Group("shop")

    @app.action(
        aliases=["scale"],
        retry=Retry(attempts=2, delay=0, jitter=0),
        limit=Limit(lambda path, **_: path, at_once=1),
    )
    def resize(path: str, width: int = 10, secret: Annotated[str, Redact] = "") -> str | None:
        """Resize a picture."""
        if secret and duly.current().attempt == 1:
            raise ValueError(f"no {secret}")
        return f"{path} at {width}" if width else job_here()

    @group.action
    async def fetch(url: str, *, tries: int) -> list[Any]:
        before = job_here()
        await asyncio.sleep(0)
        return [url, tries, before, job_here()]

    @app.declare(name="resize")
    def declared(path: str, width: int = 10) -> str:
        raise NotImplementedError

    app.include(group)
    assert (type(resize), type(fetch)) == (PlainAction, AsyncPlainAction)
    assert resize("x", width=3) == "x at 3"
    assert asyncio.run(_caught(fetch, "x")) == "NoCurrentJob"
    assert list(resize.signature.json_schema()["properties"]) == ["path", "width", "secret"]
    worker = hire()
    again = app.run(resize, "a", 0, secret="hunter2")
    jobs = [app.run(resize.using(queue="x"), "a", width=7), app.run(fetch, "b", tries=2)]
    jobs += [app.run(declared, "c"), app.run(app.function("scale"), path="d")]
    worker.work()
    assert [job.error for job in jobs] == [None] * 4
    assert [job.result(0) for job in jobs] == [
        "a at 7",
        ["b", 2, jobs[1].id, jobs[1].id],
        "c at 10",
        "d at 10",
    ]
    assert (again.result(0), again.attempt) == (again.id, 2)
    mistakes: list[tuple[tuple[Any, ...], str]] = [
        (("a", "b"), "width"),
        ((), "path"),
        (("a", 1, "", 5), "#4"),
    ]
    for args, wrong in mistakes:
        with pytest.raises(InvalidArgument) as refused:
            app.run(resize, *args)
        assert refused.value.argument == wrong
    assert "hunter2" not in str(app.job(again.id).arguments)


async def _caught(function: Any, *args: Any) -> str:
    try:
        await function(*args, tries=1)
    except Exception as error:
        return type(error).__name__
    return ""


@pytest.mark.spec("N62")
def test_the_context_of_the_running_job_is_found_at_any_depth(app: Duly, hire: Hire):
    seen: dict[str, list[object]] = {}

    @app.mutation
    def inner(own: Tx) -> str:
        assert duly.current(Tx) is own
        return "inner"

    @app.mutation
    def move(own: Tx) -> None:
        seen["move"] = [duly.current() is own, job_here()]

    @app.action
    def sync(ctx: Ctx) -> None:
        copied = contextvars.copy_context()
        thread = threading.Thread(target=lambda: copied.run(note))
        found: list[object] = []

        def note() -> None:
            found.append(duly.current(Ctx) is ctx)

        thread.start()
        thread.join()
        assert ctx.call(inner) == "inner"
        with pytest.raises(NoCurrentJob, match="has a Ctx, not a Tx"):
            duly.current(Tx)
        seen["sync"] = [*found, duly.current() is ctx, job_here()]

    @app.action
    async def asynchronous(ctx: AsyncCtx) -> None:
        assert await ctx.call(inner) == "inner"
        in_thread = await asyncio.to_thread(job_here)
        in_task = await asyncio.create_task(asyncio.to_thread(job_here))
        seen["async"] = [in_thread == in_task, duly.current(AsyncCtx) is ctx, job_here()]

    jobs = [app.run(f) for f in (move, sync, asynchronous)]
    hire().work()
    assert [job.error for job in jobs] == [None] * 3
    assert seen == {
        "move": [True, jobs[0].id],
        "sync": [True, True, jobs[1].id],
        "async": [True, True, jobs[2].id],
    }
    drained = [app.run(f) for f in (move, sync, asynchronous)]
    drain(app)
    assert [seen[name][-1] for name in ("move", "sync", "async")] == [job.id for job in drained]
    with pytest.raises(NoCurrentJob, match="no job is running here") as outside:
        duly.current()
    assert isinstance(outside.value, LookupError)


@pytest.mark.spec("N62")
def test_bodies_that_share_a_task_have_each_their_own_context(app: Duly, hire: Hire):
    contexts: list[weakref.ref[object]] = []
    tasks: list[int] = []

    @app.action
    async def who() -> str:
        tasks.append(id(asyncio.current_task()))
        contexts.append(weakref.ref(duly.current()))
        return duly.current().job_id or ""

    @app.action
    def sync() -> None:
        contexts.append(weakref.ref(duly.current()))

    @app.mutation
    def mutation(own: Tx) -> None:
        contexts.append(weakref.ref(own))

    worker = hire()
    gc.collect()
    gc.disable()
    try:
        jobs = app.run_many([who.bind() for _ in range(5)])
        app.run_many([sync.bind(), mutation.bind()])
        worker.work()
        assert [job.result(0) for job in jobs] == [job.id for job in jobs]
        assert len(set(tasks)) == 1
        # Nothing is left for the garbage collector.
        assert [context() for context in contexts] == [None] * 7
    finally:
        gc.enable()


@pytest.mark.spec("N62")
def test_a_test_makes_a_context_the_current_one(app: Duly):
    @app.action
    def report() -> int:
        duly.current(Ctx).progress(0.5)
        return duly.current().attempt

    @app.action
    async def report_later() -> int:
        await duly.current(AsyncCtx).progress(0.5)
        return duly.current().attempt

    @app.mutation
    def note(tx: Tx) -> bool:
        return duly.current(Tx) is tx

    with ctx(app, attempt=3) as own:
        assert report() == 3
        assert own.call(note)
    with async_ctx(app, attempt=4):
        assert asyncio.run(report_later()) == 4
    with tx(app) as opened:
        assert note(opened)
    with pytest.raises(NoCurrentJob):
        report()


@pytest.mark.spec("N61")
def test_a_context_of_another_kind_or_place_is_refused(app: Duly):
    def a_mutation(tx: Tx, n: int) -> None: ...

    def second(n: int, ctx: Ctx) -> None: ...

    def unannotated(ctx) -> None: ...

    def of_async(ctx: AsyncCtx) -> None: ...

    async def of_sync(ctx: Ctx) -> None: ...

    async def in_text(ctx: "duly.Ctx") -> None: ...

    def in_nothing() -> None: ...

    wrong: list[Any] = [a_mutation, second, unannotated, of_async]
    for body in wrong:
        with pytest.raises(InvalidFunction, match="make `ctx: Ctx` the first parameter, or take"):
            app.action(body)
    for body in (of_sync, in_text):
        with pytest.raises(InvalidFunction, match="make `ctx: AsyncCtx` the first parameter"):
            app.action(body)  # pyright: ignore[reportArgumentType, reportCallIssue]
    mutations: Any = app.mutation
    with pytest.raises(InvalidFunction, match="must be `tx: Tx`, not no parameter"):
        mutations(in_nothing)
    assert app.functions == {}

    @app.action
    def in_a_name(ctx: "duly.Ctx", tx: str) -> None: ...

    assert type(in_a_name) is Action
