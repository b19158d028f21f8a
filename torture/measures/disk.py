"""A full disk under load, and then free space again, on both stores."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from tests.cli.processes import wait_until
from torture.load.audit import evidence
from torture.load.damage import damage
from torture.load.disk import can_mount, database_on, small_disk
from torture.load.fleet import Fleet
from torture.load.scene import scratch_folder
from torture.measures.base import NAMES, Share, say
from torture.table import Row, none_of

TIMES_HOURLY = 30
LEAST_TIMES = 2
WARM = 200
FULL_SECONDS = 2.0
STILL_SECONDS = 2.0
MORE = 100


def run(share: Share) -> Iterator[Row]:
    if not can_mount():
        yield Row("disk full", "not run: no right to mount a file system", "", "", kept=True)
        return
    for store in share.stores:
        times = share.scaled(TIMES_HOURLY, LEAST_TIMES)
        found = fill(store, times)
        words = f"{NAMES[store]}: disk full under load, for clients and workers, then freed"
        row = none_of(words, f"{times} times", len(found))
        if not row.kept:
            say(*found, share.replay("disk", store))
        yield row


def fill(store: str, times: int) -> list[str]:
    """Fill the disk of the database this many times. Return what went wrong."""
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk())
        # The output of the processes must not be lost with the database.
        folder = stack.enter_context(scratch_folder())
        fleet = Fleet(stack.enter_context(database_on(store, disk)), folder, schedules=5)
        stack.callback(fleet.close)
        fleet.worker("--processes=2")
        fleet.enqueuer()
        wait_until(partial(_have_ended, fleet, WARM), "there is load", patience=60)
        for _ in range(times):
            disk.fill()
            wait_until(Standstill(fleet).has_come, "the disk is felt", patience=60)
            time.sleep(FULL_SECONDS)
            disk.empty()
            enough = _ended(fleet) + MORE
            wait_until(partial(_have_ended, fleet, enough), "work continues", patience=60)
        fleet.drain()
        verdict = fleet.verdict()
        return [*damage(fleet.db), *evidence(fleet.db, fleet.trace, verdict), *fleet.surprises()]


class Standstill:
    """A client was refused, or nothing has ended for a while.

    Files with room inside them can be used for some more time, and a client that waits for a
    backlog to shrink makes no request that could be refused.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._refused = fleet.trace.size("refused")
        self._ended, self._since = -1, time.monotonic()

    def has_come(self) -> bool:
        ended, now = _ended(self._fleet), time.monotonic()
        if ended != self._ended:
            self._ended, self._since = ended, now
        return (
            self._fleet.trace.size("refused") > self._refused or now - self._since > STILL_SECONDS
        )


def _have_ended(fleet: Fleet, jobs: int) -> bool:
    return _ended(fleet) >= jobs


def _ended(fleet: Fleet) -> int:
    return fleet.db.count("@history")
