"""How every command behaves, on a terminal and off it."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from duly.cli.command import Group
from duly.cli.root import COMMANDS, SECTIONS, cli
from tests.cli.places import APP, Place
from tests.cli.processes import PYTHONPATH, Process, duly, environment, wait_until
from tests.cli.terminal import Terminal
from tests.cli.test_errors import stranger as stranger

EVIL = "\x1b]0;evil\x07\x9b31m\u202eevil\x7f"
TRACES = ("\x1b]0;", "\x9b", "\u202e", "\x7f", "\x07")


def test_help_and_unknown_commands(terminal: Terminal) -> None:
    shown = terminal.run("--help", columns=80)
    assert "schedules" in shown.plain
    assert max(map(len, shown.plain.splitlines())) <= 80
    wrong = terminal.run("jobz", code=2)
    assert "Did you mean 'jobs'?" in wrong.err


def test_help_groups_the_commands(terminal: Terminal) -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(COMMANDS)
    shown = terminal.run("--help", columns=100).plain
    places = [shown.index(f"\n{title}:\n") for title in SECTIONS]
    assert places == sorted(places)
    assert list(SECTIONS)[-1] == "Advanced"
    assert shown.index("\n  gateways ") > places[-1]
    rows = [line for line in shown.splitlines() if line[2:].split(" ")[0] in COMMANDS]
    assert len(rows) == len(COMMANDS)
    # The explanations line up over all sections.
    assert {line[:11].rstrip() == line[:13].rstrip() for line in rows} == {True}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_the_same_of_a_command_as_the_command(name: str) -> None:
    path, words = COMMANDS[name]
    module, _, attribute = path.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    said = (command.help or "").split("\n\n")[0].replace("\n", " ").strip()
    assert said.rstrip(".").startswith(words.rstrip("."))


def _leaves(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    ctx = click.Context(group)
    if group.invoke_without_command:
        yield path, group
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _leaves(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_every_command_shows_an_example() -> None:
    leaves = dict(_leaves(cli, "duly"))
    names = {"duly run", "duly jobs list", "duly gateways crons", "duly gateways crons run"}
    assert names <= set(leaves)
    for path, command in leaves.items():
        lines = (command.help or "").splitlines()
        assert any(line.strip().startswith("duly ") for line in lines), path


ZONED = {
    "duly calendars clone",
    "duly calendars create",
    "duly calendars holidays",
    "duly calendars import",
    "duly calendars update",
    "duly cron",
    "duly gateways crons add",
    "duly gateways crons update",
    "duly import celery-beat",
    "duly import crontab",
    "duly schedules create",
    "duly schedules update",
    "duly tokens create",
}
"""The commands that make something that has a zone."""


def test_a_zone_is_that_of_what_is_made_and_never_that_of_the_display() -> None:
    options = {
        path: {name for parameter in command.params for name in parameter.opts}
        for path, command in _leaves(cli, "duly")
    }
    assert {path for path, names in options.items() if "--tz" in names} == ZONED
    assert [path for path, names in options.items() if "--display-tz" not in names] == []
    assert [path for path, names in options.items() if "--zone" in names] == []
    assert not any("--tz" in parameter.opts for parameter in cli.params)


def test_the_zone_of_the_display_is_not_that_of_a_schedule(home: Place) -> None:
    make = ("touch", "text=x", "--cron", "0 9 * * *")
    tokyo = ("--display-tz", "Asia/Tokyo")
    before = home.duly(*tokyo, "schedules", "create", "before", *make).out
    after = home.duly("schedules", "create", "after", *make, *tokyo).out
    meant = home.duly("schedules", "create", "meant", *make, env={"DULY_TZ": "Asia/Tokyo"}).out
    for made in (before, after, meant):
        assert "At 09:00 (UTC)" in made
        assert "18:00:00 JST" in made
    assert {each.tz for each in home.app.schedules.list()} == {"UTC"}
    both = (*make, "--tz", "America/New_York", *tokyo)
    assert "At 09:00 (America/New_York)" in home.duly("schedules", "create", "both", *both).out
    assert home.app.schedules.get("both").tz == "America/New_York"
    # The zone of an interval is kept, for the cron expression that may take its place.
    home.duly("schedules", "update", "both", "--every", "1h30m")
    home.duly("schedules", "update", "both", "--cron", "0 10 * * *")
    assert home.app.schedules.get("both").tz == "America/New_York"
    often = ("create", "often", "touch", "text=x", "--every", "30m", "--tz", "Asia/Tokyo", "--json")
    assert home.duly("schedules", *often).json["tz"] == "Asia/Tokyo"

    for wrong in (("--tz", "Asia/Tokyo", "version"), ("tokens", "create", "x", "--zone", "UTC")):
        assert "No such option" in home.duly(*wrong, code=2).err
    for empty in (("cron", "0 9 * * *", "--tz", ""), ("version", "--display-tz", " ")):
        assert "an empty string is not a time zone" in home.duly(*empty, code=2).err
    shown = home.duly("cron", "0 9 * * *", "--tz", "America/New_York", *tokyo, "-n", "1").out
    assert shown.splitlines()[2].split() == ["America/New_York", "Asia/Tokyo", "from", "now"]
    dated = ("--expires", "2030-01-01T00:00", "--scope", "read", "--tz", "America/New_York")
    home.duly("tokens", "create", "ny", *dated, *tokyo)
    [token] = [each for each in home.app.tokens.list() if each.name == "ny"]
    assert (token.tz, token.expires) == ("America/New_York", datetime(2030, 1, 1, 5, tzinfo=UTC))


# Reading what is printed -------------------------------------------------------------------------


def test_a_reader_that_has_had_enough(home: Place, terminal: Terminal) -> None:
    home.app.run_many(home.app.function("touch").bind(f"{number}") for number in range(300))
    for arguments in (
        ("jobs", "list", "--limit", "300"),
        ("jobs", "list", "--limit", "300", "--json"),
    ):
        started = terminal.start(*arguments, env=home.env)
        started.hang_up()
        assert started.finish() == (1, "", "")
    # What is short may have been written before.
    helped = terminal.start("--help")
    helped.hang_up()
    assert helped.finish() in [(1, "", ""), (0, "", "")]
    # As a shell does it: nothing is said, and nothing is left hanging.
    environ = environment(**{**home.env, "PYTHONPATH": PYTHONPATH, "TZ": "UTC"})
    line = f"{sys.executable} -m duly jobs list --limit 300 | head -1"
    ended = subprocess.run(
        ["sh", "-c", line], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout == "id\tfunction\tstate\tdue\ttry\n"
    assert ended.stderr in ("", "times in UTC\n")


def test_a_narrow_terminal(home: Place) -> None:
    job = home.app.run(home.app.function("touch"), "x" * 100)
    home.app.queues.pause("default", note="a rather long note that does not fit")
    home.duly("pause", "--note", "another rather long note")
    for arguments in (("jobs", "list"), ("queues", "list"), ("workers", "list"), ("audit",)):
        for columns in (80, 40):
            shown = home.duly(*arguments, columns=columns).plain
            assert max(map(len, shown.splitlines())) <= columns, shown
    assert job.id[:8] in home.duly("jobs", "list", columns=40).plain
    assert "default" in home.duly("queues", "list", columns=40).plain
    shown = home.duly("jobs", "show", job.id, columns=40).plain
    assert shown.replace("\n", "").count("x") >= 100


def made_and_changed(home: Place) -> None:
    """Lists with long texts in them."""
    function = home.app.function("touch")
    for key in ("nightly", "a schedule with a rather long key"):
        home.app.schedules.create(key, function.bind("x"), cron="0 9 * * *", tz="Europe/Istanbul")
        home.app.schedules.disable(key, by="an operator", note="until the import works\nagain")
    for _ in range(3):
        home.app.run(function.using(queue="default"), "x")


LISTS = (("jobs", "list"), ("schedules", "list"), ("audit",))


def test_a_list_has_one_line_for_each_item(home: Place) -> None:
    made_and_changed(home)
    for arguments in LISTS:
        items = home.duly(*arguments, "--json").json
        for columns in (80, 120):
            ran = home.duly(*arguments, columns=columns)
            lines = [line for line in ran.plain.splitlines() if not line.startswith("times in")]
            assert max(map(len, lines)) <= columns, ran.plain
            rows = [line for line in lines[1:] if not line.startswith("hidden: ")]
            assert len(rows) == len(items), ran.plain
            # Every column has something that can be read.
            assert not re.search(r"(^|  )\S{0,3}…", ran.plain), ran.plain


def test_columns_that_do_not_fit_are_hidden_from_the_right(home: Place) -> None:
    made_and_changed(home)
    shown = home.duly("schedules", "list", columns=55).plain
    head, *rows = shown.splitlines()
    assert head.split() == ["key", "status", "next", "when"]
    assert "hidden: last run, function" in rows
    assert sum("  disabled  " in row for row in rows) == 2


def test_short_ids_in_a_list_lead_to_the_objects(home: Place) -> None:
    made_and_changed(home)
    newest = home.app.jobs(limit=1)[0]
    shown = home.duly("jobs", "list", columns=44).plain.splitlines()
    assert newest.id not in "".join(shown)
    short = shown[1].split()[0]
    assert newest.id.startswith(short)
    assert home.duly("jobs", "show", short, "--json").json["id"] == newest.id
    entries = home.duly("audit", columns=80).plain
    targets = set(re.findall(r"schedule:\S+", entries))
    assert len(targets) == 2
    for target in targets:
        assert home.duly("audit", "--target", target, "--json").json


def test_a_list_in_a_pipe_has_fields_between_tabs(home: Place) -> None:
    made_and_changed(home)
    for arguments in LISTS:
        items = home.duly(*arguments, "--json").json
        head, *lines = home.duly(*arguments, env={"COLUMNS": "80", "FORCE_COLOR": "1"}).out.split(
            "\n"
        )
        assert lines.pop() == ""
        rows = [dict(zip(head.split("\t"), line.split("\t"), strict=True)) for line in lines]
        assert len(rows) == len(items)
        assert "\x1b" not in head + "".join(lines)
        if arguments[0] == "jobs":
            assert [row["id"] for row in rows] == [item["id"] for item in items]
        if arguments[0] == "audit":
            assert [row["target"] for row in rows] == [item["target"] for item in items]
            assert "until the import works\\nagain" in rows[0]["detail"]


def test_no_terminal_at_all(home: Place) -> None:
    environ = environment(**{**home.env, "PYTHONPATH": PYTHONPATH, "LC_ALL": "C"})
    home.duly("pause", "--note", "ünïcödé …")

    def shell(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", line.replace("duly", f"{sys.executable} -m duly")],
            env=environ | {"PYTHONIOENCODING": "ascii"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    listed = shell("duly audit")
    assert (listed.returncode, "\x1b" in listed.stdout) == (0, False)
    assert "\\xfcn\\xefc" in listed.stdout
    closed = shell("duly audit <&- >&- 2>&-; echo $?")
    assert closed.stdout == "0\n"
    unasked = shell("duly jobs cancel --function touch --state pending <&-")
    assert (unasked.returncode, unasked.stderr) == (0, "")


def test_what_comes_from_data_is_shown_and_not_obeyed(home: Place) -> None:
    job = home.app.run(home.app.function("fail").using(queue="odd", tags=[]), EVIL)
    home.duly("pause", "--note", EVIL)
    home.app.queues.pause("odd", note=EVIL)
    shown = [
        home.duly(*arguments, columns=columns)
        for arguments in (
            ("jobs", "show", job.id),
            ("jobs", "show", job.id, "--json"),
            ("audit",),
            ("audit", "--json"),
            ("queues", "list"),
        )
        for columns in (None, 100)
    ]
    shown.append(home.duly("run", EVIL, code=1))
    shown.append(home.duly("jobs", "show", EVIL, code=1))
    for ran in shown:
        assert not [trace for trace in TRACES if trace in ran.out + ran.err], ran
    assert "\\u001b]0;evil" in shown[0].out
    assert json.loads(shown[2].out)["args"] == {"text": EVIL}


# Ctrl-C ------------------------------------------------------------------------------------------


def test_ctrl_c_at_any_time(home: Place, terminal: Terminal, stranger: str) -> None:
    job = home.app.run_after(3600, home.app.function("touch"), "x")
    # While it waits for a server that says nothing.
    waits = terminal.start("--url", f"{stranger}/silent", "jobs", "list", columns=80)
    wait_until(lambda: _waits(waits.pid), "it has asked")
    waits.type("\x03")
    ran = waits.finish()
    assert (ran.code, "Traceback" in ran.plain) == (130, False)
    assert "interrupted" in ran.plain
    # At a question. A signal that comes while Python is on its way to wait for the answer ends
    # nothing until a key is pressed.
    asks = home.start("jobs", "cancel", "--function", "touch", columns=80)
    asks.until("Cancel 1 job? [y/N]: ")
    wait_until(lambda: _sleeps(asks.pid), "it waits for an answer")
    asks.type("\x03")
    asks.type("\n")
    asked = asks.finish()
    assert asked.code == 130
    assert "Traceback" not in asked.plain
    assert job.state == "pending"
    # While it follows, on the app and on its server.
    for _ in range(2):
        for arguments in (("jobs", "watch", job.id), ("jobs", "watch", job.id, "--json")):
            left = home.duly(*arguments, columns=80, keys=[("pending", "\x03")], code=130)
            assert "Traceback" not in left.plain
        home.move_to_a_server() if "DULY_URL" not in home.env else None


def _sleeps(pid: int) -> bool:
    state = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "S"


def _waits(pid: int) -> bool:
    """Whether a process is connected to a server."""
    return any("socket:" in _open_file(file) for file in Path(f"/proc/{pid}/fd").iterdir())


def _open_file(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:  # the process has closed it meanwhile
        return ""


# Completion --------------------------------------------------------------------------------------


def completed(home: Place, *words: str) -> list[str]:
    """What bash is offered for the last word."""
    env = {
        "_DULY_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["duly", *words]),
        "COMP_CWORD": str(len(words)),
    }
    ran = home.duly(env=env)
    assert ran.err == ""
    return [line.partition(",")[2] for line in ran.out.splitlines() if line]


def test_shells_complete(home: Place) -> None:
    for shell in ("bash", "zsh", "fish"):
        script = home.duly(env={"_DULY_COMPLETE": f"{shell}_source"}).out
        assert "_DULY_COMPLETE" in script
    assert completed(home, "sch") == ["schedules"]
    assert completed(home, "") == sorted(COMMANDS)
    assert "list" in completed(home, "jobs", "")
    assert completed(home, "jobs", "list", "--sta") == ["--state"]
    assert completed(home, "jobs", "list", "--state", "f") == ["failed"]
    assert completed(home, "nonsense", "x") == []
    home.app.schedules.create("nightly", home.app.function("touch").bind("x"), every=3600)
    home.move_to_a_server()
    for _ in range(2):
        assert completed(home, "run", "tou") == ["touch", "touch_when"]
        assert completed(home, "jobs", "list", "--function", "tid") == ["tidy"]
        assert completed(home, "schedules", "show", "ni") == ["nightly"]
        home.env = home.at_home
    # Whatever is wrong, there is nothing to offer, and nothing is said.
    home.env = {"DULY_APP": "nowhere:app"}
    assert completed(home, "run", "tou") == []
    home.env = {"DULY_URL": "http://127.0.0.1:1"}
    assert completed(home, "run", "tou") == []


# What is loaded ----------------------------------------------------------------------------------

HEAVY = "fastapi pydantic starlette uvicorn rich"
TELLER = f"""
import atexit, os, sys

@atexit.register
def tell():
    loaded = [name for name in {HEAVY!r}.split() if name in sys.modules]
    with open(os.path.join(os.environ["TELL"], f"loaded-{{os.getpid()}}"), "w") as file:
        file.write(" ".join(loaded))
"""


def test_help_and_worker_load_nothing_of_the_server(home: Place, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(TELLER)
    here = {**home.env, "TELL": str(tmp_path), "PYTHONPATH": f"{tmp_path}:{PYTHONPATH}"}
    helped = Process(duly("--help"), environment(**here))
    works = Process(duly("--app", APP, "worker"), environment(**here))
    assert helped.wait() == 0
    wait_until(lambda: home.db.execute("SELECT pid FROM @workers"), "the worker works")
    works.signal(15)
    assert works.wait() == 0
    loaded = {file.name: file.read_text() for file in tmp_path.glob("loaded-*")}
    helped.close()
    works.close()
    # The help, the worker and its process.
    assert len(loaded) == 3
    assert set(loaded.values()) == {""}


def test_no_group_has_a_command_without_words(terminal: Terminal) -> None:
    """Every command says what it does."""
    for name, (path, _) in COMMANDS.items():
        module, _, attribute = path.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        for command in found.commands.values() if isinstance(found, Group) else [found]:
            assert command.help, f"{name} {command.name}"
