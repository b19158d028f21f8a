"""Which interpreters `make test-all` finds, and what runs beside a part."""

from pathlib import Path

import pytest

from tools import run_tests


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return tmp_path


def put(file: Path, code: int = 0) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\nexit {code}\n")
    file.chmod(0o755)
    return str(file)


def test_the_newest_that_pyenv_keeps_is_found(machine: Path):
    for patch in ("9", "10", "11t", "2"):
        put(machine / f"pyenv/versions/3.12.{patch}/bin/python3.12")
    assert run_tests.interpreter("3.12") == f"{machine}/pyenv/versions/3.12.10/bin/python3.12"
    assert run_tests.interpreter("3.13") is None


def test_one_in_the_path_comes_first(machine: Path):
    put(machine / "bin/python3.12")
    put(machine / "pyenv/versions/3.12.1/bin/python3.12")
    assert run_tests.interpreter("3.12") == "python3.12"


def test_a_stand_in_for_what_is_not_installed_is_passed_over(machine: Path):
    put(machine / "bin/python3.12", 127)
    kept = put(machine / "pyenv/versions/3.12.1/bin/python3.12")
    assert run_tests.interpreter("3.12") == kept


@pytest.mark.parametrize("code", [0, 1])
def test_what_runs_beside_a_part_is_shown_after_it_and_fails_it(
    code: int, capfd: pytest.CaptureFixture[str]
):
    beside = ["sh", "-c", f"echo meanwhile; exit {code}"]
    timing = run_tests.run(run_tests.Part("both", [["echo", "first"]], beside))
    assert timing.passed == (code == 0)
    shown = capfd.readouterr().out
    assert shown.index("\nfirst\n") < shown.index("\nmeanwhile\n")
