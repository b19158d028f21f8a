"""What a worker writes: one record for every change of state, no arguments, no passwords."""

from __future__ import annotations

import json
import signal
from urllib.parse import urlsplit

from tests.cli.processes import wait_until

SECRET = "hunter2"


def test_json_logs_tell_every_change_and_no_argument(shop):
    worker = shop.worker(root=("--log-format=json", "--log-level=info"))
    done = [shop.call("touch", SECRET), shop.call("note", SECRET), shop.call("fail", SECRET)]
    wait_until(lambda: all(job.state.is_terminal for job in done), "the jobs have ended")
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0

    records = [json.loads(line) for line in worker.errors().splitlines()]
    assert {"at", "level", "logger", "message"} <= records[0].keys()
    for job, end in zip(done, ["succeeded", "succeeded", "failed"], strict=True):
        told = [r for r in records if r.get("job_id") == job.id]
        assert {(r["function"], r["attempt"]) for r in told} == {(job.function, 1)}
        assert [r["message"].rpartition(" ")[2] for r in told] == ["running", end]
    assert SECRET not in worker.errors()
    assert (urlsplit(shop.url).password or SECRET) not in worker.errors()


def test_text_logs_are_quiet_about_success(shop):
    worker = shop.worker()
    shop.call("touch", SECRET).result(timeout=60)
    assert shop.stop(worker) == 0
    assert worker.output() == ""
    (greeting,) = worker.errors().splitlines()
    assert greeting == "duly worker: 1 process(es) of 'default'; Ctrl-C stops"
