"""Checks that every schedule does exactly what it must.

Triggers write every change of schedules, of their ledger and of their jobs into `sim_book`, in the
transaction that makes it, between two marks that say which verb of the store it was. The almanac
replays them. For each transaction it works out from the state before it, with instants that
`instants` has found, exactly which rows and jobs there must be, and where the schedule must stand
afterwards; anything else is convicted. None of the code that decides about ticks is used.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from tests.simulator.instants import Timetable
from tests.simulator.log import Violation
from tests.simulator.promises import Limits

GRACE_MS = 60_000
FOREVER = 2**63 - 1
ONE_BY_ONE = ("buffer_one", "buffer_all", "cancel_other")
# Of a function that some processes do not have.
MAY_PARK = frozenset({"rare"})

_SCHEDULE = """key function args trigger rotation rotation_index policies enabled start_at end_at
    remaining next_tick_at due_at override awake_at parked_at parked_tick version""".split()
_TICK = """kind tick_at outcome reason job_id rotation_index due_at decided_at first_at
    count""".split()
_JOB = ["actor", "scheduled_at", "args", "state"]


def _noted(name: str, event: str, op: str, key: str, columns: Sequence[str], when: str = "") -> str:
    row = "OLD" if "DELETE" in event else "NEW"
    pairs = ", ".join(f"'{column}', {row}.{column}" for column in columns)
    condition = f"WHEN {when}" if when else ""
    return f"""CREATE TRIGGER sim_book_{name} AFTER {event} {condition} BEGIN
        INSERT INTO sim_book (op, id, row) VALUES ('{op}', {row}.{key}, json_object({pairs})); END;
    """


SCHEMA = "CREATE TABLE sim_book (seq integer PRIMARY KEY, op text, id text, row text);" + "".join(
    (
        _noted("made", "INSERT ON duly_schedules", "schedule", "id", _SCHEDULE),
        _noted("changed", "UPDATE ON duly_schedules", "schedule", "id", _SCHEDULE),
        _noted("removed", "DELETE ON duly_schedules", "removed", "id", ()),
        _noted("tick", "INSERT ON duly_ticks", "tick", "schedule_id", _TICK),
        _noted("altered", "UPDATE ON duly_ticks", "altered", "schedule_id", _TICK),
        _noted("forgotten", "DELETE ON duly_ticks", "altered", "schedule_id", _TICK),
        _noted("job", "INSERT ON duly_jobs", "job", "id", _JOB, "NEW.trigger = 'schedule'"),
        _noted(
            *("claim", "UPDATE OF state ON duly_jobs", "state", "id", _JOB),
            "NEW.trigger = 'schedule'",
        ),
        _noted("end", "DELETE ON duly_jobs", "end", "id", _JOB, "OLD.trigger = 'schedule'"),
        _noted(
            "switch", "INSERT ON duly_queues", "switch", "name", ["paused_at"], "NEW.name = '*'"
        ),
        _noted(
            *("switch_again", "UPDATE ON duly_queues", "switch", "name", ["paused_at"]),
            "NEW.name = '*'",
        ),
        _noted("status", "UPDATE OF status ON duly_functions", "status", "name", ["status"]),
    )
)


# What is known ---------------------------------------------------------------------------------


# What says nothing of a tick of the past: it can be filled in later.
LEFT_OPEN = ("kill_switch", "target_paused", "target_deprecated", "cycle_detected")


class State(msgspec.Struct, frozen=True):
    """A schedule as the database has it."""

    key: str
    function: str
    args: str
    trigger: str
    rotation: str | None
    rotation_index: int
    policies: str
    enabled: int
    start_at: int | None
    end_at: int | None
    remaining: int | None
    next_tick_at: int | None
    due_at: int | None
    override: str | None
    awake_at: int | None
    parked_at: int | None
    parked_tick: int | None
    version: int

    @property
    def timetable(self) -> Timetable:
        return _timetable(self.trigger)

    @property
    def policy(self) -> dict[str, Any]:
        policy: dict[str, Any] = _decoded(self.policies)
        return policy

    @property
    def overlap(self) -> str:
        overlap: str = self.policy.get("overlap", "skip")
        return overlap

    @property
    def entries(self) -> list[Any] | None:
        return None if self.rotation is None else _decoded(self.rotation)

    @property
    def is_awake(self) -> bool:
        return bool(self.enabled) and self.parked_at is None

    def instants(self, start: int, end: int) -> Sequence[int]:
        """Its instants in [start, end), as far as they lie between its own start and end."""
        if self.start_at is not None:
            start = max(start, self.start_at)
        if self.end_at is not None:
            end = min(end, self.end_at + 1)
        return self.timetable.between(start, end) if start < end else []

    def first_after(self, instant: int) -> int | None:
        if self.start_at is not None:
            instant = max(instant, self.start_at - 1)
        tick = self.timetable.next_after(instant)
        return None if tick is None or (self.end_at is not None and tick > self.end_at) else tick

    def overridden(self, tick_at: int) -> dict[str, Any] | None:
        """What an operator has decided about this tick."""
        override = None if self.override is None else _decoded(self.override)
        return override if override is not None and override["tick_at"] == tick_at else None

    def due(self, tick_at: int) -> int:
        override = self.overridden(tick_at)
        moved: int = tick_at if override is None else override.get("to") or tick_at
        return moved


@lru_cache(maxsize=1_000)
def _timetable(stored: str) -> Timetable:
    return Timetable.read(stored)


@lru_cache(maxsize=1_000)
def _decoded(text: str) -> Any:
    return msgspec.json.decode(text)


class Row(msgspec.Struct, frozen=True):
    """A row of the ledger."""

    kind: str
    tick_at: int
    outcome: str
    reason: str | None = None
    job_id: str | None = None
    rotation_index: int | None = None
    due_at: int = 0
    decided_at: int = 0
    first_at: int | None = None
    count: int | None = None

    @property
    def place(self) -> tuple[str, int]:
        return self.kind, self.tick_at


class Job(msgspec.Struct, frozen=True):
    actor: str | None
    scheduled_at: int
    args: str
    state: str


@dataclass
class Account:
    """One schedule and everything it has done."""

    state: State
    rows: dict[tuple[str, int], Row] = field(default_factory=dict)
    live: dict[str, Job] = field(default_factory=dict)
    versions: dict[int, State] = field(default_factory=dict)

    @property
    def slots(self) -> set[int]:
        return {tick_at for kind, tick_at in self.rows if kind == "slot"}

    def spent(self, since: int, until: int) -> int:
        """How many runs there were in (since, until]."""
        rows = self.rows.values()
        return sum(r.outcome == "dispatched" and since < r.tick_at <= until for r in rows)


class Mark(msgspec.Struct):
    """Which verb of the store a transaction is, and with what."""

    verb: str
    now: int | None = None
    action: str | None = None
    slots: tuple[int, int] | None = None
    inputs: dict[str, Any] | None = None


@dataclass
class Part:
    """What one transaction has done to one schedule."""

    states: list[State] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)
    removed: bool = False


class Outlook(NamedTuple):
    """What a transaction has to come to: rows, and where the schedule stands then."""

    rows: list[Row]
    next_tick_at: int | None
    remaining: int | None
    rotation_index: int
    serial: bool
    is_backfill: bool = False
    inputs: dict[str, Any] | None = None


# The almanac ------------------------------------------------------------------------------------


class Almanac:
    """Replays the book and convicts the first thing that a schedule must not do."""

    def __init__(
        self, db: sqlite3.Connection, limits: Limits, latest_ever: Callable[[], int]
    ) -> None:
        self.db = db
        self.accounts: dict[str, Account] = {}
        self.gone: dict[str, Account] = {}
        self.at_once: set[str] = set()
        """The keys of those that tick as soon as they are made."""
        self.killed = False
        self.statuses: dict[str, str] = {}
        self.ticks = 0
        self._limits = limits
        self._latest_ever = latest_ever
        self._seen = 0

    def name(self, schedule_id: str) -> str:
        account = self.accounts.get(schedule_id) or self.gone.get(schedule_id)
        return schedule_id if account is None else account.state.key

    # What the simulation reports

    def acknowledged(self, schedule_id: str, version: int, **values: Any) -> None:
        """A caller was told that the schedule is stored like this."""
        self.sync()
        account = self.accounts.get(schedule_id) or self.gone.get(schedule_id)
        stored = None if account is None else account.versions.get(version)
        if stored is None:
            raise Violation("acknowledged schedules exist", f"{schedule_id} v{version} is nowhere")
        for column, value in values.items():
            found = getattr(stored, column)
            if found != value:
                message = f"{stored.key}: {column} is {found!r}, not {value!r}"
                raise Violation("acknowledged changes are stored", message)

    def ran(self, schedule_id: str, rows: Iterable[tuple[str, int, str | None]]) -> None:
        """A caller was told that these ticks were dispatched: (kind, tick, job)."""
        self.sync()
        account = self.accounts.get(schedule_id) or self.gone[schedule_id]
        for kind, tick_at, job_id in rows:
            row = account.rows.get((kind, tick_at))
            if row is None or row.job_id != job_id:
                message = f"{account.state.key}: {kind} {tick_at} has {row}, not job {job_id}"
                raise Violation("acknowledged runs exist", message)

    def expect(self, holds: bool, invariant: str, message: str) -> None:
        if not holds:
            raise Violation(invariant, message)

    # Replay

    def sync(self) -> None:
        query = "SELECT seq, op, id, row FROM sim_book WHERE seq > ? ORDER BY seq"
        mark: Mark | None = None
        parts: dict[str, Part] = {}
        for seq, op, key, text in self.db.execute(query, (self._seen,)).fetchall():
            self._seen = seq
            if op == "begin":
                mark, parts = msgspec.json.decode(text, type=Mark), {}
            elif op == "done":
                assert mark is not None
                for schedule_id, part in parts.items():
                    self._judge(mark, schedule_id, part)
                mark = None
            elif op == "switch":
                self.killed = msgspec.json.decode(text)["paused_at"] is not None
            elif op == "status":
                self.statuses[key] = msgspec.json.decode(text)["status"]
            elif op in ("job", "state", "end"):
                job = msgspec.json.decode(text, type=Job)
                self._note_job(op, key, job, parts if mark is not None else None)
            elif mark is None:
                raise Violation("only verbs change schedules", f"{op} {key} {text}")
            else:
                self._note(op, text, parts.setdefault(key, Part()))
        if mark is not None:
            raise Violation("verbs are whole", f"{mark.verb} was committed without its end")

    def _note(self, op: str, text: str, part: Part) -> None:
        if op == "schedule":
            part.states.append(msgspec.json.decode(text, type=State))
        elif op == "tick":
            part.rows.append(msgspec.json.decode(text, type=Row))
        elif op == "removed":
            part.removed = True
        else:
            raise Violation("the ledger is final", text)

    def _note_job(self, op: str, job_id: str, job: Job, parts: dict[str, Part] | None) -> None:
        actor = job.actor or "nobody"
        part = None if parts is None else parts.setdefault(actor, Part())
        account = self.accounts.get(actor) or self.gone.get(actor)
        if op == "job":
            if part is None:
                raise Violation("jobs have a row", f"{self.name(actor)}: {job} has none")
            part.jobs[job_id] = job
        elif op == "state":
            if account is not None:
                account.live[job_id] = job
        elif part is not None:
            part.ended.append(job_id)
        elif account is not None:
            account.live.pop(job_id, None)

    def _judge(self, mark: Mark, schedule_id: str, part: Part) -> None:
        account = self.accounts.get(schedule_id)
        if account is None and schedule_id not in self.gone:
            self._welcome(mark, schedule_id, part)
            return
        if account is None:
            if part.rows or part.jobs or part.states:
                raise Violation("what was removed is gone", f"{self.name(schedule_id)}: {part}")
            account = self.gone[schedule_id]
        elif mark.verb == "tick":
            self._judge_tick(mark, schedule_id, account, part)
        elif mark.verb == "run_schedule":
            self._judge_run(mark, schedule_id, account, part)
        elif part.rows or part.jobs:
            raise Violation("only ticks make rows and jobs", f"{mark} {account.state.key}: {part}")
        elif part.states:
            self._judge_edit(mark, account, part.states[-1])
        self._take_over(schedule_id, account, part)

    def _take_over(self, schedule_id: str, account: Account, part: Part) -> None:
        for row in part.rows:
            account.rows[row.place] = row
        self.ticks += len(part.rows)
        account.live |= part.jobs
        for job_id in part.ended:
            account.live.pop(job_id, None)
        for state in part.states:
            account.state = state
            account.versions[state.version] = state
            _check_standing(state)
        if part.removed:
            self.gone[schedule_id] = self.accounts.pop(schedule_id)

    def _welcome(self, mark: Mark, schedule_id: str, part: Part) -> None:
        if part.jobs and not part.states:
            raise Violation("jobs have a row", f"{part.jobs} are of nobody")
        if not part.states:
            return
        (state,) = part.states
        if mark.verb != "add_schedule" or part.rows or part.jobs:
            raise Violation("schedules begin with their creation", f"{mark} {state.key}: {part}")
        if state.enabled:
            self._check_woken(mark, state)
        elif state.next_tick_at is not None:
            raise Violation("the disabled have no next tick", state.key)
        self.accounts[schedule_id] = account = Account(state)
        account.versions[state.version] = state
        _check_standing(state)

    # The tick

    def _judge_tick(self, mark: Mark, schedule_id: str, account: Account, part: Part) -> None:
        state, now = account.state, mark.now or 0
        if now > self._latest_ever():
            raise Violation("nobody is ahead of time", f"{now}")
        if not part.states and not part.rows and not part.jobs:
            return
        if not part.states:
            raise Violation("decided and advanced together", f"{state.key}: {part.rows}")
        after = part.states[-1]
        if after.parked_at is not None:
            self._check_parked(account, part, after)
            return
        if not state.is_awake or state.due_at is None or state.due_at > now:
            message = f"{state.key} at {now}: {part.rows}"
            raise Violation("only what is enabled and due ticks", message)
        outlook = self._outlook_of_tick(account, now)
        self._compare(schedule_id, account, part, outlook)
        if after.override is not None and not (
            after.next_tick_at is not None and after.overridden(after.next_tick_at)
        ):
            raise Violation("an override is for one tick", f"{state.key}: {after.override}")

    def _check_parked(self, account: Account, part: Part, after: State) -> None:
        if after.function not in MAY_PARK or part.rows or part.jobs:
            raise Violation("nobody is parked", f"{account.state.key}: {part}")

    def _outlook_of_tick(self, account: Account, now: int) -> Outlook:
        state = account.state
        first = state.next_tick_at
        assert first is not None
        # One that was moved to an earlier time may lie in the future.
        come = state.instants(first, max(now, first) + 1)
        policy = state.policy
        catch_up = policy.get("catch_up", 10)
        if catch_up == 0 and now - state.due(come[-1]) <= GRACE_MS:
            catch_up = 1
        kept = list(come[-catch_up:]) if catch_up else []
        if (window := policy.get("catch_up_window")) is not None:
            kept = [tick for tick in kept if state.due(tick) >= now - window]
        rows = _missed(come[: len(come) - len(kept)], account.slots, now)
        decided = self._decide_all(account, [t for t in kept if t not in account.slots], now)
        rows += [row for row in decided.rows if row.place not in account.rows]
        rows = [row for row in rows if row.place not in account.rows]
        upcoming = None if decided.remaining == 0 else state.first_after(come[-1])
        return decided._replace(rows=rows, next_tick_at=upcoming)

    def _decide_all(self, account: Account, ticks: Sequence[int], now: int) -> Outlook:
        """Each in turn: what was dispatched before counts."""
        state = account.state
        remaining, index = state.remaining, state.rotation_index
        rows: list[Row] = []
        runs: list[int] = []
        for tick_at in ticks:
            if remaining == 0:
                break
            reason = self._objection(account, tick_at, runs, now, "slot")
            row = Row("slot", tick_at, "skipped", reason, due_at=state.due(tick_at), decided_at=now)
            if reason is None:
                row = _dispatched(row, state, index)
                index += 1
                remaining = None if remaining is None else remaining - 1
                runs.append(tick_at)
            rows.append(row)
        serial = state.overlap in ONE_BY_ONE or (state.overlap == "skip" and len(runs) > 1)
        return Outlook(rows, None, remaining, index, serial)

    def _objection(
        self, account: Account, tick_at: int, runs: Sequence[int], now: int, kind: str
    ) -> str | None:
        """Why a tick is skipped."""
        state = account.state
        if self.killed:
            return "kill_switch"
        if self.statuses.get(state.function) == "paused":
            return "target_paused"
        if kind == "backfill":
            return None
        override = state.overridden(tick_at) if kind == "slot" else None
        if override is not None and "to" not in override:
            return "operator"
        if budget := state.policy.get("budget"):
            since = tick_at - round(budget["per"] * 1000)
            # A run comes after all that was dispatched, also after ticks that were moved before it.
            until = tick_at if kind == "slot" else FOREVER
            spent = account.spent(since, until) + sum(since < t <= until for t in runs)
            if spent >= budget["runs"]:
                return "budget_exceeded"
        waiting = [job for job in account.live.values() if job.state == "pending"]
        in_the_way = {
            "skip": bool(account.live),
            "buffer_one": bool(waiting) or bool(runs),
        }
        return "overlap_in_flight" if in_the_way.get(state.overlap) else None

    # Runs beside the trigger

    def _judge_run(self, mark: Mark, schedule_id: str, account: Account, part: Part) -> None:
        now = mark.now or 0
        state = account.state
        if mark.slots is None:
            outlook = self._outlook_of_run(account, now, mark.inputs)
        else:
            outlook = self._outlook_of_backfill(account, mark.slots, now)
        over = outlook.remaining == 0
        outlook = outlook._replace(next_tick_at=None if over else state.next_tick_at)
        self._compare(schedule_id, account, part, outlook)

    def _outlook_of_run(self, account: Account, now: int, inputs: dict[str, Any] | None) -> Outlook:
        state = account.state
        # Of two in the same millisecond the second takes the next one.
        instant = now
        while Row("manual", instant, "skipped", None).place in account.rows:
            instant += 1
        reason = self._objection(account, instant, (), now, "manual")
        row = Row("manual", instant, "skipped", reason, due_at=instant, decided_at=now)
        serial = state.overlap in ONE_BY_ONE
        standing = (state.next_tick_at, state.remaining, state.rotation_index, serial)
        if reason is not None:
            return Outlook([row], *standing)
        remaining = None if state.remaining is None else max(0, state.remaining - 1)
        index = state.rotation_index
        if inputs is None:
            return Outlook([_dispatched(row, state, index)], None, remaining, index + 1, serial)
        # With its own inputs it uses no turn of the rotation.
        row = msgspec.structs.replace(row, outcome="dispatched")
        return Outlook([row], None, remaining, index, serial, inputs=inputs)

    def _outlook_of_backfill(self, account: Account, slots: tuple[int, int], now: int) -> Outlook:
        state = account.state
        remaining, index = state.remaining, state.rotation_index
        rows: list[Row] = []
        for tick_at in state.instants(*slots):
            if remaining == 0:
                break
            if tick_at in account.slots:
                continue
            reason = self._objection(account, tick_at, (), now, "backfill")
            if reason in LEFT_OPEN:
                continue
            row = Row("slot", tick_at, "skipped", reason, due_at=tick_at, decided_at=now)
            if reason is None:
                row = _dispatched(row, state, index)
                index += 1
                remaining = None if remaining is None else remaining - 1
            rows.append(row)
        return Outlook(rows, None, remaining, index, state.overlap != "allow", is_backfill=True)

    # Comparing

    def _compare(self, schedule_id: str, account: Account, part: Part, outlook: Outlook) -> None:
        state, after = account.state, part.states[-1]
        name = state.key
        found = sorted((_unnamed(row) for row in part.rows), key=_order)
        wanted = sorted((_unnamed(row) for row in outlook.rows), key=_order)
        if found != wanted:
            raise Violation("ledger = instants", f"{name} {_difference(wanted, found)}")
        self._check_jobs(schedule_id, account, part, outlook)
        stands = (after.next_tick_at, after.remaining, after.rotation_index)
        should = (outlook.next_tick_at, outlook.remaining, outlook.rotation_index)
        if stands != should:
            names = "next tick, remaining, rotation index"
            raise Violation("the schedule moves on", f"{name}: {names} {stands}, not {should}")
        if after.next_tick_at is not None and after.due_at != after.due(after.next_tick_at):
            raise Violation("due when it ticks", f"{name}: {after}")
        if after.version != state.version or after.enabled != state.enabled:
            raise Violation("a tick is no edit", f"{name}: {after}")

    def _check_jobs(self, schedule_id: str, account: Account, part: Part, outlook: Outlook) -> None:
        """One for each tick that was dispatched, which says so; and no other."""
        state = account.state
        dispatched = [row for row in part.rows if row.outcome == "dispatched"]
        made = {(job_id, job.scheduled_at) for job_id, job in part.jobs.items()}
        if made != {(row.job_id, row.tick_at) for row in dispatched}:
            raise Violation("one job for a slot", f"{state.key}: {part.jobs} for {dispatched}")
        for row in dispatched:
            job = part.jobs[row.job_id or ""]
            args = _inputs(state, row, outlook)
            if job.args != args or job.state != "pending":
                raise Violation("the inputs of its turn", f"{state.key}: {job}, not {args}")
            if outlook.serial:
                self._limits.one_by_one[row.job_id or ""] = schedule_id
        if state.overlap == "cancel_other" and dispatched and not outlook.is_backfill:
            last = max(dispatched, key=_order).job_id
            left = ({*account.live} | {*part.jobs}) - {*part.ended}
            if left != {last}:
                message = f"{state.key}: {left} are left beside {last}"
                raise Violation("cancel_other leaves one", message)

    # Edits

    def _judge_edit(self, mark: Mark, account: Account, after: State) -> None:
        before = account.state
        if before.version == after.version:
            if mark.verb == "re_aim":
                self._check_aimed(mark, account, after)
            else:
                self._check_revived(mark, before, after)
            return
        if not after.enabled:
            if after.next_tick_at is not None or after.override is not None:
                raise Violation("the disabled have no next tick", f"{after.key}: {after}")
            return
        if mark.action in ("skip_next", "move_next"):
            same = msgspec.structs.replace(
                before, override=after.override, due_at=after.due_at, version=after.version
            )
            told = after.next_tick_at is not None and after.overridden(after.next_tick_at)
            if same != after or not told or after.due_at != after.due(told["tick_at"]):
                raise Violation("an override is for one tick", f"{before}, {after}")
            return
        times = (before.trigger, before.start_at, before.end_at)
        retimed = times != (after.trigger, after.start_at, after.end_at)
        refilled = before.next_tick_at is None and before.remaining != after.remaining
        if retimed or refilled or not before.is_awake:
            self._check_woken(mark, after, before if before.is_awake else None)
        elif after.next_tick_at != before.next_tick_at:
            raise Violation("an edit leaves the times alone", f"{before}, {after}")

    def _check_revived(self, mark: Mark, before: State, after: State) -> None:
        if mark.verb == "revive_schedules":
            stood = before.parked_tick
            told = None if stood is None else before.overridden(stood)
            # What an operator has said of that tick still holds.
            kept = (told.get("to") or stood, before.override) if told else (stood, None)
            if (after.next_tick_at, after.due_at, after.override) != (stood, *kept):
                raise Violation("it goes on where it stood", f"{before}, {after}")
        elif mark.verb == "compute_zoned" and before != after:
            raise Violation("zone data has not changed", f"{before}, {after}")

    def _check_aimed(self, mark: Mark, account: Account, after: State) -> None:
        """A clock was ahead: it stands at what is to come and has no row, which is earlier."""
        before = account.state
        tick = self._first_open(account, mark.now or 0)
        skipped = before.next_tick_at is not None and before.overridden(before.next_tick_at)
        override = None
        if skipped and "to" not in skipped:
            override = skipped | {"tick_at": tick}
        stands = msgspec.structs.replace(
            before, next_tick_at=tick, due_at=tick, override=after.override
        )
        told = None if after.override is None else _decoded(after.override)
        earlier = before.next_tick_at is None or (tick or FOREVER) < before.next_tick_at
        if stands != after or told != override or not earlier or not before.is_awake:
            raise Violation("aimed at what is to come", f"{before}, {after}, not {tick}")

    def _first_open(self, account: Account, now: int) -> int | None:
        tick = account.state.first_after(now)
        while tick is not None and tick in account.slots:
            tick = account.state.first_after(tick)
        return tick

    def _check_woken(self, mark: Mark, state: State, before: State | None = None) -> None:
        """It begins now: with the first tick that is still to come, and with no other.

        What an operator has said of that tick still holds, unless the time for it has passed.
        """
        awake = state.awake_at or 0
        if not (mark.now or 0) <= awake <= self._latest_ever():
            raise Violation("it counts from now", f"{state.key}: {awake}, at {mark.now}")
        at_once = mark.verb == "add_schedule" and state.key in self.at_once
        wanted = None if state.remaining == 0 else state.first_after(awake - at_once)
        stands = (state.next_tick_at, state.due_at, state.override)
        told = None if before is None or wanted is None else before.overridden(wanted)
        if told and (told.get("to") is None or told["to"] > awake):
            kept = (wanted, told.get("to") or wanted, before.override if before else None)
        else:
            kept = (wanted, wanted, None)
        if stands != kept:
            raise Violation("it counts from now", f"{state.key}: {stands}, not {wanted}")

    # The end

    def check_end(self, now: int) -> None:
        """Nothing is overdue, and the tables are what the book says."""
        self.sync()
        for schedule_id, account in self.accounts.items():
            state = account.state
            if state.parked_at is not None or (state.due_at is not None and state.due_at <= now):
                raise Violation("nothing is overdue", f"{state.key} at {now}: {state}")
            if state.enabled and state.remaining != 0:
                self._check_aim(account, now)
            self._check_ledger(schedule_id, account)
        stored = {row[0] for row in self.db.execute("SELECT id FROM duly_schedules")}
        if stored != self.accounts.keys():
            raise Violation("the book is the truth", f"{stored ^ self.accounts.keys()}")

    def _check_aim(self, account: Account, now: int) -> None:
        """No clock that was ahead keeps a tick from it, unless that has a row."""
        tick, state = self._first_open(account, now), account.state
        # One that was moved to an earlier time, and missed then.
        gone = [
            row for row in account.rows.values() if row.kind == "missed" and row.tick_at == tick
        ]
        if any(row.decided_at <= now for row in gone):
            return
        if tick is not None and (state.next_tick_at or FOREVER) > tick:
            raise Violation("aimed at what is to come", f"{state.key} at {now}: {state}")

    def _check_ledger(self, schedule_id: str, account: Account) -> None:
        query = "SELECT kind, tick_at FROM duly_ticks WHERE schedule_id = ?"
        stored = set(self.db.execute(query, (schedule_id,)))
        if stored != account.rows.keys():
            difference = stored ^ account.rows.keys()
            raise Violation("the book is the truth", f"{account.state.key}: {difference}")


def _check_standing(state: State) -> None:
    """Every schedule that is enabled and has not ended has a next tick."""
    if not state.is_awake or state.remaining == 0 or state.next_tick_at is not None:
        return
    if state.first_after(state.awake_at or 0) is None or _is_at_its_end(state):
        return
    raise Violation("the awake have a next tick", f"{state}")


def _is_at_its_end(state: State) -> bool:
    return state.end_at is not None or state.timetable.at is not None


def _dispatched(row: Row, state: State, index: int) -> Row:
    entries = state.entries
    position = None if entries is None else index % len(entries)
    return msgspec.structs.replace(row, outcome="dispatched", rotation_index=position)


def _inputs(state: State, row: Row, outlook: Outlook) -> str:
    """The arguments of its job."""
    if outlook.inputs is not None:
        return msgspec.json.encode(outlook.inputs).decode()
    if state.entries is not None and row.rotation_index is not None:
        return msgspec.json.encode(state.entries[row.rotation_index]).decode()
    return state.args


def _missed(ticks: Sequence[int], slots: set[int], now: int) -> list[Row]:
    """One row for all of them whose slots are not taken."""
    left = [tick for tick in ticks if tick not in slots] if slots else ticks
    if not left:
        return []
    first, last, count = left[0], left[-1], len(left)
    row = Row("missed", last, "missed", due_at=last, decided_at=now, first_at=first, count=count)
    return [row]


def _unnamed(row: Row) -> Row:
    return msgspec.structs.replace(row, job_id=None)


def _order(row: Row) -> tuple[int, str]:
    return row.tick_at, row.kind


def _difference(wanted: Sequence[Row], found: Sequence[Row]) -> str:
    lacks = [row for row in wanted if row not in found]
    has = [row for row in found if row not in wanted]
    return f"lacks {lacks}, has {has}"
