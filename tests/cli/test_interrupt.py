"""Ctrl-C is one line at most, whatever `duly` is doing: loading, asking, or ending."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from duly import Duly
from duly.cli.local import Local
from tests.cli.processes import environment

IN_AN_IMPORT = """
import runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
runpy.run_module("duly", run_name="__main__")
"""
AT_THE_END = """
import atexit, runpy, signal, sys

atexit.register(signal.raise_signal, signal.SIGINT)
sys.argv = ["duly", "version"]
runpy.run_module("duly", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        (IN_AN_IMPORT, 130, "duly: interrupted\n"),
        # Which is 130, too, for a shell.
        (AT_THE_END, -signal.SIGINT, ""),
    ],
)
def test_before_and_after_the_command(script: str, code: int, said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (code, said)


async def in_the_request(scope: Any, receive: Any, send: Any) -> None:
    signal.raise_signal(signal.SIGINT)
    await receive()
    await receive()


async def in_a_task(scope: Any, receive: Any, send: Any) -> None:
    async def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    await asyncio.gather(interrupt(), receive())
    await receive()


async def in_a_stream(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x\n", "more_body": True})
    await asyncio.sleep(0)
    await in_the_request(scope, receive, send)


@pytest.mark.parametrize("application", [in_the_request, in_a_task, in_a_stream])
def test_within_the_api_of_this_process(
    application: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever it hits is ended in order, and nothing is said of it later."""
    app = Duly("sqlite:///:memory:")
    monkeypatch.setattr(app, "asgi", lambda **_: application)
    local = Local(app)
    with pytest.raises(KeyboardInterrupt):
        list(local.stream("/events"))
    local.close()
    assert caplog.text == ""


def test_before_the_api_of_this_process_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """When asyncio has just begun to listen to signals, and then begins to count them."""
    app = Duly("sqlite:///:memory:")
    monkeypatch.setattr(app, "asgi", lambda **_: in_the_request)
    local = Local(app)
    listen = signal.signal

    def interrupted(number: int, handler: Any) -> Any:
        before = listen(number, handler)
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)
        return before

    monkeypatch.setattr(signal, "signal", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(local.stream("/events"))
    local.close()
