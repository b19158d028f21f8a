"""Measures how fast due schedules are decided, compared with the same statements in a bare loop.

A million schedules wait; ten thousand of them are due, and every second one of these has a calendar
and a condition, both of which let it pass. The bare loop locks the same pages, reads the same facts
and writes the same rows, but decides nothing: its rows were prepared before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Any

import msgspec

from bench.databases import Database, Fresh, now_ms
from bench.figures import DULY, RAW, Figure, Trial, one, say
from duly import Duly
from duly.ids import new_ids
from duly.model.job import TrackedJob
from duly.model.schedule import ScheduleRecord, TickRecord
from duly.runtime.ticker import PAGE, Ticker
from duly.store import steps
from duly.store.functions import statuses
from duly.store.schedules.calendars import ATTACHED
from duly.store.schedules.due import LOCK_DUE
from duly.store.schedules.facts import IN_FLIGHT, prior_of
from duly.store.schedules.kill_switch import KILL_SWITCH
from duly.store.schedules.ledger import insert_ticks
from duly.store.schedules.tick import Advance, write_advances
from duly.store.session import Session
from duly.store.steps import Row
from duly.zones import version, zone

ROW = "tick, due schedules"
EMPTY = "tick, nothing due"
DAY_MS = 86_400_000
EMPTY_PASSES = 200
ZONE = "America/New_York"

# Every schedule ticks once a day, each at a different minute, and not within the next hours. The
# times are made up and must not be recomputed for newer zone data: so none is marked as zoned.
_LOAD = f"""INSERT INTO @schedules (id, app, owner, key, function, args, options, trigger, zoned,
        policies, enabled, next_tick_at, due_at, created_at, updated_at)
    SELECT {{id}}, '', '', 'schedule ' || i, 'async_noop', '{{{{"n":1}}}}', '{{{{}}}}',
        '{{{{"kind":"cron","expression":"' || (i % 60) || ' ' || (({{hour}} + i / 60 % 12) % 24)
            || ' * * *","tz":"{ZONE}","spread":""}}}}',
        {{no}}, '{{{{}}}}', {{yes}}, {{now}} + {DAY_MS} + i, {{now}} + {DAY_MS} + i,
        {{now}}, {{now}}
    FROM {{numbers}}"""
_CONDITION = '{"/last_24h_stats/failed":{"lt":3}}'
_CONDITION = '{"/last_24h_stats/failed":{"lt":3}}'
_CALENDAR = ScheduleRecord.__struct_fields__.index("calendar")


def schedule_trials(
    store: str, fresh: Fresh, rows: int, due: int, stack: ExitStack
) -> Iterator[list[Trial]]:
    """Both rows, on one database that holds this many schedules."""
    scale = stack.enter_context(_loaded(fresh, rows, due))
    setting = f"{due:,} of {rows:,}"

    def trial(row: str, side: str, unit: str, measure: Callable[[], float]) -> Trial:
        return one(Figure(store, row, side, setting, unit, default=side == DULY), measure)

    yield [
        trial(ROW, RAW, "ticks/s", lambda: scale.rate(scale.bare)),
        trial(ROW, DULY, "ticks/s", lambda: scale.rate(scale.ticker)),
    ]
    yield [trial(EMPTY, DULY, "ms", scale.empty_pass)]


@contextmanager
def _loaded(fresh: Fresh, rows: int, due: int) -> Iterator[Scale]:
    with fresh() as database:
        say(f"{database.store}: loading {rows:,} schedules")
        hour = datetime.now(zone(ZONE).info).hour
        database.load_schedules(_LOAD.replace("{hour}", str(hour + 6)), rows)
        with database.app() as measured:
            calendar = measured.app.calendars.create("closed", "skip_dates", dates=["2020-01-01"])
            database.restrict(due, calendar.id, _CONDITION)
            database.tidy()
            yield Scale(database, measured.app, due)


class Scale:
    """One database full of schedules."""

    def __init__(self, database: Database, app: Duly, due: int) -> None:
        self._database = database
        self._app = app
        self._due = due
        self._store: Any = app.ready()
        self._ticker = Ticker(app.core)
        self._ticker.one_pass()

    def rate(self, work: Callable[[], int]) -> float:
        self._make_due()
        began = time.perf_counter()
        done = work()
        took = time.perf_counter() - began
        if done != self._due:
            raise AssertionError(f"{done:,} of {self._due:,} due schedules were decided")
        return done / took

    def ticker(self) -> int:
        while self._ticker.one_pass() == 0:
            pass
        [(count,)] = self._database.run("SELECT count(*) FROM @ticks")
        return int(count)

    def empty_pass(self) -> float:
        """The milliseconds of a pass that finds nothing to do; the median of many."""
        times: list[float] = []
        for _ in range(EMPTY_PASSES):
            began = time.perf_counter()
            self._ticker.one_pass()
            times.append((time.perf_counter() - began) * 1000)
        return sorted(times)[EMPTY_PASSES // 2]

    def _make_due(self) -> None:
        """Give this many schedules a past tick that was not decided."""
        for table in ("@ticks", "@jobs"):
            self._database.run(f"DELETE FROM {table}")
        # A minute ago: the next tick of each is still in the future.
        self._database.make_due(self._due, now_ms() - 1000)
        self._database.tidy()

    # The same statements, with nothing decided

    def bare(self) -> int:
        done = 0
        while page := self._store.write(_bare_page):
            done += page
        return done


def _bare_page(session: Session) -> int:
    now = now_ms()
    where = {"now": now, "limit": PAGE + 1, "zone_data": version(), "signals_for": None}
    rows = session.run(LOCK_DUE, where)[:PAGE]
    if not rows:
        return 0
    ids = [row[0] for row in rows]
    _ask_for_facts(session, rows, now)
    jobs = [_job(id_, job_id, now) for id_, job_id in zip(ids, new_ids(now, len(ids)), strict=True)]
    ticks = [
        TickRecord(job.actor or "", "slot", now, "dispatched", job_id=job.id, due_at=now)
        for job in jobs
    ]
    insert_ticks(session, ticks)
    steps.drive(steps.insert(session.dialect, jobs), session.answer)
    advances = [
        Advance(id_, now + DAY_MS, now + DAY_MS, 1, None, now, now, job.id, False)
        for id_, job in zip(ids, jobs, strict=True)
    ]
    write_advances(session, advances)
    return len(ids)


def _ask_for_facts(session: Session, rows: Sequence[Row], now: int) -> None:
    session.run(KILL_SWITCH)
    statuses(session)
    session.run(IN_FLIGHT, {"ids": session.array(row[0] for row in rows)})
    calendars = {row[_CALENDAR] for row in rows if row[_CALENDAR] is not None}
    session.run(ATTACHED, {"ids": session.array(calendars)})
    prior_of(session, "async_noop", now)


def _job(schedule_id: str, job_id: str, now: int) -> TrackedJob:
    return msgspec.structs.replace(_JOB, id=job_id, created_at=now, actor=schedule_id)


_JOB = TrackedJob(
    id="",
    function="async_noop",
    kind="action",
    queue="default",
    priority=5,
    created_at=0,
    scheduled_at=0,
    run_at=0,
    expires_at=None,
    timeout_ms=None,
    retry=None,
    args='{"n":1}',
    parent_id=None,
    owner=None,
    tags=None,
    trigger="schedule",
)
