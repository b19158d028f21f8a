"""How long ticks and costs are kept, and what is left of them by day."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from duly.ids import FIRST_ID
from duly.model.schedule import TickKind, read_policies
from duly.store import schedule_statements as sql

if TYPE_CHECKING:
    from duly.store.engine import Engine
    from duly.store.session import Session

BATCH = 1_000


class Old(NamedTuple):
    """Ticks of one schedule and kind that are to go: all before an instant."""

    schedule_id: str
    kind: str
    before: int


def retain_ticks(store: Engine, after: str, cutoff: int) -> tuple[str, int]:
    """Forget old ticks and costs of some schedules that come after one: the last of them, ""
    at the end, and how many ticks went.

    A schedule keeps its newest hundred, and what its budget looks at. What goes is added to the
    row of its day in the same transaction.
    """
    last, old, costs = store.read(lambda session: _old_ticks(session, after or FIRST_ID, cutoff))
    removed = 0
    for ticks in old:
        while gone := store.write(partial(_forget_ticks, old=ticks)):
            removed += gone
    if costs:
        store.write(lambda session: _forget_costs(session, costs))
    return last, removed


def _old_ticks(session: Session, after: str, cutoff: int) -> tuple[str, list[Old], dict[str, int]]:
    """What may go of the schedules that come after one.

    The last schedule looked at ("" at the end), its ticks, and since when its costs count.
    """
    rows = session.run(sql.IN_LEDGER, {"after": after})
    found: list[Old] = []
    costs: dict[str, int] = {}
    for schedule_id, policies in rows:
        until = cutoff if policies is None else cutoff - _beyond(policies)
        ticks = (_old_of(session, schedule_id, kind, policies is None, until) for kind in TickKind)
        found += [old for old in ticks if old is not None]
        if session.run(sql.HAS_OLD_COSTS, {"id": schedule_id, "before": until}):
            costs[schedule_id] = until
    return (rows[-1][0] if rows else ""), found, costs


def _beyond(policies: str) -> int:
    """How much longer than usual a schedule needs its ledger: its budget looks back."""
    try:
        budget = read_policies(policies).budget
    except Exception:  # what cannot be read decides nothing
        return 0
    return 0 if budget is None else budget.window_ms


def _old_of(session: Session, schedule_id: str, kind: str, gone: bool, until: int) -> Old | None:
    where = {"id": schedule_id, "kind": kind}
    if not gone:
        newest = session.run(sql.HUNDREDTH, where)
        if not newest:
            return None
        until = min(until, newest[0][0])
    if not session.run(sql.HAS_OLD, where | {"before": until}):
        return None
    return Old(schedule_id, kind, until)


def _forget_ticks(session: Session, old: Old) -> int:
    """Remove some of these ticks, oldest first, and keep one row for every day; how many."""
    where = {"id": old.schedule_id, "kind": old.kind, "before": old.before}
    batch = session.run(sql.END_OF_BATCH, where | {"most": BATCH})
    if batch:
        where |= {"before": batch[0][0]}
    if session.dialect == "sqlite":
        session.run(sql.ROLL_UP_TICKS, where)
    return len(session.run(sql.FORGET_TICKS, where))


def _forget_costs(session: Session, costs: Mapping[str, int]) -> None:
    for schedule_id, before in costs.items():
        session.run(sql.FORGET_COSTS, {"id": schedule_id, "before": before})


class Day(NamedTuple):
    """What is left of the ticks and jobs of a schedule and a day (UTC) when they are gone."""

    day: int
    dispatched: int
    skipped: int
    missed: int
    succeeded: int
    failed: int
    canceled: int


def days_of(session: Session, schedule_id: str) -> list[Day]:
    """What is left of ticks and jobs that are gone: one row for every day (UTC) with any."""
    return [Day(*row) for row in session.run(sql.DAYS_OF, {"id": schedule_id})]
