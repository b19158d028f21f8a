"""The store fails at a fault point, or its answer is lost there: the process goes on unharmed.

Each day some others of them; `make torture` tries all, and pauses too.
"""

from __future__ import annotations

import time

import pytest

from torture.load.points import AT_ONCE, cells
from torture.measures.points import choose, try_there
from torture.run import MEASURES

DAY = 86_400


@pytest.mark.spec("R76", "R80", "R82", "N35")
def test_a_fault_that_a_process_outlives_loses_nothing_and_doubles_nothing(url, tmp_path, report):
    every = cells(["error", "lost"])
    first = int(time.time() / DAY) * AT_ONCE % len(every)
    chosen = (every + every)[first : first + AT_ONCE]
    tried = try_there(url, tmp_path, chosen, seed=first)
    report(f"{', '.join(map(str, chosen))}: {tried.verdict}")
    assert tried.is_clean, "\n".join([*map(str, tried.missing), *tried.evidence])


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_an_hour_has_time_for_all_of_them(store):
    share, _ = MEASURES["points"]
    assert set(choose(store, share * 3_600, seed=3)) == set(cells())
    some = choose(store, 60, seed=3)
    assert 0 < len(some) < len(cells())
    assert some != choose(store, 60, seed=4)
