"""A session: duly's statements on one connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from duly import fault
from duly.model.job import (
    CLAIM_BYTES,
    Again,
    Claim,
    Finish,
    NewJob,
    Settlement,
    serves,
)
from duly.store import limits
from duly.store import statements as sql
from duly.store.base import ClaimRequest
from duly.store.jobs.claim import CLAIM, LANES, PICK_LIMITED
from duly.store.jobs.enqueue import FINAL_FIELDS, INSERT_CANCELED
from duly.store.jobs.finish import AGAIN, FINISH, LOCKED_IDS, NO_NESTED_LOOPS, SHORT_LOCK_WAIT
from duly.store.jobs.reports import forget_reports
from duly.store.jobs.retention import (
    DELETE_FINISHED,
    DROP_KEPT,
    FINISHED_LATER,
    FORGET_IN,
    KEEP,
    TAKE_BUCKET,
    TRUNCATE_BUCKET,
)
from duly.store.limits import Picked, Starting
from duly.store.postgres.arrays import with_arrays
from duly.store.postgres.connection import Connection, PlainCursor
from duly.store.schedules.retention import ROLL_UP_JOBS
from duly.store.session import Session
from duly.store.statements import (
    Statement,
    both,
)
from duly.store.steps import (
    NOTIFY,
    TRACKED,
    TRACKED_COLUMNS,
    Row,
    columns,
    drive,
    insert_keyed,
    insert_traces,
    keyed_of,
    without,
)

if TYPE_CHECKING:
    from duly.store.postgres.store import PostgresStore

# Repeats an insert whose answer was lost (PostgreSQL only). Jobs that did arrive are left alone,
# including those that have finished since. That is checked after the insert, which waits for a
# transaction that is just moving them: a check before it could miss both rows.
INSERT_JOBS_ONCE = both(
    f"INSERT INTO @jobs ({TRACKED_COLUMNS.columns}) SELECT * FROM unnest({TRACKED_COLUMNS.arrays})"
    " ON CONFLICT (id) DO NOTHING"
)
FORGET_REPEATED = both(
    """DELETE FROM @jobs again WHERE id = ANY(:ids::uuid[])
        AND EXISTS (SELECT 1 FROM @history done
            WHERE done.id = again.id AND done.id = ANY(:ids::uuid[]))"""
)


_LEVELS = tuple(range(9, -1, -1))

# If the last vacuum found the table empty, PostgreSQL expects one job to match and compares each
# one of a batch with each other one, until the next vacuum: 900 ms for 1,000 jobs, but nothing for
# a few.
SMALL_BATCH = 16


class PostgresSession(Session):
    """duly's statements on one psycopg connection."""

    dialect = "postgres"

    def __init__(self, connection: Connection, store: PostgresStore) -> None:
        self.raw = connection
        self._store = store

    def run(
        self,
        statement: Statement,
        parameters: Mapping[str, Any] = {},
        prepare: bool | None = None,
    ) -> list[Row]:
        return self._plain(self._store.sql[statement], parameters, prepare)

    def run_text(self, text: str, parameters: Mapping[str, Any]) -> list[Row]:
        return self._plain(sql.render(text, "postgres", self._store.words).encode(), parameters)

    def _plain(
        self, text: bytes, parameters: Mapping[str, Any], prepare: bool | None = None
    ) -> list[Row]:
        with PlainCursor(self.raw) as cursor:
            cursor.execute(text, with_arrays(parameters) or None, prepare=prepare)
            # Not `description`, which creates an object for every column.
            return cursor.fetchall() if cursor.rownumber is not None else []

    def insert_jobs_once(self, jobs: Sequence[NewJob], ring: bool = False) -> None:
        self.run(INSERT_JOBS_ONCE, columns(jobs, TRACKED))
        self.run(FORGET_REPEATED, {"ids": [job.id for job in jobs]})
        if ring:
            self.run(NOTIFY)

    def insert_keyed_once(self, jobs: Sequence[NewJob]) -> dict[str, str]:
        keyed = keyed_of(jobs)
        existing = drive(insert_keyed(keyed), self.answer)
        self.run(FORGET_REPEATED, {"ids": [job.id for job in keyed]})
        plain = without(jobs, keyed, existing)
        if plain:
            self.insert_jobs_once(plain)
        drive(insert_traces("postgres", jobs, existing), self.answer)
        return existing

    def insert_canceled(self, jobs: Sequence[NewJob], by: str, now: int) -> None:
        if jobs:
            values = columns(jobs, FINAL_FIELDS)
            self.run(INSERT_CANCELED, values | {"by": by, "now": now})

    def lanes(self) -> list[Row]:
        return self.run(LANES)

    def claim(self, request: ClaimRequest, now: int) -> list[Claim]:
        if request.limited:
            while True:
                claims, refused = self.claim_limited(request, now)
                if claims or not refused:
                    return claims
        fault.point("worker.claiming")
        due = _due_arrays(request, request.queues, now)
        rows = self.run(CLAIM, due | {"worker": request.worker_id})
        return _in_order([Claim(*row) for row in rows], request)

    def claim_limited(self, request: ClaimRequest, now: int) -> tuple[list[Claim], bool]:
        """Claim jobs, including those under limits. Return whether any were turned away."""
        fault.point("worker.claiming")
        limited = limits.limited_queues(self)
        served = {name: most for name, most in limited.items() if name in request.queues}
        starting = Starting(self, served, request.worker_id, now)
        queues = [queue for queue in request.queues if not starting.is_full(queue)]
        rows = self.run(PICK_LIMITED, _due_arrays(request, queues, now)) if queues else []
        places = {queue: place for place, queue in enumerate(request.queues)}
        due = {Picked(*job): (-priority, run_at) for *job, priority, run_at in rows}
        claims = starting.start(sorted(due, key=lambda job: (places[job.queue], *due[job], job.id)))
        starting.turn_away()
        return _in_order(claims, request), bool(starting.refused)

    def hand_over(self, request: ClaimRequest, now: int) -> tuple[list[Claim], bool]:
        """Free slots and claim the jobs that wait for them.

        Return whether to notify other workers.
        """
        fault.point("worker.claiming")
        freed = limits.free(self, request.freed)
        if not freed:
            return [], False
        limited = limits.limited_queues(self)
        served = {name: most for name, most in limited.items() if serves(request.served, name)}
        starting = Starting(self, served, request.worker_id, now, freed)
        claims, tells = starting.hand_over(request)
        return claims, tells or any(map(limits.is_queue_key, freed))

    def settle(
        self, settlements: Sequence[Settlement], now: int, lock_wait: str | None = None
    ) -> set[str]:
        in_id_order = sorted(settlements, key=lambda settlement: settlement.id)
        finishes = [s for s in in_id_order if isinstance(s, Finish)]
        agains = [s for s in in_id_order if isinstance(s, Again)]
        settled: set[str] = set()
        prepare = None
        if len(settlements) > SMALL_BATCH:
            self.run(NO_NESTED_LOOPS)
            prepare = False
        if finishes:
            fault.point("finish.moving")
            values = _finish_arrays(finishes, now) | {"lock_wait": lock_wait}
            rows = self.run(FINISH, values, prepare)
            settled |= {row[0] for row in rows}
            self.cancel_children_of(finishes, settled, now)
            fault.point("finish.moved")
        if agains:
            values = _again_arrays(agains) | {"lock_wait": lock_wait}
            rows = self.run(AGAIN, values, prepare)
            settled |= {row[0] for row in rows}
            fault.point("give_back.moved")
        return settled

    def settle_unlocked(
        self, settlements: Sequence[Settlement], now: int
    ) -> tuple[set[str], set[str]]:
        """Settle what can be settled without waiting.

        Return the settled ids and the locked ones.
        """
        ids = {"ids": [settlement.id for settlement in settlements]}
        locked = {row[0] for row in self.run(LOCKED_IDS, ids)}
        return self.settle([s for s in settlements if s.id not in locked], now), locked

    def drop_kept(self, exhausted_after: int) -> None:
        dropped = self.run(DROP_KEPT, {"exhausted_after": exhausted_after})
        forget_reports(self, [row[0] for row in dropped])

    def retain_bucket(self, bucket: int, cutoff: int, exhausted_after: int, whole: bool) -> None:
        [(taken,)] = self.run(TAKE_BUCKET, {"bucket": bucket})
        if not taken:
            return
        limits = {"bucket": bucket, "cutoff": cutoff, "exhausted_after": exhausted_after}
        self.run(KEEP, limits)
        self.run(ROLL_UP_JOBS, {"bucket": bucket, "cutoff": cutoff})
        for forget in FORGET_IN:
            self.run(forget, {"bucket": bucket, "cutoff": cutoff})
        if whole and not self.run(FINISHED_LATER, {"bucket": bucket, "cutoff": cutoff}):
            self.run(SHORT_LOCK_WAIT)
            self.run_text(TRUNCATE_BUCKET.format(bucket=bucket), {})
        else:
            self.run(DELETE_FINISHED, {"bucket": bucket, "cutoff": cutoff})


def _due_arrays(request: ClaimRequest, queues: Sequence[str], now: int) -> dict[str, Any]:
    lanes = [(queue, level) for queue in queues for level in _LEVELS]
    return {
        "queues": [queue for queue, _ in lanes],
        "levels": [level for _, level in lanes],
        "floors": [request.floors.get(lane, 0) for lane in lanes],
        "functions": list(request.functions),
        "limit": request.limit,
        "bytes": CLAIM_BYTES,
        "now": now,
    }


_BY_TIME = attrgetter("run_at", "id")


def _in_order(claims: list[Claim], request: ClaimRequest) -> list[Claim]:
    claims.sort(key=_BY_TIME)
    lanes = {(claim.queue, claim.priority) for claim in claims}
    if len(lanes) > 1:
        places = {queue: place for place, queue in enumerate(request.queues)}
        claims.sort(key=lambda c: (places[c.queue], -c.priority))
    return claims


def _finish_arrays(finishes: Sequence[Finish], now: int) -> dict[str, Any]:
    return {
        "now": now,
        "ids": [f.id for f in finishes],
        "tokens": [f.token for f in finishes],
        "states": [f.state for f in finishes],
        "results": [f.result for f in finishes],
        "error_kinds": [f.error_kind for f in finishes],
        "error_messages": [f.error_message for f in finishes],
        "error_tracebacks": [f.error_traceback for f in finishes],
        "exhausteds": [f.exhausted for f in finishes],
    }


def _again_arrays(agains: Sequence[Again]) -> dict[str, Any]:
    return {
        "ids": [a.id for a in agains],
        "tokens": [a.token for a in agains],
        "run_ats": [a.run_at for a in agains],
        "attempts": [a.attempt for a in agains],
        "crashes": [a.crashes for a in agains],
        "system_retries": [a.system_retries for a in agains],
        "holds": [a.hold for a in agains],
        "error_kinds": [a.error_kind for a in agains],
        "error_messages": [a.error_message for a in agains],
        "error_tracebacks": [a.error_traceback for a in agains],
        "lock_failures": [a.lock_failures for a in agains],
        "beguns": [a.begun for a in agains],
        "mails": [a.mail for a in agains],
        "waits": [a.waits for a in agains],
        "limits": [a.limits for a in agains],
    }
