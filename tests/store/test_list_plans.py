"""The plans of lists that find little or nothing: few pages, however much there is.

A list is planned for the values that it asks for, as `force_custom_plan` has it.
"""

import re
from collections.abc import Callable

import psycopg
import pytest

from duly.model.inbox import EventState, InboxFilter
from duly.model.job import JobFilter, State
from duly.store import views
from duly.store.access import audit_page
from duly.store.inbox import find
from duly.store.jobs import read
from duly.store.postgres import PostgresStore
from duly.store.schedules.data import SCHEDULED_FUNCTIONS
from duly.store.session import Session
from duly.testing.conformance.ground import NOW
from tests.store.test_plans import (
    Bench,
    Case,
    SqliteRecorder,
    analyze,
    benches,
    database,
    load,
    load_sqlite,
    sqlite_session,
)
from tests.store.test_schedule_plans import LOAD_SCHEDULES

__all__ = ["benches", "database", "sqlite_session"]

pytestmark = pytest.mark.new_database

LARGE = 30_000
# Every event has been processed.
LOAD_INBOX = """
INSERT INTO duly.inbox (id, webhook, delivery, headers, body, received_at, job_id)
SELECT id, 'github', id, '{}', '', 0, id FROM duly.history
"""
LOAD_AUDIT = """
INSERT INTO duly.audit (id, at, actor, action, target)
SELECT id, 0, 'ann', 'schedule.update', 'schedule:1' FROM duly.history
"""


def events(state: EventState) -> Callable[[Session], object]:
    return lambda s: find(s, InboxFilter(state=state))


def audited(**which: str | None) -> Callable[[Session], object]:
    given: dict[str, str | None] = {"target": None, "actor": None, "action": None, **which}
    return lambda s: audit_page(s, before=None, limit=50, **given)


def parts(name: str) -> set[str]:
    return {f"history_{bucket:02d}_{name}" for bucket in range(16)}


QUEUE = parts("queue_id_idx")
STATE = parts("state_id_idx")
UNPROCESSED = parts("id_idx1")
OLDER = "inbox_older_job"
CASES = {
    "an unknown queue": Case(
        lambda s: read.find(s, JobFilter(queue="unknown")), {"LIST history": (QUEUE, 50)}
    ),
    "nothing has failed": Case(
        lambda s: read.find(s, JobFilter(state=State.FAILED)), {"LIST history": (STATE, 50)}
    ),
    "an unknown queue, failed": Case(
        lambda s: read.find(s, JobFilter(queue="unknown", state=State.FAILED)),
        {"LIST history": (QUEUE, 50)},
    ),
    "pending events": Case(
        events(EventState.PENDING), {"PENDING_EVENTS": ({"jobs_line", OLDER}, 20)}
    ),
    "events that are processed": Case(
        events(EventState.PROCESSING),
        {"PROCESSING_EVENTS": ({"jobs_line", "jobs_worker", OLDER}, 700)},
    ),
    "failed events": Case(
        events(EventState.FAILED),
        {"FAILED_EVENTS": (UNPROCESSED | {"kept_unprocessed", OLDER}, 60)},
    ),
    "filtered events": Case(
        events(EventState.FILTERED), {"FILTERED_EVENTS": ({"inbox_filtered"}, 10)}
    ),
    "an unknown action": Case(audited(action="token"), {"LIST audit": ({"audit_action"}, 10)}),
    "an unknown actor": Case(audited(actor="bob"), {"LIST audit": ({"audit_actor"}, 10)}),
    "functions of schedules": Case(
        lambda s: s.run(SCHEDULED_FUNCTIONS),
        {"SCHEDULED_FUNCTIONS": ({"schedules_function"}, 20)},
    ),
    "the tally": Case(
        lambda s: views.tally(s, 0, 0, NOW, None),
        {
            "TALLY": (
                {"schedules_due", "schedules_expect", "schedules_disabled", "jobs_worker"},
                700,
            )
        },
    ),
}


def test_a_list_that_finds_nothing_looks_at_little(database: str, benches: list[Bench]):
    load(database, 1, LARGE)
    values = {"now": NOW, "first": 1, "last": LARGE}
    with psycopg.connect(database, autocommit=True) as own:
        own.execute(LOAD_SCHEDULES, values)
        own.execute(LOAD_INBOX)
        own.execute(LOAD_AUDIT)
        own.execute("VACUUM ANALYZE duly.schedules, duly.inbox, duly.audit")
    analyze(database)
    (bench,) = [bench for bench in benches if bench.mode == "force_custom_plan"]
    found: list[str] = []
    for verb, case in CASES.items():
        bench.warm(case, 1)
        for statement, (indexes, pages) in case.expected.items():
            plan = bench.explain(statement)
            if plan.pages > pages or not plan.indexes <= indexes or plan.scanned - {"kept"}:
                found.append(f"{verb}: {plan.pages} pages, {plan.indexes}, {plan.scanned}")
    assert not found, "\n".join(found)


@pytest.mark.postgres
def test_lists_are_planned_for_what_they_ask_for(migrated_postgres: str):
    store = PostgresStore(migrated_postgres)
    said = store.read_in_time(  # pyright: ignore[reportPrivateUsage]
        lambda s: [
            s.raw.execute(f"SHOW {name}".encode()).fetchall()[0][0]
            for name in ("plan_cache_mode", "statement_timeout")
        ]
    )
    store.close()
    assert said == ["force_custom_plan", "10s"]


SQLITE_CASES: dict[str, tuple[str, str]] = {
    "an unknown queue": ("LIST history", "duly_history_queue"),
    "nothing has failed": ("LIST history", "duly_history_state"),
    "pending events": ("PENDING_EVENTS", "duly_jobs_line"),
    "failed events": ("FAILED_EVENTS", "duly_history_unprocessed"),
    "filtered events": ("FILTERED_EVENTS", "duly_inbox_filtered"),
    "an unknown actor": ("LIST audit", "duly_audit_actor"),
    "functions of schedules": ("SCHEDULED_FUNCTIONS", "duly_schedules_function"),
    "the tally": ("TALLY", "duly_schedules_disabled"),
}


@pytest.mark.parametrize("analyzed", [False, True])
def test_sqlite_goes_along_an_index(sqlite_session: SqliteRecorder, analyzed: bool):
    load_sqlite(sqlite_session.raw, 1, 2_000)
    if analyzed:
        sqlite_session.raw.execute("ANALYZE")
    for case, (statement, index) in SQLITE_CASES.items():
        CASES[case].verb(sqlite_session)  # type: ignore[arg-type]
        plan = "\n".join(sqlite_session.explain(statement))
        assert index in plan, plan
        assert not re.search(r"SCAN duly_\w+$", plan, re.MULTILINE), plan
