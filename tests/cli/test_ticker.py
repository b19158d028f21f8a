"""`duly ticker`, and workers that leave schedules to it."""

from __future__ import annotations

import json
import signal
from datetime import timedelta

from duly import State
from tests.cli.processes import wait_until

HOUR = timedelta(hours=1)


def test_a_ticker_ticks_and_leaves_the_jobs_to_workers(shop):
    ticker = shop.start("ticker", "--json")
    worker = shop.worker("--no-ticker", "--json")
    call = shop.app.function("touch").bind("ticked")
    shop.app.schedules.create("s", call, every=HOUR, fire_at_once=True)
    wait_until(lambda: shop.app.jobs(state=State.SUCCEEDED), "the tick became a job, and ran")
    assert shop.started() == ["ticked"]
    assert len(shop.worker_pids(worker)) == 1 == shop.db.count("@workers")
    ticker.signal(signal.SIGTERM)
    assert ticker.wait() == 0
    about = {"app": shop.app.name, "pid": ticker.pid}
    assert json.loads(ticker.output()) == about
    assert json.loads(worker.output()) == {**about, "processes": 1, "pid": worker.pid}
    assert ticker.errors() + worker.errors() == ""


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
