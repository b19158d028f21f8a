"""`duly ticker`, and workers that leave schedules to it."""

from __future__ import annotations

import signal
from datetime import timedelta

from duly import State
from tests.cli.conftest import APP
from tests.cli.processes import Process, duly, environment, wait_until

HOUR = timedelta(hours=1)


def test_a_ticker_ticks_and_leaves_the_jobs_to_workers(shop):
    env = environment(shop.url, SHOP_FOLDER=str(shop.trace.folder))
    ticker = Process(duly("--app", APP, "ticker"), env)
    worker = shop.worker("--no-ticker")
    try:
        call = shop.app.function("touch").bind("ticked")
        shop.app.schedules.create("s", call, every=HOUR, fire_at_once=True)
        wait_until(lambda: shop.app.jobs(state=State.SUCCEEDED), "the tick became a job, and ran")
        assert shop.started() == ["ticked"]
        assert len(shop.worker_pids(worker)) == 1 == shop.db.count("@workers")
        ticker.signal(signal.SIGTERM)
        assert ticker.wait() == 0
        assert "Traceback" not in ticker.errors()
    finally:
        ticker.close()


def test_a_worker_ticks_unless_it_is_told_not_to(shop):
    silent = shop.worker("--no-ticker")
    call = shop.app.function("touch").bind("ticked")
    schedule = shop.app.schedules.create("s", call, every=HOUR, fire_at_once=True)
    job = shop.call("touch", "called")
    wait_until(lambda: job.state == State.SUCCEEDED, "the worker works")
    assert shop.app.schedules.ticks(schedule) == []
    assert shop.stop(silent) == 0

    shop.worker()
    wait_until(lambda: "ticked" in shop.started(), "the other one ticks")
    assert [tick.outcome for tick in shop.app.schedules.ticks(schedule)] == ["dispatched"]
