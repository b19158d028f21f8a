"""The workload that the kill tests run: every kind of function, each leaving a trace.

A mutation's trace is a row of `effects`, inside its transaction. An action's trace is a line of the
file `starts`, outside of any.
"""

import asyncio
import os
import time
from pathlib import Path

from duly import AsyncCtx, Ctx, Duly, Retry, Tx
from tests.torture.kill.trace import Trace

SOON = Retry(attempts=8, base=0, jitter=0.05)

app = Duly()
trace = Trace(Path(os.environ["KILL_FOLDER"]))


def has_effect(tx: Tx) -> None:
    tx.execute("INSERT INTO effects (job_id) VALUES (?)", (tx.job_id,))


def has_started(ctx: Ctx | AsyncCtx) -> None:
    trace.append("starts", ctx.job_id, ctx.attempt)


@app.mutation
def note(tx: Tx) -> str:
    has_effect(tx)
    return "noted"


@app.mutation
def breed(tx: Tx, children: int) -> None:
    for _ in range(children):
        tx.run(note)
    has_effect(tx)


@app.mutation
def fail(tx: Tx) -> None:
    has_effect(tx)
    raise ValueError("always")


@app.mutation(retry=SOON)
def fail_once(tx: Tx) -> None:
    has_effect(tx)
    if tx.attempt == 1:
        raise ValueError("the first time")


@app.mutation
def serve(tx: Tx) -> None:
    """Scheduled together with a row of `orders`."""
    has_effect(tx)


@app.action
def touch(ctx: Ctx) -> str:
    has_started(ctx)
    return "touched"


@app.action
async def touch_async(ctx: AsyncCtx) -> str:
    has_started(ctx)
    await asyncio.sleep(0.01)
    return "touched"


@app.action
def linger(ctx: Ctx) -> None:
    has_started(ctx)
    time.sleep(0.05)


@app.action
def beget(ctx: Ctx) -> None:
    has_started(ctx)
    ctx.run(note)


@app.action
def cancel(ctx: Ctx, job_id: str) -> None:
    has_started(ctx)
    ctx.cancel(job_id)


@app.action(retry=SOON)
def touch_again(ctx: Ctx) -> None:
    has_started(ctx)
    if ctx.attempt == 1:
        raise ValueError("the first time")


@app.action(retry=SOON)
async def touch_again_async(ctx: AsyncCtx) -> None:
    has_started(ctx)
    if ctx.attempt == 1:
        raise ValueError("the first time")


@app.action(timeout=0.02)
def overrun(ctx: Ctx) -> None:
    has_started(ctx)
    time.sleep(0.1)


@app.action(timeout=0.02)
async def overrun_async(ctx: AsyncCtx) -> None:
    has_started(ctx)
    await asyncio.sleep(0.1)


SIMPLE = (
    note,
    fail,
    fail_once,
    touch,
    touch_async,
    linger,
    beget,
    touch_again,
    touch_again_async,
    overrun,
    overrun_async,
)
