"""Mutants without a guard of workflows; the simulator must notice each."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import msgspec

from duly.model import job as job_model
from duly.model.job import (
    Again,
    Claim,
    ErrorKind,
    Kind,
    Lost,
    NewJob,
    Raised,
    Settlement,
    Suspended,
    settle_lost,
)
from duly.model.workflow import Awaited, Put, Step, StepKind, StepState, Waits
from duly.runtime import heartbeat
from duly.store.jobs.enqueue import insert_jobs
from duly.store.jobs.finish import AGAIN
from duly.store.sqlite import SqliteStore
from duly.store.workflows import (
    ADD_STEP,
    ANSWER,
    CHANGE_STEP,
    LOCK_RUN,
    OPEN_APPROVAL,
    TAKE_EVENT,
    UNREAD_EVENTS,
)
from duly.workflows import operations, run
from duly.workflows.driver import Op
from duly.workflows.run import Run, Scope
from duly.workflows.steps import RunMutation
from tests.simulator import mutants
from tests.simulator.mutants import (
    Mutant,
    both,
    claiming,
    patched,
    reworded,
    rewritten,
    trigger,
    without,
)
from tests.simulator.workflows import simulate_workflows

WORKFLOW_MUTANTS: list[Mutant] = []

mutant = partial(mutants.mutant, play=simulate_workflows, into=WORKFLOW_MUTANTS)

FENCE = "EXISTS (SELECT 1 FROM duly_jobs WHERE id = :job_id AND token = :token)"
PLACE = "PRIMARY KEY (job_id, scope, pos)\n);\n\nCREATE TABLE duly_events"
BEGUN_FOREVER = """
            expires_at = CASE WHEN :begun THEN NULL ELSE expires_at END,"""


# Records -------------------------------------------------------------------------------------

mutant(
    "a schema in which two records can be at one place, under different names",
    probe="""INSERT INTO duly_steps
            (job_id, scope, pos, kind, name, state, token, attempt, started_at)
        VALUES ('two', '', 3, 'action', 'charge', 'started', 1, 1, 0),
               ('two', '', 3, 'action', 'fraud', 'started', 1, 1, 0)""",
)(lambda: reworded((PLACE, PLACE.replace("pos)", "pos, name)"))))


def _unfenced() -> AbstractContextManager[None]:
    return both(
        rewritten(ADD_STEP, (FENCE, ":token > 0")),
        rewritten(CHANGE_STEP, (FENCE, ":token > 0")),
        rewritten(LOCK_RUN, ("AND token = :token", "AND :token > 0")),
    )


@mutant("a record is written whoever has the run", seed=14)
def unfenced_record() -> AbstractContextManager[None]:
    return _unfenced()


@mutant("the effect of a mutation is committed before its record")
def record_apart() -> AbstractContextManager[None]:
    def recorded(self: RunMutation, tx: Any, value: object) -> Step:
        return self._record(value)

    real = RunMutation.run

    def run_apart(self: RunMutation) -> Step:
        step = real(self)
        self._run.store.put_steps([Put(self._run.fence, step, self._was)])
        return step

    return both(patched(RunMutation, "_recorded", recorded), patched(RunMutation, "run", run_apart))


@mutant("a mutation commits although its record was refused", seed=109)
def refused_record() -> AbstractContextManager[None]:
    def recorded(self: RunMutation, tx: Any, value: object) -> Step:
        step = self._record(value)
        tx._open().put_steps([*self._before, Put(self._run.fence, step, self._was)])
        return step

    return patched(RunMutation, "_recorded", recorded)


def _unwritten(skip: Callable[[Step], bool]) -> AbstractContextManager[None]:
    """Some records are noted in the process, and nowhere else."""
    real = operations._put

    def put(run: Run, step: Step, was: str | None) -> Op[None]:
        if skip(step):
            run.note(step)
            return
        known = was is not None and not skip(msgspec.structs.replace(step, state=was))
        yield from real(run, step, was if known else None)

    return both(patched(operations, "_put", put), patched(operations, "_put_soon", put))


@mutant("an action that runs at most once begins without a record")
def started_unseen() -> AbstractContextManager[None]:
    return _unwritten(lambda step: step.state == StepState.STARTED)


@mutant("a timer starts anew whenever the run wakes", seed=1)
def timer_anew() -> AbstractContextManager[None]:
    return _unwritten(lambda step: step.kind == StepKind.SLEEP)


@mutant("which branch was first is not recorded", seed=1)
def first_unseen() -> AbstractContextManager[None]:
    return _unwritten(lambda step: step.kind == StepKind.FIRST)


@mutant("the time that the code was told is not recorded", seed=3)
def now_unseen() -> AbstractContextManager[None]:
    return _unwritten(lambda step: step.kind == StepKind.NOW)


@mutant("an action that had begun when its worker died begins again")
def started_ignored() -> AbstractContextManager[None]:
    def lost(scope: Scope, record: Step) -> Op[Step]:
        return record
        yield

    return patched(operations, "_lost", lost)


@mutant("jobs of a run are stored before their record", seed=33)
def jobs_apart() -> AbstractContextManager[None]:
    real = SqliteStore.enqueue_recorded

    def enqueue(self: SqliteStore, fence: Any, jobs: Sequence[NewJob], step_of: Any) -> Any:
        found = self.write(lambda session: insert_jobs(session, jobs))
        return real(self, fence, [], lambda _: step_of(found))

    return patched(SqliteStore, "enqueue_recorded", enqueue)


@mutant("a uuid is drawn anew whenever the code runs", seed=1)
def uuid_anew() -> AbstractContextManager[None]:
    def unique_id(scope: Scope) -> uuid.UUID:
        scope.skip()
        return uuid.uuid4()

    return patched(operations, "unique_id", unique_id)


@mutant("what an action with retries may depend on is recorded later", seed=7)
def recorded_later() -> AbstractContextManager[None]:
    def flush(scope: Scope) -> Op[None]:
        return
        yield

    return patched(operations, "_flush", flush)


# Waits ---------------------------------------------------------------------------------------


@mutant("a run that waits does not look whether it has mail", seed=3)
def mail_ignored() -> AbstractContextManager[None]:
    return rewritten(AGAIN, ("OR mail = :mail THEN", "OR :mail >= 0 THEN"))


WATCHED = "UPDATE duly_jobs SET mail = mail + 1,"


@mutant("the end of a job is told only to a run that waits already", seed=3)
def only_pending_woken() -> AbstractContextManager[None]:
    only = WATCHED.replace("+ 1", "+ (state = 'pending')")
    return reworded(
        (trigger("duly_jobs_watched"), trigger("duly_jobs_watched").replace(WATCHED, only))
    )


@mutant("the end of a job wakes nobody")
def watched_in_vain() -> AbstractContextManager[None]:
    return without(trigger("duly_jobs_watched"))


@mutant("a run waits for the end of a job that has ended meanwhile", seed=135)
def watched_too_late() -> AbstractContextManager[None]:
    real = SqliteStore.watch_job

    def watch(self: SqliteStore, job_id: str, watcher_id: str) -> bool:
        real(self, job_id, watcher_id)
        return True

    return patched(SqliteStore, "watch_job", watch)


@mutant("an event is read, and stays unread for others")
def event_left() -> AbstractContextManager[None]:
    return rewritten(TAKE_EVENT, ("SET taken_by = :place", "SET taken_by = nullif(:place, :place)"))


@mutant("an event that was taken is taken again", seed=5)
def event_again() -> AbstractContextManager[None]:
    taken = (" AND taken_by IS NULL", "")
    return both(rewritten(TAKE_EVENT, taken), rewritten(UNREAD_EVENTS, taken))


@mutant("a timer that was over begins again when a clock goes back", seed=133)
def timer_again() -> AbstractContextManager[None]:
    def sleep(scope: Scope, due: Callable[[int], int]) -> Op[None]:
        pos, record = scope.place(StepKind.SLEEP, "sleep")
        if record is None:
            now = scope.run.now()
            record = operations._base(
                scope, pos, StepKind.SLEEP, "sleep", state=StepState.WAITING, due_at=due(now)
            )
            yield from operations._put(scope.run, record, None)
        if record.due_at is not None and record.due_at > scope.run.now():
            raise scope.suspend([Awaited("timer", "", record.due_at)])

    return patched(operations, "sleep", sleep)


@mutant("an approval can be answered after it has timed out", seed=3)
def answered_late() -> AbstractContextManager[None]:
    waiting = ("SELECT scope, pos, state,", "SELECT scope, pos, 'waiting',")
    return both(
        rewritten(ANSWER, (" AND state = 'waiting'", "")), rewritten(OPEN_APPROVAL, waiting)
    )


# The row of the run --------------------------------------------------------------------------


def _suspending(**changes: Callable[[Claim], Any]) -> AbstractContextManager[None]:
    real = job_model._after_suspension

    def after(claim: Claim, outcome: Suspended) -> Again:
        new = {name: change(claim) for name, change in changes.items()}
        return msgspec.structs.replace(real(claim, outcome), **new)

    return patched(job_model, "_after_suspension", after)


@mutant("a run that waits has used up an attempt")
def attempt_kept() -> AbstractContextManager[None]:
    return _suspending(attempt=lambda claim: claim.attempt)


@mutant("a run expires while it waits", seed=1)
def begun_expires() -> AbstractContextManager[None]:
    return rewritten(AGAIN, (BEGUN_FOREVER, ""))


@mutant("the time limit of a run begins anew whenever it wakes")
def begun_again() -> AbstractContextManager[None]:
    return claiming(("coalesce(begun_at, :now)", ":now"))


@mutant("crashes count although the run has gone on since", seed=1)
def crashes_kept() -> AbstractContextManager[None]:
    def judge(job: Lost, now: int, chance: float, witnessed: bool) -> Settlement:
        job = msgspec.structs.replace(job, advanced=False)
        return settle_lost(job, now, chance, witnessed=witnessed)

    return both(
        patched(heartbeat, "settle_lost", judge), _suspending(crashes=lambda claim: claim.crashes)
    )


@mutant("a rescue fails the run, as an older release would")
def rescue_fails() -> AbstractContextManager[None]:
    def judge(job: Lost, now: int, chance: float, witnessed: bool) -> Settlement:
        kind = Kind.ACTION if job.kind == Kind.WORKFLOW else job.kind
        job = msgspec.structs.replace(job, kind=kind)
        return settle_lost(job, now, chance, witnessed=witnessed)

    return patched(heartbeat, "settle_lost", judge)


# Code that does not fit ----------------------------------------------------------------------


@mutant("a mistake in the code of a workflow fails the run")
def mistake_fails() -> AbstractContextManager[None]:
    def mistake(self: Run, error: BaseException) -> Raised:
        return Raised(ErrorKind.USER, str(error), None, final=True)

    return patched(Run, "mistake", mistake)


@mutant("a history that does not fit the code fails the run", seed=25)
def mismatch_fails() -> AbstractContextManager[None]:
    def mismatch(self: Scope, pos: int, recorded: str, wanted: str) -> BaseException:
        return self.run.unwind(
            Raised(ErrorKind.USER, f"{recorded}, not {wanted}", None, final=True)
        )

    return patched(Scope, "_mismatch", mismatch)


@mutant("a build tries a run that it could not continue", seed=33)
def tried_again() -> AbstractContextManager[None]:
    return patched(run, "decode_waits", lambda _: Waits())


@mutant("an outage in an operation is told to the code of the workflow", seed=3)
def outage_told() -> AbstractContextManager[None]:
    return patched(Run, "needs_store", lambda self: nullcontext())
