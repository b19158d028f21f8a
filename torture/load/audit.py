"""What must be true of a workload after any number of faults: every broken promise by its id."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple
from uuid import UUID

from duly.model.retry import decode_retry
from tests.jobs.support import Database
from tests.torture.kill.trace import Trace
from torture.load.history import is_legal, pids, stories, story_of
from torture.load.terms import AT_ONCE, SAID

Line = list[str]
ASKING = ("beget", "cancel")
MARKS = 2
"""Steps of a run that are mutations."""
NO_STORE = ("StoreUnavailable", "StoreFull")
# SQLite undoes a COMMIT that fails, so a shared one that failed is repeated member by member. The
# mode `lost` of `armed` does commit before it fails: then a repeated insert conflicts with itself.
MEETS_ITSELF = "UNIQUE constraint failed: duly_jobs.id"
SHOWN = 3
JOB_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Verdict:
    """The ids that break each promise. All lists must be empty."""

    lost: list[str] = field(default_factory=list)
    """acknowledged jobs that do not exist"""
    doubled: list[str] = field(default_factory=list)
    """succeeded mutations without exactly one effect"""
    ghosts: list[str] = field(default_factory=list)
    """effects of jobs that did not succeed"""
    torn: list[str] = field(default_factory=list)
    """rows of the user without their job, or the other way round"""
    repeated: list[str] = field(default_factory=list)
    """requests with one key that were answered without an effect, or had more than one"""
    restarted: list[str] = field(default_factory=list)
    """actions without retry that started twice, or an attempt that did"""
    unstarted: list[str] = field(default_factory=list)
    """actions that succeeded but never started"""
    changed: list[str] = field(default_factory=list)
    """jobs with an impossible change of state, above all after their end"""
    revived: list[str] = field(default_factory=list)
    """jobs that ended otherwise although their cancel was acknowledged"""
    unexplained: list[str] = field(default_factory=list)
    """outcomes that neither the function nor any fault explains"""
    crowded: list[str] = field(default_factory=list)
    """keys under which too many bodies ran at once"""
    unfinished: list[str] = field(default_factory=list)
    """jobs that are still live"""
    leaked: list[str] = field(default_factory=list)
    """keys with a slot that was never freed"""
    orphans: list[str] = field(default_factory=list)
    """rows of workers that are gone"""

    @property
    def is_clean(self) -> bool:
        return not any(getattr(self, each.name) for each in fields(self))

    def __str__(self) -> str:
        return ", ".join(f"{each.name} {len(getattr(self, each.name))}" for each in fields(self))


def judge(db: Database, trace: Trace) -> Verdict:
    """Compare the log, the tables and the files with one another."""
    jobs = {job.id: job for job in _history(db)}
    live = _column(db, "SELECT id FROM @jobs")
    effects = Counter(_column(db, "SELECT job_id FROM effects"))
    orders = set(_column(db, "SELECT job_id FROM orders"))
    received = Counter(_column(db, "SELECT number FROM received"))
    starts = [(job_id, attempt) for job_id, attempt in trace.lines("starts")]
    starts_of = Counter(job_id for job_id, _ in starts)
    mutations = {i for i, job in jobs.items() if job.kind == "mutation"}
    actions = {i for i, job in jobs.items() if job.kind == "action"}
    runs = {i for i, job in jobs.items() if job.kind == "workflow"}
    marks = Counter(_column(db, "SELECT job_id FROM marks"))
    succeeded = {i for i, job in jobs.items() if job.state == "succeeded"}
    once = {i for i, job in jobs.items() if job.kind == "action" and job.retry is None}
    served = {i for i, job in jobs.items() if job.function == "serve"}
    causes = Causes(db, trace, jobs)
    answered = {number for (number,) in trace.lines("answered")}
    return Verdict(
        lost=sorted({i for (i,) in trace.lines("acknowledged")} - jobs.keys() - set(live)),
        doubled=[
            *(i for i in mutations & succeeded if effects[i] != 1),
            *(i for i in marks if marks[i] > MARKS),
            *(i for i in runs & succeeded if marks[i] != MARKS),
        ],
        ghosts=sorted(effects.keys() - succeeded),
        torn=sorted(orders ^ served),
        repeated=[n for n in answered | received.keys() if received[n] != 1],
        restarted=sorted(
            {i for i, n in starts_of.items() if n > 1 and i in once}
            | {i for (i, _), n in Counter(starts).items() if n > 1}
        ),
        unstarted=sorted((succeeded & actions) - starts_of.keys()),
        changed=[story[0].job_id for story in stories(db) if not is_legal(story)],
        revived=[
            i for (i,) in trace.lines("canceled") if i in jobs and jobs[i].state != "canceled"
        ],
        unexplained=[i for i, job in jobs.items() if not causes.explain(job)],
        crowded=[" ".join([key, *bodies]) for key, bodies in crowded(trace.lines("keys")).items()],
        unfinished=live,
        leaked=_column(db, "SELECT key FROM @slots"),
        orphans=_column(db, "SELECT id FROM @workers"),
    )


def ends(db: Database) -> dict[str, int]:
    """How many jobs have ended in each way."""
    return dict(Counter(job.error or job.state for job in _history(db)))


def evidence(db: Database, trace: Trace, verdict: Verdict) -> Iterator[str]:
    """The history of the first jobs that broke each promise."""
    starts: defaultdict[str, list[str]] = defaultdict(list)
    for job_id, attempt in trace.lines("starts"):
        starts[job_id].append(attempt)
    for each in fields(verdict):
        for culprit in getattr(verdict, each.name)[:SHOWN]:
            yield f"{each.name}: {culprit}; attempts started: {starts.get(culprit, [])}"
            for job_id in JOB_ID.findall(culprit):
                yield from (f"    {change}" for change in story_of(db, job_id))
    yield from cut_off(trace.lines("keys"))


def cut_off(lines: Iterable[Line]) -> list[str]:
    """Bodies that never ended, in processes that were not killed."""
    dead: set[str] = set()
    running: dict[str, tuple[str, str]] = {}
    for word, key, body, pid in lines:
        if word == "begins":
            running[body] = (key, pid)
        elif word == "ends":
            running.pop(body, None)
        elif word == "dies":
            dead.add(pid)
    return [
        f"{key}: {body}@{pid} has not ended, although its process was not killed"
        for body, (key, pid) in running.items()
        if pid not in dead
    ]


def crowded(lines: Iterable[Line]) -> dict[str, list[str]]:
    """Keys under which too many bodies ran at once: the bodies, and their processes.

    A process that is about to be killed is recorded as dead first: until it really is dead no other
    worker can take its place, and bodies that it may still start no longer count.
    """
    dead: set[str] = set()
    running: defaultdict[str, dict[str, str]] = defaultdict(dict)
    found: dict[str, list[str]] = {}
    for word, key, body, pid in lines:
        if word == "begins" and pid not in dead:
            running[key][body] = pid
            if len(running[key]) > AT_ONCE[key.partition("-")[0]]:
                found.setdefault(key, [f"{body}@{pid}" for body, pid in running[key].items()])
        elif word == "ends":
            running[key].pop(body, None)
        elif word == "dies":
            dead.add(pid)
            for bodies in running.values():
                for gone in [body for body, owner in bodies.items() if owner == pid]:
                    del bodies[gone]
    return found


class Ended(NamedTuple):
    """A finished job as stored in the table."""

    id: str
    function: str
    kind: str
    state: str
    retry: str | None
    attempt: int
    worker_id: str | None
    parent_id: str | None
    error: str | None
    message: str | None
    canceled_by: str | None


def _history(db: Database) -> list[Ended]:
    columns = """id, function, kind, state, retry, attempt, worker_id, parent_id, error_kind,
        error_message, canceled_by"""
    rows = db.execute(f"SELECT {columns} FROM @history")
    return [Ended(*map(_without_uuids, row)) for row in rows]


def _without_uuids(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else value


def _column(db: Database, query: str) -> list[str]:
    return [str(value) for (value,) in db.execute(query)]


class Causes:
    """Faults and requests that may make a job end otherwise than its function does."""

    def __init__(self, db: Database, trace: Trace, jobs: Mapping[str, Ended]) -> None:
        self._jobs = jobs
        self._asked = {job_id for (job_id,) in trace.lines("asked to cancel")}
        self._stood_still = any(line[0] == "pause" for line in trace.lines("fired"))
        killed = {int(pid) for word, _, _, pid in trace.lines("keys") if word == "dies"}
        self._lost = {worker for worker, pid in pids(db).items() if pid in killed}
        self._lost |= _taken_for_dead(db)

    def explain(self, job: Ended) -> bool:
        """Whether a job may have ended like this."""
        if job.state == "canceled":
            return job.error is None and self._explain_cancel(job)
        if job.state == "succeeded":
            return job.function != "fail"
        match job.error:
            case "user":
                return _explain_failure(job)
            case "worker_lost":
                return self._explain_loss(job)
            case "timeout":
                # A paused process is stopped for longer than a mutation may take on SQLite.
                still = job.kind == "mutation" and self._stood_still
                return still or job.function.startswith("overrun")
            case _:
                # Here nothing expires, everything can be stored, and no function kills its process:
                # `crash_loop` would blame an innocent job.
                return False

    def _explain_cancel(self, job: Ended) -> bool:
        who, _, parent_id = (job.canceled_by or "").partition(":")
        if who != "parent":
            return job.id in self._asked
        # Jobs that an action stores after it was taken away are canceled too.
        parent = self._jobs[parent_id]
        return parent.state == "canceled" or parent.error == "worker_lost"

    def _explain_loss(self, job: Ended) -> bool:
        """Its worker is gone, and the function has not asked for another attempt."""
        retry = decode_retry(job.retry)
        is_over = retry is None or not retry.allows(job.attempt)
        return job.kind == "action" and is_over and job.worker_id in self._lost


def _taken_for_dead(db: Database) -> set[str]:
    """Workers that were alive, but without heartbeats for so long that they had to start again."""
    newest: dict[int, str] = {}
    replaced: set[str] = set()
    for worker_id, pid in sorted(pids(db).items()):
        replaced |= {newest[pid]} if pid in newest else set()
        newest[pid] = worker_id
    return replaced


def _explain_failure(job: Ended) -> bool:
    message = job.message or ""
    # A body that uses the store may get an error that it is unavailable or full.
    no_store = job.function in ASKING and any(word in message for word in NO_STORE)
    meets_itself = job.function == "beget" and MEETS_ITSELF in message
    on_purpose = job.kind in ("action", "workflow") and SAID in message
    return job.function == "fail" or no_store or meets_itself or on_purpose
