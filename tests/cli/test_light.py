"""Commands that operate an app need `duly[cli]`, and nothing of the server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from duly.cli.local import Local
from duly.cli.remote import Remote
from duly.server.api import MODULES, operations_of
from tests.cli.places import Place
from tests.cli.processes import PYTHONPATH, environment
from tests.cli.test_errors import BLOCKER

ABSENT = "fastapi pydantic pydantic_core starlette anyio jinja2 uvicorn httpx2 cron_descriptor"
HEAVY = [*ABSENT.split(), "http.client", "email", "duly.server.asgi", "duly.server.api.schedules"]
TELL = """
import json, sys
from duly.cli import main
codes = []
for arguments in json.loads(sys.argv[1]):
    try:
        main(args=arguments, program="duly")
    except SystemExit as ended:
        codes.append(ended.code)
print("LOADED", json.dumps([codes, sorted(sys.modules)]), file=sys.stderr)
"""


@pytest.fixture
def light(home: Place, tmp_path: Path) -> Mapping[str, str]:
    """The environment of a process that has `duly[cli]` installed, and no other extra."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    path = {"BLOCKED": ABSENT, "PYTHONPATH": f"{tmp_path}:{PYTHONPATH}"}
    return environment(**home.at_home, **path)


class Ran(NamedTuple):
    codes: list[int]
    said: str
    loaded: set[str]


def duly(env: Mapping[str, str], *commands: Sequence[str]) -> Ran:
    """Run them in one process, for each has to load the same."""
    ended = subprocess.run(
        [sys.executable, "-c", TELL, json.dumps(commands)],
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said, _, told = ended.stderr.partition("LOADED")
    codes, loaded = json.loads(told)
    assert "Traceback" not in said
    return Ran(codes, ended.stdout + said, set(loaded))


def test_an_app_is_operated_without_the_server_installed(
    home: Place, light: Mapping[str, str]
) -> None:
    job = home.app.run(home.app.function("touch"), "x")
    commands: list[list[str]] = [
        ["jobs", "list"],
        ["jobs", "show", job.id],
        ["why", job.id],
        ["jobs", "cancel", job.id],
        ["jobs", "watch", job.id],
        ["functions", "list"],
        ["functions", "pause", "tidy"],
        ["queues", "list"],
        ["queues", "pause", "default"],
        ["pause", "--note", "why not"],
        ["resume"],
        ["workers", "list"],
        ["audit"],
        ["observe"],
        ["schedules", "create", "nightly", "touch", "text=x", "--cron", "0 3 * * *"],
        ["schedules", "list"],
        ["schedules", "show", "nightly"],
        ["schedules", "preview", "nightly"],
        ["schedules", "health"],
        ["schedules", "forecast"],
        ["why", "nightly"],
        ["calendars", "list"],
        ["tokens", "create", "ci", "--scope", "read"],
        ["tokens", "list"],
        ["webhooks", "list"],
        ["endpoints", "list"],
        ["gateways", "list"],
        ["cron", "*/7 * * * *"],
    ]
    ran = duly(light, *commands)
    failed = [each for each, code in zip(commands, ran.codes, strict=True) if code]
    # What was canceled has not succeeded.
    assert failed == [["jobs", "watch", job.id]], ran.said
    assert not set(ABSENT.split()) & ran.loaded
    assert "At minutes 0, 7, 14, … and 56 past the hour" in ran.said


def test_what_needs_the_server_says_so(light: Mapping[str, str]) -> None:
    ran = duly(light, ["serve"])
    assert ran.codes == [1]
    assert 'pip install "duly[server]"' in ran.said


def test_a_list_loads_nothing_of_the_server_but_its_own_operations(home: Place) -> None:
    """Where all of it is installed."""
    home.app.run(home.app.function("touch"), "x")
    ran = duly(environment(**home.at_home), ["jobs", "list"])
    assert ran.codes == [0]
    assert "duly.server.api.jobs" in ran.loaded
    assert not set(HEAVY) & ran.loaded


def test_a_command_says_the_same_of_what_does_not_fit_here_and_there(place: Place) -> None:
    """One definition of each operation, read by msgspec here and by FastAPI there."""
    url = place.env.get("DULY_URL")
    api = Local(place.app) if url is None else Remote(url, place.env["DULY_TOKEN"])
    wrong = [
        ("GET", "/jobs?limit=0", None, "limit", "Input should be greater than or equal to 1"),
        ("GET", "/jobs?limit=9999", None, "limit", "Input should be less than or equal to"),
        ("GET", "/jobs?state=odd", None, "state", ""),
        ("POST", "/tokens", {}, "name", "Field required"),
        ("POST", "/kill-switch/pause", {"nota": "x"}, "nota", "Extra inputs are not permitted"),
        (
            "POST",
            "/kill-switch/pause",
            {"note": "x" * 2001},
            "note",
            "String should have at most 2000 char",
        ),
    ]
    for method, path, body, field, words in wrong:
        content = b"" if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        reply = api.send(method, f"/api/v1{path}", headers, content)
        error = json.loads(reply.body)["error"]
        assert (reply.status, error["code"], error["field"]) == (422, "invalid", field), error
        assert error["message"].startswith(f"{field}: {words}")


@pytest.mark.parametrize("noun", MODULES)
def test_every_operation_is_found_by_its_first_word(noun: str) -> None:
    words = {operation.path.split("/")[1] for operation in operations_of(noun)}
    assert noun in words
    assert words == {each for each in MODULES if MODULES[each] == MODULES[noun]}
