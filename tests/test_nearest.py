"""Unknown names: the errors suggest the nearest known one, in Python and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from duly import Ctx, Duly
from duly.cli.local import Local
from duly.errors import (
    CalendarNotFound,
    DulyError,
    EndpointNotFound,
    GatewayNotFound,
    ScheduleNotFound,
    UnknownFunction,
)
from duly.nearest import MAX_LENGTH, nearest


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Duly]:
    app = Duly(f"sqlite:///{tmp_path}/x.db")

    @app.action
    def take(ctx: Ctx) -> None: ...

    @app.action(internal=True)
    def takes(ctx: Ctx) -> None: ...

    app.migrate()
    app.functions.publish()
    app.schedules.create("nightly", take, every=3600)
    app.schedules.create("nightlies", take, every=3600, owner="ann")
    app.calendars.create("days off", "skip_dates", dates=["2099-01-01"])
    app.calendars.of("ann").create("day off", "skip_dates", dates=["2099-01-01"])
    app.endpoints.create("billing", "https://billing.example.com")
    app.gateways.add("edge", "http://10.1.0.7:8700")
    yield app
    app.close()


def test_the_nearest_name() -> None:
    assert nearest("takse", ["send", "takes"]) == "takes"
    assert nearest("takse", []) is None
    assert nearest("takse", ["zzz"]) is None
    assert nearest("a" * (MAX_LENGTH + 1), ["a" * MAX_LENGTH]) is None


LOOK_UPS: list[tuple[type[DulyError], Callable[[Duly], object], str | None]] = [
    (UnknownFunction, lambda app: app.functions.info("tak"), "take"),
    (ScheduleNotFound, lambda app: app.schedules.get("nigtly"), "nightly"),
    (ScheduleNotFound, lambda app: app.schedules.of("ann").get("nightlie"), "nightlies"),
    (ScheduleNotFound, lambda app: app.schedules.of("bob").get("nigtly"), None),
    (CalendarNotFound, lambda app: app.calendars.get("days of"), "days off"),
    (CalendarNotFound, lambda app: app.calendars.get("weekend"), "weekends"),
    (CalendarNotFound, lambda app: app.calendars.of("ann").get("dayoff"), "day off"),
    (CalendarNotFound, lambda app: app.schedules.attach("nightly", "days of"), "days off"),
    (EndpointNotFound, lambda app: app.endpoints.get("biling"), "billing"),
    (EndpointNotFound, lambda app: app.endpoints.of("ann").get("biling"), None),
    (GatewayNotFound, lambda app: app.gateways.crons("edg"), "edge"),
]


@pytest.mark.parametrize(("kind", "look_up", "near"), LOOK_UPS)
def test_an_unknown_name_suggests_the_nearest_one_of_its_owner(
    app: Duly, kind: type[DulyError], look_up: Callable[[Duly], object], near: str | None
) -> None:
    with pytest.raises(kind) as caught:
        look_up(app)
    if near is None:
        assert "did you mean" not in str(caught.value)
        assert "list them with" in str(caught.value)
    else:
        assert f"did you mean {near!r}?" in str(caught.value)


def test_a_declared_schedule_with_an_unknown_calendar(app: Duly) -> None:
    app.schedule("hourly", app.function("take"), every=3600, calendar="days of")
    [blocked] = app.schedules.apply().blocked
    assert blocked.reason == "there is no calendar 'days of'; did you mean 'days off'?"


def test_http_does_not_suggest_functions_that_are_not_callable(app: Duly) -> None:
    api = Local(app)

    def refusal(method: str, path: str, body: object) -> str:
        reply = api.send(method, f"/api/v1{path}", {}, json.dumps(body).encode())
        assert reply.status == 404
        return str(json.loads(reply.body)["error"]["message"])

    assert "did you mean 'take'?" in refusal("POST", "/jobs", {"function": "takse"})
    assert "did you mean 'take'?" in refusal("POST", "/jobs", {"function": "takes"})
    app.functions.delete("take")
    assert "did you mean" not in refusal("POST", "/jobs", {"function": "takse"})
    assert "did you mean 'billing'?" in refusal("POST", "/jobs", {"endpoint": "biling"})
