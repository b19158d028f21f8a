"""What every torture test counts is shown at the end of the run, also of a distributed one."""

from collections.abc import Callable
from pathlib import Path

import pytest

NAME = "torture"

# They need what no set-up installs, and in CI a test that is skipped fails the run.
ONLY_LONG = {"test_pgbouncer.py"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    left_out = collection_path.name in ONLY_LONG and not config.getoption("--long")
    return True if left_out else None


@pytest.fixture
def report(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Say in one line what was done and counted."""
    return lambda line: record_property(NAME, line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [r for group in terminalreporter.stats.values() for r in group]
    lines = [
        f"{report.nodeid}: {value}"
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name == NAME
    ]
    if lines:
        terminalreporter.section("torture")
        for line in sorted(lines):
            terminalreporter.line(line)
