"""A worker process that a test kills: `python -m tests.jobs.child URL FILE`.

The same app is built in the test's own process with `make_app`, to look at what is left.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from duly import AsyncTx, Clock, Ctx, Duly, Retry, Tx

PATIENCE = 60


def make_app(url: str, file: Path, clock: Clock | None = None) -> Duly:
    """An app whose actions leave a line in the file each time they run."""
    app = Duly(url, clock=clock)

    def mark(text: str) -> None:
        with open(file, "a") as marks:
            marks.write(f"{text}\n")

    @app.mutation
    def note(tx: Tx, text: str) -> None:
        mark("note")
        tx.execute("INSERT INTO notes VALUES (?)", (text,))
        tx.run_after(3600, later)

    @app.mutation
    async def note_async(tx: AsyncTx, text: str) -> None:
        mark("note_async")
        await tx.execute("INSERT INTO notes VALUES (?)", (text,))
        await asyncio.sleep(0)
        await tx.run_after(3600, later)

    @app.action
    def later(ctx: Ctx) -> None:
        mark("later")

    @app.action
    def die(ctx: Ctx) -> None:
        mark("die")
        if os.environ.get("MAY_DIE"):
            os.kill(os.getpid(), signal.SIGKILL)

    @app.action(retry=Retry(attempts=3, delay=0, jitter=0))
    def die_once(ctx: Ctx) -> int:
        mark("die_once")
        if os.environ.get("MAY_DIE"):
            os.kill(os.getpid(), signal.SIGKILL)
        return ctx.attempt

    @app.action(retry=Retry(attempts=3))
    def fail_once(ctx: Ctx) -> int:
        mark(f"attempt-{ctx.attempt}")
        if ctx.attempt == 1:
            raise ValueError("boom")
        return ctx.attempt

    return app


def run_until_killed(url: str, file: Path, fault: str | None = None) -> None:
    """Start a worker process and wait for its end, which has to be a SIGKILL."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "MAY_DIE": "yes",
    }
    if fault:
        environment["DULY_FAULT"] = fault
    ended = subprocess.run(
        [sys.executable, "-m", "tests.jobs.child", url, str(file)],
        env=environment,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()


if __name__ == "__main__":
    with make_app(sys.argv[1], Path(sys.argv[2])):
        threading.Event().wait(PATIENCE)
