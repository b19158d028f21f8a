"""The connection pool of a process: limited in size, with no connection idle for long."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

from psycopg.pq import TransactionStatus

from duly.clock import os_monotonic
from duly.errors import StoreUnavailable
from duly.store.base import is_own_loop
from duly.store.postgres.connection import Connection, is_hung_up

WAIT_SECONDS = 10.0
IDLE_SECONDS = 60.0


class PoolExhausted(StoreUnavailable):
    """Every connection of this process was in use for too long.

    No statement was sent to the server.
    """

    def __init__(self, most: int) -> None:
        super().__init__(
            f"all {most} connections of this process were in use for {WAIT_SECONDS:g} s; "
            "end transactions sooner, use fewer threads, or raise Duly(pool=…)"
        )


class _Loan:
    """One connection in use. A task that outlives it keeps this, and so knows that it has ended."""

    __slots__ = ("is_counted", "over", "pool", "turn")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.over = False
        self.is_counted = False
        self.turn = threading.Lock()


_loan: ContextVar[_Loan | None] = ContextVar("duly_loan", default=None)


class Pool:
    """Lends connections. If all are in use, callers wait, first come, first served.

    Two kinds of callers never wait, and get a connection beyond the limit: code that already has
    one, since it would wait for itself, and duly's own loops, since a worker whose heartbeat has to
    wait would look dead.
    """

    def __init__(self, connect: Callable[[], Connection], most: int) -> None:
        self._connect = connect
        self._most = most
        self._guard = threading.Lock()
        self._in_use = 0
        self._waiting: deque[_Loan] = deque()
        # The connection used last is used next, so the others grow old.
        self._idle: list[tuple[float, Connection]] = []
        self._closer: threading.Thread | None = None
        self._look = threading.Event()

    @contextmanager
    def lend(self) -> Generator[Connection]:
        """A connection for this caller only.

        It is dropped if it broke or is left in a transaction.
        """
        outer, loan = _loan.get(), _Loan(self)
        is_nested = outer is not None and outer.pool is self and not outer.over
        try:
            if not is_nested and not is_own_loop():
                self._enter(loan)
            raw = self._take_idle() or self._connect()
            _loan.set(loan)
            try:
                yield raw
            finally:
                self._give_back(raw)
        finally:
            loan.over = True
            if _loan.get() is loan:  # otherwise it ends in another context
                _loan.set(outer)
            self._leave(loan)

    def _enter(self, loan: _Loan) -> None:
        with self._guard:
            if self._in_use < self._most:
                # Ctrl-C can only interrupt at a call: either both lines run, or neither.
                self._in_use += 1
                loan.is_counted = True
                return
            loan.turn.acquire()
            self._waiting.append(loan)
        if not loan.turn.acquire(timeout=WAIT_SECONDS):
            with self._guard:
                if not loan.is_counted:
                    raise PoolExhausted(self._most)

    def _leave(self, loan: _Loan) -> None:
        """Let the next caller in, or stop waiting."""
        with self._guard:
            if not loan.is_counted:
                if loan in self._waiting:
                    self._waiting.remove(loan)
            elif self._waiting:
                successor = self._waiting[0]
                loan.is_counted, successor.is_counted = False, True
                self._waiting.popleft()
                successor.turn.release()
            else:
                self._in_use -= 1
                loan.is_counted = False

    def _take_idle(self) -> Connection | None:
        """An idle connection that the server has not closed in the meantime."""
        while True:
            with self._guard:
                raw = self._idle.pop()[1] if self._idle else None
            if raw is None or not is_hung_up(raw):
                return raw
            raw.close()

    def _give_back(self, raw: Connection) -> None:
        if raw.closed or raw.info.transaction_status != TransactionStatus.IDLE:
            raw.close()
            return
        with self._guard:
            self._idle.append((os_monotonic(), raw))
            if self._closer is None:
                self._start_closer()

    def _start_closer(self) -> None:
        self._closer = threading.Thread(target=self._close_old, name="duly-pool", daemon=True)
        try:
            self._closer.start()
        except RuntimeError:  # the interpreter is shutting down, or there are too many threads
            self._closer = None

    def _close_old(self) -> None:
        """Runs until no connection is idle; the next one that is returned starts another thread."""
        wait: float | None = IDLE_SECONDS
        while wait is not None:
            self._look.wait(wait)
            self._look.clear()
            old, wait = self._take_old()
            for raw in old:
                raw.close()

    def _take_old(self) -> tuple[list[Connection], float | None]:
        """The connections to close now, and for how long the next one stays."""
        with self._guard:
            until = os_monotonic() - IDLE_SECONDS
            old = [raw for since, raw in self._idle if since <= until]
            self._idle = self._idle[len(old) :]
            if not self._idle:
                self._closer = None
                return old, None
            return old, self._idle[0][0] - until

    def close_idle(self) -> None:
        """Close idle connections: their server is gone, or they are no longer needed."""
        with self._guard:
            idle, self._idle = self._idle, []
        self._look.set()
        for _, raw in idle:
            raw.close()

    def close(self) -> None:
        """The same, and end the thread. The pool can be used again."""
        closer = self._closer
        self.close_idle()
        if closer is not None:
            closer.join(2)
