"""Random requests over HTTP, made from the OpenAPI document: none meets an error of the server."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack

from duly import Duly
from tests.server.random_requests import ask_everything, furnish
from torture.load.scene import scratch_folder
from torture.measures.base import NAMES, Share, say
from torture.measures.points import database
from torture.table import Row, none_of

HOURLY = 60_000
ROUND = 1_000


def run(share: Share) -> Iterator[Row]:
    for store in share.stores:
        over_at = time.monotonic() + share.seconds / len(share.stores)
        wanted = share.scaled(HOURLY) // len(share.stores)
        made, wrong = ask(store, wanted, over_at)
        if wrong:
            say(share.replay("requests", store))
        yield none_of(f"{NAMES[store]}: requests answered with 5xx or unlike the document",
                      f"{made:,}", wrong)  # fmt: skip


def ask(store: str, wanted: int, over_at: float) -> tuple[int, int]:
    """Ask in rounds, each of an app and a database of its own."""
    made = wrong = 0
    os.environ["KNOCK"] = "secret"
    while made < wanted and time.monotonic() < over_at:
        with ExitStack() as stack:
            folder = stack.enter_context(scratch_folder())
            app = Duly(stack.enter_context(database(store, folder)))
            stack.callback(app.close)
            app.migrate()
            app.dispatch.secrets = ["env:KNOCK"]
            try:
                made += ask_everything(app, furnish(app), ROUND)
            except Exception as failure:
                say(f"{failure}")
                wrong += 1
                made += ROUND
    return made, wrong
