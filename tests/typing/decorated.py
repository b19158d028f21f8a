"""What the decorators make of a function, and what they refuse."""

from datetime import timedelta
from typing import Any, assert_type

from sqlalchemy.ext.asyncio import AsyncSession

from duly import (
    Action,
    AsyncAction,
    AsyncCtx,
    AsyncJob,
    AsyncMutation,
    AsyncPlainAction,
    AsyncTx,
    Ctx,
    Duly,
    Function,
    Job,
    Mutation,
    PlainAction,
    Retry,
    Tx,
    current,
)

app = Duly("sqlite:///:memory:")


@app.mutation
def move(tx: Tx, account: int, amount: float = 1.0) -> bool:
    return True


@app.mutation(queue="slow", priority=9, retry=Retry(attempts=3), tags=["a"], alone=True)
def move_slowly(tx: Tx, account: int) -> bool:
    return True


@app.mutation
async def move_async(tx: AsyncTx, account: int) -> bool:
    assert_type((await tx.execute("SELECT 1")).first(), tuple[Any, ...] | None)
    assert_type(await tx.run(move, account), AsyncJob[bool])
    assert_type(tx.session, AsyncSession)
    tx.execute("SELECT 1")  # error: not awaited
    _ = tx.connection  # error
    return True


@app.mutation(group=True, retry=Retry(attempts=3))
async def move_later(tx: AsyncTx, account: int) -> bool:
    return True


@app.action
def post(ctx: Ctx, url: str, *, tries: int = 1) -> bytes:
    return b""


@app.action(retry=Retry(attempts=5), timeout=timedelta(minutes=1), expires=60, owner="ada")
def post_again(ctx: Ctx, url: str) -> bytes:
    return b""


@app.action
async def fetch(ctx: AsyncCtx, url: str) -> dict[str, int]:
    return {}


@app.action(timeout=5, name="fetch.again")
async def fetch_again(ctx: AsyncCtx, url: str) -> dict[str, int]:
    return {}


@app.mutation
def nothing(tx: Tx) -> None: ...


@app.action
def resize(path: str, width: int = 10) -> str:
    assert_type(current(), Tx | AsyncTx | Ctx | AsyncCtx)
    assert_type(current().attempt, int)
    current(Ctx).progress(0.5)
    current(Tx).progress(0.5)  # error
    current().progress(0.5)  # error
    return path


@app.action(timeout=5)
async def resize_later(path: str) -> bytes:
    await current(AsyncCtx).progress(0.5)
    return b""


@app.action()
def no_arguments() -> None: ...


assert_type(move, Mutation[[int, float], bool])  # error: the names of the parameters are kept too
mutation: Mutation[[int], bool] = move_slowly
action: Action[[str], bytes] = post_again
async_action: AsyncAction[[str], dict[str, int]] = fetch
again: AsyncAction[[str], dict[str, int]] = fetch_again
any_function: Function[..., bool] = move
async_mutation: AsyncMutation[[int], bool] = move_async
async_mutation = move_later
sync_mutation: Mutation[[int], bool] = move_async  # error
wrong_result: Function[..., str] = move  # error
wrong_kind: Action[..., bool] = move  # error
plain: PlainAction[[], None] = no_arguments
async_plain: AsyncPlainAction[[str], bytes] = resize_later


def call_inline(tx: Tx, ctx: Ctx) -> None:
    assert_type(move(tx, 1, 2.0), bool)
    assert_type(post(ctx, "https://example.org", tries=2), bytes)
    move(tx)  # error
    move(tx, "1")  # error
    move(ctx, 1)  # error
    post(tx, "https://example.org")  # error


async def call_inline_async(ctx: AsyncCtx, sync_ctx: Ctx) -> None:
    assert_type(await fetch(ctx, "https://example.org"), dict[str, int])
    await fetch(sync_ctx, "https://example.org")  # error
    fetch(ctx, "https://example.org")  # error: not awaited


async def call_async_mutations(tx: AsyncTx, sync_tx: Tx, ctx: AsyncCtx, sync_ctx: Ctx) -> None:
    assert_type(await move_async(tx, 1), bool)
    assert_type(await ctx.call(move_later, account=1), bool)
    assert_type(await ctx.call(move_slowly, 1), bool)
    assert_type(app.run(move_async, 1), Job[bool])
    await move_async(sync_tx, 1)  # error
    await move_async(tx, "1")  # error
    await ctx.call(move_later, "1")  # error
    await ctx.call(fetch, "1")  # error
    sync_ctx.call(move_later, 1)  # error
    app.run(move_async, "1")  # error


async def call_plain_ones() -> None:
    assert_type(resize("x", width=3), str)
    assert_type(await resize_later("x"), bytes)
    assert_type(app.run(resize, "x"), Job[str])
    assert_type(app.run(resize_later, path="x").result(), bytes)
    assert_type(app.run(no_arguments), Job[None])
    app.run(resize)  # error
    app.run(resize, 1)  # error
    app.run(resize, "x", widht=3)  # error
    app.run(resize_later, "x", 3)  # error
    resize_later.bind()  # error
    resize(5)  # error
    resize_later("x")  # error: not awaited


@app.mutation  # error
def wrong_context(ctx: Ctx, n: int) -> None: ...


@app.mutation  # error
def no_context() -> None: ...


@app.mutation  # error
def wrong_tx(tx: AsyncTx) -> None: ...


@app.mutation(alone=True)  # error
async def wrong_async_context(ctx: AsyncCtx) -> None: ...


@app.mutation(retries=3)  # error
def wrong_option(tx: Tx) -> None: ...


@app.action(retry=5)  # error
def wrong_retry(ctx: Ctx) -> None: ...


@app.action(idempotency_key="k")  # error: for a call, not for all of them
def wrong_for_all_calls(ctx: Ctx) -> None: ...


@app.mutation(isolate="process")  # error
def wrong_isolation(tx: Tx) -> None: ...


@app.action(alone=True)  # error
def wrong_commit(ctx: Ctx) -> None: ...


def use() -> None:
    function: Function[[int], bool] = move_slowly.using(idempotency_key="k", tags=["a"])
    app.run(function.using(expires=60), 1)
    move_slowly.using(retries=3)  # error
    move_slowly.using(name="other")  # error
    move_slowly.using(priority="9")  # error
