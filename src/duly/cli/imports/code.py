"""Writes the entries of another system as code: `app.schedule(…)` for each of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from duly.app import Duly, operations
from duly.cli.imports.entry import Entry, NotImportable, ReadEntry
from duly.cli.imports.match import Matcher, NoFit
from duly.cli.imports.source import WIDTH, Invocation, Name, comment, source
from duly.clock import to_ms
from duly.errors import DulyError, UnknownFunction
from duly.functions.function import Function
from duly.model.trigger import Every


class Importable(NamedTuple):
    module: str
    name: str


class Declaration(NamedTuple):
    """One entry as code."""

    where: str
    key: str | None
    code: str
    reason: str | None = None
    """Why it is only a comment."""
    imports: frozenset[Importable] = frozenset()
    """The names that the code needs."""


def declarations(app: Duly, matcher: Matcher, found: Iterable[ReadEntry]) -> list[Declaration]:
    """All entries as code; the database is not needed."""
    names = _Names(app)
    return [_declaration(app, names, matcher, entry) for entry in matcher.keyed(found)]


def module(declared: Sequence[Declaration]) -> str:
    """The code of a module that declares them."""
    names = frozenset[Importable]().union(*(each.imports for each in declared))
    return "\n\n".join([*_imports(names), *(each.code for each in declared)])


# Names -------------------------------------------------------------------------------------------


class _Names:
    """The names under which the code can import the app and its functions."""

    def __init__(self, app: Duly) -> None:
        path, _, name = (app.import_path() or "app:app").rpartition(":")
        self.app_name = Importable(Path(path).stem if path.endswith(".py") else path, name)
        # The first function that has a name gets it.
        self._owners: dict[str, Function[..., Any]] = {}
        self._known: dict[str, Function[..., Any]] = {}
        for function in app.functions.values():
            self._known |= dict.fromkeys((*function.traits.aliases, function.name), function)
            if _is_found(function):
                self._owners.setdefault(function.__name__, function)

    def function(self, name: str) -> Function[..., Any]:
        """The function of the app with this name or alias."""
        if name not in self._known:
            raise UnknownFunction(name, self._known)
        return self._known[name]

    def of(self, function: Function[..., Any]) -> Importable | None:
        """Where a function can be imported from; None if it cannot."""
        name = function.__name__
        if name in (self.app_name.name, "Every", "datetime") or not self._owns(function, name):
            return None
        found = function.__module__
        return Importable(self.app_name.module if found == "__main__" else found, name)

    def _owns(self, function: Function[..., Any], name: str) -> bool:
        return self._owners.get(name) is function


def _is_found(function: Function[..., Any]) -> bool:
    return getattr(sys.modules.get(function.__module__), function.__name__, None) is function


def _imports(names: Iterable[Importable]) -> Iterator[str]:
    """One block for each group, as isort sorts them: standard library, duly, the user's modules."""
    by_module: dict[str, list[str]] = {}
    for found, name in sorted(names):
        by_module.setdefault(found, []).append(name)
    for first in ("datetime", "duly"):
        if first in by_module:
            yield _import(first, by_module.pop(first))
    if by_module:
        yield "\n".join(_import(*each) for each in by_module.items())


def _import(found: str, names: list[str]) -> str:
    # Constants come before classes, and classes before everything else.
    names = sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    line = f"from {found} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"from {found} import (", *(f"    {name}," for name in names), ")"])


# Entries -----------------------------------------------------------------------------------------


def _declaration(app: Duly, names: _Names, matcher: Matcher, entry: ReadEntry) -> Declaration:
    if isinstance(entry, NotImportable):
        return _only_a_comment(entry, entry.reason)
    try:
        function_name, args = matcher.match(entry)
        function = names.function(function_name)
        options = _options(entry)
        call = function.using(**entry.options).bind(**args)
        operations.check_declaration(app, entry.key, call, options)
    except (NoFit, DulyError) as refused:
        return _only_a_comment(entry, str(refused))
    needed = {names.app_name, *(_MODULES[type(v)] for v in options.values() if type(v) in _MODULES)}
    if (importable := names.of(function)) is not None:
        target = importable.name
        needed.add(importable)
    else:
        target = source(Invocation(f"{names.app_name.name}.function", (function.name,)))
    if entry.options:
        target = source(Invocation(f"{target}.using", (), entry.options))
    bound = Invocation(f"{target}.bind", (), args) if args else Name(target)
    written = {name: _written(value) for name, value in options.items()}
    schedule = Invocation(f"{names.app_name.name}.schedule", (entry.key, bound), written)
    code = "\n".join([*map(comment, _notes(entry)), source(schedule, exploded=True)])
    return Declaration(entry.where, entry.key, code, imports=frozenset(needed))


def _only_a_comment(entry: ReadEntry, reason: str) -> Declaration:
    said = [comment(f"note: not imported: {entry.where}: {entry.text}"), comment(reason)]
    return Declaration(entry.where, entry.key, "\n".join(said), reason)


def _options(entry: Entry) -> dict[str, Any]:
    """The options of `app.schedule`, as Python values."""
    given = {**entry.times, **entry.made_with}
    options: dict[str, Any] = {}
    anchor = given.pop("anchor_at", None)
    if (milliseconds := given.pop("every_ms", None)) is not None:
        options["every"] = _number(milliseconds / 1000)
        if anchor is not None:
            options["every"] = Every(milliseconds, to_ms(datetime.fromisoformat(anchor)))
    for name, value in given.items():
        if name in ("at", "start_at", "end_at"):
            options[name] = datetime.fromisoformat(value)
        elif (name, value) != ("tz", "UTC"):
            options[name] = _number(value) if isinstance(value, float) else value
    return options


def _number(value: float) -> float:
    return round(value) if value == round(value) else value


_MODULES = {datetime: Importable("datetime", "datetime"), Every: Importable("duly", "Every")}


def _written(value: Any) -> Any:
    """A value for `source`."""
    if isinstance(value, datetime):
        return Invocation("datetime.fromisoformat", (value.isoformat(),))
    if isinstance(value, Every):
        return Invocation("Every", (value.milliseconds,), {"anchor": value.anchor})
    return value


def _notes(entry: Entry) -> Iterator[str]:
    if (anchor := entry.made_with.get("anchor_at")) is not None:
        yield f"note: the interval is counted from {anchor}"
    for part in entry.lost:
        yield f"note: not imported: {part}"
