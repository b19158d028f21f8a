"""The workload: every kind of function, each leaving a trace.

A mutation's trace is a row of `effects`, inside its transaction. An action's trace is a line of the
file `starts`, outside any transaction. Functions with a key also record when they begin and end.
"""

import asyncio
import os
import random
import time
from pathlib import Path

from duly import AsyncCtx, AsyncTx, Ctx, Duly, Limit, Retry, Tx
from duly.functions.function import Function
from duly.model.trigger import Every
from tests.torture.kill.trace import Trace
from torture.load.terms import AT_ONCE
from torture.load.ticks import SECOND, anchor_of

SOON = Retry(attempts=8, delay=0, jitter=0.05)
KEYS = 6
SCHEDULES = int(os.environ.get("TORTURE_SCHEDULES", "0"))

# How long a mutation may do nothing within its transaction, in seconds.
DAWDLES = float(os.environ.get("TORTURE_DAWDLES", "0"))

app = Duly(pool=int(os.environ.get("TORTURE_POOL", "20")))
trace = Trace(Path(os.environ["TORTURE_FOLDER"]))


def has_effect(tx: Tx) -> None:
    tx.execute("INSERT INTO effects (job_id) VALUES (?)", (tx.job_id,))


def has_started(ctx: Ctx | AsyncCtx) -> None:
    trace.append("starts", ctx.job_id, ctx.attempt)


@app.mutation
def note(tx: Tx) -> str:
    has_effect(tx)
    if DAWDLES:
        time.sleep(random.uniform(0, DAWDLES))
    return "noted"


@app.mutation
async def note_async(tx: AsyncTx) -> str:
    await tx.execute("INSERT INTO effects (job_id) VALUES (?)", (tx.job_id,))
    await asyncio.sleep(random.uniform(0, max(DAWDLES, 0.005)))
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


@app.mutation
def receive(tx: Tx, number: str) -> None:
    """Requested over HTTP, each number until there is an answer."""
    has_effect(tx)
    tx.execute("INSERT INTO received (number) VALUES (?)", (number,))


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


@app.action(retry=SOON)
def dwell(ctx: Ctx) -> None:
    """Runs long enough to be killed repeatedly, and so ends up in its own process."""
    has_started(ctx)
    time.sleep(1)


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


def work_under(key: str, ctx: Ctx) -> None:
    has_started(ctx)
    body = f"{ctx.job_id}/{ctx.attempt}"
    trace.append("keys", "begins", key, body, os.getpid())
    time.sleep(0.005)
    trace.append("keys", "ends", key, body, os.getpid())


@app.action(retry=SOON, limit=Limit(lambda key: f"solo-{key}", at_once=AT_ONCE["solo"]))
def solo(ctx: Ctx, key: int) -> None:
    work_under(f"solo-{key}", ctx)


@app.action(retry=SOON, limit=Limit(lambda key: f"pair-{key}", at_once=AT_ONCE["pair"]))
def pair(ctx: Ctx, key: int) -> None:
    work_under(f"pair-{key}", ctx)


@app.action
def gather(ctx: Ctx, batch_id: str) -> None:
    """Called when the last member of a batch has ended."""
    has_started(ctx)


@app.action
async def chime(ctx: AsyncCtx, n: int) -> None:
    has_started(ctx)


for n in range(SCHEDULES):
    # After a kill all missed ticks must be dispatched, and none skipped or recorded as missed.
    app.schedule(
        f"chime {n}",
        chime.bind(n),
        trigger=Every(SECOND, anchor_of(n)),
        overlap="allow",
        catch_up=1_000,
    )

JOURNEYS: tuple[Function[[], None], ...] = ()
# The last release, which has no workflows, runs this module in the rolling upgrade.
if hasattr(app, "workflow"):
    from torture.load.journeys import add_journeys

    JOURNEYS = add_journeys(app, trace)

SIMPLE = (
    note,
    note_async,
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
    *JOURNEYS,
)
