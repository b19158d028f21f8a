"""What must be true of runs of workflows: each effect once, each wake in time, each replay alike.

Triggers write each change of a record and of an event into `sim_records`, in the transaction that
makes it. The rest is what steps and workflows themselves tell: when a body began, and what the code
was told.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from duly.ids import is_id
from duly.model.job import Claim, ErrorKind, Kind, State
from duly.model.workflow import StepKind, decode_waits, id_of_place
from tests.simulator.invariants import Ledger
from tests.simulator.log import Change, Story, Violation
from tests.simulator.programs import (
    AT_MOST_ONCE,
    FAIL_BY_THEMSELVES,
    MUTATIONS,
    SECOND_ATTEMPT,
    WORKFLOWS,
    Op,
    Value,
)

_COLUMNS = "job_id scope pos kind name state token attempt due_at".split()
_LIVE = "(SELECT token FROM duly_jobs WHERE id = NEW.job_id AND state = 'running')"
# Events that came in time, and were not read when the wait for them timed out.
_MISSED = """(SELECT count(*) FROM duly_events e WHERE e.job_id = NEW.job_id AND e.name = NEW.name
    AND e.taken_by IS NULL AND e.sent_at <= NEW.due_at)"""


def _recorded(op: str, event: str, was: str) -> str:
    values = ", ".join(f"NEW.{column}" for column in _COLUMNS)
    return f"""CREATE TRIGGER sim_steps_{event} AFTER {event} ON duly_steps BEGIN
        INSERT INTO sim_records (op, {", ".join(_COLUMNS)}, was, live, missed)
        VALUES ('{op}', {values}, {was}, {_LIVE}, {_MISSED}); END;"""


SCHEMA = f"""
CREATE TABLE sim_records (seq integer PRIMARY KEY, op text, {", ".join(_COLUMNS)}, was, live,
    missed);
{_recorded("record", "INSERT", "NULL")}
{_recorded("record", "UPDATE", "OLD.state")}
CREATE TRIGGER sim_events_sent AFTER INSERT ON duly_events BEGIN
    INSERT INTO sim_records (op, job_id, pos, name, state)
    VALUES ('sent', NEW.job_id, NEW.seq, NEW.name, NEW.payload); END;
CREATE TRIGGER sim_events_taken AFTER UPDATE ON duly_events BEGIN
    INSERT INTO sim_records (op, job_id, pos, name, state, was)
    VALUES ('taken', NEW.job_id, NEW.seq, NEW.name, NEW.taken_by, OLD.taken_by); END;
"""

FINAL = ("succeeded", "failed", "timed_out")
UNRECORDED = ("sleep", "chance", "bug")
"""Operations that leave no proof that they were passed."""
ON_PURPOSE = ("LookupError: a mistake in the workflow", "not in the history")


class Row(NamedTuple):
    """One row of `sim_records`."""

    seq: int
    op: str
    job_id: str
    scope: str
    pos: int
    kind: str
    name: str
    state: str
    token: int
    attempt: int
    due_at: int | None
    was: str | None
    live: int | None
    missed: int

    @property
    def place(self) -> tuple[str, str, int]:
        return self.job_id, self.scope, self.pos


class Book:
    """What is known of all runs."""

    def __init__(self, db: sqlite3.Connection, name: Callable[[str | None], str]) -> None:
        self._db = db
        self._name = name
        self.may_fail: set[str] = set()
        """Runs whose code has said that they fail."""
        self.decided: dict[tuple[str, str], bool] = {}
        """What was answered to those who decided approvals."""
        self.records: dict[tuple[str, str, int], Row] = {}
        self.effects: Counter[str] = Counter()
        self._steps: dict[str, tuple[str, str, int]] = {}
        """The places of steps by their ids."""
        self._sent: dict[tuple[str, int], tuple[str, Value]] = {}
        self._taken: dict[tuple[str, int], str] = {}
        self._told: dict[tuple[str, str], Value] = {}
        self._starts: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self._provisional: dict[tuple[str, int], str] = {}
        """The last step that the code was told of before it was recorded, by run and token."""
        self._ids: dict[str, str] = {}
        self._reached: dict[str, int] = {}
        self._returned: dict[tuple[str, int], Value] = {}
        self._seen = 0

    # What steps and workflows tell

    def plays(self, claim: Claim, build: str | None, begun_at: int) -> None:
        """The code of a run begins at the top."""
        self._same(claim.id, "begun_at", begun_at)
        query = "SELECT waits FROM duly_jobs WHERE id = ? AND token = ?"
        for (waits,) in self._db.execute(query, (claim.id, claim.token)).fetchall():
            if build in decode_waits(waits).builds:
                raise Violation(
                    "each build tries once", f"{build} has tried {self._name(claim.id)}"
                )

    def _same(self, run: str, what: str, value: Value) -> None:
        before = self._told.setdefault((run, what), value)
        if before != value:
            where = f"{self._name(run)} {what}"
            raise Violation("replays are alike", f"{where} is {value}, was {before}")

    def begins(self, tag: str, function: str, step_id: str, attempt: int, claim: Claim) -> None:
        """The body of an action begins."""
        self.sync()
        starts, claims = self._starts[tag], (attempt, claim.token)
        if starts and function in AT_MOST_ONCE:
            raise Violation("steps at most once", f"{tag} begins again, after {starts}")
        if claims in starts:
            raise Violation("one body for an attempt", f"{tag} begins {claims} twice")
        self._ids[tag] = step_id
        before = self._provisional.get((claim.id, claim.token))
        if before is not None and step_id != claim.id and self._is_provisional(before):
            raise Violation("durable before the next effect", f"{tag} begins, {before} is not")
        record = self.records.get(self._steps.get(step_id, ("", "", 0)))
        if record is not None and self._is_current(claim):
            if record.state in FINAL:
                raise Violation("steps are over", f"{tag} begins, but {record} is there")
            if record.state == "retrying" and attempt != record.attempt + 1:
                raise Violation("attempts of steps", f"{tag} begins {attempt} after {record}")
        starts.append(claims)

    def observes(self, claim: Claim, path: str, op: Op, value: Value) -> None:
        """The code was told how an operation went."""
        run = claim.id
        if op[0] == "step" and op[1] in AT_MOST_ONCE and self._is_provisional(f"{run} {path}"):
            # It is recorded with what comes next, and was nowhere if the process dies before.
            if path.isdecimal():
                self._provisional[run, claim.token] = f"{run} {path}"
            return
        self._same(run, f"{path} {op[0]}", value)
        self._judge(run, path, op, value)
        if path.isdecimal() and op[0] not in UNRECORDED:
            self._reached[run] = max(int(path), self._reached.get(run, -1))

    def _is_provisional(self, tag: str) -> bool:
        self.sync()
        record = self.records.get(self._steps.get(self._ids.get(tag, ""), ("", "", 0)))
        return record is None or record.state not in FINAL

    def suspends(self, claim: Claim, passed: set[str]) -> None:
        """The code waits, having passed these operations."""
        if not self._is_current(claim):
            return
        furthest = max((int(path) for path in passed if path.isdecimal()), default=-1)
        if furthest < self._reached.get(claim.id, -1):
            words = f"{self._name(claim.id)} waits behind {furthest}"
            raise Violation("what is over stays over", f"{words}, was at {self._reached[claim.id]}")

    def returns(self, claim: Claim, value: Value) -> None:
        """The code has come to its end."""
        self._returned[claim.id, claim.token] = value

    def result(self, run: str, token: int) -> Value:
        return self._returned.get((run, token))

    def _is_current(self, claim: Claim) -> bool:
        query = "SELECT 1 FROM duly_jobs WHERE id = ? AND token = ?"
        return bool(self._db.execute(query, (claim.id, claim.token)).fetchall())

    # How each operation may go: as it would undisturbed, but for what has happened to it

    def _judge(self, run: str, path: str, op: Op, value: Value) -> None:
        tag = f"{run} {path}"
        match op:
            case ["step" | "bare step", name]:
                right = self._is_right_step(tag, name, value)
            case ["tell_oneself", _]:
                right = value == ["tell_oneself", tag, 1]
            case ["job step", name]:
                right = value == ["failed", "canceled"] or self._is_right_step(tag, name, value)
            case ["event" | "bare event", name, *more]:
                in_vain = value == ["timed out"] and more not in ([], [None])
                right = in_vain or self._is_right_event(run, name, path, value)
            case ["approval", timeout]:
                answer = self.decided.get((run, f"approval {path}"))
                right = value == [False, True] if timeout is not None else False
                right = right or (value[1] is False and answer in (None, value[0]))
            case ["job", name, timeout]:
                right = value == ["failed", "canceled"] or self._is_right_step(tag, name, value)
                right = right or (timeout is not None and value == ["timed out"])
            case ["gather", _, *ops]:
                right = len(value) == len(ops)
                for number, (each, got) in enumerate(zip(ops, value, strict=False)):
                    self._judge_item(run, f"{path}/{number}", each, got)
            case ["first", *ops] if value[0] == "failed":
                right = any(each[0] == "bare step" for each in ops)
            case ["first", *ops]:
                right = 0 <= value[0] < len(ops)
                self._judge_item(run, f"{path}/{value[0]}", ops[value[0]], value[1])
            case _:
                right = True
        if not right:
            name = self._name(run)
            raise Violation("as if undisturbed", f"{name} {path} {op} came to {value}")

    def _judge_item(self, run: str, path: str, op: Op, value: Value) -> None:
        """Branches have told what they were told."""
        if op[0] in ("bare step", "bare event"):
            self._judge(run, path, op, value)

    def _is_right_step(self, tag: str, name: str, value: Value) -> bool:
        attempts = {attempt for attempt, _ in self._starts[tag]}
        if value == ["failed", "worker_lost"]:
            return name in AT_MOST_ONCE
        if name in FAIL_BY_THEMSELVES:
            return value == ["failed", "user"] and attempts == (
                {1, 2, 3} if name == "insist" else set()
            )
        attempt = 2 if name in SECOND_ATTEMPT else 1
        began = name in MUTATIONS or attempts == set(range(1, attempt + 1))
        return value == [name, tag, attempt] and began

    def _is_right_event(self, run: str, name: str, path: str, value: Value) -> bool:
        """It was sent to the run, and is not read twice."""
        self.sync()
        found = [
            (key, place)
            for key, place in self._taken.items()
            if key[0] == run and self._sent[key] == (name, value)
        ]
        if not found:
            return False
        ((key, _),) = found
        reader: str = self._told.setdefault((run, f"event {key[1]}"), path)
        return reader == path

    # What the database says

    def sync(self) -> None:
        """Take in what was committed since."""
        query = "SELECT * FROM sim_records WHERE seq > ? ORDER BY seq"
        touched: list[tuple[str, str, int]] = []
        for row in map(Row._make, self._db.execute(query, (self._seen,)).fetchall()):
            self._seen = row.seq
            match row.op:
                case "record":
                    self._record(row)
                    touched.append(row.place)
                case "sent":
                    payload = msgspec.json.decode(row.state)["payload"]
                    self._sent[row.job_id, row.pos] = row.name, payload
                case "taken":
                    if row.was is not None:
                        raise Violation("an event for one", f"{self._sent[row.job_id, row.pos]}")
                    self._taken[row.job_id, row.pos] = row.state
        for place in touched:
            self._check_wait(place)

    def _record(self, row: Row) -> None:
        where = f"{self._name(row.job_id)} {row}"
        if row.was is None and row.place in self.records:
            raise Violation("one record for a place", where)
        if row.was in FINAL:
            raise Violation("records are final", where)
        is_answer = (
            row.kind == StepKind.APPROVAL and row.was is not None and row.state == "succeeded"
        )
        if not is_answer and row.live != row.token:
            raise Violation("records are fenced", where)
        if row.kind == StepKind.EVENT and row.state == "timed_out" and row.missed:
            raise Violation("what came in time is read", where)
        self.records[row.place] = row
        if is_id(row.job_id):
            self._steps[id_of_place(*row.place)] = row.place

    def _check_wait(self, place: tuple[str, str, int]) -> None:
        record = self.records[place]
        if record.kind == StepKind.EVENT:
            job_id, scope, pos = place
            taken = [
                key for key, by in self._taken.items() if (key[0], by) == (job_id, f"{scope}/{pos}")
            ]
            if len(taken) != (record.state == "succeeded"):
                raise Violation("an event for one", f"{record} has {taken}")

    def check_effects(self) -> None:
        """Exactly one of each mutation that has succeeded, and none of any other."""
        self.sync()
        for step_id, count in self.effects.items():
            record = self.records.get(self._steps.get(step_id, ("", "", 0)))
            if count != 1 or record is None or record.state != "succeeded":
                raise Violation("one effect for a step", f"{count} of {record or step_id}")
        for place, record in self.records.items():
            succeeded = record.kind == StepKind.MUTATION and record.state == "succeeded"
            if succeeded and self.effects[id_of_place(*place)] != 1:
                raise Violation("one effect for a step", f"none of {record}")

    def check_waits(self, latest: int) -> None:
        """A run wakes when what it waits for has happened, and is held only for a reason."""
        query = """SELECT id, hold, run_at, waits, attempt, error_message FROM duly_jobs
            WHERE kind = 'workflow' AND state = 'pending'"""
        for job_id, hold, run_at, waits, attempt, message in self._db.execute(query).fetchall():
            name = self._name(job_id)
            if attempt:
                raise Violation("waiting costs no attempt", f"{name} has had {attempt}")
            if hold in ("error", "history") and not any(w in message for w in ON_PURPOSE):
                raise Violation("held for a reason", f"{name}: {message}")
            if hold is None and run_at > latest:
                self._check_asleep(job_id, run_at, waits)

    def _check_asleep(self, job_id: str, run_at: int, waits: str | None) -> None:
        for each in decode_waits(waits).waits:
            if each.until is not None and run_at > each.until:
                raise Violation("wakes in time", f"{self._name(job_id)} sleeps past {each}")
            match each.kind:
                case "event":
                    query = """SELECT 1 FROM duly_events
                        WHERE job_id = ? AND name = ? AND taken_by IS NULL"""
                case "approval":
                    query = """SELECT 1 FROM duly_steps
                        WHERE job_id = ? AND name = ? AND state <> 'waiting'"""
                case "job":
                    query = "SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM duly_jobs WHERE id = ?2)"
                case _:
                    continue
            if self._db.execute(query, (job_id, each.name)).fetchall():
                raise Violation("no wake is lost", f"{self._name(job_id)} waits for {each}")


class RecordLedger(Ledger):
    """The ledger of jobs, of which some are runs of workflows."""

    book: Book
    _children: dict[tuple[str, str], str]
    """Steps that run as jobs: their arguments name the place, so no two are alike."""

    def open_book(self) -> Book:
        self.book, self._children = Book(self.db, self.name), {}
        return self.book

    def check_state(self) -> None:
        super().check_state()
        self.book.check_effects()
        self.book.check_waits(self._latest_ever())

    def _update(self, new: Change) -> None:
        now = self.jobs[new.id].now
        if new.kind != Kind.WORKFLOW or (now.token, new.state) != (new.token, State.RUNNING):
            super()._update(new)
        # Otherwise it has mail, perhaps from a child that ends in the same transaction.

    def _insert(self, new: Change) -> None:
        super()._insert(new)
        if new.function in (*MUTATIONS, *AT_MOST_ONCE, *WORKFLOWS) and new.parent_id is not None:
            same = self._children.setdefault((new.function, new.args), new.id) == new.id
            self._expect(same, "one job for a step", new, "is another one")

    def _effect(self, row: Change) -> None:
        if row.id in self.jobs:
            super()._effect(row)
        else:
            self.book.effects[row.id] += 1

    def _check_effects(self, story: Story) -> None:
        if story.now.function in MUTATIONS:
            wanted = int(story.now.state == State.SUCCEEDED)
            self._expect(
                story.effects == wanted, "exactly one effect", story.now, f"has {story.effects}"
            )
        else:
            super()._check_effects(story)

    def _check_constants(self, old: Change, new: Change) -> None:
        if old.kind == Kind.WORKFLOW and new.expires_at is None:
            # It has begun, so it cannot expire any more.
            old = old._replace(expires_at=None)
        super()._check_constants(old, new)

    def _check_claim(self, old: Change, new: Change) -> None:
        if new.kind == Kind.WORKFLOW:
            self._expect(new.attempt == 1, "attempts", new, f"after {old.attempt}")
            self._expect(old.run_at <= self._latest_ever(), "not before it is due", new)
            # When it started is when it was claimed first.
            old = old._replace(run_at=min(old.run_at, new.started_at or 0))
        super()._check_claim(old, new)

    def _check_end(self, new: Change) -> None:
        if new.function not in (*WORKFLOWS, *MUTATIONS, *AT_MOST_ONCE):
            super()._check_end(new)
            return
        story = self.jobs[new.id]
        match new.state, new.error_kind:
            case State.SUCCEEDED, None:
                if new.kind == Kind.WORKFLOW:
                    self._check_result(new)
            case State.CANCELED, None:
                self._expect(self._was_asked_for(new), "cancels are asked for", new, "was not")
            case State.CANCELED, ErrorKind.EXPIRED:
                self._expect(story.begun is None, "only what never started expires", new)
            case State.FAILED, ErrorKind.TIMEOUT:
                limit = (new.started_at or 0) + (new.timeout_ms or 0)
                in_time = new.timeout_ms is None or self._latest_ever() < limit
                self._expect(not in_time, "only what is late times out", new)
            case State.FAILED, ErrorKind.USER:
                self._expect(new.id in self.book.may_fail, "no run fails by itself", new)
            case State.FAILED, ErrorKind.WORKER_LOST:
                self._expect(new.kind == Kind.ACTION, "no crash fails a run", new)
            case _:
                self._expect(False, "no crash fails a run", new)

    def _check_result(self, new: Change) -> None:
        query = "SELECT result FROM duly_history WHERE id = ?"
        ((result,),) = self.db.execute(query, (new.id,)).fetchall() or [(None,)]
        if result is not None:
            stored, told = msgspec.json.decode(result), self.book.result(new.id, new.token)
            self._expect(stored == told, "as if undisturbed", new, f"has {stored}, not {told}")

    def _was_asked_for(self, new: Change) -> bool:
        who, _, job_id = (new.canceled_by or "").partition(":")
        if who == "job" and self.jobs[job_id].now.kind == Kind.WORKFLOW:
            return new.parent_id == job_id
        if who == "parent" and self.jobs[job_id].now.kind == Kind.WORKFLOW:
            return not self.jobs[job_id].live or self.jobs[job_id].place != "jobs"
        return super()._was_asked_for(new)
