"""Play one scene again: the same faults and the same work; the moments differ."""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.postgres import restartable_postgres
from torture.load.chaos import Plan
from torture.load.scene import Order, Outcome, play

STORES = ("sqlite", "postgres")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m torture.load", description=__doc__)
    parser.add_argument("--store", choices=STORES, default="sqlite")
    parser.add_argument("--seconds", type=float, default=30)
    for option, default in (("seed", 0), ("kills", 30), ("restarts", 0), ("connections", 0)):
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--schedules", type=int, default=20)
    given = parser.parse_args(arguments)
    plan = Plan(given.kills, given.restarts, given.connections)
    outcome = play_on(Order(given.store, given.seed, given.seconds, plan, given.schedules))
    print(outcome)
    print(f"reruns {sorted(outcome.reruns)[-5:]}, resumed {outcome.resumed}")
    print(f"{outcome.calm:.0f}/s calm, {outcome.faulty:.0f}/s under faults, {outcome.growth:+.1%}")
    print(*outcome.damage, *outcome.evidence, sep="\n")
    return 0 if outcome.is_clean else 1


def play_on(order: Order) -> Outcome:
    """Play a scene, with a server of its own where it needs one."""
    if order.store == "sqlite":
        return play(order)
    with restartable_postgres() as server:
        return play(order, server)


if __name__ == "__main__":
    sys.exit(main())
