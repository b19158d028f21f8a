"""Kills, restarts and broken connections under load: is anything lost, doubled or let in?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from tests.postgres import restartable_postgres
from torture.load.chaos import CONNECTIONS, KILLS, RESTARTS, Plan
from torture.load.scene import Order, Outcome, play
from torture.measures.base import NAMES, Share, say
from torture.table import Row, at_least, at_most, none_of

KILLS_HOURLY = 2_200
RESTARTS_HOURLY = 44
CONNECTIONS_HOURLY = 330
LONGEST_ACT = 300.0
# What starts, drains and is judged takes a while beside the act itself.
OVERHEAD = 25.0
RERUN_SECONDS = {"sqlite": 2.0, "postgres": 20.0}
RESUME_SECONDS = 3.0
LEAST_OF_CALM = 50.0
MOST_GROWTH = 5.0
# Shorter acts say nothing about speed and memory.
LONG_ENOUGH = 120.0


def run(share: Share) -> Iterator[Row]:
    outcomes: list[Outcome] = []
    with ExitStack() as stack:
        for order in orders(share):
            server = None
            if order.store == "postgres":
                server = stack.enter_context(restartable_postgres())
            outcome = play(order, server)
            say(outcome)
            if not outcome.is_clean:
                say(*outcome.damage, *outcome.evidence, f"replay: {order.replay}")
            outcomes.append(outcome)
            stack.pop_all().close()
    yield from rows(outcomes)


def orders(share: Share) -> Iterator[Order]:
    """Acts of a few minutes, each on a new database, one store after the other."""
    each = share.seconds / len(share.stores)
    acts = math.ceil(each / (LONGEST_ACT + OVERHEAD))
    seconds = max(10.0, each / acts - OVERHEAD)
    for number in range(acts):
        for store in share.stores:
            kills = _part(share.scaled(KILLS_HOURLY), acts * len(share.stores))
            faulty = store == "postgres"
            restarts = _part(share.scaled(RESTARTS_HOURLY), acts) * faulty
            connections = _part(share.scaled(CONNECTIONS_HOURLY), acts) * faulty
            yield Order(store, share.seed + number, seconds, Plan(kills, restarts, connections))


def _part(whole: int, parts: int) -> int:
    return math.ceil(whole / parts)


def rows(outcomes: Sequence[Outcome]) -> Iterator[Row]:
    """What all acts together come to."""
    yield from _faults(outcomes)
    yield from _promises(outcomes)
    for store in NAMES:
        yield from _times(store, [each for each in outcomes if each.order.store == store])
    broken = [fault for each in outcomes for fault in each.damage]
    yield none_of("database files damaged", f"{len(outcomes)} databases", len(broken))


def _faults(outcomes: Sequence[Outcome]) -> Iterator[Row]:
    for fault, words in (
        (KILLS, "kill -9 of workers, tickers, servers and clients under load"),
        (RESTARTS, "PostgreSQL stopped with `-m immediate` and started again under load"),
        (
            CONNECTIONS,
            "connections dropped, silent, slow, or cut before COMMIT was answered",
        ),
    ):
        hit = [each for each in outcomes if each.tally.done[fault]]
        if hit:
            tried = sum(each.tally.done[fault] for each in hit)
            yield none_of(words, f"{tried:,}", sum(not each.is_clean for each in hit))


def _promises(outcomes: Sequence[Outcome]) -> Iterator[Row]:
    jobs = f"{sum(each.jobs for each in outcomes):,} jobs"
    acknowledged = f"{sum(each.acknowledged for each in outcomes):,}"
    yield none_of("acknowledged jobs lost", acknowledged, _broken(outcomes, "lost"))
    for words, names in (
        ("mutations whose effects are not their state", "doubled ghosts torn repeated"),
        ("actions started twice, or never", "restarted unstarted"),
        ("terminal states changed, cancels undone", "changed revived"),
        ("concurrency of a key exceeded, slots leaked", "crowded leaked"),
        ("jobs never ended or failed without a cause, workers never buried",
         "unfinished unexplained orphans"),
    ):  # fmt: skip
        yield none_of(words, jobs, _broken(outcomes, names))
    slots = sum(each.ticks.slots for each in outcomes)
    wrong = sum(sum(each.ticks[1:]) for each in outcomes)
    yield none_of("ticks missed or doubled", f"{slots:,}", wrong)


def _broken(outcomes: Sequence[Outcome], names: str) -> int:
    return sum(len(getattr(each.verdict, name)) for each in outcomes for name in names.split())


def _times(store: str, outcomes: Sequence[Outcome]) -> Iterator[Row]:
    name = NAMES[store]
    if reruns := sorted(time for each in outcomes for time in each.reruns):
        p99 = reruns[math.ceil(len(reruns) * 0.99) - 1]
        tried, bound = f"{len(reruns):,} jobs", RERUN_SECONDS[store]
        yield at_most(f"{name}: rerun after a kill, p99", tried, p99, bound, " s")
    if resumed := [time for each in outcomes for time in each.resumed]:
        words = f"{name}: claims resume after a restart, longest"
        yield at_most(words, f"{len(resumed)}", max(resumed), RESUME_SECONDS, " s")
    if long := [each for each in outcomes if each.order.seconds >= LONG_ENOUGH]:
        calm, faulty = (_mean([each[i] for each in map(_speeds, long)]) for i in (0, 1))
        tried = f"{calm:,.0f}/s calm, {faulty:,.0f}/s"
        part = 100 * faulty / calm
        yield at_least(f"{name}: throughput under faults", tried, part, LEAST_OF_CALM, " %")
        growth = 100 * max(each.growth for each in long)
        words = f"{name}: growth of a worker's memory"
        yield at_most(words, f"{len(long)} acts", growth, MOST_GROWTH, " %")


def _speeds(outcome: Outcome) -> tuple[float, float]:
    return outcome.calm, outcome.faulty


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
