"""Mutants without a guard of the protocol; the simulator must notice each.

A mutant is the product without one of its guards. Each must be convicted, by the simulator within
a bounded number of seeds, or by a probe that tries what the guard forbids. A mutant that survives
shows a guard that nothing tests, or a simulator that has gone blind.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from duly.calls import batches, verbs
from duly.errors import StoreUnavailable
from duly.functions import new_job
from duly.functions.function import Call
from duly.ids import new_id
from duly.model import job as job_model
from duly.model.job import (
    CRASHES_BEFORE_ALONE,
    CRASHES_UNTIL_CONVICTED,
    Claim,
    ErrorKind,
    Finish,
    KeyedJob,
    Kind,
    Lost,
    NewJob,
    Raised,
    Settlement,
    TrackedJob,
    finished,
    settle_lost,
)
from duly.model.keys import KeyRoom, Rules
from duly.runtime import heartbeat, outbox, outcomes, slots, worker
from duly.runtime.execute import Attempt, MutationRunner
from duly.runtime.outcomes import Outcomes
from duly.runtime.slots import Slots
from duly.runtime.teams import ThreadTeam
from duly.runtime.worker import Worker
from duly.store import limits, migrate, steps
from duly.store.base import Blame, ClaimRequest
from duly.store.jobs import holds, rescue
from duly.store.jobs.claim import CLAIM, PICK
from duly.store.jobs.enqueue import LOCK_PARENT
from duly.store.jobs.finish import AGAIN, FINISH, FORGET_FINISHED
from duly.store.jobs.retention import DELETE_FINISHED
from duly.store.jobs.run import DUE_ALONE, START_BODY
from duly.store.limits import (
    CLAIM_PICKED,
    FORGET_KEYS,
    FORGET_STARTS,
    LINES,
    PICK_ALONE,
    QUEUE_RULES,
    SLOTS_AND_STARTS,
    WAITERS,
)
from duly.store.session import Session
from duly.store.sqlite import (
    SQL,
    SqliteMutationLane,
    SqliteSession,
    SqliteStore,
    SqliteTx,
    commits,
)
from duly.store.statements import Statement
from duly.store.steps import CHILD_IDS, DEBOUNCE, KEEP_KEY, PASS_KEY
from duly.store.table import writes
from duly.store.workers import DELETE_WORKER
from tests.simulator.almanac import Almanac
from tests.simulator.log import Violation
from tests.simulator.outages import simulate_outages
from tests.simulator.promises import LIMITS, NARROW
from tests.simulator.records import RecordLedger
from tests.simulator.standoff import simulate_standoff, simulate_wrong_times
from tests.simulator.world import Report, simulate, template

MOST_SEEDS = 300

Plant = Callable[[], AbstractContextManager[None]]


class Verdict(NamedTuple):
    """Who convicted a mutant, and of what."""

    where: str
    violation: Violation


class Mutant(NamedTuple):
    """One guard taken away.

    `probe` is SQL that the guard refuses, where the simulator has no way to try it. `seed` is one
    that was seen to convict, and is tried first: a hint that saves time, and may grow stale. `play`
    says in what kind of world.
    """

    name: str
    plant: Plant
    probe: str | None
    seed: int
    play: Callable[[int], Report]

    def convict(self, seeds: Iterable[int] | None = None) -> Verdict | None:
        """The first conviction, or None if the mutant survives; by seeds of one's own, or known."""
        with self.plant():
            if self.probe is not None:
                return _verdict("probe", try_out(self.probe))
            for seed in (self.seed, *range(MOST_SEEDS)) if seeds is None else seeds:
                verdict = _verdict(f"seed {seed}", self.play(seed).violation)
                if verdict is not None:
                    return verdict
        return None


def _verdict(where: str, violation: Violation | None) -> Verdict | None:
    return None if violation is None else Verdict(where, violation)


MUTANTS: list[Mutant] = []


def mutant(
    name: str,
    *,
    probe: str | None = None,
    seed: int = 0,
    play: Callable[[int], Report] = simulate,
    into: list[Mutant] = MUTANTS,
) -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        into.append(Mutant(name, plant, probe, seed, play))
        return plant

    return add


# How a guard is taken away -------------------------------------------------------------------


@contextmanager
def rewritten(statement: Statement, *changes: tuple[str, str]) -> Iterator[None]:
    """Another text of one of the store's statements."""
    text = SQL[statement]
    for old, new in changes:
        assert old in text, f"{old!r} is not in {text!r}"
        text = text.replace(old, new)
    with mock.patch.dict(SQL, {statement: text}):
        yield


def claiming(change: tuple[str, str]) -> AbstractContextManager[None]:
    """Another text of both statements that claim."""
    return both(rewritten(CLAIM, change), rewritten(CLAIM_PICKED, change))


@contextmanager
def reworded(*changes: tuple[str, str]) -> Iterator[None]:
    """Another text of the schema."""
    steps = migrate.migrations("sqlite")
    for old, new in changes:
        assert any(old in step.text for step in steps), f"the schema has no {old!r}"
        steps = [msgspec.structs.replace(s, text=s.text.replace(old, new)) for s in steps]
    with mock.patch.object(migrate, "migrations", return_value=steps):
        yield


def without(*fragments: str) -> AbstractContextManager[None]:
    """A schema that lacks some of its constraints, indexes or triggers."""
    return reworded(*((fragment, "") for fragment in fragments))


def patched(owner: Any, name: str, value: Any) -> AbstractContextManager[None]:
    return mock.patch.object(owner, name, value)


@contextmanager
def both(*plants: AbstractContextManager[None]) -> Iterator[None]:
    with ExitStack() as stack:
        for plant in plants:
            stack.enter_context(plant)
        yield


PARITY = ",\n    CHECK ((state = 'running') = (token % 2 = 1))"
WAS_RUNNING = """,
    -- Only a running job can succeed or fail.
    CHECK (state = 'canceled' OR token % 2 = 1)"""


def trigger(name: str) -> str:
    """The text of a trigger of the schema."""
    text = "".join(step.text for step in migrate.migrations("sqlite"))
    begin = text.index(f"CREATE TRIGGER {name}")
    return text[begin : text.index("END;", begin) + len("END;")]


IDLE = (trigger("duly_workers_idle"), "DROP TRIGGER duly_workers_idle;\n")
"""A later migration makes it anew."""


def try_out(script: str) -> Violation | None:
    """Do to a database what its schema forbids; the ledger convicts whatever got through."""
    Violation.forget()
    with tempfile.TemporaryDirectory(prefix="duly-probe-") as folder:
        path = Path(folder, "duly.db")
        path.write_bytes(template())
        db = sqlite3.connect(path, isolation_level=None)
        ledger = RecordLedger(path, lambda: 0)
        ledger.open_book()
        try:
            db.executescript(SEED_ROWS)
            db.executescript(script)
            ledger.check_state()
            Almanac(ledger.db, ledger.limits, lambda: 0).sync()
        except sqlite3.IntegrityError:
            return None
        except Violation as violation:
            return violation
        finally:
            ledger.close()
            db.close()
    return None


SEED_ROWS = """
INSERT INTO duly_workers (id, app, host, pid, functions, slots, started_at)
    VALUES ('w', 'app', 'host', 1, '[]', 1, 0);
INSERT INTO duly_jobs (id, function, kind, queue, priority, created_at, scheduled_at, run_at, args)
    VALUES ('one', 'poke', 'action', 'default', 5, 0, 0, 0, '{}'),
           ('two', 'poke', 'action', 'default', 5, 0, 0, 0, '{}');
UPDATE duly_jobs SET state = 'running', token = 1, attempt = 1, worker_id = 'w', started_at = 0
    WHERE id = 'two';
"""


# The fence -----------------------------------------------------------------------------------


@mutant("a finish that does not compare the token", seed=32)
def unfenced_finish() -> AbstractContextManager[None]:
    return both(
        rewritten(FINISH, ("AND token = ?", "AND ? > 0")),
        rewritten(FORGET_FINISHED, ("AND token = ?", "AND ? > 0")),
    )


@mutant("a retry, rescue or give-back that does not compare the token", seed=39)
def unfenced_again() -> AbstractContextManager[None]:
    return rewritten(AGAIN, ("AND token = :token", ""))


@mutant("a mutation that ignores that its fence found no row", seed=2)
def ignored_fence() -> AbstractContextManager[None]:
    real = SqliteMutationLane.finish

    def finish(self: SqliteMutationLane, *args: Any) -> bool:
        real(self, *args)
        return True

    return patched(SqliteMutationLane, "finish", finish)


@mutant("a claim that does not bump the token")
def claim_without_bump() -> AbstractContextManager[None]:
    return claiming(("token = token + 1", "token = token"))


@mutant("a claim that does not bump the token, in a schema without parity")
def claim_without_bump_or_parity() -> AbstractContextManager[None]:
    return both(claim_without_bump(), without(PARITY))


@mutant("a rescue, retry or give-back that does not bump the token, in a schema without parity")
def again_without_bump() -> AbstractContextManager[None]:
    return both(rewritten(AGAIN, ("token = token + 1", "token = token")), without(PARITY))


@mutant(
    "a schema that does not tie the token's parity to the state",
    probe="UPDATE duly_jobs SET state = 'running', worker_id = 'w' WHERE id = 'one'",
)
def no_parity() -> AbstractContextManager[None]:
    return without(PARITY)


# The claim -----------------------------------------------------------------------------------


@mutant("a claim that takes running jobs too")
def claims_running() -> AbstractContextManager[None]:
    return rewritten(PICK, ("state = 'pending' AND", ""))


@mutant("a claim that takes expired jobs")
def claims_expired() -> AbstractContextManager[None]:
    return rewritten(PICK, ("expires_at IS NULL OR", "1 OR"))


@mutant("a claim that takes jobs before they are due")
def claims_early() -> AbstractContextManager[None]:
    return rewritten(PICK, ("AND run_at <= :now", "AND run_at <= :now + 1000"))


@mutant("a claim that does not look for paused queues", seed=20)
def claims_paused() -> AbstractContextManager[None]:
    return rewritten(QUEUE_RULES, ("paused_at IS NOT NULL", "paused_at IS NULL"))


@mutant("a claim that does not count the attempt")
def uncounted_attempt() -> AbstractContextManager[None]:
    return claiming(("attempt = attempt + 1", "attempt = attempt"))


@mutant("a job that crashed two workers is claimed whether or not it is due or paused")
def alone_early() -> AbstractContextManager[None]:
    early, paused = ("AND run_at <= :now", ""), ("paused_at IS NOT NULL", "0")
    return both(rewritten(PICK_ALONE, early, paused), rewritten(DUE_ALONE, early, paused))


@mutant("bodies start before the claim is committed")
def start_before_commit() -> AbstractContextManager[None]:
    real = SqliteSession.claim

    def exchange(
        self: Any, settlements: list[Settlement], request: ClaimRequest | None, now: int
    ) -> tuple[set[str], tuple[()]]:
        def both_in_one(session: SqliteSession) -> set[str]:
            settled = session.settle(settlements, now) if settlements else set()
            if request is not None:
                self.process.worker._start(real(session, request, now))
                self.process.run_actions(lambda bodies: bodies[-1])
            return settled

        return self.write(both_in_one), ()

    return patched(SqliteStore, "exchange", exchange)


# Mutations -----------------------------------------------------------------------------------


@mutant("a mutation whose effects are committed apart from its success")
def effect_apart() -> AbstractContextManager[None]:
    real = SqliteMutationLane.finish

    def finish(self: SqliteMutationLane, *args: Any) -> bool:
        with self._ours():
            self.raw.execute("COMMIT")
            self.raw.execute("BEGIN IMMEDIATE")
        return real(self, *args)

    return patched(SqliteMutationLane, "finish", finish)


@mutant("a body may end its transaction: no authorizer", seed=3)
def no_authorizer() -> AbstractContextManager[None]:
    return patched(SqliteMutationLane, "authorize", lambda self, *_: sqlite3.SQLITE_OK)


@mutant("a body that lost its transaction goes on in autocommit", seed=3)
def autocommit() -> AbstractContextManager[None]:
    return patched(SqliteTx, "_open", property(lambda self: self._session))


@mutant("a finish that does not look whether the transaction is still there", seed=4)
def finish_anyway() -> AbstractContextManager[None]:
    def finish(self: SqliteMutationLane, claim: Any, result: str | None, now: int) -> bool:
        with self._ours():
            done = finished(claim, "succeeded", result=result)
            return bool(self.session.settle([done], now))

    def commit(self: SqliteMutationLane) -> None:
        self._in_body = False
        if self.raw.in_transaction:
            self.raw.execute("COMMIT")
        self._end_turn()

    return both(
        patched(SqliteMutationLane, "finish", finish), patched(SqliteMutationLane, "commit", commit)
    )


@mutant("members of a group without a savepoint each", seed=1)
def no_savepoints() -> AbstractContextManager[None]:
    return both(
        patched(SqliteMutationLane, "enter", lambda self: None),
        patched(SqliteMutationLane, "leave", lambda self: None),
        patched(SqliteMutationLane, "undo", lambda self: True),
    )


@mutant("a group that fails is judged as everybody's failure", seed=3)
def no_rerun() -> AbstractContextManager[None]:
    real = MutationRunner._run_shared

    def run_shared(self: MutationRunner, attempts: list[Attempt]) -> Any:
        ends, reached = real(self, attempts)
        failed = Raised(ErrorKind.USER, "the group failed")
        return dict.fromkeys(attempts[:reached], failed) | ends, reached

    return patched(MutationRunner, "_run_shared", run_shared)


@mutant("a transaction that could not begin is the body's failure", seed=25)
def begin_is_judged() -> AbstractContextManager[None]:
    return patched(SqliteMutationLane, "blame", lambda self, error: Blame.BODY)


@mutant("a mutation may cancel its own ancestor, and with it itself", seed=9)
def cancels_itself() -> AbstractContextManager[None]:
    return patched(SqliteTx, "lock_running", lambda self, *fence: True)


@mutant("writes that share a commit without a savepoint each", seed=3)
def no_savepoints_for_writes() -> AbstractContextManager[None]:
    def one_of_many(session: SqliteSession, ticket: Any) -> bool:
        try:
            ticket.value = ticket.work(session)
        except Exception as error:
            ticket.error = error
        return True

    return patched(commits, "_one_of_many", one_of_many)


# Outcomes ------------------------------------------------------------------------------------


@mutant("a finished job keeps its live row")
def live_row_stays() -> AbstractContextManager[None]:
    return rewritten(FORGET_FINISHED, ("WHERE", "WHERE 0 AND"))


def late_end(self: SqliteSession, finishes: list[Finish]) -> set[str]:
    settled = set()
    for f in finishes:
        if self.many(FORGET_FINISHED, [(f.id, f.token)]):
            settled.add(f.id)
        else:
            values = (f.state, f.result, f.id)
            self._plain("UPDATE duly_history SET state = ?, result = ? WHERE id = ?", values)
    return settled


@mutant("a late result overwrites a timeout or cancel")
def late_result() -> AbstractContextManager[None]:
    return patched(SqliteSession, "_sort_out", late_end)


@mutant("a late result overwrites a timeout or cancel, in a schema that lets it")
def late_result_stored() -> AbstractContextManager[None]:
    return both(late_result(), without(trigger("duly_history_final")))


@mutant(
    "a history that can be changed",
    probe="""INSERT INTO duly_history (id, function, kind, queue, priority, state, token, attempt,
            crashes, system_retries, created_at, scheduled_at, run_at, completed_at, args)
        SELECT id, function, kind, queue, priority, 'canceled', token, attempt, crashes,
            system_retries, created_at, scheduled_at, run_at, 0, args FROM duly_jobs
        WHERE id = 'one';
        DELETE FROM duly_jobs WHERE id = 'one';
        UPDATE duly_history SET state = 'failed' WHERE id = 'one'""",
)
def history_changes() -> AbstractContextManager[None]:
    return without(trigger("duly_history_final"), WAS_RUNNING)


@mutant("an ended attempt drops whatever attempt of its job is held now", seed=14)
def note_by_id() -> AbstractContextManager[None]:
    def note(self: Outcomes, batch: list[Settlement], settled: set[str]) -> None:
        for settlement in batch:
            self._held.pop(settlement.id, None)

    return patched(Outcomes, "note", note)


@mutant("a full disk is taken for a result that cannot be stored", seed=14)
def full_disk() -> AbstractContextManager[None]:
    return both(
        *(
            patched(module, "OUTAGE", StoreUnavailable)
            for module in (outbox, outcomes, slots, worker)
        )
    )


# Cancel --------------------------------------------------------------------------------------


@mutant("children are stored whether or not the parent still runs")
def parent_not_locked() -> AbstractContextManager[None]:
    return rewritten(
        LOCK_PARENT,
        ("FROM duly_jobs WHERE id = :id", "WHERE :id"),
        ("token = :token", ":token"),
    )


@mutant("children are stored for an attempt that was taken away", seed=256)
def parent_locked_by_id() -> AbstractContextManager[None]:
    return rewritten(LOCK_PARENT, ("AND token = :token", ""))


@mutant("a cancel that leaves the descendants alone", seed=11)
def descendants_stay() -> AbstractContextManager[None]:
    return rewritten(CHILD_IDS, ("WHERE", "WHERE 0 AND"))


# Workers -------------------------------------------------------------------------------------


def forget_worker(self: Session, worker_id: str, *_: Any) -> int:
    self.run(DELETE_WORKER, {"id": worker_id})
    return 0


@mutant("a rescue that removes the worker and forgets its jobs")
def jobs_forgotten() -> AbstractContextManager[None]:
    return patched(rescue, "rescue", forget_worker)


@mutant("a rescue that removes the worker and forgets its jobs, in a schema that lets it")
def jobs_orphaned() -> AbstractContextManager[None]:
    return both(jobs_forgotten(), without(*IDLE))


@mutant(
    "a schema in which a job can run under no worker",
    probe="""UPDATE duly_jobs SET state = 'running', token = 1, attempt = 1, started_at = 0,
        worker_id = 'nobody' WHERE id = 'one'""",
)
def runs_under_nobody() -> AbstractContextManager[None]:
    return without(trigger("duly_jobs_worker_exists"))


@mutant(
    "a schema in which a worker with running jobs can be deleted",
    probe="DELETE FROM duly_workers",
)
def worker_deleted() -> AbstractContextManager[None]:
    return without(*IDLE)


@mutant("a living worker is taken for dead")
def living_rescued() -> AbstractContextManager[None]:
    def is_dead(self: SqliteStore, worker_id: str) -> bool:
        return worker_id not in self._worker_locks

    return patched(SqliteStore, "is_dead", is_dead)


@mutant("a rescue that runs actions again", seed=3)
def actions_again() -> AbstractContextManager[None]:
    def judge(job: Lost, now: int, chance: float, witnessed: bool) -> Settlement:
        job = msgspec.structs.replace(job, kind=Kind.MUTATION)
        return settle_lost(job, now, chance, witnessed=witnessed)

    return patched(heartbeat, "settle_lost", judge)


@mutant("a job beside which another one crashed the worker is convicted", seed=1)
def bystanders() -> AbstractContextManager[None]:
    def judge(job: Lost, now: int, chance: float, witnessed: bool) -> Settlement:
        if job.crashes > 0:
            job, witnessed = msgspec.structs.replace(job, crashes=CRASHES_UNTIL_CONVICTED), True
        return settle_lost(job, now, chance, witnessed=witnessed)

    return patched(heartbeat, "settle_lost", judge)


@mutant("a job whose own process died is convicted though nobody saw why", seed=5)
def unwitnessed() -> AbstractContextManager[None]:
    def judge(job: Lost, now: int, chance: float, witnessed: bool) -> Settlement:
        alone = job.crashes >= CRASHES_BEFORE_ALONE
        return settle_lost(job, now, chance, witnessed=alone)

    return patched(heartbeat, "settle_lost", judge)


@mutant("one crash in a process of its own convicts a job", seed=1)
def convicted_at_once() -> AbstractContextManager[None]:
    return patched(job_model, "CRASHES_UNTIL_CONVICTED", 3)


@mutant("a claim whose answer was lost is never given back", play=simulate_outages)
def unknown_kept() -> AbstractContextManager[None]:
    return patched(Worker, "_give_back_unknown", lambda self, unknown: None)


@mutant("a worker that could not deregister keeps its lock", seed=189)
def lock_kept() -> AbstractContextManager[None]:
    def deregister(self: SqliteStore, worker_id: str, now: int) -> None:
        self.write(lambda s: rescue.deregister(s, worker_id, now))
        self._drop_lock(worker_id)

    return patched(SqliteStore, "deregister", deregister)


@mutant("a function that is known again does not free its jobs", seed=90)
def held_for_ever() -> AbstractContextManager[None]:
    return both(
        patched(SqliteStore, "release_known", lambda self: 0),
        patched(holds, "release_for", lambda store, functions: None),
    )


# Retention -----------------------------------------------------------------------------------


@mutant("retention that trusts the order of the clock", seed=5)
def retention_by_order() -> AbstractContextManager[None]:
    last = "seq <= (SELECT max(seq) FROM duly_history WHERE id IN"
    return rewritten(DELETE_FINISHED, ("id IN", last), ("(:ids))", "(:ids)))"))


@mutant("retention that keeps no job of a function")
def newest_lost() -> AbstractContextManager[None]:
    return patched(SqliteSession, "_is_newest", lambda self, job: False)


# Limits --------------------------------------------------------------------------------------


@mutant("a body that has ended keeps its slot")
def slot_kept() -> AbstractContextManager[None]:
    return both(
        patched(Slots, "release_ended", lambda self: None), patched(Slots, "ended", lambda self: ())
    )


@mutant("a rescue that leaves the slots of the dead")
def slots_of_the_dead() -> AbstractContextManager[None]:
    return patched(limits, "release_all", lambda *_: None)


@mutant("a worker goes although bodies that hold slots go on", seed=60)
def row_gone_too_soon() -> AbstractContextManager[None]:
    return patched(Slots, "counted_bodies", lambda self: 0)


@mutant("a worker that stops counts bodies whose end it could not store", play=simulate_outages)
def row_kept_for_nobody() -> AbstractContextManager[None]:
    return patched(Slots, "counted_bodies", lambda self: len(self._held))


@mutant("a claim whose answer was lost keeps its slots", play=simulate_outages)
def unknown_slots() -> AbstractContextManager[None]:
    return patched(Slots, "give_back_unknown", lambda self, worker_id: None)


@mutant("a slot is freed with the end of its job, while the body goes on", seed=28)
def freed_with_the_job() -> AbstractContextManager[None]:
    real = SqliteSession.settle

    def settle(self: SqliteSession, settlements: list[Settlement], now: int) -> set[str]:
        settled = real(self, settlements, now)
        limits.release(self, [(s.id, s.token) for s in settlements], now)
        return settled

    return patched(SqliteSession, "settle", settle)


@mutant("a slot is freed with the cancel of its job, while the body goes on", seed=33)
def freed_with_the_cancel() -> AbstractContextManager[None]:
    return reworded((trigger("duly_jobs_hook"), FREED_WITH_THE_ROW + trigger("duly_jobs_hook")))


FREED_WITH_THE_ROW = """CREATE TRIGGER IF NOT EXISTS sim_freed AFTER INSERT ON duly_history
WHEN NEW.state = 'canceled' BEGIN DELETE FROM duly_slots WHERE job_id = NEW.id; END;
"""


SLOT_KEY = ",\n    PRIMARY KEY (key, slot)"


def _look_before_the_lock(self: SqliteStore, settlements: Any, request: Any, now: int) -> Any:
    keys = (*LIMITS, f"queue:{NARROW}")
    seen = self.read(lambda s: limits.rooms(s, keys, now)) if request else {}

    def rooms(session: Session, wanted: Any, now: int) -> dict[str, KeyRoom]:
        return {key: seen.get(key) or KeyRoom() for key in wanted}

    with mock.patch.object(limits, "rooms", rooms):
        return REAL_EXCHANGE(self, settlements, request, now)


REAL_EXCHANGE = SqliteStore.exchange


@mutant("what a limit leaves is looked up before the lock", seed=12)
def unlocked_look() -> AbstractContextManager[None]:
    return patched(SqliteStore, "exchange", _look_before_the_lock)


@mutant("what a limit leaves is looked up before the lock, and a slot can be taken twice", seed=12)
def unlocked_look_stored() -> AbstractContextManager[None]:
    return both(unlocked_look(), without(SLOT_KEY))


@mutant(
    "a schema in which two can have one slot",
    probe="""INSERT INTO duly_slots VALUES ('one', 1, 'one', 1, 'w'), ('one', 1, 'two', 1, 'w')""",
)
def two_in_a_slot() -> AbstractContextManager[None]:
    return without(SLOT_KEY)


@mutant("a limited queue is like any other", seed=3)
def queue_limit_ignored() -> AbstractContextManager[None]:
    return rewritten(QUEUE_RULES, ("paused_at, at_once", "paused_at, NULL"))


@mutant("a job that runs alone needs no slot", seed=8)
def alone_without_slot() -> AbstractContextManager[None]:
    def start_alone(
        session: Session, job_id: str, worker_id: str, functions: Sequence[str], now: int
    ) -> Claim | None:
        which = {"id": job_id, "functions": session.array(functions), "now": now}
        if not session.run(PICK_ALONE, which):
            return None
        which = {"ids": session.array([job_id]), "worker": worker_id, "now": now}
        return Claim(*session.run(CLAIM_PICKED, which)[0])

    return patched(SqliteStore, "claim_alone", writes(start_alone))


@mutant("more sync actions are claimed than there are threads", seed=2)
def threads_ignored() -> AbstractContextManager[None]:
    return patched(ThreadTeam, "free", property(lambda _: 1000))


@mutant("nobody frees those who wait for a key")
def nobody_admitted() -> AbstractContextManager[None]:
    return patched(limits, "admit", lambda *_: ([], 0))


@mutant("a free slot waits for paused jobs that stand first in line", play=simulate_standoff)
def paused_first() -> AbstractContextManager[None]:
    return rewritten(LINES, ("paused_at IS NOT NULL", "name IS NULL"))


@mutant("a slot that is handed over is not taken")
def handed_over_without_slot() -> AbstractContextManager[None]:
    real = limits.Starting.hand_over

    def hand_over(self: limits.Starting, request: ClaimRequest) -> tuple[list[Claim], bool]:
        with mock.patch.object(KeyRoom, "take", return_value=None):
            return real(self, request)

    return patched(limits.Starting, "hand_over", hand_over)


@mutant("an expired job is handed a slot", play=simulate_wrong_times)
def handed_over_after_expiry() -> AbstractContextManager[None]:
    return rewritten(WAITERS, ("expires_at > :now", "expires_at > 0"))


@mutant("a job that is not due is handed a slot", play=simulate_wrong_times)
def handed_over_early() -> AbstractContextManager[None]:
    return rewritten(WAITERS, ("run_at <= :now AND ", ""))


@mutant("starts count for less than the time of their rate", seed=9)
def short_window() -> AbstractContextManager[None]:
    return rewritten(SLOTS_AND_STARTS, ("expires_at > :now", "expires_at > :now + 1000"))


@mutant("starts are forgotten while they count", seed=9)
def starts_forgotten() -> AbstractContextManager[None]:
    return rewritten(FORGET_STARTS, ("expires_at <= :now", "expires_at <= :now + 5000"))


@mutant("a rate counts whole windows, not sliding ones")
def fixed_windows() -> AbstractContextManager[None]:
    def starts_at(self: KeyRoom, rules: Rules, now: int) -> int:
        if rules.rate is None or rules.per is None:
            return now
        begin = now - now % rules.per
        started = sum(start >= begin for start in self._starts)
        return now if started < rules.rate else begin + rules.per

    return patched(KeyRoom, "starts_at", starts_at)


# Keys ----------------------------------------------------------------------------------------

INDEX = "CREATE UNIQUE INDEX duly_jobs_{0} ON duly_jobs ({0}_key) WHERE {0}_key IS NOT NULL;"


@mutant("a schema without the key of those that have not ended", seed=8)
def no_unique_index() -> AbstractContextManager[None]:
    return without(INDEX.format("unique"))


@mutant("a schema without the key of those that have not started", seed=1)
def no_pending_index() -> AbstractContextManager[None]:
    return without(INDEX.format("pending"))


@mutant("a job that starts keeps the key of those that have not", seed=33)
def pending_key_kept() -> AbstractContextManager[None]:
    return rewritten(START_BODY, ("pending_key = NULL", "pending_key = pending_key"))


@mutant("a claim gives up the key of a job whose body has not started", seed=1)
def pending_key_lost() -> AbstractContextManager[None]:
    return claiming(("started_at =", "pending_key = NULL, started_at ="))


@mutant("a call changes a job that was claimed, and does not take it back", seed=14)
def debounced_under_the_worker() -> AbstractContextManager[None]:
    return rewritten(
        DEBOUNCE,
        (", state = 'pending'", ""),
        ("CASE state WHEN 'running' THEN 1 ELSE 0 END, attempt", "0, attempt"),
        ("attempt - CASE state WHEN 'running' THEN 1 ELSE 0 END", "attempt"),
        ("worker_id = NULL", "worker_id = worker_id"),
        ("started_at = NULL, deadline_at = NULL", "started_at = started_at"),
    )


@mutant("a key of a period is taken whoever has it", seed=7)
def period_ignored() -> AbstractContextManager[None]:
    return rewritten(KEEP_KEY, ("WHERE k.expires_at <= :now", ""))


@mutant("keys are forgotten before their time", seed=8)
def keys_forgotten() -> AbstractContextManager[None]:
    return rewritten(FORGET_KEYS, ("expires_at <= :now", "expires_at > :now"))


@mutant("the key of a call that was not stored leads nowhere", seed=14)
def entries_not_passed() -> AbstractContextManager[None]:
    return rewritten(PASS_KEY, ("WHERE", "WHERE 0 AND"))


@mutant("the key of a call that was merged is forgotten", play=simulate_outages)
def entries_dropped() -> AbstractContextManager[None]:
    change = "UPDATE duly_keys SET job_id = :holder", "DELETE FROM duly_keys"
    return rewritten(PASS_KEY, change)


@mutant("a debounced job keeps its first arguments", seed=1)
def first_arguments() -> AbstractContextManager[None]:
    return rewritten(DEBOUNCE, ("args = :args", "args = iif(:args, args, args)"))


@mutant("a debounced job does not wait for the last call", seed=1)
def first_window() -> AbstractContextManager[None]:
    return rewritten(DEBOUNCE, ("run_at = :run_at", "run_at = iif(:run_at, run_at, run_at)"))


# Hooks ---------------------------------------------------------------------------------------


@mutant("the end of a job does not free its hook")
def job_hook_stays() -> AbstractContextManager[None]:
    return without(trigger("duly_jobs_hook"))


@mutant("the end of a batch does not free its hook")
def batch_hook_stays() -> AbstractContextManager[None]:
    return without(trigger("duly_jobs_batch_hook"))


CANCELED = "EXISTS (SELECT 1 FROM duly_history WHERE id = OLD.id AND state = 'canceled')"


@mutant("a cancel does not free the hook", seed=3)
def cancel_frees_no_hook() -> AbstractContextManager[None]:
    when = "WHEN OLD.hook_id IS NOT NULL"
    return reworded((when, f"{when} AND NOT {CANCELED}"))


@mutant("the first end in a batch frees the hook", seed=2)
def hook_after_the_first() -> AbstractContextManager[None]:
    others = "AND NOT EXISTS (SELECT 1 FROM duly_jobs WHERE batch_id = OLD.batch_id)"
    return without(others)


@mutant("a hook does not wait")
def hook_at_once() -> AbstractContextManager[None]:
    def hook_job(*args: Any) -> TrackedJob:
        return msgspec.structs.replace(REAL_HOOK_JOB(*args), hold=None)

    return both(patched(new_job, "hook_job", hook_job), patched(batches, "hook_job", hook_job))


REAL_HOOK_JOB = new_job.hook_job


@mutant("a job has two hooks")
def two_hooks() -> AbstractContextManager[None]:
    def new_jobs(call: Call[Any], *args: Any) -> list[NewJob]:
        job, *hooks = new_job.new_jobs(call, *args)
        twins = [msgspec.structs.replace(hook, id=new_id(hook.created_at)) for hook in hooks]
        return [job, *hooks, *twins]

    return patched(verbs, "new_jobs", new_jobs)


@mutant("the hook of a call that was not stored is", seed=1)
def hook_for_nobody() -> AbstractContextManager[None]:
    def others(jobs: list[NewJob], keyed: list[KeyedJob], _: Any) -> list[NewJob]:
        return [job for job in jobs if job not in keyed]

    return patched(steps, "without", others)


@mutant("a retried job frees its hook", seed=1)
def hook_after_each_attempt() -> AbstractContextManager[None]:
    return reworded((trigger("duly_jobs_hook"), EACH_ATTEMPT + trigger("duly_jobs_hook")))


EACH_ATTEMPT = """CREATE TRIGGER sim_each_attempt AFTER UPDATE ON duly_jobs
WHEN OLD.state = 'running' AND OLD.hook_id IS NOT NULL
BEGIN UPDATE duly_jobs SET hold = NULL WHERE id = OLD.hook_id AND hold = 'batch'; END;
"""
