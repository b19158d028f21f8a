"""Ctrl-C is one line at most, whatever `duly` is doing: loading, asking, or ending."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from duly import Duly
from duly.cli.local import Local
from duly.server.api import events
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


async def in_the_stream() -> AsyncGenerator[str]:
    signal.raise_signal(signal.SIGINT)
    await asyncio.Event().wait()
    yield ""


async def waiting() -> AsyncGenerator[str]:
    await asyncio.Event().wait()
    yield ""


async def in_a_task() -> AsyncGenerator[str]:
    async def interrupt() -> None:
        signal.raise_signal(signal.SIGINT)

    await asyncio.gather(interrupt(), asyncio.Event().wait())
    yield ""


async def after_a_line() -> AsyncGenerator[str]:
    yield "x\n"
    await asyncio.sleep(0)
    async for text in in_the_stream():
        yield text


def streaming(monkeypatch: pytest.MonkeyPatch, stream: Callable[[], AsyncGenerator[str]]) -> Local:
    """The API of an app whose events are these."""
    [operation] = events.api
    monkeypatch.setattr(events, "api", [operation._replace(function=lambda: stream())])
    return Local(Duly("sqlite:///:memory:"))


@pytest.mark.parametrize("stream", [in_the_stream, in_a_task, after_a_line])
def test_within_the_api_of_this_process(
    stream: Callable[[], AsyncGenerator[str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever it hits is ended in order, and nothing is said of it later."""
    local = streaming(monkeypatch, stream)
    with pytest.raises(KeyboardInterrupt):
        list(local.stream("/api/v1/events"))
    local.close()
    assert caplog.text == ""


def test_before_the_api_of_this_process_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """When asyncio has just begun to listen to signals, and then begins to count them."""
    local = streaming(monkeypatch, in_the_stream)
    listen = signal.signal

    def interrupted(number: int, handler: Any) -> Any:
        before = listen(number, handler)
        monkeypatch.setattr(signal, "signal", listen)
        signal.raise_signal(signal.SIGINT)
        return before

    monkeypatch.setattr(signal, "signal", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(local.stream("/api/v1/events"))
    local.close()


def test_before_asyncio_listens_to_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task has been made by then, and must not begin."""
    local = streaming(monkeypatch, waiting)
    listen = signal.signal

    def interrupted(number: int, handler: Any) -> Any:
        monkeypatch.setattr(signal, "signal", listen)
        raise KeyboardInterrupt

    monkeypatch.setattr(signal, "signal", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(local.stream("/api/v1/events"))
    local.close()
