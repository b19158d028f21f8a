"""`duly` as a process of its own: started, watched, killed.

Every process gets a session of its own, so that whatever it starts can be ended with it, and
writes its output into a file, so that a full pipe never stops it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tests.loopback import sitecustomize as loopback

T = TypeVar("T")

TOP = Path(__file__).parent.parent.parent
PATIENCE = 60.0
PYTHONPATH = os.pathsep.join([loopback.HERE, str(TOP / "src"), str(TOP)])


def wait_until(ask: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """Ask until the answer is true, and give it; fail the test if it never is."""
    give_up_at = time.monotonic() + patience
    while not (answer := ask()):
        assert time.monotonic() < give_up_at, f"it never came true that {what}"
        time.sleep(0.005)
    return answer


def environment(url: str | None = None, **more: str) -> dict[str, str]:
    """The environment of a process: this source tree, and nothing of duly's from outside."""
    inherited = {name: value for name, value in os.environ.items() if "DULY" not in name}
    named = {} if url is None else {"DULY_DATABASE_URL": url}
    return {**inherited, "PYTHONPATH": PYTHONPATH, **named, **more}


class Process:
    """One running process and everything that it started."""

    def __init__(
        self,
        command: list[str],
        env: Mapping[str, str],
        *,
        cwd: Path = TOP,
        pass_fds: tuple[int, ...] = (),
    ) -> None:
        self._open_files()
        # Nothing is ever written to its standard input; its end would be the end of the parent.
        self._process = subprocess.Popen(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._errors,
            pass_fds=pass_fds,
            start_new_session=True,
        )

        self.pid = self._process.pid

    def _open_files(self) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115

    @property
    def is_running(self) -> bool:
        return self._exit_code() is None

    def _exit_code(self) -> int | None:
        """Look without taking note of the end.

        Until `close` does so, the kernel gives the process's number, which is also that of its
        group, to nobody else. Otherwise killing the group could hit a stranger.
        """
        state = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if state is None:
            return None
        return state.si_status if state.si_code == os.CLD_EXITED else -state.si_status

    def wait(self, patience: float = PATIENCE) -> int:
        """Its exit code, negative if a signal ended it."""
        give_up_at = time.monotonic() + patience
        while (code := self._exit_code()) is None:
            assert time.monotonic() < give_up_at, f"{self.pid} does not end\n{self.errors()}"
            time.sleep(0.005)
        return code

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def signal_all(self, number: int) -> None:
        """As a terminal does: to this process and whatever it started."""
        os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to this process alone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def kill_all(self) -> None:
        """SIGKILL to this process and whatever it started."""
        self.signal_all(signal.SIGKILL)
        self.wait()

    def started(self, pid: int) -> bool:
        """Whether another process is one of its descendants."""
        with suppress(ProcessLookupError):
            return os.getpgid(pid) == self.pid
        return False

    def output(self) -> str:
        return _text(self._output.fileno())

    def errors(self) -> str:
        return _text(self._errors.fileno())

    def close(self) -> None:
        """End whatever is left of it."""
        self.kill_all()
        self._bury()
        self._output.close()
        self._errors.close()

    def _bury(self) -> None:
        """Take note of its end."""
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


def _text(file: int) -> str:
    # Not through the file's position, which the writing process shares.
    size = os.fstat(file).st_size
    return os.pread(file, size, 0).decode()


def duly(*arguments: str) -> list[str]:
    """The command line of `duly`."""
    return [sys.executable, "-m", "duly", *arguments]
