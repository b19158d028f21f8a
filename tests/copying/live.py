"""An app that lives while it is moved, and a process that enqueues: `python -m tests.copying.live`.

Actions leave a line in a folder, mutations a row in a table: both say what has run where.
"""

import os
import sys
import time
from pathlib import Path

from duly import Ctx, Duly, Tx
from duly.errors import StoreUnavailable
from tests.torture.kill.trace import Trace

trace = Trace(Path(os.environ["LIVE_FOLDER"]))
app = Duly()


@app.action
def touch(ctx: Ctx, text: str) -> None:
    trace.append("touched", text)


@app.mutation
def note(tx: Tx, text: str) -> None:
    tx.execute("INSERT INTO notes (text) VALUES (?)", (text,))
    tx.run(touch, f"by-{text}")


@app.action
def beat(ctx: Ctx) -> None: ...


app.schedule("beat", beat, every=1, catch_up=1000, overlap="buffer_all")


def enqueue_until_it_has_moved() -> None:
    """Write down every call that was acknowledged; a call that was refused is made again."""
    number = 0
    while True:
        function = touch if number % 2 else note
        try:
            app.run(function, str(number))
        except StoreUnavailable as error:
            if "was moved to" in str(error):
                trace.append("ended", number)
                sys.exit(0)
            time.sleep(0.05)
            continue
        trace.append("acknowledged", number)
        number += 1
        time.sleep(0.01)


if __name__ == "__main__":
    enqueue_until_it_has_moved()
