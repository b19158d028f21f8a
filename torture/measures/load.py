"""Kills, restarts and broken connections under load: nothing may be lost or doubled."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Sequence
from statistics import fmean, median

from torture.load.chaos import CONNECTIONS, KILLS, RESTARTS, Plan
from torture.load.scene import Order, Outcome, play_on
from torture.measures.base import NAMES, Share, say
from torture.table import Row, at_least, at_most, none_of

KILLS_HOURLY = 2_050
RESTARTS_HOURLY = 41
CONNECTIONS_HOURLY = 310
LONGEST_ACT = 300.0
# Starting, draining and checking take a while in addition to the act itself.
OVERHEAD = 25.0
# Stopping or disconnecting a database takes time that kills do not.
WEIGHTS = {"sqlite": 0.42, "postgres": 0.58}
RERUN_SECONDS = {"sqlite": 2.0, "postgres": 20.0}
RESUME_SECONDS = 3.0
LEAST_OF_CALM = 50.0
MOST_GROWTH = 5.0
# Shorter acts say nothing about speed and memory.
LONG_ENOUGH = 120.0


def run(share: Share) -> Iterator[Row]:
    outcomes: list[Outcome] = []
    broken = 0
    try:
        for order in orders(share):
            try:
                outcomes.append(_act(order))
            except Exception:
                # The other acts may still show something.
                say(traceback.format_exc(), f"replay: {order.replay}")
                broken += 1
    finally:
        # Even if the run is interrupted.
        if broken:
            yield none_of("acts that could not be completed", f"{broken}", broken)
        yield from rows(outcomes)


def _act(order: Order) -> Outcome:
    outcome = play_on(order)
    say(outcome, outcome.figures)
    if not outcome.is_clean:
        say(*outcome.damage, *outcome.evidence, f"replay: {order.replay}")
    return outcome


def orders(share: Share) -> Iterator[Order]:
    """Acts of a few minutes, each on a new database, one store after the other."""
    acts = math.ceil(share.seconds / len(share.stores) / (LONGEST_ACT + OVERHEAD))
    weights = sum(WEIGHTS[store] for store in share.stores)
    for number in range(acts):
        for store in share.stores:
            kills = _part(share.scaled(KILLS_HOURLY), acts * len(share.stores))
            faulty = store == "postgres"
            restarts = _part(share.scaled(RESTARTS_HOURLY), acts) * faulty
            connections = _part(share.scaled(CONNECTIONS_HOURLY), acts) * faulty
            seconds = share.seconds * WEIGHTS[store] / weights / acts - OVERHEAD
            plan = Plan(kills, restarts, connections)
            yield Order(store, share.seed + number, max(10.0, seconds), plan)


def _part(whole: int, parts: int) -> int:
    return math.ceil(whole / parts)


def rows(outcomes: Sequence[Outcome]) -> Iterator[Row]:
    """The combined results of all acts."""
    if not outcomes:
        return
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
            tried = f"{sum(each.tally.done[fault] for each in hit):,}"
            if fault == KILLS:
                tried += f", {sum(each.cut_off for each in hit):,} attempts cut off"
            yield none_of(words, tried, sum(not each.is_clean for each in hit))


def _promises(outcomes: Sequence[Outcome]) -> Iterator[Row]:
    jobs = f"{sum(each.jobs for each in outcomes):,} jobs"
    acknowledged = f"{sum(each.acknowledged for each in outcomes):,}"
    yield none_of("acknowledged jobs lost", acknowledged, _broken(outcomes, "lost"))
    for words, names in (
        ("mutations whose effects do not match their state", "doubled ghosts torn repeated"),
        ("actions that started twice, or never", "restarted unstarted"),
        ("terminal states changed, cancels undone", "changed revived"),
        ("concurrency of a key exceeded, slots leaked", "crowded leaked"),
        ("jobs that never ended or failed without a cause, dead workers not removed",
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
        yield from _long_times(name, long)


def _long_times(name: str, outcomes: Sequence[Outcome]) -> Iterator[Row]:
    calm, faulty = fmean(each.calm for each in outcomes), fmean(each.faulty for each in outcomes)
    tried = f"{calm:,.0f}/s calm, {faulty:,.0f}/s"
    part = 100 * faulty / max(1.0, calm)
    yield at_least(f"{name}: throughput under faults", tried, part, LEAST_OF_CALM, " %")
    # A process that reads more than before also uses more memory; a leak grows in every act.
    growth = 100 * median(each.growth for each in outcomes)
    words = f"{name}: growth of a worker's memory, median"
    yield at_most(words, f"{len(outcomes)} acts", growth, MOST_GROWTH, " %")
