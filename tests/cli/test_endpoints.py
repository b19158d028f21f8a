"""`duly endpoints`, `duly webhooks` and `duly gateways`."""

import json
import re
import signal

import pytest

from duly import Ctx
from duly.webhooks import Bearer
from tests.cli.places import Place
from tests.jobs.support import on_postgres, on_sqlite, wait_until
from tests.server.listening import listening

URL = "https://example.com/hook"


@pytest.mark.spec("R161")
def test_endpoints_are_made_changed_and_removed(place: Place) -> None:
    made = place.duly(
        *("endpoints", "create", "billing", URL, "--secret", "env:BILLING", "--attempts", "4"),
        *("--header", "authorization=env:TOKEN", "--header", "X-Kind=test", "--timeout", "5s"),
        "--json",
    ).json
    assert (made["secret"], made["timeout"]) == ("env:BILLING", 5)
    assert made["retry"]["attempts"] == 4
    shown = place.duly("endpoints", "show", "billing").out
    assert "env:TOKEN" in shown
    assert "up to 4 times, within 5s each time" in shown
    for columns in (80, 40):
        listed = place.duly("endpoints", "list", columns=columns).plain
        assert "billing" in listed
        assert max(map(len, listed.splitlines())) <= columns

    changed = place.duly(
        *("endpoints", "update", made["id"], "--header", "x-kind=real", "--header"),
        *("authorization=", "--secret", "", "--attempts", "1", "--json"),
    ).json
    assert changed["headers"] == {"x-kind": "real"}
    assert (changed["secret"], changed["retry"], changed["url"]) == (None, None, URL)
    assert place.app.endpoints.get("billing").version == 2
    leak = place.duly("endpoints", "create", "x", URL, "--header", "hunter2", code=2)
    assert "hunter2" not in leak.err
    raw = place.duly("endpoints", "create", "x", URL, "--secret", "hunter2", code=1)
    assert "env:NAME" in raw.err
    assert "hunter2" not in raw.err
    assert "--url" in place.duly("endpoints", "update", "billing", code=2).err
    assert "did you mean 'billing'?" in place.duly("endpoints", "show", "bilingg", code=1).err

    place.app.endpoints.of("ann").create("billing", URL)
    twins = place.duly("endpoints", "remove", "billing", "--force", code=1)
    assert "give --owner, or the id" in twins.err
    assert "--force" in place.duly("endpoints", "remove", made["id"], code=1).err
    place.duly("endpoints", "remove", "billing", "--owner", "ann", "--force")
    asked = [("Remove endpoint 'billing'", "y\n")]
    place.duly("endpoints", "remove", "billing", columns=100, keys=asked)
    assert place.app.endpoints.list() == []


@on_postgres
def test_something_is_sent_as_a_job(place: Place) -> None:
    place.app.endpoints.allow = ["127.0.0.1"]
    with listening(200, 500) as there:
        place.app.endpoints.create("billing", there.url)
        order = place.folder / "order.json"
        order.write_text('{"order": 7}')
        with place.app:
            place.duly("endpoints", "send", "billing", f"@{order}")
            failed = place.duly("endpoints", "send", "billing", "[1]", code=1)
        assert [json.loads(heard.body) for heard in there.heard] == [{"order": 7}, [1]]
        assert "500" in failed.out
    again = ("endpoints", "send", "billing", "--no-wait", "--key", "k")
    assert place.duly(*again).out == place.duly(*again).out
    assert "JSON" in place.duly("endpoints", "send", "billing", "{", code=2).err


@on_sqlite
def test_webhooks_are_listed_and_processed_again(place: Place) -> None:
    app = place.app

    @app.action
    def take(ctx: Ctx, event_id: str) -> None: ...

    app.webhook("in", source=Bearer(secrets=["s3cret"]), process=take)
    app.functions.publish()
    body = b'{"say": "\\u001b[2Jhello"}'
    event = app.webhooks.receive("in", [("authorization", "Bearer s3cret")], body).event_id
    assert event is not None
    for columns in (80, 40):
        listed = place.duly("webhooks", "list", columns=columns).plain
        assert max(map(len, listed.splitlines())) <= columns
    assert [each["id"] for each in place.duly("webhooks", "list", "--json").json] == [event]
    assert place.duly("webhooks", "list", "--state", "failed").out == "no deliveries\n"
    shown = place.duly("webhooks", "show", event).out
    assert "hello" in shown
    assert "\x1b" not in shown
    assert "s3cret" not in shown
    early = place.duly("webhooks", "retry", event, code=1)
    assert "only failed deliveries" in early.out
    app.cancel(app.webhooks.get(event).job_id or "")
    again = place.duly("webhooks", "retry", event).out
    assert app.webhooks.get(event).job_id in again.split()
    near = event[:-1] + ("0" if event[-1] != "0" else "1")
    assert f"did you mean '{event}'?" in place.duly("webhooks", "show", near, code=1).err


@pytest.mark.spec("R161")
def test_gateways_and_their_crons(place: Place) -> None:
    env = {"GATEWAY_FOLDER": str(place.folder)}
    process = "tests.server.gateway_process:gateway"
    gateway = place.start("gateways", "serve", process, "--port", "0", env=env)
    gateway.until("Ctrl-C stops")
    address = gateway.seen.split("': ")[1].split(";")[0]

    assert "gateways crons edge" in place.duly("gateways", "add", "edge", address).out
    crons = ("gateways", "crons", "edge")
    assert place.duly(*crons).out == "no crons\n"
    made = place.duly(
        *(*crons, "add", "touch", "name=seen", "--cron", "0 3 * * *"),
        *("--tz", "Europe/Istanbul", "--name", "nightly", "--json"),
    ).json
    assert made["schedule"] == {"kind": "cron", "cron": "0 3 * * *", "tz": "Europe/Istanbul"}
    for columns in (80, 40):
        listed = place.duly(*crons, columns=columns).plain
        assert "night" in listed
        assert max(map(len, listed.splitlines())) <= columns
    for command in (("add",), ("update",), ("run",), ("remove",)):
        helped = place.duly("gateways", "crons", "nowhere", *command, "--help").out
        assert helped.startswith("Usage: ")
    assert "there is no gateway" in place.duly("gateways", "crons", "nowhere", code=1).err

    assert "not-due" in place.duly(*crons, "run", "nightly", "--if-due", code=1).out
    place.duly(*crons, "run", "nightly")
    wait_until(lambda: (place.folder / "seen").exists())
    wait_until(lambda: place.duly(*crons, "--json").json["crons"][0]["last_status"] == "ok")
    listed = place.duly(*crons, columns=200).plain
    assert re.search(r"0 3 \* \* \* +Europe/Istanbul +enabled +in .*(ago|now), ok", listed)
    place.duly(*crons, "update", "nightly", "--every", "1h", "--disable")
    [cron] = place.duly(*crons, "--json").json["crons"]
    assert (cron["schedule"]["every_ms"], cron["enabled"]) == (3_600_000, False)
    assert (cron["tz"], cron["description"]) == ("Europe/Istanbul", "Every hour")
    listed = place.duly(*crons, columns=200).plain
    assert re.search(r"every 1h +Europe/Istanbul +disabled +.*(ago|now), ok", listed)

    place.app.schedules.create("often", place.app.function("touch").bind("x"), every=600)
    place.app.schedules.run("often")
    observed = place.duly("observe", columns=200).plain
    schedules = place.duly("schedules", "list", columns=200).plain
    assert re.search(r"edge/nightly +disabled +interval 1h +.*, ok +Europe/Istanbul", observed)
    assert re.search(r"touch \(often\) +enabled .*interval 10m .*, pending", observed)
    assert re.search(
        r"often +enabled +in .* Every 10 minutes .*(ago|now), pending +touch", schedules
    )
    rows = place.duly("observe", "--limit", "1", "--json").json["rows"]
    assert [row["source"] for row in rows] == ["schedule", "gateway"]
    assert cron["payload"] == {"name": "seen"}
    wrong = place.duly(*crons, "run", "nightli", code=1)
    assert "did you mean 'nightly'?" in wrong.err
    assert "--force" in place.duly(*crons, "remove", "nightly", code=1).err
    assert "give --cron, --every or --at" in place.duly(*crons, "add", "touch", code=2).err

    gateway.signal(signal.SIGKILL)
    wait_until(lambda: place.duly(*crons, code=None).code == 1)
    gone = place.duly("observe")
    assert "edge/nightly" in gone.out
    assert "edge does not respond" in gone.err
    silent = place.duly(*crons, code=1)
    assert "nightly" in silent.out
    assert "does not respond" in silent.err
    assert "stale" in place.duly("gateways", "list").out
    assert "does not respond" in place.duly(*crons, "run", "nightly", code=1).err
    assert "did you mean 'edge'?" in place.duly("gateways", "remove", "egde", code=1).err
    assert "--force" in place.duly("gateways", "remove", "edge", code=1).err
    place.duly("gateways", "remove", "edge", "--force")
    assert place.app.gateways.list() == []
