"""A process that ticks schedules at an instant, and may be killed on its way."""

from __future__ import annotations

import os
import subprocess
import sys

from duly import Ctx, Duly, ManualClock
from duly.runtime.ticker import Ticker
from tests.jobs.support import PATIENCE

PAGE = 10


def make_app(url: str, clock: ManualClock) -> Duly:
    app = Duly(url, clock=clock)

    @app.action
    def post(ctx: Ctx, n: int = 0) -> int:
        return n

    return app


def tick_in_a_process(url: str, now: int, fault: str) -> int:
    """Tick in pages until nothing is due; how the process ended."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "DULY_FAULT": fault,
    }
    ended = subprocess.run(
        [sys.executable, "-m", "tests.schedules.child", url, str(now)],
        env=environment,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode <= 0, ended.stderr.decode()
    return ended.returncode


if __name__ == "__main__":
    ticker = Ticker(make_app(sys.argv[1], ManualClock(int(sys.argv[2]))).core, page=PAGE)
    while ticker.one_pass() == 0:
        pass
