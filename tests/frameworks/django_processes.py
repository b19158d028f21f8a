"""Django has one configuration per process, so whatever needs it runs in a process of its own.

`@in_django` makes a test whose body runs there, with the project of examples/django_shop, once on
each database, and with every table made. A body imports what needs Django inside itself.
"""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from tests.cli.processes import PYTHONPATH, TOP, environment

PROJECT = TOP / "examples" / "django_shop"
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
        command, env=env, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


def run_well(command: list[str], env: Mapping[str, str], cwd: Path) -> str:
    """What it says on its way to exit code 0."""
    ended = run(command, env, cwd)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def in_django(body: Callable[[], None]) -> Callable[[str, Path], None]:
    @functools.wraps(body)
    def test(url: str, tmp_path: Path) -> None:
        paths = f"{PYTHONPATH}:{PROJECT}"
        env = shop_environment(url, tmp_path, DJANGO_SETTINGS_MODULE="project.settings")
        here = [sys.executable, "-W", "error", "-m", __name__, body.__module__, body.__name__]
        run_well(here, env | {"PYTHONPATH": paths}, tmp_path)

    test.__dict__["body"] = body
    # pytest would follow it to the body's parameters.
    del test.__dict__["__wrapped__"]
    return test


def run_body(module: str, name: str) -> None:
    import django
    from django.core.management import call_command

    django.setup()
    from duly.contrib.django import app

    call_command("migrate", verbosity=0)
    call_command("loaddata", "products", verbosity=0)
    app.migrate()
    getattr(importlib.import_module(module), name).body()
    app.close()


if __name__ == "__main__":
    run_body(*sys.argv[1:])
