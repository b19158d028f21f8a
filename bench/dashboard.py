"""Measures how fast the dashboard lists the contents of a large database.

    make bench ARGS="--only dashboard"                   5,000,000 jobs, 100,000 schedules
    python -m bench.dashboard --jobs 50000 --schedules 1000

Every list is requested through the ASGI application, in rounds, as an administrator and as one
owner of a thousand; PostgreSQL only. A page that is slower than the bar at the 95th percentile has
missed it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from string import Template
from typing import NamedTuple

from starlette.testclient import TestClient

from bench.databases import Database, PostgresDatabase, now_ms, postgres_server
from bench.figures import say
from duly import Ctx, Duly
from duly.server import make_asgi
from duly.store.statements import DAY_MS, HISTORY_BUCKETS

JOBS, SCHEDULES = 5_000_000, 100_000
BAR_MS = 100.0
ROUNDS = 5
ASKED = 6
"""How often in a round; a page that takes longer than SLOW_MS only once."""
SLOW_MS = 1_000.0
DAYS = 13
FUNCTIONS = 50
OWNER = "owner-7"
MIDDLE = 1.5
"""Days back: where a page deep in a list starts."""

# A number that looks random, and is the same in each run.
_DICE = "(i::bigint * 2654435761 % 4294967296)"
_OWNER = f"'owner-' || floor(power({_DICE} % 10007 / 10007.0, 3) * 1000)::int"
# A few functions have most of the jobs; one job of a hundred thousand is of a rare one.
_FUNCTION = f"""CASE WHEN i % 100000 = 0 THEN 'rare'
    ELSE 'task_' || floor(power({_DICE} % 9973 / 9973.0, 2) * {FUNCTIONS})::int END"""
_QUEUE = f"""CASE WHEN i % 50000 = 0 THEN 'backfill'
    ELSE (ARRAY['default', 'default', 'default', 'mail', 'reports'])[1 + {_DICE} / 7 % 5] END"""


def _id(ms: str, number: str) -> str:
    """An id as duly makes them: the time, then what tells it from others."""
    return f"""(lpad(to_hex(({ms})::bigint), 12, '0') || '70008'
        || lpad(to_hex(({number})::bigint), 15, '0'))::uuid"""


def _schedule(number: str) -> str:
    return _id("1", number)


_CREATED = f"($now - ($count - i)::bigint * {DAYS * DAY_MS} / $count)"
_FINISHED = f"""INSERT INTO @history (bucket, id, function, kind, queue, priority, state, token,
        attempt, crashes, system_retries, created_at, scheduled_at, run_at, started_at,
        completed_at, args, owner, result, error_kind, error_message, exhausted, trigger, actor)
    SELECT (at + 900) / {DAY_MS} % {HISTORY_BUCKETS}, {_id("at", "i")}, {_FUNCTION}, 'action',
        {_QUEUE}, 5, state, 1, 1 + dice % 3, 0, 0, at, at, at, at + 100,
        at + 200 + dice % 700, '{{"n":' || i || ',"text":"some text of usual length"}}',
        CASE WHEN dice % 3 > 0 THEN {_OWNER} END,
        CASE WHEN state = 'succeeded' THEN '{{"ok":true}}' END,
        CASE WHEN state = 'failed' THEN 'ValueError' END,
        CASE WHEN state = 'failed' THEN 'no such thing: ' || i END,
        state = 'failed' AND i % 4 = 0,
        CASE WHEN $count - i < $webhooks THEN 'webhook'
            WHEN i % 5 < 2 THEN 'schedule' ELSE 'api' END,
        CASE WHEN i % 5 < 2 THEN ({_schedule("1 + dice % $schedules")})::text END
    FROM (SELECT i, dice, at, CASE WHEN dice / 11 % 100 < 90 THEN 'succeeded'
            WHEN dice / 11 % 100 < 97 THEN 'failed' ELSE 'canceled' END AS state
        FROM (SELECT i, {_DICE} AS dice, {_CREATED} AS at FROM generate_series(1, $count) i) a) b
    """
_WORKERS = """INSERT INTO @workers (id, app, host, pid, functions, slots, started_at)
    SELECT gen_random_uuid(), 'bench', 'host-' || i, i, '[]', 10, $now
    FROM generate_series(1, 20) i"""
_LIVE = f"""INSERT INTO @jobs (id, function, kind, queue, priority, state, token, attempt,
        created_at, scheduled_at, run_at, started_at, args, owner, worker_id)
    SELECT {_id("$now", "i")}, {_FUNCTION}, 'action', {_QUEUE}, 5,
        CASE WHEN worker IS NULL THEN 'pending' ELSE 'running' END,
        CASE WHEN worker IS NULL THEN 0 ELSE 1 END, 0, $now, $now, $now + i, $now,
        '{{"n":1}}', CASE WHEN i % 3 > 0 THEN {_OWNER} END, worker
    FROM (SELECT i, CASE WHEN i <= 100 THEN (SELECT id FROM @workers ORDER BY id LIMIT 1) END
            AS worker FROM generate_series(1, $count) i) a"""
_SCHEDULES = f"""INSERT INTO @schedules (id, app, owner, key, function, args, options, trigger,
        zoned, policies, enabled, next_tick_at, due_at, last_dispatch_at, last_job_id, error,
        parked_at, orphaned_at, expect_at, late, created_at, updated_at)
    SELECT {_schedule("i")}, '', {_OWNER}, 'schedule ' || i, {_FUNCTION}, '{{"n":1}}', '{{}}',
        '{{"kind":"cron","expression":"' || i % 60 || ' * * * *","tz":"UTC","spread":""}}',
        false, '{{}}', i % 20 > 0, due, due, $now - i,
        CASE WHEN i % 5 < 2 THEN {_id("$now", "i")} END,
        CASE WHEN i % 1000 = 1 THEN 'cannot be read' END,
        CASE WHEN i % 1000 = 1 THEN $now END, CASE WHEN i % 1000 = 2 THEN $now END,
        CASE WHEN i % 10 = 3 THEN $now + i END,
        CASE WHEN i % 1000 = 3 THEN '{{"at":0,"problem":"not done by 9","told":true}}' END,
        $now, $now
    FROM (SELECT i, CASE WHEN i % 20 > 0 AND i % 1000 > 2 AND i % 500 <> 4
            THEN $now + {_DICE} % {DAY_MS} END AS due
        FROM generate_series(1, $schedules) i) a"""
_TICKS = f"""INSERT INTO @ticks (schedule_id, kind, tick_at, outcome, reason, job_id, due_at,
        decided_at)
    SELECT {_schedule("i")}, 'slot', at, CASE WHEN n % 4 = 0 THEN 'skipped'
            ELSE 'dispatched' END, CASE WHEN n % 4 = 0 THEN 'condition_failed' END,
        CASE WHEN n % 4 > 0 THEN gen_random_uuid() END, at, at + 20
    FROM (SELECT i, n, $now - n * 3600000::bigint AS at FROM generate_series(1, $count) i,
        generate_series(1, 200) n) a"""
_AUDIT = f"""INSERT INTO @audit (id, at, actor, action, target, detail)
    SELECT {_id(_CREATED, "i")}, {_CREATED}, 'person ' || i % 200,
        (ARRAY['schedule.update', 'schedule.disable', 'job.cancel', 'queue.pause'])[1 + i % 4],
        'schedule:' || {_schedule("1 + i % $schedules")}, '{{"note":"why"}}'
    FROM generate_series(1, $count) i"""
# The newest jobs are those of deliveries. Filtered ones went to hook_0.
_INBOX = """INSERT INTO @inbox (id, webhook, delivery, type, owner, headers, body, received_at,
        job_id)
    SELECT id, 'hook_' || n % 3, 'delivery ' || n, 'push', owner, '{}', '{}'::bytea, created_at,
        CASE WHEN n % 30 > 0 THEN id END
    FROM (SELECT id, owner, created_at, row_number() OVER (ORDER BY id DESC) AS n FROM @history) h
    WHERE n <= $count"""


def load(database: PostgresDatabase, jobs: int, schedules: int) -> None:
    """Fill it with the data that would have accumulated in two weeks."""
    some = min(jobs, 500_000)
    parts = {
        "finished jobs": (_FINISHED, jobs),
        "workers": (_WORKERS, 20),
        "live jobs": (_LIVE, min(jobs, 10_000)),
        "schedules": (_SCHEDULES, schedules),
        "schedules with 200 ticks": (_TICKS, min(schedules, 1_000)),
        "audit": (_AUDIT, some),
        "webhooks": (_INBOX, some),
    }
    for name, (text, count) in parts.items():
        began = time.monotonic()
        given = {"now": now_ms(), "count": count, "schedules": schedules, "webhooks": some}
        database.run(Template(text).substitute(given))
        say(f"{count:,} {name}: {time.monotonic() - began:.1f} s")
    database.tidy()


# What is asked for -------------------------------------------------------------------------------


class Page(NamedTuple):
    """A page, and who requests it."""

    who: str
    path: str


def pages() -> list[Page]:
    middle = _text_id(now_ms() - round(MIDDLE * DAY_MS))
    far = _text_id(now_ms() - 12 * DAY_MS)
    jobs = [
        "/jobs",
        f"/jobs?before={middle}",
        f"/jobs?before={far}",
        *(f"/jobs?state={s}" for s in ("pending", "running", "succeeded", "failed", "canceled")),
        f"/jobs?state=failed&before={far}",
        "/jobs?function=task_0",
        "/jobs?function=task_49",
        "/jobs?function=rare",
        "/jobs?function=unknown",
        f"/jobs?function=task_49&state=failed&before={middle}",
        "/jobs?queue=mail",
        "/jobs?queue=backfill",
        "/jobs?queue=unknown",
        "/jobs?queue=mail&state=canceled",
        "/jobs?queue=unknown&state=failed",
        "/jobs?dead=1",
        f"/jobs?dead=1&before={far}",
        "/jobs?dead=1&function=task_49",
        "/jobs?dead=1&function=unknown",
    ]
    schedules = [
        "/schedules",
        f"/schedules?after={_schedule_id(50_000)}",
        *(f"/schedules?status={s}" for s in ("enabled", "disabled", "parked", "orphaned")),
        *(f"/schedules?status={s}" for s in ("ended", "late")),
        "/schedules?due=1",
        "/schedules?function=task_49",
        "/schedules?function=unknown",
        "/schedules?search=schedule",
        "/schedules?search=99999",
        "/schedules?search=nowhere",
        "/schedules?search=nowhere&status=disabled",
    ]
    others = [
        *("/", "/functions", "/functions?search=task_4", "/functions/task_0", "/calendars"),
        *("/queues", "/gateways", "/webhooks", f"/webhooks?before={middle}"),
        *("/webhooks?webhook=hook_1", "/webhooks?webhook=none", "/webhooks?state=failed"),
        *(f"/webhooks?state={s}" for s in ("pending", "processing", "processed", "filtered")),
        "/webhooks?webhook=hook_1&state=filtered",
    ]
    admins = [
        *("/workers", "/tokens", "/audit", f"/audit?before={middle}", "/audit?actor=person+7"),
        *("/audit?actor=nobody", "/audit?action=job", "/audit?action=token"),
        f"/audit?target=schedule:{_schedule_id(7)}",
        f"/schedules/{_schedule_id(7)}",
        *("/jobs?owner=owner-7", "/jobs?owner=nobody", "/webhooks?owner=nobody"),
        "/jobs?owner=owner-7&function=rare",
    ]
    return [
        *(Page("admin", path) for path in jobs + schedules + others + admins),
        *(Page("owner", path) for path in jobs + schedules + others),
    ]


def _text_id(ms: int) -> str:
    text = f"{ms:012x}"
    return f"{text[:8]}-{text[8:]}-7000-8000-000000000000"


def _schedule_id(number: int) -> str:
    return f"00000000-0001-7000-8000-{number:012x}"


# Measuring ---------------------------------------------------------------------------------------


class Result(NamedTuple):
    page: Page
    median: float
    p95: float
    status: int


def measure(app: Duly, found: Sequence[Page], rounds: int, asked: int = ASKED) -> list[Result]:
    """All pages in each round; whatever a page needs for its first request is prepared before."""
    secrets = {
        "admin": app.tokens.create("admin", ["admin"]).secret,
        "owner": app.tokens.create("owner", ["operate"], owner=OWNER).secret,
    }
    taken: dict[Page, list[list[float]]] = {page: [] for page in found}
    statuses: dict[Page, int] = {}
    with TestClient(make_asgi(app)) as client:

        def ask(page: Page) -> float:
            headers = {"Authorization": f"Bearer {secrets[page.who]}"}
            began = time.perf_counter()
            answer = client.get(page.path, headers=headers)
            took = (time.perf_counter() - began) * 1000
            statuses[page] = answer.status_code
            return took

        for page in found:
            ask(page)
        for number in range(rounds):
            for page in found if number % 2 == 0 else reversed(found):
                times = [ask(page)]
                while times[-1] < SLOW_MS and len(times) < asked:
                    times.append(ask(page))
                taken[page].append(times)
            say(f"round {number + 1} of {rounds}")
    return [_result(page, taken[page], statuses[page]) for page in found]


def _result(page: Page, rounds: Sequence[Sequence[float]], status: int) -> Result:
    """The median of the rounds for both figures, so that a disturbed round does not matter."""
    medians = [statistics.median(times) for times in rounds]
    p95s = [sorted(times)[ceil(0.95 * len(times)) - 1] for times in rounds]
    return Result(page, statistics.median(medians), statistics.median(p95s), status)


def show(results: Sequence[Result]) -> bool:
    """Print them. Return whether all are within the bar."""
    print(f"{'median':>8} {'p95':>8}  ms; the bar is {BAR_MS:g} ms at the 95th percentile")
    for result in results:
        good = result.status == 200 and result.p95 <= BAR_MS
        said = "" if good else f"  MISSED ({result.status})"
        figures = f"{result.median:>8.1f} {result.p95:>8.1f}"
        print(f"{figures}  {result.page.who}  {result.page.path}{said}")
    missed = sum(result.p95 > BAR_MS or result.status != 200 for result in results)
    print(f"{len(results) - missed} of {len(results)} pages are within the bar")
    return missed == 0


def measure_dashboard(
    database: Database, jobs: int = JOBS, schedules: int = SCHEDULES, rounds: int = ROUNDS
) -> bool:
    """Fill the database and request every page. Return whether all are within the bar."""
    with loaded(database, jobs, schedules) as app:
        return show(measure(app, pages(), rounds))


@contextmanager
def loaded(database: Database, jobs: int, schedules: int) -> Iterator[Duly]:
    """The app over a database that has grown."""
    assert isinstance(database, PostgresDatabase)
    app = make_app(database.url)
    try:
        app.functions.publish()
        load(database, jobs, schedules)
        yield app
    finally:
        app.close()


def make_app(url: str) -> Duly:
    app = Duly(url)
    for name in ["rare", *(f"task_{number}" for number in range(FUNCTIONS))]:

        def task(ctx: Ctx, n: int, text: str = "") -> None: ...

        app.action(name=name)(task)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--schedules", type=int, default=SCHEDULES)
    options = parser.parse_args(arguments)
    with postgres_server() as fresh, fresh() as database:
        return 0 if measure_dashboard(database, options.jobs, options.schedules) else 1


if __name__ == "__main__":
    sys.exit(main())
