"""The pictures of the documentation show what the commands print."""

import re

import pytest

from tools import pictures


def words(svg: str) -> str:
    return " ".join(re.findall(r">([^<>]+)</text>", svg))


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_shows_what_is_printed_now(name):
    drawn = pictures.PICTURES[name]()
    stored = (pictures.IMAGES / name).read_text(encoding="utf-8")

    assert words(drawn) == words(stored), "run `make pictures`"
    assert "is team day in days off" in words(stored).replace("&#160;", " ")
