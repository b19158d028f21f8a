"""Django has one configuration per process, so whatever needs it runs in a process of its own.

`@in_django` makes a test whose body runs there, with the project of examples/django_shop, once on
each database, and with every table made. A body imports what needs Django inside itself.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from tests.cli.processes import PYTHONPATH, TOP, environment

PROJECT = TOP / "examples" / "django_shop"
LIMIT = 60
SAID = "said.txt"
LIBPQ = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD"}


def shop_environment(url: str, folder: Path, **more: str) -> dict[str, str]:
    """The environment in which the shop uses this database and keeps its files in the folder."""
    database: dict[str, str] = {}
    if not url.startswith("sqlite"):
        given = conninfo_to_dict(url)
        database["SHOP_POSTGRES"] = str(given["dbname"])
        database |= {LIBPQ[name]: str(given[name]) for name in LIBPQ if given.get(name)}
    return environment(SHOP_DATA=str(folder), **database, **more)


def manage(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", str(PROJECT / "manage.py"), *arguments]


def run(command: list[str], env: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=env, cwd=cwd, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def run_well(command: list[str], env: Mapping[str, str], cwd: Path) -> str:
    """What it says on its way to exit code 0."""
    ended = run(command, env, cwd)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


# Bodies of tests ---------------------------------------------------------------------------------


def in_django(body: Callable[[], None]) -> Callable[[Host, str, Path], None]:
    @functools.wraps(body)
    def test(django_host: Host, shop_url: str, tmp_path: Path) -> None:
        django_host.run(shop_url, tmp_path, body.__module__, body.__name__)

    test.__dict__["body"] = body
    # pytest would follow it to the body's parameters.
    del test.__dict__["__wrapped__"]
    return test


class Host:
    """A process that has imported Django, with no settings yet, and forks one for each body.

    To import it takes most of a second, far longer than what most of them do.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", __name__],
            env=environment() | {"PYTHONPATH": f"{PYTHONPATH}:{PROJECT}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, url: str, folder: Path, *body: str) -> None:
        """Run a body in a process of its own, in this folder; fail if it fails."""
        env = shop_environment(url, folder, DJANGO_SETTINGS_MODULE="project.settings")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([env, str(folder), *body]), file=self._process.stdin, flush=True)
        code = self._process.stdout.readline()
        assert code == "0\n", f"exit code {code}{(folder / SAID).read_text()}"

    def close(self) -> None:
        self._process.communicate()


# What follows runs in the host and in its children.


def be_host() -> None:
    from django.core import management  # noqa: F401
    from django.db.backends.postgresql import base as postgresql  # noqa: F401
    from django.db.backends.sqlite3 import base as sqlite3  # noqa: F401

    from tests.frameworks import test_django  # noqa: F401

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            be_child(*json.loads(line))
            return  # and end as any process ends
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def be_child(env: dict[str, str], folder: str, module: str, name: str) -> None:
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    with open(os.devnull) as nothing, open(SAID, "w") as said:
        os.dup2(nothing.fileno(), 0)
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    signal.alarm(LIMIT)
    run_body(module, name)


def run_body(module: str, name: str) -> None:
    import django

    django.setup()
    from duly.contrib.django import app

    getattr(importlib.import_module(module), name).body()
    app.close()


@in_django
def prepare() -> None:
    """Make every table of the shop and of duly."""
    from django.core.management import call_command

    from duly.contrib.django import app

    call_command("migrate", verbosity=0)
    call_command("loaddata", "products", verbosity=0)
    app.migrate()


if __name__ == "__main__":
    be_host()
