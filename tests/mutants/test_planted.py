"""The tests notice each planted fault. In full with `--long`: every fault is a run of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.planted import PLANTED, Planted

TOP = Path(__file__).parents[2]
PACKAGE = TOP / "src" / "duly"
FAILED = 1
"""Pytest's exit code when tests failed, rather than could not be collected or run."""


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_a_fault_changes_one_place(planted: Planted) -> None:
    assert (PACKAGE / planted.file).read_text().count(planted.old) == 1
    assert all((TOP / path).exists() for path in planted.tests.split())


@pytest.mark.long
@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_the_tests_notice(planted: Planted, tmp_path: Path) -> None:
    package = tmp_path / "duly"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    source = package / planted.file
    source.write_text(source.read_text().replace(planted.old, planted.new))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-k", "not postgres"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *planted.tests.split()],
        cwd=TOP,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == FAILED, done.stdout[-3000:] + done.stderr[-1000:]
