"""Measure duly next to the bare database, in one run: `make bench`.

    make bench                                  everything in small sizes, some ten minutes
    make bench ARGS="--full"                    the sizes that the bars are meant for, hours
    make bench ARGS="--quick"                   a smoke test; its figures mean nothing
    make bench ARGS="--only e2e --store sqlite --rounds 3 --json figures.json"
    make bench-peers ARGS="--check"             other queues too; fail if a bar is missed
    make bench ARGS="--only dashboard --check"  its lists over 5,000,000 jobs, on PostgreSQL

docs/benchmarks.md says how it is measured and how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench import cases, claims, crowd, limited, machine, peers, process, report, server, workflows
from bench.bars import bars
from bench.cases import Sizes
from bench.cron import cron_trials
from bench.dashboard import JOBS, SCHEDULES, measure_dashboard
from bench.databases import STORES, Fresh
from bench.figures import Figure, Trial, interleave
from bench.growth import Growth, measure_growth
from bench.schedules import schedule_trials
from tests.loopback import sitecustomize as loopback

TRIALS: dict[str, Callable[[str, Fresh, Sizes], Iterator[list[Trial]]]] = {
    "enqueue": cases.enqueue_trials,
    "e2e": cases.end_to_end_trials,
    "latency": cases.latency_trials,
    "crowd": lambda store, fresh, sizes: crowd.crowd_trials(
        store, fresh, sizes.backlog, sizes.jobs
    ),
    "claims": lambda store, fresh, sizes: claims.claim_trials(
        store, fresh, sizes.held_jobs, sizes.rows
    ),
    "limited": lambda store, fresh, sizes: limited.limited_trials(
        store, fresh, sizes.limited_jobs, sizes.pings
    ),
    "workflows": workflows.workflow_trials,
    "memory": lambda store, fresh, sizes: process.memory_trials(store, fresh, sizes.memory_jobs),
}
ANY_STORE = ("cron", "start", "server")
PARTS = (*TRIALS, "schedules", "growth", *ANY_STORE)
QUEUES = {"enqueue", "e2e", "latency"}
"""Parts in which other queues are measured too."""
DASHBOARD = "dashboard"
"""A part that is only measured on request: its database takes minutes to fill."""
NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    facts = machine.describe()
    for fact, value in facts.items():
        print(f"{fact}: {value}", flush=True)
    figures: list[Figure] = []
    growths: list[Growth] = []
    in_time = True
    if "cron" in options.only:
        figures += _all(cron_trials(options.sizes.ticks), options.rounds)
    if "start" in options.only:
        figures += _all(process.start_trials(), options.rounds)
    if "server" in options.only:
        figures += _all(server.server_trials(), options.rounds)
    for store in [] if set(options.only) <= set(ANY_STORE) else options.store:
        with STORES[store]() as fresh:
            figures += measure(store, fresh, options)
            if "schedules" in options.only:
                figures += _schedules(store, fresh, options)
            if "growth" in options.only:
                growths += measure_growth(NAMES[store], fresh, options.sizes, options.rounds)
            if DASHBOARD in options.only and store == "postgres":
                in_time = _dashboard(fresh, options)
    facts["load after"] = " ".join(f"{load:.2f}" for load in os.getloadavg())
    missed = finish(options, facts, figures, growths)
    return missed or int(options.check and not in_time)


def _dashboard(fresh: Fresh, options: argparse.Namespace) -> bool:
    jobs, schedules = (5_000, 100) if options.sizes is cases.QUICK else (JOBS, SCHEDULES)
    with fresh() as database:
        return measure_dashboard(database, jobs, schedules, options.rounds)


def _all(rows: Iterator[list[Trial]], rounds: int) -> list[Figure]:
    return [figure for row in rows for figure in interleave(row, rounds)]


def measure(store: str, fresh: Fresh, options: argparse.Namespace) -> list[Figure]:
    """Every part but growth, row by row. The systems measured in a row take turns."""
    figures: list[Figure] = []
    with ExitStack() as stack:
        others: dict[str, list[Trial]] = {}
        if options.peers and QUEUES & set(options.only):
            found = stack.enter_context(peers.installed(peers.of_store(store)))
            others |= peers.peer_trials(NAMES[store], fresh, options.sizes, found)
        if options.peers and "workflows" in options.only and store == "postgres":
            engines = stack.enter_context(peers.installed(peers.FLOW_PEERS))
            others |= peers.flow_peer_trials(NAMES[store], fresh, options.sizes, engines)
        for part, trials in TRIALS.items():
            if part in options.only:
                for row in trials(NAMES[store], fresh, options.sizes):
                    also = others.get(row[0].figures[0].row, [])
                    figures += interleave(row + also, options.rounds)
    return figures


def _schedules(store: str, fresh: Fresh, options: argparse.Namespace) -> list[Figure]:
    rows, due = options.sizes.schedules, options.sizes.due_schedules
    with ExitStack() as stack:
        trials = schedule_trials(NAMES[store], fresh, rows, due, stack)
        return _all(trials, options.rounds)


def finish(
    options: argparse.Namespace,
    facts: dict[str, str],
    figures: Sequence[Figure],
    growths: Sequence[Growth],
) -> int:
    kept = bars(figures, growths)
    print(f"load after: {facts['load after']}\n")
    report.print_report(figures, growths, kept)
    if options.json:
        text = json.dumps(report.as_json(facts, figures, growths, kept), indent=1)
        options.json.write_text(text + "\n")
    failed = any(not bar.passed for bar in kept)
    return 1 if options.check and failed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run.py", description="Measure duly.")
    parser.add_argument(
        "--rounds",
        type=int,
        help="How many rounds to take medians of (default: 3; with --full: 5).",
    )
    sizes = parser.add_mutually_exclusive_group()
    for name, size, what in (
        ("--full", cases.FULL, "Use millions of rows."),
        ("--quick", cases.QUICK, "Use tiny sizes and one round."),
    ):
        sizes.add_argument(name, dest="sizes", action="store_const", const=size, help=what)
    parser.add_argument(
        "--only",
        type=_parts,
        default=PARTS,
        help=f"Only these parts: {','.join((*PARTS, DASHBOARD))}.",
    )
    parser.add_argument("--store", choices=STORES, action="append", help="Only this store.")
    parser.add_argument(
        "--peers", action="store_true", help="Measure other queues too, if pip can install them."
    )
    parser.add_argument("--json", type=Path, help="Write every figure to this file.")
    parser.add_argument("--check", action="store_true", help="Exit with code 1 if a bar is missed.")
    parser.set_defaults(sizes=cases.SHORT)
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or options.sizes.rounds
    options.store = options.store or list(STORES)
    return options


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(text.split(","))
    unknown = [part for part in parts if part not in (*PARTS, DASHBOARD)]
    if unknown:
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(unknown)}")
    return parts


if __name__ == "__main__":
    sys.exit(loopback.run(main))
