"""The torture's scene of wrong clocks: of real workers, beside a client whose clock is right."""

from contextlib import ExitStack

import pytest

from torture.measures.glitches import SLACK, WITHIN, Scene

ON_POSTGRES = pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.long])


@pytest.mark.spec("N41")
@pytest.mark.parametrize("store", ["sqlite", ON_POSTGRES])
def test_real_workers_whose_clocks_are_wrong_for_seconds_do_nothing_early(store, long_run, report):
    with ExitStack() as stack:
        scene = Scene(stack, store, seed=1)
        scene.glitch_for(60 if long_run else 4)
        assert scene.wrong() == []
        report(f"{scene.glitches} glitches, {len(scene.due)} jobs")


@pytest.mark.long
@pytest.mark.spec("N41")
@pytest.mark.parametrize("store", ["sqlite", ON_POSTGRES])
def test_real_workers_that_have_believed_a_wrong_day_are_right_again_within_a_minute(store):
    with ExitStack() as stack:
        assert Scene(stack, store, seed=1).believe_a_day() <= WITHIN + SLACK
