"""A worker and a client of the last release next to new ones on one store, through a migration."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from duly.store.migrate import split
from tests.cli.processes import TOP, Process, environment, wait_until
from tests.jobs.support import Database
from torture.load.audit import evidence
from torture.load.damage import damage
from torture.load.fleet import APP, Fleet
from torture.load.history import keep_log_of_jobs
from torture.load.scene import scratch_folder
from torture.load.ticks import count_slots
from torture.measures.base import NAMES, Share, say
from torture.measures.points import database
from torture.table import Row, none_of

LAST_RELEASE = "53dee87b9b1f176162fe767e75a9bcd69d56a901"
"""Until there is one: the last commit that does not know the newest migration."""
SCHEDULES = 5
CLAIMS = 200


def run(share: Share) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="duly-release-") as folder:
        if not unpack(Path(folder)):
            told = f"not run: the history lacks {LAST_RELEASE[:7]}"
            yield Row("rolling upgrade", told, "", "", kept=True)
            return
        for store in share.stores:
            jobs, wrong = upgrade(store, Path(folder, "src"))
            if wrong:
                say(share.replay("upgrade", store))
            words = f"{NAMES[store]}: rolling upgrade, workers of two releases through a migration"
            yield none_of(words, f"{jobs:,} jobs", wrong)


def unpack(folder: Path) -> bool:
    """The source code of the last release, if the history has it."""
    command = ["git", "-C", str(TOP), "archive", LAST_RELEASE, "src"]
    try:
        archive = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return True


def upgrade(store: str, source: Path) -> tuple[int, int]:
    """How many jobs there were, and how much went wrong."""
    path = os.pathsep.join([str(source), str(TOP)])
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        url = stack.enter_context(database(store, folder))

        def migrate(url: str) -> None:
            run_duly(url, folder, "migrate", PYTHONPATH=path)

        fleet = Fleet(url, folder, schedules=SCHEDULES, migrate=migrate)
        stack.callback(fleet.close)
        old = fleet.worker(env={"PYTHONPATH": path})
        fleet.enqueuer(env={"PYTHONPATH": path})
        wait_for_claims(fleet, old)
        steps = fleet.db.count("@migrations")
        migrate_with_log(fleet.db, url, folder)
        assert fleet.db.count("@migrations") > steps, "the last release knows every migration"
        new = fleet.worker()
        fleet.enqueuer()
        wait_for_claims(fleet, new)
        wait_for_claims(fleet, old)
        code = fleet.end(old)
        fleet.drain()
        verdict, ticks = fleet.verdict(), count_slots(fleet.db)
        found = [*damage(fleet.db), *evidence(fleet.db, fleet.trace, verdict)]
        if code or not ticks.is_clean:
            found.append(f"exit code {code}, {ticks}")
        say(*found)
        return fleet.db.count("@history"), len(found)


def migrate_with_log(db: Database, url: str, folder: Path) -> None:
    """Migrate. On SQLite that makes the table of jobs anew, so its log begins again in the same
    transaction.
    """
    if not db.is_sqlite:
        run_duly(url, folder, "migrate")
        return
    script = run_duly(url, folder, "migrate", "--sql")
    db.execute("BEGIN IMMEDIATE")
    for statement in split(script):
        if not statement.strip().startswith(("BEGIN", "COMMIT", "PRAGMA")):
            db.execute(statement)
    keep_log_of_jobs(db)
    db.execute("COMMIT")


def run_duly(url: str, folder: Path, *words: str, **env: str) -> str:
    told = environment(url, TORTURE_FOLDER=str(folder), **env)
    command = [sys.executable, "-m", "duly", "--app", APP, *words]
    run = subprocess.run(command, env=told, cwd=TOP, check=True, capture_output=True, text=True)
    return run.stdout


def wait_for_claims(fleet: Fleet, worker: Process) -> None:
    """It has to claim this many jobs from now on."""
    query = """SELECT count(*) FROM torture_log l JOIN torture_workers w ON w.id = l.worker_id
        WHERE l.became = 'running' AND w.pid = ?"""
    (pid, *_) = wait_until(lambda: fleet.children_of(worker), "it works", patience=60)
    until = fleet.db.scalar(query, pid) + CLAIMS
    wait_until(lambda: fleet.db.scalar(query, pid) >= until, "it claims", patience=60)
