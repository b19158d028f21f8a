"""Resolves ids, and prefixes of ids that match one object.

A prefix is looked up with the cursor of the list: ids sort by time, so the objects with the prefix
are one range of it. One page of the list is read, however long the history is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn
from uuid import UUID

from duly.cli.api import Api
from duly.cli.command import fail
from duly.ids import is_id
from duly.nearest import did_you_mean

MIN_PREFIX = 4
MAX_MATCHES = 10
MAX_LOOKED_AT = 200
DIGITS = 32
NEWEST_FIRST = frozenset({"/jobs", "/webhooks", "/workflows"})
"""Lists whose cursor is `before`; the cursor of the others is `after`."""
LISTS = {
    "job": "/jobs",
    "schedule": "/schedules",
    "calendar": "/calendars",
    "endpoint": "/endpoints",
    "gateway": "/gateways",
    "token": "/tokens",
}
LIST_COMMANDS = {
    **{what: f"`duly {path[1:]} list`" for what, path in LISTS.items()},
    "delivery": "`duly webhooks list`",
    "workflow run": "`duly workflows list`",
    "job and no schedule": "`duly jobs list` and `duly schedules list`",
    "queue": "`duly queues list`",
    "valid token": "`duly tokens list`",
}
_PREFIX = re.compile(
    "[0-9a-f]{1,8}|[0-9a-f]{8}-[0-9a-f]{0,4}|[0-9a-f]{8}(?:-[0-9a-f]{4}){1,2}-[0-9a-f]{0,4}"
    "|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{0,11}"
)


def is_prefix(text: str) -> bool:
    """Whether the text is a prefix of an id that is long enough to look up."""
    return len(text) >= MIN_PREFIX and _PREFIX.fullmatch(text) is not None


def bounds(prefix: str) -> tuple[str | None, str | None]:
    """The ids next to the range of a prefix, both exclusive; None where there is no such id."""
    digits = prefix.replace("-", "")
    least = int(digits.ljust(DIGITS, "0"), 16)
    largest = int(digits.ljust(DIGITS, "f"), 16)
    low = str(UUID(int=least - 1)) if least else None
    high = str(UUID(int=largest + 1)) if largest + 1 < 1 << 128 else None
    return low, high


def matching(api: Api, path: str, prefix: str) -> list[dict[str, Any]]:
    """The objects whose ids start with a prefix, at most one more than `MAX_MATCHES`."""
    low, high = bounds(prefix)
    cursor = {"before": high} if path in NEWEST_FIRST else {"after": low}
    items: list[dict[str, Any]] = api.get(path, **cursor, limit=MAX_MATCHES + 1)["items"]
    return [item for item in items if item["id"].startswith(prefix)]


def resolved(api: Api, what: str, path: str, text: str) -> str:
    """The id that a text stands for; exits if there is no such object, or more than one."""
    if is_id(text):
        return text
    if is_prefix(text):
        found = [item["id"] for item in matching(api, path, text)]
        if found:
            return only(what, text, found)
    elif _PREFIX.fullmatch(text):
        return fail(f"{text!r} is too short; give at least {MIN_PREFIX} characters of the id")
    return missing(what, text, recent(api, path))


def recent(api: Api, path: str) -> Iterable[str]:
    """The ids of recent objects, for suggestions."""
    cursor = "before" if path in NEWEST_FIRST else "after"
    return (item["id"] for item in api.pages(path, most=MAX_LOOKED_AT, cursor=cursor))


def only(what: str, prefix: str, ids: list[str]) -> str:
    """The one id; exits if there are several."""
    if len(ids) == 1:
        return ids[0]
    shown = ids[:MAX_MATCHES]
    more = ["…"] if len(ids) > MAX_MATCHES else []
    return fail(
        f"{prefix!r} matches more than one {what}; give more of the id",
        hint="\n      ".join([*shown, *more]),
    )


def named_or_prefix(
    items: Iterable[Mapping[str, Any]], what: str, text: str
) -> list[Mapping[str, Any]]:
    """The items of a complete list with this name or id, or else with this prefix of an id."""
    every = list(items)
    same = [each for each in every if text in (each["name"], each["id"])]
    if same or not is_prefix(text):
        return same
    by_id = {each["id"]: each for each in every if each["id"].startswith(text)}
    return [by_id[only(what, text, list(by_id))]] if by_id else []


def missing(what: str, name: str, names: Iterable[str]) -> NoReturn:
    """Exit because nothing has this name, and suggest the nearest one."""
    listed = LIST_COMMANDS.get(what)
    hint = did_you_mean(name, names) or (listed and f"list them with {listed}")
    fail(f"there is no {what} {name!r}", hint=hint)
