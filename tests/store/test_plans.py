"""Plans are part of the code: every hot statement, on tables of every size, in every plan mode.

On PostgreSQL a statement is run twelve times as the driver prepares it, under `auto`,
`force_generic_plan` and `force_custom_plan`; then the plan that it got is explained and run. The
tables are first empty, then small, then large without statistics (a prepared plan outlives the time
when the table was empty), then large with them. A plan is right if it uses the index that was made
for it, scans no table sequentially, and touches few pages however many jobs there are.
"""

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import sql as compose

from duly.ids import new_ids
from duly.model.job import Again, Finish, Hold, JobFilter, State
from duly.model.progress import ProgressReport, revision_of
from duly.model.workflow import Put, Step
from duly.store import statements as sql
from duly.store import workers, workflows
from duly.store.base import ClaimRequest
from duly.store.jobs import batches, cancel, enqueue, holds, read, replay, reports, run
from duly.store.jobs.batches import LISTED_HISTORY
from duly.store.jobs.bulk import CHECKPOINT, RESCHEDULE
from duly.store.jobs.finish import CURRENT_XID, FINISH_MUTATION, NO_NESTED_LOOPS
from duly.store.jobs.holds import CLEAR_HOLD, HOOKS
from duly.store.jobs.rescue import ADVANCED, RUNNING_OF
from duly.store.jobs.run import EXPIRED_IDS, OVERDUE
from duly.store.limits import LINES, WAITERS
from duly.store.postgres import PostgresSession, PostgresStore
from duly.store.sqlite import SQL, WORDS, SqliteSession, SqliteStore
from duly.store.statements import Statement
from duly.store.steps import Row
from duly.store.workflows import (
    ANSWER,
    COUNT_UNREAD,
    DELIVER,
    OPEN_APPROVAL,
    READ_RUN,
    READ_STEPS,
    SENT_ONCE,
    UNREAD_EVENTS,
)
from duly.testing.conformance.ground import NOW, new_job

pytestmark = pytest.mark.new_database

RUNS = 12
# A batch of 150 compared with itself would be 22,500.
WASTE = 10_000
EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "
PARAMETER = re.compile(r"%\((\w+)\)s")
MODES = ("auto", "force_generic_plan", "force_custom_plan")
NAMES = {statement: name for name, statement in sql.named_statements()}
LAST = "ffffffff-ffff-7fff-bfff-ffffffffffff"
WORKER = "11111111-1111-7111-8111-111111111111"
KEY = 100 * "k"
QUEUES = ("paused", "default", *(f"empty{n}" for n in range(8)))


def job_id(n: int) -> str:
    return f"00000000-0000-7000-8000-{n:012x}"


# Two jobs in ten can start. The others must not cost a claimer anything: future, held, in a paused
# queue, running. Half of those that can start have a parent; few are overdue, expired or running.
LOAD_JOBS = """
INSERT INTO duly.jobs (id, function, kind, queue, priority, state, hold, token, created_at,
    scheduled_at, run_at, started_at, deadline_at, expires_at, timeout_ms, args, parent_id,
    worker_id)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(g), 12, '0'))::uuid,
    CASE WHEN g %% 10 IN (3, 4) THEN 'gone' ELSE 'send' END, 'action',
    CASE WHEN g %% 10 IN (5, 6) THEN 'paused' ELSE 'default' END, (g / 10) %% 10,
    CASE WHEN is_running THEN 'running' ELSE 'pending' END,
    CASE WHEN g %% 10 IN (3, 4) THEN 'function' END,
    CASE WHEN is_running THEN 1 ELSE 0 END, %(now)s, %(now)s,
    CASE WHEN g %% 10 IN (0, 1, 2) OR (g %% 10 = 7 AND NOT is_running)
        THEN %(now)s + g ELSE %(now)s - g END,
    CASE WHEN is_running THEN %(now)s END,
    CASE WHEN is_running THEN %(now)s + (g - 10000) * 1000 END,
    CASE WHEN g %% 10 = 9 THEN %(now)s + (g - 1000) * 1000
        WHEN g %% 10 NOT IN (3, 4, 7) THEN %(now)s + 1000000000 + g END, 60000, '{}',
    CASE WHEN g %% 10 = 8 AND g > 100
        THEN ('00000000-0000-7000-8000-' || lpad(to_hex(g - 8), 12, '0'))::uuid END,
    CASE WHEN is_running THEN %(worker)s::uuid END
FROM generate_series(%(first)s::int, %(last)s::int) g,
    LATERAL (SELECT g %% 100 = 7 AND g < 60000 AS is_running) i
"""
# A long key: an index of it is deeper than others of as many jobs.
LOAD_WAITING = """
INSERT INTO duly.jobs (id, function, kind, queue, priority, hold, created_at, scheduled_at,
    run_at, args, limit_key, limits)
SELECT ('11111111-0000-7000-8000-' || lpad(to_hex(g), 12, '0'))::uuid, 'gone', 'action',
    'default', 5, 'key', %(now)s, %(now)s - g, %(now)s - g, '{}', %(key)s, '[1,null,null]'
FROM generate_series(1, 5000) g
"""
LOAD_HISTORY = """
INSERT INTO duly.history (bucket, id, function, kind, queue, priority, state, token, attempt,
    crashes, system_retries, created_at, scheduled_at, run_at, completed_at, args, owner)
SELECT g / 100 %% 16, ('ffffffff-0000-7000-8000-' || lpad(to_hex(g), 12, '0'))::uuid, 'send',
    'action', 'default', 5, 'succeeded', 1, 1, 0, 0, %(now)s, %(now)s, %(now)s, %(now)s, '{}',
    CASE WHEN g %% 1000 = 0 THEN 'anna' END
FROM generate_series(%(first)s::int, %(last)s::int) g
"""


LOAD_STEPS = """
INSERT INTO duly.steps (job_id, scope, pos, kind, name, state, token, attempt, started_at)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(g), 12, '0'))::uuid, '', 0, 'action', 'send',
    'waiting', 1, 1, %(now)s
FROM generate_series(%(first)s::int, %(last)s::int) g
"""
LOAD_EVENTS = """
INSERT INTO duly.events (job_id, seq, name, once, sent_at)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(g), 12, '0'))::uuid, 1, 'send', 'k', %(now)s
FROM generate_series(%(first)s::int, %(last)s::int) g
"""
LOAD_WATCHES = """
INSERT INTO duly.watches (job_id, watcher_id)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(g), 12, '0'))::uuid,
    '00000000-0000-7000-8000-000000000001'
FROM generate_series(%(first)s::int, %(last)s::int) g
"""


class Recorder(PostgresSession):
    """Remembers what was run last under each statement, so that it can be explained."""

    def __init__(self, connection: psycopg.Connection[Any], store: PostgresStore) -> None:
        super().__init__(connection, store)
        self.seen: dict[str, tuple[bytes, Mapping[str, Any]]] = {}

    def run(
        self,
        statement: Statement,
        parameters: Mapping[str, Any] = {},
        prepare: bool | None = None,
    ) -> list[Row]:
        self.seen[NAMES[statement]] = (self._store.sql[statement], parameters)
        return super().run(statement, parameters, prepare)

    def run_text(self, text: str, parameters: Mapping[str, Any]) -> list[Row]:
        table = re.findall(r"FROM @(\w+)", text)[0]
        rendered = sql.render(text, "postgres", self._store.words)
        self.seen[f"LIST {table}"] = (rendered.encode(), parameters)
        return super().run_text(text, parameters)


class Case(NamedTuple):
    """One verb, and for each statement of it the indexes it may use and the pages it may touch."""

    verb: Callable[[PostgresSession], object]
    expected: dict[str, tuple[set[str], int]]


def settlements(kind: type[Finish] | type[Again]) -> list[Any]:
    ids = [job_id(n) for n in range(7, 15_000, 100)]
    if kind is Finish:
        return [Finish(id=each, token=1, state=State.SUCCEEDED, result="{}") for each in ids]
    values: dict[str, Any] = {
        "token": 1,
        "run_at": NOW,
        "attempt": 1,
        "crashes": 0,
        "system_retries": 0,
    }
    return [Again(id=each, **values) for each in ids]


def finish_mutation(session: PostgresSession) -> None:
    xid = session.run(CURRENT_XID)[0][0]
    fence = {"id": job_id(7), "token": 1, "xid": xid}
    session.run(FINISH_MUTATION, fence | {"result": None, "now": NOW})


EVENT: dict[str, Any] = {
    "id": job_id(7), "mention": "m", "now": NOW, "once": "x", "name": "send", "scope": "", "pos": 0,
    "result": None,
}  # fmt: skip
LOADING = (READ_RUN, READ_STEPS, UNREAD_EVENTS)


def put(n: int, was: str | None) -> Put:
    step = Step(
        scope="", pos=0, kind="event", name="send", state="succeeded", token=1, started_at=NOW
    )
    return Put((job_id(n), 1), step, was)


def waiters(session: PostgresSession) -> None:
    lines = session.run(LINES, {"key": KEY}) or [("default", "gone", "[1,null,null]")]
    queues, functions, limits, *_ = zip(*lines, strict=True)
    line = {"queues": list(queues), "functions": list(functions), "limits": list(limits)}
    session.run(WAITERS, line | {"key": KEY, "limit": 2, "now": NOW})


def insert(verb: str) -> Callable[[PostgresSession], object]:
    def run(session: PostgresSession) -> None:
        jobs = [new_job(id=each) for each in new_ids(NOW, 30)]
        if verb == "insert_canceled":
            session.insert_canceled(jobs, "x", NOW)
        elif verb == "insert_jobs":
            enqueue.insert_jobs(session, jobs)
        else:
            getattr(session, verb)(jobs)

    return run


PK, CLAIM = {"jobs_pkey"}, {"jobs_claim"}
OF_WHAT_IS_PAUSED = {"queues_pkey", "functions_pkey", "functions_status"}
HISTORY_ID = {f"history_{bucket:02d}_id_bucket_idx" for bucket in range(16)}
HISTORY_FUNCTION = {f"history_{bucket:02d}_function_state_id_idx" for bucket in range(16)}
HISTORY_PARENT = {f"history_{bucket:02d}_parent_id_idx" for bucket in range(16)}
OF_BATCHES = {"jobs_batch", "kept_batch", "keys_pkey", "kept_pkey"} | PK | HISTORY_ID
OF_BATCHES |= {f"history_{bucket:02d}_batch_id_id_idx" for bucket in range(16)}
REQUEST = ClaimRequest(WORKER, QUEUES, ("send",), 50)

CASES = {
    "claim 50": Case(lambda s: s.claim(REQUEST, NOW), {"CLAIM": (CLAIM | PK, 5000)}),
    "claim 1": Case(
        lambda s: s.claim(ClaimRequest(WORKER, ("default",), ("send",), 1), NOW),
        {"CLAIM": (CLAIM | PK, 150)},
    ),
    "claim of nothing": Case(
        lambda s: s.claim(ClaimRequest(WORKER, QUEUES, ("send",), 100), NOW - 10**9),
        {"CLAIM": (CLAIM | PK, 600)},
    ),
    "lanes": Case(lambda s: s.lanes(), {"LANES": (CLAIM | {"jobs_limited"}, 300)}),
    "insert": Case(insert("insert_jobs"), {"INSERT_JOBS": (set(), 3000)}),
    "insert once": Case(
        insert("insert_jobs_once"), {"INSERT_JOBS_ONCE": (HISTORY_ID, 100 * 16 * 3 + 3000)}
    ),
    "insert canceled": Case(insert("insert_canceled"), {"INSERT_CANCELED": (set(), 3000)}),
    "finish 150": Case(lambda s: s.settle(settlements(Finish), NOW), {"FINISH": (PK, 10_000)}),
    "finish what is not locked": Case(
        lambda s: s.settle_unlocked(settlements(Finish), NOW),
        {"LOCKED_IDS": (PK | {"watches_pkey"}, 6_000)},
    ),
    "give back 150": Case(lambda s: s.settle(settlements(Again), NOW), {"AGAIN": (PK, 15_000)}),
    "finish a mutation": Case(finish_mutation, {"FINISH_MUTATION": (PK, 100)}),
    "lock the parent": Case(
        lambda s: enqueue.lock_running(s, job_id(7), 1), {"LOCK_PARENT": (PK, 20)}
    ),
    "cancel": Case(
        lambda s: cancel.cancel_live(s, [job_id(110)], "x", NOW),
        {
            "LIVE_IDS": (PK, 20),
            "MOVE_CANCELED": (PK, 120),
            "CHILD_IDS": ({"jobs_parent"}, 20),
        },
    ),
    "holdings": Case(lambda s: workers.holdings(s, WORKER), {"HOLDINGS": ({"jobs_worker"}, 2500)}),
    "get": Case(
        lambda s: read.get(s, job_id(10**9)),
        {"GET_LIVE": (PK, 20), "GET_HISTORY": (HISTORY_ID, 80), "GET_KEPT": ({"kept_pkey"}, 20)},
    ),
    "hold unknown": Case(
        lambda s: holds.stuck_at_heads(s, NOW), {"UNKNOWN_AT_HEAD": (CLAIM, 2000)}
    ),
    "hold": Case(lambda s: holds.hold(s, [job_id(8)], Hold.FUNCTION), {"SET_HOLD": (PK, 500)}),
    "release of nothing": Case(
        lambda s: holds.release(s, Hold.FUNCTION, ["one", "two"]), {"HELD_IDS": ({"jobs_hold"}, 20)}
    ),
    "release": Case(
        lambda s: s.run(CLEAR_HOLD, {"ids": [job_id(n) for n in range(3, 200, 10)]}),
        {"CLEAR_HOLD": (PK, 1000)},
    ),
    "stuck hooks": Case(
        lambda s: s.run(HOOKS, {"function": "", "id": job_id(0)}),
        {"HOOKS": ({"jobs_hold", "jobs_batch", "jobs_hook"}, 20)},
    ),
    "members of a batch": Case(
        lambda s: batches.batch_members(s, job_id(1), None, job_id(0), 50),
        {"MEMBER_IDS": (OF_BATCHES, 300)},
    ),
    "count a batch": Case(
        lambda s: batches.batch_counts(s, job_id(1)), {"BATCH_COUNTS": (OF_BATCHES, 300)}
    ),
    "is it a batch": Case(
        lambda s: batches.batch_has_members(s, job_id(1)), {"HAS_MEMBERS": (OF_BATCHES, 150)}
    ),
    "list members": Case(
        lambda s: s.run(LISTED_HISTORY, {"ids": [job_id(n) for n in range(50)]}),
        {"LISTED_HISTORY": (HISTORY_ID, 3000)},
    ),
    "hooks of finished jobs": Case(
        lambda s: replay.hooks_of(s, [job_id(n) for n in range(50)]),
        {"HOOKS_OF": (HISTORY_ID | {"kept_pkey"}, 3000)},
    ),
    "expire": Case(lambda s: run.cancel_expired(s, NOW), {"EXPIRED_IDS": ({"jobs_expiry"}, 1500)}),
    "expire a backlog": Case(
        lambda s: s.run(EXPIRED_IDS, {"now": NOW + 10**12}),
        {"EXPIRED_IDS": ({"jobs_expiry"}, 4000)},
    ),
    "time out": Case(lambda s: run.overdue(s, NOW), {"OVERDUE": ({"jobs_deadline"}, 1500)}),
    "due alone": Case(
        lambda s: run.due_alone(s, ["send"], ["default"], NOW), {"DUE_ALONE": ({"jobs_hold"}, 20)}
    ),
    "who waits for a key": Case(
        waiters,
        {"LINES": ({"jobs_limit", "jobs_limited"}, 60), "WAITERS": ({"jobs_limit"}, 30)},
    ),
    "lost jobs": Case(
        lambda s: s.run(RUNNING_OF, {"worker": WORKER}),
        {"RUNNING_OF": ({"jobs_worker"}, 6000)},
    ),
    "lost runs": Case(
        lambda s: s.run(ADVANCED, {"ids": [job_id(n) for n in (7, 107)], "tokens": [1, 1]}),
        {"ADVANCED": ({"steps_pkey"}, 30)},
    ),
    "load a run": Case(
        lambda s: [s.run(each, {"id": job_id(7), "token": 1}) for each in LOADING],
        {
            "READ_RUN": (PK, 10),
            "READ_STEPS": ({"steps_pkey"}, 10),
            "UNREAD_EVENTS": ({"events_pkey", "events_once"}, 10),
        },
    ),
    "record steps": Case(
        lambda s: workflows.put_steps(s, [put(107, None), put(7, "waiting")]),
        {"PUT_STEPS": (PK, 100)},
    ),
    "take an event": Case(
        lambda s: workflows.take_event(s, (job_id(7), 1), put(7, "waiting").step, "waiting", 1),
        {
            "LOCK_RUN": (PK, 10),
            "TAKE_EVENT": ({"events_pkey", "events_once"}, 30),
            "CHANGE_STEP": (PK | {"steps_pkey"}, 30),
        },
    ),
    "send an event": Case(
        lambda s: [s.run(each, EVENT) for each in (SENT_ONCE, COUNT_UNREAD, DELIVER)],
        {
            "SENT_ONCE": ({"events_once"}, 10),
            "COUNT_UNREAD": ({"events_pkey", "events_once"}, 10),
            "DELIVER": (PK, 10),
        },
    ),
    "answer an approval": Case(
        lambda s: [s.run(each, EVENT) for each in (OPEN_APPROVAL, ANSWER)],
        {"OPEN_APPROVAL": ({"steps_pkey"}, 10), "ANSWER": ({"steps_pkey"}, 30)},
    ),
    "look": Case(
        lambda s: read.look(s, [job_id(n) for n in range(1, 200)] + [job_id(10**9 + 1)]),
        {
            "LOOK_LIVE": (PK | {"progress_pkey"}, 2500),
            # On an empty table all 200 of them are looked for in every bucket.
            "LOOK_ENDED": (HISTORY_ID | {"kept_pkey", "progress_pkey"}, 200 * 16 * 2),
        },
    ),
    "report progress": Case(
        lambda s: reports.write_reports(
            s,
            [
                ProgressReport(job_id(n), 1, revision_of(1, 1), 0.5, None, NOW)
                for n in range(7, 15_000, 100)
            ],
            [],
        ),
        {"REPORT": (PK | {"progress_pkey"}, 10_000)},
    ),
    "read a log": Case(lambda s: read.logs(s, job_id(7), 0), {"READ_LOGS": ({"logs_pkey"}, 100)}),
    "list": Case(
        lambda s: read.find(s, JobFilter(limit=50)),
        {"LIST jobs": (PK, 200), "LIST history": (HISTORY_ID, 400)},
    ),
    "list a page": Case(
        lambda s: read.find(s, JobFilter(before_id=job_id(50_000), limit=50)),
        {"LIST jobs": (PK, 200), "LIST history": (HISTORY_ID, 400)},
    ),
    "list a function": Case(
        lambda s: read.find(s, JobFilter(state=State.SUCCEEDED, function="send", limit=50)),
        {"LIST history": (HISTORY_FUNCTION | HISTORY_ID, 400)},
    ),
    "a page of a bulk job": Case(
        lambda s: read.live_ids(
            s, JobFilter(function="send", before_id=job_id(10**6), limit=50), job_id(20_000)
        ),
        {"LIST jobs": (PK, 300)},
    ),
    "a page of finished jobs": Case(
        lambda s: read.finished(
            s,
            JobFilter(function="send", state=State.SUCCEEDED, before_id=LAST, limit=50),
            job_id(0),
        ),
        {"LIST history": (HISTORY_FUNCTION | HISTORY_ID, 400)},
    ),
    "a checkpoint": Case(
        lambda s: s.run(CHECKPOINT, {"id": job_id(7), "token": 1, "args": "{}"}),
        {"CHECKPOINT": (PK, 30)},
    ),
    "reschedule": Case(
        lambda s: s.run(
            RESCHEDULE, {"ids": [job_id(n) for n in range(8, 1000, 10)], "run_at": NOW}
        ),
        {"RESCHEDULE": (PK, 5000)},
    ),
    "list children": Case(
        lambda s: read.find(s, JobFilter(parent_id=job_id(110))),
        {"LIST jobs": ({"jobs_parent"}, 40), "LIST history": (HISTORY_PARENT, 80)},
    ),
}


class Plan(NamedTuple):
    nodes: list[dict[str, Any]]
    pages: int

    @property
    def scanned(self) -> set[str]:
        """Tables that are scanned sequentially; the few paused queues and functions may be."""
        scans = [node for node in self.nodes if node["Node Type"] == "Seq Scan"]
        return {node["Relation Name"] for node in scans} - {"queues", "functions"}

    @property
    def indexes(self) -> set[str]:
        return {node["Index Name"] for node in self.nodes if "Index Name" in node}

    @property
    def wasted(self) -> int:
        """Rows, or pairs of rows, that were read but not returned."""
        return sum(
            node["Actual Loops"] * (node.get("Rows Removed by Filter", 0))
            + node["Actual Loops"] * (node.get("Rows Removed by Join Filter", 0))
            for node in self.nodes
        )

    @property
    def read(self) -> list[int]:
        """For each LIMIT, the rows that were looked at for its sake."""
        return [
            sum(
                node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
                for node in nodes_of(limit)
                if "Plans" not in node
            )
            for limit in self.nodes
            if limit["Node Type"] == "Limit"
        ]


def nodes_of(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("Plans", ()):
        yield from nodes_of(inner)


class Bench:
    """A connection in one plan mode; whatever is run on it is undone."""

    def __init__(self, store: PostgresStore, mode: str) -> None:
        self.mode = mode
        self.raw = store.connect()
        self.raw.prepare_threshold = 0
        self.raw.prepared_max = None
        self.raw.execute(f"SET plan_cache_mode = {mode}".encode())
        self.session = Recorder(self.raw, store)

    def undone(self, call: Callable[[], Any]) -> Any:
        # Not through the driver: it forgets what it has prepared when it sees a ROLLBACK.
        self.raw.pgconn.exec_(b"BEGIN")
        try:
            return call()
        finally:
            self.raw.pgconn.exec_(b"ROLLBACK")

    def warm(self, case: Case, runs: int = RUNS) -> None:
        for _ in range(runs):
            self.undone(lambda: case.verb(self.session))

    def explain(self, name: str) -> Plan:
        text, parameters = self.session.seen[name]
        if name == "FINISH_MUTATION":
            parameters = {**parameters, "xid": "0"}
        prepared = self._prepared(text.decode())
        query = EXPLAIN.encode() + text
        if prepared:
            names = list(dict.fromkeys(PARAMETER.findall(text.decode())))
            query = self._execute(prepared, [parameters[name] for name in names])
            parameters = {}

        def run() -> list[Row]:
            if name in ("FINISH", "AGAIN"):
                self.session.run(NO_NESTED_LOOPS)
            return self.raw.execute(query, parameters or None, prepare=False).fetchall()

        [(answer,)] = self.undone(run)
        plan = answer[0]["Plan"]
        pages = plan.get("Shared Hit Blocks", 0) + plan.get("Shared Read Blocks", 0)
        return Plan(list(nodes_of(plan)), pages)

    def explain_within(self, name: str, pages: int, times: int = 3) -> Plan:
        """The same; again if it touches more: a table that just grew is not the plan's doing."""
        plan = self.explain(name)
        return (
            plan
            if plan.pages <= pages or times == 1
            else (self.explain_within(name, pages, times - 1))
        )

    def _prepared(self, text: str) -> tuple[str, list[str]] | None:
        """Under which name the driver has prepared it, and the types of its parameters."""
        names = list(dict.fromkeys(PARAMETER.findall(text)))
        numbered = PARAMETER.sub(lambda match: f"${names.index(match[1]) + 1}", text)
        found: tuple[str, list[str]] | None = self.raw.execute(
            "SELECT name, parameter_types::text[] FROM pg_prepared_statements"
            " WHERE statement = %s ORDER BY prepare_time DESC LIMIT 1",
            [numbered.replace("%%", "%")],
            prepare=False,
        ).fetchone()
        return found

    def _execute(self, prepared: tuple[str, list[str]], values: list[Any]) -> bytes:
        name, types = prepared
        arguments = [
            f"{compose.Literal(value).as_string(self.raw)}::{type_}"
            for value, type_ in zip(values, types, strict=True)
        ]
        call = f"({', '.join(arguments)})" if arguments else ""
        return f'{EXPLAIN} EXECUTE "{name}"{call}'.encode()


def load(url: str, first: int, last: int) -> None:
    values = {"now": NOW, "worker": WORKER, "first": first, "last": last}
    with psycopg.connect(url, autocommit=True) as own:
        own.execute(LOAD_JOBS, values)
        own.execute(LOAD_HISTORY, values)
        for text in (LOAD_STEPS, LOAD_EVENTS, LOAD_WATCHES):
            own.execute(text, values)


def load_waiting(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as own:
        own.execute(LOAD_WAITING, {"now": NOW, "key": KEY})


def analyze(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as own:
        own.execute("VACUUM ANALYZE duly.jobs, duly.history, duly.steps, duly.events, duly.watches")


def faults(bench: Bench, stage: str, *, strict: bool) -> Iterator[str]:
    """What is wrong with the plans; strict about indexes where a scan cannot be the better way."""
    for verb, case in CASES.items():
        bench.warm(case, 1)
        for statement in case.expected.keys() & bench.session.seen.keys():
            indexes, pages = case.expected[statement]
            plan = bench.explain_within(statement, pages)
            where = f"{stage}, {bench.mode}, {verb}: {statement}"
            if plan.pages > pages:
                yield f"{where} touches {plan.pages} pages, not {pages}"
            if plan.wasted > WASTE:
                yield f"{where} looks at {plan.wasted} rows in vain"
            if strict and plan.scanned:
                yield f"{where} scans {sorted(plan.scanned)}"
            if strict and not plan.indexes <= indexes | OF_WHAT_IS_PAUSED:
                yield f"{where} uses {sorted(plan.indexes - indexes)}"


@pytest.fixture
def database(migrated_postgres: str) -> str:
    tables = ["jobs", "progress", "kept", *(f"history_{bucket:02d}" for bucket in range(16))]
    with psycopg.connect(migrated_postgres, autocommit=True) as own:
        for table in tables:
            # What it would do is done here, when it is time for it.
            own.execute(f"ALTER TABLE duly.{table} SET (autovacuum_enabled = off)".encode())
        own.execute(
            "INSERT INTO duly.workers (id, app, host, pid, functions, slots, started_at)"
            " VALUES (%s, 'a', 'h', 1, '[\"send\"]', 1, 0)",
            [WORKER],
        )
        own.execute("INSERT INTO duly.queues VALUES ('paused', 1)")
    return migrated_postgres


@pytest.fixture
def benches(database: str) -> Iterator[list[Bench]]:
    store = PostgresStore(database)
    benches = [Bench(store, mode) for mode in MODES]
    yield benches
    for bench in benches:
        bench.raw.close()
    store.close()


def warm_all(benches: list[Bench]) -> None:
    for bench in benches:
        for case in CASES.values():
            bench.warm(case)


@pytest.mark.spec("N26")
def test_plans_on_small_and_large_tables(database, benches, long_run):
    found: list[str] = []
    analyze(database)
    warm_all(benches)
    for bench in benches:
        found += faults(bench, "empty", strict=False)
    load(database, 1, 100)
    analyze(database)
    warm_all(benches)
    for bench in benches:
        found += faults(bench, "small", strict=False)
    load(database, 101, 1_000_000 if long_run else 60_000)
    load_waiting(database)
    analyze(database)
    warm_all(benches)
    for bench in benches:
        found += faults(bench, "large", strict=True)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("vacuumed", [False, True], ids=["new", "vacuumed"])
def test_plans_that_were_made_on_an_empty_table_hold_when_it_fills(database, benches, vacuumed):
    if vacuumed:
        with psycopg.connect(database, autocommit=True) as own:
            own.execute("VACUUM ANALYZE duly.jobs")
    warm_all(benches)
    load(database, 1, 40_000)
    load_waiting(database)
    found: list[str] = []
    for bench in benches:
        found += faults(bench, "filled", strict=bench.mode == "force_generic_plan")
    # Lists are rare, and so is the repetition of an insert. Large batches are planned each time and
    # may find that a scan is the better way.
    rare_or_fresh = re.compile("LIST|INSERT_JOBS_ONCE|(FINISH|AGAIN) scans")
    found = [fault for fault in found if not rare_or_fresh.search(fault)]
    assert not found, "\n".join(found)


def test_lanes_come_in_the_order_of_the_request_whatever_the_plan(database, benches):
    """The window over the sizes adds up in the order of the lanes: no join may shuffle them."""
    load(database, 1, 2_000)
    with psycopg.connect(database, autocommit=True) as own:
        own.execute("INSERT INTO duly.queues SELECT 'p' || g, 1 FROM generate_series(1, 5000) g")
        own.execute("UPDATE duly.jobs SET queue = 'q' || (priority % 5) WHERE queue = 'default'")
        own.execute(
            "INSERT INTO duly.functions (name, kind, app, schema, options, internal, seen,"
            " published_at, status) SELECT 'f' || g, 'action', 'a', '{}', '{}', false, '', 0,"
            " CASE WHEN g % 50 = 0 THEN 'paused' ELSE 'active' END FROM generate_series(1, 5000) g"
        )
        own.execute("VACUUM ANALYZE duly.jobs, duly.queues, duly.functions")
    queues = ("q3", "q1", "q4", "q0", "q2")
    request = ClaimRequest(WORKER, queues, ("send",), 100)
    for bench in benches:
        for _ in range(RUNS):
            claims = bench.undone(lambda: bench.session.claim(request, NOW))  # noqa: B023
            assert len(claims) == 100
            assert list(dict.fromkeys(claim.queue for claim in claims)) == ["q3", "q1"]


# SQLite ------------------------------------------------------------------------------------------

SQLITE_JOBS = """
WITH RECURSIVE g(g) AS (SELECT :first UNION ALL SELECT g + 1 FROM g WHERE g < :last)
INSERT INTO duly_jobs (id, function, kind, queue, priority, state, hold, token, created_at,
    scheduled_at, run_at, deadline_at, expires_at, args, parent_id, worker_id)
SELECT printf('00000000-0000-7000-8000-%012x', g),
    iif(g % 10 IN (3, 4), 'gone', 'send'), 'action',
    iif(g % 10 IN (5, 6), 'paused', 'default'), (g / 10) % 10,
    iif(g % 100 = 7, 'running', 'pending'), iif(g % 10 IN (3, 4), 'function', NULL),
    iif(g % 100 = 7, 1, 0), :now, :now,
    iif(g % 10 < 3 OR (g % 10 = 7 AND g % 100 <> 7), :now + g, :now - g),
    iif(g % 100 = 7, :now + (g - 10000) * 1000, NULL),
    iif(g % 10 = 9, :now + (g - 1000) * 1000, NULL), '{}',
    iif(g % 10 = 8, printf('00000000-0000-7000-8000-%012x', g - 8), NULL),
    iif(g % 100 = 7, :worker, NULL)
FROM g
"""
SQLITE_HISTORY = """
WITH RECURSIVE g(g) AS (SELECT :first UNION ALL SELECT g + 1 FROM g WHERE g < :last)
INSERT INTO duly_history (id, function, kind, queue, priority, state, token, attempt, crashes,
    system_retries, created_at, scheduled_at, run_at, completed_at, args)
SELECT printf('ffffffff-0000-7000-8000-%012x', g), 'send', 'action', 'default', 5, 'succeeded', 1,
    1, 0, 0, :now, :now, :now, :now, '{}'
FROM g
"""


class SqliteRecorder(SqliteSession):
    """Remembers what was run last under each statement, so that it can be explained."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self.seen: dict[str, tuple[str, Any]] = {}

    def run(self, statement: Statement, parameters: Mapping[str, Any] = {}) -> list[Row]:
        self.seen[NAMES[statement]] = (SQL[statement], parameters)
        return super().run(statement, parameters)

    def run_text(self, text: str, parameters: Mapping[str, Any]) -> list[Row]:
        table = re.findall(r"FROM @(\w+)", text)[0]
        self.seen[f"LIST {table}"] = (sql.render(text, "sqlite", WORDS), parameters)
        return super().run_text(text, parameters)

    def many(self, statement: Statement, rows: Any) -> int:
        self.seen[NAMES[statement]] = (SQL[statement], rows[0])
        return super().many(statement, rows)

    def explain(self, name: str) -> list[str]:
        text, parameters = self.seen[name]
        return [row[3] for row in self.raw.execute(f"EXPLAIN QUERY PLAN {text}", parameters)]


def by_index(name: str, table: str = "duly_jobs") -> str:
    return f"SEARCH {table} USING (COVERING )?INDEX {name} "


OF_BATCHES_ON_SQLITE = by_index("duly_(jobs|history|kept)_batch", "t")
BY_ID = by_index("sqlite_autoindex_duly_jobs_1")
BY_CLAIM = by_index("duly_jobs_claim")

SQLITE_CASES: dict[str, tuple[Callable[[SqliteSession], object], dict[str, str]]] = {
    "look": (
        lambda s: read.look(s, [job_id(1), job_id(10**9 + 1)]),
        {
            "LOOK_LIVE": "SEARCH (t|p) USING INDEX sqlite_autoindex_duly_(jobs|progress)_1 ",
            "LOOK_ENDED": "SEARCH (t|p) USING INDEX (sqlite_autoindex_duly_kept_1|"
            "sqlite_autoindex_duly_progress_1|sqlite_autoindex_duly_history_1|duly_history_id) ",
        },
    ),
    "read a log": (
        lambda s: read.logs(s, job_id(7), 0),
        {"READ_LOGS": by_index("sqlite_autoindex_duly_logs_1", "duly_logs")},
    ),
    "claim": (lambda s: s.claim(REQUEST, NOW), {"PICK": BY_CLAIM, "CLAIM": BY_ID}),
    "lanes": (lambda s: s.lanes(), {"LANES": BY_CLAIM}),
    "finish": (
        lambda s: s.settle(settlements(Finish), NOW),
        {"FINISH": BY_ID, "FORGET_FINISHED": BY_ID},
    ),
    "give back": (lambda s: s._return(settlements(Again)[0]), {}),
    "lock the parent": (lambda s: enqueue.lock_running(s, job_id(7), 1), {"LOCK_PARENT": BY_ID}),
    "cancel": (
        lambda s: cancel.cancel_live(s, [job_id(110)], "x", NOW),
        {
            "LIVE_IDS": BY_ID,
            "MOVE_CANCELED": BY_ID,
            "FORGET_CANCELED": BY_ID,
            "CHILD_IDS": by_index("duly_jobs_parent"),
        },
    ),
    "holdings": (lambda s: workers.holdings(s, WORKER), {"HOLDINGS": by_index("duly_jobs_worker")}),
    "get": (
        lambda s: read.get(s, job_id(10**9)),
        {
            "GET_LIVE": BY_ID,
            "GET_HISTORY": by_index("duly_history_id", "duly_history"),
            "GET_KEPT": by_index("sqlite_autoindex_duly_kept_1", "duly_kept"),
        },
    ),
    "hold unknown": (lambda s: holds.stuck_at_heads(s, NOW), {"UNKNOWN_AT_HEAD": BY_CLAIM}),
    "hold": (lambda s: holds.hold(s, [job_id(8)], Hold.FUNCTION), {"SET_HOLD": BY_ID}),
    "release": (
        lambda s: holds.release(s, Hold.FUNCTION, ["gone", "other"]),
        {"HELD_IDS": by_index("duly_jobs_hold"), "CLEAR_HOLD": BY_ID},
    ),
    "stuck hooks": (
        lambda s: s.run(HOOKS, {"function": "a", "id": job_id(0)}),
        {"HOOKS": "SEARCH (t|m) USING (COVERING )?INDEX duly_jobs_(hold|batch|hook_id) "},
    ),
    "members of a batch": (
        lambda s: batches.batch_members(s, job_id(1), None, job_id(0), 50),
        {"MEMBER_IDS": OF_BATCHES_ON_SQLITE},
    ),
    "count a batch": (
        lambda s: batches.batch_counts(s, job_id(1)),
        {"BATCH_COUNTS": OF_BATCHES_ON_SQLITE},
    ),
    "hooks of finished jobs": (
        lambda s: replay.hooks_of(s, [job_id(1)]),
        {"HOOKS_OF": by_index("duly_history_id", "duly_history")},
    ),
    "expire": (lambda s: run.cancel_expired(s, NOW), {"EXPIRED_IDS": by_index("duly_jobs_expiry")}),
    "time out": (
        lambda s: s.run(OVERDUE, {"before": NOW}),
        {"OVERDUE": by_index("duly_jobs_deadline")},
    ),
    "due alone": (
        lambda s: run.due_alone(s, ["send"], ["default"], NOW),
        {"DUE_ALONE": by_index("duly_jobs_hold")},
    ),
    "lost jobs": (
        lambda s: s.run(RUNNING_OF, {"worker": WORKER}),
        {"RUNNING_OF": by_index("duly_jobs_worker")},
    ),
    "lost runs": (
        lambda s: s.run(ADVANCED, {"lost": f'[["{job_id(7)}", 1]]'}),
        {"ADVANCED": r"SCAN json_each"},
    ),
    "load a run": (
        lambda s: [s.run(each, {"id": job_id(7), "token": 1}) for each in LOADING],
        {
            "READ_RUN": BY_ID,
            "READ_STEPS": by_index("sqlite_autoindex_duly_steps_1", "duly_steps"),
            "UNREAD_EVENTS": by_index("sqlite_autoindex_duly_events_1", "duly_events"),
        },
    ),
    "send an event": (
        lambda s: [s.run(each, EVENT) for each in (SENT_ONCE, COUNT_UNREAD, DELIVER)],
        {
            "SENT_ONCE": r"SEARCH duly_events USING (COVERING )?INDEX duly_events_once",
            "COUNT_UNREAD": by_index("sqlite_autoindex_duly_events_1", "duly_events"),
            "DELIVER": BY_ID,
        },
    ),
    "retain": (
        lambda s: s.retain(NOW - 1, NOW - 1),
        {"OLDEST_FINISHED": "SCAN duly_history$"},
    ),
    "a page of a bulk job": (
        lambda s: read.live_ids(
            s, JobFilter(function="send", before_id=job_id(10**6), limit=50), job_id(50)
        ),
        {"LIST jobs": by_index("sqlite_autoindex_duly_jobs_1", "t")},
    ),
    "a page of finished jobs": (
        lambda s: read.finished(
            s,
            JobFilter(function="send", state=State.SUCCEEDED, before_id=LAST, limit=50),
            job_id(0),
        ),
        {"LIST history": by_index("duly_history_(function|id)", "t")},
    ),
    "reschedule": (
        lambda s: s.run(RESCHEDULE, {"ids": s.array([job_id(8)]), "run_at": NOW}),
        {"RESCHEDULE": BY_ID},
    ),
    "list children": (
        lambda s: read.find(s, JobFilter(parent_id=job_id(110))),
        {
            "LIST jobs": by_index("duly_jobs_parent", "t"),
            "LIST history": by_index("duly_history_parent", "t"),
        },
    ),
    "list a function": (
        lambda s: read.find(s, JobFilter(state=State.SUCCEEDED, function="send", limit=50)),
        {"LIST history": by_index("duly_history_function", "t")},
    ),
}


def sqlite_faults(session: SqliteRecorder, stage: str) -> Iterator[str]:
    for verb, (call, expected) in SQLITE_CASES.items():
        session.raw.execute("BEGIN IMMEDIATE")
        call(session)
        session.raw.execute("ROLLBACK")
        for statement in expected.keys() & session.seen.keys():
            plan = session.explain(statement)
            where = f"{stage}, {verb}: {statement}"
            if not any(re.match(expected[statement], line) for line in plan):
                yield f"{where} does not use its index: {plan}"
            if statement != "OLDEST_FINISHED" and any(
                re.match(r"SCAN (duly_jobs|duly_history|duly_kept|t)\b", line) for line in plan
            ):
                yield f"{where} scans a table: {plan}"
            if statement in ("PICK", "LANES") and any("TEMP B-TREE" in line for line in plan):
                yield f"{where} sorts: {plan}"


def load_sqlite(raw: sqlite3.Connection, first: int, last: int) -> None:
    values = {"first": first, "last": last, "now": NOW}
    raw.execute("BEGIN")
    raw.execute(SQLITE_JOBS, values | {"worker": WORKER})
    raw.execute(SQLITE_HISTORY, values)
    raw.execute("COMMIT")


@pytest.fixture
def sqlite_session() -> Iterator[SqliteRecorder]:
    store = SqliteStore(None)
    store.open(NOW)
    raw = store.connect()
    raw.execute(
        "INSERT INTO duly_workers (id, app, host, pid, functions, slots, started_at)"
        " VALUES (?, 'a', 'h', 1, '[\"send\"]', 1, 0)",
        [WORKER],
    )
    raw.execute("INSERT INTO duly_queues (name, paused_at) VALUES ('paused', 1)")
    yield SqliteRecorder(raw)
    raw.close()
    store.close()


def test_sqlite_uses_its_indexes_with_and_without_statistics(sqlite_session):
    """A user may run ANALYZE at any time, even on empty tables."""
    raw = sqlite_session.raw
    found = list(sqlite_faults(sqlite_session, "empty"))
    raw.execute("ANALYZE")
    found += sqlite_faults(sqlite_session, "empty, analyzed")
    load_sqlite(raw, 1, 100)
    raw.execute("ANALYZE")
    found += sqlite_faults(sqlite_session, "small, analyzed")
    load_sqlite(raw, 101, 20_000)
    found += sqlite_faults(sqlite_session, "large, with the statistics of small")
    raw.execute("ANALYZE")
    found += sqlite_faults(sqlite_session, "large, analyzed")
    assert found == []


@pytest.mark.spec("N26")
def test_a_claim_on_sqlite_does_not_look_at_jobs_that_cannot_start(sqlite_session):
    raw = sqlite_session.raw

    def steps_of_a_claim() -> int:
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        raw.execute("BEGIN IMMEDIATE")
        raw.set_progress_handler(count, 10)
        # Every claim looks up which queues have due jobs.
        assert sqlite_session.lanes()
        assert len(sqlite_session.claim(ClaimRequest(WORKER, QUEUES, ("send",), 5), NOW)) == 5
        raw.set_progress_handler(None, 0)
        raw.execute("ROLLBACK")
        return steps

    load_sqlite(raw, 1, 100)
    before = steps_of_a_claim()
    load_sqlite(raw, 101, 40_000)
    assert steps_of_a_claim() < before * 2
