"""Existing tests of one topic each, run as they are, at full length in a long run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator

from torture.measures.base import HOUR, Share, say
from torture.table import Row, none_of

Topic = tuple[str, ...]
"""Options for pytest: files, and possibly which of their tests."""

TOPICS: dict[str, Topic] = {
    "database unavailable under load (30 s in a long run): workers declared dead, `worker_lost`": (
        "tests/torture/test_outage.py",
    ),
    "clock steps of ±1 h and ±1 day, skew between machines": (
        *("tests/torture/test_clock_skew.py", "tests/schedules/test_ticks.py"),
        *("tests/jobs/test_scheduling_times.py", "-k", "clock"),
    ),
    "DST in every zone, cron compared with other engines": (
        *("tests/model/test_trigger.py", "tests/model/test_cron_oracle.py"),
    ),
    "zone data replaced under a running system": (
        *("tests/model/test_zones.py", "tests/schedules/test_tickers.py", "-k", "zone or data"),
    ),
    "`database is locked` with 8 writers, and with other users of the file": (
        *("tests/store/test_eight_processes.py", "tests/store/test_sqlite_sharing.py"),
    ),
    "lost answers from the database": ("tests/torture/test_lost_answers.py",),
    "poison jobs (`os.abort`, memory, `kill -9`) stopped after four crashes": (
        "tests/torture/test_poison.py",
    ),
    "a month or more offline: `catch_up` obeyed": ("tests/schedules/test_catch_up.py",),
    "fork safety": ("tests/lifecycle/test_forks.py",),
    "event loop blocked (for 10 leases in a long run)": (
        *("tests/runtime/test_running.py", "-k", "event_loop"),
    ),
}
PGBOUNCER: Topic = ("tests/torture/test_pgbouncer.py",)
LONG_RUN = HOUR / 2
# Far more than any of them takes: a hanging test must not block the others.
HANGS_AFTER = 900.0


def run(share: Share) -> Iterator[Row]:
    long = share.whole >= LONG_RUN
    for words, topic in TOPICS.items():
        yield _row(words, topic, long=long)
    yield _behind_pgbouncer()


def _behind_pgbouncer() -> Row:
    words = "PgBouncer in transaction mode"
    if shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
        return Row(words, "not run: there is no pgbouncer", "", "", kept=True)
    return _row(words, PGBOUNCER, long=True)


def _row(words: str, topic: Topic, *, long: bool) -> Row:
    passed, failed = run_tests(topic, long=long)
    return none_of(words, f"{passed + failed} tests{'' if long else ', short'}", failed)


def run_tests(topic: Topic, *, long: bool) -> tuple[int, int]:
    """How many passed, and how many did not."""
    options = ["-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=0", "-n", "2"]
    command = [sys.executable, "-m", "pytest", *options, *topic, *(["--long"] if long else [])]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=HANGS_AFTER
        )
    except subprocess.TimeoutExpired:
        say(f"no end after {HANGS_AFTER:.0f} s", f"replay: {shlex.join(command)}")
        return 0, 1
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    failed = counts.get("failed", 0) + counts.get("error", 0)
    if done.returncode:
        say(done.stdout[-4_000:], f"replay: {shlex.join(command)}")
    return counts.get("passed", 0), failed or bool(done.returncode)
