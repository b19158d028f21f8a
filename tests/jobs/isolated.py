"""The app whose actions run in separate processes; its bodies leave lines in a folder.

The test and the processes make the same app: the processes find it by importing this module.
"""

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import duly
from duly import AsyncCtx, AsyncTx, AttemptInfo, Ctx, Duly, Redact, Retry, Tx
from duly.errors import Canceled, NonRetryable
from tests.torture.kill.trace import Trace

FOLDER = "ISOLATED_FOLDER"
PATIENCE = 60.0


def make(url: str | None, folder: Path) -> Duly:
    trace = Trace(folder)

    async def lifespan(app: Duly) -> AsyncIterator[dict[str, object]]:
        if (folder / "broken").exists():
            raise ConnectionError("no answer")
        trace.append("lifespan", "entered", os.getpid())
        yield {"pid": os.getpid(), "loop": asyncio.get_running_loop()}
        trace.append("lifespan", "exited", os.getpid())

    app = Duly(url, worker_lifespan=lifespan)
    add_answers(app)
    add_endless(app, trace)
    add_deaths(app, trace)
    add_reports(app, trace)
    add_waits(app, trace)
    add_hooks(app, trace)
    return app


def wait_for(file: Path) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while not file.exists() and time.monotonic() < give_up_at:
        time.sleep(0.005)


def add_answers(app: Duly) -> None:
    """They return or raise."""

    @app.action(isolate="process")
    def add(ctx: Ctx, a: int, b: int) -> list[int]:
        return [a + b, os.getpid()]

    @app.action(isolate="process", name="async.add")
    async def add_async(a: int, b: int) -> list[int]:
        await asyncio.sleep(0)
        assert duly.current(AsyncCtx).attempt == 1
        return [a + b, os.getpid()]

    @app.action(isolate="process")
    def state(ctx: Ctx) -> list[int]:
        return [ctx.state["pid"], os.getpid()]

    @app.action(isolate="process", name="async.state")
    async def state_async(ctx: AsyncCtx) -> list[int]:
        assert ctx.state["loop"] is asyncio.get_running_loop()
        return [ctx.state["pid"], os.getpid()]

    @app.action(isolate="process", name="async.call")
    async def call_async(ctx: AsyncCtx, text: str) -> str:
        return await ctx.call(note_async, text)

    @app.mutation
    async def note_async(tx: AsyncTx, text: str) -> str:
        await tx.execute("INSERT INTO notes VALUES (?)", (text,))
        return text

    @app.action(isolate="process", retry=Retry(attempts=3, delay=0, jitter=0))
    def fail(ctx: Ctx, secret: Annotated[str, Redact], for_good: bool) -> None:
        error = NonRetryable if for_good else ValueError
        raise error(f"attempt {ctx.attempt} with {secret}")

    @app.action(isolate="process")
    def unstorable(ctx: Ctx) -> object:
        return object()

    @app.action(isolate="process")
    def fork_tree(ctx: Ctx) -> str:
        """Schedules a job and calls a mutation, as any other action may."""
        ctx.call(note, "called")
        return ctx.run(plain).id

    @app.action
    def plain(ctx: Ctx) -> int:
        return os.getpid()

    @app.mutation
    def note(tx: Tx, text: str) -> None:
        tx.execute("INSERT INTO notes VALUES (?)", (text,))


def add_endless(app: Duly, trace: Trace) -> None:
    """They run until they are stopped."""

    @app.action(isolate="process")
    def spin(ctx: Ctx) -> None:
        """Never returns, never waits."""
        try:
            trace.append("began", os.getpid())
            while True:
                pass
        except Canceled:
            trace.append("told", ctx.canceled)
            raise

    @app.action(isolate="process", name="async.sleep")
    async def sleep_async(ctx: AsyncCtx) -> None:
        try:
            trace.append("began", os.getpid())
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            trace.append("told", ctx.canceled)
            raise

    @app.action(isolate="process")
    def ignore(ctx: Ctx) -> None:
        """Ignores SIGTERM, and has started a process that ignores it too."""
        child = subprocess.Popen([sys.executable, "-c", IGNORES])
        trace.append("child", child.pid)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        trace.append("began", os.getpid())
        while True:
            pass

    @app.action(isolate="process", name="hold.interpreter")
    def hold_interpreter(ctx: Ctx) -> None:
        """Lets no other thread of its process run."""
        trace.append("began", os.getpid())
        re.match("(a+)+$", "a" * 99 + "b")

    @app.action(isolate="process", name="leave.child")
    def leave_child(ctx: Ctx) -> None:
        """Ends when told, and leaves a process behind."""
        child = subprocess.Popen([sys.executable, "-c", IGNORES])
        trace.append("child", child.pid)
        trace.append("began", os.getpid())
        time.sleep(PATIENCE)

    @app.action
    def endless(ctx: Ctx) -> None:
        """In a thread of the worker."""
        while True:
            pass

    @app.action
    def look(ctx: Ctx) -> None:
        """Looks whether it was canceled."""
        trace.append("began", os.getpid())
        while not ctx.canceled:
            time.sleep(0.005)
        trace.append("told", os.getpid())


def add_deaths(app: Duly, trace: Trace) -> None:
    """They end their process."""

    @app.action(isolate="process")
    def die(ctx: Ctx, number: int) -> None:
        trace.append("began", os.getpid())
        os.kill(os.getpid(), number)

    @app.action(isolate="process")
    def leave(ctx: Ctx) -> None:
        os._exit(3)

    @app.action(isolate="process", retry=Retry(attempts=2, delay=0, jitter=0))
    def die_once(ctx: Ctx) -> int:
        if ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return ctx.attempt


def add_reports(app: Duly, trace: Trace) -> None:
    """They log and say how far they are."""

    @app.action(isolate="process")
    def speak(ctx: Ctx) -> None:
        logger = logging.getLogger("shop.mail")
        logger.debug("too quiet")
        logger.warning("sent %d of %d", 1, 2)
        try:
            raise KeyError("lost")
        except KeyError:
            logger.exception("one failed")

    @app.action(isolate="process")
    def report(ctx: Ctx, last: bool) -> None:
        """Says how far it is, and waits until the test has seen it."""
        ctx.progress(0.5, "half")
        ctx.log("began")
        logging.getLogger("shop.mail").warning("sent one")
        wait_for(trace.folder / "go")
        if last:
            ctx.progress(1, "done")
            raise ValueError("at the end")

    @app.action(isolate="process", name="async.report")
    async def report_async(ctx: AsyncCtx, last: bool) -> None:
        await ctx.progress(0.5, "half")
        ctx.log("began")
        logging.getLogger("shop.mail").warning("sent one")
        await asyncio.to_thread(wait_for, trace.folder / "go")
        await ctx.progress(1, "done")


def add_waits(app: Duly, trace: Trace) -> None:
    """They wait for a file of the test's."""

    @app.action(isolate="process", name="wait.for")
    def wait(ctx: Ctx, file: str) -> str:
        trace.append("began", os.getpid())
        wait_for(trace.folder / file)
        return "waited"

    @app.action(isolate="process")
    def linger(ctx: Ctx) -> str:
        """Returns, and leaves a thread that keeps its process from ending."""
        threading.Thread(target=wait_for, args=[trace.folder / "never"]).start()
        trace.append("began", os.getpid())
        return "done"


def add_hooks(app: Duly, trace: Trace) -> None:
    """They leave a line each time."""

    @app.on_start
    @app.on_success
    @app.on_failure
    def tell(info: AttemptInfo) -> None:
        kind = info.error.kind if info.error else None
        trace.append("hooks", info.function, info.state, kind, os.getpid())


IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"

if FOLDER in os.environ:
    # As some libraries do when they are imported.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    app = make(None, Path(os.environ[FOLDER]))
