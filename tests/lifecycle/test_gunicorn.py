"""Gunicorn: every process enqueues and runs jobs, with the app imported before the fork or not."""

import os
import signal
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from duly import State
from tests.cli.conftest import Shop
from tests.cli.processes import TOP, wait_until
from tests.lifecycle.conftest import Serve, Server

PROCESSES = 3
HERE = Path(__file__).parent

preloaded = pytest.param(True, id="imported before the fork")
imported_later = pytest.param(False, id="imported after the fork")


def start(serve: Serve, shop: Shop, *, preload: bool) -> Server:
    """Without preload each process starts its worker with its first request."""

    def command(fd: int) -> list[str]:
        options = f"--workers={PROCESSES} --no-control-socket --config={HERE}/wsgi.py"
        target = [f"--bind=fd://{fd}", "tests.lifecycle.wsgi:application"]
        always = [sys.executable, "-m", "gunicorn", *options.split(), *target]
        return [*always, "--preload"] if preload else always

    env = {"DULY_DATABASE_URL": shop.url, "SHOP_FOLDER": str(shop.trace.folder)}
    return serve(command, env if preload else env | {"LAZY": "1"}, TOP)


def ask_from_everywhere(server: Server, function: str, count: int) -> list[dict[str, Any]]:
    """Ask so often, and then until every process has answered."""
    answers: list[dict[str, Any]] = []
    with ThreadPoolExecutor(PROCESSES) as clients:
        while len(answers) < count or len({answer["pid"] for answer in answers}) < PROCESSES:
            paths = [f"/{function}/{len(answers) + n}" for n in range(20)]
            answers += clients.map(server.ask, paths)
            assert len(answers) < 5_000, "one process answers nothing"
    return answers


@pytest.mark.parametrize("preload", [preloaded, imported_later])
def test_jobs_of_all_processes_run_once_each_and_sigterm_lets_them_end(
    shop: Shop, serve: Serve, preload: bool
):
    server = start(serve, shop, preload=preload)

    touched = ask_from_everywhere(server, "touch", 60)
    noted = ask_from_everywhere(server, "note", 20)

    for answer in [*touched, *noted]:
        shop.app.job(answer["job"]).result(timeout=60)
    assert set(Counter(shop.started()).values()) == {1}
    assert len(shop.started()) == len(touched)
    assert sorted(map(int, shop.db.notes())) == list(range(len(noted)))
    assert len(shop.app.workers()) == PROCESSES

    running = [shop.app.job(server.ask(f"/touch_when/{n}/go")["job"]) for n in "abcd"]
    wait_until(lambda: set(shop.started()) >= set("abcd"), "all run")

    server.process.signal(signal.SIGTERM)
    wait_until(
        lambda: server.process.errors().count("Worker exiting") == PROCESSES,
        "every process was told",
    )
    assert [job.state for job in running] == [State.RUNNING] * 4
    shop.let_go("go")

    assert server.process.wait() == 0
    assert [job.state for job in running] == [State.SUCCEEDED] * 4
    assert set(Counter(shop.started()).values()) == {1}
    assert len(shop.started()) == len(touched) + 4
    assert shop.app.workers() == []


@pytest.mark.spec("R76", "R81")
def test_a_killed_process_loses_nothing(shop: Shop, serve: Serve):
    """Its mutation is run again; what its action has done is unknown, and it says so."""
    server = start(serve, shop, preload=True)
    wait_until(lambda: len(shop.app.workers()) == PROCESSES, "all processes work")
    action = shop.app.job(server.ask("/touch_when/action/go")["job"])
    mutation = shop.app.job(server.ask("/note_when/mutation/go")["job"])
    wait_until(lambda: len(shop.started()) == 2, "both run")
    pids = {worker.id: worker.pid for worker in shop.app.workers()}
    killed = {pids[str(job.record.worker_id)] for job in (action, mutation)}

    for pid in killed:
        assert server.process.started(pid)
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: shop.started().count("mutation") == 2, "the mutation runs again")
    shop.let_go("go")

    mutation.result(timeout=60)
    wait_until(lambda: action.state == State.FAILED, "the action is given up")
    assert action.error is not None
    assert action.error.kind == "worker_lost"
    assert shop.db.notes() == ["mutation"]
    assert shop.started().count("action") == 1
    # Whoever has answered also listens to signals: one that arrives before that is lost.
    answered: set[int] = set()

    def all_have_answered() -> bool:
        answered.add(server.ask("/touch/alive")["pid"])
        return len(answered - killed) == PROCESSES

    wait_until(all_have_answered, "Gunicorn has replaced the dead")
    assert server.stop() == 0
