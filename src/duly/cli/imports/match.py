"""Finds the function that an entry of another system calls, and its arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from duly.cli.imports.entry import Entry, NotImportable, ReadEntry
from duly.nearest import did_you_mean


class Rule(NamedTuple):
    """Entries that match the pattern call this function."""

    pattern: re.Pattern[str]
    function: str


class NoFit(Exception):
    """Why the entry cannot call a function."""


class Matcher:
    """Gives each entry a key, a function and arguments."""

    def __init__(
        self,
        known: Mapping[str, Mapping[str, Any]],
        prefix: str,
        rules: Sequence[Rule],
        function: str | None,
    ) -> None:
        """`known`: the parameters of every function, in order."""
        self._known, self._prefix = known, prefix
        self._rules, self._function = rules, function

    def keyed(self, found: Iterable[ReadEntry]) -> Iterator[ReadEntry]:
        """The entries with their complete keys; one whose key is taken cannot be imported."""
        seen: set[str] = set()
        for entry in found:
            if isinstance(entry, NotImportable):
                yield entry
                continue
            key = self._prefix + entry.key
            if key in seen:
                reason = "another entry has the same key"
                yield NotImportable(entry.where, entry.text, reason, key)
            else:
                seen.add(key)
                yield entry._replace(key=key)

    def match(self, entry: Entry) -> tuple[str, dict[str, Any]]:
        """The name of the function, and its arguments by name; raises `NoFit`."""
        function = self._function_for(entry)
        return function, _json(self._arguments(entry, function))

    def _function_for(self, entry: Entry) -> str:
        for rule in self._rules:
            if rule.pattern.search(entry.calls):
                return rule.function
        if self._function is not None:
            return self._function
        if entry.offered:
            raise NoFit("no --map matches it, and --function is not given")
        short = re.split(r"[.:]", entry.calls)[-1]
        name = next((name for name in (entry.calls, short) if name in self._known), None)
        if name is None:
            meant = did_you_mean(short, self._known) or ""
            raise NoFit(" ".join(f"there is no function {short!r}; {meant} use --map".split()))
        return name

    def _arguments(self, entry: Entry, function: str) -> dict[str, Any]:
        takes = self._known.get(function, entry.offered)
        if self._function == function and "command" in entry.offered and "command" not in takes:
            raise NoFit(f"{function}() has no parameter `command`")
        arguments = {name: value for name, value in entry.offered.items() if name in takes}
        names = [name for name in takes if name not in entry.kwargs]
        if len(entry.args) > len(names):
            raise NoFit(f"{function}() takes fewer arguments than the entry passes")
        return {**arguments, **dict(zip(names, entry.args, strict=False)), **entry.kwargs}


def _json(arguments: dict[str, Any]) -> dict[str, Any]:
    for name, value in arguments.items():
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise NoFit(f"argument {name} cannot be written as JSON") from error
    return arguments
