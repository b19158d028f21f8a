"""Jobs that take their worker down with them, and jobs that only happened to be beside them."""

import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path

from duly import Ctx, Duly, Retry, Tx
from duly.runtime import lifeline, liveness
from tests.torture.kill.trace import Trace

BYSTANDERS = 3
PATIENCE = 60.0
SOON = Retry(attempts=5, delay=0, jitter=0.05)


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def make(url: str | None, folder: Path) -> Duly:
    """The same app for the processes and for the test that enqueues."""
    app = Duly(url)
    trace = Trace(folder)

    def have_effect(tx: Tx) -> None:
        tx.execute("INSERT INTO effects (job_id) VALUES (?)", (tx.job_id,))

    def die(job_id: str | None, by: Callable[[], object] = kill_myself) -> None:
        """Not before every bystander has begun, so that all of them lose their worker."""
        give_up_at = time.monotonic() + PATIENCE
        while len(trace.lines("bystanders")) < BYSTANDERS and time.monotonic() < give_up_at:
            time.sleep(0.005)
        trace.append("deaths", job_id)
        by()

    @app.mutation
    def note(tx: Tx) -> None:
        have_effect(tx)

    @app.action(retry=SOON)
    def bystander(ctx: Ctx) -> None:
        trace.append("bystanders", ctx.job_id)
        time.sleep(0.2)

    @app.mutation
    def crash_inside(tx: Tx) -> None:
        have_effect(tx)
        die(tx.job_id)

    @app.action(retry=SOON)
    def crash_outside(ctx: Ctx) -> None:
        die(ctx.job_id, os.abort)

    @app.action(retry=SOON)
    def exhaust(ctx: Ctx) -> None:
        """Take memory until somebody does what the kernel does to whoever takes too much."""
        hoard: list[bytearray] = []
        while len(hoard) < 20:
            hoard.append(bytearray(b"x" * (8 << 20)))
        die(ctx.job_id)

    @app.action(retry=SOON)
    def innocent(ctx: Ctx) -> None:
        trace.append("innocents", os.getpid())
        give_up_at = time.monotonic() + PATIENCE
        while not trace.lines("go") and time.monotonic() < give_up_at:
            time.sleep(0.005)

    @app.mutation(timeout=0.5)
    def spin(tx: Tx) -> None:
        have_effect(tx)
        trace.append("deaths", tx.job_id)
        while True:
            pass

    return app


if "KILL_FOLDER" in os.environ:
    app = make(None, Path(os.environ["KILL_FOLDER"]))
    # A process that never comes back need not be watched for long.
    lifeline.BODY_GRACE = 0.5
    liveness.ROUNDS_UNTIL_DEAD = int(os.environ.get("KILL_ROUNDS", liveness.ROUNDS_UNTIL_DEAD))
    # An abort leaves a dump where the machine keeps them.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
