"""Kills, restarts and broken connections under load: nothing is lost, doubled or let in.

The same scenes as `make torture`, as short as they can be.
"""

from __future__ import annotations

import pytest

from torture.load.chaos import KILLS, Plan
from torture.load.disk import can_mount
from torture.load.fleet import Fleet
from torture.load.history import Change, is_legal
from torture.load.pace import Pace
from torture.load.scene import Order, play_on
from torture.measures import disk, load

SCENES = {
    "sqlite": Order("sqlite", 1, 10, Plan(20), schedules=20),
    "postgres": Order("postgres", 1, 12, Plan(20, restarts=2, connections=12), schedules=20),
}


@pytest.mark.spec("R7", "R76", "R81", "R219", "N33")
@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_no_fault_under_load_loses_or_doubles_anything(store, report):
    outcome = play_on(SCENES[store])
    report(str(outcome))
    shown = "\n".join([*outcome.damage, *outcome.evidence, outcome.order.replay])
    assert outcome.is_clean, f"{outcome}\n{shown}"
    assert outcome.tally.done.total() >= outcome.order.plan.kills
    assert outcome.acknowledged >= 500
    assert outcome.ticks.slots >= 200
    kills, *_ = load.rows([outcome, outcome])
    assert outcome.cut_off > 0
    assert kills.tried == (
        f"{2 * outcome.tally.done[KILLS]:,}, {2 * outcome.cut_off:,} attempts cut off"
    )
    assert f" {outcome.cut_off} attempts cut off;" in outcome.figures


def changes(*steps: tuple[str | None, str, int]) -> list[Change]:
    return [Change(0, "a", "f", was, became, token, 1, None) for was, became, token in steps]


BORN = (None, "pending", 0)
CLAIMED = ("pending", "running", 1)


@pytest.mark.parametrize(
    ("steps", "legal"),
    [
        ([BORN, CLAIMED, (None, "succeeded", 1)], True),
        ([BORN, CLAIMED, ("running", "pending", 2), ("pending", "running", 3)], True),
        ([BORN, (None, "canceled", 0)], True),
        ([(None, "canceled", 0)], True),
        ([BORN, (None, "succeeded", 0)], False),
        ([BORN, CLAIMED, CLAIMED], False),
        ([BORN, CLAIMED, (None, "failed", 1), (None, "succeeded", 1)], False),
        ([BORN, CLAIMED, (None, "failed", 1), ("failed", "gone", 1)], False),
        ([BORN, CLAIMED, ("running", "pending", 1)], False),
    ],
)
def test_what_a_job_may_become(steps, legal):
    assert is_legal(changes(*steps)) is legal


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_attempts_that_a_kill_cut_off_are_counted(url, tmp_path):
    fleet = Fleet(url, tmp_path)
    fleet.trace.append("keys", "dies", 50, "-", 1)
    fleet.db.execute("INSERT INTO torture_workers (id, pid) VALUES ('killed', 1), ('lives', 2)")
    log = "INSERT INTO torture_log (at, job_id, function, was, became, token, attempt, worker_id)"
    for at, job_id, became, worker in [
        *((10, "run again", "running", "killed"), (60, "run again", "pending", "killed")),
        *((70, "run again", "running", "lives"), (80, "run again", "succeeded", "lives")),
        *((10, "lost", "running", "killed"), (60, "lost", "failed", "killed")),
        *((10, "done before", "running", "killed"), (20, "done before", "succeeded", "killed")),
        *((10, "given back", "running", "killed"), (20, "given back", "pending", "killed")),
        *((60, "given back", "running", "lives"), (80, "given back", "succeeded", "lives")),
    ]:
        values = f"{at}, '{job_id}', 'f', NULL, '{became}', 1, 1, '{worker}'"
        fleet.db.execute(f"{log} VALUES ({values})")

    pace = Pace(fleet.db, fleet.trace)

    assert pace.cut_off == 2
    assert pace.reruns(until=100) == [0.02]
    fleet.close()


@pytest.mark.long
@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_a_full_disk_loses_and_doubles_nothing(store):
    if not can_mount():
        pytest.skip("no right to mount a file system")
    assert disk.fill(store, times=2) == []
