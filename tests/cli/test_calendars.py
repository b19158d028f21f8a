"""`duly calendars`: dates as data, and what a change does to coming ticks."""

from datetime import date, timedelta

import pytest

from duly.cli.out import Out
from duly.clock import from_ms
from tests.cli.places import Place
from tests.jobs.support import on_postgres, on_sqlite

PLANT = ["--kind", "skip_dates", "--tz", "Europe/Istanbul"]
ICS = """BEGIN:VCALENDAR
BEGIN:VEVENT
DTSTART;VALUE=DATE:{day}
SUMMARY:fair
END:VEVENT
END:VCALENDAR
"""


@on_postgres
def test_calendars_are_made_shown_and_cloned(place: Place) -> None:
    made = place.duly(
        *("calendars", "create", "plant closed", *PLANT),
        *("--date", "2030-02-05=stock-taking", "--date", "2030-03-06", "--json"),
    ).json
    assert made["dates"] == {"2030-02-05": "stock-taking", "2030-03-06": ""}
    assert (made["kind"], made["tz"]) == ("skip_dates", "Europe/Istanbul")

    shown = place.duly("calendars", "show", "plant closed", "--from", "2030-02").plain
    assert "February 2030" in shown
    assert "April 2030" in shown
    lines = [line.rstrip() for line in shown.splitlines()]
    assert any(line.startswith(" 4 ##  6  7  8  9 10") for line in lines), shown
    assert "2030-02-05 stock-taking" in lines
    assert "no schedule" in shown
    for columns in (80, 40):
        month = ["--from", "2030-02"]
        seen = place.duly("calendars", "show", "plant closed", *month, columns=columns)
        assert max(map(len, seen.plain.splitlines())) <= columns
        assert "\x1b[1;37;41m 5" in seen.out
    plain = place.duly(
        *("calendars", "show", "plant closed", "--from", "2030-02"),
        columns=80,
        env={"NO_COLOR": "1"},
    )
    assert "##" in plain.out

    copy = place.duly(
        *("calendars", "clone", "plant closed", "office", "--add", "2030-01-02=quiet"),
        *("--remove", "2030-03-06", "--kind", "only_dates", "--json"),
    ).json
    assert copy["dates"] == {"2030-01-02": "quiet", "2030-02-05": "stock-taking"}
    listed = place.duly("calendars", "list", columns=80).plain
    assert "plant closed" in listed
    assert "built in" in listed
    assert [each.name for each in place.app.calendars.list()][-2:] == ["plant closed", "office"]


@on_sqlite
def test_dates_come_from_a_file_and_from_a_country(place: Place) -> None:
    file = place.folder / "fair.ics"
    file.write_text(ICS.format(day="20300511").replace("\n", "\r\n"))
    span = ["--from", "2030-01-01", "--to", "2030-12-31"]
    said = place.duly("calendars", "import", "fair", str(file), *PLANT, *span)
    assert said.out == "fair: skip_dates, 1 date\n"
    assert place.app.calendars.get("fair").dates == {date(2030, 5, 11): "fair"}
    berlin = ["--kind", "skip_dates", "--tz", "Europe/Berlin"]
    germany = place.duly("calendars", "holidays", "free", "DE", "--year", "2030", *berlin, "--json")
    assert "2030-12-25" in germany.json["dates"]
    assert place.duly("calendars", "import", "x", "nowhere.ics", code=2).out == ""
    wrong = place.duly("calendars", "create", "x", *PLANT, "--date", "31.12.2030", code=1)
    assert "not a date" in wrong.err
    assert "Traceback" not in wrong.err


@pytest.mark.spec("R161")
def test_a_change_shows_its_ticks_first_and_asks(place: Place) -> None:
    touch = place.app.function("touch")
    day = from_ms(place.app.clock.now()).date() + timedelta(days=3)
    closed = place.app.calendars.create("closed", "skip_dates", dates=["2040-01-01"])
    place.app.schedules.create("daily", touch.bind("x"), cron="0 9 * * *", calendar="closed")

    dry = place.duly("calendars", "update", "closed", "--add", str(day), "--dry-run", "--json")
    [change] = dry.json
    assert (change["key"], change["before"], change["after"]) == ("daily", "dispatch", "skip")
    alone = place.duly("calendars", "update", "closed", "--add", str(day), code=1)
    assert "--force" in alone.err
    assert "dispatch" in alone.err
    asked = [("Change calendar 'closed'?", "n\n")]
    change_it = ("calendars", "update", "closed", "--add", f"{day}=fair")
    refused = place.duly(*change_it, columns=80, keys=asked, code=1)
    assert "nothing was changed" in refused.plain
    assert place.app.calendars.get(closed).version == closed.version
    agreed = place.duly(*change_it, columns=80, keys=[("Change calendar", "y\n")])
    assert "daily" in agreed.plain
    assert place.app.calendars.get(closed).dates[day] == "fair"
    # What changes no tick needs no question.
    place.duly("calendars", "update", "closed", "--remove", "2040-01-01", "--name", "shut")

    assert place.duly("calendars", "remove", "shutt", code=1).err.count("did you mean 'shut'?")
    lost = place.duly("calendars", "remove", "shut", "--dry-run").out
    assert "1 would change" in lost
    assert "this is not a terminal" in place.duly("calendars", "remove", "shut", code=1).err
    assert place.app.calendars.get("shut").name == "shut"
    place.duly("calendars", "remove", "shut", "--force")
    assert [each.calendar for each in place.app.schedules.list()] == [None]
    seed = place.duly("calendars", "remove", "weekends", "--force", code=1)
    assert "Traceback" not in seed.err


@on_sqlite
def test_what_is_given_is_checked_before_anything_is_asked(place: Place) -> None:
    assert "--add" in place.duly("calendars", "update", "weekends", code=2).err
    bad = place.duly("calendars", "show", "weekends", "--from", "soon", code=2)
    assert "2027-01" in bad.err


def test_colours_are_used_only_where_there_are_some() -> None:
    assert not Out(as_json=False, tz="UTC").has_colours
