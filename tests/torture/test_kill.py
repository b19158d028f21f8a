"""kill -9 at every fault point: nothing is lost, nothing happens twice.

Worker and enqueuer processes die without a word. A worker that nobody kills then finishes the
rest, and the database is compared with what the processes had been promised.
"""

from __future__ import annotations

import ast
import os
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from duly import fault
from duly.ids import new_id
from tests.cli.processes import wait_until
from torture.load.audit import Causes, Ended, cut_off
from torture.load.fleet import Fleet
from torture.load.points import BY_ENQUEUER, BY_RESCUER, BY_WORKER, Cell
from torture.load.points import start as start_armed

SOURCE = Path(fault.__file__).parent
FEW = 30
AT_ONCE = 3


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(url, tmp_path)
    yield fleet
    fleet.close()


def batched(points: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (points[first : first + size] for first in range(0, len(points), size))


@pytest.mark.spec("R76", "R80", "R81", "R219")
def test_a_kill_at_any_point_loses_nothing_and_doubles_nothing(fleet, long_run, report):
    chance = random.Random(0)
    rounds, most = (10, 8) if long_run else (1, 3)
    for _ in range(rounds):
        enqueuer = fleet.enqueuer(backlog=FEW)
        for points in batched(BY_WORKER, AT_ONCE):
            # Each says that it dies, as another may have its place before that is seen here.
            cells = [Cell("kill", point) for point in points]
            workers = [start_armed(fleet, cell, chance.randint(1, most)) for cell in cells]
            for worker, cell in zip(workers, cells, strict=True):
                fleet.expect_kill(worker, str(cell))
        for point in BY_ENQUEUER:
            armed = f"{point}:{chance.randint(1, most)}"
            # However many jobs wait: there is nobody to run them just now.
            fleet.expect_kill(fleet.enqueuer(backlog=1_000_000, fault=armed), armed)
        for point in BY_RESCUER:
            parent = fleet.worker(fault=f"{point}:1")
            fleet.kill_children(parent)
            fleet.expect_kill(parent, point)
        fleet.kill_all(enqueuer)
    fleet.drain()

    verdict = fleet.verdict()
    report(f"kill at every point: {fleet.summary(verdict)}")
    assert verdict.is_clean


@pytest.mark.spec("R81")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_parent_proves_no_life_of_a_dead_worker_with_the_name_of_its_child(fleet):
    """In a container that was killed and started again, host and process ids are the same."""
    fleet.worker()
    wait_until(lambda: fleet.workers() == 1, "the worker works")
    (living,) = fleet.db.execute("SELECT host, pid, functions FROM @workers")
    fleet.db.execute(
        "INSERT INTO @workers (id, app, host, pid, functions, slots, started_at)"
        " VALUES (?, 'default', ?, ?, ?, 1, 0)",
        *(new_id(0), *living),
    )
    wait_until(lambda: fleet.workers() == 1, "the dead one was noticed", patience=30)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_lock_files_that_a_kill_left_behind_are_removed(fleet, tmp_path):
    parent = fleet.worker(fault="rescue.committed:1")
    fleet.kill_a_child(parent)
    fleet.expect_kill(parent, "rescue.committed")
    (left,) = tmp_path.glob("*-duly/worker-*")
    assert fleet.workers() == 0
    os.utime(left, (0, 0))

    worker = fleet.worker()
    wait_until(lambda: fleet.workers() == 1 and not left.exists(), "it was removed")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert list(tmp_path.glob("*-duly/worker-*")) == []


def points_passed() -> set[str]:
    """The name of every point that the code passes: itself, or after a verb of the store."""
    calls = [
        node
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    ]
    named = ("fault.point", "run.reach")
    names = [call.args[0] for call in calls if ast.unparse(call.func) in named]
    writes = [call for call in calls if ast.unparse(call.func) == "writes"]
    names += [each.value for call in writes for each in call.keywords if each.arg == "then"]
    return {str(name.value) for name in names if isinstance(name, ast.Constant)}


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
    fleet.db.execute("DELETE FROM @history WHERE id = 'done'")
    plant(fleet, "done", "touch", "action", "failed")
    fleet.db.execute("INSERT INTO received (number) VALUES ('7'), ('7')")
    fleet.db.execute("INSERT INTO @slots VALUES ('solo-1', 1, 'gone', 1, 'nobody')")
    for file, *words in [
        ("acknowledged", "gone"),
        ("canceled", "done"),
        ("answered", "8"),
        *[("starts", *start) for start in (("again", 1), ("again", 2), ("done", 1))],
        *[("keys", *line) for line in (*TOGETHER, *TAKEN_OVER)],
    ]:
        fleet.trace.append(file, *words)

    verdict = fleet.verdict()

    assert not verdict.is_clean
    # None but the canceled one has come to its end by a way that a job may take.
    assert str(verdict) == (
        "lost 1, doubled 2, ghosts 1, torn 1, repeated 2, restarted 1, unstarted 1, changed 6, "
        "revived 1, unexplained 3, crowded 1, unfinished 0, leaked 1, orphans 0"
    )
    assert cut_off(fleet.trace.lines("keys")) == [
        f"solo-1: {body} has not ended, although its process was not killed"
        for body in ("a/1@5", "b/1@6")
    ]


KILLED, LIVES = "worker that was killed", "worker that lives"
MUTATION = Ended("a", "note", "mutation", "failed", None, 1, KILLED, None, None, None, None)
ACTION = MUTATION._replace(function="linger", kind="action")
AGAIN = ACTION._replace(function="pair", retry='{"attempts":8}')
CANCELED = MUTATION._replace(state="canceled", worker_id=None)


@pytest.mark.spec("N34")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_only_what_was_done_to_a_job_explains_its_end(fleet):
    fleet.note_death(1)
    fleet.db.execute(
        f"INSERT INTO torture_workers (id, pid) VALUES ('{KILLED}', 1), ('{LIVES}', 2)"
    )
    fleet.trace.append("asked to cancel", "b")
    parents = {"p": CANCELED, "q": ACTION._replace(error="worker_lost"), "r": MUTATION}
    explain = Causes(fleet.db, fleet.trace, parents).explain

    for good in (
        ACTION._replace(error="worker_lost"),
        AGAIN._replace(error="worker_lost", attempt=8),
        CANCELED._replace(id="b", canceled_by="operator"),
        CANCELED._replace(canceled_by="parent:p"),
        CANCELED._replace(canceled_by="parent:q"),
        MUTATION._replace(function="fail", error="user"),
        ACTION._replace(function="overrun", error="timeout"),
    ):
        assert explain(good), good
    for bad in (
        *(job._replace(error="crash_loop") for job in (MUTATION, ACTION, AGAIN)),
        MUTATION._replace(error="worker_lost"),
        ACTION._replace(error="worker_lost", worker_id=LIVES),
        AGAIN._replace(error="worker_lost"),
        CANCELED._replace(canceled_by="operator"),
        CANCELED._replace(canceled_by="parent:r"),
        CANCELED._replace(id="b", error="expired"),
        MUTATION._replace(error="user"),
        MUTATION._replace(error="timeout"),
    ):
        assert not explain(bad), bad
    fleet.trace.append("fired", "pause", "enqueue.inserted", 2)
    explain = Causes(fleet.db, fleet.trace, parents).explain
    assert explain(MUTATION._replace(error="timeout"))
    assert not explain(ACTION._replace(error="timeout"))


TOGETHER = (("begins", "solo-1", "a/1", 5), ("begins", "solo-1", "b/1", 6))
TAKEN_OVER = (
    *(("begins", "solo-2", "c/1", 7), ("dies", 0, "-", 7), ("begins", "solo-2", "c/2", 8)),
    *(("ends", "solo-2", "c/2", 8), ("begins", "solo-2", "d/1", 8)),
    ("ends", "solo-2", "d/1", 8),
)
