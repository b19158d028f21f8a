"""Plans a whole import, then writes it.

The API first checks every schedule without creating it. Refusals are therefore known before
anything is written, and existing schedules are compared with the API's own representation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from duly.cli.api import Api, ApiError
from duly.cli.imports.entry import Entry, NotImportable, ReadEntry
from duly.nearest import did_you_mean

COMPARED = ("function", "args", "options", "cron", "tz", "every_ms", "at")
TIMES = ("cron", "tz", "every_ms", "at")
Kind = Literal["new", "change", "unchanged", "cannot"]


class Rule(NamedTuple):
    """Entries that match the pattern call this function."""

    pattern: re.Pattern[str]
    function: str


class Change(NamedTuple):
    """What an import does with one entry of the source."""

    kind: Kind
    where: str
    text: str
    key: str | None = None
    would: dict[str, Any] | None = None
    """The schedule as it would be."""
    stands: dict[str, Any] | None = None
    """The existing schedule."""
    body: dict[str, Any] | None = None
    reason: str | None = None
    lost: tuple[str, ...] = ()

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """The fields that differ: before and after."""
        if self.would is None or self.stands is None:
            return {}
        return differences(self.stands, self.would)


def differences(stands: Mapping[str, Any], would: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (stands[name], would[name]) for name in COMPARED if stands[name] != would[name]}


class Planner:
    """Plans the change for each entry, without writing anything."""

    def __init__(
        self,
        api: Api,
        known: Mapping[str, Mapping[str, Any]],
        prefix: str,
        rules: Sequence[Rule],
        function: str | None,
    ) -> None:
        """`known`: the parameters of every function, in order."""
        self._api, self._known = api, known
        self._prefix, self._rules, self._function = prefix, rules, function

    def plan(self, found: Iterable[ReadEntry]) -> Iterator[Change]:
        seen: set[str] = set()
        for entry in found:
            if isinstance(entry, NotImportable):
                yield Change("cannot", entry.where, entry.text, reason=entry.reason)
                continue
            key = self._prefix + entry.key
            if key in seen:
                yield _refused(entry, key, "another entry has the same key")
                continue
            seen.add(key)
            yield self._change(entry, key)

    def _change(self, entry: Entry, key: str) -> Change:
        try:
            body = self._body(entry, key)
            would = self._api.post("/schedules/check", body={**body, **entry.made_with})
        except _NoFit as refused:
            return _refused(entry, key, str(refused))
        except ApiError as error:
            if error.status not in (404, 409, 410, 422):
                raise
            return _refused(entry, key, self._said(error))
        stands = self._standing(key)
        if stands is None:
            kind: Kind = "new"
        elif not differences(stands, would):
            kind = "unchanged"
        elif stands["declared"]:
            return _refused(entry, key, "this key is declared in code; change it there")
        else:
            kind = "change"
        made = {**body, **entry.made_with} if kind == "new" else body
        return Change(kind, entry.where, entry.text, key, would, stands, made, lost=entry.lost)

    def _said(self, error: ApiError) -> str:
        return (
            f"{error}; {error.hint}" if error.hint and error.hint not in str(error) else str(error)
        )

    def _standing(self, key: str) -> dict[str, Any] | None:
        try:
            return dict(self._api.get("/schedules/named", key=key))
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    # Functions and arguments ---------------------------------------------------------------------

    def _body(self, entry: Entry, key: str) -> dict[str, Any]:
        function = self._function_for(entry)
        return {
            "key": key,
            "function": function,
            "args": _json(self._arguments(entry, function)),
            "options": dict(entry.options),
            **entry.times,
        }

    def _function_for(self, entry: Entry) -> str:
        for rule in self._rules:
            if rule.pattern.search(entry.calls):
                return rule.function
        if self._function is not None:
            return self._function
        if entry.offered:
            raise _NoFit("no --map matches it, and --function is not given")
        short = re.split(r"[.:]", entry.calls)[-1]
        name = next((name for name in (entry.calls, short) if name in self._known), None)
        if name is None:
            meant = did_you_mean(short, self._known) or ""
            raise _NoFit(f"there is no function {short!r}; choose one with --map {meant}".rstrip())
        return name

    def _arguments(self, entry: Entry, function: str) -> dict[str, Any]:
        takes = self._known.get(function, entry.offered)
        if self._function == function and "command" in entry.offered and "command" not in takes:
            raise _NoFit(f"{function}() has no parameter `command`")
        arguments = {name: value for name, value in entry.offered.items() if name in takes}
        names = [name for name in takes if name not in entry.kwargs]
        if len(entry.args) > len(names):
            raise _NoFit(f"{function}() takes fewer arguments than the entry passes")
        return {**arguments, **dict(zip(names, entry.args, strict=False)), **entry.kwargs}


class _NoFit(Exception):
    """Why the entry cannot call a function."""


def _refused(entry: Entry, key: str, reason: str) -> Change:
    return Change("cannot", entry.where, entry.text, key, reason=reason)


def _json(arguments: dict[str, Any]) -> dict[str, Any]:
    for name, value in arguments.items():
        try:
            json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise _NoFit(f"argument {name} cannot be written as JSON") from error
    return arguments


# Writing -----------------------------------------------------------------------------------------


def write(api: Api, changes: Sequence[Change]) -> Iterator[Change]:
    """Write new and changed schedules one by one; yield each after it is written."""
    for change in changes:
        assert change.body is not None
        if change.kind == "new":
            api.post("/schedules", body=change.body)
        else:
            assert change.stands is not None
            api.patch("/schedules/{}", change.stands["id"], body=_patch(change))
        yield change


def _patch(change: Change) -> dict[str, Any]:
    assert change.body is not None
    assert change.stands is not None
    changed = change.changed.keys()
    patch = {name: change.body[name] for name in ("function", "args", "options")}
    if not changed & patch.keys():
        patch = {}
    if changed & set(TIMES):
        patch |= {name: change.body[name] for name in TIMES if name in change.body}
    return {"version": change.stands["version"], **patch}
