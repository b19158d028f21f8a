"""Measures how soon a server answers over a connection that is kept open.

Uses a real socket: a test client does not see delays that the operating system adds between two
writes.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from bench.figures import DULY, Figure, Trial, one

ANSWER = "GET of a small answer, kept connection"
GATEWAY_ANSWER = "GET of a gateway's crons, kept connection"
REQUESTS = 50
PATIENCE = 60.0

_SERVED = """
from duly import Duly
from duly.gateway import Gateway

app = Duly("sqlite:///served.db")
gateway = Gateway("crons.db")
"""


def server_trials() -> Iterator[list[Trial]]:
    """The median of some answers, by the servers of both commands."""
    for row, command, path in (
        (ANSWER, ["--app", "served:app", "serve"], "/api/v1/queues"),
        (GATEWAY_ANSWER, ["gateways", "serve", "served:gateway"], "/cron"),
    ):
        figure = Figure("any store", row, DULY, f"median of {REQUESTS}", "ms", True)
        yield [one(figure, partial(_answers, command, path))]


def _answers(command: Sequence[str], path: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "served.py").write_text(_SERVED)
        with _duly(folder, "--app", "served:app", "migrate") as migration:
            migration.communicate(timeout=PATIENCE)
        with _duly(folder, "--json", *command, "--port", "0") as server:
            try:
                assert server.stdout is not None
                address = json.loads(server.stdout.readline())["url"]
                return _median_of_answers(address, path)
            finally:
                server.terminate()


def _duly(folder: str, *arguments: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([folder, *sys.path])
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DULY_")}
    return subprocess.Popen(
        [sys.executable, "-m", "duly", *arguments],
        cwd=folder,
        env=environment | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )


def _median_of_answers(address: str, path: str) -> float:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE)
    try:
        times = [_ask(connection, path) for _ in range(REQUESTS + 1)]
    finally:
        connection.close()
    return sorted(times[1:])[REQUESTS // 2]


def _ask(connection: http.client.HTTPConnection, path: str) -> float:
    began = time.perf_counter()
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path} answered {answer.status}")
    return (time.perf_counter() - began) * 1000
