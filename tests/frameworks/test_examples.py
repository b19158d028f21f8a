"""The examples of moves from other libraries do the same before and after, and others pass their
own tests.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import TOP, environment
from tests.postgres import fresh_database

EXAMPLES = TOP / "examples"


def run(folder: Path, *command: str, code: int = 0, **env: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=folder,
        env={**environment(), "PYTHONDONTWRITEBYTECODE": "1", **env},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.spec("N88")
def test_the_celery_application_does_the_same_in_duly(tmp_path: Path):
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


SCHEDULES = ["poll", "report", "close month", "stocktaking", "heartbeat", "cleaning"]
PRINTED = """\
report:  07-01 09:00:00  07-02 09:00:00  07-03 09:00:00
close month:  07-31 23:30:00  08-31 23:30:00  09-30 23:30:00
stocktaking:  07-06 08:00:00  08-03 08:00:00  09-07 08:00:00
heartbeat:  07-01 06:00:00  07-01 06:00:20  07-01 06:00:40
cleaning:  07-13 08:00:00  07-27 08:00:00  08-10 08:00:00
waiting: remind 7
ops@example.org: 12 orders
ops@example.org: the month is closed
charge failed: ConnectionError: order 9 was not charged
"""


@pytest.mark.spec("N88")
def test_the_application_that_moved_from_apscheduler_has_the_same_jobs():
    folder = EXAMPLES / "apscheduler_move"
    assert run(folder, "after.py") == PRINTED
    before, after = (ast.parse((folder / f"{name}.py").read_text()) for name in ("before", "after"))
    assert functions(before) == functions(after)
    assert [
        keyword.value.value
        for call in ast.walk(before)
        if isinstance(call, ast.Call)
        for keyword in call.keywords
        if keyword.arg == "id" and isinstance(keyword.value, ast.Constant)
    ] == [*SCHEDULES, "charge"]
    declared = (folder / "after.py").read_text().split("app.schedule(\n")[1:]
    assert [ast.literal_eval(each.split(",")[0].strip()) for each in declared] == SCHEDULES


def functions(module: ast.Module) -> dict[str, list[str]]:
    """The functions that jobs call, with their parameters."""
    return {
        each.name: [arg.arg for arg in each.args.args]
        for each in module.body
        if isinstance(each, ast.FunctionDef) and each.name != "on_error"
    }


@pytest.mark.spec("N88")
def test_the_apscheduler_application_does_the_same_in_duly(tmp_path: Path):
    folder = EXAMPLES / "apscheduler_move"
    assert run(folder, "before.py") == PRINTED
    text = (folder / "after.py").read_text(encoding="utf-8")
    (tmp_path / "after.py").write_text(text.split("# The schedules")[0], encoding="utf-8")
    shutil.copy(folder / "before.py", tmp_path)
    take = ("import", "apscheduler", "before:scheduler", "--prefix", "", "--as-code")
    # Exits with 1: one job cannot be imported.
    printed = run(tmp_path, "-m", "duly", "--app", "after:app", *take, code=1)
    assert "job cleaning" in printed
    by_hand = "    catch_up=1,\n    catch_up_window=3600,\n"
    schedules = text.replace(by_hand, "")
    blocks = [block for block in printed.split("\n\n") if "app.schedule(" in block]
    assert len(blocks) == 5
    for block in blocks[1:]:  # the first one has its anchor
        assert block.strip() in schedules


@pytest.mark.spec("N88")
def test_the_tests_of_the_asyncpg_application_pass(postgres_server: str):
    with fresh_database(postgres_server) as url:
        pytest_ = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
        assert "4 passed" in run(EXAMPLES / "fastapi_async", *pytest_, DULY_TEST_URL=url)


def test_the_tests_of_the_order_workflow_pass_on_both_stores(postgres_server: str):
    folder, pytest_ = EXAMPLES / "order_workflow", ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "6 passed" in run(folder, *pytest_)
    with fresh_database(postgres_server) as url:
        assert "6 passed" in run(folder, *pytest_, DULY_TEST_URL=url)


def test_the_order_workflow_runs_in_a_process(tmp_path: Path):
    script = str(shutil.copy(EXAMPLES / "order_workflow/shop.py", tmp_path))
    assert run(tmp_path, script).splitlines()[1:] == [
        "to ada@example.org: Your lamp is on its way: Z9",
        "done: Z9",
    ]
