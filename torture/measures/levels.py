"""Databases and user transactions with stricter isolation than READ COMMITTED."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import NamedTuple

import psycopg
from psycopg import sql

from tests.cli.processes import wait_until
from tests.levels import STRICTER
from tests.postgres import fresh_database
from torture.load.audit import Verdict, evidence
from torture.load.damage import damage
from torture.load.fleet import Fleet
from torture.load.scene import scratch_folder
from torture.load.ticks import Count, count_slots
from torture.measures.base import Share, say
from torture.measures.points import database
from torture.table import Row, none_of

LEAST = 5.0
SCHEDULES = 5
BETWEEN_KILLS = 3.0
WARM = 100
STALE = "torture.load.stale"


class Played(NamedTuple):
    """The result of one scene."""

    jobs: int
    hooks: int
    kills: int
    verdict: Verdict
    ticks: Count
    evidence: list[str]

    @property
    def violations(self) -> int:
        return len(self.evidence) + (not self.verdict.is_clean) + (not self.ticks.is_clean)


def run(share: Share) -> Iterator[Row]:
    if "postgres" not in share.stores:
        return
    for level in STRICTER:
        settings = {"default_transaction_isolation": level}
        played = play(settings, max(LEAST, share.seconds / len(STRICTER)), share.seed)
        if played.violations:
            say(played.verdict, played.ticks, *played.evidence)
            say(share.replay("levels", "postgres", share.seconds))
        words = f"PostgreSQL: a {level.upper()} database, under load with kills"
        tried = f"{played.jobs:,} jobs, {played.hooks:,} hooks of batches"
        yield none_of(words, tried, played.violations)


def play(
    settings: Mapping[str, str],
    seconds: float,
    seed: int,
    client: str = STALE,
    env: Mapping[str, str] | None = None,
    *,
    server: str | None = None,
) -> Played:
    """Load on a database with these settings, with kills, a drain, and checks.

    The database has a server of its own, unless one is named.
    """
    chance = random.Random(seed)
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        with_database = fresh_database(server) if server else database("postgres", folder)
        url = stack.enter_context(with_database)
        fleet = Fleet(url, folder, schedules=SCHEDULES)
        stack.callback(fleet.close)
        # The fleet's own connection is open already, and is not affected.
        _set(url, settings)
        workers = fleet.worker("--processes=2", env=env)
        fleet.enqueuer(env=env)
        for _ in range(2):
            fleet.start([sys.executable, "-m", client, str(chance.random())[2:]], env=env)
        wait_until(lambda: fleet.acknowledged() >= WARM, "there is load", patience=60)
        over_at = time.monotonic() + seconds
        while time.monotonic() < over_at:
            time.sleep(min(BETWEEN_KILLS, seconds / 2))
            fleet.kill_some_child(workers, chance)
        fleet.drain()
        verdict = fleet.verdict()
        found = [*damage(fleet.db), *evidence(fleet.db, fleet.trace, verdict)]
        hooks = fleet.db.scalar("SELECT count(*) FROM @history WHERE function = 'gather'")
        jobs = fleet.db.count("@history")
        said = [*found, *fleet.surprises()]
        return Played(jobs, hooks, fleet.kills, verdict, count_slots(fleet.db), said)


def _set(url: str, settings: Mapping[str, str]) -> None:
    name = sql.Identifier(url.rpartition("/")[2])
    change = sql.SQL("ALTER DATABASE {} SET {} = {}")
    with psycopg.connect(url, autocommit=True) as connection:
        for setting, value in settings.items():
            connection.execute(change.format(name, sql.Identifier(setting), sql.Literal(value)))
