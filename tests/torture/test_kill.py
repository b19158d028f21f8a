"""kill -9 at every fault point and at random moments: nothing is lost, nothing happens twice.

Worker and enqueuer processes die without a word. A worker that nobody kills then finishes the
rest, and the database is compared with what the processes had been promised.
"""

from __future__ import annotations

import ast
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from duly import fault
from duly.ids import new_id
from tests.cli.processes import wait_until
from tests.torture.kill.fleet import Fleet

SOURCE = Path(fault.__file__).parent
# Where a point is not passed by a worker process that runs the workload, who passes it.
BY_ENQUEUER = ("enqueue.inserted", "enqueue.committed")
BY_PARENT = ("rescue.moved", "rescue.committed")
BY_INDEX = ("index.advanced",)  # killed there in tests/index
# In tests/schedules: those of a ticker, and of what changes schedules.
OF_SCHEDULES = ("ticker.", "expect.", "calendar.", "declared.")
BY_TICKER = tuple(p for p in fault.POINTS if p.startswith(OF_SCHEDULES))
BY_BULK_JOB = ("bulk.changed", "bulk.paged")  # in tests/jobs/test_bulk_jobs.py
BY_INBOX = ("webhook.stored", "webhook.committed")  # in tests/server/test_webhooks.py
BY_COPIER = tuple(p for p in fault.POINTS if p.startswith("copy."))  # in tests/copying
OF_THEIR_OWN = (*BY_INDEX, *BY_TICKER, *BY_BULK_JOB, *BY_INBOX, *BY_COPIER)
BY_OTHERS = ("enqueue.committed", *BY_PARENT, *OF_THEIR_OWN)
BY_WORKER = tuple(p for p in fault.POINTS if p not in BY_OTHERS)


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(url, tmp_path)
    yield fleet
    fleet.close()


@pytest.mark.spec("R76", "R80", "R81", "R219")
def test_a_kill_at_any_point_loses_nothing_and_doubles_nothing(fleet, long_run, report):
    chance = random.Random(0)
    rounds, most = (10, 8) if long_run else (1, 3)
    for _ in range(rounds):
        enqueuer = fleet.enqueuer()
        for point in BY_WORKER:
            armed = f"{point}:{chance.randint(1, most)}"
            fleet.expect_kill(fleet.worker_process(fault=armed), armed)
        for point in BY_ENQUEUER:
            armed = f"{point}:{chance.randint(1, most)}"
            fleet.expect_kill(fleet.enqueuer(fault=armed), armed)
        for point in BY_PARENT:
            parent = fleet.worker(fault=f"{point}:1")
            fleet.kill_children(parent)
            fleet.expect_kill(parent, point)
        fleet.kill(enqueuer.kill)
    fleet.drain()

    verdict = fleet.verdict()
    report(f"kill at every point: {fleet.summary(verdict)}")
    assert verdict.is_clean


@pytest.mark.spec("R76", "R81", "R219")
def test_kills_at_random_moments_lose_nothing_and_double_nothing(fleet, long_run, report):
    chance = random.Random(1)
    workers = [fleet.worker(), fleet.worker()]
    enqueuers = [fleet.enqueuer(), fleet.enqueuer()]
    for _ in range(300 if long_run else 8):
        fleet.wait_for_some(chance)
        fleet.auditor.look()
        which = chance.randrange(2)
        what = chance.random()
        if what < 0.5:
            fleet.kill_a_child(workers[which])
        elif what < 0.65:
            fleet.kill(workers[which].kill)
            workers[which] = fleet.worker()
        elif what < 0.8:
            fleet.kill(workers[which].kill_all)
            workers[which] = fleet.worker()
        else:
            fleet.kill(enqueuers[which].kill)
            enqueuers[which] = fleet.enqueuer()
    fleet.drain()

    verdict = fleet.verdict()
    report(f"random kills: {fleet.summary(verdict)}")
    assert verdict.is_clean


@pytest.mark.spec("R81")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_parent_proves_no_life_of_a_dead_worker_with_the_name_of_its_child(fleet):
    """In a container that was killed and started again, host and process ids are the same."""
    fleet.worker()
    wait_until(lambda: fleet.auditor.workers() == 1, "the worker works")
    (living,) = fleet.db.execute("SELECT host, pid, functions FROM @workers")
    fleet.db.execute(
        "INSERT INTO @workers (id, app, host, pid, functions, slots, started_at)"
        " VALUES (?, 'default', ?, ?, ?, 1, 0)",
        *(new_id(0), *living),
    )
    wait_until(lambda: fleet.auditor.workers() == 1, "the dead one was noticed", patience=30)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_lock_files_that_a_kill_left_behind_are_removed(fleet, tmp_path):
    parent = fleet.worker(fault="rescue.committed:1")
    fleet.kill_a_child(parent)
    fleet.expect_kill(parent, "rescue.committed")
    (left,) = tmp_path.glob("*-duly/worker-*")
    assert fleet.auditor.workers() == 0
    os.utime(left, (0, 0))

    worker = fleet.worker()
    wait_until(lambda: fleet.auditor.workers() == 1 and not left.exists(), "it was removed")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert list(tmp_path.glob("*-duly/worker-*")) == []


def points_passed() -> set[str]:
    """The name of every point that the code passes."""
    calls = [
        node
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "fault.point"
    ]
    return {ast.literal_eval(call.args[0]) for call in calls}


def test_every_named_point_is_passed_and_every_point_passed_is_named():
    assert points_passed() == set(fault.POINTS)


def plant(fleet: Fleet, job_id: str, function: str, kind: str, state: str) -> None:
    """A finished job that never was."""
    columns = "id, function, kind, queue, priority, state, token, attempt, crashes"
    more = "system_retries, created_at, scheduled_at, run_at, completed_at, args"
    fleet.db.execute(
        f"INSERT INTO @history ({columns}, {more})"
        " VALUES (?, ?, ?, 'default', 5, ?, 1, 1, 0, 0, 1, 1, 1, 1, '{}')",
        *(job_id, function, kind, state),
    )


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_the_audit_sees_every_broken_promise(fleet):
    def effect(job_id):
        fleet.db.execute("INSERT INTO effects (job_id) VALUES (?)", job_id)

    for job_id in ("none", "two"):
        plant(fleet, job_id, "note", "mutation", "succeeded")
    plant(fleet, "failed", "note", "mutation", "failed")
    plant(fleet, "again", "touch", "action", "succeeded")
    plant(fleet, "never", "touch", "action", "succeeded")
    plant(fleet, "done", "touch", "action", "canceled")
    plant(fleet, "served", "serve", "mutation", "canceled")
    for job_id in ("two", "two", "failed"):
        effect(job_id)
    fleet.auditor.look()
    fleet.db.execute("DELETE FROM @history WHERE id = 'done'")
    plant(fleet, "done", "touch", "action", "failed")

    verdict = fleet.auditor.verdict(
        acknowledged=[["gone"]],
        canceled=[["done"]],
        starts=[["again", "1"], ["again", "2"], ["done", "1"]],
    )

    assert not verdict.is_clean
    assert str(verdict) == (
        "lost 1, doubled 2, ghosts 1, torn 1, restarted 1, unstarted 1, changed 1, revived 1, "
        "unexplained 2, unfinished 0, orphans 0"
    )
