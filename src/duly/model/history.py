"""What is known of jobs that have ended, one by one and by day."""

from __future__ import annotations

from typing import NamedTuple


class Run(NamedTuple):
    """One finished job of a schedule."""

    job_id: str
    state: str
    started_at: int | None
    completed_at: int


class Day(NamedTuple):
    """What is left of the ticks and jobs of a schedule and a day (UTC) when they are gone."""

    day: int
    dispatched: int
    skipped: int
    missed: int
    succeeded: int
    failed: int
    canceled: int
