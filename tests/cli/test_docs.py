"""`duly docs` says where the documentation is, and prints the guide that is in the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

import duly
from duly.cli import docs
from tests.cli.terminal import Terminal

GUIDE = files("duly.cli").joinpath("assistants.md")
MAX_LINES = 200


def test_the_guide_is_printed_as_it_is(terminal: Terminal) -> None:
    text = GUIDE.read_text(encoding="utf-8")

    assert terminal.run("docs", "--for-assistants").out == text
    assert terminal.run("docs", "--for-assistants", "--json").json == {
        "version": duly.__version__,
        "guide": text,
    }


def test_the_guide_fits_into_a_context() -> None:
    assert len(GUIDE.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_a_checkout_has_the_pages(terminal: Terminal) -> None:
    said = terminal.run("docs").out

    assert "docs/index.md" in said
    assert "make docs-site" in said
    assert str(GUIDE) in said


def test_an_installed_package_has_the_guide_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(duly, "__file__", str(tmp_path / "lib" / "duly" / "__init__.py"))

    assert docs._pages() is None
