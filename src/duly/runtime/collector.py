"""Tunes Python's cycle collector in processes that only run jobs.

By default it looks for cycles after every few hundred new objects. A worker makes dozens for each
job and keeps them for a moment; nearly all of them are freed without being looked for.
"""

from __future__ import annotations

import gc

NEW_OBJECTS = 10_000
DEFAULTS = (700, 2_000)
"""Of the versions of Python: whatever else is found was chosen by somebody."""


def look_less_often() -> None:
    """Leave out what is there from the start, and look less often at the rest.

    Not where the app has settings of its own. Never in a process that is not duly's.
    """
    often, *others = gc.get_threshold()
    if gc.isenabled() and often in DEFAULTS:
        gc.collect()
        gc.freeze()
        gc.set_threshold(NEW_OBJECTS, *others)
