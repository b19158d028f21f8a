"""Tunes Python's cycle collector in processes that only run jobs.

By default it looks for cycles after every few hundred new objects. A worker creates dozens for each
job and keeps them only briefly; nearly all of them are freed without the collector.
"""

from __future__ import annotations

import gc

NEW_OBJECTS = 10_000
DEFAULTS = (700, 2_000)
"""Python's own defaults. Any other values were chosen by the app."""


def look_less_often() -> None:
    """Exclude the objects that exist at startup, and collect the others less often.

    Does nothing if the app has its own settings. Never called in a process that is not duly's.
    """
    often, *others = gc.get_threshold()
    if gc.isenabled() and often in DEFAULTS:
        gc.collect()
        gc.freeze()
        gc.set_threshold(NEW_OBJECTS, *others)
