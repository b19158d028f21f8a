"""Replay one scene: the same faults and the same work; the timing differs."""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torture.load.chaos import Plan
from torture.load.scene import Order, play_on

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
    print(outcome.figures)
    print(*outcome.damage, *outcome.evidence, sep="\n")
    return 0 if outcome.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
