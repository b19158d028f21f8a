"""`duly` in a terminal: real processes on real pseudo-terminals, started quickly.

A process that has everything imported forks for each command, so that a test pays for what the
command does and not for Python's start. The forks lead sessions of their own and read their own
environment, as if a shell had started them.

    python -m tests.cli.terminal      is that process: it reads orders from standard input
"""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fcntl import F_SETPIPE_SZ, fcntl, ioctl
from pathlib import Path
from typing import Any, NamedTuple

from tests.cli.processes import PATIENCE, TOP, Process, environment

FILES = {"stdin": os.O_RDONLY, "stdout": os.O_WRONLY, "stderr": os.O_WRONLY}
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r")


class Ran(NamedTuple):
    """What a command printed, and its exit code. On a terminal `err` is part of `out`."""

    code: int
    out: str
    err: str

    @property
    def plain(self) -> str:
        """Without colours and cursor movements."""
        return ESCAPES.sub("", self.out)

    @property
    def json(self) -> Any:
        assert self.code == 0, self
        return json.loads(self.out)


class Terminal:
    """Starts commands, and can type into them."""

    def __init__(self) -> None:
        self._forker = subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=environment(),
            cwd=TOP,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path = TOP,
        columns: int | None = None,
        keys: Sequence[tuple[str, str]] = (),
        code: int | None = 0,
    ) -> Ran:
        """Run a command to its end; `code`: what it must exit with, None: anything.

        With `columns` it runs on a terminal that is so wide, and `keys` says what is typed when:
        after a text has appeared, some keys ("\\x03" is Ctrl-C).
        """
        started = self.start(*arguments, env=env, cwd=cwd, columns=columns)
        ran = started.finish(keys)
        assert code is None or ran.code == code, f"duly {arguments} → {ran}"
        return ran

    def start(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path = TOP,
        columns: int | None = None,
    ) -> Started:
        """The command, running."""
        files = _Files.on_terminal(columns) if columns else _Files.of_pipes()
        environ = {**_inherited(), "TERM": "xterm-256color", "TZ": "UTC", **(env or {})}
        pid = self.fork(arguments, environ, cwd, (files.stdin, files.stdout, files.stderr))
        files.close_theirs()
        return Started(self, pid, files)

    def process(self, *arguments: str, env: Mapping[str, str], cwd: Path = TOP) -> Process:
        """The command as a process of its own, quickly; `env` is all that it gets."""
        return Forked(self, arguments, env, cwd)

    def fork(
        self, arguments: Sequence[str], env: Mapping[str, str], cwd: Path, files: Sequence[int]
    ) -> int:
        """Its number; `files`: what it reads from and writes to."""
        own = [f"/proc/{os.getpid()}/fd/{file}" for file in files]
        named = dict(zip(FILES, own, strict=True))
        order = {"arguments": arguments, "env": dict(env), "cwd": str(cwd), **named}
        return int(self._ask(order))

    def wait(self, pid: int) -> int:
        """The exit code of one that has ended."""
        return int(self._ask({"wait": pid}))

    def look(self, pid: int) -> int | None:
        """The same without taking note of it; None while it runs."""
        code = self._ask({"look": pid}).strip()
        return int(code) if code else None

    def _ask(self, order: Mapping[str, Any]) -> str:
        assert self._forker.stdin is not None
        assert self._forker.stdout is not None
        self._forker.stdin.write(json.dumps(order) + "\n")
        self._forker.stdin.flush()
        return self._forker.stdout.readline()

    def close(self) -> None:
        assert self._forker.stdin is not None
        assert self._forker.stdout is not None
        self._forker.stdin.close()
        self._forker.wait()
        self._forker.stdout.close()


def _inherited() -> dict[str, str]:
    """Without the size of a terminal, which is asked of the terminal itself."""
    return {k: v for k, v in environment().items() if k not in ("COLUMNS", "LINES")}


class _Files(NamedTuple):
    """The ends of the child and, in `ours`, those that we read; on a terminal it is one."""

    stdin: int
    stdout: int
    stderr: int
    ours: tuple[int, ...]

    @classmethod
    def on_terminal(cls, columns: int) -> _Files:
        ours, theirs = pty.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        return cls(theirs, theirs, theirs, (ours,))

    @classmethod
    def of_pipes(cls) -> _Files:
        nothing = os.open(os.devnull, os.O_RDONLY)
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        # It takes little, so that whoever writes much has not ended before it is read.
        fcntl(out, F_SETPIPE_SZ, 4096)
        return cls(nothing, out_end, err_end, (out, err))

    def close_theirs(self) -> None:
        for file in {self.stdin, self.stdout, self.stderr}:
            os.close(file)


class Started:
    """A command that runs."""

    def __init__(self, terminal: Terminal, pid: int, files: _Files) -> None:
        self._terminal, self.pid, self._files = terminal, pid, files
        self._open = list(files.ours)
        self._ended = False
        self._texts = dict.fromkeys(files.ours, "")
        self._decoders = {
            file: codecs.getincrementaldecoder("utf-8")("replace") for file in files.ours
        }

    def until(self, text: str, patience: float = PATIENCE) -> None:
        """Read until a text has appeared."""
        give_up_at = time.monotonic() + patience
        while text not in self.seen:
            assert self._read(give_up_at), f"{text!r} never appeared in\n{self.seen}"

    @property
    def seen(self) -> str:
        return ESCAPES.sub("", "".join(self._texts.values()))

    def type(self, keys: str) -> None:
        os.write(self._files.ours[0], keys.encode())

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def hang_up(self) -> None:
        """Stop reading what it prints, as `head` does."""
        os.close(self._files.ours[0])
        self._open.remove(self._files.ours[0])

    def finish(self, keys: Sequence[tuple[str, str]] = (), patience: float = PATIENCE) -> Ran:
        """Type, read to the end, and say how it ended."""
        for text, typed in keys:
            self.until(text, patience)
            self.type(typed)
        give_up_at = time.monotonic() + patience
        while self._open:
            if not self._read(give_up_at) and self._open:
                os.killpg(self.pid, signal.SIGKILL)
                raise AssertionError(f"{self.pid} does not end\n{self.seen}")
        code = self._terminal.wait(self.pid)
        self._ended = True
        out, *err = (self._texts[file] for file in self._files.ours)
        return Ran(code, out, "".join(err))

    def end(self) -> None:
        """End it and whatever it started, wherever it is."""
        if self._ended:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for file in self._open:
            os.close(file)
        self._open.clear()
        self._terminal.wait(self.pid)

    def _read(self, give_up_at: float) -> bool:
        """Read once; False if time is up or there is nothing left."""
        if not self._open:
            return False
        ready, _, _ = select.select(self._open, [], [], max(0, give_up_at - time.monotonic()))
        for file in ready:
            try:
                part = os.read(file, 65_536)
            except OSError:  # the last process on the terminal is gone
                part = b""
            self._texts[file] += self._decoders[file].decode(part)
            if not part:
                os.close(file)
                self._open.remove(file)
        return bool(ready)


class Forked(Process):
    """A process that the terminal's has forked."""

    def __init__(
        self, terminal: Terminal, arguments: Sequence[str], env: Mapping[str, str], cwd: Path
    ) -> None:
        self._open_files()
        self._terminal = terminal
        stdin, self._stdin_end = os.pipe()
        files = (stdin, self._output.fileno(), self._errors.fileno())
        self.pid = terminal.fork(arguments, env, cwd, files)
        os.close(stdin)

    def _exit_code(self) -> int | None:
        return self._terminal.look(self.pid)

    def _bury(self) -> None:
        self._terminal.wait(self.pid)
        os.close(self._stdin_end)


# The process that forks --------------------------------------------------------------------------


def _warm_up() -> None:
    """Load what commands load, and build the routes that all of them share."""
    from importlib import import_module

    from duly import Duly
    from duly.cli.root import COMMANDS

    for module in ("rich.console", "rich.table", "rich.progress", "psycopg", "uvicorn"):
        import_module(module)
    for path, _ in COMMANDS.values():
        import_module(path.partition(":")[0])
    Duly("sqlite:///nothing.db").asgi(only={"api"})


def _serve_orders() -> None:
    _warm_up()
    for line in sys.stdin:
        order = json.loads(line)
        if "look" in order:
            print(_seen(order["look"]), flush=True)  # noqa: T201
            continue
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201
            continue
        files = [os.open(order[name], mode) for name, mode in FILES.items()]
        pid = os.fork()
        if pid == 0:
            _become(order, files)
        for file in files:
            os.close(file)
        print(pid, flush=True)  # noqa: T201


def _seen(pid: int) -> str:
    """The exit code of a fork, if it has ended."""
    state = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    if state is None:
        return ""
    return str(state.si_status if state.si_code == os.CLD_EXITED else -state.si_status)


def _become(order: dict[str, Any], files: list[int]) -> None:
    """Run the command in this fork, and end."""
    os.setsid()
    # Whoever was started in the background ignores it, and hands that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if os.isatty(0):
        ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(order["env"])
    time.tzset()
    os.chdir(order["cwd"])
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, closefd=False) for number, mode in ((0, "r"), (1, "w"), (2, "w"))
    )
    sys.argv = ["duly", *order["arguments"]]
    code: Any = 1
    try:
        from duly.cli import main

        main(program="duly")
        code = 0
    except SystemExit as exit_:
        code = exit_.code
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    _serve_orders()
