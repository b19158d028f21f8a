"""Instants and numbers at the edges, wherever one may be given: refused, and never our error."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from duly import Duly

GREET = {"function": "greet", "args": {"name": "ann"}}
FIRST, LAST = "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"
EDGES = [
    FIRST,
    "0001-01-01T00:00:00+14:00",
    "0001-01-01T00:00:00-14:00",
    "1969-12-31T23:59:59Z",
    LAST,
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-14:00",
    "9999-12-31T23:59:59+14:00",
]
NUMBERS = ["1e999", "-1e999", "1e308", "1e17", "NaN", "0", "-0.0", "1e-320", "9" * 400]

INSTANTS: list[tuple[str, str, str]] = [
    ("GET", "/cron?expression=*+*+*+*+*&after={edge}", ""),
    ("GET", "/cron?expression=0+0+29+2+1&tz=Asia/Tokyo&n=1000&after={edge}", ""),
    ("GET", "/cron?expression=0+0+*+*+*&tz=Pacific/Apia&n=10&after={edge}", ""),
    ("GET", "/forecast?start={edge}", ""),
    ("GET", "/schedules/{id}/preview?after={edge}", ""),
    ("GET", "/schedules/{id}/preview?n=200&tz=Asia/Tokyo&after={edge}", ""),
    ("GET", "/schedules/{id}/ticks?after={edge}", ""),
    ("GET", "/schedules/{id}/ticks?before={edge}", ""),
    ("GET", "/schedules/{id}/ticks?after={edge}&before={edge}", ""),
    ("POST", "/schedules/{id}/move-next", '{"to": "EDGE"}'),
    ("POST", "/schedules/{id}/backfill", '{"start": "EDGE", "end": "EDGE", "dry_run": true}'),
    ("POST", "/schedules/{id}/backfill", f'{{"start": "{FIRST}", "end": "EDGE"}}'),
    ("POST", "/schedules/{id}/backfill", f'{{"start": "EDGE", "end": "{LAST}"}}'),
    ("PATCH", "/schedules/{id}", '{"version": 1, "start_at": "EDGE"}'),
    ("PATCH", "/schedules/{id}", '{"version": 1, "end_at": "EDGE"}'),
    ("PATCH", "/schedules/{id}", '{"version": 1, "every": "60s", "anchor_at": "EDGE"}'),
    ("PATCH", "/schedules/{id}", '{"version": 1, "every": null, "at": "EDGE"}'),
    ("POST", "/jobs", '{"function": "greet", "args": {"name": "a"}, "run_at": "EDGE"}'),
    ("POST", "/jobs/bulk", '{"verb": "cancel", "after": "EDGE", "dry_run": true}'),
    ("POST", "/jobs/bulk", '{"verb": "cancel", "before": "EDGE", "dry_run": true}'),
    ("POST", "/jobs/bulk", '{"verb": "reschedule", "function": "greet", "run_at": "EDGE"}'),
    ("POST", "/tokens", '{"name": "ci", "scopes": ["read"], "expires_at": "EDGE"}'),
]
SECONDS: list[tuple[str, str, str]] = [
    ("PATCH", "/schedules/{id}", '{"version": 1, "every_ms": EDGE}'),
    (
        "PATCH",
        "/schedules/{id}",
        '{"version": 1, "every_ms": EDGE, "anchor_at": "2026-01-01T00:00:00Z"}',
    ),
    ("PATCH", "/schedules/{id}", '{"version": 1, "jitter": EDGE}'),
    ("PATCH", "/schedules/{id}", '{"version": 1, "catch_up_window": EDGE}'),
    ("PATCH", "/schedules/{id}", '{"version": 1, "budget": {"runs": 1, "per": EDGE}}'),
    ("PATCH", "/schedules/{id}", '{"version": 1, "budget": {"cost": EDGE, "per": 60}}'),
    ("PATCH", "/schedules/{id}", '{"version": 1, "expect": {"within": EDGE}}'),
    ("PATCH", "/schedules/{id}", '{"version": EDGE}'),
    ("POST", "/jobs", '{"function": "greet", "args": {"name": "a"}, "run_after": EDGE}'),
    (
        "POST",
        "/jobs",
        '{"function": "greet", "args": {"name": "a"}, "options": {"timeout": EDGE}}',
    ),
    (
        "POST",
        "/jobs",
        '{"function": "greet", "args": {"name": "a"}, "options": {"expires": EDGE}}',
    ),
    ("POST", "/jobs/bulk", '{"verb": "reschedule", "function": "greet", "run_after": EDGE}'),
    ("POST", "/endpoints", '{"name": "e", "url": "https://example.com/", "timeout": EDGE}'),
]
DATES = ["0001-01-01", "0001-01-02", "9999-12-30", "9999-12-31", "1899-01-01", "2026-02-29"]


@pytest.fixture
def schedule(shop: Duly) -> str:
    return shop.schedules.create("s", shop.function("greet").bind(name="a"), every=3600).id


def ask(client: TestClient, method: str, path: str, body: str) -> Any:
    headers = {"content-type": "application/json"}
    return client.request(method, f"/api/v1{path}", content=body or None, headers=headers)


@pytest.fixture
def lenient(client: TestClient) -> TestClient:
    """What goes wrong is an answer, so that all of a table is seen."""
    return TestClient(client.app, raise_server_exceptions=False)


@pytest.mark.parametrize(("method", "path", "body"), INSTANTS)
def test_instants_at_the_edges(
    lenient: TestClient, schedule: str, method: str, path: str, body: str
):
    for edge in EDGES:
        where = path.format(id=schedule, edge=edge.replace("+", "%2B"))
        answer = ask(lenient, method, where, body.replace("EDGE", edge))
        assert answer.status_code < 500, (where, edge, answer.text)
        # What was taken can be read again.
        assert ask(lenient, "GET", f"/schedules/{schedule}", "").status_code == 200
        assert ask(lenient, "GET", f"/schedules/{schedule}/preview", "").status_code == 200


@pytest.mark.parametrize(("method", "path", "body"), SECONDS)
def test_numbers_at_the_edges(
    lenient: TestClient, schedule: str, method: str, path: str, body: str
):
    for edge in NUMBERS:
        answer = ask(lenient, method, path.format(id=schedule), body.replace("EDGE", edge))
        assert answer.status_code < 500, (body, edge, answer.text)
        assert ask(lenient, "GET", f"/schedules/{schedule}", "").status_code == 200


@pytest.mark.parametrize("date", DATES)
def test_dates_at_the_edges(lenient: TestClient, schedule: str, date: str):
    for kind in ("skip_dates", "only_dates"):
        name = f"{kind} {date}"
        made = lenient.post(
            "/api/v1/calendars",
            json={"name": name, "kind": kind, "dates": [date], "tz": "Pacific/Apia"},
        )
        assert made.status_code < 500, made.text
        if made.status_code != 201:
            continue
        calendar = made.json()["id"]
        attached = lenient.patch(
            f"/api/v1/schedules/{schedule}",
            json={
                "version": lenient.get(f"/api/v1/schedules/{schedule}").json()["version"],
                "calendar": name,
                "shift": "next",
            },
        )
        assert attached.status_code < 500, attached.text
        for path in (
            f"/calendars/{calendar}",
            f"/calendars/{calendar}/changes",
            "/calendars/ending?days=3660",
            f"/schedules/{schedule}/preview?n=20",
            "/forecast?days=92",
            "/forecast.ics?days=31",
        ):
            answer = ask(lenient, "GET", path, "")
            assert answer.status_code < 500, (path, date, answer.text)


def test_what_cron_is_asked_about_lies_within_five_years(lenient: TestClient):
    for edge in (FIRST, LAST):
        answer = ask(lenient, "GET", f"/cron?expression=*+*+*+*+*&after={edge}", "")
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_time")
