"""Closes SQLite connections before a fork, so that no child process inherits one.

SQLite keeps track of file locks in memory, per file. A child that inherits an open connection
assumes that it holds locks which the kernel never gave it. Connections that it opens itself then
protect nothing, and another process may delete the write-ahead log with everything that the child
had committed there. So before a fork every connection is closed, at a moment when none is in use.
"""

from __future__ import annotations

import threading

WAIT_SECONDS = 1.0


class ForkGate:
    """Entered by code that uses a connection; shut for the moment of a fork.

    While it is being shut, new callers wait outside: with many callers coming and going, some would
    always be inside. Only a caller that is already inside may enter again.
    """

    def __init__(self) -> None:
        self._inside = 0
        self._by_thread: dict[int, int] = {}
        self._shutting = False
        # Ctrl-C cannot interrupt between acquiring this and entering the block, as it could with
        # _change.
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._lock:
            while self._shutting and me not in self._by_thread:
                self._change.wait()
            self._inside += 1
            self._by_thread[me] = self._by_thread.get(me, 0) + 1

    def __exit__(self, *exception: object) -> None:
        me = threading.get_ident()
        with self._lock:
            self._inside -= 1
            if self._by_thread.get(me, 0) > 1:
                self._by_thread[me] -= 1
            else:
                self._by_thread.pop(me, None)
            if not self._inside:
                self._change.notify_all()

    def shut(self) -> bool:
        """Keep callers out until `reopen`. Return False if a caller did not leave in time."""
        self._change.acquire()
        self._shutting = True
        return self._change.wait_for(lambda: not self._inside, WAIT_SECONDS)

    def reopen(self) -> None:
        self._shutting = False
        self._change.notify_all()
        self._change.release()
