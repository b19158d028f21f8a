"""Some hundred schedules that tick every second, each at a moment of its own within the second."""

import os

from duly import Ctx, Duly
from duly.model.trigger import Every
from torture.load.ticks import SECOND, anchor_of

SCHEDULES = int(os.environ.get("CLOCKWORK_SCHEDULES", "200"))

# The test itself only wants to know when they tick.
app = Duly(os.environ.get("DULY_DATABASE_URL", "sqlite:////nowhere/duly.db"))


@app.action
def chime(ctx: Ctx, n: int) -> int:
    return n


for n in range(SCHEDULES):
    # All that is caught up after a kill is to be dispatched, and nothing skipped or missed.
    app.schedule(
        f"chime {n}",
        chime.bind(n),
        trigger=Every(SECOND, anchor_of(n)),
        overlap="allow",
        catch_up=1_000,
    )
