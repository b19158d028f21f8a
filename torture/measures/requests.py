"""Random HTTP requests, made from the OpenAPI document: none may cause a server error."""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
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
    each = math.ceil(share.scaled(HOURLY) / ROUND / len(share.stores))
    stores = itertools.cycle(share.stores)
    rounds = ((next(stores),) for _ in share.until_enough(each * len(share.stores)))
    made, wrong = Counter[str](), Counter[str]()
    try:
        for asked in side_by_side(ask, rounds):
            made[asked.store] += asked.made
            if asked.failure:
                wrong[asked.store] += 1
                say(asked.failure, share.replay("requests", asked.store))
    finally:
        # Even if the run is interrupted.
        for store in share.stores:
            words = f"{NAMES[store]}: requests answered with 5xx or not as documented"
            yield none_of(words, f"{made[store]:,}", wrong[store])


def ask(store: str) -> Asked:
    """One round of requests, with its own app and database."""
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
