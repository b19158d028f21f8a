"""A parent of worker processes goes on whatever happens to it."""

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from duly import Duly
from duly.runtime import supervisor as module
from duly.runtime.supervisor import Supervisor
from tests.jobs.support import PATIENCE, wait_until


@pytest.fixture
def app(sqlite_url: str) -> Iterator[Duly]:
    app = Duly(sqlite_url, auto_migrate=True)
    app.ready()
    yield app
    app.close()


def test_a_child_that_cannot_be_started_is_started_later(
    app: Duly, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "AFTER_ERROR", 0.01)
    started: list[subprocess.Popen[bytes]] = []
    failures = iter([OSError(11, "no more processes"), OSError(24, "too many open files")])

    def spawn(file: int) -> subprocess.Popen[bytes]:
        for failure in failures:
            raise failure
        started.append(subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=-1))
        return started[-1]

    supervisor = Supervisor(app.core, spawn, 1, 0)
    parent = threading.Thread(target=supervisor.run, daemon=True)
    parent.start()
    wait_until(lambda: started, "a child")
    supervisor.stop()
    supervisor.stop()
    parent.join(PATIENCE)

    assert not parent.is_alive()
    assert started[0].wait() != 0
    assert started[0].stdin is not None
    started[0].stdin.close()
    assert "no more processes" in caplog.text
    assert "too many open files" in caplog.text
