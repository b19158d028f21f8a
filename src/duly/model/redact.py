"""Redacted arguments: `Annotated[str, Redact]`.

The store has the values, since the function needs them; everything that is shown to people has a
mask instead. Workers mark redacted arguments in the published schema (`writeOnly`), so that
processes without the code hide them too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from duly.model.stored_values import read

MASK = "***"
MIN_SCRUBBED = 3
"""A shorter value is not a secret, and masking it would turn text into stars."""


class Redact:
    """Marks an argument whose value is never shown: `token: Annotated[str, Redact]`."""


def is_redacted(hint: object) -> bool:
    """Whether an argument is marked, as a whole or in one of its alternatives."""
    if get_origin(hint) is Annotated:
        inner, *extras = get_args(hint)
        return any(map(_is_mark, extras)) or is_redacted(inner)
    if get_origin(hint) in (Union, UnionType):
        return any(map(is_redacted, get_args(hint)))
    return any(map(is_redacted, _named_by(hint)))


def contains_mark(hint: object) -> bool:
    """Whether there is a mark anywhere inside, including in the fields of a class."""
    seen: dict[int, object] = {}
    stack = [hint]
    while stack:
        hint = stack.pop()
        if _is_mark(hint):
            return True
        if id(hint) not in seen:
            seen[id(hint)] = hint
            stack += [get_origin(hint), *get_args(hint), *_named_by(hint), *_fields(hint)]
    return False


def _is_mark(extra: object) -> bool:
    return extra is Redact or isinstance(extra, Redact)


def _named_by(hint: object) -> Iterator[object]:
    """The types behind `type Token = ...` or NewType."""
    for attribute in ("__value__", "__supertype__"):
        # An alias is resolved here; if that fails, msgspec reports it.
        with suppress(AttributeError, NameError):
            yield getattr(hint, attribute)


def _fields(hint: object) -> Iterable[object]:
    try:
        return get_type_hints(hint, include_extras=True).values() if isinstance(hint, type) else ()
    except Exception:  # Unresolvable names: msgspec reports them, if it needs them.
        return ()


def redacted_in(schema: Mapping[str, Any]) -> frozenset[str]:
    """The arguments that a published schema marks."""
    properties: Mapping[str, dict[str, Any] | bool] = schema.get("properties", {})
    return frozenset(
        name
        for name, part in properties.items()
        if not isinstance(part, bool) and part.get("writeOnly") is True
    )


ALL_NAMES = frozenset("*")
"""All arguments, whatever their names: a schema that cannot be read may hide any of them."""


def mask(args: str, names: Collection[str]) -> str:
    """The stored arguments as they may be shown."""
    if not names:
        return args
    given = read(args, dict[str, Any], {})
    return msgspec.json.encode(_shown(given, given if names == ALL_NAMES else names)).decode()


def unmask(given: Mapping[str, Any], names: Collection[str], stored: str) -> dict[str, Any]:
    """Arguments in their shown form, with each mask replaced by the stored value.

    Without a stored value the mask stays; see `masked`.
    """
    hidden = masked(given, names)
    # Stored values that cannot be read only matter if a mask refers to them.
    return _filled(given, names, msgspec.json.decode(stored, type=dict[str, Any]) if hidden else {})


def unmask_entries(
    given: Sequence[Mapping[str, Any]], names: Collection[str], stored: str
) -> list[dict[str, Any]]:
    """The same for a list of entries, which may have been moved, or changed in place."""
    hidden = any(masked(entry, names) for entry in given)
    entries = msgspec.json.decode(stored, type=list[dict[str, Any]]) if hidden else []
    free: dict[int, dict[str, Any]] = dict(enumerate(entries))
    before: dict[int, dict[str, Any]] = {}
    for index, entry in enumerate(given):
        same = [place for place in free if _shown(free[place], names) == entry]
        if same:
            before[index] = free.pop(index if index in same else same[0])
    # If entries were added or removed, changed ones cannot be matched.
    if len(given) == len(entries):
        before = free | before
    return [_filled(entry, names, before.get(index, {})) for index, entry in enumerate(given)]


def _filled(
    given: Mapping[str, Any], names: Collection[str], stored: Mapping[str, Any]
) -> dict[str, Any]:
    kept = {name: stored[name] for name in masked(given, names) if name in stored}
    return {**given, **kept}


def masked(given: Mapping[str, Any], names: Collection[str]) -> list[str]:
    """The arguments whose value is only the mask."""
    return [name for name, value in given.items() if name in names and value == MASK]


def _shown(given: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: MASK if name in names else value for name, value in given.items()}


def scrub(text: str, secrets: Iterable[object]) -> str:
    """The text with these values masked."""
    forms = {form for secret in secrets for form in _forms(secret) if len(form) >= MIN_SCRUBBED}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text


def _forms(value: object) -> Iterator[str]:
    """The ways in which a value may be written in a message; its parts are handled separately."""
    if type(value) not in _PLAIN:
        for write in (str, repr, _iso, _json):
            with suppress(Exception):  # A class may define its text as it likes, or fail.
                yield write(value)
    if isinstance(value, str):
        yield from _forms_of_text(str.__str__(value))
    elif isinstance(value, bytes | bytearray | memoryview):
        data = bytes(cast(bytes, value))
        yield from (repr(data)[2:-1], _json(data))
        yield from _forms_of_text(data.decode(errors="replace"))


_PLAIN = (str, bytes, bool, type(None), dict, list, tuple, set, frozenset)


def _forms_of_text(text: str) -> tuple[str, ...]:
    return text, repr(text)[1:-1], _json(text)


def _iso(value: Any) -> str:
    return str(value.isoformat())


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode().removeprefix('"').removesuffix('"')
