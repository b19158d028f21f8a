"""The navigation of the site, as zensical.toml has it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).resolve().parents[2]
CONFIG = Path(__file__).with_name("zensical.toml")
API = "docs/api/"

# A page, or a title with a page or with the items below it.
Item: TypeAlias = "str | dict[str, str | list[Item]]"


@dataclass(frozen=True)
class Entry:
    """A page and the group that it stands in; the home page stands in none."""

    group: str
    path: str


def config() -> dict[str, Any]:
    return tomllib.loads(CONFIG.read_text(encoding="utf-8"))


def entries(root: Path = ROOT) -> list[Entry]:
    """The pages of the navigation that exist, in order. Those of the API are generated."""
    return [entry for entry in listed() if exists(root, entry.path)]


def listed() -> list[Entry]:
    return list(_walk(config()["project"]["nav"], ""))


def exists(root: Path, path: str) -> bool:
    return path.startswith(API) or (root / path).is_file()


def only_existing(root: Path, items: list[Item]) -> list[Item]:
    kept: list[Item] = []
    for item in items:
        if isinstance(item, str):
            kept += [item] if exists(root, item) else []
        else:
            kept.append(
                {
                    title: below if isinstance(below, str) else only_existing(root, below)
                    for title, below in item.items()
                }
            )
    return kept


def _walk(items: list[Item], group: str) -> Iterator[Entry]:
    for item in items:
        if isinstance(item, str):
            yield Entry(group, item)
        else:
            for title, below in item.items():
                if isinstance(below, str):
                    yield Entry(group, below)
                else:
                    yield from _walk(below, group or title)
