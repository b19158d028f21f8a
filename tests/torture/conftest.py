"""What every torture test counts is shown at the end of the run, also of a distributed one."""

from collections.abc import Callable

import pytest

NAME = "torture"


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
