"""The plans of what tickers ask for: few pages, however many schedules and jobs there are."""

import re
from collections.abc import Iterator

import psycopg
import pytest

from duly.model.schedule import ScheduleFilter, TickFilter
from duly.model.schedule_options import DAY_MS
from duly.store.expectations import SUCCESSES_AMONG
from duly.store.postgres import PostgresSession
from duly.store.schedules.data import _find, ticks
from duly.store.schedules.due import LOCK_DUE, PEEK_DUE
from duly.store.schedules.facts import COUNTED, IN_FLIGHT, prior_of
from duly.store.schedules.parked import LOCK_PARKED, MISSING_FUNCTIONS
from duly.store.session import Session
from duly.testing.conformance.ground import NOW
from tests.store.test_plans import (
    HISTORY_FUNCTION,
    HISTORY_ID,
    LOAD_HISTORY,
    SQLITE_HISTORY,
    WASTE,
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

__all__ = ["benches", "database", "sqlite_session"]

pytestmark = pytest.mark.new_database

LARGE = 60_000
SCHEDULES = [f"11111111-0000-7000-8000-{n:012x}" for n in range(1, LARGE, 600)]
OTHERS = [f"ffffffff-0000-7000-8000-{n:012x}" for n in range(1, LARGE, 6000)]

# One in a hundred is due, and each has a job or two.
LOAD_SCHEDULES = """
INSERT INTO duly.schedules (id, app, owner, key, function, args, options, trigger, zoned, policies,
    enabled, next_tick_at, due_at, created_at, updated_at)
SELECT ('11111111-0000-7000-8000-' || lpad(to_hex(g), 12, '0'))::uuid, '', '', g, 'send', '{}',
    '{}', '{}', g %% 2 = 0, '{}', true, %(now)s, %(now)s + (g %% 100) * 1000, 0, 0
FROM generate_series(%(first)s::int, %(last)s::int) g
"""
OF_SCHEDULES = """
UPDATE duly.jobs SET trigger = 'schedule', actor = '11111111-' || substr(id::text, 10)
WHERE state = 'running' OR id::text LIKE '%%5'
"""
# A function that has not run for years, but often then.
LOAD_OLD = """
INSERT INTO duly.history (bucket, id, function, kind, queue, priority, state, token, attempt,
    crashes, system_retries, created_at, scheduled_at, run_at, completed_at, args)
SELECT g / 100 %% 16, ('00000001-0000-7000-8000-' || lpad(to_hex(g), 12, '0'))::uuid, 'old',
    'action', 'default', 5, CASE WHEN g %% 2 = 0 THEN 'succeeded' ELSE 'failed' END, 1, 1, 0, 0, 1,
    1, 1, 1, '{}'
FROM generate_series(%(first)s::int, %(last)s::int) g
"""
# More of each than are counted, under their own ids; a partition may be read to its end.
MANY = 20_000
READ = COUNTED + LARGE // len(HISTORY_ID)
ENDED_OTHERWISE = {"failed": "eeeeeeee", "canceled": "cccccccc"}


def ended_otherwise(load: str) -> list[str]:
    return [
        load.replace("'succeeded'", f"'{state}'").replace("ffffffff", ids)
        for state, ids in ENDED_OTHERWISE.items()
    ]


def due(session: PostgresSession) -> None:
    given = {"now": NOW, "limit": 101, "zone_data": "2026a", "signals_for": "mail"}
    session.run(LOCK_DUE, given)
    session.run(PEEK_DUE, given)


# A schedule with its own ledger, and one in a thousand that is parked.
BUSY = "22222222-0000-7000-8000-000000000001"
LOAD_TICKS = """
INSERT INTO duly.ticks (schedule_id, kind, tick_at, outcome, reason, due_at, decided_at)
SELECT %(busy)s, CASE WHEN g %% 50 = 0 THEN 'manual' ELSE 'slot' END, %(now)s + g, 'skipped',
    'condition_failed', 0, 0
FROM generate_series(%(first)s::int, %(last)s::int) g
"""
SOME_PARKED = """
UPDATE duly.schedules SET parked_at = 1, error = 'UnknownFunction: ', next_tick_at = NULL,
    due_at = NULL WHERE key::int % 1000 = 0
"""


def newest(session: Session) -> object:
    return ticks(session, BUSY, TickFilter(limit=5))


def lately(session: Session) -> object:
    return ticks(session, BUSY, TickFilter(after=NOW + LARGE - 100, limit=10_000))


AMONG_PARKED = ("LOCK_PARKED", "MISSING_FUNCTIONS", "LIST schedules")


def parked(session: Session) -> object:
    session.run(LOCK_PARKED, {"functions": session.array(["send"])})
    session.run(MISSING_FUNCTIONS)
    return _find(session, ScheduleFilter(parked=True))


ENDED = HISTORY_FUNCTION | {"kept_ended"}
OF_FUNCTION = ENDED | {"jobs_function", "jobs_worker", "jobs_pkey"}
CASES = {
    "due": Case(
        due, {name: ({"schedules_due", "meta_pkey"}, 1000) for name in ("LOCK_DUE", "PEEK_DUE")}
    ),
    "in flight": Case(
        lambda s: s.run(IN_FLIGHT, {"ids": s.array(SCHEDULES)}),
        {"IN_FLIGHT": ({"jobs_schedule"}, 1500)},
    ),
    "successes of other jobs": Case(
        lambda s: s.run(SUCCESSES_AMONG, {"ids": s.array(OTHERS)}),
        {"SUCCESSES_AMONG": (HISTORY_ID | {"jobs_pkey"}, len(OTHERS) * 16 * 4)},
    ),
    "newest ticks": Case(newest, {"LIST ticks": ({"ticks_pkey"}, 50)}),
    "ticks of late": Case(lately, {"LIST ticks": ({"ticks_pkey"}, 50)}),
    "parked": Case(
        parked,
        {name: ({"schedules_parked"}, 500) for name in AMONG_PARKED},
    ),
    # Three states in sixteen buckets, and in @kept; each is one look into an index.
    "prior of a busy function": Case(
        lambda s: prior_of(s, "send", NOW),
        {"LATEST_FINISHED": (ENDED, 500), "LAST_DAY": (OF_FUNCTION, 35_000)},
    ),
    "prior of an old function": Case(
        lambda s: prior_of(s, "old", NOW),
        {"LATEST_FINISHED": (ENDED, 500), "LAST_DAY": (OF_FUNCTION, 3_000)},
    ),
}
PARTITIONS = {f"history_{bucket:02d}" for bucket in range(16)}


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
            if scanned := plan.scanned & {"jobs", "schedules", "ticks", *PARTITIONS}:
                yield f"{where} scans {sorted(scanned)}"
            if not plan.indexes <= indexes:
                yield f"{where} uses {sorted(plan.indexes - indexes)}"
            if statement == "LAST_DAY" and (len(plan.read) != 5 or max(plan.read) > READ):
                yield f"{where} reads {plan.read} rows"


@pytest.mark.spec("R137", "R138", "N26")
def test_plans_of_schedules_on_large_tables(database: str, benches: list[Bench]):
    load(database, 1, LARGE)
    values = {"now": NOW, "first": 1, "last": LARGE, "busy": BUSY}
    with psycopg.connect(database, autocommit=True) as own:
        own.execute(LOAD_SCHEDULES, values)
        own.execute(LOAD_OLD, values)
        for load_more in ended_otherwise(LOAD_HISTORY):
            own.execute(load_more.encode(), values | {"last": MANY})
        own.execute(OF_SCHEDULES.replace("%%", "%"))
        own.execute(LOAD_TICKS, values)
        own.execute(SOME_PARKED)
        own.execute("VACUUM ANALYZE duly.schedules")
        own.execute("VACUUM ANALYZE duly.ticks")
    analyze(database)
    found = [fault for bench in benches for fault in faults(bench)]
    assert not found, "\n".join(found)
    for bench in benches:
        # Within this day more were created than are counted, also of those that wait.
        bench.warm(Case(lambda s: prior_of(s, "send", DAY_MS), {}), 1)
        *ended, waiting, _ = bench.explain("LAST_DAY").read
        assert min(ended) >= COUNTED
        assert waiting == COUNTED


@pytest.mark.spec("R137", "R138")
def test_sqlite_finds_them_by_index(sqlite_session: SqliteRecorder):
    raw = sqlite_session.raw
    load_sqlite(raw, 1, 5_000)
    for analyzed in (False, True):
        if analyzed:
            raw.execute("ANALYZE")
        prior_of(sqlite_session, "send", NOW)
        given = {"now": NOW, "limit": 101, "zone_data": "2026a", "signals_for": "mail"}
        sqlite_session.run(LOCK_DUE, given)
        sqlite_session.run(IN_FLIGHT, {"ids": sqlite_session.array(SCHEDULES)})
        sqlite_session.run(SUCCESSES_AMONG, {"ids": sqlite_session.array(OTHERS)})
        parked(sqlite_session)
        lately(sqlite_session)
        names = (
            "LATEST_FINISHED",
            "LAST_DAY",
            "LOCK_DUE",
            "IN_FLIGHT",
            "SUCCESSES_AMONG",
            *AMONG_PARKED,
        )
        seen = {name: "\n".join(sqlite_session.explain(name)) for name in (*names, "LIST ticks")}
        for name in AMONG_PARKED:
            assert "USING INDEX duly_schedules_parked" in seen[name]
        in_range = "USING PRIMARY KEY (schedule_id=? AND kind=? AND tick_at>?)"
        assert seen["LIST ticks"].count(in_range) == 3
        assert "USING INDEX duly_schedules_due" in seen["LOCK_DUE"]
        assert not re.search(r"SCAN duly_", seen["SUCCESSES_AMONG"])
        assert seen["IN_FLIGHT"].count("duly_jobs_schedule") == 2
        assert seen["LATEST_FINISHED"].count("duly_history_function (function=? AND state=?)") == 3
        assert seen["LATEST_FINISHED"].count("duly_kept_ended (function=? AND state=?)") == 3
        assert (
            seen["LAST_DAY"].count("duly_history_function (function=? AND state=? AND id>?)") == 3
        )
        for name, plan in seen.items():
            tables = ("duly_jobs", "duly_history", "duly_schedules", "duly_kept")
            assert not any(f"SCAN {table}\n" in f"{plan}\n" for table in tables), (name, plan)


@pytest.mark.spec("R138")
def test_sqlite_reads_no_more_jobs_than_it_counts(sqlite_session: SqliteRecorder):
    raw = sqlite_session.raw

    def steps_of_a_look() -> int:
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        raw.set_progress_handler(count, 100)
        stats = prior_of(sqlite_session, "send", DAY_MS).stats
        raw.set_progress_handler(None, 0)
        assert stats == (COUNTED, COUNTED, COUNTED)
        return steps

    def load_of_each(first: int, last: int) -> None:
        load_sqlite(raw, first, last)
        for load_more in ended_otherwise(SQLITE_HISTORY):
            raw.execute(load_more, {"first": first, "last": last, "now": NOW})

    load_of_each(1, 15_000)
    before = steps_of_a_look()
    load_of_each(15_001, 30_000)
    assert steps_of_a_look() < before * 1.1
