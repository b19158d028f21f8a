"""Measures: queue depths, and counters that only increase."""

from __future__ import annotations

import msgspec

CAP = 10_000
"""Counting stops here: the actual number may be higher."""

DURATION = "duly_job_duration_seconds"
DURATION_SUM = "duly_job_duration_seconds_sum"
TICKS = "duly_ticks_total"
RESCUED = "duly_jobs_rescued_total"
WEBHOOKS = "duly_webhooks_total"

LABELS: dict[str, tuple[str, ...]] = {
    # The number of durations between this bound and the previous one.
    DURATION: ("function", "outcome", "le"),
    # In milliseconds, as all stored times.
    DURATION_SUM: ("function", "outcome"),
    TICKS: ("outcome", "reason"),
    RESCUED: (),
    WEBHOOKS: ("webhook", "verdict"),
}
"""The stored counters, each with the names of its labels."""

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""The upper bounds of the duration buckets, in seconds; there is one more bucket above."""
BOUND_LABELS = (*(f"{bound:g}" for bound in BOUNDS), "+Inf")


class Count(msgspec.Struct, frozen=True):
    """An increment of a counter; `labels` is a JSON object with names in the order of LABELS."""

    name: str
    labels: str
    value: int


class Depth(msgspec.Struct, frozen=True):
    """How many jobs of a queue are waiting and running, each counted up to MOST."""

    queue: str
    due: int
    later: int
    running: int
    held: int
    due_since: int | None
    """When the oldest job that could start became due."""

    @property
    def capped(self) -> bool:
        return max(self.due, self.later, self.running, self.held) >= CAP


class ScheduleCounts(msgspec.Struct, frozen=True):
    """How many schedules there are, each counted up to MOST."""

    active: int
    parked: int
    inactive: int
    """Disabled, or ended."""
