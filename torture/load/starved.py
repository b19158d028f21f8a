"""A process whose disk is full for a while: `python -m torture.load.starved ROOM`.

It enqueues and works until no file may grow any more, continues for a while, and then gets room
again. Every error meanwhile must be a StoreError; afterwards it must work as before.
"""

import resource
import sys
from pathlib import Path

from duly.errors import StoreError
from torture.load.app import app, note, touch, trace

REFUSALS = 5
MORE = 100


def largest(path: Path) -> int:
    return max(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def enqueue() -> None:
    for job in app.run_many([*(note.bind() for _ in range(20)), touch.bind()]):
        trace.append("acknowledged", job.id)


def main(path: Path, room: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    app.start(concurrency=4)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest(path) + room, hard))
    refusals = 0
    while refusals < REFUSALS:
        try:
            enqueue()
        except StoreError:
            refusals += 1
            trace.append("refused", refusals)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    for _ in range(MORE):
        enqueue()
    app.stop()
    app.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
