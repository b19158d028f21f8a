"""The API for schedules, conditions, forecasts and cron, answer by answer."""

import datetime as dt
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Annotated, Any

import pytest
from starlette.testclient import TestClient

from duly import Ctx, Duly, ManualClock, Redact
from duly.model import ical_feed
from duly.model.ical import dates_of
from duly.schedules.tick_jobs import call_of_schedule
from tests.schedules.support import tick_all
from tests.server.contract import Api

NINE = {"key": "daily", "function": "greet", "args": {"name": "ann"}, "cron": "0 9 * * *"}
NOBODY = "01890000-0000-7000-8000-000000000000"


@pytest.fixture
def api(client: TestClient) -> Api:
    return Api(client)


@pytest.fixture
def made(api: Api) -> dict[str, Any]:
    made: dict[str, Any] = api.post("/schedules", NINE, status=201)
    return made


# Making ------------------------------------------------------------------------------------------


def test_a_schedule_is_checked_and_not_made(api: Api, shop: Duly):
    options = {"options": {"queue": "mail"}}
    checked = api.post("/schedules/check", {**NINE, **options})
    assert api.get("/schedules")["items"] == []
    made = api.post("/schedules", {**NINE, **options}, status=201)
    passing = {"id", "created_at", "created_at_ms", "updated_at", "updated_at_ms"}
    assert {k: v for k, v in checked.items() if k not in passing} == {
        k: v for k, v in made.items() if k not in passing
    }
    assert made["options"] == {"queue": "mail"}
    # It says whether one could be made, not whether there is one.
    assert api.post("/schedules/check", NINE)["key"] == NINE["key"]
    for wrong in ({"cron": "61 * * * *"}, {"args": {"nothing": 1}}):
        api.error("POST", "/schedules/check", {**NINE, **wrong}, status=422)


def test_a_schedule_is_made_with_every_option(api: Api, shop: Duly):
    @shop.action
    def tell(ctx: Ctx, schedule_id: str, problem: str) -> None: ...

    shop.functions.publish()
    start = datetime.fromtimestamp(shop.clock.now() / 1000, UTC) + timedelta(days=1)
    given: dict[str, Any] = NINE | {
        "tz": "Europe/Istanbul",
        "calendar": "weekends",
        "shift": "next",
        "condition": {"/last_24h_stats/failed": {"lt": 3}},
        "rotation": [{"name": "bob"}, {"name": "eve", "times": 2}],
        "overlap": "buffer_one",
        "catch_up": 3,
        "catch_up_window": 3600,
        "jitter": 30.5,
        "budget": {"runs": 5, "per": 86_400},
        "start_at": start.isoformat(),
        "end_at": (start + timedelta(days=30)).isoformat(),
        "remaining": 7,
        "expect": {"within": 900},
        "alert": "tell",
        "note": "every morning",
        "enabled": True,
        "options": {"queue": "mail", "priority": 3, "tags": ["a"]},
        "owner": "anna",
    }

    made = api.post("/schedules", given, status=201)

    same = ["key", "function", "args", "cron", "tz", "calendar", "shift", "condition", "rotation"]
    same += ("overlap", "catch_up", "catch_up_window", "jitter", "remaining", "alert", "note")
    assert {name: made[name] for name in (*same, "owner")} == {
        n: given[n] for n in (*same, "owner")
    }
    assert made["budget"] == {"runs": 5, "cost": None, "per": 86_400}
    assert made["expect"] == {"by": None, "within": 900, "every": None}
    assert made["description"] == "At 09:00 (Europe/Istanbul)"
    assert (made["status"], made["version"], made["changed_by"]) == ("enabled", 1, "local")
    assert datetime.fromisoformat(made["start_at"]).timestamp() * 1000 == made["start_at_ms"]
    stored = shop.schedules.get(made["id"])
    assert call_of_schedule(shop.core, stored.record).function.options.queue == "mail"
    assert api.get("/schedules/{id}", id=made["id"]) == made


@pytest.mark.parametrize(
    ("trigger", "shown"),
    [
        ({"every": "10m"}, {"every_ms": 600_000, "description": "Every 10 minutes"}),
        ({"every": "1h30m"}, {"every_ms": 5_400_000, "description": "Every 90 minutes"}),
        ({"every_ms": 300_000}, {"every": "5m", "description": "Every 5 minutes"}),
        ({"every": "1h", "tz": "Asia/Tokyo"}, {"description": "Every hour", "tz": "Asia/Tokyo"}),
        (
            {"every_ms": 600_000, "anchor_at": "2026-01-01T00:00:30Z"},
            {"anchor_at": "2026-01-01T00:00:30.000Z", "every": "10m"},
        ),
        ({"every": "10m", "fire_at_once": True}, {"every": "10m"}),
    ],
)
def test_an_interval(api: Api, trigger: dict[str, Any], shown: dict[str, Any]):
    given = {"key": "k", "function": "greet", "args": {"name": "x"}} | trigger

    made = api.post("/schedules", given, status=201)

    assert made | shown == made
    assert made["cron"] is None


@pytest.mark.spec("R18")
@pytest.mark.parametrize("bare", [300, 300_000.0, "300000", "five minutes", "5 m", "", True, []])
def test_an_interval_without_a_unit_is_refused_with_both_spellings(api: Api, bare: Any):
    given = {"key": "k", "function": "greet", "args": {"name": "x"}, "every": bare}
    for method, path, body in (("POST", "/schedules", given), ("POST", "/schedules/check", given)):
        error = api.error(method, path, body, status=422)
        assert error["field"] == "every"
        assert error["message"].endswith(
            'write "every": "5m" or "1h30m", or "every_ms": 300000 for milliseconds'
        )
    assert api.get("/schedules")["items"] == []


@pytest.mark.spec("R19")
def test_a_schedule_that_becomes_an_interval_and_a_cron_again_keeps_its_zone(api: Api):
    made = api.post("/schedules", NINE | {"tz": "Asia/Tokyo"}, status=201)
    anchored: dict[str, Any] = {"every_ms": 600_000, "anchor_at": "2026-01-01T00:00:30Z"}
    for version, changes in enumerate(({"every": "1h"}, anchored), 1):
        changed = api.patch("/schedules/{id}", changes | {"version": version}, id=made["id"])
        assert changed["tz"] == "Asia/Tokyo"
    back = api.patch("/schedules/{id}", {"version": 3, "cron": "0 9 * * *"}, id=made["id"])
    assert (back["tz"], back["next_tick_at"]) == (made["tz"], made["next_tick_at"])


@pytest.mark.spec("N79", "N80")
def test_a_rule_and_several_triggers(api: Api, clock: ManualClock):
    rule = {"kind": "rule", "rule": "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO"}
    zoned = rule | {"start": "2026-07-06T09:00:00", "tz": "Europe/Istanbul"}
    given: dict[str, Any] = {"key": "k", "function": "greet", "args": {"name": "x"}}

    made = api.post("/schedules", given | {"trigger": zoned}, status=201)

    assert (made["trigger"], made["tz"], made["cron"]) == (zoned, "Europe/Istanbul", None)
    words = "Every 2 weeks on Monday at 09:00, from 2026-07-06 (Europe/Istanbul)"
    assert made["description"] == words
    coming = api.get("/schedules/{id}/preview", id=made["id"])
    first, second = (datetime.fromisoformat(tick["tick_at"]) for tick in coming[:2])
    assert (second - first).days == 14
    cron = {"kind": "cron", "expression": "0 9 * * *", "tz": "UTC", "spread": "k"}
    every = {"kind": "interval", "milliseconds": 300_000}
    several = {"kind": "any_of", "triggers": [cron, every]}
    changed = api.patch("/schedules/{id}", {"version": 1, "trigger": several}, id=made["id"])
    assert changed["description"] == "At 09:00 (UTC); every 5 minutes"
    assert changed["trigger"]["triggers"][0] == cron
    assert changed["trigger"]["triggers"][1]["anchor"] > clock.now()
    assert api.get("/schedules/{id}", id=made["id"]) == changed
    back = api.patch("/schedules/{id}", {"version": 2, "cron": "0 9 * * *"}, id=made["id"])
    assert (back["cron"], back["trigger"]["kind"]) == ("0 9 * * *", "cron")
    for trigger, field in (
        (rule, "start"),
        (zoned | {"rule": "FREQ=HOURLY;BYDAY=XX"}, "rule"),
        (zoned | {"rule": "FREQ=MINUTELY;BYSECOND=0,9"}, "rule"),
        (zoned | {"tz": "Mars/Base"}, "tz"),
        (zoned | {"tz": None}, "tz"),
        (zoned | {"end": 5}, "end"),
        ({"kind": "any_of", "triggers": [several]}, "triggers"),
        ({"kind": "any_of", "triggers": [every | {"milliseconds": 60_000}]}, "every"),
        ({"kind": "any_of", "triggers": [5]}, "trigger"),
        ({"kind": "sometimes"}, "kind"),
        ("FREQ=DAILY", "trigger"),
    ):
        body = given | {"key": "other", "trigger": trigger}
        assert api.error("POST", "/schedules", body, status=422)["field"] == field, trigger
    both = given | {"key": "other", "trigger": zoned, "cron": "0 9 * * *"}
    assert api.error("POST", "/schedules", both, status=422)["field"] == "trigger"


def test_one_instant(api: Api, clock: ManualClock):
    when = datetime.fromtimestamp(clock.now() / 1000 + 3600, UTC).replace(microsecond=0)
    given = {"key": "k", "function": "greet", "args": {"name": "x"}, "at": when.isoformat()}

    made = api.post("/schedules", given, status=201)

    assert made["at"] == made["next_tick_at"] == when.strftime("%Y-%m-%dT%H:%M:%S.000Z")


@pytest.mark.parametrize(
    ("changes", "status", "code", "field"),
    [
        ({"cron": "61 * * * *"}, 422, "invalid_cron", "minute"),
        ({"cron": None}, 422, "invalid_option", "trigger"),
        ({"every": "60s", "cron": None}, 422, "invalid_option", "every"),
        ({"every": "10m"}, 422, "invalid_option", "trigger"),
        ({"anchor_at": "2026-01-01T00:00:00Z"}, 422, "invalid_option", "anchor_at"),
        ({"tz": "Mars/Base"}, 422, "unknown_zone", "tz"),
        ({"tz": ""}, 422, "unknown_zone", "tz"),
        ({"every": "10m", "every_ms": 600_000, "cron": None}, 422, "invalid_option", "every_ms"),
        ({"every": "999ms", "cron": None}, 422, "invalid_option", "every"),
        ({"every_ms": 299_999, "cron": None}, 422, "invalid_option", "every"),
        ({"calendar": "none"}, 404, "calendar_not_found", "calendar"),
        ({"condition": {"/a": {"is": 1}}}, 422, "invalid_condition", "condition"),
        ({"rotation": [{"nme": "x"}]}, 422, "invalid_rotation", "rotation"),
        ({"overlap": "maybe"}, 422, "invalid", "overlap"),
        ({"budget": {"per": 60}}, 422, "invalid_option", "budget"),
        ({"expect": {"by": "7"}}, 422, "invalid_option", "expect"),
        ({"alert": "greet", "expect": {"within": 60}}, 422, "invalid_argument", None),
        ({"args": {}}, 422, "invalid_argument", "name"),
        ({"args": {"name": "x", "self": 1}}, 422, "invalid_argument", "self"),
        ({"function": "nobody"}, 404, "unknown_function", None),
        ({"start_at": "2026-01-01T00:00:00"}, 422, "invalid", "start_at"),
        ({"start_at": "9999-01-01T00:00:00Z"}, 422, "invalid_time", "start_at"),
        ({"colour": "red"}, 422, "invalid", "colour"),
        ({"key": NOBODY}, 422, "invalid_option", "key"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(
    api: Api, changes: dict[str, Any], status: int, code: str, field: str | None
):
    error = api.error("POST", "/schedules", NINE | changes, status=status)

    assert error["code"] == code
    if field is not None:
        assert error["field"] == field
    assert api.get("/schedules")["items"] == []


def test_a_key_is_taken_once(api: Api, made: dict[str, Any]):
    error = api.error("POST", "/schedules", NINE, status=409)

    assert (error["code"], error["field"]) == ("schedule_exists", "key")


def test_a_request_that_is_repeated_makes_nothing_twice(api: Api, client: TestClient):
    def post(_: int) -> Any:
        headers = {"Idempotency-Key": "one"}
        return client.post("/api/v1/schedules", json=NINE, headers=headers)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(post, range(8)))

    assert {answer.status_code for answer in answers} <= {200, 201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    again = api.post("/schedules", NINE, key="one")
    assert again["id"] == answers[0].json()["id"]
    other = api.error("POST", "/schedules", NINE | {"key": "other"}, key="one", status=422)
    assert other["code"] == "idempotency_mismatch"


@pytest.mark.spec("R70")
def test_an_internal_function_is_scheduled_by_code_only(api: Api, shop: Duly):
    inside = shop.schedules.create("inside", shop.function("secretly"), every=600)
    made = api.post("/schedules", NINE, status=201)

    asked: list[tuple[str, str, Any]] = [
        ("POST", "/schedules", {"key": "k", "function": "secretly", "every": "10m"}),
        ("PATCH", "/schedules/{id}", {"version": 1, "function": "secretly", "args": {}}),
        ("PATCH", "/schedules/{id}", {"version": 1, "alert": "secretly"}),
    ]
    for method, template, body in asked:
        error = api.error(method, template, body, status=404, id=made["id"])
        assert (error["code"], "secretly" in error["message"]) == ("unknown_function", True)
    given: list[tuple[str, str, Any]] = [
        ("PATCH", "/schedules/{id}", {"version": 1, "args": {}}),
        ("PATCH", "/schedules/{id}", {"version": 1, "options": {"priority": 1}}),
        ("PATCH", "/schedules/{id}", {"version": 1, "rotation": [{}]}),
        ("PUT", "/schedules/{id}/rotation", {"rotation": [{}]}),
        ("POST", "/schedules/{id}/run", {"inputs": {}}),
    ]
    for method, template, body in given:
        error = api.error(method, template, body, status=404, id=inside.id)
        assert error["code"] == "unknown_function"
    assert shop.schedules.get("inside").version == 1
    # What is not about its arguments operators may do.
    disabled = api.post("/schedules/{id}/disable", {"note": "stop"}, id=inside.id)
    assert (disabled["status"], disabled["note"]) == ("disabled", "stop")


@pytest.mark.spec("N27")
def test_a_deprecated_or_deleted_function_gets_no_new_schedule(api: Api, shop: Duly):
    shop.functions.deprecate("greet")
    assert api.error("POST", "/schedules", NINE, status=409)["code"] == "function_deprecated"

    shop.functions.delete("greet")
    assert api.error("POST", "/schedules", NINE, status=410)["code"] == "function_deleted"
    assert api.get("/schedules")["items"] == []


# Finding -----------------------------------------------------------------------------------------


def test_schedules_come_in_pages_by_filter(api: Api, shop: Duly):
    shop.calendars.create("plant", "skip_dates", dates=["2099-01-01"])
    for number in range(5):
        calendar = {"calendar": "plant"} if number < 2 else {}
        body = NINE | {"key": f"k{number}", "enabled": number != 3} | calendar
        api.post("/schedules", body, status=201)
    api.post("/schedules", NINE | {"owner": "anna", "key": "hers"}, status=201)

    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = api.get("/schedules", params={"limit": 2, **after})
        seen += [item["key"] for item in page["items"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert seen == ["k0", "k1", "k2", "k3", "k4", "hers"]

    def keys(**params: Any) -> list[str]:
        return [item["key"] for item in api.get("/schedules", params=params)["items"]]

    assert keys(owner="anna") == ["hers"]
    assert keys(enabled=False) == ["k3"]
    assert keys(calendar="plant") == ["k0", "k1"]
    assert keys(function="note") == keys(parked=True) == []
    assert len(keys(function="greet")) == 6
    assert api.error("GET", "/schedules", params={"after": "x"}, status=422)["field"] == "after"
    assert api.error("GET", "/schedules", params={"limit": 0}, status=422)["field"] == "limit"


def test_a_schedule_is_named_by_its_id_only(api: Api, made: dict[str, Any]):
    for wrong in ("daily", NOBODY):
        error = api.error("GET", "/schedules/{id}", id=wrong, status=404)
        assert error["code"] == "schedule_not_found"


def test_a_schedule_that_cannot_be_read_is_shown(api: Api, made: dict[str, Any], db: Any):
    table = "duly_schedules" if db.is_sqlite else "duly.schedules"
    broken = """SET trigger = '{"kind":"moon"}', policies = '{"overlap":"never"}'"""
    db.execute(f"UPDATE {table} {broken}")

    shown = api.get("/schedules/{id}", id=made["id"])

    assert (shown["cron"], shown["description"], shown["overlap"]) == (None, None, "skip")
    repaired = api.patch(
        "/schedules/{id}", {"version": shown["version"], "cron": "0 8 * * *"}, id=made["id"]
    )
    assert repaired["cron"] == "0 8 * * *"


# Changing ----------------------------------------------------------------------------------------


def test_what_is_given_changes_and_nothing_else(api: Api, shop: Duly):
    made = api.post(
        "/schedules",
        NINE | {"tz": "Europe/Istanbul", "jitter": 5, "calendar": "weekends", "note": "n"},
        status=201,
    )

    changed = api.patch("/schedules/{id}", {"version": 1, "jitter": None}, id=made["id"])

    differ = {name for name in made if made[name] != changed[name]}
    assert differ <= {"jitter", "version", "updated_at", "updated_at_ms", "due_at", "due_at_ms"}
    assert (changed["jitter"], changed["version"], changed["tz"]) == (None, 2, "Europe/Istanbul")
    changed = api.patch(
        "/schedules/{id}",
        {"version": 2, "cron": None, "every": "15m", "args": {"name": "bob"}, "calendar": None},
        id=made["id"],
    )
    assert (changed["cron"], changed["every"], changed["calendar"]) == (None, "15m", None)
    assert (changed["args"], changed["note"]) == ({"name": "bob"}, "n")


def test_the_options_of_the_call_change_without_its_arguments(
    api: Api, shop: Duly, made: dict[str, Any]
):
    api.patch("/schedules/{id}", {"version": 1, "options": {"queue": "slow"}}, id=made["id"])

    call = call_of_schedule(shop.core, shop.schedules.get(made["id"]).record)
    assert (call.function.options.queue, call.args) == ("slow", '{"name":"ann"}')
    api.patch("/schedules/{id}", {"version": 2, "args": {"name": "x"}}, id=made["id"])
    call = call_of_schedule(shop.core, shop.schedules.get(made["id"]).record)
    assert (call.function.options.queue, call.args) == ("slow", '{"name":"x"}')
    api.patch(
        "/schedules/{id}", {"version": 3, "function": "note", "args": {"text": "t"}}, id=made["id"]
    )
    assert shop.schedules.get(made["id"]).function == "note"


def test_what_is_redacted_is_kept_where_it_is_given_as_it_is_shown(api: Api, shop: Duly):
    @shop.action
    def pay(ctx: Ctx, card: Annotated[str, Redact], amount: int) -> None: ...

    @shop.action
    def refund(ctx: Ctx, card: Annotated[str, Redact], amount: int) -> None: ...

    shop.functions.publish()
    new = {"key": "pay", "function": "pay", "every": "10m", "args": {"card": "4000", "amount": 5}}
    turns = [{"card": "4111", "amount": 1}, {"card": "4222", "amount": 2}]
    made = api.post("/schedules", new | {"rotation": turns}, status=201)
    path, schedule = "/schedules/{id}", made["id"]

    def change(**body: Any) -> None:
        version = api.get(path, id=schedule)["version"]
        api.patch(path, {"version": version, **body}, id=schedule)

    def stored() -> tuple[Any, Any]:
        record: Any = shop.store.schedule(schedule)
        return json.loads(record.args), json.loads(record.rotation)

    shown = api.get(path, id=schedule)["rotation"]
    change(args=made["args"] | {"amount": 6}, rotation=[shown[0], shown[1] | {"amount": 3}])
    turns[1]["amount"] = 3
    assert stored() == ({"card": "4000", "amount": 6}, turns)
    left = {"rotation": api.get(path, id=schedule)["rotation"][1:]}
    api.put(path + "/rotation", left, id=schedule)
    assert stored()[1] == turns[1:]
    inputs = {"inputs": {"card": "***", "amount": 9}}
    job = api.post(path + "/run", inputs, id=schedule)["job_id"]
    ran: Any = shop.store.get(job)
    assert json.loads(ran.args) == {"card": "4000", "amount": 9}
    change(function="pay", args={"card": "***", "amount": 7})
    assert stored()[0] == {"card": "4000", "amount": 7}
    change(args={"card": "***x", "amount": 6})
    assert stored()[0]["card"] == "***x"

    masked = {"card": "***", "amount": 1}
    for wrong in ({"function": "refund", "args": masked}, {"rotation": [masked] * 2}):
        body = {"version": api.get(path, id=schedule)["version"], **wrong}
        refused = api.error("PATCH", path, body, id=schedule, status=422)
        assert "give the value itself" in refused["message"]
    for path in ("/schedules", "/jobs"):
        body = {"function": "pay", "args": masked}
        body |= {"key": "other", "every": "10m"} if path == "/schedules" else {}
        assert "give the value itself" in api.error("POST", path, body, status=422)["message"]
    for path in ("/schedules", "/schedules/check"):
        body = new | {"key": "other", "rotation": [masked]}
        assert "give the value itself" in api.error("POST", path, body, status=422)["message"]


def test_an_edit_of_what_has_changed_since_is_refused(api: Api, made: dict[str, Any]):
    api.patch("/schedules/{id}", {"version": 1, "note": "a"}, id=made["id"])

    error = api.error("PATCH", "/schedules/{id}", {"version": 1}, id=made["id"], status=409)

    assert error["code"] == "stale_version"
    error = api.error("PATCH", "/schedules/{id}", {"note": "b"}, id=made["id"], status=422)
    assert error["field"] == "version"
    assert api.get("/schedules/{id}", id=made["id"])["note"] == "a"


def test_every_verb_of_an_operator_says_who_it_was(api: Api, shop: Duly, made: dict[str, Any]):
    schedule = made["id"]
    later = made["next_tick_at_ms"] / 1000 + 60
    verbs: list[tuple[str, str, Any, int]] = [
        ("PATCH", "", {"version": 1, "note": "x"}, 200),
        ("POST", "/disable", {"note": "stop"}, 200),
        ("POST", "/enable", {}, 200),
        ("POST", "/skip-next", None, 200),
        ("POST", "/move-next", {"to": datetime.fromtimestamp(later, UTC).isoformat()}, 200),
        ("POST", "/attach", {"calendar": "weekends"}, 200),
        ("POST", "/detach", None, 200),
        ("PUT", "/rotation", {"rotation": [{"name": "b"}]}, 200),
        ("DELETE", "/rotation", None, 200),
        ("POST", "/run", {}, 200),
        ("POST", "/backfill", _last_days(shop, 3), 200),
        ("DELETE", "", None, 204),
    ]
    for method, path, body, status in verbs:
        before = len(shop.ready().audit_of(f"schedule:{schedule}"))
        api(method, "/schedules/{id}" + path, body, id=schedule, status=status)
        after = shop.ready().audit_of(f"schedule:{schedule}")
        assert len(after) > before, (method, path)
        assert {entry.actor for entry in after} == {"local"}, (method, path)


def _last_days(app: Duly, days: int) -> dict[str, Any]:
    now = datetime.fromtimestamp(app.clock.now() / 1000, UTC)
    return {"start": (now - timedelta(days=days)).isoformat(), "end": now.isoformat()}


def test_the_audit_of_one(api: Api, made: dict[str, Any]):
    api.post("/schedules/{id}/disable", {"note": "stop"}, id=made["id"])

    first = api.get("/schedules/{id}/audit", id=made["id"], params={"limit": 1})
    second = api.get("/schedules/{id}/audit", id=made["id"], params={"before": first["next"]})

    actions = [entry["action"] for entry in first["items"] + second["items"]]
    assert actions == ["schedule.disable", "schedule.create"]
    assert first["items"][0]["detail"] == {"note": "stop"}


def test_the_next_tick_is_skipped_or_moved(api: Api, made: dict[str, Any]):
    skipped = api.post("/schedules/{id}/skip-next", id=made["id"])
    assert skipped["override"]["tick_at"] == made["next_tick_at"]
    assert skipped["override"]["to_at"] is None

    to = made["next_tick_at"].replace("09:00", "09:30")
    moved = api.post("/schedules/{id}/move-next", {"to": to}, id=made["id"])
    assert (moved["due_at"], moved["override"]["to_at"]) == (to, to)
    error = api.error(
        "POST",
        "/schedules/{id}/move-next",
        {"to": "2020-01-01T00:00:00Z"},
        id=made["id"],
        status=422,
    )
    assert error["field"] in ("to", None)


def test_running_one_by_hand(api: Api, made: dict[str, Any]):
    tick = api.post("/schedules/{id}/run", {"inputs": {"name": "eve"}}, id=made["id"])

    assert (tick["kind"], tick["outcome"]) == ("manual", "dispatched")
    job = api.get("/jobs/{id}", id=tick["job_id"])
    assert (job["args"], job["trigger"]) == ({"name": "eve"}, "schedule")
    again = api.post("/schedules/{id}/run", {}, id=made["id"])
    assert (again["outcome"], again["reason"]) == ("skipped", "overlap_in_flight")
    error = api.error(
        "POST", "/schedules/{id}/run", {"inputs": {"nme": 1}}, id=made["id"], status=422
    )
    assert error["code"] == "invalid_argument"


def test_a_backfill_says_first_what_it_would_do(api: Api, shop: Duly, made: dict[str, Any]):
    span = _last_days(shop, 3)

    would = api.post("/schedules/{id}/backfill", span | {"dry_run": True}, id=made["id"])
    assert (would["dispatched"], would["dry_run"]) == (3, True)
    assert api.get("/jobs")["items"] == []

    did = api.post("/schedules/{id}/backfill", span, id=made["id"])
    assert [tick["tick_at"] for tick in did["ticks"]] == [t["tick_at"] for t in would["ticks"]]
    assert len(api.get("/jobs")["items"]) == 3
    again = api.post("/schedules/{id}/backfill", span, id=made["id"])
    assert (again["dispatched"], again["skipped"]) == (0, 3)


# Looking -----------------------------------------------------------------------------------------


def test_the_ledger_comes_in_pages(api: Api, shop: Duly, made: dict[str, Any], clock: ManualClock):
    api.patch("/schedules/{id}", {"version": 1, "overlap": "allow"}, id=made["id"])
    for _ in range(5):
        clock.advance(86_400)
        tick_all(shop)
    api.post("/schedules/{id}/run", {}, id=made["id"])

    seen: list[str] = []
    before: dict[str, str] = {}
    while True:
        page = api.get("/schedules/{id}/ticks", id=made["id"], params={"limit": 2, **before})
        seen += [tick["tick_at"] for tick in page["items"]]
        if page["next"] is None:
            break
        before = {"before": page["next"]}

    assert len(seen) == len(set(seen)) == 6
    assert seen == sorted(seen, reverse=True)

    def ticks(**params: Any) -> list[Any]:
        page: dict[str, list[Any]] = api.get("/schedules/{id}/ticks", id=made["id"], params=params)
        return page["items"]

    assert len(ticks(outcome="dispatched")) == 6
    assert ticks(outcome="missed") == ticks(reason="calendar") == []
    assert len(ticks(after=seen[2])) == 3


def test_ticks_of_one_instant_are_on_one_page(api: Api, shop: Duly, clock: ManualClock):
    made = api.post("/schedules", NINE | {"overlap": "allow"}, status=201)
    clock.advance((made["next_tick_at_ms"] - clock.now()) / 1000)
    api.post("/schedules/{id}/run", {}, id=made["id"])
    tick_all(shop)

    page = api.get("/schedules/{id}/ticks", id=made["id"], params={"limit": 1})

    instants = {tick["tick_at"] for tick in page["items"]}
    whole = api.get("/schedules/{id}/ticks", id=made["id"])["items"]
    assert [t for t in whole if t["tick_at"] in instants] == page["items"]
    rest: list[Any] = []
    if page["next"]:
        params = {"before": page["next"]}
        rest = api.get("/schedules/{id}/ticks", id=made["id"], params=params)["items"]
    assert page["items"] + rest == whole
    assert len(whole) == 2


@pytest.mark.spec("R148")
def test_a_preview(api: Api, made: dict[str, Any]):
    coming = api.get("/schedules/{id}/preview", id=made["id"], params={"n": 3, "tz": "Asia/Tokyo"})

    assert [tick["decision"] for tick in coming] == ["dispatch"] * 3
    assert coming[0]["tick_at"] == made["next_tick_at"]
    assert coming[0]["viewer"].endswith("T18:00:00+09:00")
    params: dict[str, Any] = {"n": 2, "after": coming[0]["tick_at"], "simulate": True}
    later = api.get("/schedules/{id}/preview", id=made["id"], params=params)
    assert [tick["tick_at"] for tick in later] == [tick["tick_at"] for tick in coming[1:]]
    most = api.get("/schedules/{id}/preview", id=made["id"], params={"n": 200})
    assert len(most) == 200
    for n in (0, 201):
        error = api.error(
            "GET", "/schedules/{id}/preview", id=made["id"], params={"n": n}, status=422
        )
        assert error["field"] == "n"


def test_how_one_does(api: Api, made: dict[str, Any]):
    assert api.get("/schedules/{id}/health", id=made["id"])["state"] == "never_ran"
    api.post("/schedules/{id}/disable", {"note": "holidays"}, id=made["id"])

    health = api.get("/schedules/{id}/health", id=made["id"])
    assert (health["state"], health["why"]) == ("paused", "holidays")


@pytest.mark.spec("N6")
def test_why_one_has_not_run(api: Api, shop: Duly, made: dict[str, Any]):
    why = api.get("/schedules/{id}/why", id=made["id"])
    assert (why["schedule_id"], why["key"]) == (made["id"], "daily")
    assert [reason["cause"] for reason in why["reasons"]] == ["never_ticked", "next_tick"]
    assert why["reasons"][1]["until_ms"] == made["next_tick_at_ms"]
    api.post("/schedules/{id}/disable", {"note": "holidays"}, id=made["id"])
    why = api.get("/schedules/{id}/why", id=made["id"])
    assert why["reasons"][0]["text"] == "it is disabled by local (holidays)"
    assert why["text"].startswith("daily does not run: it is disabled by local (holidays);")


def test_a_condition_is_explained_operator_by_operator(api: Api, made: dict[str, Any]):
    assert api.get("/schedules/{id}/explain", id=made["id"]) == {
        "passes": True,
        "detail": "",
        "checks": [],
    }
    condition = {
        "/last_24h_stats/failed": {"lt": 3},
        "/prior_run_result/status": {"eq": "completed"},
    }
    asked = api.post("/schedules/{id}/explain", {"condition": condition}, id=made["id"])

    assert asked["passes"] is False
    assert [(c["pointer"], c["found"], c["actual"], c["passes"]) for c in asked["checks"]] == [
        ("/last_24h_stats/failed", True, 0, True),
        ("/prior_run_result/status", False, None, False),
    ]
    api.patch("/schedules/{id}", {"version": 1, "condition": condition}, id=made["id"])
    assert api.get("/schedules/{id}/explain", id=made["id"]) == asked
    wrong = {"condition": {"failed": {"lt": 3}}}
    error = api.error("POST", "/schedules/{id}/explain", wrong, id=made["id"], status=422)
    assert (error["code"], error["hint"]) == ("invalid_condition", 'write "/failed"')


# What code declares ------------------------------------------------------------------------------


@pytest.mark.spec("N71", "N72")
def test_what_code_declares_is_planned_applied_and_pruned(api: Api, shop: Duly):
    closed = shop.calendar("closed", dates=["2030-01-01"])
    greet = shop.function("greet").bind(name="x")
    shop.schedule("nightly", greet, cron="0 3 * * *", calendar=closed)
    shop.schedule("weekly", greet, cron="0 3 * * 1", calendar="closde")

    plan = api.get("/schedules/plan")
    said = "there is no calendar 'closde'; did you mean 'closed'?"
    assert [
        (entry["kind"], entry["key"], entry["is_calendar"], entry["reason"])
        for entry in plan["entries"]
    ] == [
        ("create", "closed", True, None),
        ("create", "nightly", False, None),
        ("blocked", "weekly", False, said),
    ]
    assert api.post("/schedules/apply", {"dry_run": True}) == plan
    assert api.get("/schedules")["items"] == []

    assert api.post("/schedules/apply", {})["changes"] == 2
    found = api.get("/calendars/{id}", id="closed")
    assert (found["declared"], found["orphaned"]) == (True, False)
    [stored] = api.get("/schedules")["items"]
    assert (stored["key"], stored["declared"], stored["changed_by"]) == ("nightly", True, "local")
    shop.core.declarations.clear()
    shop.core.declared_calendars.clear()
    api.post("/schedules/apply", {})
    assert api.get("/calendars/{id}", id="closed")["orphaned"] is True
    assert api.get("/schedules/{id}", id=stored["id"])["status"] == "orphaned"
    assert api.post("/schedules/prune", {"dry_run": True})["changes"] == 2
    assert api.post("/schedules/prune", {})["entries"][0]["kind"] == "remove"
    assert api.get("/schedules")["items"] == []


def test_a_plan_says_what_changes(api: Api, shop: Duly):
    shop.schedule("nightly", shop.function("greet").bind(name="x"), cron="0 3 * * *")
    shop.schedules.apply()
    shop.core.declarations.clear()
    start = datetime.fromtimestamp(shop.clock.now() / 1000, UTC) + timedelta(days=3)
    shop.schedule(
        "nightly", shop.function("greet").bind(name="x"), cron="0 4 * * *", start_at=start
    )

    [entry] = api.get("/schedules/plan")["entries"]

    assert entry["kind"] == "change"
    assert entry["changed"]["trigger"] == {
        "before": "0 3 * * * (UTC)",
        "after": "0 4 * * * (UTC)",
    }
    assert entry["changed"]["start_at"]["before"] is None


# Owners ------------------------------------------------------------------------------------------


def test_for_an_owner_there_are_no_schedules_of_others(
    guarded: TestClient, bearer: Callable[..., dict[str, Any]]
):
    anna, bob = (Api(guarded, bearer("operate", owner=name)) for name in ("anna", "bob"))
    everybody = Api(guarded, bearer("operate"))
    hers = anna.post("/schedules", NINE, status=201)
    assert hers["owner"] == "anna"
    his = bob.post("/schedules", NINE, status=201)
    assert his["id"] != hers["id"]

    later = {"to": "2026-01-01T00:00:00Z"}
    asked: list[tuple[str, str, Any]] = [
        ("GET", "", None),
        ("PATCH", "", {"version": 1}),
        ("DELETE", "", None),
        ("POST", "/enable", {}),
        ("POST", "/disable", {}),
        ("POST", "/run", {}),
        ("POST", "/skip-next", None),
        ("POST", "/move-next", later),
        ("POST", "/attach", {"calendar": "weekends"}),
        ("POST", "/detach", None),
        ("PUT", "/rotation", {"rotation": [{"name": "b"}]}),
        ("DELETE", "/rotation", None),
        ("POST", "/backfill", {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}),
        ("GET", "/ticks", None),
        ("GET", "/preview", None),
        ("GET", "/health", None),
        ("GET", "/why", None),
        ("GET", "/explain", None),
        ("POST", "/explain", {"condition": {}}),
        ("GET", "/audit", None),
    ]
    for method, path, body in asked:
        error = bob.error(method, "/schedules/{id}" + path, body, id=hers["id"], status=404)
        assert error["code"] == "schedule_not_found", (method, path)
    assert bob.error("GET", "/forecast.ics", params={"schedule": hers["id"]}, status=404)
    assert [item["id"] for item in bob.get("/schedules")["items"]] == [his["id"]]
    assert len(everybody.get("/schedules")["items"]) == 2
    assert everybody.get("/schedules/{id}", id=hers["id"])["version"] == 1
    assert anna.get("/schedules/{id}", id=hers["id"])["id"] == hers["id"]
    assert bob.error("POST", "/schedules", NINE | {"owner": "anna"}, status=403)
    assert bob.error("GET", "/schedules", params={"owner": "anna"}, status=403)
    for method, path in (("GET", "/plan"), ("POST", "/apply"), ("POST", "/prune")):
        body = None if method == "GET" else {}
        assert bob.error(method, "/schedules" + path, body, status=403)


def test_a_repeated_request_of_another_finds_nothing_of_ones_own(
    guarded: TestClient, bearer: Callable[..., dict[str, Any]]
):
    anna, bob = (Api(guarded, bearer("operate", owner=name)) for name in ("anna", "bob"))

    hers = anna.post("/schedules", NINE, key="k", status=201)
    his = bob.post("/schedules", NINE, key="k", status=201)

    assert hers["id"] != his["id"]


def test_readers_change_nothing(guarded: TestClient, bearer: Callable[..., dict[str, Any]]):
    reader = Api(guarded, bearer("read"))

    assert reader.error("POST", "/schedules", NINE, status=403)["code"] == "forbidden"
    assert reader.get("/schedules")["items"] == []
    assert Api(guarded).error("GET", "/schedules", status=401)["code"] == "unauthorized"


# Conditions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("condition", [None, {}, {"/signal_rpc_result/a": {"eq": 1}}])
def test_a_condition_that_makes_sense(api: Api, condition: Any):
    answer = api.post("/conditions/validate", {"condition": condition})

    assert answer == {"valid": True, "error": None}


@pytest.mark.parametrize(
    ("condition", "pointer", "reason"),
    [
        ([], None, "must be an object, not list"),
        ({"a": {"eq": 1}}, "a", "a pointer must start with a slash"),
        ({"/a": {"is": 1}}, "/a", "unknown operator 'is'"),
        ({"/a": {}}, "/a", "no operators; give exactly one"),
        ({"/last_24h_stat": {"eq": 1}}, "/last_24h_stat", "there is no value 'last_24h_stat'"),
    ],
)
def test_a_condition_that_makes_none(api: Api, condition: Any, pointer: str | None, reason: str):
    answer = api.post("/conditions/validate", {"condition": condition})

    assert answer["valid"] is False
    assert (answer["error"]["pointer"], answer["error"]["reason"]) == (pointer, reason)


def test_a_condition_is_tried_on_a_context(api: Api):
    context = {"last_24h_stats": {"failed": 5}, "prior_run_result": {"status": "completed"}}
    condition = {
        "/last_24h_stats/failed": {"lt": 3},
        "/prior_run_result/status": {"eq": "succeeded"},
    }

    answer = api.post("/conditions/explain", {"condition": condition, "context": context})

    assert answer["passes"] is False
    assert answer["detail"] == "/last_24h_stats/failed is 5, expected < 3"
    assert [(c["found"], c["actual"], c["passes"]) for c in answer["checks"]] == [
        (True, 5, False),
        (True, "completed", True),
    ]
    assert answer["checks"][0]["why"] == "5 is not less than 3"


def test_a_context_that_is_no_json_is_refused(client: TestClient):
    for content in ('{"condition": {"": {"neq": 1}}, "context": NaN}', '{"context": {"a": 1e999}}'):
        answer = client.post(
            "/api/v1/conditions/explain",
            content=content,
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 422, answer.text


# Forecasts ---------------------------------------------------------------------------------------


@pytest.mark.spec("N15")
def test_a_forecast(api: Api, clock: ManualClock):
    api.post("/schedules", NINE, status=201)
    api.post("/schedules", NINE | {"key": "hers", "owner": "anna"}, status=201)

    found = api.get("/forecast", params={"days": 2})

    assert (len(found["hours"]), found["total"], found["schedules"]) == (48, 4, 2)
    assert found["complete"] is True
    assert [(each["key"], each["dispatches"]) for each in found["by_schedule"]] == [
        ("daily", 2),
        ("hers", 2),
    ]
    assert [minute["dispatches"] for minute in found["busiest"]] == [2, 2]
    assert found["busiest"][0]["at"].endswith("T09:00:00.000Z")
    starts = [hour["at_ms"] for hour in found["hours"]]
    assert {later - sooner for sooner, later in pairwise(starts)} == {3_600_000}
    assert api.get("/forecast", params={"days": 2, "owner": "anna"})["total"] == 2
    start = datetime.fromtimestamp(clock.now() / 1000, UTC) + timedelta(days=10)
    assert api.get("/forecast", params={"days": 1, "start": start.isoformat()})["total"] == 2
    far = (start + timedelta(days=100)).isoformat()
    assert api.error("GET", "/forecast", params={"start": far}, status=422)["field"] == "start"
    assert api.error("GET", "/forecast", params={"days": 93}, status=422)["field"] == "days"


LINE = re.compile(r"(BEGIN|END|[A-Z-]+)(;[A-Z-]+=[^:;]+)*:[^\x00-\x08\x0a-\x1f\x7f]*")


def strictly(text: str) -> list[str]:
    """The lines of a feed, unfolded; fails where RFC 5545 is not kept."""
    assert text.endswith("END:VCALENDAR\r\n")
    physical = text.removesuffix("\r\n").split("\r\n")
    for line in physical:
        assert "\n" not in line
        assert "\r" not in line
        assert 0 < len(line.encode()) <= 75
    lines = text.removesuffix("\r\n").replace("\r\n ", "").split("\r\n")
    for line in lines:
        assert LINE.fullmatch(line), line
    assert lines[:2] == ["BEGIN:VCALENDAR", "VERSION:2.0"]
    begun: list[str] = []
    for name, _, value in (line.partition(":") for line in lines):
        if name == "BEGIN":
            begun.append(value)
        elif name == "END":
            assert begun.pop() == value
    assert begun == []
    return lines


def values(lines: list[str], name: str) -> list[str]:
    return [line.partition(":")[2] for line in lines if line.startswith(f"{name}:")]


@pytest.mark.spec("N15")
def test_the_feed_is_one_that_calendar_programs_read(api: Api, client: TestClient, shop: Duly):
    key = "Ağustos; a, b \\ " + "ğ" * 60
    made = api.post("/schedules", NINE | {"key": key, "tz": "Europe/Istanbul"}, status=201)
    api.post("/schedules", NINE | {"key": "off", "enabled": False}, status=201)

    answer = client.get("/api/v1/forecast.ics", params={"days": 3})
    assert answer.headers["content-type"] == "text/calendar; charset=utf-8"
    lines = strictly(answer.text)

    starts = values(lines, "DTSTART")
    assert len(starts) == 3
    assert all(re.fullmatch(r"\d{8}T060000Z", start) for start in starts)
    assert len(set(values(lines, "UID"))) == 3
    assert values(lines, "UID")[0].startswith(made["id"])
    assert len(set(values(lines, "DTSTAMP"))) == 1
    raw = values(lines, "SUMMARY")[0]
    assert raw == key.replace("\\", "\\\\").replace(";", "\\;").replace(",", "\\,")
    # Our own reader finds the same days, by the same name.
    first = dt.date.fromisoformat(made["next_tick_at"][:10])
    read = dates_of(answer.text, first, first + timedelta(days=30), "Europe/Istanbul")
    assert read == [(first + timedelta(days=n), key) for n in range(3)]
    # Those who look again find the same events.
    assert values(strictly(api.get("/forecast.ics", params={"days": 3})), "UID") == values(
        lines, "UID"
    )


@pytest.mark.spec("N15")
def test_the_feed_is_for_an_owner_or_a_schedule_and_bounded(
    guarded: TestClient, shop: Duly, bearer: Callable[..., dict[str, Any]]
):
    everybody = Api(guarded, bearer("operate"))
    anna = Api(guarded, bearer("operate", owner="anna"))
    mine = everybody.post("/schedules", NINE, status=201)
    anna.post("/schedules", NINE | {"key": "hers", "cron": "* * * * *"}, status=201)

    hers = strictly(anna.get("/forecast.ics"))
    assert set(values(hers, "SUMMARY")) == {"hers"}
    assert len(values(hers, "UID")) == 1_000
    cut = guarded.get("/api/v1/forecast.ics", headers=anna.headers)
    assert cut.headers["x-duly-complete"] == "false"
    one = strictly(everybody.get("/forecast.ics", params={"schedule": mine["id"]}))
    assert set(values(one, "SUMMARY")) == {"daily"}
    assert len(values(one, "UID")) == 7
    both = strictly(everybody.get("/forecast.ics", params={"days": 1}))
    assert values(both, "DTSTART") == sorted(values(both, "DTSTART"))
    assert set(values(both, "SUMMARY")) >= {"hers"}
    assert everybody.error("GET", "/forecast.ics", params={"days": 32}, status=422)


def test_ticks_that_bring_nothing_are_not_looked_at_for_long(
    api: Api, client: TestClient, monkeypatch: pytest.MonkeyPatch
):
    never = {"name": "never", "kind": "only_dates", "dates": ["2031-01-01"]}
    api.post("/calendars", never, status=201)
    often = {"cron": "* * * * *", "calendar": "never"}
    api.post("/schedules", NINE | often | {"key": "often"}, status=201)
    api.post("/schedules", NINE, status=201)

    def look() -> tuple[int, str | None, int, bool]:
        feed = client.get("/api/v1/forecast.ics", params={"days": 2})
        found = api.get("/forecast", params={"days": 2})
        events = len(values(strictly(feed.text), "UID"))
        return events, feed.headers.get("x-duly-complete"), found["total"], found["complete"]

    assert look() == (2, None, 2, True)
    monkeypatch.setattr("duly.server.api.forecast.MAX_TICKS", 1440)
    assert look() == (0, "false", 2, True)


def test_an_empty_feed_is_a_whole_file(api: Api):
    text = api.get("/forecast.ics")

    assert "BEGIN:VTIMEZONE" in strictly(text)
    assert dates_of(text, dt.date(2026, 1, 1), dt.date(2026, 12, 31)) == []


def test_no_text_breaks_out_of_its_line():
    nasty = "a\r\nBEGIN:VEVENT\nb\rc\x00\x1b;,\\\ud800" + "𝒳" * 50
    event = ical_feed.Event(0, "u", nasty, nasty)

    lines = strictly(ical_feed.feed("n", [event], 0))

    assert lines.count("BEGIN:VEVENT") == 1
    assert values(lines, "SUMMARY")[0].startswith("a\\nBEGIN:VEVENT\\nb\\nc��\\;\\,\\\\�𝒳")


# Cron --------------------------------------------------------------------------------------------


def test_cron_in_words_with_what_clocks_do_to_it(api: Api):
    params: dict[str, Any] = {
        "expression": "30 2 * * *",
        "tz": "Europe/Berlin",
        "n": 3,
        "after": "2026-03-28T00:00:00Z",
    }

    answer = api.get("/cron", params=params)

    assert answer["description"] == "At 02:30 (Europe/Berlin)"
    locals_ = [fire["local"] for fire in answer["fires"]]
    assert locals_ == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]
    assert [fire["dst_adjusted"] for fire in answer["fires"]] == [False, True, False]
    assert "clocks skip its time" in answer["fires"][1]["note"]
    autumn = params | {"after": "2026-10-24T12:00:00Z", "n": 1}
    [fire] = api.get("/cron", params=autumn)["fires"]
    assert (fire["local"], "first" in fire["note"]) == ("2026-10-25T02:30:00+02:00", True)
    noon = params | {"expression": "0 12 * * *", "n": 2, "after": "2026-03-28T12:00:00Z"}
    first, second = api.get("/cron", params=noon)["fires"]
    assert "set forward by 1:00:00" in first["note"]
    assert second["note"] is None


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"expression": "x"}, "expression"),
        ({"expression": "* * * * *", "tz": "Nowhere"}, "tz"),
        ({"expression": "* * * * *", "n": 1_001}, "n"),
        ({"expression": "* * * * *", "after": "soon"}, "after"),
        ({}, "expression"),
    ],
)
def test_cron_that_makes_no_sense(api: Api, params: dict[str, Any], field: str):
    assert api.error("GET", "/cron", params=params, status=422)["field"] == field
