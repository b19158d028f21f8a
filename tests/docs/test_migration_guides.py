"""The guides for moving to duly: alike in form, and with code that is at least valid Python."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ["apscheduler", "celery", "django-q2", "huey", "procrastinate", "rq"]
SECTIONS = ["Before and after", "What has no equivalent", "Run both side by side"]


@pytest.mark.spec("N87")
def test_there_is_a_guide_for_each_library():
    guides = sorted((ROOT / "docs/how-to").glob("from-*.md"))
    assert [guide.stem.removeprefix("from-") for guide in guides] == SOURCES


@pytest.mark.spec("N87")
@pytest.mark.parametrize("source", SOURCES)
def test_a_guide_maps_the_library_and_says_what_does_not_map(source: str):
    text = (ROOT / f"docs/how-to/from-{source}.md").read_text(encoding="utf-8")
    assert [s for s in re.findall(r"^## (.+)$", text, re.M) if s in SECTIONS] == SECTIONS
    assert len(re.findall(r"^\| .*\| .*\|$", text, re.M)) > 30
    before = re.findall(r"^ *```py\n(.*?)^ *```$", text, re.M | re.S)
    after = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    assert len(before) >= 1
    assert len(after) >= 2
    for block in before:
        lines = block.splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip())
        compile("\n".join(line[indent:] for line in lines), source, "exec")
