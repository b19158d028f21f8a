"""Zone data is the newest there is, and a zone's clock is read from it without a mistake."""

import shutil
import struct
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import pytest

from duly import zones
from duly.errors import BadInput, UnknownZone
from duly.zones import zone

PACKAGE = Path(str(resources.files("tzdata")))
HOUR = 3600


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    zones.forget()


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


# Names -------------------------------------------------------------------------------------------


@pytest.mark.spec("R20")
@pytest.mark.parametrize("name", [None, "UTC"])
def test_no_name_is_utc(name):
    assert zone(name).name == "UTC"
    assert zone(name).offset(0) == 0


@pytest.mark.spec("R20")
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("europe/istanbul", "'Europe/Istanbul'"),
        ("Europe/Istambul", "'Europe/Istanbul'"),
        ("Istanbul", "'Europe/Istanbul'"),
        ("new york", "'America/New_York'"),
        ("Mars/Olympus_Mons", "a name such as"),
    ],
)
def test_an_unknown_zone_is_refused_with_a_hint(name, hint):
    with pytest.raises(UnknownZone) as caught:
        zone(name)
    assert hint in str(caught.value)
    assert (caught.value.name, caught.value.field) == (name, "tz")
    assert isinstance(caught.value, BadInput)


@pytest.mark.parametrize(
    "name",
    [
        "../etc",
        "../../../etc/passwd",
        "/etc/localtime",
        "Europe/../Europe/Istanbul",
        "Europe//Istanbul",
        "Europe/",
        "Europe",
        "localtime",
        "posixrules",
        "right/Europe/London",
        "tzdata.zi",
        "",
        " ",
        "UTC\0",
        "UTC\n",
        "\ud800",
        "x" * 100_000,
    ],
)
def test_a_name_leads_only_to_a_zone(name):
    with pytest.raises(UnknownZone) as caught:
        zone(name)
    assert len(str(caught.value)) < 200


def test_what_is_no_text_is_no_zone():
    with pytest.raises(UnknownZone):
        zone(3)  # type: ignore[arg-type]


def test_a_zone_is_read_once():
    assert zone("Asia/Tokyo") is zone("Asia/Tokyo")


# Versions ----------------------------------------------------------------------------------------


def system_data(folder: Path, version: str | None) -> Path:
    """System data of a version that says that Istanbul has Tokyo's clock."""
    (folder / "Europe").mkdir(parents=True)
    shutil.copy(PACKAGE / "zoneinfo/Asia/Tokyo", folder / "Europe/Istanbul")
    if version:
        (folder / "tzdata.zi").write_text(f"# version {version}\n# more\n")
    return folder


def test_newer_data_of_the_system_is_taken(tmp_path):
    zones.forget([system_data(tmp_path / "new", "2099b"), system_data(tmp_path / "old", "2001a")])

    assert zones.version() == "2099b"
    assert zone("Europe/Istanbul").offset(seconds("2026-01-01")) == 9 * HOUR


@pytest.mark.parametrize("version", ["2001a", None, "nonsense"])
def test_older_data_of_the_system_is_not(tmp_path, version):
    zones.forget([system_data(tmp_path / "old", version), tmp_path / "missing"])

    assert zones.version() == (PACKAGE / "zoneinfo/tzdata.zi").read_text()[10:15]
    assert zone("Europe/Istanbul").offset(seconds("2026-01-01")) == 3 * HOUR


def test_a_name_that_newer_data_lacks_is_taken_from_the_other(tmp_path):
    zones.forget([system_data(tmp_path / "new", "2099b")])

    assert zone("US/Eastern").offset(seconds("2026-01-01")) == -5 * HOUR


def test_the_version_may_stand_in_a_file_of_its_own(tmp_path):
    folder = system_data(tmp_path / "new", None)
    (folder / "+VERSION").write_text("2099c\n")
    zones.forget([folder])

    assert zones.version() == "2099c"


def test_a_broken_file_is_no_zone(tmp_path):
    folder = system_data(tmp_path / "new", "2099b")
    (folder / "Europe/Istanbul").write_bytes(b"no zone")
    zones.forget([folder])

    assert zone("Europe/Istanbul").offset(seconds("2026-01-01")) == 3 * HOUR


def test_data_replaced_under_a_running_system_is_read_when_it_is_told(tmp_path):
    before = zone("Europe/Istanbul").offset(0)
    zones.forget([system_data(tmp_path, "2099b")])

    assert (before, zone("Europe/Istanbul").offset(0)) == (2 * HOUR, 9 * HOUR)


def test_the_hosts_search_path_is_left_alone():
    before = zoneinfo.TZPATH
    zones.forget()
    zone("Europe/Istanbul")
    assert before == zoneinfo.TZPATH


def test_versions_compare():
    assert "2025b" < zones.version() < "2999a"


# Clocks ------------------------------------------------------------------------------------------


def test_a_gap_has_no_instants_and_a_repeated_time_two():
    new_york = zone("America/New_York")

    assert new_york.resolve(seconds("2026-03-08T01:59:59")) == (seconds("2026-03-08T06:59:59"),)
    assert new_york.resolve(seconds("2026-03-08T02:00")) == ()
    assert new_york.resolve(seconds("2026-03-08T02:59:59")) == ()
    assert new_york.resolve(seconds("2026-03-08T03:00")) == (seconds("2026-03-08T07:00"),)
    assert new_york.resolve(seconds("2026-11-01T00:59:59")) == (seconds("2026-11-01T04:59:59"),)
    assert new_york.resolve(seconds("2026-11-01T01:30")) == (
        seconds("2026-11-01T05:30"),
        seconds("2026-11-01T06:30"),
    )
    assert new_york.resolve(seconds("2026-11-01T02:00")) == (seconds("2026-11-01T07:00"),)


def test_a_span_says_what_was_before():
    span = zone("Australia/Lord_Howe").span(seconds("2026-04-05"))

    assert (span.offset, span.before) == (int(10.5 * HOUR), 11 * HOUR)
    assert span.start == seconds("2026-04-04T15:00")


def test_a_second_lies_in_its_span_everywhere():
    clock = zone("Europe/London")
    for second in range(seconds("2025-01-01"), seconds("2028-01-01"), 9_973):
        span = clock.span(second)
        assert span.start <= second < span.end


def transitions(name: str) -> Iterator[tuple[int, int]]:
    """The changes of offset that a zone's file lists: when, and to what."""
    data = (PACKAGE / "zoneinfo" / name).read_bytes()

    def counts(at: int) -> tuple[int, ...]:
        return struct.unpack(">6l", data[at + 20 : at + 44])

    isut, isstd, leap, times, types, chars = counts(0)
    second = 44 + times * 5 + types * 6 + chars + leap * 8 + isstd + isut
    *_, times, types, _ = counts(second)
    begin = second + 44
    instants = struct.unpack(f">{times}q", data[begin : begin + times * 8])
    kinds = data[begin + times * 8 : begin + times * 9]
    offsets = [struct.unpack_from(">l", data, begin + times * 9 + 6 * i)[0] for i in range(types)]
    latest = offsets[0]
    for instant, kind in zip(instants, kinds, strict=True):
        if offsets[kind] != latest:
            latest = offsets[kind]
            yield instant, latest


def test_every_change_in_the_data_is_found():
    files: dict[bytes, str] = {}
    for name in (PACKAGE / "zones").read_text().split():
        files.setdefault((PACKAGE / "zoneinfo" / name).read_bytes(), name)
    since, until = seconds("1990-01-01"), seconds("2030-01-01")
    found = 0
    for name in files.values():
        for instant, offset in transitions(name):
            if since <= instant < until:
                span = zone(name).span(instant)
                assert (span.start, span.offset) == (instant, offset), name
                assert span.before == zone(name).offset(instant - 1) != offset
                found += 1
    assert found > 5_000
