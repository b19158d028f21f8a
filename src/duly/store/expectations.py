"""Checks whether schedules meet their expectations, and enqueues alerts if they do not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from duly import fault
from duly.errors import StoreError
from duly.model.expect import (
    Expectation,
    ExpectFacts,
    Finding,
    Late,
    Success,
    read_expect,
    read_late,
)
from duly.model.job import NewJob
from duly.model.schedule import ScheduleRecord, TickFilter, plan_of
from duly.store.jobs.enqueue import insert_jobs
from duly.store.schedules.audit import audit
from duly.store.schedules.calendars import calendars_of
from duly.store.schedules.data import ticks
from duly.store.schedules.facts import IN_FLIGHT, created_by, first_id_at
from duly.store.schedules.rows import of_schedules, schedule_of
from duly.store.statements import both, each

if TYPE_CHECKING:
    from duly.store.session import Session

_TO_CHECK = "WHERE expect_at <= :now ORDER BY expect_at LIMIT :limit"
LOCK_EXPECTING = of_schedules("", f"{_TO_CHECK} FOR UPDATE SKIP LOCKED", sqlite_rest=_TO_CHECK)
NEXT_CHECK = both(
    "SELECT expect_at FROM @schedules WHERE expect_at IS NOT NULL ORDER BY expect_at LIMIT 1"
)
CHECKED = both(
    """UPDATE @schedules SET expect_at = :expect_at, expect_tick = :expect_tick,
            last_success_at = :last_success_at, late = :late
        WHERE id = :id"""
)
# An id contains the time at which its job was created, or a slightly later one.
_OWN_SUCCESSES = """scheduled_at, completed_at FROM @history
        WHERE trigger = 'schedule' AND actor = :id AND id >= :since_id AND state = 'succeeded'
        ORDER BY @history.id DESC LIMIT 10000"""
SUCCESSES = each(
    sqlite=f"SELECT id, {_OWN_SUCCESSES}", postgres=f"SELECT id::text, {_OWN_SUCCESSES}"
)
# When the jobs of ticks succeeded, whichever caller created them; NULL while they are unfinished.
SUCCESSES_AMONG = each(
    sqlite="""SELECT id, completed_at FROM @history
        WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'succeeded'
        UNION ALL SELECT id, NULL FROM @jobs WHERE id IN (SELECT value FROM json_each(:ids))""",
    postgres="""SELECT id::text, completed_at FROM @history
        WHERE id = ANY(:ids::uuid[]) AND state = 'succeeded'
        UNION ALL SELECT id::text, NULL FROM @jobs WHERE id = ANY(:ids::uuid[])""",
)


log = logging.getLogger(__name__)

PAGE = 100
MAX_ROWS = 10_000
AGAIN_MS = 60_000
"""How long to wait before trying an alert again that could not be enqueued."""

MakeAlert = Callable[[ScheduleRecord, str, int], Sequence[NewJob]]
"""Builds the alert jobs for a missed expectation: the schedule, the problem, `now`."""


def check(session: Session, now: int, make_alert: MakeAlert) -> int:
    """Check some expectations that are due. Return how many were checked.

    Alerts for missed expectations are enqueued in the same transaction.
    """
    rows = session.run(LOCK_EXPECTING, {"now": now, "limit": PAGE})
    for row in rows:
        record = schedule_of(row)
        try:
            finding = _evaluate(session, record, now)
        except StoreError:
            raise
        except Exception as error:  # a broken schedule must not stop the others
            log.error("schedule %s: its expectation cannot be checked: %s", record.id, error)
            finding = _unchanged(record, now + AGAIN_MS)
        _store_finding(session, record, finding, now, make_alert)
    fault.point("expect.checked")
    return len(rows)


def _unchanged(record: ScheduleRecord, check_at: int) -> Finding:
    """Nothing new was found; check again later."""
    late = read_late(record.late)
    return Finding(
        None if late is None else late.problem,
        check_at,
        record.expect_tick,
        record.last_success_at,
        is_new=False,
    )


def _evaluate(session: Session, record: ScheduleRecord, now: int) -> Finding:
    assert record.expect is not None
    promise = Expectation(plan_of(record), read_expect(record.expect))
    return promise.look(_gather(session, promise), now, read_late(record.late))


def _gather(session: Session, promise: Expectation) -> ExpectFacts:
    plan = promise.plan
    # This comes first: a job that is unfinished here is no longer looked up among the successes.
    unfinished = [] if promise.expect.every is None else _in_flight_since(session, plan.id)
    rows = ticks(session, plan.id, TickFilter(after=promise.ledger_since(), limit=MAX_ROWS))
    # An operator or a calendar may have moved a tick, and with it the job, to an earlier time.
    earliest = min([promise.since(), *(row.decided_at for row in rows)])
    own = session.run(SUCCESSES, {"id": plan.id, "since_id": first_id_at(earliest)})
    successes = [Success(scheduled_at, completed_at) for _, scheduled_at, completed_at in own]
    ends: dict[str | None, int | None] = {job_id: completed_at for job_id, _, completed_at in own}
    ends |= _ends_of_others(session, {row.job_id for row in rows if row.job_id} - ends.keys())
    for row in rows:
        completed_at = ends.get(row.job_id)
        if completed_at is not None:
            successes.append(Success(row.tick_at, completed_at))
        elif row.job_id in ends:
            unfinished.append(min(row.tick_at, row.decided_at))
    calendars = calendars_of(session, [plan])
    return ExpectFacts(rows, successes, calendars, min(unfinished, default=None))


def _in_flight_since(session: Session, schedule_id: str) -> list[int]:
    """When the oldest unfinished jobs of a schedule were created, whichever tick they belong to."""
    rows = session.run(IN_FLIGHT, {"ids": session.array([schedule_id])})
    return [created_by(job_id) for _, *found in rows for job_id in found if job_id is not None]


def _ends_of_others(session: Session, job_ids: Collection[str]) -> dict[str | None, int | None]:
    """When jobs that existed before their ticks have succeeded; None while they are unfinished.

    This happens when a function allows only one job at a time.
    """
    if not job_ids:
        return {}
    return dict(session.run(SUCCESSES_AMONG, {"ids": session.array(sorted(job_ids))}))


def _store_finding(
    session: Session, record: ScheduleRecord, finding: Finding, now: int, make_alert: MakeAlert
) -> None:
    before = read_late(record.late)
    late = None if finding.problem is None else before
    check_at = finding.check_at
    if finding.problem is not None and (finding.is_new or before is None):
        _record_late(session, record, finding.problem, now)
        late = Late(
            now,
            finding.problem,
            alerted=_enqueue_alert(session, record, finding.problem, now, make_alert),
        )
    elif before is not None and not before.alerted:
        # The problem may be over by now, but no alert has been sent.
        alerted = _enqueue_alert(session, record, before.problem, now, make_alert)
        late = (
            None
            if alerted and finding.problem is None
            else Late(before.at, before.problem, alerted)
        )
    if late is not None and not late.alerted:
        check_at = min(check_at or now + AGAIN_MS, now + AGAIN_MS)
    values = {
        "id": record.id,
        "expect_at": check_at,
        "expect_tick": finding.tick,
        "last_success_at": finding.last_success_at,
        "late": None if late is None else msgspec.json.encode(late).decode(),
    }
    session.run(CHECKED, values)


def _record_late(session: Session, record: ScheduleRecord, problem: str, now: int) -> None:
    log.warning("schedule %s (%s) is late: %s", record.key, record.id, problem)
    detail = {"problem": problem, "checked_at": record.expect_at}
    audit(session, "schedule.late", f"schedule:{record.id}", None, detail, now)


def _enqueue_alert(
    session: Session, record: ScheduleRecord, problem: str, now: int, make_alert: MakeAlert
) -> bool:
    """Store the alert jobs. Return False if they cannot be created."""
    if record.alert is None:
        return True
    try:
        jobs = list(make_alert(record, problem, now))
    except StoreError:
        raise
    except Exception as error:  # the function may be unknown here, but known elsewhere
        log.error("schedule %s is late, but its alert could not be enqueued: %s", record.id, error)
        return False
    insert_jobs(session, jobs)
    return True


def next_check(session: Session) -> int | None:
    """When the next expectation of a schedule is due for a check."""
    rows = session.run(NEXT_CHECK)
    return rows[0][0] if rows else None
