"""The app of workers whose jobs share one key; either kind can be paused while it waits."""

import time

from duly import Ctx, Duly, Limit

app = Duly()
KEY = Limit("k", at_once=2)


@app.action(limit=KEY)
def work(ctx: Ctx) -> None:
    """What nobody pauses."""


@app.action(limit=KEY)
def other(ctx: Ctx) -> None:
    """What may be paused, and takes so long that most of it waits by then."""
    time.sleep(0.01)
