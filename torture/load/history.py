"""What happened to every job, in order: a log that triggers write in the transaction they log.

No process under test writes to it, and its rows are never changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from tests.jobs.support import Database

LOG = """CREATE TABLE torture_log (seq {serial}, at bigint NOT NULL, job_id text NOT NULL,
    function text NOT NULL, was text, became text NOT NULL, token integer NOT NULL,
    attempt integer NOT NULL, worker_id text)"""
WORKERS = "CREATE TABLE torture_workers (id text NOT NULL, pid integer NOT NULL, alone boolean)"
COLUMNS = "at, job_id, function, was, became, token, attempt, worker_id"
REGISTER = "INSERT INTO torture_workers (id, pid, alone) VALUES (NEW.id, NEW.pid, NEW.alone);"

GONE = "gone"
"""A finished job whose row was removed, which was never requested."""
LIVE = ("pending", "running")

# Table, event, when, and the values of was, became and worker_id.
EVENTS = (
    ("jobs", "INSERT", "", "NULL", "NEW.state", "NEW.worker_id"),
    (
        *("jobs", "UPDATE", "WHEN (OLD.token <> NEW.token OR OLD.state <> NEW.state)"),
        *("OLD.state", "NEW.state", "coalesce(NEW.worker_id, OLD.worker_id)"),
    ),
    ("history", "INSERT", "", "NULL", "NEW.state", "NEW.worker_id"),
    ("history", "DELETE", "", "OLD.state", f"'{GONE}'", "OLD.worker_id"),
)
SQLITE_NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS integer)"
POSTGRES_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"


def _log(row: str, was: str, became: str, worker: str, now: str) -> str:
    return f"""INSERT INTO torture_log ({COLUMNS})
        VALUES ({now}, {row}.id, {row}.function, {was}, {became}, {row}.token, {row}.attempt,
            {worker});"""


def keep_log(db: Database) -> None:
    """Log every change from now on."""
    db.execute(LOG.format(serial="integer PRIMARY KEY" if db.is_sqlite else "bigserial"))
    db.execute(WORKERS)
    now = SQLITE_NOW if db.is_sqlite else POSTGRES_NOW
    for table, event, when, was, became, worker in EVENTS:
        row = "OLD" if event == "DELETE" else "NEW"
        _trigger(db, table, event, when, _log(row, was, became, worker, now))
    _trigger(db, "workers", "INSERT", "", REGISTER)


def keep_log_of_jobs(db: Database) -> None:
    """The same after the table of jobs was made anew, which drops its triggers."""
    now = SQLITE_NOW if db.is_sqlite else POSTGRES_NOW
    for table, event, when, was, became, worker in EVENTS:
        if table == "jobs":
            _trigger(db, table, event, when, _log("NEW", was, became, worker, now))


def _trigger(db: Database, table: str, event: str, when: str, body: str) -> None:
    name = f"torture_{table}_{event}"
    on = f"CREATE TRIGGER {name} AFTER {event} ON @{table}"
    if db.is_sqlite:
        db.execute(f"{on} {when} BEGIN {body} END")
        return
    db.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql"
        f" AS $$ BEGIN {body} RETURN NULL; END $$"
    )
    db.execute(f"{on} FOR EACH ROW {when} EXECUTE FUNCTION {name}()")


class Change(NamedTuple):
    """One row of the log."""

    at: int
    job_id: str
    function: str
    was: str | None
    became: str
    token: int
    attempt: int
    worker_id: str | None

    def __str__(self) -> str:
        worker = f" by {self.worker_id[-6:]}" if self.worker_id else ""
        return (
            f"{self.at} {self.function} {self.job_id}: {self.was or '-'} → {self.became}"
            f" (token {self.token}, attempt {self.attempt}){worker}"
        )


def stories(db: Database) -> Iterator[list[Change]]:
    """All changes of each job, job after job.

    On PostgreSQL numbers are not assigned in the order of commits, but those of one job are: its
    row is locked from one change to the commit.
    """
    rows = db.execute(f"SELECT {COLUMNS} FROM torture_log ORDER BY job_id, seq")
    for _, changes in groupby((Change(*row) for row in rows), key=attrgetter("job_id")):
        yield list(changes)


def story_of(db: Database, job_id: str) -> list[Change]:
    where = "WHERE job_id = ? ORDER BY seq"
    return [
        Change(*row) for row in db.execute(f"SELECT {COLUMNS} FROM torture_log {where}", job_id)
    ]


def is_legal(story: list[Change]) -> bool:
    """Whether a job only made allowed changes of state, and none after its end."""
    place, token = None, -1
    for change in story:
        if place is not None and place not in LIVE:
            return False
        if change.became in LIVE:
            # A claim's token is odd, that of a pending job is even, and every change has a
            # different token.
            fits = change.was == place and change.token > token
            if not fits or (change.became == "running") != (change.token % 2 == 1):
                return False
        elif not _may_end(place, token, change):
            return False
        place, token = change.became, change.token
    return True


def _may_end(place: str | None, token: int, end: Change) -> bool:
    if place is None:
        # The child of a canceled action is stored as canceled.
        return end.became == "canceled"
    return end.token == token and (end.became == "canceled" or place == "running")


def pids(db: Database) -> dict[str, int]:
    """The process of each worker."""
    return dict(db.execute("SELECT id, pid FROM torture_workers"))


def for_one_job(db: Database) -> set[str]:
    """Workers that were processes for a single job."""
    return {worker_id for (worker_id,) in db.execute("SELECT id FROM torture_workers WHERE alone")}
