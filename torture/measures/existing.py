"""Tests that try one thing each: run as they are, at full length in a long run."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

from torture.measures.base import HOUR, Share, say
from torture.table import Row, none_of

TOPICS = {
    "database away under load: workers declared dead, jobs lost": ["torture/test_outage.py"],
    "steps of the clock, skew between machines": ["torture/test_clock_skew.py"],
    "answers of the database that got lost": ["torture/test_lost_answers.py"],
    "jobs that take their worker down": ["torture/test_poison.py"],
    "one file under eight processes, and beside other users": [
        *("store/test_eight_processes.py", "store/test_sqlite_sharing.py"),
    ],
    "cron in every zone, beside other engines": [
        *("model/test_trigger.py", "model/test_zones.py", "model/test_cron_oracle.py"),
    ],
    "catching up after an outage of any length": ["schedules/test_catch_up.py"],
}
LONG_RUN = HOUR / 2


def run(share: Share) -> Iterator[Row]:
    for words, files in TOPICS.items():
        passed, failed = run_tests(files, long=share.whole >= LONG_RUN)
        yield none_of(words, f"{passed + failed} tests", failed)


def run_tests(files: list[str], *, long: bool) -> tuple[int, int]:
    """How many passed, and how many did not."""
    options = ["-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0", "-n", "2"]
    command = [sys.executable, "-m", "pytest", *options, *(f"tests/{file}" for file in files)]
    done = subprocess.run(
        [*command, *(["--long"] if long else [])], capture_output=True, text=True, check=False
    )
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    failed = counts.get("failed", 0) + counts.get("error", 0)
    if done.returncode:
        say(done.stdout[-4_000:], f"replay: {' '.join(command)}")
    return counts.get("passed", 0), failed or bool(done.returncode)
