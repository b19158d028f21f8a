"""An option of a schedule is described in one table, so to add one changes few places."""

import os
import re
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

import duly
from duly.model.schedule import POLICIES
from duly.model.schedule_options import OPTIONS
from duly.schedules.define import ScheduleOptions

PACKAGE = Path(duly.__file__).parent
MOST = 5


class Edit(NamedTuple):
    """A line that is put before another one."""

    file: str
    before: str
    line: str


# A schedule whose ticks are all looked at later, by as much as it says.
LAG = (
    Edit(
        "model/schedule_options.py",
        '    Option("note", ',
        '    Option("lag", Kind.LENGTH, "Lag", "How much later each tick is looked at."),\n',
    ),
    Edit("schedules/define.py", "    jitter: Delay | None\n", "    lag: Delay | None\n"),
    Edit("model/schedule.py", "    jitter: int = 0\n", "    lag: int | None = None\n"),
    Edit(
        "model/due.py",
        "    return shifted(plan, tick_at, calendars) + jitter_of(plan, tick_at)\n",
        "    tick_at += plan.policies.lag or 0\n",
    ),
)

TRY = """
import os, re
from contextlib import redirect_stdout
from datetime import timedelta
from io import StringIO
from pathlib import Path
import duly
from duly import Ctx, Duly
from duly.cli import main
from duly.model.access import Principal, Scope
from starlette.testclient import TestClient

app = Duly(os.environ["SHOP_URL"], name="shop")

@app.action
def send(ctx: Ctx) -> None: ...

def lag_of(key):
    schedule = app.schedules.get(key)
    return schedule.policies.lag, schedule.due - schedule.next_tick

def run(*words):
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            main(app, words, "duly")
    except SystemExit as end:
        assert not end.code, words
    return printed.getvalue()

assert Path(duly.__file__).parent.parent == Path.cwd(), duly.__file__
app.migrate()

# Python
app.schedules.create("python", send, cron="0 9 * * *", lag=60)
assert lag_of("python") == (60_000, timedelta(minutes=1))
app.schedules.update("python", note="x")
assert lag_of("python") == (60_000, timedelta(minutes=1)), "a change of something else keeps it"
app.schedules.update("python", lag=None)
assert lag_of("python") == (None, timedelta(0))
app.schedule("declared", send, cron="0 9 * * *", lag=timedelta(minutes=2))
app.schedules.apply()
assert lag_of("declared") == (120_000, timedelta(minutes=2))

# HTTP
client = TestClient(app.asgi(auth=lambda request: Principal("me", frozenset(Scope))))
body = {"key": "http", "function": "send", "cron": "0 9 * * *", "lag": 90}
made = client.post("/api/v1/schedules", json=body)
assert made.status_code == 201, made.text
assert made.json()["lag"] == 90
assert lag_of("http") == (90_000, timedelta(seconds=90))
path = "/api/v1/schedules/" + made.json()["id"]
changed = client.patch(path, json={"version": 1, "lag": None})
assert changed.json()["lag"] is None
assert client.patch(path, json={"version": 2, "lag": -1}).status_code == 422
schemas = client.get("/api/v1/openapi.json").json()["components"]["schemas"]
for name in ("NewScheduleBody", "ScheduleChangesBody", "ScheduleShape"):
    assert "lag" in schemas[name]["properties"], name

# The command line
run("schedules", "create", "typed", "send", "--cron", "0 9 * * *", "--lag", "1h")
assert lag_of("typed") == (3_600_000, timedelta(hours=1))
assert re.search(r"lag +1h", run("schedules", "show", "typed"))
run("schedules", "update", "typed", "--lag", "2h")
assert lag_of("typed") == (7_200_000, timedelta(hours=2))
run("schedules", "update", "typed", "--clear", "lag")
assert lag_of("typed") == (None, timedelta(0))

# The dashboard
path = "/schedules/" + made.json()["id"]
page = client.get(path + "/edit").text
fields = dict(re.findall(r'name="(\\w+)" type="[\\w-]+" value="([^"]*)"', page))
fields |= {"kind": "cron", "overlap": "skip", "args": "{}"}
assert fields["lag"] == ""
fields |= {"lag": "45", "version": "2", "do": "save", "csrf": client.cookies["duly_csrf"]}
saved = client.post(path + "/edit", data=fields, follow_redirects=False)
assert saved.status_code == 303, saved.text
assert lag_of("http") == (45_000, timedelta(seconds=45))
assert 'value="45"' in client.get(path + "/edit").text
assert re.search(r"<dt>Lag</dt><dd>45", client.get(path).text)
print("everywhere")
"""


def plant(edit: Edit, package: Path) -> None:
    file = package / edit.file
    text = file.read_text()
    assert text.count(edit.before) == 1, edit
    file.write_text(text.replace(edit.before, edit.line + edit.before))


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A copy of duly in which schedules have one option more."""
    package = tmp_path / "duly"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in LAG:
        plant(edit, package)
    return tmp_path


def test_an_option_that_is_added_in_a_few_places_is_known_everywhere(planted: Path):
    assert len(LAG) <= MOST
    (planted / "try.py").write_text(TRY)
    known = ("PATH", "HOME", "LANG", "SYSTEMROOT")
    env = {name: os.environ[name] for name in known if name in os.environ}
    env |= {"PYTHONPATH": str(planted), "SHOP_URL": f"sqlite:///{planted / 'shop.db'}"}
    done = subprocess.run(
        [sys.executable, "try.py"], cwd=planted, env=env, capture_output=True, text=True
    )
    assert done.stdout == "everywhere\n", done.stderr


def places(name: str) -> list[str]:
    """Where code and templates spell a name, without comments and docstrings."""
    spelled = re.compile(rf"\b{name}\b|\b{name.replace('_', '-')}\b")
    found: dict[str, None] = {}
    for path in sorted(PACKAGE.rglob("*.[ph]*")):
        text = path.read_text() if path.suffix in (".py", ".html") else ""
        if not spelled.search(text):
            continue
        words = tokens(text) if path.suffix == ".py" else enumerate(text.splitlines(), 1)
        file = path.relative_to(PACKAGE)
        found |= {f"{file}:{line}": None for line, word in words if spelled.search(word)}
    return list(found)


def tokens(text: str) -> Iterator[tuple[int, str]]:
    """The names and the short strings of a module, each with its line."""
    for token in tokenize.generate_tokens(StringIO(text).readline):
        if token.type == tokenize.NAME or (token.type == tokenize.STRING and " " not in token[1]):
            yield token.start[0], token.string


# The names of the others mean something else too, such as the jitter of a retry.
@pytest.mark.parametrize("name", ["catch_up", "catch_up_window"])
def test_an_option_is_spelled_in_few_places(name: str):
    found = places(name)
    assert 4 <= len(found) <= MOST, found
    assert {place.partition(":")[0] for place in found} == {edit.file for edit in LAG}


def test_the_table_has_every_option_that_can_be_given():
    whens = {"cron", "every", "at", "trigger", "tz"}
    at_first = {"enabled", "fire_at_once"}
    names = {option.name for option in OPTIONS}
    assert names == ScheduleOptions.__annotations__.keys() - whens - at_first
    assert names >= POLICIES
