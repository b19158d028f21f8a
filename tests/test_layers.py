"""The architecture, enforced: who may import whom, what is pure, and where time comes from."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "duly"

# Each module imports its own level and those above it in this table. A new top-level module is
# given its level here.
LEVELS = [
    {"errors", "clock", "ids", "fault", "nearest", "zones"},
    {"model"},
    {"store"},
    {"runtime"},
    {"functions"},
    {"core"},
    {"calls", "workflows"},
    {"endpoints"},
    {"schedules"},
    {"calendars", "gateway", "webhooks"},
    {"observe"},
    {"app", "__init__"},
    {"contrib", "index", "server"},
    {"testing"},
    {"cli", "__main__"},
]
LEVEL = {module: level for level, modules in enumerate(LEVELS) for module in modules}
# The product must not need its testing tools; only commands may offer them.
MAY_IMPORT_TESTING = {"testing", "cli"}
# Server and CLI talk to the app, not past it.
OUTSIDE = {"server", "cli"}
BEHIND_THE_APP = {"core", "runtime", "store"}
MAY_GO_PAST_THE_APP = (
    "cli/copy.py",  # copies one store to another
    "cli/dev/",  # loads the code anew, and follows what happens from a thread of its own
    "cli/migrate.py",  # shows the migrations of a store that is not ready yet
    "cli/worker.py",  # runs what the runtime has: supervisor, lifeline, isolated functions
)

# fmt: off
NOT_PURE = {
    "asyncpg", "django", "psycopg", "psycopg_pool", "sqlalchemy", "sqlite3",
    "fcntl", "glob", "io", "mmap", "os", "pathlib", "shutil", "tempfile",
    "http", "httpx2", "select", "selectors", "socket", "ssl", "urllib",
    "asyncio", "concurrent", "ctypes", "multiprocessing", "queue",
    "sched", "signal", "subprocess", "threading",
    "logging", "random", "secrets", "time", "uuid",
}
# fmt: on
NOT_PURE_BUILTINS = {"breakpoint", "input", "open", "print"}

CLOCK_READS = {
    "time.clock_gettime",
    "time.clock_gettime_ns",
    "time.gmtime",
    "time.localtime",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "time.perf_counter_ns",
    "time.time",
    "time.time_ns",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "datetime.date.today",
}

# Statements are given `now`: the database's own clock would differ from the test's and between
# the two databases.
SQL_CLOCK = re.compile(
    r"\bnow\s*\(|'now'|\bunixepoch\s*\(\s*\)"
    r"|\b(?:current_(?:timestamp|date|time)|localtime|localtimestamp)\b"
    r"|\b(?:transaction_timestamp|statement_timestamp|timeofday)\b",
    re.IGNORECASE,
)
SERVER_CLOCK = re.compile(r"\bclock_timestamp\b", re.IGNORECASE)
MAY_READ_SERVER_CLOCK = ("store/postgres/store.py", "store/feed.py")


DECIDES = ("decide", "GUARDS")


def modules(folder: Path = PACKAGE) -> list[Path]:
    found = sorted(folder.rglob("*.py"))
    assert found, f"no modules in {folder}"
    return found


def where(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def dotted_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """Every module a file imports, anywhere in it, with relative names resolved.

    `from a import b` gives `a.b`: b may be a module.
    """
    package = dotted_name(path).split(".")
    if path.stem != "__init__":
        package.pop()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *filter(None, [node.module])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def top_module(name: str) -> str | None:
    """`store` for `duly.store.sqlite`, `__init__` for a name of duly itself, else nothing."""
    package, *inside = name.split(".")
    if package != "duly":
        return None
    return inside[0] if inside and inside[0] in LEVEL else "__init__"


def wrong_imports(tree: ast.AST, path: Path) -> Iterator[str]:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for line, name in imports(tree, path):
        imported = top_module(name)
        if imported is None:
            continue
        if imported == "contrib" and own != "contrib":
            yield f"{where(path)}:{line} imports {name}, which is for frameworks to import"
            continue
        if LEVEL[imported] > LEVEL[own]:
            yield f"{where(path)}:{line} imports {name}, which is above it"
        elif imported == "testing" and own not in MAY_IMPORT_TESTING:
            yield f"{where(path)}:{line} imports {name}, which is for tests"


def shortcuts(tree: ast.AST, path: Path) -> Iterator[str]:
    """Where a module outside asks the core or the store itself, instead of the app."""
    outside = path.relative_to(PACKAGE).parts[0] in OUTSIDE
    if not outside or where(path).startswith(MAY_GO_PAST_THE_APP):
        return
    for line, name in imports(tree, path):
        if top_module(name) in BEHIND_THE_APP:
            yield f"{where(path)}:{line} imports {name}, which is behind the app"
    nodes = list(ast.walk(tree))
    # `app.ready()` connects; code that uses its result uses the store.
    connects = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    calls = [node for node in nodes if isinstance(node, ast.Call) and id(node) not in connects]
    used = [call.func for call in calls if isinstance(call.func, ast.Attribute)]
    found = [node for node in used if node.attr == "ready"]
    found += [n for n in nodes if isinstance(n, ast.Attribute) and n.attr in BEHIND_THE_APP]
    for node in found:
        yield f"{where(path)}:{node.lineno} uses .{node.attr}, which is behind the app"


def impurities(tree: ast.AST, path: Path) -> Iterator[str]:
    for line, name in imports(tree, path):
        if name.partition(".")[0] in NOT_PURE:
            yield f"{where(path)}:{line} imports {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in NOT_PURE_BUILTINS:
            yield f"{where(path)}:{node.lineno} uses {node.id}"


def clock_reads(tree: ast.AST, path: Path) -> Iterator[str]:
    names = imported_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and full_name(node, names) in CLOCK_READS:
            yield f"{where(path)}:{node.lineno} reads {full_name(node, names)}"


def imported_names(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for: `{"dt": "datetime.datetime"}`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def full_name(node: ast.expr, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := full_name(node.value, names)):
        return f"{owner}.{node.attr}"
    return None


def sql_clock_reads(text: str, place: str) -> Iterator[str]:
    yield from (f"{place} says {match[0]}" for match in SQL_CLOCK.finditer(text))
    if place not in MAY_READ_SERVER_CLOCK and SERVER_CLOCK.search(text):
        yield f"{place} says clock_timestamp"


def decisions(tree: ast.AST, path: Path) -> Iterator[str]:
    """Where ticks are decided apart from `walk`, from which all others are to take decisions."""
    here = where(path) == "model/decide.py"
    nodes = list(ast.walk(tree))
    walks = [n for n in nodes if here and isinstance(n, ast.FunctionDef) and n.name == "walk"]
    in_walk = {id(node) for walk in walks for node in ast.walk(walk)}
    for line, name in imports(tree, path):
        if name.startswith("duly.model.decide.") and name.endswith(DECIDES):
            yield f"{where(path)}:{line} imports {name}"
    for node in nodes:
        if id(node) in in_walk or not isinstance(node, ast.Attribute | ast.Name):
            continue
        if isinstance(node, ast.Attribute) and node.attr in DECIDES:
            yield f"{where(path)}:{node.lineno} uses {node.attr}"
        elif here and isinstance(node, ast.Name) and node.id == "decide":
            yield f"{where(path)}:{node.lineno} uses decide"


def strings(tree: ast.AST) -> Iterator[str]:
    """The string constants of a module, docstrings left out."""
    nodes = list(ast.walk(tree))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = [node for node in nodes if isinstance(node, ast.Constant)]
    for constant in constants:
        if isinstance(constant.value, str) and id(constant) not in docstrings:
            yield constant.value


def without_comments(sql: str) -> str:
    return re.sub(r"--.*", "", sql)


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def test_every_module_has_a_level():
    named = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in modules()}
    unknown = named - LEVEL.keys()
    assert not unknown, f"give {unknown} a level in {Path(__file__).name}"


def test_modules_import_leftwards_only():
    assert [fault for path in modules() for fault in wrong_imports(parse(path), path)] == []


def test_server_and_cli_talk_to_the_app_and_not_past_it():
    assert [fault for path in modules() for fault in shortcuts(parse(path), path)] == []


def test_every_module_that_may_go_past_the_app_does():
    for place in MAY_GO_PAST_THE_APP:
        found = [path for path in modules() if where(path).startswith(place)]
        trees = [(parse(path), PACKAGE / "cli/elsewhere.py") for path in found]
        assert any(fault for tree, path in trees for fault in shortcuts(tree, path)), place


def test_the_model_is_pure():
    pure = modules(PACKAGE / "model")
    assert [fault for path in pure for fault in impurities(parse(path), path)] == []


def test_only_the_clock_reads_the_time():
    found = [fault for path in modules() for fault in clock_reads(parse(path), path)]
    assert [fault for fault in found if not fault.startswith("clock.py:")] == []


def test_ticks_are_decided_in_one_walk():
    assert [fault for path in modules() for fault in decisions(parse(path), path)] == []


def test_no_statement_reads_the_databases_clock():
    found = [
        fault
        for path in modules(PACKAGE / "store")
        for text in strings(parse(path))
        for fault in sql_clock_reads(text, where(path))
    ]
    for path in sorted((PACKAGE / "store").rglob("*.sql")):
        found += sql_clock_reads(without_comments(path.read_text(encoding="utf-8")), where(path))
    assert found == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("model/job.py", "from duly.store import base"),
        ("model/job.py", "from duly import store"),
        ("model/job.py", "from ..store.base import Store"),
        ("model/job.py", "from duly import Duly"),
        ("errors.py", "def late():\n    import duly.model.job"),
        ("store/base.py", "from duly.runtime.loop import Loop"),
        ("runtime/loop.py", "import duly.app"),
        ("app/duly.py", "from duly.cli import main"),
        ("server/api.py", "from duly.testing import ManualClock"),
        ("testing/drain.py", "from duly.cli import main"),
        ("contrib/django/project.py", "from duly.cli import main"),
        ("cli/dev.py", "from duly.contrib.django import app"),
    ],
)
def test_an_import_against_the_direction_is_found(file, source):
    assert len(list(wrong_imports(ast.parse(source), PACKAGE / file))) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("model/job.py", "from duly.errors import DulyError"),
        ("model/job.py", "from . import retry"),
        ("model/__init__.py", "from .job import Job"),
        ("clock.py", "from duly import errors"),
        ("store/sqlite/store.py", "import sqlite3"),
        ("app.py", "from duly.functions.function import Function"),
        ("cli/dev.py", "from duly.server import serve\nfrom duly.testing import drain"),
        ("testing/drain.py", "from duly import Duly"),
    ],
)
def test_an_import_along_the_direction_is_fine(file, source):
    assert list(wrong_imports(ast.parse(source), PACKAGE / file)) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("server/api/jobs.py", "from duly.core import Core"),
        ("server/api/jobs.py", "from duly.store.table import Store"),
        ("server/events.py", "from duly.runtime.feed import Feed"),
        ("server/api/jobs.py", "from duly import store"),
        ("cli/doctor.py", "def late():\n    from duly.store import base"),
        ("server/api/jobs.py", "app.core.get(job_id)"),
        ("server/dashboard/views/jobs.py", "viewer.app.store.get(job_id)"),
        ("cli/serve.py", "self._app.core.now()"),
        ("server/api/jobs.py", "app.ready().get(job_id)"),
        ("server/api/jobs.py", "store = self._app.ready()"),
        ("cli/worker_of_another.py", "app.core.get(job_id)"),
    ],
)
def test_a_way_past_the_app_is_found(file, source):
    assert len(list(shortcuts(ast.parse(source), PACKAGE / file))) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("server/api/jobs.py", "from duly.app import operations\noperations.now(app)"),
        ("server/api/jobs.py", "from duly.model.job import JobFilter"),
        ("cli/wait.py", "app.ready()"),
        ("cli/root.py", "from click.core import ParameterSource"),
        ("cli/worker.py", "from duly.runtime.supervisor import Supervisor\nSupervisor(app.core)"),
        ("app/operations.py", "app.core.now()"),
    ],
)
def test_a_question_to_the_app_is_fine(file, source):
    assert list(shortcuts(ast.parse(source), PACKAGE / file)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import sqlite3",
        "from os import path",
        "import urllib.request",
        "from time import time",
        "def f():\n    import random",
        "print(1)",
        "open('x')",
    ],
)
def test_an_impure_model_is_found(source):
    assert len(list(impurities(ast.parse(source), PACKAGE / "model/job.py"))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "import time as t\nt.monotonic_ns()",
        "from time import monotonic\nmonotonic()",
        "from datetime import datetime\ndatetime.now(UTC)",
        "import datetime as dt\ndt.datetime.utcnow()",
        "from datetime import date as day\nday.today()",
        "import time\ndef wait(now=time.monotonic): ...",
    ],
)
def test_a_read_of_the_clock_is_found(source):
    assert len(list(clock_reads(ast.parse(source), PACKAGE / "app.py"))) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("schedules/verbs_tick.py", "from duly.model.decide import decide"),
        ("schedules/verbs_tick.py", "from duly.model.decide import decide as judge"),
        ("schedules/verbs_tick.py", "from duly.model.decide import GUARDS"),
        ("schedules/verbs_tick.py", "from duly.model import decide\ndecide.decide(tick, guards)"),
        ("schedules/verbs_tick.py", "import duly.model.decide as model\nmodel.GUARDS"),
        ("model/forecast.py", "from .decide import decide"),
        ("model/forecast.py", "def walk():\n    from duly.model.decide import decide"),
        ("model/decide.py", "def judge():\n    decide(tick, guards)"),
        ("model/decide.py", "def walk():\n    decide(tick, guards)\nagain = decide"),
    ],
)
def test_a_tick_that_is_decided_elsewhere_is_found(file, source):
    assert len(list(decisions(ast.parse(source), PACKAGE / file))) == 1


def test_the_walk_decides():
    path = PACKAGE / "model/decide.py"
    source = "def walk():\n    decide(tick, guards)"
    assert list(decisions(ast.parse(source), path)) == []
    named = [node.id for node in ast.walk(parse(path)) if isinstance(node, ast.Name)]
    assert named.count("decide") == 1


def test_asking_the_clock_is_no_read_of_the_time():
    source = "import time\nself.clock.now()\nclock.monotonic()\ntime.sleep(1)"
    assert list(clock_reads(ast.parse(source), PACKAGE / "app.py")) == []


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT now()",
        "SELECT NOW ( )",
        "x DEFAULT CURRENT_TIMESTAMP",
        "datetime('now')",
        "strftime('%s', 'now')",
        "SELECT unixepoch()",
        "SELECT statement_timestamp()",
    ],
)
def test_a_statement_that_reads_the_time_is_found(statement):
    assert len(list(sql_clock_reads(statement, "store/statements.py"))) == 1


def test_the_servers_clock_is_read_in_one_place():
    statement = "SELECT clock_timestamp()"
    assert list(sql_clock_reads(statement, "store/postgres/store.py")) == []
    assert len(list(sql_clock_reads(statement, "store/sqlite/store.py"))) == 1


def test_a_docstring_may_speak_of_now():
    tree = ast.parse('"""Never now()."""\nSQL = f"SELECT {x} <= :now"')
    assert [fault for text in strings(tree) for fault in sql_clock_reads(text, "x.py")] == []
