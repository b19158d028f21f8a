"""Writes the ledger: the row of each tick, and its jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from duly.model.decide import Decided, Dispatch
from duly.model.job import NewJob
from duly.model.schedule import Plan, TickKind, TickRecord
from duly.store.jobs.cancel import cancel_live
from duly.store.jobs.enqueue import insert_jobs
from duly.store.schedules.rows import TICK_COLUMNS, TICK_FIELDS
from duly.store.statements import both, each

if TYPE_CHECKING:
    from duly.store.session import Session

_TICK_TYPES = {"schedule_id": "uuid", "job_id": "uuid", "rotation_index": "int4"} | {
    "kind": "text",
    "outcome": "text",
    "reason": "text",
    "detail": "text",
    "dst_adjusted": "bool",
}
_TICK_PLACES = ", ".join(f"json_extract(value, '$[{n}]')" for n in range(len(TICK_FIELDS)))
_TICK_ARRAYS = ", ".join(f":{name}::{_TICK_TYPES.get(name, 'int8')}[]" for name in TICK_FIELDS)
INSERT_TICKS = each(
    sqlite=f"""INSERT INTO @ticks ({TICK_COLUMNS})
        SELECT {_TICK_PLACES}
        FROM json_each(:rows) WHERE true
        ON CONFLICT DO NOTHING RETURNING schedule_id, kind, tick_at""",
    postgres=f"""INSERT INTO @ticks ({TICK_COLUMNS}) SELECT * FROM unnest({_TICK_ARRAYS})
        ON CONFLICT DO NOTHING RETURNING schedule_id::text, kind, tick_at""",
)
# The job of a tick already existed: its function allows only one at a time.
POINT_TICK = both(
    """UPDATE @ticks SET job_id = :job_id
        WHERE schedule_id = :schedule_id AND kind = :kind AND tick_at = :tick_at"""
)
JOBS_OF = each(
    sqlite="SELECT id FROM @jobs WHERE trigger = 'schedule' AND actor = :id",
    postgres="SELECT id::text FROM @jobs WHERE trigger = 'schedule' AND actor = :id",
)


Slot = tuple[str, str, int]
"""Identifies a tick: its schedule, kind and time."""


class TickJobOrder(NamedTuple):
    """The parameters of a job to be created for a tick."""

    plan: Plan
    tick: Decided
    dispatch: Dispatch
    serial: bool
    kind: TickKind = TickKind.SLOT
    parent_id: str | None = None


MakeJobs = Callable[[TickJobOrder, int], Sequence[NewJob]]
"""Creates the job of a tick, followed by the hooks that wait for it; `now` is the second
argument."""


def insert_ticks(session: Session, rows: Sequence[TickRecord]) -> set[Slot]:
    """Write ledger rows. Return those that are new."""
    if not rows:
        return set()
    values = [msgspec.structs.astuple(row) for row in rows]
    if session.dialect == "sqlite":
        given: dict[str, Any] = {"rows": msgspec.json.encode(values).decode()}
    else:
        columns = zip(*values, strict=True)
        given = {
            name: list(column)
            for name, column in zip(TickRecord.__struct_fields__, columns, strict=True)
        }
    stored = session.run(INSERT_TICKS, given)
    return {(schedule_id, kind, tick_at) for schedule_id, kind, tick_at in stored}


def insert_jobs_of(session: Session, jobs: Mapping[Slot, Sequence[NewJob]]) -> Mapping[str, str]:
    """Store the jobs of ticks. If another job holds the key of one, its tick points to that job.

    Returns these other jobs, by the id that the new job would have had.
    """
    if not jobs:
        return {}
    existing = insert_jobs(session, [job for made in jobs.values() for job in made])
    for (schedule_id, kind, tick_at), made in jobs.items():
        if made[0].id in existing:
            where = {"schedule_id": schedule_id, "kind": kind, "tick_at": tick_at}
            session.run(POINT_TICK, where | {"job_id": existing[made[0].id]})
    return existing


def job_of(made: Sequence[NewJob], existing: Mapping[str, str]) -> str:
    """The job of a tick, which may have existed before."""
    return existing.get(made[0].id, made[0].id)


def cancel_others(session: Session, plan: Plan, now: int) -> None:
    """Cancel all unfinished jobs of this schedule."""
    others = [row[0] for row in session.run(JOBS_OF, {"id": plan.id})]
    if others:
        cancel_live(session, others, f"schedule:{plan.id}", now)
