"""Random requests over HTTP, made from the OpenAPI document: none meets an error of the server."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

from duly import Duly
from tests.server.random_requests import ask_everything, furnish
from torture.load.scene import scratch_folder
from torture.measures.base import NAMES, Share, say, side_by_side
from torture.measures.points import database
from torture.table import Row, none_of

HOURLY = 60_000
ROUND = 1_000


class Asked(NamedTuple):
    store: str
    made: int
    failure: str


def run(share: Share) -> Iterator[Row]:
    rounds = share.until_enough(math.ceil(share.scaled(HOURLY) / ROUND))
    stores = itertools.cycle(share.stores)
    every = list(side_by_side(ask, ((next(stores),) for _ in rounds)))
    for store in share.stores:
        asked = [each for each in every if each.store == store]
        failures = [each.failure for each in asked if each.failure]
        if failures:
            say(*failures, share.replay("requests", store))
        words = f"{NAMES[store]}: requests answered with 5xx or unlike the document"
        yield none_of(words, f"{sum(each.made for each in asked):,}", len(failures))


def ask(store: str) -> Asked:
    """Ask once around, an app and a database of its own."""
    os.environ["KNOCK"] = "secret"
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        app = Duly(stack.enter_context(database(store, folder)))
        stack.callback(app.close)
        app.migrate()
        app.dispatch.secrets = ["env:KNOCK"]
        try:
            return Asked(store, ask_everything(app, furnish(app), ROUND), "")
        except Exception as failure:
            return Asked(store, ROUND, f"{failure}")
