"""`duly import --as-code`: the code declares what the import itself would have written."""

from __future__ import annotations

import importlib
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duly import Duly, Every, Schedule
from duly.cli.imports.source import Invocation, Name, comment, source
from duly.testing import override
from tests.cli.places import Place

APP = """
from datetime import timedelta

from duly import Ctx, Duly

app = Duly(min_interval=timedelta(seconds=1))


@app.action
def touch(ctx: Ctx, text: str, pages: list[int] | None = None) -> None: ...


@app.action
def tidy(ctx: Ctx) -> None: ...


@app.action
def run_command(ctx: Ctx, command: str) -> None: ...


@app.action(name="datetime", aliases=("clock",))
def datetime(ctx: Ctx) -> None: ...


def hidden():
    @app.action
    def inner(ctx: Ctx) -> None: ...


hidden()
"""
BEAT: dict[str, Any] = {
    "timezone": "Asia/Tokyo",
    "beat_schedule": {
        "mail": {
            "task": "shop.tasks.touch",
            "schedule": {"minute": 0, "hour": 9},
            "args": ['it\'s "a" ☃\n'],
            "options": {"queue": "mail", "expires": 90, "countdown": 3},
        },
        "poll": {"task": "touch", "schedule": 10, "args": ["b" * 60], "kwargs": {"pages": [1, 2]}},
        "slow": {"task": "tidy", "schedule": 5400.5},
        "clock": {"task": "clock", "schedule": 3600},
        "inner": {"task": "inner", "schedule": 3600},
        "lost": {"task": "tuch\n__import__('os')", "schedule": 3600},
        "both": {"task": "tidy", "schedule": {"day_of_month": 1, "day_of_week": 1}},
    },
}
CRONTAB = """\
30 2 * * * /usr/bin/backup.sh --full "it's"
*/5 * * * * tidy
@reboot /usr/bin/start
"""
SCHEDULER = """
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace as Like

plus_one = timezone(timedelta(hours=1))
begins, ends = datetime(2026, 1, 1, tzinfo=plus_one), datetime(2030, 1, 1, tzinfo=plus_one)
texts = dict(
    year="*", month="*", day="*", week="*", day_of_week="0", hour="9", minute="0", second="0"
)


class Field:
    def __init__(self, name, text):
        self.name, self.text = name, text

    def __str__(self):
        return self.text


cron = Like(
    fields=[Field(*each) for each in texts.items()],
    timezone="Europe/Berlin", start_date=begins, end_date=ends, jitter=30,
)
every = Like(interval=timedelta(minutes=5), start_date=begins, end_date=None)
once = Like(run_date=ends)


def job(name, trigger, **more):
    usual = dict(id=name, name=name, func_ref="jobs:tidy", args=[], kwargs={}, trigger=trigger)
    return Like(**usual | more)


scheduler = Like(get_jobs=lambda: [
    job("digest", cron),
    job("poll", every, next_run_time=None),
    job("once", once),
    job("bad", every, func_ref="jobs:touch", args=[object()]),
])
"""
SOURCES = {
    "beat": ("celery-beat", "beat.json"),
    "crontab": ("crontab", "cron.txt", "--function", "run_command", "--map", "^tidy$=tidy"),
    "apscheduler": ("apscheduler", "their_scheduler.py:scheduler"),
}


@pytest.fixture
def folder(home: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project to import into, with something of each source to import."""
    folder = home.folder
    (folder / "own_tasks.py").write_text(APP)
    (folder / "beat.json").write_text(json.dumps(BEAT))
    (folder / "cron.txt").write_text(CRONTAB)
    (folder / "their_scheduler.py").write_text(SCHEDULER)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("DULY_DATABASE_URL", "sqlite:///:memory:")
    yield folder
    sys.modules.pop("own_tasks", None)


def ruff(*arguments: str, code: str, cwd: Path | None = None) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--isolated", "-"]
    ended = subprocess.run(
        command, input=code, capture_output=True, text=True, check=False, cwd=cwd
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def described(schedules: list[Schedule]) -> dict[str, dict[str, Any]]:
    """What they are, apart from their ids and the moment at which each was stored."""
    of_time = {"id", "app", "changed_by", "declared", "created_at", "updated_at", "awake_at"}
    of_time |= {"next_tick_at", "due_at"}
    found: dict[str, dict[str, Any]] = {}
    for schedule in schedules:
        record = schedule.record
        fields = {name: getattr(record, name) for name in record.__struct_fields__}
        if isinstance(schedule.trigger, Every) and record.key != "apscheduler:poll":
            # They begin when they are stored.
            fields["trigger"] = schedule.trigger.milliseconds
        found[record.key] = {n: value for n, value in fields.items() if n not in of_time}
    return found


@pytest.mark.spec("N85")
def test_the_code_declares_what_the_import_would_write(home: Place, folder: Path) -> None:
    nowhere = {"DULY_APP": "own_tasks:app", "DULY_DATABASE_URL": f"sqlite:///{folder}/nowhere.db"}
    texts: dict[str, str] = {}
    for name, source_ in SOURCES.items():
        printed = home.duly("import", *source_, "--as-code", env=nowhere, cwd=folder, code=1)
        texts[name] = printed.out
        assert ruff("format", code=printed.out) == printed.out
        ruff("check", "--select=I,F", code=printed.out, cwd=folder)
        home.duly(
            "import", *source_, "--yes", env={"DULY_APP": "own_tasks:app"}, cwd=folder, code=1
        )
    assert not (folder / "nowhere.db").exists()

    app: Duly = importlib.import_module("own_tasks").app
    for text in texts.values():
        exec(compile(text, "printed", "exec"), {})
    with override(app):
        app.schedules.apply()
        declared = described(app.schedules.list())
    assert declared == described(home.app.schedules.list())
    assert len(declared) == 10

    mail = home.app.schedules.get("beat:mail").record
    assert json.loads(mail.options) == {"queue": "mail", "expires": 90_000}
    assert 'app.function("inner")' in texts["beat"]
    assert "from own_tasks import app, tidy, touch\n" in texts["beat"]
    notes = [line for text in texts.values() for line in text.splitlines() if line[:1] == "#"]
    assert [note for note in notes if "not imported" in note and "job bad" not in note] == [
        "# note: not imported: option countdown",
        "# note: not imported: entry lost: tuch __import__('os') 3600",
        "# note: not imported: entry both: tidy {'day_of_month': 1, 'day_of_week': 1}",
        "# note: not imported: line 3: @reboot /usr/bin/start",
    ]
    assert "# argument text cannot be written as JSON" in notes


@pytest.mark.spec("N85")
def test_code_is_of_an_app_and_is_not_written(home: Place, folder: Path) -> None:
    take = ("import", "celery-beat", "beat.json", "--as-code")
    how: dict[str, Any] = {"env": {"DULY_APP": "own_tasks:app"}, "cwd": folder}
    assert "not both" in home.duly(*take, "--yes", code=2, **how).err
    assert "needs the app" in home.duly("--url", "http://127.0.0.1:1", *take, code=2, **how).err
    as_json = json.loads(home.duly(*take, "--json", code=1, **how).out)
    assert [each["key"] for each in as_json["entries"] if each["reason"] is None] == [
        f"beat:{name}" for name in ("mail", "poll", "slow", "clock", "inner")
    ]
    # What the code declares already is not printed again.
    (folder / "own_schedules.py").write_text(as_json["code"])
    tasks = folder / "own_tasks.py"
    tasks.write_text(
        tasks.read_text().replace("seconds=1)", 'seconds=1), imports=["own_schedules"]')
    )
    again = home.duly(*take, code=1, **how).out
    assert "app.schedule(" not in again
    assert again.count("own_schedules.py:") == 5
    (folder / "beat.json").write_text('{"beat_schedule": {}}')
    assert home.duly(*take, **how).out == ""


@pytest.mark.spec("N86")
def test_the_cure_for_a_short_interval_is_named(home: Place, folder: Path) -> None:
    (folder / "own_tasks.py").write_text(
        APP.replace("timedelta(seconds=1)", "timedelta(minutes=5)")
    )
    how: dict[str, Any] = {"env": {"DULY_APP": "own_tasks:app"}, "cwd": folder, "code": 1}
    said = home.duly("import", "celery-beat", "beat.json", **how).out
    assert "Duly(min_interval=…)" in said
    assert "app.schedule(…)" in said
    created = home.duly("schedules", "create", "x", "tidy", "--every", "10s", **how).err
    assert "Duly(min_interval=…)" in created


# Source ------------------------------------------------------------------------------------------


def random_value(chance: random.Random, depth: int = 3) -> Any:
    kind = chance.randrange(8 if depth else 6)
    if kind < 4:
        letters = chance.choices("abc '\"\\\n\t☃\x00\u2028", k=chance.randrange(40))
        return "".join(letters)
    if kind < 6:
        return chance.choice([None, True, 7, -3, 0.25, 1e30])
    items = [random_value(chance, depth - 1) for _ in range(chance.randrange(5))]
    return items if kind == 6 else dict(zip(map(str, items), items, strict=True))


@pytest.mark.spec("N85")
def test_source_is_as_ruff_writes_it() -> None:
    chance = random.Random(7)
    found = [random_value(chance) for _ in range(400)]
    call = Invocation("f", (Name("g"), *found[:2]), {"a": found[2], "b": found[3]})
    written = [source(value, before="x = ") for value in found]
    texts = [comment("one\ntwo\r\u2028 three"), source(call, exploded=True), *written]
    code = "\n".join(texts) + "\n"
    assert code.startswith("# one two three\nf(\n    g,\n")
    assert ruff("format", code=code) == code
    assert [eval(text.removeprefix("x = ")) for text in written] == found
