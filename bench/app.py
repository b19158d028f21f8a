"""The measured application."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from bench.flows import Flows, add_flows
from bench.marks import Marks
from duly import AsyncCtx, Ctx, Duly, Limit, Tx
from duly.calls.kinds import Action, AsyncAction, Mutation
from duly.functions.function import Function
from duly.functions.new_job import new_job
from duly.model.job import NewJob

CREATE_ROWS = "CREATE TABLE bench_rows (n bigint NOT NULL)"
INSERT_ROW = "INSERT INTO bench_rows (n) VALUES (?)"
UPDATES_PER_SECOND = 100
"""How often a reporting job updates its progress."""


NAP_SECONDS = 0.1
LIMITED_AT_ONCE = 2


class Measured(NamedTuple):
    """The app and its functions, which do as little as possible."""

    app: Duly
    async_noop: AsyncAction[[int], None]
    sync_noop: Action[[int], None]
    insert_row: Mutation[[int], None]
    insert_grouped: Mutation[[int], None]
    talk: AsyncAction[[int], None]
    keep_quiet: AsyncAction[[int], None]
    nap: AsyncAction[[int], None]
    ping: AsyncAction[[int], None]
    limited_noop: AsyncAction[[int], None]
    flows: Flows


def make_app(url: str, marks: Marks | None = None) -> Measured:
    """The app over one database. Only a worker needs marks."""
    app = Duly(url)

    @app.action
    async def async_noop(ctx: AsyncCtx, n: int) -> None:
        assert marks is not None
        marks.mark()

    @app.action
    def sync_noop(ctx: Ctx, n: int) -> None:
        assert marks is not None
        marks.mark()

    @app.mutation
    def insert_row(tx: Tx, n: int) -> None:
        assert marks is not None
        tx.execute(INSERT_ROW, (n,))
        marks.mark()

    @app.mutation(group=True)
    def insert_grouped(tx: Tx, n: int) -> None:
        assert marks is not None
        tx.execute(INSERT_ROW, (n,))
        marks.mark()

    @app.action
    async def talk(ctx: AsyncCtx, until: int) -> None:
        """Report progress until this many other bodies have run."""
        assert marks is not None
        began, said = time.monotonic(), 0
        while marks.count < until:
            while said < (time.monotonic() - began) * UPDATES_PER_SECOND:
                await ctx.progress(said % 100 / 100, "talking")
                said += 1
            await asyncio.sleep(0.01)

    @app.action
    async def keep_quiet(ctx: AsyncCtx, until: int) -> None:
        """The same without reporting progress."""
        assert marks is not None
        while marks.count < until:
            await asyncio.sleep(0.01)

    @app.action
    async def nap(ctx: AsyncCtx, n: int) -> None:
        """Wait for something external, as most jobs do."""
        assert marks is not None
        await asyncio.sleep(NAP_SECONDS)
        marks.mark()

    @app.action
    async def ping(ctx: AsyncCtx, sent_at: int) -> None:
        assert marks is not None
        marks.ping(sent_at)

    @app.action(limit=Limit("bench", at_once=LIMITED_AT_ONCE))
    async def limited_noop(ctx: AsyncCtx, n: int) -> None:
        assert marks is not None
        marks.mark()

    return Measured(
        app,
        async_noop,
        sync_noop,
        insert_row,
        insert_grouped,
        talk,
        keep_quiet,
        nap,
        ping,
        limited_noop,
        add_flows(app, marks),
    )


def new_jobs(app: Duly, function: Function[[int], None], count: int) -> list[NewJob]:
    """Rows for this many calls, created before the clock starts."""
    now = app.clock.now()
    return [new_job(function.bind(n), now, now, None) for n in range(count)]
