"""Writes calls and JSON data as Python source that `ruff format` leaves unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, cast

WIDTH = 88
"""The line length that ruff has without a configuration."""
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class Name(NamedTuple):
    """Source that is written as it is."""

    text: str


class Invocation(NamedTuple):
    """A call with positional and keyword arguments."""

    target: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = NO_OPTIONS


def source(value: Any, *, indent: int = 0, before: str = "", exploded: bool = False) -> str:
    """The value as source, on one line if it fits and is not to be `exploded`.

    `before` is the text before it on its line. ruff keeps items on separate lines if the last one
    ends in a comma.
    """
    line = _line(value)
    opening, items, closing = _parts(value)
    is_short = indent + len(before) + len(line) + len(",") <= WIDTH
    if not items or (is_short and not exploded):
        return before + line
    inner = indent + 4
    written = (f"{' ' * inner}{source(v, indent=inner, before=name)}," for name, v in items)
    return "\n".join([before + opening, *written, " " * indent + closing])


def _line(value: Any) -> str:
    opening, items, closing = _parts(value)
    return opening + ", ".join(name + _line(item) for name, item in items) + closing


def _parts(value: Any) -> tuple[str, list[tuple[str, Any]], str]:
    """The opening, the items with the text before them, and the closing."""
    if isinstance(value, Name):
        return value.text, [], ""
    if isinstance(value, Invocation):
        return f"{value.target}(", [*_plain(value.args), *_named(value.kwargs)], ")"
    if isinstance(value, Mapping):
        named = cast("Mapping[str, Any]", value)
        return "{", [(f"{text(str(name))}: ", item) for name, item in named.items()], "}"
    if isinstance(value, list | tuple):
        return "[", _plain(cast("Iterable[Any]", value)), "]"
    # ruff writes an exponent without its plus sign.
    return text(value) if isinstance(value, str) else repr(value).replace("e+", "e"), [], ""


def _plain(items: Iterable[Any]) -> list[tuple[str, Any]]:
    return [("", item) for item in items]


def _named(items: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(f"{name}=", item) for name, item in items.items()]


def text(value: str) -> str:
    """A string in the quotes that ruff prefers: double ones, unless single ones escape less."""
    written = repr(value)
    content = written[1:-1]
    if written[0] == '"':
        return written
    if "'" not in value:
        return written if '"' in value else f'"{content}"'
    # It has both, and `repr` has escaped the single ones.
    if value.count('"') > value.count("'"):
        return written
    return '"' + content.replace("\\'", "'").replace('"', '\\"') + '"'


def comment(said: str) -> str:
    """A comment of one line, whatever the text contains."""
    return f"# {' '.join(''.join(c if c.isprintable() else ' ' for c in said).split())}"
