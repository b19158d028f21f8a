"""Other queues, driven as their documentation says; runs in its own environment.

NAME URL MARKS setup
NAME URL MARKS enqueue COUNT     one by one; prints how many seconds it took
NAME URL MARKS fill COUNT        as fast as it can
NAME URL MARKS work SETTING      until killed
NAME URL MARKS ping COUNT        one by one, a moment apart, each with the time of the call
"""

# The peers are not installed where this file is checked.
# mypy: ignore-errors
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.marks import Marks

PAGE = 1000


class PgQueuer:
    """The setting is its batch size."""

    def __init__(self, url: str, marks: Marks) -> None:
        self.url, self.marks = url, marks

    def _run(self, use: Any) -> Any:
        import asyncpg
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        async def connected() -> Any:
            driver = AsyncpgDriver(await asyncpg.connect(self.url))
            return await use(driver, Queries(driver))

        return asyncio.run(connected())

    def setup(self) -> None:
        self._run(lambda _, queries: queries.install())

    def enqueue(self, count: int) -> float:
        async def use(_: Any, queries: Any) -> float:
            began = time.monotonic()
            for _ in range(count):
                await queries.enqueue("noop", b"1")
            return time.monotonic() - began

        return self._run(use)

    def fill(self, count: int) -> None:
        async def use(_: Any, queries: Any) -> None:
            for _ in range(count // PAGE):
                await queries.enqueue(["noop"] * PAGE, [b"1"] * PAGE, [0] * PAGE)

        self._run(use)

    def work(self, batch_size: int) -> None:
        async def use(driver: Any, _: Any) -> None:
            from pgqueuer import PgQueuer as Worker

            worker = Worker(driver)

            @worker.entrypoint("noop")
            async def noop(job: Any) -> None:
                self.marks.mark()

            @worker.entrypoint("ping")
            async def ping(job: Any) -> None:
                self.marks.ping(int(job.payload))

            await worker.run(batch_size=batch_size)

        self._run(use)

    def ping(self, count: int) -> None:
        async def use(_: Any, queries: Any) -> None:
            for sent_at in moments(count):
                await queries.enqueue("ping", str(sent_at()).encode())

        self._run(use)


class Procrastinate:
    """The setting is its concurrency."""

    def __init__(self, url: str, marks: Marks) -> None:
        self.url, self.marks = url, marks

    def _run(self, use: Any) -> Any:
        from procrastinate import App, PsycopgConnector

        app = App(connector=PsycopgConnector(conninfo=self.url))

        @app.task(name="noop")
        async def noop(n: int) -> None:
            self.marks.mark()

        @app.task(name="ping")
        async def ping(sent_at: int) -> None:
            self.marks.ping(sent_at)

        self.pong = ping

        async def connected() -> Any:
            async with app.open_async():
                return await use(app, noop)

        return asyncio.run(connected())

    def setup(self) -> None:
        self._run(lambda app, _: app.schema_manager.apply_schema_async())

    def enqueue(self, count: int) -> float:
        async def use(_: Any, noop: Any) -> float:
            began = time.monotonic()
            for n in range(count):
                await noop.defer_async(n=n)
            return time.monotonic() - began

        return self._run(use)

    def fill(self, count: int) -> None:
        async def use(_: Any, noop: Any) -> None:
            for _ in range(count // PAGE):
                await noop.batch_defer_async(*[{"n": n} for n in range(PAGE)])

        self._run(use)

    def work(self, concurrency: int) -> None:
        self._run(lambda app, _: app.run_worker_async(concurrency=concurrency))

    def ping(self, count: int) -> None:
        async def use(*_: Any) -> None:
            for sent_at in moments(count):
                await self.pong.defer_async(sent_at=sent_at())

        self._run(use)


class Huey:
    """The setting is its number of threads.

    In its fastest configuration: without fsync and results.
    """

    def __init__(self, url: str, marks: Marks) -> None:
        from huey import SqliteHuey

        path = url.removeprefix("sqlite:///")
        self.huey = SqliteHuey("bench", filename=path, fsync=False, results=False)

        @self.huey.task(name="noop")
        def noop(n: int) -> None:
            marks.mark()

        self.noop = noop

    def setup(self) -> None:
        """Its tables were made above."""

    def enqueue(self, count: int) -> float:
        began = time.monotonic()
        for n in range(count):
            self.noop(n)
        return time.monotonic() - began

    fill = enqueue

    def work(self, threads: int) -> None:
        self.huey.create_consumer(workers=threads, worker_type="thread").run()


def moments(count: int) -> Iterator[Callable[[], int]]:
    """Clocks to be read right before each call, one after the other."""
    for _ in range(count):
        time.sleep(random.uniform(0.020, 0.050))
        yield time.monotonic_ns


PEERS = {"pgqueuer": PgQueuer, "procrastinate": Procrastinate, "huey": Huey}


def main() -> None:
    name, url, marks, verb, *number = sys.argv[1:]
    peer = PEERS[name](url, Marks(Path(marks)))
    print(getattr(peer, verb)(*map(int, number)))
