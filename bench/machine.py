"""Describes the machine that the figures were measured on."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import psycopg

DISK_SAMPLES = 100


def describe() -> dict[str, str]:
    """Facts that change the figures, as text."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": f"{os.cpu_count()} × {_from_proc('/proc/cpuinfo', 'model name') or 'unknown'}",
        "memory": _from_proc("/proc/meminfo", "MemTotal") or "unknown",
        "system": platform.platform(),
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
        "temporary folder": f"{tempfile.gettempdir()} ({_file_system(tempfile.gettempdir())})",
        "fdatasync of 8 kB": _fdatasync(),
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
        "psycopg": psycopg.__version__,
    }


def _from_proc(path: str, key: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    found = (line.partition(":") for line in lines if line.startswith(key))
    return next((value.strip() for _, _, value in found), None)


def _file_system(folder: str) -> str:
    """The kind of file system: on tmpfs nothing is durable, and every figure is too good."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    real = os.path.realpath(folder)
    over = [m for m in mounts if real == m[1] or real.startswith(m[1].rstrip("/") + "/")]
    return max(over, key=lambda mount: len(mount[1]))[2] if over else "unknown"


def _fdatasync() -> str:
    """A commit cannot be faster than this."""
    times: list[float] = []
    with tempfile.TemporaryFile() as file:
        for _ in range(DISK_SAMPLES):
            os.write(file.fileno(), b"x" * 8192)
            began = time.monotonic()
            getattr(os, "fdatasync", os.fsync)(file.fileno())
            times.append((time.monotonic() - began) * 1e6)
    cuts = statistics.quantiles(times, n=20)
    return f"p50 {cuts[9]:.0f} µs, p95 {cuts[18]:.0f} µs"
