"""Several Python processes that start the same work at the same moment."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

PATIENCE = 60.0

# What each process does first: import everything, say so, and wait for the signal.
PRELUDE = """
import sys
from pathlib import Path
from duly.store.postgres import PostgresStore
from duly.store.sqlite import SqliteStore

NOW = 1_767_225_600_000


def open_store(url):
    if url.startswith("sqlite:///"):
        return SqliteStore(Path(url.removeprefix("sqlite:///")))
    return PostgresStore(url)


def ready():
    print("ready", flush=True)
    sys.stdin.readline()
"""


def start(source: str, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + source, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def say(process: "subprocess.Popen[str]", words: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{words}\n")
    process.stdin.flush()


def hear(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@contextmanager
def running(processes: Sequence["subprocess.Popen[str]"]) -> Iterator[None]:
    """Start them together; processes that are left at the end are killed."""
    try:
        assert [hear(process) for process in processes] == ["ready"] * len(processes)
        for process in processes:
            say(process, "go")
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def run_together(source: str, *arguments: str, count: int) -> list[str]:
    """Run the same program `count` times at once; return what each printed."""
    processes = [start(source, str(number), *arguments) for number in range(count)]
    with running(processes):
        outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * count
    return outputs
