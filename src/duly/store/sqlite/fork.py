"""Handles forks and process exit for the stores of a process."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duly.store.sqlite.connection import Connection
    from duly.store.sqlite.store import SqliteStore

STORES: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_forking = threading.RLock()
INHERITED: list[Connection] = []


def _before_fork() -> None:
    _forking.acquire()
    for store in STORES:
        store.close_for_fork()


def _after_fork_in_parent() -> None:
    for store in STORES:
        store.reopen_after_fork()
    _forking.release()


def _after_fork_in_child() -> None:
    global _forking
    _forking = threading.RLock()
    for store in STORES:
        store.forget_after_fork()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)


def _at_exit() -> None:
    for store in STORES:
        store.close_connections()


atexit.register(_at_exit)
