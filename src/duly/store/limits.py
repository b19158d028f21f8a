"""Which of the picked jobs may start under their limits, and who follows when one has ended?

A slot is a row, taken in the transaction that claims the job and deleted when its body has ended.
A due job that gets none is held, so that it costs nothing, and freed by whoever frees a slot. All
of it happens under the lock of the key: see LOCK_KEYS.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from duly.model.job import Claim, Hold
from duly.model.keys import Room, Rules, decode_rules, lock_order
from duly.store import statements as sql
from duly.store.steps import Ask, many

if TYPE_CHECKING:
    from duly.store.session import Session

ALONE_AGAIN_MS = 5_000


class Picked(NamedTuple):
    """A due job that the transaction has locked."""

    id: str
    queue: str
    limit_key: str | None
    limits: str | None

    @property
    def rules(self) -> Rules | None:
        return decode_rules(self.limits) if self.limit_key and self.limits else None


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
    """What one job takes: a slot under each key that counts it, a start under its rate."""

    slots: list[tuple[str, int]]
    start: tuple[str, int] | None


def queue_key(queue: str) -> str:
    return f"queue:{queue}"


def queue_rules(at_once: int) -> Rules:
    return Rules(at_once, None, None)


def lock(session: Session, keys: Iterable[str]) -> None:
    wanted = lock_order(keys)
    if wanted and session.dialect == "postgres":
        session.run(sql.LOCK_KEYS, {"keys": list(wanted)})


def rooms(session: Session, keys: Collection[str], now: int) -> dict[str, Room]:
    """What these keys, which are locked, leave."""
    if not keys:
        return {}
    which = {"keys": session.array(keys)}
    slots: dict[str, list[int]] = {key: [] for key in keys}
    starts: dict[str, list[int]] = {key: [] for key in keys}
    for key, slot in session.run(sql.SLOTS, which):
        slots[key].append(slot)
    for key, started_at in session.run(sql.STARTS, which | {"now": now}):
        starts[key].append(started_at)
    return {key: Room(slots[key], starts[key]) for key in keys}


# Starting -----------------------------------------------------------------------------------------


class Starting:
    """Decides about picked jobs, in their order, and writes down what was decided."""

    def __init__(
        self, session: Session, queues: Mapping[str, int], worker_id: str, now: int
    ) -> None:
        """`queues`: the limited ones and their limits; their keys are locked."""
        self._session = session
        self._queues = {queue_key(name): queue_rules(most) for name, most in queues.items()}
        self._worker_id = worker_id
        self._now = now
        self._rooms = rooms(session, self._queues.keys(), now)
        self.refused: dict[str, list[Picked]] = {}

    def is_full(self, queue: str) -> bool:
        return not self._queue_has_room(queue_key(queue))

    def counts(self, picked: Iterable[Picked]) -> bool:
        """Whether any of these is under a limit."""
        return bool(self._queues) or any(job.limit_key for job in picked)

    def start(self, picked: Sequence[Picked]) -> list[Claim]:
        """Claim those that may start now; `refused` are those that a key of theirs keeps back."""
        keys = {job.limit_key for job in picked if job.limit_key}
        lock(self._session, keys)
        self._rooms |= rooms(self._session, keys, self._now)
        granted = {job.id: grant for job in picked if (grant := self._grant(job)) is not None}
        return self._claim(granted) if granted else []

    def _grant(self, job: Picked) -> _Granted | None:
        key, rules = queue_key(job.queue), job.rules
        # What finds its queue full stays where it is: no claim looks into a full queue.
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
        claims = [Claim(*row) for row in self._session.run(sql.CLAIM_PICKED, which)]
        slots: list[_Slot] = []
        starts: list[_Start] = []
        for claim in claims:
            grant = granted[claim.id]
            for key, slot in grant.slots:
                slots.append(_Slot(key, slot, claim.id, claim.token, self._worker_id))
            if grant.start is not None:
                key, per = grant.start
                starts.append(_Start(key, self._now, claim.id, claim.token, self._now + per))
        # The primary key is the last guard: a slot that is taken twice undoes the whole claim.
        _write(self._session, sql.TAKE_SLOTS, slots)
        _write(self._session, sql.NOTE_STARTS, starts)
        for key in {start.key for start in starts}:
            self._follow(key)
        return [msgspec.structs.replace(c, holds_slot=bool(granted[c.id].slots)) for c in claims]

    def _follow(self, key: str) -> None:
        """Nobody will say that a rate leaves something again: whoever waits is given a time."""
        if key not in self.refused:
            admit(self._session, key, self._rooms[key], self._now)

    def turn_away(self) -> None:
        """Let the refused ones wait: for a slot held, for the rate until it leaves something."""
        for key, jobs in self.refused.items():
            rules, room = jobs[0].rules, self._rooms[key]
            assert rules is not None
            ids = [job.id for job in jobs]
            if room.free_slots(rules) != 0:
                at = room.starts_at(rules, self._now)
                self._session.run(sql.DELAY, {"id": ids.pop(0), "run_at": at})
            self._session.hold(ids, Hold.KEY)
            self._session.run(sql.HOLD_KEY, {"key": key, "now": self._now})


def start_alone(
    session: Session, job_id: str, worker_id: str, functions: Sequence[str], now: int
) -> Claim | None:
    """Claim a job that runs in a process of its own; what a limit keeps back is due again soon."""
    which = {"id": job_id, "functions": session.array(functions), "now": now}
    rows = session.run(sql.PICK_ALONE, which)
    if not rows:
        return None
    job = Picked(*rows[0])
    queues = {name: most for name, most in limited_queues(session).items() if name == job.queue}
    lock(session, map(queue_key, queues))
    starting = Starting(session, queues, worker_id, now)
    claims = starting.start([job])
    if claims:
        return claims[0]
    session.run(sql.DELAY, {"id": job_id, "run_at": now + ALONE_AGAIN_MS})
    return None


def limited_queues(session: Session) -> dict[str, int]:
    return {name: most for name, _, most in session.run(sql.QUEUE_RULES) if most is not None}


def _write(
    session: Session, statement: sql.Statement, rows: Sequence[_Slot] | Sequence[_Start]
) -> None:
    if rows:
        session.answer(Ask(statement, many(session.dialect, rows, type(rows[0]))))


# Following ----------------------------------------------------------------------------------------


def admit(session: Session, key: str, room: Room, now: int) -> int:
    """Free those who wait for a key, first come first served, as far as it leaves something.

    If only the rate stands in the way, one of them gets the time at which it does not; when that
    one starts it sees to the next.
    """
    first = session.run(sql.FIRST_WAITER, {"key": key})
    if not first:
        return 0
    rules = decode_rules(first[0][0])
    run_at, some = 0, room.startable(rules, now)
    if some == 0:
        if room.free_slots(rules) == 0:
            return 0
        run_at, some = room.starts_at(rules, now), 1
        if session.run(sql.HAS_CANDIDATE, {"key": key, "until": run_at}):
            return 0
    waiters = [row[0] for row in session.run(sql.WAITERS, {"key": key, "limit": some})]
    if waiters:
        session.run(sql.ADMIT, {"ids": session.array(waiters), "run_at": run_at})
    return len(waiters)


def follow(session: Session, keys: Iterable[str], now: int) -> bool:
    """Slots of these keys were freed, or may be free; whether somebody can start because of it."""
    freed = set(keys)
    own = {key for key in freed if not key.startswith("queue:")}
    lock(session, freed)
    left = rooms(session, own, now)
    admitted = [admit(session, key, left[key], now) for key in sorted(own)]
    return any(admitted) or len(own) < len(freed)


def release(session: Session, ended: Iterable[tuple[str, int]], now: int) -> bool:
    """Free the slots of attempts whose bodies have ended: (job id, token)."""
    freed: list[str] = []
    for job_id, token in ended:
        rows = session.run(sql.FREE_SLOTS, {"job_id": job_id, "token": token})
        freed += [row[0] for row in rows]
    return follow(session, freed, now) if freed else False


def release_all(session: Session, worker_id: str, now: int) -> None:
    """Free the slots of a worker that is dead."""
    freed = [row[0] for row in session.run(sql.FREE_SLOTS_OF, {"worker": worker_id})]
    if freed:
        follow(session, freed, now)
