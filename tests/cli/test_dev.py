"""`duly dev`: the demo shows the main job by itself, code is reloaded, and nothing is left over."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from duly import Cron, Duly
from duly.cli.dev import code
from tests.cli.processes import PYTHONPATH, TOP, Process, duly, environment, wait_until
from tests.cli.terminal import Terminal

PATIENCE = 90.0
APP = """
from duly import Ctx, Duly

app = Duly("sqlite:///tiny.db")


@app.action
def version(ctx: Ctx) -> str:
    print("printed by", "{version}")
    return "{version}"


@app.action
def mistyped(ctx: Ctx) -> int:
    return "{version}"


app.schedule("hourly", version, cron="{cron}")
"""

Start = Callable[..., Process]


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Start]:
    """Start `duly dev` in a folder of its own."""
    started: list[Process] = []

    def start(*options: str, root: tuple[str, ...] = (), **env: str) -> Process:
        command = duly(*root, "dev", *options)
        started.append(Process(command, environment(**env), cwd=tmp_path))
        return started[-1]

    yield start
    for process in started:
        process.close()
    wait_until(lambda: not alive_in(tmp_path), "whatever it has started is gone", PATIENCE)


def alive_in(folder: Path) -> list[int]:
    """The processes that work in a folder."""
    found: list[int] = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.readlink(process / "cwd") == str(folder):
                found.append(int(process.name))
        except OSError:  # it is gone, or somebody else's
            continue
    return found


def says(process: Process, text: str) -> None:
    wait_until(
        lambda: text in process.output() or not process.is_running,
        f"it says {text!r}\n{process.output()}{process.errors()}",
        PATIENCE,
    )
    assert text in process.output(), process.output() + process.errors()


def address(process: Process) -> str:
    says(process, "Ctrl-C stops")
    found = re.search(r"http://\S+", process.output())
    assert found is not None
    return found[0]


def the_quickstart_is_true(terminal: Terminal, url: str) -> None:
    """Type its commands."""
    page = (TOP / "docs" / "quickstart.md").read_text()
    commands = re.findall(r"^duly --url http://127.0.0.1:8484 (.+)$", page, re.MULTILINE)
    assert len(commands) == 6
    said = ""
    for command in commands:
        said += terminal.run("--url", url, *shlex.split(command)).out
    for text in (
        "morning news",
        "condition_failed: condition not met: /last_24h_stats/failed is 0, expected > 2",
        "would be skipped",
        "30 photos, at attempt 2",
    ):
        assert text in said


def test_the_demo_shows_the_main_job_without_a_person(dev, terminal: Terminal, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # The demo is never let loose on a database that somebody uses.
        running = dev(f"--port={port}", DULY_DATABASE_URL="sqlite:////nowhere/production.db")
        url = address(running)
    assert f"on {tmp_path}/duly-dev.db" in running.output()
    assert int(url.rpartition(":")[2]) > port

    says(running, "is Saturday in days off")
    says(running, "/last_24h_stats/failed is 0, expected > 2")
    says(running, "kill -9: the worker is gone")
    says(running, "jobs rescued: 1")
    says(running, "Printed: 20 photos, at attempt 2.")
    says(running, "print_album succeeded at attempt 2")
    says(running, "Ada's message deleted itself")
    says(running, "The shop sent a webhook, and got status 200.")
    says(running, "call for help skipped condition_failed")
    says(running, "on_order succeeded")
    the_quickstart_is_true(terminal, url)

    running.signal(signal.SIGINT)
    assert running.wait(PATIENCE) == 0
    assert "Traceback" not in running.output() + running.errors()
    assert alive_in(tmp_path) == []


def test_on_a_terminal_it_is_a_picture_that_changes(terminal: Terminal, tmp_path):
    started = terminal.start("dev", "--port=8600", cwd=tmp_path, columns=80)
    started.until("next ticks", PATIENCE)
    started.until("0 succeeded", PATIENCE)
    started.until("of 20", PATIENCE)
    started.until("print_album, try 2", PATIENCE)
    started.until("hourglass dispatched", PATIENCE)
    ran = started.finish([("Printed: 20 photos", "\x03")], PATIENCE)

    assert ran.code == 0
    assert "\x1b[?25h" in ran.out, "the cursor is back"
    assert max(map(len, ran.plain.splitlines())) < 160
    assert alive_in(tmp_path) == []


def test_a_demo_that_had_no_time_is_no_success(terminal: Terminal, tmp_path):
    ran = terminal.run("dev", "--for=0.5s", "--port=8700", cwd=tmp_path, columns=40, code=1)
    assert "duly schedules preview" in ran.plain
    assert alive_in(tmp_path) == []


def write(folder: Path, version: str, cron: str = "0 * * * *") -> None:
    (folder / "tiny.py").write_text(APP.format(version=version, cron=cron))


def test_what_changes_is_loaded_and_what_is_wrong_waits(dev, tmp_path):
    write(tmp_path, "one")
    running = dev("--port=8800", root=("--app", "tiny:app"))
    url = address(running)
    with Duly(f"sqlite:///{tmp_path}/tiny.db") as app:
        app.stop()

        def version() -> str:
            return str(app.run(app.function("version")).result(timeout=PATIENCE))

        def cron() -> str:
            trigger = app.schedules.get("hourly").trigger
            assert isinstance(trigger, Cron)
            return trigger.expression

        wait_until(lambda: app.workers(), "the worker works", PATIENCE)
        assert version() == "one"
        says(running, "worker | printed by one")
        assert app.run(app.function("mistyped")).result(timeout=PATIENCE) == "one"
        says(running, "mistyped: the result does not match the return annotation: Expected `int`")

        (tmp_path / "tiny.py").write_text("def broken(:\n")
        says(running, "SyntaxError")
        says(running, "the old code keeps running")
        assert version() == "one"

        # A module that is not there yet is waited for, too.
        write(tmp_path, "three")
        with (tmp_path / "tiny.py").open("a") as file:
            file.write("import helpers\n")
        says(running, "No module named 'helpers'")
        (tmp_path / "helpers.py").touch()
        says(running, "the code has changed")
        wait_until(lambda: version() == "three", "the new code runs", PATIENCE)

        write(tmp_path, "four", cron="5 * * * *")
        wait_until(lambda: cron() == "5 * * * *", "the new schedule is there", PATIENCE)
        # A set of schedules that was replaced before comes back: people edit back and forth.
        write(tmp_path, "fives")
        wait_until(lambda: cron() == "0 * * * *", "the old schedule is there again", PATIENCE)
        wait_until(lambda: version() == "fives", "the last code runs", PATIENCE)
        with httpx2.Client(base_url=url, trust_env=False, timeout=PATIENCE) as client:
            assert client.get("/healthz").is_success
        app.close()

    running.kill()
    wait_until(lambda: not alive_in(tmp_path), "nothing outlives it", PATIENCE)


def test_code_that_prints_much_while_it_is_imported_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(code, "LOOK_EVERY", 0)
    answer = code.LOADED + json.dumps({"folders": [str(tmp_path)], "warning": None})
    talk = "import sys; sys.stderr.write('e' * 200_000); print('o' * 200_000)"
    trying = [sys.executable, "-S", "-c", f"{talk}; print({answer!r})"]
    looking = code.Code(trying, [str(tmp_path)])
    (tmp_path / "tiny.py").write_text("changed = True")
    seen: list[code.Loaded | code.Failure | None] = []

    def has_seen() -> bool:
        seen.append(looking.look())
        return seen[-1] is not None

    wait_until(has_seen, "the code is loaded")
    assert seen[-1] == code.Loaded([str(tmp_path)], None)
    looking.close()


def test_an_app_of_ones_own_ends_by_itself_too(terminal: Terminal, tmp_path):
    write(tmp_path, "one")
    (tmp_path / "pyproject.toml").write_text('[tool.duly]\napp = "tiny:app"\n')
    ran = terminal.run("dev", "--for=1s", "--port=8900", "--json", cwd=tmp_path, columns=80)
    first, *more = map(json.loads, ran.plain.splitlines())
    assert (first["database"], first["url"]) == (f"{tmp_path}/tiny.db", "http://127.0.0.1:8900")
    assert {"at_ms", "what", "outcome", "why"} in map(set, more) or not more
    assert alive_in(tmp_path) == []

    (tmp_path / "tiny.py").write_text("1 / 0\n")
    ran = terminal.run("dev", "--for=1s", cwd=tmp_path, code=1)
    assert "ZeroDivisionError" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.spec("N73")
def test_what_init_writes_runs_at_once(dev: Start, terminal: Terminal, tmp_path: Path) -> None:
    terminal.run("init", cwd=tmp_path)
    running = dev("--port=8950")
    # A job that needs the table that set_up() creates, and a schedule with a declared calendar.
    says(running, "send succeeded")
    said = running.output() + running.errors()
    assert "not applied" not in said
    assert "Traceback" not in said
    shown = terminal.run("schedules", "show", "morning news", cwd=tmp_path).plain
    assert re.search(r"calendar +days off", shown)
    shown = terminal.run("calendars", "show", "days off", cwd=tmp_path).plain
    assert re.search(r"owner +declared in code", shown)
    running.signal(signal.SIGINT)
    assert running.wait() == 0


def test_a_set_up_that_fails_is_one_line(terminal: Terminal, tmp_path: Path) -> None:
    write(tmp_path, "one")
    with (tmp_path / "tiny.py").open("a") as file:
        file.write("def prepare():\n    1 / 0\n")
    project = '[tool.duly]\napp = "tiny:app"\nset_up = "tiny:prepare"\n'
    (tmp_path / "pyproject.toml").write_text(project)
    line, *hint = terminal.run("dev", "--for=1s", cwd=tmp_path, code=1).err.splitlines()
    assert re.fullmatch(r"duly: tiny\.py:\d+: ZeroDivisionError: division by zero", line)
    assert hint == []
    # An app that is named otherwise is not prepared by it.
    terminal.run("--app=tiny:app", "dev", "--for=0.5s", "--port=8960", cwd=tmp_path)


def test_a_calendar_that_is_not_there_is_one_line(dev: Start, tmp_path: Path) -> None:
    write(tmp_path, "one")
    text = (tmp_path / "tiny.py").read_text()
    (tmp_path / "tiny.py").write_text(text.replace(", cron=", ', calendar="weekend", cron='))
    (tmp_path / "pyproject.toml").write_text('[tool.duly]\napp = "tiny:app"\n')
    running = dev("--port=8970")
    says(running, "schedule 'hourly' was not applied: there is no calendar 'weekend'; did you mean")
    lines = (running.output() + running.errors()).splitlines()
    assert "Traceback" not in "".join(lines)
    assert len([line for line in lines if "there is no calendar" in line]) == 1, lines


def test_without_the_extra_it_says_what_to_install(dev, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['uvicorn'] = None\n")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), PYTHONPATH])}
    answer = dev(**env)
    assert answer.wait() == 1
    assert 'pip install "duly[server]"' in answer.errors()
    assert not (tmp_path / "duly-dev.db").exists()
