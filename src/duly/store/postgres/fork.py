"""Handles forks and process exit for the stores of a process."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duly.store.postgres.store import PostgresStore

STORES: weakref.WeakSet[PostgresStore] = weakref.WeakSet()
INHERITED: list[object] = []


def _after_fork() -> None:
    for store in STORES:
        store.forget_after_fork()


def _at_exit() -> None:
    for store in STORES:
        store.drop_idle()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
