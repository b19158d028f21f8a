"""The app of workers whose clocks can be set wrong from outside.

The file that GLITCH names contains by how many seconds: on SQLite the machine's clock is wrong, on
PostgreSQL the server's answers are.
"""

import os
import time
from datetime import timedelta
from pathlib import Path

from duly import Ctx, Duly, SystemClock
from tests.torture.kill.trace import Trace

glitch = Path(os.environ.get("GLITCH", "/nowhere"))
trace = Trace(Path(os.environ["TORTURE_FOLDER"]))


def wrong_by() -> float:
    return float(glitch.read_text() or 0) if glitch.exists() else 0.0


class GlitchingClock(SystemClock):
    def __init__(self) -> None:
        super().__init__(wall=lambda: time.time() + wrong_by())

    def follow_server(self, server_seconds: float, asked_at: float, answered_at: float) -> None:
        super().follow_server(server_seconds + wrong_by(), asked_at, answered_at)


app = Duly(clock=GlitchingClock(), min_interval=timedelta(seconds=1))


@app.action
def touch(ctx: Ctx) -> None:
    trace.append("touched", ctx.job_id, time.time())


@app.action
def tick(ctx: Ctx) -> None:
    """Does nothing: the ledger shows that it was called."""
