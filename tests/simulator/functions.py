"""The users' functions, and how a job of each may end.

Every mutation writes one row into `effects`: exactly one must be there if and only if its job has
succeeded. Actions only say when they begin.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from duly import AsyncCtx, Ctx, Duly, Function, Tx
from duly.errors import StoreError

if TYPE_CHECKING:
    from tests.simulator.process import Process

SUCCEEDS = frozenset({"succeeded"})
FAILS = frozenset({"failed:user"})
TIMES_OUT = frozenset({"failed:timeout"})
# Only what kills its own process may be convicted: the others die because somebody else does.
CRASHES = frozenset({"failed:crash_loop"})

MUTATIONS = {
    "write": SUCCEEDS,
    "spawn": SUCCEEDS,
    "nested": SUCCEEDS,
    "broken": FAILS,
    # Fails if what it cancels is an ancestor of its own.
    "meddle": SUCCEEDS | FAILS,
    "committer": FAILS,
    "stubborn_committer": SUCCEEDS,
    "undoer": FAILS,
    "stubborn_undoer": FAILS,
    "deferred": FAILS,
    "toucher": SUCCEEDS,
    "quitter": FAILS,
    "slow": TIMES_OUT,
    "rare": SUCCEEDS,
    "poison": CRASHES,
    "collect": SUCCEEDS,
    "latest_write": SUCCEEDS,
    "after_batch": SUCCEEDS,
}
ACTIONS = {
    "poke": SUCCEEDS,
    "boom": FAILS,
    "fan": SUCCEEDS,
    "caller": SUCCEEDS,
    "walk": SUCCEEDS,
    "stubborn_walk": SUCCEEDS,
    "picky": SUCCEEDS,
    "deadly": CRASHES,
    "dwell": SUCCEEDS,
    "gather": SUCCEEDS,
    "latest": SUCCEEDS,
    "after_job": SUCCEEDS,
}
HOOKS = frozenset({"after_job", "after_batch"})
DEBOUNCED = frozenset({"latest", "latest_write"})
# What may happen to any job, whatever its function does; the ledger asks who canceled it, whether
# it could expire, and whether the worker that was lost has really gone.
ALWAYS = frozenset({"canceled", "canceled:expired"})


def ends_of(function: str, timeout_ms: int | None) -> frozenset[str]:
    """How a job of this function may end."""
    if function in MUTATIONS:
        ends = MUTATIONS[function] | ALWAYS
    else:
        ends = ACTIONS[function] | ALWAYS | {"failed:worker_lost"}
    return ends if timeout_ms is None else ends | TIMES_OUT


app = Duly("sqlite:////nowhere/duly.db")
acting: list[Process] = []
"""Whose body runs: the last one."""


class Pause:
    """Where an async body waits until the simulation lets it continue."""

    def __await__(self) -> Generator[None, None, None]:
        yield


@contextmanager
def excused(ctx: Ctx | AsyncCtx) -> Iterator[None]:
    """An action may fail with the store that it uses."""
    process = acting[-1]
    fired = process.faults.fired
    try:
        yield
    except (StoreError, sqlite3.Error):
        if process.faults.fired > fired:
            process.world.ledger.excused.add(ctx.job_id)
        raise


# Mutations -----------------------------------------------------------------------------------


def effect(tx: Tx) -> None:
    if tx._running is not None:
        acting[-1].started(tx._running.claim)
    tx.execute("INSERT INTO effects (job_id) VALUES (?)", (tx.job_id,))


def vain(tx: Tx) -> None:
    """Schedule what will be undone."""
    acting[-1].world.ledger.rolled_back(tx.run(write).id)


@app.mutation
def write(tx: Tx) -> None:
    effect(tx)


@app.mutation
def spawn(tx: Tx) -> None:
    tx.run(write)
    effect(tx)
    tx.run_after(1, poke)


@app.mutation
def nested(tx: Tx) -> None:
    effect(tx)
    with suppress(KeyError), tx.savepoint():
        effect(tx)
        vain(tx)
        raise KeyError
    with tx.savepoint():
        tx.run(write)


@app.mutation
def broken(tx: Tx) -> None:
    effect(tx)
    vain(tx)
    raise ValueError("broken as planned")


@app.mutation
def meddle(tx: Tx, target: str) -> None:
    effect(tx)
    with suppress(LookupError):
        tx.cancel(target)


@app.mutation
def committer(tx: Tx) -> None:
    effect(tx)
    tx.execute("COMMIT")


@app.mutation
def stubborn_committer(tx: Tx) -> None:
    effect(tx)
    for word in ("COMMIT", "ROLLBACK", "BEGIN"):
        try:
            tx.execute(word)
        except sqlite3.DatabaseError as error:
            if "not authorized" not in str(error):
                raise


@app.mutation
def undoer(tx: Tx) -> None:
    effect(tx)
    with suppress(sqlite3.IntegrityError):
        tx.execute("INSERT OR ROLLBACK INTO sim_fuse VALUES (1)")


@app.mutation
def stubborn_undoer(tx: Tx) -> None:
    with suppress(sqlite3.IntegrityError):
        tx.execute("INSERT OR ROLLBACK INTO sim_fuse VALUES (1)")
    effect(tx)


@app.mutation
def deferred(tx: Tx) -> None:
    effect(tx)
    tx.execute("INSERT INTO orphans VALUES (1)")


@app.mutation
def toucher(tx: Tx) -> None:
    effect(tx)
    tx.connection.execute("SELECT 1")


@app.mutation
def quitter(tx: Tx) -> None:
    effect(tx)
    raise SystemExit("a body may try anything")


@app.mutation
def slow(tx: Tx) -> None:
    effect(tx)
    acting[-1].linger(6)
    tx.run(write)


@app.mutation
def rare(tx: Tx) -> None:
    effect(tx)


@app.mutation
def poison(tx: Tx) -> None:
    effect(tx)
    acting[-1].drop_dead()


@app.mutation
def collect(tx: Tx) -> None:
    effect(tx)
    tx.batch([write.bind(), poke.bind()], on_complete=after_batch)


@app.mutation
def latest_write(tx: Tx, number: int) -> None:
    effect(tx)


@app.mutation
def after_batch(tx: Tx, batch_id: str) -> None:
    effect(tx)


# Actions -------------------------------------------------------------------------------------


def begin(ctx: Ctx | AsyncCtx) -> None:
    acting[-1].started(ctx._running.claim)


def child(ctx: Ctx, function: Function[..., object]) -> None:
    with excused(ctx):
        job = ctx.run(function)
    acting[-1].world.ledger.scheduled(job.id, ctx._running.claim.token)


async def async_child(ctx: AsyncCtx, function: Function[..., object], *args: object) -> None:
    with excused(ctx):
        job = await ctx.run(function, *args)
    acting[-1].world.ledger.scheduled(job.id, ctx._running.claim.token)


@app.action
def poke(ctx: Ctx) -> None:
    begin(ctx)


@app.action
def boom(ctx: Ctx) -> None:
    begin(ctx)
    raise ValueError("boom as planned")


@app.action
def fan(ctx: Ctx) -> None:
    begin(ctx)
    child(ctx, write)
    child(ctx, poke)


@app.action
def caller(ctx: Ctx) -> None:
    begin(ctx)
    with excused(ctx):
        ctx.call(spawn)


@app.action
async def walk(ctx: AsyncCtx) -> None:
    begin(ctx)
    await Pause()
    await async_child(ctx, walk if acting[-1].world.rng.random() < 0.2 else write)
    await Pause()


@app.action
async def stubborn_walk(ctx: AsyncCtx) -> None:
    """Continues after it was told to stop."""
    begin(ctx)
    for function, *args in ((meddle, ctx.job_id), (spawn,)):
        with suppress(asyncio.CancelledError):
            await Pause()
        await async_child(ctx, function, *args)


@app.action
def picky(ctx: Ctx, number: int) -> None:
    begin(ctx)


@app.action
def deadly(ctx: Ctx) -> None:
    begin(ctx)
    acting[-1].drop_dead()


@app.action
async def dwell(ctx: AsyncCtx) -> None:
    """Lives for a while, whatever happens to its job."""
    begin(ctx)
    for _ in range(4):
        with suppress(asyncio.CancelledError):
            await Pause()


@app.action
def gather(ctx: Ctx) -> None:
    begin(ctx)
    with excused(ctx):
        batch = ctx.batch([write.bind(), poke.bind()], on_complete=after_batch)
    acting[-1].world.ledger.acknowledged(batch.id)


@app.action
def latest(ctx: Ctx, number: int) -> None:
    begin(ctx)


@app.action
def after_job(ctx: Ctx, job_id: str) -> None:
    begin(ctx)
