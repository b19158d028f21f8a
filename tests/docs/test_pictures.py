"""The pictures of the documentation show what the commands print."""

import ast
import html
import math
import re
from pathlib import Path

import pytest

from duly.cli.dev import story
from tools import pictures, recording


def words(svg: str) -> str:
    return " ".join(re.findall(r">([^<>]+)</text>", svg))


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_shows_what_is_printed_now(name):
    drawn = pictures.PICTURES[name]()
    stored = (pictures.IMAGES / name).read_text(encoding="utf-8")

    assert words(drawn) == words(stored), "run `make pictures`"
    assert "is Saturday in days off" in words(stored).replace("&#160;", " ")


def story_messages() -> list[str]:
    """What the demo of `duly dev` says, as far as the text is always the same."""
    tree = ast.parse(Path(story.__file__).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    said = [call.args[0] for call in calls if ast.unparse(call.func) == "self._view.say"]
    texts = [each.value for each in said if isinstance(each, ast.Constant)]
    assert len(texts) > 4
    return [str(text) for text in texts]


@pytest.mark.parametrize("message", story_messages())
def test_the_recording_shows_what_the_demo_says_now(message):
    stored = (pictures.IMAGES / "dev.svg").read_text(encoding="utf-8")
    shown = html.unescape(words(stored)).replace("\N{NO-BREAK SPACE}", " ")

    assert message in " ".join(shown.split()), "run `make pictures`"


def test_a_recording_shows_each_line_at_its_time_and_scrolls():
    rows = recording.ROWS + 2
    lines = [recording.Line(float(row), f"line {row}") for row in range(rows)]

    svg = recording.draw(lines, "many lines", "many")

    length = lines[-1].at + recording.PAUSE
    for row in (0, 1, rows - 1):
        percent = math.floor(row / length * 10_000) / 100
        assert f"many-{row} {{ 0% {{ opacity: 0 }} {percent:g}% {{ opacity: 1 }} }}" in svg
        assert re.search(rf'class="[^"]*many-l{row}"[^>]*>line&#160;{row}<', svg)
    scrolled = f"translateY({-2 * recording.LINE_HEIGHT:.1f}px)"
    assert svg.count(scrolled) == 2  # in the animation, and for viewers without it
    height = re.search(r'viewBox="0 0 \S+ ([\d.]+)"', svg)
    assert height is not None
    assert float(height[1]) < (rows + 3) * recording.LINE_HEIGHT


@pytest.mark.parametrize("name", ["dev.svg", "preview.svg"])
def test_a_picture_loads_nothing(name):
    stored = (pictures.IMAGES / name).read_text(encoding="utf-8")

    assert re.findall(r"(?:href|src)=|url\((?!#)|@import", stored) == []
