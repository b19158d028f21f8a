"""Measures the bare database at the same work.

duly's own schema and statements, a driver and a loop: no function is called, nothing is encoded, no
process is woken. Every figure of duly is divided by the best of these.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from queue import SimpleQueue
from typing import Any

import msgspec

from bench.app import INSERT_ROW
from bench.databases import Database, now_ms
from duly.ids import new_id
from duly.model.job import CLAIM_BYTES, DEFAULT_QUEUE, NewJob, State
from duly.store.jobs.claim import CLAIM, PICK
from duly.store.jobs.finish import CURRENT_XID, FINISH, FINISH_MUTATION, FORGET_FINISHED
from duly.store.postgres.arrays import with_arrays
from duly.store.sqlite import SqliteStore
from duly.store.steps import INSERT_JOBS
from duly.store.workers import INSERT_WORKER

LANES = 8
GROUP = SqliteStore.mutation_group
Claimed = Sequence[tuple[Any, ...]]


class Raw(ABC):
    """The bare loops over one database."""

    def __init__(self, database: Database, functions: Sequence[str]) -> None:
        self.database = database
        self.functions = list(functions)
        self.worker = new_id(now_ms())
        self.texts = database.texts
        self.connection = database.connect()
        self._register()

    def _register(self) -> None:
        """A running job needs the row of its worker."""
        self.connection.execute(
            self.texts[INSERT_WORKER],
            {
                "id": self.worker,
                "app": "bench",
                "host": "localhost",
                "pid": 1,
                "queues": None,
                "functions": "[]",
                "slots": 1,
                "threads": 1,
                "threaded": "[]",
                "alone": False,
                "now": now_ms(),
            },
        )

    def close(self) -> None:
        self.connection.close()

    @abstractmethod
    def ready(self, jobs: Sequence[NewJob]) -> Any:
        """The parameters of one insert."""

    @abstractmethod
    def insert(self, parameters: Any) -> None:
        """One durable insert of one or many jobs."""

    @abstractmethod
    def claim(self, limit: int) -> Claimed:
        """Durably claim due jobs."""

    @abstractmethod
    def drain(self, batch: int) -> None:
        """Claim and finish until nothing is due."""

    @abstractmethod
    def mutate(self, batch: int) -> None:
        """Claim; insert a user row and finish, atomically; until nothing is due."""

    def insert_all(self, jobs: Sequence[NewJob], group: int) -> float:
        """Jobs per second if this many share a transaction."""
        groups = [self.ready(jobs[at : at + group]) for at in range(0, len(jobs), group)]
        return rate(len(jobs), lambda: [self.insert(parameters) for parameters in groups])

    def pick_up(self, job: NewJob) -> float:
        """Milliseconds for one durable insert and one durable claim."""
        parameters = self.ready([job])
        began = time.monotonic_ns()
        self.insert(parameters)
        self.claim(1)
        return (time.monotonic_ns() - began) / 1e6


class SqliteRaw(Raw):
    def ready(self, jobs: Sequence[NewJob]) -> Any:
        return [msgspec.structs.astuple(job) for job in jobs]

    def insert(self, parameters: Any) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.executemany(self.texts[INSERT_JOBS], parameters)
        self.connection.execute("COMMIT")

    def claim(self, limit: int) -> Claimed:
        self.connection.execute("BEGIN IMMEDIATE")
        rows = self._claim(limit)
        self.connection.execute("COMMIT")
        return rows

    def _claim(self, limit: int) -> Claimed:
        functions = msgspec.json.encode(self.functions).decode()
        where = {"queue": DEFAULT_QUEUE, "functions": functions, "now": now_ms(), "limit": limit}
        due = self.connection.execute(self.texts[PICK], where).fetchall()
        ids = msgspec.json.encode([row[0] for row in due]).decode()
        which = {"ids": ids, "worker": self.worker, "now": now_ms()}
        rows: Claimed = self.connection.execute(self.texts[CLAIM], which).fetchall()
        return rows

    def drain(self, batch: int) -> None:
        """The last batch is finished and the next one claimed in one transaction."""
        claimed: Claimed = ()
        while True:
            self.connection.execute("BEGIN IMMEDIATE")
            if claimed:
                self._finish(claimed)
            claimed = self._claim(batch)
            self.connection.execute("COMMIT")
            if not claimed:
                return

    def _finish(self, claimed: Claimed) -> None:
        now = now_ms()
        ends = [(State.SUCCEEDED, now, None, None, None, None, False, c[0], c[1]) for c in claimed]
        self.connection.executemany(self.texts[FINISH], ends)
        self.connection.executemany(self.texts[FORGET_FINISHED], [end[-2:] for end in ends])

    def mutate(self, batch: int) -> None:
        while claimed := self.claim(batch):
            for at in range(0, len(claimed), GROUP):
                self.connection.execute("BEGIN IMMEDIATE")
                for member in claimed[at : at + GROUP]:
                    self.connection.execute("SAVEPOINT member")
                    self.connection.execute(INSERT_ROW, (1,))
                    self._finish([member])
                    self.connection.execute("RELEASE member")
                self.connection.execute("COMMIT")


class PostgresRaw(Raw):
    def ready(self, jobs: Sequence[NewJob]) -> Any:
        columns = zip(*(msgspec.structs.astuple(job) for job in jobs), strict=True)
        named = zip(NewJob.__struct_fields__, columns, strict=True)
        return {name: list(column) for name, column in named}

    def insert(self, parameters: Any) -> None:
        self.connection.execute(self.texts[INSERT_JOBS], with_arrays(parameters))

    def claim(self, limit: int) -> Claimed:
        levels = list(range(9, -1, -1))
        rows: Claimed = self.connection.execute(
            self.texts[CLAIM],
            {
                "worker": self.worker,
                "queues": [DEFAULT_QUEUE] * len(levels),
                "levels": levels,
                "functions": self.functions,
                "limit": limit,
                "floors": [0] * len(levels),
                "bytes": CLAIM_BYTES,
                "now": now_ms(),
            },
        ).fetchall()
        return rows

    def drain(self, batch: int) -> None:
        """One connection claims while another one finishes."""
        claims: SimpleQueue[Claimed] = SimpleQueue()
        with ThreadPoolExecutor(1) as pool:
            finished = pool.submit(self._finish_all, claims)
            while claimed := self.claim(batch):
                claims.put(claimed)
            claims.put(())
            finished.result()

    def _finish_all(self, claims: SimpleQueue[Claimed]) -> None:
        with closing(self.database.connect()) as connection:
            while claimed := claims.get():
                ends = with_arrays(_ends(claimed)) | {"lock_wait": None}
                connection.execute(self.texts[FINISH], ends).fetchall()

    def mutate(self, batch: int) -> None:
        """Eight connections, with a transaction for each mutation, and another one that claims."""
        claims: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        with ThreadPoolExecutor(LANES) as pool:
            lanes = [pool.submit(self._mutate_all, claims) for _ in range(LANES)]
            while claimed := self.claim(batch):
                for claim in claimed:
                    claims.put(claim)
            for _ in lanes:
                claims.put(None)
            for lane in lanes:
                lane.result()

    def _mutate_all(self, claims: SimpleQueue[tuple[Any, ...] | None]) -> None:
        begin = "BEGIN; " + self.texts[CURRENT_XID]
        insert = INSERT_ROW.replace("?", "%s")
        with closing(self.database.connect()) as connection:
            while claim := claims.get():
                begun = connection.execute(begin)
                begun.nextset()
                (xid,) = begun.fetchone()
                connection.execute(insert, (1,))
                connection.execute(
                    self.texts[FINISH_MUTATION],
                    {"id": claim[0], "token": claim[1], "xid": xid, "result": None}
                    | {"now": now_ms()},
                )
                connection.execute("COMMIT")


def _ends(claimed: Claimed) -> dict[str, Any]:
    nothing = [None] * len(claimed)
    ordered = sorted(claimed)
    return {
        "now": now_ms(),
        "ids": [claim[0] for claim in ordered],
        "tokens": [claim[1] for claim in ordered],
        "states": [State.SUCCEEDED] * len(claimed),
        "results": nothing,
        "error_kinds": nothing,
        "error_messages": nothing,
        "error_tracebacks": nothing,
        "exhausteds": [False] * len(claimed),
    }


def raw_over(database: Database, functions: Sequence[str]) -> Raw:
    kind = SqliteRaw if database.dialect == "sqlite" else PostgresRaw
    return kind(database, functions)


def rate(count: int, work: Callable[[], object]) -> float:
    """How many per second the work does."""
    began = time.monotonic()
    work()
    return count / (time.monotonic() - began)
