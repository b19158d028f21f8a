"""Measures: queue depths, and counters that only grow."""

from __future__ import annotations

import msgspec

CAP = 10_000
"""Nothing is counted beyond it: there are at least so many."""

DURATION = "duly_job_duration_seconds"
DURATION_SUM = "duly_job_duration_seconds_sum"
TICKS = "duly_ticks_total"
RESCUED = "duly_jobs_rescued_total"
WEBHOOKS = "duly_webhooks_total"

LABELS: dict[str, tuple[str, ...]] = {
    # How many fell between this bound and the one before it.
    DURATION: ("function", "outcome", "le"),
    # In milliseconds, as all that is stored.
    DURATION_SUM: ("function", "outcome"),
    TICKS: ("outcome", "reason"),
    RESCUED: (),
    WEBHOOKS: ("webhook", "verdict"),
}
"""The counts that are stored, each with the names of its labels."""

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""The buckets of durations, in seconds; beyond the last one there is another."""
BOUND_LABELS = (*(f"{bound:g}" for bound in BOUNDS), "+Inf")


class Count(msgspec.Struct, frozen=True):
    """So many more of something; `labels` is a JSON object, its names in the order of LABELS."""

    name: str
    labels: str
    value: int


class Depth(msgspec.Struct, frozen=True):
    """How many jobs of a queue wait and run, each counted up to MOST."""

    queue: str
    due: int
    later: int
    running: int
    held: int
    due_since: int | None
    """Since when the oldest one that could start is due."""

    @property
    def capped(self) -> bool:
        return max(self.due, self.later, self.running, self.held) >= CAP


class ScheduleCounts(msgspec.Struct, frozen=True):
    """How many schedules there are, each counted up to MOST."""

    active: int
    parked: int
    inactive: int
    """Disabled, or over."""
