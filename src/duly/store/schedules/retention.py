"""Retention of ticks and costs, and their daily totals."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from duly.ids import FIRST_ID
from duly.model.history import Day
from duly.model.schedule import TickKind, read_policies
from duly.store.statements import DAY_MS, both, each

if TYPE_CHECKING:
    from duly.store.engine import Engine
    from duly.store.session import Session


def _in_ledger(columns: str, first: str, following: str) -> str:
    return f"""WITH RECURSIVE listed (id, n) AS (
            SELECT ({first}), 1
            UNION ALL
            SELECT ({following}), n + 1 FROM listed WHERE listed.id IS NOT NULL AND n < 200
        ) SELECT {columns} FROM listed LEFT JOIN @schedules s ON s.id = listed.id
        WHERE listed.id IS NOT NULL ORDER BY listed.id"""


IN_LEDGER = each(
    sqlite=_in_ledger(
        "listed.id, s.policies",
        "SELECT min(schedule_id) FROM @ticks WHERE schedule_id > :after",
        "SELECT min(schedule_id) FROM @ticks WHERE schedule_id > listed.id",
    ),
    postgres=_in_ledger(
        "listed.id::text, s.policies",
        "SELECT schedule_id FROM @ticks WHERE schedule_id > :after ORDER BY schedule_id LIMIT 1",
        "SELECT schedule_id FROM @ticks WHERE schedule_id > listed.id ORDER BY schedule_id LIMIT 1",
    ),
)
HUNDREDTH = both(
    """SELECT tick_at FROM @ticks WHERE schedule_id = :id AND kind = :kind
        ORDER BY tick_at DESC LIMIT 1 OFFSET 99"""
)
# Where a batch ends, if there are more ticks than fit into one.
END_OF_BATCH = both(
    """SELECT tick_at FROM @ticks WHERE schedule_id = :id AND kind = :kind AND tick_at < :before
        ORDER BY tick_at LIMIT 1 OFFSET :most"""
)
HAS_OLD = both(
    """SELECT 1 FROM @ticks WHERE schedule_id = :id AND kind = :kind AND tick_at < :before
        LIMIT 1"""
)
HAS_OLD_COSTS = both("SELECT 1 FROM @costs WHERE schedule_id = :id AND tick_at < :before LIMIT 1")
_OLD = "schedule_id = :id AND kind = :kind AND tick_at < :before"


def _roll_up_ticks(source: str) -> str:
    return f"""INSERT INTO @days AS d (schedule_id, day, dispatched, skipped, missed)
        SELECT schedule_id, tick_at / {DAY_MS},
            sum(CASE WHEN outcome = 'dispatched' THEN 1 ELSE 0 END),
            sum(CASE WHEN outcome = 'skipped' THEN 1 ELSE 0 END),
            sum(CASE WHEN outcome = 'missed' THEN count ELSE 0 END)
        FROM {source} GROUP BY schedule_id, tick_at / {DAY_MS}
        ON CONFLICT (schedule_id, day) DO UPDATE SET
            dispatched = d.dispatched + excluded.dispatched,
            skipped = d.skipped + excluded.skipped, missed = d.missed + excluded.missed"""


ROLL_UP_TICKS = both(_roll_up_ticks(f"@ticks WHERE {_OLD}"))
# On PostgreSQL another janitor may process the same ticks: only those that this one removes are
# counted.
FORGET_TICKS = each(
    sqlite=f"DELETE FROM @ticks WHERE {_OLD} RETURNING 1",
    postgres=f"""WITH gone AS (DELETE FROM @ticks WHERE {_OLD} RETURNING *),
        counted AS ({_roll_up_ticks("gone")})
        SELECT 1 FROM gone""",
)
FORGET_COSTS = both("DELETE FROM @costs WHERE schedule_id = :id AND tick_at < :before")


def _roll_up_jobs(schedule: str, which: str) -> str:
    def ended(state: str) -> str:
        return f"sum(CASE WHEN state = '{state}' THEN 1 ELSE 0 END)"

    return f"""INSERT INTO @days AS d (schedule_id, day, succeeded, failed, canceled)
        SELECT {schedule}, scheduled_at / {DAY_MS},
            {ended("succeeded")}, {ended("failed")}, {ended("canceled")}
        FROM @history WHERE {which} AND trigger = 'schedule'
        GROUP BY actor, scheduled_at / {DAY_MS}
        ON CONFLICT (schedule_id, day) DO UPDATE SET
            succeeded = d.succeeded + excluded.succeeded, failed = d.failed + excluded.failed,
            canceled = d.canceled + excluded.canceled"""


ROLL_UP_JOBS = each(
    sqlite=_roll_up_jobs("actor", "id IN (SELECT value FROM json_each(:ids))"),
    postgres=_roll_up_jobs(
        "actor::uuid",
        "bucket = :bucket AND completed_at < :cutoff AND actor ~ '^[0-9a-f-]{36}$'",
    ),
)
DAYS_OF = both(
    """SELECT day, dispatched, skipped, missed, succeeded, failed, canceled FROM @days
        WHERE schedule_id = :id ORDER BY day"""
)


BATCH = 1_000


class OldTicks(NamedTuple):
    """The ticks of one schedule and kind that can be deleted: all before an instant."""

    schedule_id: str
    kind: str
    before: int


def retain_ticks(store: Engine, after: str, cutoff: int) -> tuple[str, int]:
    """Delete old ticks and costs of some schedules after `after`.

    Returns the last schedule, "" at the end, and how many ticks were deleted. A schedule keeps its
    newest hundred, and those within the window of its budget. What is deleted is added to the row
    of its day in the same transaction.
    """
    last, old, costs = store.read(lambda session: _old_ticks(session, after or FIRST_ID, cutoff))
    removed = 0
    for ticks in old:
        while gone := store.write(partial(_forget_ticks, old=ticks)):
            removed += gone
    if costs:
        store.write(lambda session: _forget_costs(session, costs))
    return last, removed


def _old_ticks(
    session: Session, after: str, cutoff: int
) -> tuple[str, list[OldTicks], dict[str, int]]:
    """The old ticks of the schedules after `after`.

    Returns the last schedule looked at ("" at the end), its ticks, and the time since when its
    costs count.
    """
    rows = session.run(IN_LEDGER, {"after": after})
    found: list[OldTicks] = []
    costs: dict[str, int] = {}
    for schedule_id, policies in rows:
        until = cutoff if policies is None else cutoff - _beyond(policies)
        ticks = (_old_of(session, schedule_id, kind, policies is None, until) for kind in TickKind)
        found += [old for old in ticks if old is not None]
        if session.run(HAS_OLD_COSTS, {"id": schedule_id, "before": until}):
            costs[schedule_id] = until
    return (rows[-1][0] if rows else ""), found, costs


def _beyond(policies: str) -> int:
    """How much longer a schedule needs its ledger rows because of its budget's window."""
    try:
        budget = read_policies(policies).budget
    except Exception:  # settings that cannot be read are ignored
        return 0
    return 0 if budget is None else budget.window_ms


def _old_of(
    session: Session, schedule_id: str, kind: str, gone: bool, until: int
) -> OldTicks | None:
    where = {"id": schedule_id, "kind": kind}
    if not gone:
        newest = session.run(HUNDREDTH, where)
        if not newest:
            return None
        until = min(until, newest[0][0])
    if not session.run(HAS_OLD, where | {"before": until}):
        return None
    return OldTicks(schedule_id, kind, until)


def _forget_ticks(session: Session, old: OldTicks) -> int:
    """Delete some of these ticks, oldest first, and keep one row for every day. Return how many."""
    where = {"id": old.schedule_id, "kind": old.kind, "before": old.before}
    batch = session.run(END_OF_BATCH, where | {"most": BATCH})
    if batch:
        where |= {"before": batch[0][0]}
    if session.dialect == "sqlite":
        session.run(ROLL_UP_TICKS, where)
    return len(session.run(FORGET_TICKS, where))


def _forget_costs(session: Session, costs: Mapping[str, int]) -> None:
    for schedule_id, before in costs.items():
        session.run(FORGET_COSTS, {"id": schedule_id, "before": before})


def days_of(session: Session, schedule_id: str) -> list[Day]:
    """Daily totals of deleted ticks and jobs: one row for every day (UTC) with any."""
    return [Day(*row) for row in session.run(DAYS_OF, {"id": schedule_id})]
