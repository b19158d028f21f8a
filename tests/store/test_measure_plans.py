"""The plans of health and metrics: look-ups, and counts that end, however much there is."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from duly.model.measure import CAP, Count
from duly.store import measures, system, views
from duly.store import measures as sql
from duly.store.jobs.read import TRACES_OF
from duly.testing.conformance.ground import NOW
from tests.store.test_plans import (
    HISTORY_FUNCTION,
    HISTORY_ID,
    WASTE,
    Bench,
    Case,
    SqliteRecorder,
    analyze,
    benches,
    database,
    job_id,
    load,
    load_sqlite,
    sqlite_session,
)
from tests.store.test_schedule_plans import LOAD_SCHEDULES, SCHEDULES

__all__ = ["benches", "database", "sqlite_session"]

pytestmark = pytest.mark.new_database

LARGE = 60_000
LANE = {"queue": "default", "priority": 5, "now": NOW, "limit": CAP}
COUNTS = [Count("a", f'{{"n":"{n}"}}', 1) for n in range(100)]
IDS = [job_id(n) for n in range(1, 200)]
BIG = {"jobs", "schedules", *(f"history_{bucket:02d}" for bucket in range(16))}

# Pages: an entry of an index may lead to a page of the table, and no more than 10,000 of them do.
CASES = {
    "the oldest due schedule": Case(
        lambda s: s.run(sql.OLDEST_DUE), {"OLDEST_DUE": ({"schedules_due"}, 10)}
    ),
    "a lane": Case(
        lambda s: s.run(sql.COUNT_LANE, LANE), {"COUNT_LANE": ({"jobs_claim"}, 2 * CAP)}
    ),
    "an empty lane": Case(
        lambda s: s.run(sql.COUNT_LANE, LANE | {"queue": "empty"}),
        {"COUNT_LANE": ({"jobs_claim"}, 20)},
    ),
    "what runs": Case(
        lambda s: s.run(sql.RUNNING_BY_QUEUE), {"RUNNING_BY_QUEUE": ({"jobs_worker"}, 2 * CAP)}
    ),
    "what is held": Case(
        lambda s: s.run(sql.HELD_BY_QUEUE), {"HELD_BY_QUEUE": ({"jobs_hold"}, 2 * CAP)}
    ),
    "what is waited for": Case(
        measures.waiting_functions, {"WAITING_FUNCTIONS": ({"jobs_function"}, 1_000)}
    ),
    "schedules": Case(
        measures.schedule_counts,
        {
            "COUNT_SCHEDULES": (
                {"schedules_due", "schedules_parked", "schedules_pkey", "schedules_owner"},
                3 * CAP,
            )
        },
    ),
    "counts": Case(
        lambda s: measures.add_counts(s, COUNTS), {"ADD_COUNTS": ({"counters_pkey"}, 2_000)}
    ),
    "traces": Case(
        lambda s: s.run(TRACES_OF, {"ids": s.array(IDS)}),
        {"TRACES_OF": ({"traces_pkey"}, 1_000)},
    ),
    "rows of jobs": Case(
        lambda s: system.rows(s, "jobs", [job_id(100)], 100), {"LIST jobs": ({"jobs_pkey"}, 300)}
    ),
    "rows of the history": Case(
        lambda s: system.rows(s, "history", [job_id(100)], 100),
        {"LIST history": ({f"history_{n:02d}_id_bucket_idx" for n in range(16)}, 600)},
    ),
    "the tally": Case(
        lambda s: views.tally(s, NOW, NOW - 60_000, NOW, None),
        {
            "TALLY": (
                {"schedules_due", "schedules_expect", "schedules_disabled", "jobs_worker"},
                6 * CAP,
            ),
            "FAILED_SINCE": (HISTORY_FUNCTION | {"functions_pkey"}, 200),
        },
    ),
    "recent runs": Case(
        lambda s: views.recent_runs(s, SCHEDULES[:50], 30),
        {"RECENT_RUNS": ({f"history_{n:02d}_actor_id_idx" for n in range(16)}, 50 * 16 * 4)},
    ),
    "runs of functions": Case(
        lambda s: views.function_runs(s, ["send", *(f"other{n}" for n in range(49))], 50),
        {"FUNCTION_RUNS": (HISTORY_FUNCTION, 50 * 2 * 16 * 4)},
    ),
    "throughput": Case(
        lambda s: views.throughput(s, 0, 60_000, None),
        {"THROUGHPUT": (HISTORY_ID, 3 * CAP)},
    ),
}


def faults(bench: Bench) -> Iterator[str]:
    for verb, case in CASES.items():
        bench.warm(case)
        for statement, (indexes, pages) in case.expected.items():
            plan = bench.explain(statement)
            where = f"{bench.mode}, {verb}: {statement}"
            if plan.pages > pages:
                yield f"{where} touches {plan.pages} pages, not {pages}"
            if plan.wasted > WASTE:
                yield f"{where} looks at {plan.wasted} rows in vain"
            if scanned := plan.scanned & BIG:
                yield f"{where} scans {sorted(scanned)}"
            if not plan.indexes <= indexes:
                yield f"{where} uses {sorted(plan.indexes - indexes)}"


@pytest.mark.spec("R95", "N26")
def test_nothing_is_read_from_end_to_end(database: str, benches: list[Bench]):
    load(database, 1, LARGE)
    values = {"now": NOW, "first": 1, "last": LARGE}
    with psycopg.connect(database, autocommit=True) as own:
        own.execute(LOAD_SCHEDULES, values)
        own.execute("INSERT INTO duly.traces SELECT id, 'p' FROM duly.jobs")
        own.execute("VACUUM ANALYZE duly.schedules, duly.traces, duly.counters")
    analyze(database)
    found = [fault for bench in benches for fault in faults(bench)]
    assert not found, "\n".join(found)


SQLITE_CASES: dict[str, tuple[Callable[[Any], object], str, str]] = {
    "lane": (lambda s: s.run(sql.COUNT_LANE, LANE), "COUNT_LANE", "duly_jobs_claim"),
    "running": (lambda s: s.run(sql.RUNNING_BY_QUEUE), "RUNNING_BY_QUEUE", "duly_jobs_worker"),
    "held": (lambda s: s.run(sql.HELD_BY_QUEUE), "HELD_BY_QUEUE", "duly_jobs_hold"),
    "due": (lambda s: s.run(sql.OLDEST_DUE), "OLDEST_DUE", "duly_schedules_due"),
    "parked": (measures.schedule_counts, "COUNT_SCHEDULES", "duly_schedules_parked"),
    "tally": (lambda s: views.tally(s, NOW, NOW, NOW, None), "TALLY", "duly_schedules_due"),
    "failed": (
        lambda s: views.tally(s, NOW, NOW, NOW, None),
        "FAILED_SINCE",
        "duly_history_function",
    ),
    "runs": (
        lambda s: views.recent_runs(s, SCHEDULES[:50], 30),
        "RECENT_RUNS",
        "duly_history_schedule",
    ),
    "runs of functions": (
        lambda s: views.function_runs(s, ["send", "other"], 50),
        "FUNCTION_RUNS",
        "duly_history_function",
    ),
    "throughput": (
        lambda s: views.throughput(s, 0, 60_000, None),
        "THROUGHPUT",
        "duly_history_id",
    ),
    "jobs": (
        lambda s: system.rows(s, "jobs", [job_id(100)], 100),
        "LIST jobs",
        "sqlite_autoindex_duly_jobs_1",
    ),
    "history": (
        lambda s: system.rows(s, "history", [job_id(100)], 100),
        "LIST history",
        "duly_history_id",
    ),
    "logs": (
        lambda s: system.rows(s, "logs", [job_id(100), 5], 100),
        "LIST logs",
        "sqlite_autoindex_duly_logs_1",
    ),
}


@pytest.mark.spec("R95")
@pytest.mark.parametrize("analyzed", [False, True])
def test_sqlite_goes_along_an_index(sqlite_session: SqliteRecorder, analyzed: bool):
    load_sqlite(sqlite_session.raw, 1, 5_000)
    if analyzed:
        sqlite_session.raw.execute("ANALYZE")
    for run, statement, index in SQLITE_CASES.values():
        run(sqlite_session)
        plan = "\n".join(sqlite_session.explain(statement))
        assert index in plan, plan
        scans = [line for line in plan.splitlines() if re.match(r"SCAN (duly_|t\b)", line)]
        # Along an index that holds only what is asked for, or in its order up to the limit.
        assert all("USING" in line for line in scans), plan
