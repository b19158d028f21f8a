"""Unique keys and limits: which jobs exclude each other, and how many per key may run or start.

`Unique` prevents a call from being stored twice, `Limit` prevents stored jobs from starting. Both
use keys. This module does not query the database: a store finds out who holds a key and what
started when, and `KeyRoom` computes what that leaves.
"""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import hashlib
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from duly.errors import InvalidOption
from duly.model.job import KeyEntry

MAX_KEY = 200
MAX_RATE = 10_000
LONGEST_PERIOD = 366 * 86_400
RESERVED_PREFIXES = ("queue:", "schedule:")

Key = str | Callable[..., str] | None
Scope = Literal["pending", "unfinished"]
PENDING, UNFINISHED, PERIOD, IDEMPOTENCY = "pending", "unfinished", "period", "idempotency"


class Unique(msgspec.Struct, frozen=True):
    """Store one job per key; another call with the same key returns the existing job.

    `scope` says for how long: until the job starts ("pending"), until it has ended
    ("unfinished"), or, with `period`, for that many seconds after the call. Keys are separate for
    each function. `key` can be a callable that gets the call's arguments; None uses the arguments
    themselves as the key.
    """

    key: Key = None
    scope: Scope = "pending"
    period: float | None = msgspec.field(default=None)

    def __post_init__(self) -> None:
        _check_key("unique", self.key)
        if self.scope not in (PENDING, UNFINISHED):
            raise InvalidOption(
                "unique", f'scope must be "pending" or "unfinished", not {self.scope!r}'
            )
        if self.period is not None:
            check_period("unique", "period", self.period)
            if self.scope != PENDING:
                raise InvalidOption("unique", "give either a scope or a period, not both")


class Limit(msgspec.Struct, frozen=True):
    """How many jobs with a key run at once, across all workers, and how many start in a period.

    At most `rate` jobs start in any `per` seconds. The key is shared by all functions that use it.
    It can be a callable that gets the call's arguments. Without a key, the limit applies to the
    function.
    """

    key: Key = None
    at_once: int | None = None
    rate: int | None = None
    per: float | None = None

    def __post_init__(self) -> None:
        _check_key("limit", self.key)
        if self.at_once is None and self.rate is None:
            raise InvalidOption("limit", "give at_once, or rate and per")
        if self.at_once is not None:
            check_at_once("limit", self.at_once)
        if (self.rate is None) != (self.per is None):
            raise InvalidOption("limit", "rate and per must be given together")
        if self.rate is not None:
            if type(self.rate) is not int or not 1 <= self.rate <= MAX_RATE:
                raise InvalidOption("limit", f"rate must be 1 to {MAX_RATE:,}, not {self.rate!r}")
            check_period("limit", "per", self.per)


def check_at_once(option: str, at_once: object) -> None:
    if type(at_once) is not int or not 1 <= at_once <= 1_000_000:
        raise InvalidOption(option, f"at_once must be a whole number from 1, not {at_once!r}")


def check_period(option: str, name: str, seconds: object) -> None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0.001 <= seconds <= LONGEST_PERIOD:  # type: ignore[operator]
        raise InvalidOption(
            option, f"{name} must be 0.001 s to a year, in seconds, not {seconds!r}"
        )


def check_key(option: str, key: object) -> str:
    """The key, if it is valid."""
    if not isinstance(key, str):
        raise InvalidOption(option, f"a key must be text, not {key!r}")
    if not key or len(key) > MAX_KEY or not key.isprintable():
        raise InvalidOption(option, f"a key must be 1 to {MAX_KEY} printable characters: {key!r}")
    if option == "limit" and key.startswith(RESERVED_PREFIXES):
        raise InvalidOption(
            option, f"keys that start with {' or '.join(RESERVED_PREFIXES)} are reserved for duly"
        )
    return key


def _check_key(option: str, key: object) -> None:
    if key is not None and not callable(key):
        check_key(option, key)


# Stored rules -------------------------------------------------------------------------------------


class Rules(msgspec.Struct, frozen=True, array_like=True):
    """A limit as it is stored with its jobs, with times in milliseconds."""

    at_once: int | None
    rate: int | None
    per: int | None


def rules_of(limit: Limit) -> Rules:
    return Rules(limit.at_once, limit.rate, None if limit.per is None else round(limit.per * 1000))


def encode_rules(rules: Rules) -> str:
    return msgspec.json.encode(rules).decode()


def decode_rules(text: str) -> Rules:
    return msgspec.json.decode(text, type=Rules)


Arguments = Callable[[], dict[str, Any]]


def limit_key(limit: Limit, function: str, arguments: Arguments) -> str:
    if limit.key is None:
        # A user's key never contains a line break.
        return f"function\n{function}"
    return _chosen("limit", limit.key, arguments)


def keyed(
    function: str,
    args: str,
    arguments: Arguments,
    *,
    unique: Unique | None,
    debounced: bool,
    idempotency_key: str | None,
    idempotency_ms: int,
    now: int,
) -> dict[str, Any]:
    """The keys of a call, as fields of a KeyedJob; empty if it has none."""
    entries: list[KeyEntry] = []
    pending: str | None = None
    unfinished: str | None = None
    if idempotency_key is not None:
        # First of all: a repeated call is neither merged into another nor does it use up a period.
        key = f"{function}\nkey:{idempotency_key}"
        entries.append(KeyEntry(IDEMPOTENCY, key, now + idempotency_ms))
    if unique is not None and (unique.key is not None or not debounced):
        key = _unique_key(unique, function, args, arguments)
        if unique.period is not None:
            entries.append(KeyEntry(PERIOD, key, now + round(unique.period * 1000)))
        elif unique.scope == PENDING:
            pending = key
        else:
            unfinished = key
    elif debounced:
        pending = f"{function}\ndebounce"
    if not entries and pending is None and unfinished is None:
        return {}
    return {
        "pending_key": pending,
        "unique_key": unfinished,
        "entries": tuple(entries),
        "debounced": debounced,
    }


def unfinished_key(function: str, key: str) -> str:
    """How a key that was given as text is stored with its job."""
    return f"{function}\nkey:{key}"


def _unique_key(unique: Unique, function: str, args: str, arguments: Arguments) -> str:
    """Names and keys are printable, so a line break separates them."""
    if unique.key is None:
        return f"{function}\nargs:{hashlib.sha256(args.encode()).hexdigest()}"
    return f"{function}\nkey:{_chosen('unique', unique.key, arguments)}"


def _chosen(option: str, key: str | Callable[..., str], arguments: Arguments) -> str:
    return key if isinstance(key, str) else check_key(option, key(**arguments()))


# Free capacity ------------------------------------------------------------------------------------


class KeyRoom:
    """The free capacity of one key while its lock is held: slots, and starts in the window."""

    def __init__(self, slots: Iterable[int] = (), starts: Iterable[int] = ()) -> None:
        self._slots = set(slots)
        self._starts = sorted(starts)

    def copy(self) -> KeyRoom:
        return KeyRoom(self._slots, self._starts)

    def free_slots(self, rules: Rules) -> int | None:
        """The number of free slots; None: no limit."""
        return None if rules.at_once is None else max(0, rules.at_once - len(self._slots))

    def starts_at(self, rules: Rules, now: int) -> int:
        """The first instant, now or later, at which the rate allows another start.

        A start at `s` counts until `s + per`, exclusive: the rate-th last start decides.
        """
        if rules.rate is None or rules.per is None or len(self._starts) < rules.rate:
            return now
        return max(now, self._starts[-rules.rate] + rules.per)

    def may_start(self, rules: Rules, now: int) -> bool:
        return self.free_slots(rules) != 0 and self.starts_at(rules, now) <= now

    def take(self, rules: Rules, now: int) -> int | None:
        """Start one job; returns the number of its slot, if it needs one."""
        if rules.rate is not None:
            insort(self._starts, now)
        if rules.at_once is None:
            return None
        slot = next(n for n in range(1, rules.at_once + 1) if n not in self._slots)
        self._slots.add(slot)
        return slot

    def startable(self, rules: Rules, now: int) -> int:
        """How many jobs could start now, at most a thousand."""
        free = self.free_slots(rules)
        most = 1000 if free is None else min(free, 1000)
        if rules.rate is None or rules.per is None:
            return most
        recent = sum(1 for start in self._starts if start + rules.per > now)
        return max(0, min(most, rules.rate - recent))


class WaitingLine(NamedTuple):
    """Jobs that wait for a key, in one queue, of one function, under one limit."""

    queue: str
    function: str
    limits: str
    closed: bool
    """Whether its queue or function is paused, or its function deleted."""
    next_at: int | None
    """When the first job with the same key, queue and function that is not held is due."""

    @property
    def rules(self) -> Rules:
        return decode_rules(self.limits)

    def is_offered(self, until: int) -> bool:
        """Whether a job of this line is free to take a slot and has not taken it yet."""
        return self.next_at is not None and self.next_at <= until


class KeyWait(NamedTuple):
    """What a job that is held for its key waits for."""

    key: str
    holders: tuple[str, ...]
    """The jobs that occupy its slots."""
    starts_at: int | None = None
    """When its rate allows another start, if a slot is free."""
    first: str | None = None
    """The job that gets the free slot next, if any can start."""


class Waiter(NamedTuple):
    """One of the first jobs in a waiting line."""

    id: str
    rules: Rules
    starts_here: bool
    """Whether the calling worker can start it."""
    queue_is_full: bool = False
    """Whether its queue has its own limit with no capacity left."""


class NextStarts(NamedTuple):
    """The jobs that get a key's capacity: those to start, and those to release, with due times."""

    start: list[str]
    free: dict[str, int]


def startable(
    mine: Sequence[WaitingLine], others: Sequence[WaitingLine], room: KeyRoom, now: int
) -> list[WaitingLine]:
    """The lines whose first job gets the key's capacity, or a time if only the rate prevents it.

    `mine` are the lines whose jobs the caller can start. If one of the `others` already has a free
    job that has not started, it is passed over: its workers are busy, and other jobs should not
    wait for them.
    """
    ready = [line for line in mine if room.may_start(line.rules, now)]
    ready += [
        line for line in others if room.may_start(line.rules, now) and not line.is_offered(now)
    ]
    if ready:
        return ready
    every = [line for line in (*mine, *others) if room.free_slots(line.rules) != 0]
    late = [line for line in every if room.starts_at(line.rules, now) > now]
    has_time = any(line.is_offered(room.starts_at(line.rules, now)) for line in late)
    return [] if has_time else late


def next_of(waiters: Iterable[Waiter], room: KeyRoom, now: int, here: int) -> NextStarts:
    """Distribute a key's capacity, first come first served; `here`: how many can start here.

    If only the rate prevents a start, one waiter gets the time at which it can start; when it
    starts, it provides for the next.
    """
    following = NextStarts([], {})
    has_time = False
    for waiter in waiters:
        rules = waiter.rules
        if room.may_start(rules, now):
            if waiter.starts_here and not waiter.queue_is_full and len(following.start) < here:
                following.start.append(waiter.id)
            else:
                following.free[waiter.id] = 0
            # Jobs that wait for their queue leave the slot to those behind them.
            if not waiter.queue_is_full:
                room.take(rules, now)
        elif room.free_slots(rules) != 0 and not has_time:
            has_time = True
            following.free[waiter.id] = room.starts_at(rules, now)
    return following


def lock_order(keys: Iterable[str]) -> Sequence[str]:
    """The order in which all processes lock keys; queues first, which a claim needs before others.

    Without a common order, two processes that need the same keys could wait for each other.
    """
    return sorted(set(keys), key=lambda key: (not key.startswith("queue:"), key))
