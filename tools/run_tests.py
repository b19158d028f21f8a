"""Run the parts of `make test` one after the other and print how long each took.

Runs before the environment exists, so it needs only the standard library.

    tools/run_tests.py          every part, in VENV (default .venv)
    tools/run_tests.py --all    set-up and tests on each Python found, in .venv-3.x
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
# More would only compete for the one disk.
MOST_WORKERS = 8


class Part(NamedTuple):
    name: str
    commands: list[list[str]]
    beside: list[str] | None = None
    """Runs in parallel; its output is printed afterwards."""


class Timing(NamedTuple):
    name: str
    seconds: float
    passed: bool


def parts(venv: str, python: str) -> list[Part]:
    make = ["make", "--no-print-directory", f"VENV={venv}", f"PYTHON={python}"]
    # Three per core: a test that starts processes waits for most of its time.
    workers = min(3 * (os.cpu_count() or 1), MOST_WORKERS)
    pytest = [f"{venv}/bin/python", "-m", "pytest"]
    slowest = ["--durations=10", "--durations-min=1"]
    return [
        Part("set-up", [[*make, "setup"]]),
        # In a new tree every test has to be compiled: once here, instead of by all workers at once.
        Part(
            "check", [[*make, "check", "docs"]], beside=[*pytest, "--collect-only", "-qq", "tests"]
        ),
        # In a single run, tests that wait leave their core to tests that compute.
        Part(
            "tests",
            [[*pytest, "-n", str(workers), "--dist=worksteal", *slowest, "tests"]],
            beside=[*make, "demo", "ARGS=--for 60s"],
        ),
    ]


def run(part: Part, prefix: str = "") -> Timing:
    """Run a part up to its first command that fails."""
    name = f"{prefix}{part.name}"
    print(f"\n=== {name}", flush=True)
    began = time.monotonic()
    with running(part.beside) as succeeded:
        passed = all(succeeds(command) for command in part.commands)
        passed = succeeded() and passed
    timing = Timing(name, time.monotonic() - began, passed)
    print(f"=== {name}: {outcome(timing)} in {timing.seconds:.1f} s", flush=True)
    return timing


@contextmanager
def running(command: Sequence[str] | None) -> Iterator[Callable[[], bool]]:
    """Run a command in parallel to the block, which gets a function that waits for its success."""
    if command is None:
        yield lambda: True
        return
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):

        def succeeded() -> bool:
            code = process.wait()
            output.seek(0)
            print("$", *command)
            print(output.read(), flush=True)
            return code == 0

        yield succeeded


def succeeds(command: Sequence[str]) -> bool:
    print("$", *command, flush=True)
    return subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode == 0


def environment() -> dict[str, str]:
    # Hundreds of processes are started, and each would compile everything again.
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def outcome(timing: Timing) -> str:
    return "passed" if timing.passed else "FAILED"


def run_until_failure(planned: Sequence[Part], prefix: str = "") -> list[Timing]:
    timings: list[Timing] = []
    for part in planned:
        timings.append(run(part, prefix))
        if not timings[-1].passed:
            break
    return timings


def run_on_every_python() -> list[Timing]:
    timings: list[Timing] = []
    for version in VERSIONS:
        python = interpreter(version)
        if python is None:
            continue
        # The result of lint and types does not depend on the interpreter that runs them.
        planned = [part for part in parts(f".venv-{version}", python) if part.name != "check"]
        timings += run_until_failure(planned, f"{version} ")
    return timings


def interpreter(version: str) -> str | None:
    """One in the PATH, or otherwise the newest that pyenv has."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    kept = [found for found in (pyenv / "versions").glob(f"{version}.*") if _patch(found) >= 0]
    newest_first = sorted(kept, key=_patch, reverse=True)
    names = [f"python{version}", *(f"{found}/bin/python{version}" for found in newest_first)]
    return next(filter(works, names), None)


def _patch(folder: Path) -> int:
    """The last number of 3.13.7; -1 for 3.13-dev and similar names."""
    last = folder.name.rpartition(".")[2]
    return int(last) if last.isdigit() else -1


def works(python: str) -> bool:
    # A name in PATH may be a placeholder for a version that is not installed.
    try:
        return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def print_table(timings: Sequence[Timing]) -> None:
    width = max([len(timing.name) for timing in timings] + [len("total")])
    print()
    for timing in timings:
        print(f"{timing.name:<{width}} {timing.seconds:8.1f} s  {outcome(timing)}")
    print(f"{'total':<{width}} {sum(timing.seconds for timing in timings):8.1f} s")


def main(arguments: Sequence[str]) -> int:
    if list(arguments) == ["--all"]:
        timings = run_on_every_python()
    else:
        python = os.environ.get("PYTHON", "python3")
        timings = run_until_failure(parts(os.environ.get("VENV", ".venv"), python))
    if not timings:
        print(f"no Python {', '.join(VERSIONS)} was found")
        return 1
    print_table(timings)
    return 0 if all(timing.passed for timing in timings) else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
