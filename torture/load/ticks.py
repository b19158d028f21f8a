"""Checks that the ledger has every tick once, for schedules that tick every second.

The instants are derived from the intervals alone: nothing here relies on the code that computes
them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    # Every process of the workload imports this module, and that one takes long to import.
    from tests.jobs.support import Database

SECOND = 1_000
# Long before any test, so that what is computed from it does not depend on the store.
ANCHOR = 1_700_000_000_000


def anchor_of(n: int) -> int:
    """Spread over the second: tickers always have work, mostly several of them."""
    return ANCHOR + n % 10 * 100


class Count(NamedTuple):
    """The result of the comparison."""

    slots: int
    missed: int
    doubled: int
    strange: int
    """Rows or jobs without a slot, slots that were not dispatched, jobs with wrong data."""

    @property
    def is_clean(self) -> bool:
        return not (self.missed or self.doubled or self.strange)

    def __str__(self) -> str:
        return (
            f"{self.slots} slots, missed {self.missed}, doubled {self.doubled}, "
            f"strange {self.strange}"
        )


def count_slots(db: Database) -> Count:
    """Compare the ledger and all jobs with the instants since each schedule was created."""
    ticks = db.execute("SELECT schedule_id, kind, tick_at, outcome, job_id FROM @ticks")
    jobs = db.execute(
        "SELECT id, actor, scheduled_at FROM @jobs WHERE trigger = 'schedule'"
        " UNION ALL SELECT id, actor, scheduled_at FROM @history WHERE trigger = 'schedule'"
    )
    due: set[tuple[str, int]] = set()
    for schedule_id, key, made_at, next_at in db.execute(
        "SELECT id, key, awake_at, next_tick_at FROM @schedules"
    ):
        anchor = anchor_of(int(key.rpartition(" ")[2]))
        first = anchor + ((made_at - anchor) // SECOND + 1) * SECOND
        due |= {(str(schedule_id), at) for at in range(first, next_at, SECOND)}
    rows = {
        (str(schedule_id), tick_at): str(job_id)
        for schedule_id, kind, tick_at, outcome, job_id in ticks
        if (kind, outcome) == ("slot", "dispatched")
    }
    made = Counter((actor, scheduled_at) for _, actor, scheduled_at in jobs)
    told = {(actor, scheduled_at): str(job_id) for job_id, actor, scheduled_at in jobs}
    return Count(
        slots=len(due),
        missed=sum(1 for slot in due if slot not in rows or slot not in made),
        doubled=sum(n - 1 for n in made.values()),
        strange=len(ticks)
        - len(due & rows.keys())
        + sum(n for slot, n in made.items() if slot not in due)
        + sum(1 for slot, job_id in rows.items() if told.get(slot, job_id) != job_id),
    )


def late(db: Database, now: int) -> int:
    """How many schedules have a past tick that was not decided."""
    query = "SELECT count(*) FROM @schedules WHERE next_tick_at IS NULL OR next_tick_at <= ?"
    return int(db.scalar(query, now))
