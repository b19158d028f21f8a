"""The application of docs/how-to/testing.md and its tests, on a real PostgreSQL."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import duly
from tests.postgres import fresh_database

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/testing.md"


@pytest.fixture
def empty_postgres(postgres_server: str) -> Iterator[str]:
    with fresh_database(postgres_server) as url:
        yield url


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The files of the page."""
    text = PAGE.read_text(encoding="utf-8")
    for name, code in re.findall(r"^```py\n# (\w+\.py)\n(.*?)^```$", text, re.M | re.S):
        (tmp_path / name).write_text(code, encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\nduly_app = "shop:app"\npythonpath = ["."]\n'
    )
    return tmp_path


def run_pytest(project: Path, *arguments: str, **more: str) -> tuple[int, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("DULY_", "PYTEST_"))}
    package = Path(duly.__file__).parent.parent
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=project,
        env={**inherited, "PYTHONPATH": str(package), **more},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.spec("N60")
def test_the_tests_of_an_application_with_asyncpg_pass(project: Path, empty_postgres: str):
    code, said = run_pytest(project, DULY_TEST_URL=empty_postgres)
    assert (code, "2 passed" in said) == (0, True), said

    code, said = run_pytest(project, "-o", f"duly_test_url={empty_postgres}")
    assert (code, "2 passed" in said) == (0, True), said


@pytest.mark.spec("N60")
def test_without_the_test_database_they_say_how_to_name_it(project: Path):
    code, said = run_pytest(project)
    assert code == 1
    assert "set DULY_TEST_URL, or duly_test_url in pytest's configuration" in said
