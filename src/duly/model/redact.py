"""Arguments that nobody is shown: `Annotated[str, Redact]`.

The store holds them, for the function needs them; whatever is made for people shows a mask. Workers
mark them in the published schema (`writeOnly`), so that those without the code hide them too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, cast, get_args, get_origin

import msgspec

MASK = "***"
SHORTEST = 3
"""A shorter value is no secret, and would turn a text into stars."""


class Redact:
    """Marks an argument that is never shown: `token: Annotated[str, Redact]`."""


def is_redacted(hint: object) -> bool:
    if get_origin(hint) is not Annotated:
        return False
    return any(extra is Redact or isinstance(extra, Redact) for extra in get_args(hint)[1:])


def redacted_in(schema: Mapping[str, Any]) -> frozenset[str]:
    """The arguments that a published schema marks."""
    properties: Mapping[str, dict[str, Any] | bool] = schema.get("properties", {})
    return frozenset(
        name
        for name, part in properties.items()
        if not isinstance(part, bool) and part.get("writeOnly") is True
    )


def mask(args: str, names: Collection[str]) -> str:
    """The stored arguments as they may be shown."""
    if not names:
        return args
    given = msgspec.json.decode(args, type=dict[str, Any])
    shown = {name: MASK if name in names else value for name, value in given.items()}
    return msgspec.json.encode(shown).decode()


def scrub(text: str, args: str, names: Collection[str]) -> str:
    """A text in which the values of these arguments do not occur."""
    if not names:
        return text
    given = msgspec.json.decode(args, type=dict[str, Any])
    values = {form for name in names if name in given for form in _forms(given[name])}
    for value in sorted(values, key=len, reverse=True):
        text = text.replace(value, MASK)
    return text


def _forms(value: object) -> Iterator[str]:
    """How a value, or what it contains, may be written in a message."""
    if isinstance(value, dict):
        for child in cast(dict[str, object], value).values():
            yield from _forms(child)
    elif isinstance(value, list):
        for child in cast(list[object], value):
            yield from _forms(child)
    elif value is not None and not isinstance(value, bool):
        plain = str(value)
        # As itself, as in a traceback, as in JSON.
        for form in (plain, repr(plain)[1:-1], msgspec.json.encode(plain).decode()[1:-1]):
            if len(form) >= SHORTEST:
                yield form
