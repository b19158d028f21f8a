"""A client with more threads than connections, until it is killed.

    python -m torture.load.crowded SEED

Some of them hold a transaction open while the others read, or enqueue. A thread that gets no
connection in time has sent no statement.
"""

from __future__ import annotations

import random
import sys
import threading
import time

from duly.errors import StoreError
from torture.load.app import SIMPLE, app, serve, trace

THREADS = 12
HELD = 0.05


def hold(chance: random.Random) -> str:
    """A row of the user and its job, in a transaction that takes its time."""
    with app.transaction() as tx:
        job = tx.run(serve)
        tx.execute("INSERT INTO orders (job_id) VALUES (?)", (job.id,))
        time.sleep(chance.uniform(0, HELD))
    return job.id


def enqueue(chance: random.Random) -> str:
    app.jobs(limit=5)
    return app.run(chance.choice(SIMPLE)).id


def call(seed: int) -> None:
    chance = random.Random(seed)
    while True:
        try:
            trace.append("acknowledged", chance.choice((hold, enqueue))(chance))
        except StoreError:
            time.sleep(HELD)
        time.sleep(HELD)


if __name__ == "__main__":
    for number in range(THREADS):
        threading.Thread(target=call, args=(int(sys.argv[1]) + number,)).start()
