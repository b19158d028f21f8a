"""The examples of moves from other libraries do the same before and after, and others pass their
own tests.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import TOP, environment
from tests.postgres import fresh_database

EXAMPLES = TOP / "examples"


def run(folder: Path, *command: str, **env: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=folder,
        env={**environment(), "PYTHONDONTWRITEBYTECODE": "1", **env},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.spec("N88")
def test_the_celery_application_does_the_same_in_duly(tmp_path: Path):
    pytest.importorskip("celery")
    before, after = (run(EXAMPLES / "celery_move", f"{name}.py") for name in ("before", "after"))
    assert before == after == "ops@example.org: 4\nops@example.org: 6 words\ntidied\n"

    text = (EXAMPLES / "celery_move/after.py").read_text(encoding="utf-8")
    functions, schedules = text.split("# The schedules")[0], text.split("# The schedules")[1]
    (tmp_path / "after.py").write_text(functions, encoding="utf-8")
    shutil.copy(EXAMPLES / "celery_move/before.py", tmp_path)
    take = ("import", "celery-beat", "before:celery", "--prefix", "", "--as-code")
    printed = run(tmp_path, "-m", "duly", "--app", "after:app", *take)
    assert printed.count("app.schedule(") == 6
    for block in printed.split("\n\n")[1:]:
        assert block.strip() in schedules


@pytest.mark.spec("N88")
def test_the_tests_of_the_asyncpg_application_pass(postgres_server: str):
    with fresh_database(postgres_server) as url:
        pytest_ = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
        assert "4 passed" in run(EXAMPLES / "fastapi_async", *pytest_, DULY_TEST_URL=url)
