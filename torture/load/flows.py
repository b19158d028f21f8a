"""Workflows whose steps leave a trace: a row of `effects`, or a line of the file `starts`.

`TORTURE_BUILD` names the code. That of the build `broken` raises an exception behind the sleep.
"""

import os
from pathlib import Path

from duly import AsyncWorkflowCtx, Ctx, Duly, Retry, StepFailed, Tx, WorkflowCtx
from tests.torture.kill.trace import Trace

BROKEN = "broken"
BUILD = os.environ.get("TORTURE_BUILD", "fixed")
SOON = Retry(attempts=3, delay=0.05, jitter=0)

app = Duly(build=BUILD)
trace = Trace(Path(os.environ["TORTURE_FOLDER"]))


def has_effect(tx: Tx, tag: str) -> None:
    tx.execute("INSERT INTO effects (job_id) VALUES (?)", (tag,))


@app.mutation
def mark(tx: Tx, tag: str) -> str:
    has_effect(tx, tag)
    return tag


@app.mutation
def tell(tx: Tx, tag: str, run: str) -> None:
    """An event to the run itself, with the effect."""
    has_effect(tx, tag)
    tx.send(run, "told", tag)


@app.action
def charge(ctx: Ctx, tag: str) -> str:
    trace.append("starts", tag)
    return "paid"


@app.action(retry=SOON)
def ask(ctx: Ctx, tag: str) -> int:
    trace.append("starts", tag)
    if ctx.attempt == 1:
        raise ValueError("the first time")
    return ctx.attempt


def behind_the_sleep() -> None:
    if BUILD == BROKEN:
        raise LookupError("this build is broken")


@app.workflow
def order(ctx: WorkflowCtx, number: int, seconds: float) -> list[object]:
    tag = f"order-{number}"
    try:
        payment = ctx.step(charge, f"{tag}-charge")
    except StepFailed as error:
        payment = str(error.kind)
    ctx.step(mark, f"{tag}-mark")
    ctx.sleep(seconds)
    behind_the_sleep()
    asked, marked = ctx.gather(ask.bind(f"{tag}-ask"), mark.bind(f"{tag}-branch"))
    ctx.step(tell, f"{tag}-tell", ctx.job_id)
    told = ctx.wait_for("told", str)
    child = ctx.wait(ctx.run(mark, f"{tag}-child"))
    index, _ = ctx.first(ctx.event("never"), ctx.timer(0.05))
    return [payment, asked, marked, told, child, index]


@app.workflow
async def order_async(ctx: AsyncWorkflowCtx, number: int, seconds: float) -> list[object]:
    tag = f"order-{number}"
    try:
        payment = await ctx.step(charge, f"{tag}-charge")
    except StepFailed as error:
        payment = str(error.kind)
    await ctx.step(mark, f"{tag}-mark")
    await ctx.sleep(seconds)
    behind_the_sleep()
    asked, marked = await ctx.gather(ask.bind(f"{tag}-ask"), mark.bind(f"{tag}-branch"))
    await ctx.step(tell, f"{tag}-tell", ctx.job_id)
    told = await ctx.wait_for("told", str)
    child = await ctx.wait(await ctx.run(mark, f"{tag}-child"))
    index, _ = await ctx.first(ctx.event("never"), ctx.timer(0.05))
    return [payment, asked, marked, told, child, index]
