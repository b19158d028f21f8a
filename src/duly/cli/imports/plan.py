"""Plans a whole import, then writes it.

The API first checks every schedule without creating it. Refusals are therefore known before
anything is written, and existing schedules are compared with the API's own representation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from duly.cli.api import Api, ApiError
from duly.cli.imports.entry import Entry, NotImportable, ReadEntry
from duly.cli.imports.match import Matcher, NoFit

COMPARED = ("function", "args", "options", "cron", "tz", "every_ms", "at")
TIMES = ("cron", "tz", "every_ms", "at")
Kind = Literal["new", "change", "unchanged", "cannot"]


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

    def __init__(self, api: Api, matcher: Matcher) -> None:
        self._api, self._matcher = api, matcher

    def plan(self, found: Iterable[ReadEntry]) -> Iterator[Change]:
        for entry in self._matcher.keyed(found):
            if isinstance(entry, NotImportable):
                yield _refused(entry, entry.reason)
            else:
                yield self._change(entry)

    def _change(self, entry: Entry) -> Change:
        try:
            body = self._body(entry)
            would = self._api.post("/schedules/check", body={**body, **entry.made_with})
        except NoFit as refused:
            return _refused(entry, str(refused))
        except ApiError as error:
            if error.status not in (404, 409, 410, 422):
                raise
            return _refused(entry, self._said(error))
        stands = self._standing(entry.key)
        if stands is None:
            kind: Kind = "new"
        elif not differences(stands, would):
            kind = "unchanged"
        elif stands["declared"]:
            return _refused(entry, "this key is declared in code; change it there")
        else:
            kind = "change"
        made = {**body, **entry.made_with} if kind == "new" else body
        return Change(
            kind, entry.where, entry.text, entry.key, would, stands, made, lost=entry.lost
        )

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

    def _body(self, entry: Entry) -> dict[str, Any]:
        function, args = self._matcher.match(entry)
        return {
            "key": entry.key,
            "function": function,
            "args": args,
            "options": dict(entry.options),
            **entry.times,
        }


def _refused(entry: ReadEntry, reason: str) -> Change:
    return Change("cannot", entry.where, entry.text, entry.key, reason=reason)


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
