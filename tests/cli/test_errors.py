"""Whatever goes wrong is one line on stderr and an exit code, never a traceback."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from duly import errors
from duly.cli.api import ApiError
from duly.cli.command import fail
from duly.cli.remote import Remote
from tests.cli.places import Place
from tests.cli.processes import PYTHONPATH, environment
from tests.cli.terminal import Ran, Terminal

APP = "tests.cli.shop:app"
SECRET = "hunter2"
ID = "01900000-0000-7000-8000-000000000000"


def only_line(answer: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error."""
    assert answer.stdout == ""
    (line,) = answer.stderr.splitlines()
    assert line.startswith("duly: ")
    assert SECRET not in line
    return line


@pytest.mark.parametrize(
    ("app", "says"),
    [
        ("nowhere:app", "no module 'nowhere'"),
        ("nowhere.py:app", "no file nowhere.py"),
        ("tests.cli.shop:missing", "no duly app called 'missing'"),
        ("tests.cli.shop:make", "no duly app called 'make'"),
        ("tests.cli.shop:ap", "no duly app called 'ap'; did you mean 'app'?"),
    ],
)
def test_an_app_that_is_not_there(run, app, says, tmp_path):
    url = f"sqlite:///{tmp_path}/x.db"
    answer = run("--app", app, "worker", url=url, env={"SHOP_FOLDER": str(tmp_path)})
    assert answer.returncode == 2
    assert says in only_line(answer)


def test_no_app_at_all(run, tmp_path):
    answer = run("worker", cwd=tmp_path)
    assert answer.returncode == 2
    assert "--app module:name" in only_line(answer)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"mysql://me:{SECRET}@host/shop", "is not a database URL"),
        ("sqlite://shop.db", "does not name a file"),
        ("sqlite:////nowhere/shop.db", "create it with `duly migrate`"),
        (f"postgresql://me:{SECRET}@127.0.0.1:1/shop", "cannot connect to PostgreSQL"),
        (f"postgresql://me:{SECRET} x@127.0.0.1:1/shop", "cannot be read"),
        (f"postgresql://me:{SECRET}%zz@127.0.0.1:1/shop", "cannot be read"),
        (f"postgresql://me:{SECRET}@127.0.0.1:port/shop", "port"),
    ],
)
def test_a_database_that_is_not_there(run, url, says, tmp_path):
    folder = {"SHOP_FOLDER": str(tmp_path)}
    answer = run("--app", APP, "worker", "--wait=0", url=url, env=folder)
    assert answer.returncode == 1
    assert says in only_line(answer)


def test_a_file_that_is_no_database(run, tmp_path):
    (tmp_path / "shop.db").write_text("anything else" * 100)
    url = f"sqlite:///{tmp_path}/shop.db"
    answer = run("--app", APP, "worker", url=url, env={"SHOP_FOLDER": str(tmp_path)})
    assert answer.returncode == 1
    assert "not a database" in only_line(answer)


def test_a_wrong_password_is_not_repeated(run, postgres_url, tmp_path):
    user, _, host = postgres_url.rpartition("@")
    url = f"{user.rpartition(':')[0]}:{SECRET}@{host}"
    answer = run("--app", APP, "worker", url=url, env={"SHOP_FOLDER": str(tmp_path)})
    assert answer.returncode == 1
    assert "password authentication failed" in only_line(answer)


def test_a_postgresql_database_without_the_tables(run, postgres_url, tmp_path):
    answer = run("--app", APP, "worker", url=postgres_url, env={"SHOP_FOLDER": str(tmp_path)})
    assert answer.returncode == 1
    assert "run `duly migrate`" in only_line(answer)


@pytest.mark.parametrize("arguments", [["nonsense"], ["worker", "--processes=0"], []])
def test_a_wrong_command_line_is_exit_2(run, arguments):
    answer = run(*arguments)
    assert answer.returncode == 2
    assert "Traceback" not in answer.stderr
    assert answer.stdout == ""


# The user's own code -----------------------------------------------------------------------------

BROKEN = {
    "typo": ("x = 1\ndef f(:\n", 1, "typo.py:2: SyntaxError: invalid syntax"),
    "boom": ("import json\n\njson.loads('{')\n", 1, "boom.py:3: JSONDecodeError: "),
    "needs": ("import nothing_like_it\n", 1, "needs.py:1: ModuleNotFoundError: No module named"),
    "leaves": ("import sys\nsys.exit('no')\n", 1, "leaves.py:2 exits when it is imported"),
    "wrong_url": (
        f"from duly import Duly\napp = Duly('mysql://me:{SECRET}@host/x')\n",
        1,
        "wrong_url.py:2: InvalidURL: ",
    ),
    "wrong_cron": (
        "from duly import Ctx, Duly\napp = Duly('sqlite:///x.db')\n@app.action\n"
        "def f(ctx: Ctx) -> None: ...\napp.schedule('x', f, cron='61 * * * *')\n",
        1,
        "wrong_cron.py:5: InvalidCron: ",
    ),
    "..nowhere": ("", 2, "no module '..nowhere'"),
}


def said(ran: Ran) -> str:
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert SECRET not in ran.err
    return ran.err


def test_an_app_that_cannot_be_imported(terminal: Terminal, tmp_path: Path) -> None:
    for name, (code, exit_code, says) in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(code)
        wrong = terminal.run("--app", name, "jobs", "list", cwd=tmp_path, code=exit_code)
        [line] = said(wrong).splitlines()
        assert line.startswith("duly: ")
        assert says in line
    by_file = terminal.run("--app", "boom.py:app", "worker", cwd=tmp_path, code=1)
    assert "boom.py:3: JSONDecodeError" in said(by_file)
    whole = terminal.run("--debug", "--app", "boom", "jobs", "list", cwd=tmp_path, code=1)
    assert "json/decoder.py" in whole.err
    assert "boom.py" in whole.err


MISTAKES = {
    "imports of the app": (
        "app = Duly('sqlite:///x.db', imports=['mods'])\n",
        "import json\n\njson.loads('{')\n",
        "mods.py:3: JSONDecodeError: ",
    ),
    "a syntax error there": (
        "app = Duly('sqlite:///x.db', imports=['mods'])\n",
        "def f(:\n",
        "mods.py:1: SyntaxError: invalid syntax",
    ),
    "a condition": (
        "app = Duly('sqlite:///x.db')\n@app.action\ndef f(ctx: Ctx) -> None: ...\n"
        "app.schedule('x', f, cron='0 9 * * *', condition={'/a': {'like': 1}})\n",
        "",
        "tasks.py:5: InvalidCondition: ",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("command", [("ticker",), ("dev", "--for=1s"), ("serve", "--port=0")])
def test_a_mistake_in_the_users_code_is_one_line(
    terminal: Terminal, tmp_path: Path, name: str, command: tuple[str, ...]
) -> None:
    app, module, says = MISTAKES[name]
    (tmp_path / "empty.py").write_text("from duly import Duly\napp = Duly('sqlite:///x.db')\n")
    (tmp_path / "tasks.py").write_text(f"from duly import Ctx, Duly\n{app}")
    (tmp_path / "mods.py").write_text(module)
    terminal.run("--app", "empty", "migrate", cwd=tmp_path)
    wrong = terminal.run("--app", "tasks", *command, cwd=tmp_path, code=1)
    line, *hint = said(wrong).splitlines()
    assert line.startswith(f"duly: {says}")
    assert len(hint) <= 1
    traced = terminal.run("--log-level=debug", "--app", "tasks", *command, cwd=tmp_path, code=1).err
    assert "Traceback" in traced
    assert f"duly: {says}" in traced


@pytest.mark.parametrize(
    ("project", "says"),
    [
        (b"[tool.duly\napp = 1", "cannot read pyproject.toml"),
        (b"\xff\xfe", "cannot read pyproject.toml"),
        (b"[tool.duly]\napp = 5", "Expected `str | null`, got `int` - at `tool.duly.app`"),
        (b"tool = 5", "at `tool`"),
        (b"[tool]\nduly = 'x'", "at `tool.duly`"),
    ],
)
def test_a_project_that_makes_no_sense(
    terminal: Terminal, tmp_path: Path, project: bytes, says: str
) -> None:
    (tmp_path / "pyproject.toml").write_bytes(project)
    assert says in said(terminal.run("jobs", "list", cwd=tmp_path, code=1))
    # Whoever names the app needs no project.
    assert "no module" in said(terminal.run("--app", "x", "jobs", "list", cwd=tmp_path, code=2))


def test_a_zone_that_is_none(terminal: Terminal) -> None:
    for how in (
        {"env": {"DULY_TZ": "Europe/Istambul"}},
        {"arguments": ("--display-tz", "istanbul")},
    ):
        wrong = terminal.run(*how.get("arguments", ()), "version", env=how.get("env"), code=2)  # type: ignore[arg-type]
        assert "did you mean 'Europe/Istanbul'?" in said(wrong)
    assert "no time zone" in said(terminal.run("version", "--display-tz", "x", code=2))
    assert terminal.run("version", env={"DULY_TZ": "Europe/Istanbul"}).code == 0


# Servers -----------------------------------------------------------------------------------------


class Stranger(BaseHTTPRequestHandler):
    """Something else than duly; the first part of the path says how it answers."""

    def do_GET(self) -> None:
        how = self.path.split("/")[1]
        if how == "silent":
            threading.Event().wait(60)
        if how == "rude":
            self.wfile.write(b"220 smtp.example.com\r\n")
            return
        answers = {
            "page": (200, b"<html>hi</html>"),
            "gone": (404, b"<html>no</html>"),
            "json": (200, b'{"hello": "world"}'),
            "list": (200, b"[1, 2]"),
            "odd": (200, b'{"items": [{"id": 5}], "next": null, "state": {}, "findings": 7}'),
            "events": (200, b"data: <html>\n\n"),
            "moved": (302, b""),
        }
        status, body = answers[how]
        self.send_response(status)
        self.send_header("Location", "https://elsewhere.example.com/\x1b]0;evil\x07")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def stranger() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stranger)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_server_that_is_not_duly(terminal: Terminal, stranger: str) -> None:
    for how in ("page", "gone", "json", "list"):
        wrong = said(terminal.run("--url", f"{stranger}/{how}", "jobs", "list", code=1))
        assert f"{stranger}/{how} does not look like a duly server: " in wrong
        assert "--url" in wrong
    # Something is missing, or is of another kind; with --json, too.
    for how, *arguments in (
        ("json", "queues", "list", "--json"),
        ("list", "queues", "list"),
        ("list", "jobs", "show", "x", "--json"),
        ("list", "doctor"),
        ("odd", "jobs", "list"),
        ("odd", "schedules", "show", "x"),
        ("odd", "endpoints", "list"),
        ("odd", "doctor"),
        ("odd", "why", "x"),
        ("json", "jobs", "watch", ID),
        ("events", "jobs", "watch", ID),
    ):
        ran = terminal.run("--url", f"{stranger}/{how}", *arguments, code=1)
        assert f"{stranger}/{how} does not look like a duly server" in said(ran), arguments
    moved = said(terminal.run("--url", f"{stranger}/moved", "jobs", "list", code=1))
    assert "redirects to https://elsewhere.example.com/" in moved
    assert "\x1b" not in moved
    rude = said(terminal.run("--url", f"{stranger}/rude", "jobs", "list", code=1))
    assert "cannot reach" in rude


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("ftp://host", 2, "not a server's address"),
        ("host:8484", 2, "not a server's address"),
        ("http://[::1", 2, "not a valid address"),
        (f"http://me:{SECRET}@127.0.0.1:1", 2, "only contain a scheme, host, port and path"),
        ("http://127.0.0.1:1", 1, "Connection refused"),
        ("https://127.0.0.1:1", 1, "Connection refused"),
    ],
)
def test_a_server_that_is_not_there(terminal: Terminal, url: str, code: int, says: str) -> None:
    wrong = said(terminal.run("jobs", "list", env={"DULY_URL": url}, code=code))
    assert says in wrong


def test_a_host_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    with pytest.raises(ApiError, match=r"there is no host 'nowhere\.invalid'"):
        Remote("http://nowhere.invalid", None).send("GET", "/", {}, b"")


def test_tokens_that_are_wrong(terminal: Terminal, tmp_path: Path) -> None:
    place = Place(terminal, f"sqlite:///{tmp_path}/shop.db", tmp_path)
    reader = place.app.tokens.create("reader", ["read"]).secret
    place.move_to_a_server()
    wrong = said(place.duly("jobs", "list", env={"DULY_TOKEN": "duly_nonsense"}, code=1))
    assert "token" in wrong
    assert "duly_nonsense" not in wrong
    assert "set DULY_TOKEN;" in place.duly("jobs", "list", env={"DULY_TOKEN": ""}, code=1).err
    assert "--token" in said(place.duly("jobs", "list", env={"DULY_TOKEN": "a\x1b"}, code=2))
    may_not = said(place.duly("pause", env={"DULY_TOKEN": reader}, code=1))
    assert "operate" in may_not
    assert place.duly("jobs", "list", env={"DULY_TOKEN": reader}).out == "no jobs\n"
    assert "--url" in said(terminal.run("--token", "x", "jobs", "list", code=2))
    place.close()


# Hints -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        errors.ScheduleNotFound("x"),
        errors.CalendarNotFound("x"),
        errors.EndpointNotFound("x"),
        errors.GatewayNotFound("x"),
        errors.CronNotFound("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_to_do_is_a_command(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fail(str(error), hint=getattr(error, "hint", None))
    shown = capsys.readouterr().err
    assert re.search(r"list (?:them|its crons) with `duly [a-z ]+`", shown), shown
    assert "app." not in shown


# What is not installed ---------------------------------------------------------------------------

BLOCKER = """
import os, sys

class Blocker:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["BLOCKED"].split():
            return None
        return self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Blocker, sys.meta_path)
"""


@pytest.mark.parametrize(
    ("blocked", "arguments", "says"),
    [
        (
            "click",
            ["jobs", "list"],
            "the command line needs an extra; run: pip install 'duly[cli]'",
        ),
        ("rich", ["--version"], "the command line needs an extra; run: pip install 'duly[cli]'"),
        ("fastapi starlette pydantic uvicorn", ["serve"], 'pip install "duly[server]"'),
        ("psycopg psycopg_pool", ["worker"], 'pip install "duly[postgres]"'),
        ("psycopg psycopg_pool", ["migrate"], 'pip install "duly[postgres]"'),
    ],
)
def test_a_missing_extra(tmp_path: Path, blocked: str, arguments: list[str], says: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    url = f"sqlite:///{tmp_path}/x.db" if "fastapi" in blocked else "postgresql://host/x"
    (tmp_path / "tiny.py").write_text(f"from duly import Duly\napp = Duly({url!r})\n")
    ended = subprocess.run(
        [sys.executable, "-m", "duly", "--app", "tiny", *arguments],
        env=environment(BLOCKED=blocked, PYTHONPATH=f"{tmp_path}:{PYTHONPATH}"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert says in only_line(ended)


def test_no_password_is_shown(terminal: Terminal, tmp_path: Path) -> None:
    for arguments in (
        ("--url", "postgresql://u:s3cret@h/db", "jobs", "list"),
        ("--url", "http://u:s3cret@h:port/", "jobs", "list"),
        ("copy", "sqlite:///a.db", "u:s3cret@127.0.0.1:1/x"),
        ("copy", "sqlite:///a.db", "mysql://u:s3cret@127.0.0.1:1/x"),
    ):
        ran = terminal.run(*arguments, cwd=tmp_path, code=None)
        assert ran.code in (1, 2), arguments
        assert "s3cret" not in ran.out + ran.err, arguments


@pytest.mark.parametrize(
    "arguments",
    [
        ("--url", "http://127.0.0.1:9/é", "jobs", "list"),
        ("--url", f"http://{'a' * 70}.example/", "jobs", "list"),
        ("cron", "0 9 * * 1-5", "--after", "9999-12-31"),
        ("cron", "0 9 * * 1-5", "--after", "0001-01-01", "--tz", "Asia/Tokyo"),
        ("run", "touch", "text=\udcff"),
        ("init", "email.py"),
        ("init", "class.py"),
    ],
)
def test_odd_input_is_refused_in_words(
    terminal: Terminal, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    ran = terminal.run(*arguments, cwd=tmp_path, code=None)
    assert ran.code in (1, 2)
    assert "--debug" not in ran.err, "it was foreseen"
    assert "Traceback" not in ran.err
    assert list(tmp_path.iterdir()) == []
