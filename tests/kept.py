"""Connections to PostgreSQL that outlive the stores which closed them, for the next test.

A new one has to learn the catalogs, which takes several times as long as what most tests ask of it.
A connection that is closed while it is idle is made as new (DISCARD ALL) and given, under a new
object, to the next store of this process that connects to the same database.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import pq

from duly.store.postgres import store as postgres_store
from duly.store.postgres.connection import is_hung_up

MOST = 8

_real_connect: Callable[..., psycopg.Connection[Any]] = psycopg.connect


class KeptConnections:
    """The idle connections to one database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._process = os.getpid()
        self._idle: list[pq.abc.PGconn] = []

    @property
    def is_ours(self) -> bool:
        """Whether this is not a fork, which must not touch the connections of its parent."""
        return os.getpid() == self._process

    def pids(self) -> list[int]:
        return [raw.backend_pid for raw in self._idle]

    def take(self) -> KeptConnection | None:
        with suppress(IndexError):
            while True:
                connection = KeptConnection(self._idle.pop())
                if not is_hung_up(connection):
                    return connection
                connection.close()
        return None

    def keep(self, raw: pq.abc.PGconn) -> bool:
        """Make it as new, if it can be."""
        if len(self._idle) >= MOST or raw.transaction_status != pq.TransactionStatus.IDLE:
            return False
        if raw.exec_(b"DISCARD ALL").status != pq.ExecStatus.COMMAND_OK:
            return False
        while raw.notifies():
            pass
        self._idle.append(raw)
        return True

    def close(self) -> None:
        while self._idle:
            self._idle.pop().finish()


class KeptConnection(psycopg.Connection[Any]):
    """One that is not ended when it is closed, though it looks so to whoever had it."""

    keeper: KeptConnections | None = None

    def close(self) -> None:
        raw, keeper = self.pgconn, self.keeper
        # Whoever waits for notifications holds the lock: it is in use.
        if keeper is None or not keeper.is_ours or not self.lock.acquire(blocking=False):
            super().close()
            return
        try:
            if not self.closed and keeper.keep(raw):
                self.pgconn = _ended()
        finally:
            self.lock.release()
        super().close()


def _ended() -> pq.abc.PGconn:
    raw = pq.PGconn.connect_start(b"host=/nowhere")
    raw.finish()
    return raw


_keepers: dict[str, KeptConnections] = {}


def keep_connections(url: str) -> KeptConnections:
    """From now on the connections of stores to this database are kept."""
    postgres_store.psycopg = _Psycopg()  # type: ignore[attr-defined, assignment]
    return _keepers.setdefault(url, KeptConnections(url))


def forget(keeper: KeptConnections) -> None:
    keeper.close()
    del _keepers[keeper.url]


class _Psycopg:
    """The module as a store sees it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(psycopg, name)

    def connect(self, url: str, **options: Any) -> psycopg.Connection[Any]:
        keeper = _keepers.get(url)
        if keeper is None or not keeper.is_ours:
            return _real_connect(url, **options)
        kept = keeper.take()
        if kept is None:
            kept = KeptConnection.connect(url, **options)
        kept.autocommit = options["autocommit"]
        kept.prepare_threshold = options["prepare_threshold"]
        kept.keeper = keeper
        return kept
