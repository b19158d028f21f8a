"""A session: duly's statements on one connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from duly import errors, fault
from duly.clock import os_monotonic
from duly.model.job import CLAIM_BYTES, Again, Claim, Finish, NewJob, Settlement
from duly.store import limits, steps
from duly.store import statements as sql
from duly.store.base import ClaimRequest
from duly.store.functions import CLOSED_FUNCTIONS
from duly.store.jobs.claim import CLAIM, LANES, PICK
from duly.store.jobs.enqueue import FINAL_FIELDS, INSERT_CANCELED
from duly.store.jobs.finish import AGAIN, FINISH, FORGET_FINISHED
from duly.store.jobs.reports import forget_reports
from duly.store.jobs.retention import (
    DELETE_FINISHED,
    DROP_KEPT,
    KEEP,
    LIVE_WORKFLOWS,
    NEWER_FINISHED,
    OLDEST_FINISHED,
    OldFinished,
)
from duly.store.limits import QUEUE_RULES, Picked, Starting
from duly.store.queues import EVERYTHING
from duly.store.schedules.retention import ROLL_UP_JOBS
from duly.store.session import Session
from duly.store.sqlite.errors import code_of
from duly.store.statements import Statement
from duly.store.steps import Ask, Row

T = TypeVar("T")
FIND_SECONDS = 10.0
# 10,000 instructions take milliseconds. Anything longer is a stall, and counts as this long.
STEP_SECONDS = 1.0

WORDS = sql.words_for("sqlite")
SQL = sql.texts("sqlite")


class SqliteSession(Session):
    """duly's statements on one sqlite3 connection."""

    dialect = "sqlite"

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.raw = connection

    def run(self, statement: Statement, parameters: Mapping[str, Any] = {}) -> list[Row]:
        return self._plain(SQL[statement], parameters)

    def run_text(self, text: str, parameters: Mapping[str, Any]) -> list[Row]:
        return self._plain(sql.render(text, "sqlite", WORDS), parameters)

    def _plain(self, text: str, parameters: Any) -> list[Row]:
        try:
            return self._rows(text, parameters)
        except sqlite3.OperationalError as error:
            if not str(error).startswith("Could not decode to UTF-8"):
                raise
            # One damaged row must not stop the others forever. Decoding all text in Python is slow,
            # so it is done only once such a row was found; a transaction that has written is
            # repeated as a whole.
            self.raw.text_factory = _lenient
            if not text.startswith("SELECT"):
                raise
            return self._rows(text, parameters)

    def _rows(self, text: str, parameters: Any) -> list[Row]:
        cursor = self.raw.cursor()
        # A row factory that a user set on the connection must not affect us.
        cursor.row_factory = None
        try:
            return cursor.execute(text, parameters).fetchall()
        except BaseException:
            # A statement that has not ended keeps its snapshot, and the next BEGIN would be
            # refused.
            cursor.close()
            raise

    def answer(self, ask: Ask) -> list[Row]:
        statement, parameters = ask
        if isinstance(statement, Statement) and isinstance(parameters, list):
            self.many(statement, parameters)
            return []
        return super().answer(ask)

    def many(self, statement: Statement, rows: Sequence[Row]) -> int:
        return self.raw.cursor().executemany(SQL[statement], rows).rowcount

    def insert_canceled(self, jobs: Sequence[NewJob], by: str, now: int) -> None:
        values = [(*row, now, by) for row in steps.rows(jobs, FINAL_FIELDS)]
        self.many(INSERT_CANCELED, values)

    def lanes(self) -> list[Row]:
        lanes: list[Row] = []
        after: Row = ("", -1)
        while True:
            rows = self.run(LANES, {"queue": after[0], "priority": after[1]})
            if not rows:
                return lanes
            lanes += rows
            after = rows[0]

    def claim(self, request: ClaimRequest, now: int) -> list[Claim]:
        freed = limits.free(self, request.freed)
        handed: list[Claim] = []
        if freed:
            limited = limits.limited_queues(self)
            starting = Starting(self, limited, request.worker_id, now, freed)
            handed, _ = starting.hand_over(request)
            fault.point("worker.claiming")
        left = request.limit - len(handed)
        return [*handed, *self._claim_due(request, left, now)] if left > 0 else handed

    def _claim_due(self, request: ClaimRequest, limit: int, now: int) -> list[Claim]:
        if not request.queues:
            return []
        closed = {name for (name,) in self.run(CLOSED_FUNCTIONS)}
        functions = self.array(name for name in request.functions if name not in closed)
        rules = self.run(QUEUE_RULES)
        paused = {name for name, paused_at, _ in rules if paused_at is not None}
        limited = {name: at_once for name, _, at_once in rules if at_once is not None}
        if EVERYTHING in paused:
            return []
        while True:
            starting = Starting(self, limited, request.worker_id, now)
            queues = [q for q in request.queues if q not in paused and not starting.is_full(q)]
            picked = self._pick(queues, functions, limit, now)
            if not picked:
                return []
            claims = self._start(picked, starting, request.worker_id, now)
            fault.point("worker.claiming")
            # The refused jobs no longer block the others.
            if claims or not starting.refused:
                order = {job.id: place for place, job in enumerate(picked)}
                claims.sort(key=lambda claim: order[claim.id])
                return claims

    def _pick(self, queues: Sequence[str], functions: str, most: int, now: int) -> list[Picked]:
        picked: list[Picked] = []
        bytes_left = CLAIM_BYTES
        for queue in queues:
            if len(picked) >= most:
                break
            where = {"queue": queue, "functions": functions, "now": now}
            for row in self.run(PICK, where | {"limit": most - len(picked)}):
                job_id, size, function, limit_key, rules = row
                bytes_left -= size
                if bytes_left < 0 and picked:
                    break
                picked.append(Picked(job_id, queue, function, limit_key, rules))
        return picked

    def _start(
        self, picked: Sequence[Picked], starting: Starting, worker_id: str, now: int
    ) -> list[Claim]:
        if starting.counts(picked):
            claims = starting.start(picked)
            starting.turn_away()
            return claims
        which = {"ids": self.array(job.id for job in picked), "worker": worker_id, "now": now}
        return [Claim(*row) for row in self.run(CLAIM, which)]

    def settle(self, settlements: Sequence[Settlement], now: int) -> set[str]:
        finishes = [s for s in settlements if isinstance(s, Finish)]
        settled = self._finish(finishes, now)
        self.cancel_children_of(finishes, settled, now)
        for again in settlements:
            if isinstance(again, Again) and self._return(again):
                settled.add(again.id)
        return settled

    def _finish(self, finishes: Sequence[Finish], now: int) -> set[str]:
        if not finishes:
            return set()
        rows = [_finish_row(finish, now) for finish in finishes]
        if self.many(FINISH, rows) != len(rows):
            return self._sort_out(finishes)
        fault.point("finish.moving")
        self.many(FORGET_FINISHED, [(finish.id, finish.token) for finish in finishes])
        fault.point("finish.moved")
        return {finish.id for finish in finishes}

    def _sort_out(self, finishes: Sequence[Finish]) -> set[str]:
        """Some tokens were stale: only jobs that moved can have their live row deleted now."""
        return {f.id for f in finishes if self.many(FORGET_FINISHED, [(f.id, f.token)])}

    def _return(self, again: Again) -> bool:
        cursor = self.raw.cursor()
        cursor.execute(SQL[AGAIN], msgspec.structs.asdict(again))
        fault.point("give_back.moved")
        return cursor.rowcount == 1

    def in_time(self, ask: Callable[[SqliteSession], T]) -> T:
        """A filter without an index must not keep the caller waiting forever."""
        self.raw.set_progress_handler(_Patience(FIND_SECONDS).is_over, 10_000)
        try:
            return ask(self)
        except sqlite3.OperationalError as error:
            if code_of(error) != "SQLITE_INTERRUPT":
                raise
            message = "no index serves this filter quickly; narrow the filter"
            raise errors.QueryTooBroad(message) from error
        finally:
            self.raw.set_progress_handler(None, 0)

    def retain(self, cutoff: int, exhausted_after: int) -> int:
        oldest = [OldFinished(*row) for row in self.run(OLDEST_FINISHED)]
        # Nearly in order of time: a clock may have been set back between two of them.
        expired = [job for job in oldest if job.completed_at < cutoff]
        if not expired:
            dropped = self.run(DROP_KEPT, {"exhausted_after": exhausted_after})
            forget_reports(self, [row[0] for row in dropped])
            return 0
        newest = {job.function: job for job in sorted(expired, key=lambda job: str(job.id))}
        keep = [j.id for j in expired if j.exhausted and j.completed_at >= exhausted_after]
        keep += [j.id for j in newest.values() if self._is_newest(j)]
        parents = {j.parent_id for j in expired if j.parent_id is not None}
        living: list[str] = []
        if parents:
            living = self.ids(LIVE_WORKFLOWS, {"ids": self.array(parents)})
        keep += [j.id for j in expired if j.parent_id in living]
        if keep:
            self.run(KEEP, {"ids": self.array(keep)})
        ids = [job.id for job in expired]
        self.run(ROLL_UP_JOBS, {"ids": self.array(ids)})
        self.run(DELETE_FINISHED, {"ids": self.array(ids)})
        forget_reports(self, [job_id for job_id in ids if job_id not in keep])
        return len(expired)

    def _is_newest(self, job: OldFinished) -> bool:
        return not self.run(NEWER_FINISHED, {"function": job.function, "id": job.id})


class _Patience:
    """How long a query may still take, not counting time in which the process was stopped."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._seen = os_monotonic()

    def is_over(self) -> bool:
        now = os_monotonic()
        self._left -= min(now - self._seen, STEP_SECONDS)
        self._seen = now
        return self._left < 0


def _lenient(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _finish_row(finish: Finish, now: int) -> Row:
    return (
        finish.state,
        now,
        finish.result,
        finish.error_kind,
        finish.error_message,
        finish.error_traceback,
        finish.exhausted,
        finish.id,
        finish.token,
    )
