"""The same from async code: what asks the store is awaited, and keeps its type."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, assert_type

from duly import AsyncApp, AsyncCtx, AsyncJob, AsyncTx, Ctx, Duly, Job, JobFailure, Rows, State, Tx
from duly.store.base import WorkerInfo

app = Duly("sqlite:///:memory:")


@app.mutation
def move(tx: Tx, account: int, amount: float = 1.0) -> bool:
    return True


@app.action
def post(ctx: Ctx, url: str) -> bytes:
    return b""


@app.action(timeout=5)
async def fetch(ctx: AsyncCtx, url: str) -> dict[str, int]:
    return {}


async def enqueue() -> None:
    assert_type(app.aio, AsyncApp)
    assert_type(await app.aio.run(move, 1), AsyncJob[bool])
    assert_type(await app.aio.run(fetch, "x"), AsyncJob[dict[str, int]])
    assert_type(await app.aio.run_after(5, move, 1, amount=2.0), AsyncJob[bool])
    assert_type(await app.aio.run_at(datetime.now(UTC), post, "x"), AsyncJob[bytes])
    assert_type(await app.aio.run_many(move.bind(n) for n in range(3)), list[AsyncJob[bool]])
    assert_type(await app.aio.run(await app.aio.function("shop.move"), account=1), AsyncJob[Any])
    await app.aio.run(move)  # error
    await app.aio.run(move, "1")  # error
    await app.aio.run_after(5, move, 1, amounts=2.0)  # error
    await app.aio.run_at("tomorrow", post, "x")  # error
    await app.aio.run_many([move])  # error
    app.aio.run(move, 1)  # error: not awaited


async def use_jobs(job: AsyncJob[bool], sync_job: Job[bool]) -> None:
    assert_type(job.id, str)
    assert_type(await job.state(), State)
    assert_type(await job.attempt(), int)
    assert_type(await job.error(), JobFailure | None)
    assert_type((await job.record()).run_at, int)
    assert_type(await job.result(timeout=1.5), bool)
    assert_type(await job.cancel(), bool)
    assert_type(await job.children(), list[AsyncJob[Any]])
    assert_type(await app.aio.job("id"), AsyncJob[Any])
    assert_type(await app.aio.jobs(state="failed", function=move), list[AsyncJob[Any]])
    assert_type(await app.aio.cancel(job), bool)
    assert_type(await app.aio.cancel(sync_job), bool)
    assert_type(await app.aio.cancel("id"), bool)
    assert_type(app.cancel(job), bool)
    assert_type(await app.aio.cancel_all(move, queue="slow"), int)
    assert_type(await app.aio.workers(), Sequence[WorkerInfo])
    broader: AsyncJob[int] = job
    text: str = await job.result()  # error
    not_awaited: bool = job.result()  # error
    as_sync: Job[bool] = job  # error
    state: State = job.state  # error
    await app.aio.cancel(5)  # error
    del broader, text, not_awaited, as_sync, state


async def in_a_transaction() -> None:
    async with app.aio.transaction() as tx:
        assert_type(tx, AsyncTx)
        assert_type(await tx.execute("SELECT ?", (1,)), Rows)
        assert_type(await tx.run(move, 1), AsyncJob[bool])
        assert_type(await tx.cancel("id"), bool)
        async with tx.savepoint():
            await tx.run_many([move.bind(1)])
        await tx.run(move, "1")  # error
        tx.execute("SELECT 1").scalar()  # error
        move(tx, 1)  # error
        with tx.savepoint():  # error
            pass
    with app.aio.transaction() as sync_tx:  # error
        del sync_tx


@app.action
async def in_an_action(ctx: AsyncCtx, account: int) -> bool:
    assert_type(await ctx.run(fetch, "x"), AsyncJob[dict[str, int]])
    assert_type(await ctx.call(move, account), bool)
    assert_type(ctx.canceled, bool)
    await ctx.call(move, "account")  # error
    await ctx.call(fetch, "x")  # error
    await ctx.run(move)  # error
    return ctx.call(move, account)  # error


async def run_jobs() -> None:
    async with app as same:
        assert_type(same, Duly)
