"""Real workers: paused jobs that wait for a key do not hold up those behind them."""

from contextlib import ExitStack

import pytest

from torture.measures.lines import WITHIN, Scene

ON_POSTGRES = pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.long])


@pytest.mark.spec("N46")
@pytest.mark.parametrize("store", ["sqlite", ON_POSTGRES])
def test_real_workers_pass_over_what_is_paused(store, long_run, report):
    with ExitStack() as stack:
        scene = Scene(stack, store, seed=1)
        scene.pause_for(30 if long_run else 0)
        report(f"{scene.rounds} pauses, {scene.longest:.1f} s")
        assert scene.longest <= WITHIN
