"""Ids may be shortened to prefixes that match one object, locally and on a server."""

from __future__ import annotations

from typing import Any

import pytest

from duly.cli import ids
from duly.cli.local import Local
from tests.cli.places import Place

SHORT = 13
"""The length of a prefix with all the milliseconds of an id."""


def touch(place: Place) -> Any:
    return place.app.functions.get("touch")


def store_jobs(place: Place, *job_ids: str) -> None:
    """Jobs with these ids."""
    for job_id in job_ids:
        place.app.run(place.app.function("touch"), "x")
        [newest] = place.app.jobs(limit=1)
        place.db.execute(f"UPDATE @jobs SET id = '{job_id}' WHERE id = '{newest.id}'")


@pytest.mark.parametrize(
    ("prefix", "low", "high"),
    [
        ("0190", "018fffff-ffff-ffff-ffff-ffffffffffff", "01910000-0000-0000-0000-000000000000"),
        (
            "01900000-0000-7000-8000-00000000000f",
            "01900000-0000-7000-8000-00000000000e",
            "01900000-0000-7000-8000-000000000010",
        ),
        ("0000", None, "00010000-0000-0000-0000-000000000000"),
        ("ffff", "fffeffff-ffff-ffff-ffff-ffffffffffff", None),
    ],
)
def test_the_range_of_a_prefix(prefix: str, low: str | None, high: str | None) -> None:
    assert ids.bounds(prefix) == (low, high)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("0190", True),
        ("019", False),
        ("01900000", True),
        ("01900000-", True),
        ("019000000", False),
        ("01900000-0000-7000-8", True),
        ("01900000-0000-7000-8000-0000000000ab", False),
        ("01900000-0000-7000-8000-0000000000a", True),
        ("0190-0000", False),
        ("night", False),
        ("ABCD", False),
    ],
)
def test_what_is_a_prefix(text: str, fits: bool) -> None:
    assert ids.is_prefix(text) is fits


def test_a_job_is_found_by_the_beginning_of_its_id(place: Place) -> None:
    first = "01900000-0001-7000-8000-00000000000f"
    others = [f"01900000-0002-7000-8000-00000000{number:04x}" for number in range(12)]
    store_jobs(place, first, *others)
    for size in (SHORT, 14, 20, 35):
        assert place.duly("jobs", "show", first[:size], "--json").json["id"] == first
    assert place.duly("jobs", "logs", first[:SHORT]).out == ""
    assert "touch has not run yet" in place.duly("why", first[:SHORT]).out

    refused = place.duly("jobs", "show", "0190", code=1)
    head, *shown = refused.err.splitlines()
    assert head == "duly: '0190' matches more than one job; give more of the id"
    # The newest, and that there are more.
    assert [line.strip() for line in shown] == [*reversed(others[2:]), "…"]
    assert "'019' is too short" in place.duly("jobs", "show", "019", code=1).err
    assert "there is no job '0191'" in place.duly("jobs", "show", "0191", code=1).err


def test_a_change_needs_one_object_and_names_its_whole_id(place: Place) -> None:
    one, two, three = (f"01900000-000{number}-7000-8000-000000000000" for number in (1, 2, 3))
    store_jobs(place, one, two, three)
    for wrong in (["01900000-000"], [one[:SHORT], "0190"], [one[:SHORT], "01910000"]):
        place.duly("jobs", "cancel", *wrong, code=1)
    assert {job.state for job in place.app.jobs()} == {"pending"}
    canceled = place.duly("jobs", "cancel", one[:SHORT], two[:SHORT], "--json").json
    assert [each["id"] for each in canceled] == [one, two]
    assert place.app.job(three).state == "pending"
    again = place.duly("jobs", "retry", one[:SHORT], "--json").json
    assert [each["retry_of"] for each in again] == [one]
    watched = place.duly("jobs", "watch", two[:SHORT], code=1)
    assert watched.out == "canceled\n"
    assert place.duly("jobs", "logs", two[:SHORT]).err == "no log lines\n"


def test_a_schedule_is_found_by_its_key_before_its_id(place: Place) -> None:
    made = place.app.schedules.create("hourly", touch(place).bind("x"), every=3600)
    other = place.app.schedules.create("daily", touch(place).bind("x"), every=86400)
    # Both may have been made in the same millisecond.
    size = next(size for size in (13, 18, 23) if made.id[:size] != other.id[:size])
    prefix = made.id[:size]
    assert place.duly("schedules", "show", prefix, "--json").json["key"] == "hourly"
    assert "hourly is waiting" in place.duly("why", prefix).out
    assert "hourly is disabled" in place.duly("schedules", "disable", prefix).out
    [entry, *_] = place.duly("audit", "--target", f"schedule:{prefix}", "--json").json
    assert (entry["action"], entry["target"]) == ("schedule.disable", f"schedule:{made.id}")
    assert place.duly("audit", "--target", "schedule:hourly", "--json").json[0] == entry
    assert "did you mean 'hourly'" in place.duly("audit", "--target", "schedule:hurly", code=1).err
    assert "did you mean 'schedule'" in place.duly("audit", "--target", "shedule:hourly").out
    assert "there is no delivery" in place.duly("audit", "--target", "webhook:fffe", code=1).err
    assert other.id in place.duly("schedules", "show", made.id[:4], code=1).err

    place.app.schedules.create(prefix, touch(place).bind("x"), every=3600)
    assert place.duly("schedules", "show", prefix, "--json").json["key"] == prefix
    assert place.duly("why", prefix, "--json").json["key"] == prefix


def test_a_prefix_of_a_job_and_of_a_schedule(place: Place) -> None:
    schedule = place.app.schedules.create("hourly", touch(place).bind("x"), every=3600)
    job = place.app.run(touch(place), "x")
    refused = place.duly("why", job.id[:4], code=1).err
    assert "matches more than one job or schedule" in refused
    assert job.id in refused
    assert schedule.id in refused
    nothing = place.duly("why", "fffe", code=1).err
    assert "there is no job and no schedule 'fffe'" in nothing
    assert "`duly jobs list` and `duly schedules list`" in nothing


def test_things_with_names_are_found_by_prefixes_too(place: Place) -> None:
    calendar = place.app.calendars.create("closed", "skip_dates", dates=["2099-01-01"])
    endpoint = place.app.endpoints.create("billing", "https://billing.example.com")
    assert "closed" in place.duly("calendars", "show", calendar.id[:SHORT]).out
    assert "billing" in place.duly("endpoints", "show", endpoint.id[:SHORT]).out
    for name in ("one", "two"):
        place.app.tokens.create(name, ["read"])
    *_, one, two = place.app.tokens.list()
    size = next(size for size in (13, 18, 23) if one.id[:size] != two.id[:size])
    assert "one was revoked" in place.duly("tokens", "revoke", one.id[:size], "--force").out


def test_a_schedule_refers_to_a_calendar_and_an_endpoint_by_prefixes(place: Place) -> None:
    closed = place.app.calendars.create("closed", "skip_dates", dates=["2099-01-01"])
    billing = place.app.endpoints.create("billing", "https://billing.example.com")
    post = ["schedules", "create", "ping", f"endpoint:{billing.id[:23]}", "--every", "1h"]
    made = place.duly(*post, "--calendar", closed.id[:23], "--json").json
    assert (made["args"]["endpoint"], made["calendar_id"]) == ("billing", closed.id)
    [listed] = place.duly("schedules", "list", "--calendar", closed.id[:23], "--json").json
    assert listed["key"] == "ping"

    # A name comes first, even if it looks like the beginning of an id.
    named = place.app.calendars.create(closed.id[:23], "skip_dates", dates=["2099-01-01"])
    attached = place.duly("schedules", "attach", "ping", closed.id[:23], "--json").json
    assert attached["calendar_id"] == named.id
    changed = place.duly("schedules", "update", "ping", "--calendar", closed.id, "--json").json
    assert changed["calendar_id"] == closed.id


def test_a_filter_that_matches_nothing_may_be_mistyped(place: Place) -> None:
    place.app.run(touch(place), "x")
    for command in (["jobs", "list"], ["jobs", "dead"], ["schedules", "list"], ["jobs", "cancel"]):
        said = place.duly(*command, "--function", "tuoch").out
        assert "with --function 'tuoch'; did you mean 'touch'?" in said
    said = place.duly("jobs", "list", "--queue", "defalt").out
    assert said == "no jobs with --queue 'defalt'; did you mean 'default'?\n"
    assert place.duly("jobs", "list", "--function", "zzz").out == "no jobs\n"
    assert place.duly("jobs", "dead", "--function", "touch").out == "no dead jobs\n"


def test_a_hint_with_a_name_can_be_pasted(place: Place) -> None:
    added = place.duly("gateways", "add", "edge one", "http://10.1.0.7:8700").out
    assert "`duly gateways crons 'edge one'`" in added


def test_a_look_up_reads_one_page_however_many_jobs_there_are(home: Place) -> None:
    function = home.app.function("touch")
    home.app.run_many(function.bind("x") for _ in range(500))
    wanted = home.app.jobs(limit=500)[250]
    api = Local(home.app)
    asked: list[tuple[str, dict[str, Any]]] = []
    answer = api.get

    def get(path: str, *names: str, **query: Any) -> Any:
        asked.append((path, query))
        return answer(path, *names, **query)

    api.get = get  # type: ignore[method-assign]
    assert ids.resolved(api, "job", "/jobs", wanted.id[:35]) == wanted.id
    [(path, query)] = asked
    assert (path, query["limit"]) == ("/jobs", ids.MAX_MATCHES + 1)
    assert query["before"][:30] == wanted.id[:30]
