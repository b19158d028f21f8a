"""The user and system CPU time of commands, compared with `duly --version`; medians of seven."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

RUNS = 7
COMMANDS = (["--version"], ["jobs", "list"], ["schedules", "list"], ["why", "nightly"])
APP = """
from duly import Ctx, Duly

app = Duly("sqlite:///app.db")

@app.action
def touch(ctx: Ctx) -> None: ...

app.schedule("nightly", touch.bind(), cron="0 3 * * *")

if __name__ == "__main__":
    app.migrate()
    app.schedules.apply()
    app.run(touch)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tasks.py").write_text(APP)
        run(folder, ["tasks.py"])
        costs = [median(cpu(folder, command) for _ in range(RUNS)) for command in COMMANDS]
    for command, cost in zip(COMMANDS, costs, strict=True):
        print(f"duly {' '.join(command):16} {cost:6.3f} s  {cost / costs[0]:5.2f} times --version")


def cpu(folder: str, command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(folder, ["-m", "duly", *command])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(folder: str, arguments: list[str]) -> None:
    # As users have it: with the bytecode of earlier runs.
    env = {**os.environ, "DULY_APP": "tasks", "PYTHONDONTWRITEBYTECODE": ""}
    subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, check=True, capture_output=True
    )


if __name__ == "__main__":
    main()
