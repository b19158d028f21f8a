"""Some hundred schedules that tick every second, each at a moment of its own within the second."""

import os

from duly import Ctx, Duly
from duly.model.trigger import Every

SCHEDULES = int(os.environ.get("CLOCKWORK_SCHEDULES", "200"))
SECOND = 1_000
# Long before any test, so that what is computed from it owes nothing to the store.
ANCHOR = 1_700_000_000_000

# The test itself only wants to know when they tick.
app = Duly(os.environ.get("DULY_DATABASE_URL", "sqlite:////nowhere/duly.db"))


@app.action
def chime(ctx: Ctx, n: int) -> int:
    return n


def anchor_of(n: int) -> int:
    """Spread over the second: tickers always have something to do, and mostly several have."""
    return ANCHOR + n % 10 * 100


for n in range(SCHEDULES):
    # All that is caught up after a kill is to be dispatched, and nothing skipped or missed.
    app.schedule(
        f"chime {n}",
        chime.bind(n),
        trigger=Every(SECOND, anchor_of(n)),
        overlap="allow",
        catch_up=1_000,
    )
