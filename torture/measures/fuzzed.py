"""Code that reads text from outside, under a coverage-guided fuzzer."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import NamedTuple

from torture.measures.base import Share, say, side_by_side
from torture.table import Row, none_of

HOURLY = 2_000_000
# Cron expressions take as long as all others together.
TARGETS = {
    "cron": ("cron expressions", 0.5),
    "filter": ("conditions", 0.2),
    "webhook": ("webhook headers", 0.2),
    "json": ("JSON arguments", 0.1),
}
# For the machine, not for duly: an input that takes this long is a violation too.
HANGS_AFTER = 10


class Found(NamedTuple):
    target: str
    runs: int
    crash: str


def run(share: Share) -> Iterator[Row]:
    if find_spec("atheris") is None:
        yield Row("fuzzing", "not run: atheris is not installed", "", "", kept=True)
        return
    for found in side_by_side(_fuzz, ((target, share) for target in TARGETS)):
        if found.crash:
            say(found.crash)
        words = f"coverage-guided fuzzing of {TARGETS[found.target][0]}"
        yield none_of(words, f"{found.runs:,} inputs", bool(found.crash))


def _fuzz(target: str, share: Share) -> Found:
    seconds = share.limit * TARGETS[target][1] * 2
    return Found(target, *fuzz(target, share.scaled(HOURLY), seconds, share.seed))


def fuzz(target: str, runs: int, seconds: float, seed: int) -> tuple[int, str]:
    """How many inputs were tried, and the fuzzer's output about the one that broke something."""
    # Zero means no limit.
    longest = 0 if seconds == math.inf else max(1, int(seconds))
    options = [f"-atheris_runs={runs}", f"-max_total_time={longest}"]
    options += [
        f"-seed={seed % 2**31 or 1}",
        f"-timeout={HANGS_AFTER}",
        "-artifact_prefix=/dev/null",
    ]
    command = [sys.executable, "-m", "torture.fuzz", target, *options]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    said = done.stdout + done.stderr
    counts = [int(n) for n in re.findall(r"^(?:#|Done )(\d+)", said, re.MULTILINE)]
    crash = "" if done.returncode == 0 else f"{said[-2_000:]}\nreplay: {' '.join(command)}"
    return max(counts, default=0), crash
