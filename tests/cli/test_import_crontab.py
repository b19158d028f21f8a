"""Crontabs are read as cron reads them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from duly import next_fires
from duly.cli.imports.entry import Entry, NotImportable
from duly.cli.imports.from_crontab import read_crontab
from duly.zones import zone

SINCE = datetime(2026, 2, 20, 11, 58, tzinfo=UTC)
FIRES = 12


def read(line: str, *, tz: str = "UTC", system: bool = False) -> Entry | NotImportable:
    [found] = read_crontab(line, tz, system=system).found
    return found


def taken(line: str, **how: bool | str) -> Entry:
    found = read(line, **how)  # type: ignore[arg-type]
    assert isinstance(found, Entry), found
    return found


def fires(entry: Entry) -> list[int]:
    since = int(SINCE.timestamp() * 1000)
    return next_fires(entry.times["cron"], entry.times["tz"], since, FIRES)


def crons_own(expression: str, tz: str = "UTC") -> list[int]:
    """When cron would fire: either day is enough, unless one of them begins with a star."""
    clock = croniter(expression, SINCE.astimezone(zone(tz).info), implement_cron_bug=True)
    return [round(clock.get_next(float) * 1000) for _ in range(FIRES)]


@pytest.mark.parametrize(
    "expression",
    [
        "* * * * *",
        "*/15 * * * *",
        "5,35 8-18/2 * * *",
        "0 3 * * 0",
        "0 3 * * 7",
        "0 3 * * sun",
        "0 3 * * 5-7",
        "0 3 * * mon-fri",
        "0 3 * * */2",
        "0 3 1,15 * *",
        "0 3 1 * 1",  # either day
        "0 3 13 * 5",
        "0 3 1-31 * 1",  # either day, and so every one
        "0 3 */2 * *",
        "0 3 */1 * 1",  # every day of the month, so that the weekday decides
        "0 3 */3 * 0-6",  # every day of the week, so that the day of the month decides
        "0 3 31 * *",
        "0 3 29 2 *",
        "30 4 1 jan,jul *",
        "@hourly",
        "@daily",
        "@weekly",
        "@monthly",
        "@yearly",
    ],
)
def test_a_line_fires_when_cron_fires_it(expression: str) -> None:
    assert fires(taken(f"{expression} /bin/true")) == crons_own(expression)


DAYS = st.sampled_from(["*", "*/2", "*/1", "1", "1,15", "1-31", "2-20/3"])
WEEKDAYS = st.sampled_from(["*", "*/2", "0", "7", "1-5", "5-7", "0-6", "sat", "mon,wed"])


@given(day=DAYS, weekday=WEEKDAYS, month=st.sampled_from(["*", "2", "*/3", "jun-aug"]))
@settings(max_examples=60, deadline=None)
def test_any_pair_of_days_is_as_in_cron_or_refused(day: str, weekday: str, month: str) -> None:
    expression = f"7 5 {day} {month} {weekday}"
    found = read(f"{expression} x")
    if isinstance(found, NotImportable):
        assert "both" in found.reason
        assert "*/" in day + weekday
    else:
        assert fires(found) == crons_own(expression)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("@reboot /bin/x", "at system start"),
        ("@every_minute /bin/x", "not support @every_minute"),
        ("0 3 * * * mail -s hi me%body", "standard input"),
        ("0 3 * * *", "five fields and a command"),
        ("@daily", "the command is missing"),
        ("nonsense", "five fields"),
        ("61 3 * * * x", "minute: 61 is not in 0-59"),
        ("0 3 * * 8 x", "day of week: 8 is not in 0-7"),
        ("0~30 3 * * * x", "H(0-30)"),
        ("0 3 L * * x", "'L'"),
        ("H 3 * * * x", "'H'"),
        ("5/15 3 * * * x", "5-59/15"),
        ("0 22-2 * * * x", "reversed"),
        ("0 3 */2 * 1 x", "both to match"),
        ("0 0 30 2 * x", "never fire"),
    ],
)
def test_what_cannot_be_taken_over_says_why(line: str, says: str) -> None:
    found = read(line)
    assert isinstance(found, NotImportable)
    assert says in found.reason
    assert found.where == "line 1"


def test_a_whole_crontab() -> None:
    text = """
# m h dom mon dow command
SHELL=/bin/bash
 MAILTO = "me@example.com"
0 5 * * *  /usr/bin/backup.sh --to 100\\%
CRON_TZ=Europe/Istanbul
\t0 6 * * 1-5\t/usr/bin/report # not a comment
-*/5 * * * * FOO=bar /usr/bin/poll
CRON_TZ=
0 7 * * * /usr/bin/backup.sh --to 100\\%
CRON_TZ=Mars/Base
0 8 * * * x
"""
    found, settings_ = read_crontab(text, "Europe/Berlin")
    assert settings_ == {"SHELL": 3, "MAILTO": 4}
    backup, report, poll, again, lost = found
    assert isinstance(backup, Entry)
    assert backup.times == {"cron": "0 5 * * *", "tz": "Europe/Berlin"}
    assert backup.offered == {"command": "/usr/bin/backup.sh --to 100%"}
    assert isinstance(report, Entry)
    assert report.times == {"cron": "0 6 * * 1-5", "tz": "Europe/Istanbul"}
    assert report.calls == "/usr/bin/report # not a comment"
    assert isinstance(poll, Entry)
    assert poll.times["cron"] == "*/5 * * * *"
    assert poll.calls == "FOO=bar /usr/bin/poll"
    assert isinstance(again, Entry)
    assert again.times["tz"] == "Europe/Berlin"
    assert again.key == f"{backup.key}-2"
    assert isinstance(lost, NotImportable)
    assert "Mars/Base" in lost.reason


def test_the_users_of_a_system_crontab() -> None:
    entry = taken("17 * * * * root cd / && run-parts /etc/cron.hourly", system=True)
    assert entry.offered == {"command": "cd / && run-parts /etc/cron.hourly", "user": "root"}
    daily = taken("@daily www-data /bin/tidy", system=True)
    assert daily.offered == {"command": "/bin/tidy", "user": "www-data"}
    assert isinstance(read("@daily root", system=True), NotImportable)


def test_bytes_that_are_no_text_are_kept_as_they_are() -> None:
    assert taken("0 1 * * * caf\udce9").calls == "caf\udce9"


def test_names_stay_the_same_wherever_a_line_stands() -> None:
    one = read_crontab("0 1 * * * a\n0 2 * * * b\n", "UTC").found
    other = read_crontab("# moved\n0 2 * * * b\n0 9 * * * a\n", "UTC").found
    assert {each.key for each in one if isinstance(each, Entry)} == {
        each.key for each in other if isinstance(each, Entry)
    }


@given(text=st.text(st.characters(codec="utf-8"), max_size=200))
@settings(max_examples=100, deadline=None)
def test_whatever_a_file_holds_is_read(text: str) -> None:
    for found in read_crontab(text, "UTC").found:
        assert found.where.startswith("line ")


@given(zone_=st.sampled_from(["Europe/Berlin", "America/New_York", "UTC"]), hour=st.integers(4, 23))
@settings(max_examples=15, deadline=None)
def test_zones(zone_: str, hour: int) -> None:
    expression = f"30 {hour} * * *"
    assert fires(taken(f"{expression} x", tz=zone_)) == crons_own(expression, zone_)
