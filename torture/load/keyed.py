"""The app of workers whose jobs share one key. Either function can be paused while jobs wait."""

import time

from duly import Ctx, Duly, Limit

app = Duly()
KEY = Limit("k", at_once=2)


@app.action(limit=KEY)
def work(ctx: Ctx) -> None:
    """Never paused."""


@app.action(limit=KEY)
def other(ctx: Ctx) -> None:
    """May be paused. Takes so long that most of its jobs are waiting by then."""
    time.sleep(0.01)
