"""The API for calendars, answer by answer."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from duly import Duly, ManualClock
from duly.model.calendar import SEEDS
from tests.server.contract import Api

PLANT = {"name": "plant closed", "kind": "skip_dates", "dates": {"2099-12-24": "Christmas Eve"}}
NINE = {"key": "daily", "function": "greet", "args": {"name": "ann"}, "cron": "0 9 * * *"}
ICAL = """BEGIN:VCALENDAR\r
VERSION:2.0\r
BEGIN:VEVENT\r
UID:1\r
DTSTART;VALUE=DATE:{year}0501\r
SUMMARY:Labour Day\r
END:VEVENT\r
END:VCALENDAR\r
"""


@pytest.fixture
def api(client: TestClient) -> Api:
    return Api(client)


@pytest.fixture
def made(api: Api) -> dict[str, Any]:
    made: dict[str, Any] = api.post("/calendars", PLANT, status=201)
    return made


def test_a_calendar_is_made_and_found(api: Api, shop: Duly, made: dict[str, Any]):
    assert made["dates"] == PLANT["dates"]
    assert (made["version"], made["read_only"], made["last_date"]) == (1, False, "2099-12-24")
    for name in ("plant closed", made["id"]):
        assert api.get("/calendars/{name}", name=name) == made
    [entry] = shop.ready().audit_of(f"calendar:{made['id']}")
    assert (entry.action, entry.actor) == ("calendar.create", "local")


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"kind": "some"}, 422, "invalid"),
        ({"dates": ["2026-02-30"]}, 422, "invalid_calendar"),
        ({"dates": {"tomorrow": "x"}}, 422, "invalid_calendar"),
        ({"rules": ["moon"]}, 422, "invalid_calendar"),
        ({"tz": "Mars/Base"}, 422, "unknown_zone"),
        ({"name": "weekends"}, 409, "calendar_exists"),
        ({"name": "\u0000"}, 422, "invalid_calendar"),
        ({"colour": "red"}, 422, "invalid"),
    ],
)
def test_what_makes_no_sense_is_refused(api: Api, changes: Any, status: int, code: str):
    assert api.error("POST", "/calendars", PLANT | changes, status=status)["code"] == code


def test_a_name_is_taken_once(api: Api, made: dict[str, Any]):
    assert api.error("POST", "/calendars", PLANT, status=409)["code"] == "calendar_exists"


def test_a_request_that_is_repeated_makes_nothing_twice(api: Api, client: TestClient):
    def post(_: int) -> Any:
        headers = {"Idempotency-Key": "one"}
        return client.post("/api/v1/calendars", json=PLANT, headers=headers)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(post, range(8)))

    assert {answer.status_code for answer in answers} <= {200, 201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    copy = api.post(
        "/calendars/{name}/clone", {"name": "copy"}, name="weekends", key="two", status=201
    )
    assert api.post("/calendars/{name}/clone", {"name": "copy"}, name="weekends", key="two") == copy


def test_calendars_come_in_pages_after_those_of_dulys(api: Api):
    for number in range(3):
        api.post("/calendars", PLANT | {"name": f"c{number}"}, status=201)
    for limit in (1, 2, len(SEEDS), 100):
        seen: list[str] = []
        after: dict[str, str] = {}
        while True:
            page = api.get("/calendars", params={"limit": limit, **after})
            assert len(page["items"]) <= limit
            seen += [item["name"] for item in page["items"]]
            if page["next"] is None:
                break
            after = {"after": page["next"]}
        assert seen == [*SEEDS, "c0", "c1", "c2"]


def test_what_is_given_changes(api: Api, made: dict[str, Any]):
    changed = api.patch(
        "/calendars/{name}", {"version": 1, "add": ["2099-12-31"], "name": "plant"}, name=made["id"]
    )
    assert changed["dates"] == {"2099-12-24": "Christmas Eve", "2099-12-31": ""}
    assert (changed["name"], changed["version"]) == ("plant", 2)
    removed = api.patch("/calendars/{name}", {"version": 2, "remove": ["2099-12-24"]}, name="plant")
    assert removed["dates"] == {"2099-12-31": ""}
    changed = api.patch(
        "/calendars/{name}",
        {"version": 3, "dates": ["2098-01-01"], "kind": "only_dates", "tz": "Asia/Tokyo"},
        name="plant",
    )
    assert (changed["dates"], changed["kind"]) == ({"2098-01-01": ""}, "only_dates")
    error = api.error("PATCH", "/calendars/{name}", {"version": 3}, name="plant", status=409)
    assert error["code"] == "stale_version"
    error = api.error(
        "PATCH", "/calendars/{name}", {"version": 4, "tz": None}, name="plant", status=422
    )
    assert error["field"] == "tz"


def test_a_calendar_is_removed(api: Api, made: dict[str, Any]):
    schedule = api.post("/schedules", NINE | {"calendar": "plant closed"}, status=201)
    assert (schedule["calendar"], schedule["calendar_id"]) == ("plant closed", made["id"])

    api.delete("/calendars/{name}", name=made["id"], status=204)

    error = api.error("GET", "/calendars/{name}", name=made["id"], status=404)
    assert error["code"] == "calendar_not_found"
    assert api.get("/schedules/{id}", id=schedule["id"])["calendar"] is None


@pytest.mark.parametrize("owner", [None, "anna"])
def test_those_of_dulys_are_read_by_all_and_written_by_none(
    guarded: TestClient, bearer: Callable[..., dict[str, Any]], owner: str | None
):
    api = Api(guarded, bearer("admin", owner=owner))
    for name in SEEDS:
        assert api.get("/calendars/{name}", name=name)["read_only"] is True
    asked: list[tuple[str, str, Any]] = [
        ("PATCH", "/calendars/{name}", {"version": 0, "tz": "UTC"}),
        ("DELETE", "/calendars/{name}", None),
        ("POST", "/calendars/import", {"name": "weekends", "ical": ICAL.format(year=2026)}),
        ("POST", "/calendars/holidays", {"name": "weekends", "country": "TR", "years": 2026}),
    ]
    for method, template, body in asked:
        error = api.error(method, template, body, name="weekends", status=403)
        assert error["code"] == "read_only_calendar"
    copy = api.post(
        "/calendars/{name}/clone",
        {"name": "mine", "add": {"2099-01-01": "x"}},
        name="weekends",
        status=201,
    )
    assert (copy["owner"], copy["read_only"], copy["dates"]) == (owner, False, {"2099-01-01": "x"})


def test_a_file_is_imported_twice_into_one_calendar(api: Api, clock: ManualClock):
    year = 1970 + clock.now() // 31_556_952_000
    body = {"name": "company", "ical": ICAL.format(year=year), "tz": "Europe/Istanbul"}

    first = api.post("/calendars/import", body)
    second = api.post("/calendars/import", body | {"ical": ICAL.format(year=year + 1)})

    assert first["dates"] == {f"{year}-05-01": "Labour Day"}
    assert second["dates"] == {f"{year + 1}-05-01": "Labour Day"}
    assert (second["id"], second["version"]) == (first["id"], 2)
    error = api.error("POST", "/calendars/import", body | {"ical": "BEGIN:VEVENT"}, status=422)
    assert error["code"] == "invalid_calendar"


def test_the_holidays_of_a_country(api: Api, monkeypatch: pytest.MonkeyPatch):
    body = {"name": "tr", "country": "TR", "years": [2026, 2027], "tz": "Europe/Istanbul"}

    made = api.post("/calendars/holidays", body)

    assert {"2026-10-29", "2027-10-29"} <= made["dates"].keys()
    error = api.error("POST", "/calendars/holidays", body | {"country": "XX"}, status=422)
    assert error["field"] == "country"
    monkeypatch.setitem(sys.modules, "holidays", None)
    error = api.error("POST", "/calendars/holidays", body, status=501)
    assert error["code"] == "missing_extra"


def test_which_ticks_a_change_would_change(api: Api, made: dict[str, Any]):
    schedule = api.post("/schedules", NINE | {"calendar": "plant closed"}, status=201)
    day = schedule["next_tick_at"][:10]

    asked = api.get("/calendars/{name}/changes", name=made["id"], params={"add": [day], "n": 3})
    given = {"add": {day: "inventory"}, "n": 3}
    told = api.post("/calendars/{name}/changes", given, name=made["id"])

    for [change] in (asked, told):
        assert (change["schedule_id"], change["key"]) == (schedule["id"], "daily")
        assert (change["before"], change["after"]) == ("dispatch", "skip")
        assert change["tick_at"] == schedule["next_tick_at"]
    assert "inventory" in told[0]["why"]
    assert api.get("/calendars/{name}", name=made["id"])["version"] == 1
    assert api.get("/calendars/{name}/changes", name=made["id"]) == []


def test_calendars_that_end(api: Api, shop: Duly, clock: ManualClock):
    day = shop.calendars.get("weekends").calendar.day(clock.now() + 40 * 86_400_000).isoformat()
    made = api.post("/calendars", PLANT | {"dates": [day]}, status=201)
    schedule = api.post("/schedules", NINE | {"calendar": "plant closed"}, status=201)

    [found] = api.get("/calendars/ending", params={"days": 60})

    assert found["calendar"] == made
    assert (found["last_date"], found["schedules"][0]["id"]) == (day, schedule["id"])
    assert api.get("/calendars/ending", params={"days": 10}) == []


def test_for_an_owner_there_are_no_calendars_of_others(
    guarded: TestClient, bearer: Callable[..., dict[str, Any]]
):
    anna, bob = (Api(guarded, bearer("operate", owner=name)) for name in ("anna", "bob"))
    everybody = Api(guarded, bearer("operate"))
    hers = anna.post("/calendars", PLANT, status=201)
    his = bob.post("/calendars", PLANT, status=201)
    common = everybody.post("/calendars", PLANT | {"name": "common"}, status=201)

    asked: list[tuple[str, str, Any]] = [
        ("GET", "", None),
        ("PATCH", "", {"version": 1}),
        ("DELETE", "", None),
        ("POST", "/clone", {"name": "stolen"}),
        ("GET", "/changes", None),
        ("POST", "/changes", {}),
    ]
    for method, path, body in asked:
        for other in (hers["id"], common["id"], "common"):
            error = bob.error(method, "/calendars/{name}" + path, body, name=other, status=404)
            assert error["code"] == "calendar_not_found", (method, path)
    assert bob.get("/calendars/{name}", name="plant closed")["id"] == his["id"]
    listed = [item["id"] for item in bob.get("/calendars")["items"]]
    assert listed == [*SEEDS, his["id"]]
    assert bob.error("POST", "/calendars", PLANT | {"owner": "anna"}, status=403)
    schedule = bob.post("/schedules", NINE, status=201)
    error = bob.error(
        "POST",
        "/schedules/{id}/attach",
        {"calendar": hers["id"]},
        id=schedule["id"],
        status=404,
    )
    assert error["code"] == "calendar_not_found"
    assert everybody.get("/calendars/{name}", name=hers["id"])["owner"] == "anna"
    copy = everybody.post("/calendars/{name}/clone", {"name": "copy"}, name=hers["id"], status=201)
    assert copy["owner"] == "anna"


def test_readers_change_nothing(guarded: TestClient, bearer: Callable[..., dict[str, Any]]):
    reader = Api(guarded, bearer("read"))

    assert reader.error("POST", "/calendars", PLANT, status=403)["code"] == "forbidden"
    assert len(reader.get("/calendars")["items"]) == len(SEEDS)
