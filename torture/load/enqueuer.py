"""A process that enqueues and cancels until it is killed, and records what was acknowledged.

    python -m torture.load.enqueuer SEED BACKLOG [PORT]

It is as fast as the workers: no more than BACKLOG jobs are waiting. With a port it also sends
requests to the server there, and repeats each with the same key until it gets an answer.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import random
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import psycopg

from duly.errors import StoreError
from duly.functions.function import Call
from tests.jobs.support import Database
from torture.load.app import KEYS, SIMPLE, app, breed, cancel, dwell, pair, serve, solo, trace

KEPT = 50
LOOK_EVERY = 10
AFTER_OUTAGE = 0.05
# Errors that a driver raises where duly cannot tell whether the transaction has happened, or where
# one of our own statements meets a full disk.
OUTAGE = (StoreError, psycopg.Error, sqlite3.OperationalError)


def enqueue(chance: random.Random) -> list[str]:
    """Enqueue in one of several ways. The ids are acknowledged when this returns."""
    way = chance.random()
    if way < 0.01:
        return [app.run(dwell).id]
    if way < 0.3:
        return [job.id for job in app.run_many(several(chance))]
    if way < 0.4:
        return [app.run(breed, chance.randrange(4)).id]
    if way < 0.5:
        return [app.run_after(chance.random() / 2, chance.choice(SIMPLE)).id]
    if way < 0.65:
        return [order()]
    return [app.run(chance.choice(SIMPLE)).id]


def several(chance: random.Random) -> Iterator[Call[object]]:
    yield from (chance.choice(SIMPLE).bind() for _ in range(10))
    yield solo.bind(chance.randrange(KEYS))
    yield pair.bind(chance.randrange(KEYS))


def order() -> str:
    """A row of the user and the job that belongs to it: both, or neither."""
    with app.transaction() as tx:
        job = tx.run(serve)
        tx.execute("INSERT INTO orders (job_id) VALUES (?)", (job.id,))
    return job.id


def cancel_one(recent: list[str], chance: random.Random) -> None:
    victim = chance.choice(recent)
    trace.append("asked to cancel", victim)
    if chance.random() < 0.5:
        trace.append("acknowledged", app.run(cancel, victim).id)
    elif app.cancel(victim):
        trace.append("canceled", victim)


class Client:
    """Requests one job after the other from the server, each until it is answered."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._numbers = (f"{os.getpid()}-{n}" for n in itertools.count())
        self._number = next(self._numbers)

    def ask(self) -> None:
        with suppress(OSError, http.client.HTTPException):
            status, answer = self._post()
            if status in (200, 201):
                trace.append("acknowledged", json.loads(answer)["id"])
                trace.append("answered", self._number)
                self._number = next(self._numbers)

    def _post(self) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            body = json.dumps({"function": "receive", "args": {"number": self._number}})
            headers = {"Content-Type": "application/json", "Idempotency-Key": self._number}
            connection.request("POST", "/api/v1/jobs", body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


class Crowd:
    """The number of jobs, read now and then on a connection that may break."""

    def __init__(self, url: str, most: int) -> None:
        self._url = url
        self._most = most
        self._db = Database(url)

    def is_too_large(self) -> bool:
        try:
            return self._db.count("@jobs") > self._most
        except psycopg.Error:
            self._db.close()
            self._db = Database(self._url)
            return True


def main(seed: int, backlog: int, port: int | None) -> None:
    chance = random.Random(seed)
    crowd = Crowd(os.environ["DULY_DATABASE_URL"], backlog)
    client = None if port is None else Client(port)
    recent: list[str] = []
    for number in itertools.count():
        if number % LOOK_EVERY == 0:
            while crowd.is_too_large():
                time.sleep(AFTER_OUTAGE)
            if client:
                client.ask()
        try:
            ids = enqueue(chance)
            for job_id in ids:
                trace.append("acknowledged", job_id)
            recent = (recent + ids)[-KEPT:]
            if chance.random() < 0.15:
                cancel_one(recent, chance)
        except OUTAGE as error:
            trace.append("refused", type(error).__name__)
            time.sleep(AFTER_OUTAGE)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else None)
