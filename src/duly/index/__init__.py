"""The schedule index: finds due schedules across all users.

A table with one row per active schedule, an atomic claim that advances the rows it takes, a
collection that keeps the table consistent, and a handler that POSTs each due row at most once.
"""

from __future__ import annotations

from duly.index.blocking import SyncScheduleIndex
from duly.index.claims import RowsInTransaction
from duly.index.collection import Records, ScheduleCollection, ScheduleRecord
from duly.index.postgres import PostgresScheduleIndex
from duly.index.rows import IndexRow, ScheduleIndex, next_fire_after
from duly.index.sqlite import SqliteScheduleIndex
from duly.index.tick import Dispatch, TickHandler

__all__ = [
    "Dispatch",
    "IndexRow",
    "PostgresScheduleIndex",
    "Records",
    "RowsInTransaction",
    "ScheduleCollection",
    "ScheduleIndex",
    "ScheduleRecord",
    "SqliteScheduleIndex",
    "SyncScheduleIndex",
    "TickHandler",
    "next_fire_after",
]
