"""`app.lifespan` under real servers with several processes."""

import signal
import sys

import pytest

from duly import State
from tests.cli.conftest import Shop
from tests.cli.processes import TOP, wait_until
from tests.lifecycle.conftest import Serve

GUNICORN = "gunicorn --worker-class=asgi --no-control-socket --bind=fd://{fd}"
UVICORN = "uvicorn --fd={fd}"

# The command, and what each process says when it is told to end.
SERVERS = [
    pytest.param(UVICORN, "Waiting for application shutdown", id="uvicorn"),
    pytest.param(GUNICORN, "Worker shutting down", id="gunicorn"),
]


@pytest.mark.parametrize(("server", "is_told"), SERVERS)
def test_sigterm_lets_running_jobs_end(shop: Shop, serve: Serve, server: str, is_told: str):
    env = {"DULY_DATABASE_URL": shop.url, "SHOP_FOLDER": str(shop.trace.folder)}

    def command(fd: int) -> list[str]:
        options = ["--workers=2", "tests.lifecycle.asgi:web"]
        return [sys.executable, "-m", *server.format(fd=fd).split(), *options]

    running = serve(command, env, TOP)
    wait_until(lambda: len(shop.app.workers()) == 2, "both processes work")
    jobs = [shop.app.job(running.ask(f"/touch_when/{n}/go")["job"]) for n in range(4)]
    wait_until(lambda: sorted(shop.started()) == list("0123"), "all run")

    running.process.signal(signal.SIGTERM)
    wait_until(lambda: running.process.errors().count(is_told) == 2, "both processes were told")
    assert [job.state for job in jobs] == [State.RUNNING] * 4
    shop.let_go("go")

    assert running.process.wait() == 0
    assert [job.state for job in jobs] == [State.SUCCEEDED] * 4
    assert sorted(shop.started()) == list("0123")
    assert shop.app.workers() == []
