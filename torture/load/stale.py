"""A client whose transactions read an old snapshot, until it is killed.

    python -m torture.load.stale SEED

It creates batches with a hook. On a separate connection, at the database's isolation level, it
orders and cancels jobs some milliseconds after its snapshot was taken.
"""

from __future__ import annotations

import os
import random
import sys
import time
from typing import Any

import psycopg

from duly.errors import IsolationTooHigh, JobNotFound, StoreError
from torture.load.app import SIMPLE, app, gather, serve, trace

KEPT = 20
STALE_FOR = 0.01
PAUSE = 0.02


def gather_some(chance: random.Random) -> list[str]:
    """A batch: its members, and its hook."""
    calls = [chance.choice(SIMPLE).bind() for _ in range(chance.randint(1, 6))]
    batch = app.batch(calls, on_complete=gather)
    return [batch.id, *(job.id for job in batch.jobs())]


def order(connection: psycopg.Connection[Any]) -> list[str]:
    """A row of the user and its job: both, or neither."""
    with connection.transaction():
        _look(connection)
        job = app.on(connection).run(serve)
        connection.execute("INSERT INTO orders (job_id) VALUES (%s)", [job.id])
    return [job.id]


def cancel(connection: psycopg.Connection[Any], victim: str) -> None:
    trace.append("asked to cancel", victim)
    with connection.transaction():
        _look(connection)
        won = app.on(connection).cancel(victim)
    if won:
        trace.append("canceled", victim)


def _look(connection: psycopg.Connection[Any]) -> None:
    connection.execute("SELECT 1 FROM duly.jobs LIMIT 1")
    time.sleep(STALE_FOR)


def _connect() -> psycopg.Connection[Any]:
    return psycopg.connect(os.environ["DULY_DATABASE_URL"], autocommit=True)


def main(seed: int) -> None:
    chance = random.Random(seed)
    connection = _connect()
    recent: list[str] = []
    while True:
        try:
            if connection.closed:
                connection = _connect()
            made = order(connection) if chance.random() < 0.3 else gather_some(chance)
            for job_id in made:
                trace.append("acknowledged", job_id)
            recent = (recent + made)[-KEPT:]
            cancel(connection, chance.choice(recent))
        except (IsolationTooHigh, JobNotFound):
            trace.append("refused", recent[-1])
        except (StoreError, psycopg.errors.SerializationFailure):
            time.sleep(PAUSE)
        except psycopg.Error:
            # A strict server has ended the connection.
            if not connection.closed:
                raise
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(int(sys.argv[1]))
