"""Decides which picked jobs may start under their limits, and which job gets a freed slot.

A slot is a row, taken in the transaction that claims the job and deleted when its body has ended. A
due job that gets no slot is held, so that it does not slow down claims. The transaction that frees
a slot also starts the first job that waits for it, or frees that job for another worker. All of
this happens under the lock of the key: see LOCK_KEYS.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from duly.model.job import (
    CLAIM_BYTES,
    Claim,
    Hold,
    serves,
)
from duly.model.keys import (
    KeyRoom,
    KeyWait,
    NextStarts,
    Rules,
    Waiter,
    WaitingLine,
    decode_rules,
    lock_order,
    next_of,
    startable,
)
from duly.store import statements as sql
from duly.store import workers as worker_verbs
from duly.store.jobs.claim import CLAIMABLE, CLAIMED, IN_TIME, IS_DUE_ALONE, TO_RUNNING
from duly.store.jobs.holds import hold
from duly.store.statements import (
    both,
    each,
)
from duly.store.steps import Ask, many

if TYPE_CHECKING:
    from duly.store.base import ClaimRequest, WorkerInfo
    from duly.store.engine import Engine
    from duly.store.session import Session

QUEUE_RULES = both(
    "SELECT name, paused_at, at_once FROM @queues"
    " WHERE paused_at IS NOT NULL OR at_once IS NOT NULL"
)
# This includes jobs that have waited for a key and get its slot directly.
CLAIM_PICKED = each(
    sqlite=f"""{TO_RUNNING}, hold = nullif(hold, 'key')
        WHERE id IN (SELECT value FROM json_each(:ids)) RETURNING {CLAIMED}""",
    postgres=f"""{TO_RUNNING}, hold = nullif(hold, 'key')
        WHERE id = ANY(:ids::uuid[]) RETURNING {CLAIMED}""",
)
PICK_ALONE = each(
    sqlite=f"""SELECT id, queue, function, limit_key, limits FROM @jobs
        WHERE id = :id AND {IS_DUE_ALONE}
            AND function IN (SELECT value FROM json_each(:functions))""",
    postgres=f"""SELECT @id, queue, function, limit_key, limits FROM @jobs
        WHERE id = :id AND {IS_DUE_ALONE} AND function = ANY(:functions::text[]) FOR UPDATE""",
)
# The key that a job waits for, and the jobs that run under it.
KEY_OF = both("SELECT limit_key, limits FROM @jobs WHERE id = :id AND limit_key IS NOT NULL")
KEY_HOLDERS = each(
    sqlite="SELECT DISTINCT +job_id FROM @slots WHERE key = :key LIMIT 100",
    postgres="SELECT DISTINCT job_id::text FROM @slots WHERE key = :key LIMIT 100",
)
# See KEEP_KEY.
_FORGOTTEN = """k.expires_at <= :now AND NOT (k.scope = 'idempotency'
            AND EXISTS (SELECT 1 FROM @jobs WHERE id = k.job_id AND kind = 'workflow'))"""
FORGET_KEYS = each(
    sqlite=f"""DELETE FROM @keys WHERE rowid IN
        (SELECT rowid FROM @keys k WHERE {_FORGOTTEN} LIMIT 1000) RETURNING 1""",
    postgres=f"""DELETE FROM @keys WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM @keys k WHERE {_FORGOTTEN} LIMIT 1000 FOR UPDATE SKIP LOCKED))
        RETURNING 1""",
)
# A transaction that reads how much room a key has, in order to start a job or hold it, or that
# changes it, holds this lock until it ends (SQLite has a single writer anyway). Otherwise a job
# could start waiting just after the transaction that should have freed it had looked.
LOCK_KEYS = both(
    "SELECT pg_advisory_xact_lock(hashtextextended('@schema ' || key, 0))::text"
    " FROM unnest(:keys::text[]) AS wanted (key)"
)
# What is used up of keys: slots, and starts that count for a rate. A start further ahead than
# clocks may differ was recorded by a wrong clock, and would otherwise count for as long as that
# clock was ahead.
SLOTS_AND_STARTS = each(
    sqlite="""SELECT +key, slot, NULL FROM @slots WHERE key IN (SELECT value FROM json_each(:keys))
        UNION ALL SELECT +key, NULL, started_at FROM @starts
        WHERE key IN (SELECT value FROM json_each(:keys)) AND expires_at > :now
            AND started_at <= :now + 60000""",
    postgres="""SELECT key, slot, NULL::int8 FROM @slots WHERE key = ANY(:keys::text[])
        UNION ALL SELECT key, NULL, started_at FROM @starts
        WHERE key = ANY(:keys::text[]) AND expires_at > :now AND started_at <= :now + 60000""",
)
TAKE_SLOTS = each(
    sqlite="INSERT INTO @slots (key, slot, job_id, token, worker_id) VALUES (?, ?, ?, ?, ?)",
    postgres="""INSERT INTO @slots (key, slot, job_id, token, worker_id)
        SELECT * FROM unnest(:key::text[], :slot::int4[], :job_id::uuid[], :token::int4[],
            :worker_id::uuid[])""",
)
NOTE_STARTS = each(
    sqlite="""INSERT INTO @starts (key, started_at, job_id, token, expires_at)
        VALUES (?, ?, ?, ?, ?)""",
    postgres="""INSERT INTO @starts (key, started_at, job_id, token, expires_at)
        SELECT * FROM unnest(:key::text[], :started_at::int8[], :job_id::uuid[], :token::int4[],
            :expires_at::int8[])""",
)
FORGET_STARTS = each(
    sqlite="""DELETE FROM @starts WHERE rowid IN
        (SELECT rowid FROM @starts WHERE expires_at <= :now LIMIT 1000) RETURNING 1""",
    postgres="""DELETE FROM @starts WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM @starts WHERE expires_at <= :now LIMIT 1000 FOR UPDATE SKIP LOCKED))
        RETURNING 1""",
)
FREE_SLOTS = each(
    sqlite="""DELETE FROM @slots WHERE (job_id, token) IN (SELECT json_extract(value, '$[0]'),
        json_extract(value, '$[1]') FROM json_each(:ended)) RETURNING key""",
    postgres="""DELETE FROM @slots s
        USING unnest(:job_ids::uuid[], :tokens::int4[]) AS ended (id, token)
        WHERE s.job_id = ended.id AND s.token = ended.token RETURNING key""",
)
FREE_SLOTS_OF = both("DELETE FROM @slots WHERE worker_id = :worker RETURNING key")
SLOTS_OF = each(
    sqlite="SELECT +job_id, token FROM @slots WHERE worker_id = :worker",
    postgres="SELECT job_id::text, token FROM @slots WHERE worker_id = :worker",
)
# All other due jobs of the same line: there is no need to try a million of them one by one.
_LIKE_IT = f"""limit_key = :key AND queue = :queue AND function = :function AND {CLAIMABLE}
            AND run_at <= :now"""
HOLD_LINE = each(
    sqlite=f"""UPDATE @jobs SET hold = 'key' WHERE id IN (SELECT id FROM @jobs
        WHERE {_LIKE_IT} LIMIT 10000)""",
    postgres=f"""UPDATE @jobs SET hold = 'key' WHERE id = ANY(ARRAY(SELECT id FROM @jobs
        WHERE {_LIKE_IT}
        ORDER BY limit_key, queue, function, run_at LIMIT 10000 FOR UPDATE SKIP LOCKED))""",
)
DELAY = both("UPDATE @jobs SET run_at = :run_at WHERE id = :id")
# The predicate of the index `jobs_limit`; on PostgreSQL, migration 0010 explains its form.
_HELD_FOR_KEY = each(
    sqlite="limit_key IS NOT NULL AND hold = 'key'",
    postgres="limit_key IS NOT NULL AND (hold = 'key') IS TRUE",
)
_WAITS = each(
    sqlite=f"limit_key = :key AND {_HELD_FOR_KEY.sqlite}",
    postgres=f"limit_key = :key AND {_HELD_FOR_KEY.postgres}",
)
# Ordered by when a job was first due, so that an attempt that is run again keeps its turn.
_TURN = "priority DESC, scheduled_at, id"
_LINE = "queue, function, limits"
_IN_LINE_ORDER = f"ORDER BY limit_key, {_LINE}"
# Whether no job of a line may start, and when the first similar job is due that is not held.
_ABOUT_LINE = f"""EXISTS (SELECT 1 FROM @queues
            WHERE name IN (l.queue, '*') AND paused_at IS NOT NULL)
        OR EXISTS (SELECT 1 FROM @functions
            WHERE name = l.function AND status IN ('paused', 'deleted')),
        (SELECT run_at FROM @jobs WHERE limit_key = :key AND limit_key IS NOT NULL AND {CLAIMABLE}
            AND queue = l.queue AND function = l.function
         ORDER BY limit_key, queue, function, run_at LIMIT 1)"""


def _sqlite_line(after: str) -> str:
    return f"""SELECT * FROM (SELECT {_LINE} FROM @jobs INDEXED BY duly_jobs_limit
        WHERE {_WAITS.sqlite} AND {after} {_IN_LINE_ORDER} LIMIT 1)"""


# The lines in which jobs wait for a key, one index probe per line, however many jobs it holds.
LINES = each(
    # One after the other, and in steps: see LANES.
    sqlite=f"""SELECT +l.queue, +l.function, +l.limits, {_ABOUT_LINE} FROM (
            {_sqlite_line("queue = :queue AND function = :function AND limits > :limits")}
            UNION ALL {_sqlite_line("queue = :queue AND function > :function")}
            UNION ALL {_sqlite_line("queue > :queue")} LIMIT 1) l""",
    postgres=f"""WITH RECURSIVE lines AS (
            (SELECT {_LINE} FROM @jobs WHERE {_WAITS.postgres} {_IN_LINE_ORDER} LIMIT 1)
            UNION ALL
            SELECT n.* FROM lines l CROSS JOIN LATERAL (
                SELECT {_LINE} FROM @jobs
                WHERE {_WAITS.postgres} AND ({_LINE}) > (l.queue, l.function, l.limits)
                {_IN_LINE_ORDER} LIMIT 1) n
        ) SELECT l.queue, l.function, l.limits, {_ABOUT_LINE} FROM lines l""",
)
# The first jobs of each line. (Many lines at a time on PostgreSQL.) If the clock was set back since
# a job was held, the job may not be due.
WAITERS = each(
    sqlite=f"""SELECT id, queue, function, limit_key, limits, priority, scheduled_at,
            args_bytes
        FROM @jobs INDEXED BY duly_jobs_limit
        WHERE {_WAITS.sqlite} AND queue = :queue AND function = :function AND limits = :limits
            AND run_at <= :now AND {IN_TIME}
        {_IN_LINE_ORDER}, {_TURN} LIMIT :limit""",
    postgres=f"""SELECT w.id::text, w.queue, w.function, limit_key, w.limits, priority,
            scheduled_at, size
        FROM unnest(:queues::text[], :functions::text[], :limits::text[])
            AS l (queue, function, limits)
        CROSS JOIN LATERAL (
            SELECT id, {_LINE}, limit_key, priority, scheduled_at, octet_length(args) AS size
            FROM @jobs
            WHERE {_WAITS.postgres} AND queue = l.queue AND function = l.function
                AND limits = l.limits
                AND run_at <= :now AND {IN_TIME}
            {_IN_LINE_ORDER}, {_TURN} LIMIT :limit FOR UPDATE SKIP LOCKED) w""",
)
# The same for reading without locks.
SEE_WAITERS = each(
    sqlite=WAITERS.sqlite, postgres=WAITERS.postgres.replace(" FOR UPDATE SKIP LOCKED", "")
)
ADMIT = each(
    sqlite="""UPDATE @jobs SET hold = NULL, run_at = max(run_at, :run_at)
        WHERE id IN (SELECT value FROM json_each(:ids))""",
    postgres="""UPDATE @jobs SET hold = NULL, run_at = greatest(run_at, :run_at)
        WHERE id = ANY(:ids::uuid[])""",
)


def _awaited_keys(jobs: str, held_for_key: str) -> str:
    after = f"SELECT min(limit_key) FROM {jobs} WHERE {held_for_key}"
    return f"""WITH RECURSIVE awaited (key) AS (
            {after} AND limit_key > :after
            UNION ALL
            SELECT ({after} AND limit_key > awaited.key) FROM awaited WHERE awaited.key IS NOT NULL
        ) SELECT key FROM awaited WHERE key IS NOT NULL LIMIT 100"""


# Keys that jobs wait for, one index probe each; otherwise SQLite would read all held jobs.
AWAITED_KEYS = each(
    sqlite=_awaited_keys("@jobs INDEXED BY duly_jobs_limit", _HELD_FOR_KEY.sqlite),
    postgres=_awaited_keys("@jobs", _HELD_FOR_KEY.postgres),
)


ALONE_AGAIN_MS = 5_000
MAX_KEYS = 100
"""The LIMIT of AWAITED_KEYS."""


class Picked(NamedTuple):
    """A due job that the transaction has locked."""

    id: str
    queue: str
    function: str
    limit_key: str | None
    limits: str | None

    @property
    def rules(self) -> Rules | None:
        return decode_rules(self.limits) if self.limit_key and self.limits else None


class _Waiting(NamedTuple):
    """A job that waits for a key, locked by the transaction."""

    id: str
    queue: str
    function: str
    limit_key: str
    limits: str
    priority: int
    scheduled_at: int
    size: int

    @property
    def turn(self) -> tuple[int, int, str]:
        return -self.priority, self.scheduled_at, self.id


class _Slot(NamedTuple):
    key: str
    slot: int
    job_id: str
    token: int
    worker_id: str


class _Start(NamedTuple):
    key: str
    started_at: int
    job_id: str
    token: int
    expires_at: int


class _Granted(NamedTuple):
    """What one job takes: a slot under each key that counts it, and a start under its rate."""

    slots: list[tuple[str, int]]
    start: tuple[str, int] | None


def queue_key(queue: str) -> str:
    return f"queue:{queue}"


def is_queue_key(key: str) -> bool:
    return key.startswith("queue:")


def queue_rules(at_once: int) -> Rules:
    return Rules(at_once, None, None)


def lock(session: Session, keys: Iterable[str]) -> None:
    wanted = lock_order(keys)
    if wanted and session.dialect == "postgres":
        session.run(LOCK_KEYS, {"keys": list(wanted)})


def rooms(session: Session, keys: Collection[str], now: int) -> dict[str, KeyRoom]:
    """How much room these keys have. They must be locked."""
    if not keys:
        return {}
    slots: dict[str, list[int]] = {key: [] for key in keys}
    starts: dict[str, list[int]] = {key: [] for key in keys}
    for key, slot, started_at in session.run(
        SLOTS_AND_STARTS, {"keys": session.array(keys), "now": now}
    ):
        if slot is None:
            starts[key].append(started_at)
        else:
            slots[key].append(slot)
    return {key: KeyRoom(slots[key], starts[key]) for key in keys}


# Starting -----------------------------------------------------------------------------------------


class Starting:
    """Decides, in order, which of the picked jobs may start, and stores the decisions."""

    def __init__(
        self,
        session: Session,
        queues: Mapping[str, int],
        worker_id: str,
        now: int,
        freed: Collection[str] = (),
    ) -> None:
        """`queues`: limited queues and their limits; `freed`: keys whose slots were freed."""
        self._session = session
        self._queues = {queue_key(name): queue_rules(most) for name, most in queues.items()}
        self._worker_id = worker_id
        self._now = now
        self._freed = sorted(key for key in freed if not is_queue_key(key))
        keys = [*self._queues, *self._freed]
        lock(session, keys)
        self._rooms = rooms(session, keys, now)
        self.refused: dict[str, list[Picked]] = {}

    def is_full(self, queue: str) -> bool:
        return not self._queue_has_room(queue_key(queue))

    def counts(self, picked: Iterable[Picked]) -> bool:
        """Whether any of these is under a limit."""
        return bool(self._queues) or any(job.limit_key for job in picked)

    def start(self, picked: Sequence[Picked]) -> list[Claim]:
        """Claim the jobs that may start now.

        Those that their key keeps back are added to `refused`.
        """
        keys = {job.limit_key for job in picked if job.limit_key} - self._rooms.keys()
        lock(self._session, keys)
        self._rooms |= rooms(self._session, keys, self._now)
        granted = {job.id: grant for job in picked if (grant := self._grant(job)) is not None}
        return self._claim(granted) if granted else []

    def hand_over(self, request: ClaimRequest) -> tuple[list[Claim], bool]:
        """Start the first jobs that wait for the freed keys. Return whether to notify other
        workers.

        Jobs that only other workers can start are freed for them.
        """
        starting: list[Picked] = []
        tells = False
        for key in self._freed:
            left = request.limit - len(starting)
            here = _ClaimingWorker(request, left, self.is_full)
            picked, freed = admit(self._session, key, self._rooms[key].copy(), self._now, here)
            starting += picked
            tells = tells or freed > 0
        return self.start(starting), tells

    def _grant(self, job: Picked) -> _Granted | None:
        key, rules = queue_key(job.queue), job.rules
        # A job whose queue is full stays as it is: no claim looks into a full queue.
        if not self._queue_has_room(key):
            return None
        if job.limit_key and rules and not self._rooms[job.limit_key].may_start(rules, self._now):
            self.refused.setdefault(job.limit_key, []).append(job)
            return None
        slots: list[tuple[str, int]] = []
        start = None
        for counted, by in ((key, self._queues.get(key)), (job.limit_key, rules)):
            if counted is None or by is None:
                continue
            slot = self._rooms[counted].take(by, self._now)
            if slot is not None:
                slots.append((counted, slot))
            if by.per is not None:
                start = (counted, by.per)
        return _Granted(slots, start)

    def _queue_has_room(self, key: str) -> bool:
        rules = self._queues.get(key)
        return rules is None or self._rooms[key].may_start(rules, self._now)

    def _claim(self, granted: Mapping[str, _Granted]) -> list[Claim]:
        which = {"ids": self._session.array(granted), "worker": self._worker_id, "now": self._now}
        claims = [Claim(*row) for row in self._session.run(CLAIM_PICKED, which)]
        slots: list[_Slot] = []
        starts: list[_Start] = []
        for claim in claims:
            grant = granted[claim.id]
            for key, slot in grant.slots:
                slots.append(_Slot(key, slot, claim.id, claim.token, self._worker_id))
            # A workflow that continues has started before.
            if grant.start is not None and claim.begun_at is None:
                key, per = grant.start
                starts.append(_Start(key, self._now, claim.id, claim.token, self._now + per))
        # The primary key is the final safeguard: taking a slot twice undoes the whole claim.
        _write(self._session, TAKE_SLOTS, slots)
        _write(self._session, NOTE_STARTS, starts)
        for key in {start.key for start in starts}:
            self._follow(key)
        return [msgspec.structs.replace(c, holds_slot=bool(granted[c.id].slots)) for c in claims]

    def _follow(self, key: str) -> None:
        """Set a time for the next waiting job, as no event tells that a rate has room again."""
        if key not in self.refused:
            admit(self._session, key, self._rooms[key].copy(), self._now)

    def turn_away(self) -> None:
        """Hold the refused jobs. One of them becomes due when the rate has room again."""
        for key, jobs in self.refused.items():
            hold(self._session, [job.id for job in jobs], Hold.KEY)
            for queue, function in sorted({(job.queue, job.function) for job in jobs}):
                line = {"key": key, "queue": queue, "function": function}
                self._session.run(HOLD_LINE, line | {"now": self._now})
            admit(self._session, key, self._rooms[key].copy(), self._now)


def start_alone(
    session: Session, job_id: str, worker_id: str, functions: Sequence[str], now: int
) -> Claim | None:
    """Claim one job that must run in its own process, if its function is one of these."""
    which = {"id": job_id, "functions": session.array(functions), "now": now}
    rows = session.run(PICK_ALONE, which)
    if not rows:
        return None
    job = Picked(*rows[0])
    queues = {name: most for name, most in limited_queues(session).items() if name == job.queue}
    starting = Starting(session, queues, worker_id, now)
    claims = starting.start([job])
    if claims:
        return claims[0]
    session.run(DELAY, {"id": job_id, "run_at": now + ALONE_AGAIN_MS})
    return None


def limited_queues(session: Session) -> dict[str, int]:
    return {name: most for name, _, most in session.run(QUEUE_RULES) if most is not None}


def _write(
    session: Session, statement: sql.Statement, rows: Sequence[_Slot] | Sequence[_Start]
) -> None:
    if rows:
        session.answer(Ask(statement, many(session.dialect, rows, type(rows[0]))))


# Following ----------------------------------------------------------------------------------------


class _ClaimingWorker(NamedTuple):
    """What the worker that makes the request can start itself."""

    request: ClaimRequest
    room: int
    is_full: Callable[[str], bool]

    def can_start(self, queue: str, function: str) -> bool:
        return function in self.request.functions and serves(self.request.served, queue)


def lines_of(session: Session, key: str) -> list[WaitingLine]:
    """The lines in which jobs wait for a key."""
    if session.dialect == "postgres":
        return [WaitingLine(*row) for row in session.run(LINES, {"key": key})]
    lines: list[WaitingLine] = []
    after = {"queue": "", "function": "", "limits": ""}
    while rows := session.run(LINES, {"key": key} | after):
        line = WaitingLine(*rows[0])
        lines.append(line)
        after = {"queue": line.queue, "function": line.function, "limits": line.limits}
    return lines


def startable_lines(
    session: Session, key: str, room: KeyRoom, now: int, here: _ClaimingWorker | None = None
) -> list[WaitingLine]:
    """The lines of a key in which a job can start, here or on another worker."""
    lines = [line for line in lines_of(session, key) if not line.closed]
    lines = [line for line in lines if room.free_slots(line.rules) != 0]
    mine = [line for line in lines if here and here.can_start(line.queue, line.function)]
    others = [line for line in lines if line not in mine]
    if others:
        workers = [worker for worker in worker_verbs.workers(session) if not worker.alone]
        others = [line for line in others if _are_serving(workers, line)]
    return startable(mine, others, room, now)


def _are_serving(workers: Iterable[WorkerInfo], line: WaitingLine) -> bool:
    return any(line.function in w.functions and serves(w.queues, line.queue) for w in workers)


def admit(
    session: Session, key: str, room: KeyRoom, now: int, here: _ClaimingWorker | None = None
) -> tuple[list[Picked], int]:
    """Return the jobs that a key has room to start here, and how many were freed for others."""
    lines = startable_lines(session, key, room, now, here)
    if not lines:
        return [], 0
    most = max(1, *(room.startable(line.rules, now) for line in lines))
    waiting = {job.id: job for job in _first_of(session, key, lines, most, now)}
    waiters = [_waiter(job, here) for job in waiting.values()]
    following = _within_bytes(next_of(waiters, room, now, here.room if here else 0), waiting)
    for run_at in sorted(set(following.free.values())):
        ids = [job_id for job_id, at in following.free.items() if at == run_at]
        session.run(ADMIT, {"ids": session.array(ids), "run_at": run_at})
    return [Picked(*waiting[job_id][:5]) for job_id in following.start], len(following.free)


def _waiter(job: _Waiting, here: _ClaimingWorker | None) -> Waiter:
    rules = decode_rules(job.limits)
    if here is None or not here.can_start(job.queue, job.function):
        return Waiter(job.id, rules, starts_here=False)
    return Waiter(job.id, rules, starts_here=True, queue_is_full=here.is_full(job.queue))


def _first_of(
    session: Session,
    key: str,
    lines: Sequence[WaitingLine],
    limit: int,
    now: int,
    statement: sql.Statement = WAITERS,
) -> list[_Waiting]:
    """The first jobs of each line, in the order of their turns."""
    ask = {"key": key, "limit": limit, "now": now}
    if session.dialect == "postgres":
        queues, functions, limits, *_ = zip(*lines, strict=True)
        ask |= {"queues": list(queues), "functions": list(functions), "limits": list(limits)}
        rows = session.run(statement, ask)
    else:
        names = [{"queue": q, "function": f, "limits": rules} for q, f, rules, *_ in lines]
        rows = [row for line in names for row in session.run(statement, ask | line)]
    return sorted((_Waiting(*row) for row in rows), key=lambda job: job.turn)


def _within_bytes(following: NextStarts, waiting: Mapping[str, _Waiting]) -> NextStarts:
    """A claim is limited in the bytes of its arguments; the other jobs are freed."""
    start: list[str] = []
    size = 0
    for job_id in following.start:
        size += waiting[job_id].size
        if start and size > CLAIM_BYTES:
            following.free[job_id] = 0
        else:
            start.append(job_id)
    return NextStarts(start, following.free)


def follow(session: Session, keys: Iterable[str], now: int) -> bool:
    """Let waiting jobs follow on freed slots of these keys. Return whether any job can start."""
    freed = set(keys)
    own = {key for key in freed if not is_queue_key(key)}
    lock(session, freed)
    left = rooms(session, own, now)
    admitted = [admit(session, key, left[key], now)[1] for key in sorted(own)]
    return any(admitted) or len(own) < len(freed)


def free(session: Session, ended: Sequence[tuple[str, int]]) -> set[str]:
    """Free the slots of attempts (job id, token) whose bodies have ended. Return their keys."""
    if not ended:
        return set()
    if session.dialect == "postgres":
        ids, tokens = zip(*ended, strict=True)
        rows = session.run(FREE_SLOTS, {"job_ids": list(ids), "tokens": list(tokens)})
    else:
        which = {"ended": msgspec.json.encode(ended).decode()}
        rows = session.run(FREE_SLOTS, which)
    return {row[0] for row in rows}


def release(session: Session, ended: Sequence[tuple[str, int]], now: int) -> bool:
    """Free the slots of these attempts (job id, token), whose bodies have really ended.

    The jobs that wait for them are freed in the same transaction. Returns whether any job can start
    now. Repeating it changes nothing.
    """
    freed = free(session, ended)
    return follow(session, freed, now) if freed else False


def release_all(session: Session, worker_id: str, now: int) -> None:
    """Free the slots of a worker that is gone."""
    freed = [row[0] for row in session.run(FREE_SLOTS_OF, {"worker": worker_id})]
    if freed:
        follow(session, freed, now)


def awaiting(session: Session, keys: Collection[str], now: int) -> list[str]:
    """Those of these keys for which a waiting job could start now."""
    left = rooms(session, keys, now)
    return [key for key in keys if startable_lines(session, key, left[key], now)]


def wait_of(session: Session, job_id: str, now: int) -> KeyWait | None:
    """What a job waits for that is held for its key; None if it has no key, or is gone."""
    for key, limits in session.run(KEY_OF, {"id": job_id}):
        rules, room = decode_rules(limits), rooms(session, [key], now)[key]
        holders = tuple(row[0] for row in session.run(KEY_HOLDERS, {"key": key}))
        if room.free_slots(rules) == 0:
            return KeyWait(key, holders)
        lines = startable_lines(session, key, room, now)
        first = _first_of(session, key, lines, 1, now, SEE_WAITERS) if lines else []
        starts_at = room.starts_at(rules, now)
        return KeyWait(key, holders, starts_at, first[0].id if first else None)
    return None


def slots_of(session: Session, worker_id: str) -> set[tuple[str, int]]:
    """The attempts (job id, token) that hold slots for this worker."""
    rows = session.run(SLOTS_OF, {"worker": worker_id})
    return {(job_id, token) for job_id, token in rows}


def admit_waiters(store: Engine, after: str, now: int) -> tuple[str, bool]:
    """Free jobs that wait for a key that has room, for whatever reason.

    Checks some keys after `after`. Returns the last one checked, "" at the end, and whether any job
    can start now.
    """
    keys = store.read(lambda session: session.ids(AWAITED_KEYS, {"after": after}))
    ready = store.read(lambda session: awaiting(session, keys, now))
    # One transaction per key: no other transaction should wait for the locks of a hundred keys.
    admitted = [store.write(partial(follow, keys=[key], now=now)) for key in ready]
    return keys[-1] if len(keys) == MAX_KEYS else "", any(admitted)


def forget_keys(session: Session, now: int) -> int:
    """Delete some expired keys and starts that no longer count for a rate. Return how many."""
    expired = (FORGET_KEYS, FORGET_STARTS)
    return sum(len(session.run(statement, {"now": now})) for statement in expired)
