"""A worker in a process of its own that beats at a given pace, and jobs that outlast an outage.

DULY_DATABASE_URL=… KILL_FOLDER=… python -m tests.torture.kill.steady BEAT_SECONDS
"""

import logging
import os
import sys
import time
from pathlib import Path

from duly import Ctx, Duly, Tx
from tests.torture.kill.trace import Trace


def make(url: str | None, folder: Path) -> Duly:
    """The same app for the processes and for the test that enqueues."""
    app = Duly(url)
    trace = Trace(folder)

    @app.mutation
    def note(tx: Tx) -> None:
        tx.execute("INSERT INTO effects (job_id) VALUES (?)", (tx.job_id,))

    @app.action
    def touch(ctx: Ctx) -> None:
        trace.append("starts", ctx.job_id)

    @app.action
    def outlast(ctx: Ctx, seconds: float) -> None:
        """Begins before an outage and ends in it or after it."""
        trace.append("starts", ctx.job_id)
        time.sleep(seconds)
        trace.append("ends", ctx.job_id)

    return app


def main(beat_every: float) -> None:
    logging.basicConfig(level=logging.INFO)
    app = make(None, Path(os.environ["KILL_FOLDER"]))
    service = app.service(concurrency=8, beat_every=beat_every)
    service.start()
    # Until the test lets go of the other end.
    sys.stdin.buffer.read()
    service.stop(5)
    app.close()


if __name__ == "__main__":
    main(float(sys.argv[1]))
