"""The API reference has every public name, with its signature and docstring."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from functools import cache

import pytest

import duly
from tools.docsite import api, nav

MODULES = [
    "duly.errors", "duly.endpoints", "duly.gateway", "duly.index", "duly.server", "duly.testing",
    "duly.webhooks",
]  # fmt: skip


@cache
def pages() -> dict[str, str]:
    return dict(api.pages())


@cache
def everything() -> str:
    return "\n".join(pages().values())


@cache
def sections() -> dict[str, str]:
    """By anchor."""
    parts = re.split(r"^##+ [^\n]*\{ #(\S+) \}\n", everything(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def section(qualified: str) -> str:
    assert qualified in sections(), f"{qualified} is on no page: see AREAS in tools/docsite/api.py"
    return sections()[qualified]


@pytest.mark.parametrize("name", duly.__all__)
def test_every_public_name_has_a_section(name: str) -> None:
    value = getattr(duly, name)
    qualified = f"duly.{name}"
    if (inspect.isclass(value) and issubclass(value, duly.DulyError)) or name == "CalendarEnds":
        qualified = f"duly.errors.{name}"
    text = section(qualified)

    assert api.doc(value) in text
    if inspect.isclass(value):
        assert issubclass(value, enum.Enum) or f"class {name}" in text
        check_members(value, qualified)
    else:
        assert f"def {name}(" in text


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_of_a_module_has_a_section(module: str) -> None:
    for name in api.names_of(importlib.import_module(module)):
        value = getattr(importlib.import_module(module), name)
        assert api.doc(value) in section(f"{module}.{name}")
        if inspect.isclass(value):
            check_members(value, f"{module}.{name}")


def check_members(kind: type, qualified: str) -> None:
    """Each method and property that a user could find with dir() is described."""
    if kind.__name__ in api.WITHOUT_MEMBERS:
        return
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        owner = next((base for base in kind.__mro__ if name in vars(base)), object)
        is_method = inspect.isfunction(member) or isinstance(member, classmethod | staticmethod)
        if name.startswith("_") or owner.__module__.partition(".")[0] != "duly":
            continue
        if name in api.private(kind):
            continue
        if is_method or isinstance(member, property):
            text = section(f"{qualified}.{name}")
            assert f"def {name}(" in text or f"```python\n{name}" in text
            assert (inspect.getdoc(member) or "") in text


def test_no_name_has_two_sections() -> None:
    anchors = re.findall(r"\{ #(\S+) \}$", everything(), re.MULTILINE)

    assert len(anchors) == len(set(anchors))


def test_signatures_can_be_read() -> None:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", everything(), re.M | re.S))

    assert not re.search(r"<[\w.]+ object at|<factory>|<function|Unpack\[|typing\.|msgspec\.", code)
    assert max(map(len, code.splitlines())) <= 120


def test_options_are_spelled_out() -> None:
    assert "    retry: Retry | None = ...,\n" in section("duly.Duly.mutation")
    assert "    catch_up: int = ...,\n" in section("duly.Duly.schedule")


def test_attributes_are_shown_with_the_words_below_them() -> None:
    assert "| `database` | `bool` | Whether the database answers. |" in everything()
    assert "| `schedules` | `Schedules` | " in section("duly.Duly")


def test_what_is_free_to_change_is_left_out() -> None:
    reference = (nav.ROOT / "docs/reference.md").read_text(encoding="utf-8")

    for name in set().union(*api.PRIVATE.values()):
        assert f"`{name}" in reference, name
    assert "#duly.Duly.core }" not in everything()
