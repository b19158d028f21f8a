"""Fixtures and habits of the whole test suite.

- `url` runs a test on both stores; `sqlite_url` and `postgres_url` ask for one. See also levels.py.
- `long_run` is true under `--long`. What is marked `long` runs only then; `long("postgres")` does
  so on PostgreSQL.
- With CI set, a skipped test fails the run.
- What connects to anything but this machine fails the run: tests/loopback.
"""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.levels import FOLDERS, at_every_level, is_parametrized
from tests.loopback import sitecustomize as loopback
from tests.postgres import fresh_database, join_server, server_folder

pytest_plugins = ["tests.fixtures"]

HERE = Path(__file__).parent
TORTURE = "torture"
POSTGRES_FIXTURES = {"postgres_server", "postgres_url"}

folder_key = pytest.StashKey[Path]()
run_key = pytest.StashKey[ExitStack]()
refused_key = pytest.StashKey[list[str]]()

# Time is given, never measured: a slow machine must not fail a property.
hypothesis.settings.register_profile("duly", deadline=None, print_blob=True)
hypothesis.settings.register_profile(
    "long", hypothesis.settings.get_profile("duly"), max_examples=500
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run everything, and at full length")


# One server for one run: the controlling process holds the folder, the workers join the server.


def pytest_configure(config: pytest.Config) -> None:
    # A shell that starts a run in the background lets it ignore Ctrl-C, and all that it starts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    hypothesis.settings.load_profile("long" if config.getoption("--long") else "duly")
    worker_input = _worker_input(config)
    if worker_input is not None:
        config.stash[folder_key] = Path(worker_input["postgres_folder"])
        return
    loopback.only()
    config.stash[run_key] = ExitStack()
    folder = config.stash[run_key].enter_context(server_folder(in_memory=True))
    config.stash[folder_key] = folder
    if config.option.basetemp is None:  # files too are faster there
        config.option.basetemp = str(folder / "files")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["postgres_folder"] = str(node.config.stash[folder_key])


def pytest_unconfigure(config: pytest.Config) -> None:
    if run_key in config.stash:
        config.stash[run_key].close()


def _worker_input(config: pytest.Config) -> dict[str, str] | None:
    """What the controlling process gave to this worker; nothing in the controlling process."""
    return getattr(config, "workerinput", None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # What is collected stays to the end: the garbage collector need not look at it again and again.
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """At full length, once for each isolation level that a database may have."""
    if not metafunc.config.getoption("--long") or _folder(metafunc.definition) not in FOLDERS:
        return
    is_long = metafunc.definition.get_closest_marker("long") is not None
    if "url" in metafunc.fixturenames and not is_long and not is_parametrized(metafunc, "url"):
        metafunc.definition.add_marker(at_every_level)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _folder(item) == TORTURE:
            item.add_marker("torture")
        if POSTGRES_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("postgres")
    if not config.getoption("--long"):
        _thin_out(config, items)
    items[:] = dealt(items, int((_worker_input(config) or {}).get("workercount", 1)))


# They take long, most of them by waiting: begun last, they would run when nothing else does.
BEGUN_FIRST = (
    ("torture/test_kill.py", "torture/test_load.py", "torture/test_points.py"),
    ("browser/",),
    ("cli/",),
    ("server/test_schema.py", "store/test_plans.py", "test_bench.py", "test_typing.py"),
    ("torture/test_poison.py", "torture/test_outage.py", "torture/test_strained.py"),
    ("torture/test_levels.py", "torture/test_clock_skew.py", "server/test_gateways.py"),
)


def dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Each worker begins with others of them; xdist gives it the next share of the list."""
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    others: list[pytest.Item] = []
    for item in items:
        place = _place(item)
        group = next((n for n, begun in enumerate(BEGUN_FIRST) if place.startswith(begun)), None)
        (others if group is None else shares[group % workers]).append(item)
    for number, share in enumerate(shares):
        end = len(items) * (number + 1) // workers - sum(map(len, shares[:number]))
        missing = max(0, end - len(share))
        share += others[:missing]
        del others[:missing]
    return [item for share in shares for item in share]


# What is asked of SQLite with thirty values is asked of PostgreSQL with three of them: a refusal is
# the same code. All of it runs with `--long`.
THINNED = {"jobs", "schedules", "server"}


def _thin_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    families: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        if _folder(item) in THINNED:
            family, _, values = item.nodeid.partition("[")
            store = next((name for name in ("sqlite", "postgres") if name in values), "")
            families.setdefault(family, {}).setdefault(store, []).append(item)
    left_out = {
        item
        for family in families.values()
        if len(family.get("sqlite", ())) >= len(family.get("postgres", ()))
        for item in _between(family.get("postgres", []))
    }
    left_out |= {item for item in items if _is_long(item)}
    if left_out:
        config.hook.pytest_deselected(items=sorted(left_out, key=lambda item: item.nodeid))
        items[:] = [item for item in items if item not in left_out]


def _is_long(item: pytest.Item) -> bool:
    values = item.nodeid.partition("[")[2]
    marks = [mark.args for mark in item.iter_markers("long")]
    return any(not stores or stores[0] in values for stores in marks)


def _folder(item: pytest.Item) -> str:
    """The folder in tests/ that it is in."""
    return _place(item).partition("/")[0]


def _place(item: pytest.Item) -> str:
    return item.path.relative_to(HERE).as_posix() if item.path.is_relative_to(HERE) else ""


def _between(family: list[pytest.Item]) -> list[pytest.Item]:
    """All but the first, the last and the one in the middle."""
    kept = {0, len(family) // 2, len(family) - 1}
    return [item for place, item in enumerate(family) if place not in kept]


# A test that is skipped proves nothing, so CI refuses it.


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if _worker_input(config) is None:
        config.stash[refused_key] = loopback.refused()
    if session.exitstatus == pytest.ExitCode.OK and (_refused_skips(config) or _strayed(config)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    refused = _refused_skips(config)
    if refused:
        terminalreporter.section("skipped tests fail the run in CI", red=True)
        for report in refused:
            terminalreporter.line(f"{report.nodeid}: {_reason(report)}")
    if _strayed(config):
        terminalreporter.section("only connections to this machine are allowed", red=True)
        for line in _strayed(config):
            terminalreporter.line(line)


def _strayed(config: pytest.Config) -> list[str]:
    return config.stash.get(refused_key, [])


def _refused_skips(config: pytest.Config) -> list[pytest.TestReport | pytest.CollectReport]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or _worker_input(config) is not None or reporter is None:
        return []
    return list(reporter.stats.get("skipped", []))


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    where_and_why = report.longrepr
    return where_and_why[2] if isinstance(where_and_why, tuple) else str(where_and_why)


@pytest.fixture(scope="session")
def long_run(pytestconfig: pytest.Config) -> bool:
    """Whether the run was asked for at full length."""
    return bool(pytestconfig.getoption("--long"))


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> str:
    """The DSN of the run's PostgreSQL server, of its `postgres` database."""
    return join_server(pytestconfig.stash[folder_key])


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The DSN of a PostgreSQL database that only this test has."""
    with fresh_database(postgres_server) as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of an SQLite file that only this test has and that does not exist yet."""
    return f"sqlite:///{tmp_path}/duly.db"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, once on each store."""
    database: str = request.getfixturevalue(f"{request.param}_url")
    return database
