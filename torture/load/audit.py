"""What must be true of a workload after any number of faults: every broken promise by its id."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from tests.jobs.support import Database
from tests.torture.kill.trace import Trace
from torture.load.history import is_legal, stories, story_of
from torture.load.terms import AT_ONCE, SAID

Line = list[str]
ASKING = ("beget", "cancel")
NO_STORE = "StoreUnavailable"
# SQLite undoes a COMMIT that fails, so a shared one that failed is repeated member by member. The
# mode `lost` of `armed` does commit before it fails: then a repeated insert meets itself.
MEETS_ITSELF = "UNIQUE constraint failed: duly_jobs.id"
SHOWN = 3
JOB_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Verdict:
    """Who broke each promise; nobody is the only good answer."""

    lost: list[str] = field(default_factory=list)
    """acknowledged jobs that are nowhere"""
    doubled: list[str] = field(default_factory=list)
    """succeeded mutations without exactly one effect"""
    ghosts: list[str] = field(default_factory=list)
    """effects of jobs that did not succeed"""
    torn: list[str] = field(default_factory=list)
    """rows of the user's without their job, or the other way round"""
    repeated: list[str] = field(default_factory=list)
    """requests with one key that had no effect although answered, or more than one"""
    restarted: list[str] = field(default_factory=list)
    """actions without retry that started twice, or an attempt that did"""
    unstarted: list[str] = field(default_factory=list)
    """actions that succeeded and never started"""
    changed: list[str] = field(default_factory=list)
    """jobs with a change that may not be, above all after their end"""
    revived: list[str] = field(default_factory=list)
    """jobs that ended otherwise although their cancel was acknowledged"""
    unexplained: list[str] = field(default_factory=list)
    """failures that nothing in the workload accounts for"""
    crowded: list[str] = field(default_factory=list)
    """keys under which more ran at once than may"""
    unfinished: list[str] = field(default_factory=list)
    """jobs that are still live"""
    leaked: list[str] = field(default_factory=list)
    """keys with a slot that nobody gave back"""
    orphans: list[str] = field(default_factory=list)
    """rows of workers that are gone"""

    @property
    def is_clean(self) -> bool:
        return not any(getattr(self, each.name) for each in fields(self))

    def __str__(self) -> str:
        return ", ".join(f"{each.name} {len(getattr(self, each.name))}" for each in fields(self))


def judge(db: Database, trace: Trace) -> Verdict:
    """Compare the log, the tables and the files with one another."""
    jobs = {str(row[0]): row for row in _history(db)}
    live = _column(db, "SELECT id FROM @jobs")
    effects = Counter(_column(db, "SELECT job_id FROM effects"))
    orders = set(_column(db, "SELECT job_id FROM orders"))
    received = Counter(_column(db, "SELECT number FROM received"))
    starts = [(job_id, attempt) for job_id, attempt in trace.lines("starts")]
    starts_of = Counter(job_id for job_id, _ in starts)
    mutations = {i for i, row in jobs.items() if row[2] == "mutation"}
    succeeded = {i for i, row in jobs.items() if row[3] == "succeeded"}
    once = {i for i, row in jobs.items() if row[2] == "action" and row[4] is None}
    stood_still = any(line[0] == "pause" for line in trace.lines("fired"))
    served = {i for i, row in jobs.items() if row[1] == "serve"}
    answered = {number for (number,) in trace.lines("answered")}
    return Verdict(
        lost=sorted({i for (i,) in trace.lines("acknowledged")} - jobs.keys() - set(live)),
        doubled=[i for i in mutations & succeeded if effects[i] != 1],
        ghosts=sorted(effects.keys() - succeeded),
        torn=sorted(orders ^ served),
        repeated=[n for n in answered | received.keys() if received[n] != 1],
        restarted=sorted(
            {i for i, n in starts_of.items() if n > 1 and i in once}
            | {i for (i, _), n in Counter(starts).items() if n > 1}
        ),
        unstarted=sorted((succeeded - mutations) - starts_of.keys()),
        changed=[story[0].job_id for story in stories(db) if not is_legal(story)],
        revived=[i for (i,) in trace.lines("canceled") if i in jobs and jobs[i][3] != "canceled"],
        unexplained=[i for i, row in jobs.items() if not _is_explained(row, stood_still)],
        crowded=[" ".join([key, *bodies]) for key, bodies in crowded(trace.lines("keys")).items()],
        unfinished=live,
        leaked=_column(db, "SELECT key FROM @slots"),
        orphans=_column(db, "SELECT id FROM @workers"),
    )


def ends(db: Database) -> dict[str, int]:
    """How many jobs have ended in each way."""
    return dict(Counter(str(row[5] or row[3]) for row in _history(db)))


def evidence(db: Database, trace: Trace, verdict: Verdict) -> Iterator[str]:
    """The history of the first of those who broke each promise."""
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
    """Bodies that never ended, of processes that nobody killed."""
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
        f"{key}: {body}@{pid} has not ended, and nobody killed its process"
        for body, (key, pid) in running.items()
        if pid not in dead
    ]


def crowded(lines: Iterable[Line]) -> dict[str, list[str]]:
    """Keys under which more bodies ran at once than may, and which these were, by which process.

    A process that is about to be killed is noted as dead first: until it really is nobody can get
    its place, and what it may still begin counts no more.
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


def _history(db: Database) -> list[tuple[Any, ...]]:
    columns = "id, function, kind, state, retry, error_kind, error_message"
    return db.execute(f"SELECT {columns} FROM @history")


def _column(db: Database, query: str) -> list[str]:
    return [str(value) for (value,) in db.execute(query)]


def _is_explained(row: tuple[Any, ...], stood_still: bool = False) -> bool:
    """Whether a function may end like this when its workers are killed, or stand still."""
    _, function, kind, state, _, error, message = map(str, row)
    if state != "failed":
        return state == "canceled" or function != "fail"
    allowed = {"crash_loop"}
    # What asks the store from its body may be told that there is none.
    no_store = function in ASKING and NO_STORE in message
    if function == "fail" or no_store or (function == "beget" and MEETS_ITSELF in message):
        allowed.add("user")
    if kind == "action":
        allowed.add("worker_lost")
        if SAID in message:
            allowed.add("user")
    if function.startswith("overrun") or (kind == "mutation" and stood_still):
        # A process that stands still does so for longer than a mutation may take on SQLite.
        allowed.add("timeout")
    return error in allowed
