"""Kills, restarts and broken connections under load: nothing is lost, doubled or let in.

The same scenes as `make torture`, as short as they can be.
"""

from __future__ import annotations

import pytest

from torture.load.chaos import Plan
from torture.load.history import Change, is_legal
from torture.load.scene import Order, play_on

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
