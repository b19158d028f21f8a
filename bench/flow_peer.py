"""Other engines of durable workflows, driven as their documentation says.

    NAME URL ONE RUNS EACH

Runs one workflow of ONE steps, then RUNS of EACH steps at once, and prints the steps per second of
both. A step does nothing and returns a number. Runs in the engine's own environment.
"""

# The peers are not installed where this file is checked.
# mypy: ignore-errors
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

POOL = 40
WARM_UP = 5


def launch_dbos(url: str):
    from dbos import DBOS

    config = {"name": "bench", "system_database_url": url, "sys_db_pool_size": POOL}
    DBOS(config=config | {"log_level": "ERROR", "run_admin_server": False})
    return DBOS


def dbos(url: str, one: int, runs: int, each: int) -> tuple[float, float]:
    engine = launch_dbos(url)

    @engine.step()
    async def step(n: int) -> int:
        return n

    @engine.workflow()
    async def flow(n: int) -> int:
        return sum([await step(i) for i in range(n)])

    async def measure() -> tuple[float, float]:
        engine.launch()
        await flow(WARM_UP)
        began = time.monotonic()
        await flow(one)
        alone = one / (time.monotonic() - began)
        began = time.monotonic()
        handles = [await engine.start_workflow_async(flow, each) for _ in range(runs)]
        for handle in handles:
            await handle.get_result()
        return alone, runs * each / (time.monotonic() - began)

    return asyncio.run(measure())


def dbos_threads(url: str, one: int, runs: int, each: int) -> tuple[float, float]:
    engine = launch_dbos(url)

    @engine.step()
    def step(n: int) -> int:
        return n

    @engine.workflow()
    def flow(n: int) -> int:
        return sum([step(i) for i in range(n)])

    engine.launch()
    flow(WARM_UP)
    began = time.monotonic()
    flow(one)
    alone = one / (time.monotonic() - began)
    began = time.monotonic()
    handles = [engine.start_workflow(flow, each) for _ in range(runs)]
    for handle in handles:
        handle.get_result()
    return alone, runs * each / (time.monotonic() - began)


def absurd(url: str, one: int, runs: int, each: int) -> tuple[float, float]:
    from absurd_sdk import AsyncAbsurd

    control = str(Path(sys.executable).with_name("absurdctl"))
    for verb, *names in (["init"], ["create-queue", "default"]):
        command = [control, verb, "-d", url, *names]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    async def measure() -> tuple[float, float]:
        engine, left, over = AsyncAbsurd(url), 0, asyncio.Event()

        async def nothing() -> int:
            return 1

        async def flow(params, ctx) -> None:
            nonlocal left
            for number in range(params["n"]):
                await ctx.step(f"s{number}", nothing)
            left -= 1
            if left == 0:
                over.set()

        async def run(count: int, steps: int) -> float:
            nonlocal left
            left = count
            over.clear()
            began = time.monotonic()
            for _ in range(count):
                await engine.spawn("flow", {"n": steps})
            await over.wait()
            return count * steps / (time.monotonic() - began)

        engine.register_task(name="flow")(flow)
        working = asyncio.create_task(
            engine.start_worker(concurrency=runs, batch_size=runs, poll_interval=0.01)
        )
        await run(1, WARM_UP)
        rates = await run(1, one), await run(runs, each)
        working.cancel()
        return rates

    return asyncio.run(measure())


ENGINES = {"dbos": dbos, "dbos_threads": dbos_threads, "absurd": absurd}


def main() -> None:
    name, url, *numbers = sys.argv[1:]
    print(*ENGINES[name](url, *map(int, numbers)), flush=True)
    # Their threads would keep the process alive.
    os._exit(0)
