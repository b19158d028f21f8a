"""llms.txt lists every page, in the form of llmstxt.org, and each is there in Markdown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.docsite import llms, nav

LINK = re.compile(r"^- \[([^\]]+)\]\(([^)]+)\)(?:: .+)?$")


def test_the_index_has_the_form_that_assistants_expect(site: Path) -> None:
    lines = (site / "llms.txt").read_text(encoding="utf-8").splitlines()

    assert lines[0] == "# duly"
    assert lines[2].startswith("> ")
    headings = [line.removeprefix("## ") for line in lines if line.startswith("#")][1:]
    assert headings == ["Guide", "Start", "Guides", "Operate", "Reference", "Optional"]
    listed = lines[lines.index("## Guide") :]
    assert [line for line in listed if line and line[0] != "#" and not LINK.match(line)] == []


def test_every_page_is_listed_and_there(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    linked = [match[2] for line in text.splitlines() if (match := LINK.match(line))]

    assert [path for path in linked if not (site / path).is_file()] == []
    assert {entry.path for entry in nav.entries()} <= set(linked)


def test_the_whole_has_the_guide_and_every_page_but_those_on_the_inside(site: Path) -> None:
    whole = (site / "llms-full.txt").read_text(encoding="utf-8")

    assert whole.startswith("# duly, for coding assistants")
    for entry in nav.entries():
        assert (f"<!-- {entry.path} -->" in whole) == (entry.group != "Internals")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# A\n\nOne [link](x.md), here. Two.\n", "One link, here."),
        ("# A\n\n| a |\n|---|\n", ""),
        ("# A\n", ""),
    ],
)
def test_a_page_is_described_by_its_first_sentence(text: str, sentence: str) -> None:
    assert llms.first_sentence(text) == sentence
    assert llms.title(text) == "A"
