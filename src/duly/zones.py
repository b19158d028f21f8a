"""Time zones: the local time at an instant, and the instants of a local time.

The newer of the system's zone data and the `tzdata` package is used: common images have system
data that is a year old and wrong for several zones. The host's search path is only read.
"""

from __future__ import annotations

import os
import re
import zoneinfo
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from duly.errors import UnknownZone
from duly.nearest import nearest

# A path in the zone data: without dots, so it cannot point anywhere else.
_NAME = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*", re.ASCII)
_LONGEST_NAME = 64
_VERSION = re.compile(r"\d{4}[a-z]*")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY = 86_400
# The distance at which offsets are sampled: real transitions are a week apart or more.
_STRIDE = 3 * _DAY
# Transitions are looked for, and cached, in parts of 2**25 seconds: a bit more than a year.
_PART = 25


class Span(NamedTuple):
    """A period, in seconds since 1970 UTC, during which the offset stays the same."""

    start: int
    end: int
    offset: int
    before: int
    """The offset before `start`: if larger, clocks were set back; if smaller, forward."""


class Zone:
    """The local time of a zone, in whole seconds."""

    __slots__ = ("_info", "_parts", "name")

    @property
    def info(self) -> ZoneInfo:
        """The zone as a `tzinfo` for datetimes."""
        return self._info

    def __init__(self, name: str, info: ZoneInfo) -> None:
        self.name = name
        self._info = info
        self._parts: dict[int, tuple[Span, ...]] = {}

    def __repr__(self) -> str:
        return f"Zone({self.name!r})"

    def span(self, second: int) -> Span:
        """The span of the zone that contains that second since 1970 UTC."""
        part = second >> _PART
        spans = self._parts.get(part) or self._load(part)
        for span in spans:
            if second < span.end:
                return span
        raise AssertionError("the spans of a part cover it")

    def offset(self, second: int) -> int:
        """How many seconds local time is ahead of UTC at that second."""
        return self.span(second).offset

    def resolve(self, local: int) -> tuple[int, ...]:
        """The instants at which clocks show a local time (in seconds, as if it were UTC).

        Normally one; none if clocks were set forward over it; two if they were set back.
        """
        found: list[int] = []
        second = local - _DAY
        while second <= local + _DAY:
            span = self.span(second)
            if span.start <= local - span.offset < span.end:
                found.append(local - span.offset)
            second = span.end
        return tuple(found)

    def _load(self, part: int) -> tuple[Span, ...]:
        # Two threads may do the same work; they get the same result.
        spans = self._parts[part] = tuple(self._spans(part << _PART, (part + 1) << _PART))
        return spans

    def _spans(self, start: int, end: int) -> Iterator[Span]:
        before, offset = self._ask(start - 1), self._ask(start)
        began = start
        for second in range(start, end, _STRIDE):
            last = min(second + _STRIDE, end) - 1
            if (then := self._ask(last)) != offset:
                changed = self._change(second - 1, last, offset)
                yield Span(began, changed, offset, before)
                began, before, offset = changed, offset, then
        yield Span(began, end, offset, before)

    def _change(self, low: int, high: int, offset: int) -> int:
        """The first second after `low`, at most `high`, with another offset."""
        while high - low > 1:
            middle = (low + high) // 2
            if self._ask(middle) == offset:
                low = middle
            else:
                high = middle
        return high

    def _ask(self, second: int) -> int:
        offset = (_EPOCH + timedelta(seconds=second)).astimezone(self._info).utcoffset()
        assert offset is not None
        return offset // timedelta(seconds=1)


# The data ----------------------------------------------------------------------------------------


class _Source:
    """A folder of zone files and the version of its zone data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = _version_in(folder)

    def read(self, name: str) -> ZoneInfo | None:
        try:
            with (self.folder / name).open("rb") as file:
                return ZoneInfo.from_file(file, key=name)
        except (OSError, ValueError):
            return None


class _Package:
    """The zone files of the `tzdata` package, which may not be on disk."""

    def __init__(self) -> None:
        package = import_module("tzdata")
        self.version: str = package.IANA_VERSION
        from importlib import resources  # imports a lot that most programs do not need

        self.root = resources.files(package)
        self.names = frozenset((self.root / "zones").read_text(encoding="utf-8").split())

    def read(self, name: str) -> ZoneInfo | None:
        if name not in self.names:
            return None
        with (self.root / "zoneinfo" / name).open("rb") as file:
            return ZoneInfo.from_file(file, key=name)


def _version_in(folder: Path) -> str:
    """Such as "2026a"; the empty string, which sorts first, if the folder does not say."""
    for file, begin in (("tzdata.zi", "# version "), ("+VERSION", "")):
        try:
            with (folder / file).open(encoding="utf-8", errors="replace") as lines:
                line = lines.readline(100).removeprefix(begin).strip()
        except OSError:
            continue
        if _VERSION.fullmatch(line):
            return line
    return ""


class _Data:
    """All zone data read so far."""

    def __init__(self, folders: Sequence[str | os.PathLike[str]]) -> None:
        self.package = _Package()
        system = [_Source(Path(folder)) for folder in folders if Path(folder).is_dir()]
        # The sort is stable: at the same version the package wins, as on every machine.
        self.sources: list[_Package | _Source] = [self.package, *system]
        self.sources.sort(key=lambda source: source.version, reverse=True)
        self.zones: dict[str | None, Zone] = {}
        self._names: frozenset[str] | None = None

    @property
    def version(self) -> str:
        return self.sources[0].version

    def names(self) -> frozenset[str]:
        if self._names is None:
            listed = {name for name in zoneinfo.available_timezones() if _NAME.fullmatch(name)}
            self._names = frozenset(listed - {"localtime"}) | self.package.names
        return self._names

    def find(self, name: str) -> Zone:
        known = name in self.package.names or name in self.names()
        if known and (info := self._read(name)):
            return Zone(name, info)
        raise UnknownZone(name, _nearest(name, self.names()))

    def _read(self, name: str) -> ZoneInfo | None:
        # The system's data may be newer but lack names that are only aliases.
        return next((info for source in self.sources if (info := source.read(name))), None)


def _nearest(name: str, names: frozenset[str]) -> str | None:
    same = {known.lower(): known for known in names}
    cities = {known.rpartition("/")[2].lower(): known for known in sorted(names) if "/" in known}
    wanted = re.sub(r"\s+", "_", name.strip()).lower()
    if exact := same.get(wanted) or cities.get(wanted):
        return exact
    near = nearest(wanted, sorted(same), cutoff=0.7)
    return None if near is None else same[near]


_data: _Data | None = None
_zones: dict[str | None, Zone] = {}


def zone(name: str | None) -> Zone:
    """The zone with that name; UTC for None. Raises `UnknownZone` if there is none."""
    if name is not None and not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UnknownZone(str(name)[:_LONGEST_NAME])
    return _zones.get(name) or _find(name)


def version() -> str:
    """The version of the zone data in use, such as "2026a"; a later one compares greater."""
    return _loaded().version


def forget(folders: Sequence[str | os.PathLike[str]] | None = None) -> None:
    """Drop cached zone data; from then on, read these folders instead of the system's."""
    global _data
    _data = None if folders is None else _Data(folders)
    _zones.clear()


def _find(name: str | None) -> Zone:
    if name is not None and len(name) > _LONGEST_NAME:
        raise UnknownZone(name[:_LONGEST_NAME] + "…")
    found = _zones[name] = _loaded().find("UTC" if name is None else name)
    return found


def _loaded() -> _Data:
    global _data
    if _data is None:
        _data = _Data(zoneinfo.TZPATH)
    return _data
