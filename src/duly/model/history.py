"""Finished jobs, as single runs and by day."""

from __future__ import annotations

from typing import NamedTuple


class Run(NamedTuple):
    """One finished job of a schedule."""

    job_id: str
    state: str
    started_at: int | None
    completed_at: int


class Day(NamedTuple):
    """The totals of a schedule's ticks and jobs on one day (UTC), kept after those are removed."""

    day: int
    dispatched: int
    skipped: int
    missed: int
    succeeded: int
    failed: int
    canceled: int
