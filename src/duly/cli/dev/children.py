"""The processes that `duly dev` starts; they end when it ends."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from duly.clock import os_monotonic
from duly.core import CHECK_RESULTS

DRAIN_SECONDS = 5
GRACE_SECONDS = DRAIN_SECONDS + 12
"""A worker drains its jobs, then needs up to ten seconds to stop the rest."""
WORKER = ["worker", "--with-parent", f"--drain={DRAIN_SECONDS}"]
GREETINGS = ("duly serve: ", "duly worker: ")


class Line(NamedTuple):
    """A line that a process printed."""

    who: str
    text: str


Tell = Callable[[Line], None]


class Child:
    """One process.

    Its stdin is a pipe that is never written to and that closes when this process ends, even if it
    is killed. It has its own process group, so that Ctrl-C reaches only this process.
    """

    def __init__(
        self, name: str, command: Sequence[str], tell: Tell, files: Sequence[int] = ()
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", CHECK_RESULTS: "1"},
            pass_fds=files,
            process_group=0,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, args=(tell,), daemon=True)
        self._reader.start()

    def _read(self, tell: Tell) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            tell(Line(self.name, line.rstrip()))

    @property
    def code(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._process.poll()

    def wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def ask_to_end(self) -> None:
        if self.code is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to it and to all processes it started."""
        if self.code is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        """Read the rest of its output after it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._reader.join(1)
        if not self._reader.is_alive():
            self._process.stdout.close()


class Children:
    """All child processes, and their output."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._running: list[Child] = []
        self._heard: queue.SimpleQueue[Line] = queue.SimpleQueue()

    def start_server(self, file: int) -> None:
        """Start the server on a socket that is already listening."""
        self._start("server", ["serve", f"--with-parent={file}"], file)

    def start_worker(self) -> None:
        self._start("worker", WORKER)

    def start_second_worker(self) -> Child:
        return self._start("second worker", [*WORKER, "--no-ticker"])

    def _start(self, name: str, arguments: Sequence[str], *files: int) -> Child:
        child = Child(name, [*self._command, *arguments], self._heard.put, files)
        self._running.append(child)
        return child

    def heard(self) -> Iterator[Line]:
        """The lines printed since the last call."""
        while not self._heard.empty():
            line = self._heard.get()
            if not line.text.startswith(GREETINGS):
                yield line

    def ended(self) -> list[Child]:
        """Processes that ended unexpectedly since the last call."""
        found = [child for child in self._running if child.code is not None]
        for child in found:
            self._forget(child)
        return found

    def kill(self, child: Child) -> None:
        if child in self._running:
            child.kill()
            self._forget(child)

    def end(self, hurry: Callable[[], bool]) -> None:
        """Stop all of them at once; kill those that take too long, or all when `hurry()`."""
        for child in self._running:
            child.ask_to_end()
        until = os_monotonic() + GRACE_SECONDS
        for child in list(self._running):
            while child.code is None and os_monotonic() < until and not hurry():
                child.wait(0.05)
            self.kill(child)

    def _forget(self, child: Child) -> None:
        self._running.remove(child)
        child.close()
