"""Functions, calendars, webhooks, workers, queues, gateways, the audit log and tokens: each opens,
everybody can use it, and what is done there is found in the database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest

from duly import Ctx, Duly, Redact
from duly.gateway import Gateway
from duly.webhooks import GitHub
from tests.browser.conftest import HOSTILE, TIMEOUT
from tests.browser.serving import check_whole, wait_for_rows
from tests.browser.test_actions import flash
from tests.browser.test_views import until
from tests.server.hooked import SECRET, send

if TYPE_CHECKING:
    from playwright.sync_api import Page

ICAL = """BEGIN:VCALENDAR
VERSION:2.0
BEGIN:VEVENT
UID:1
DTSTART;VALUE=DATE:{day}
SUMMARY:Move of the plant
END:VEVENT
END:VCALENDAR
"""


@pytest.fixture(scope="package")
def edge(tmp_path_factory: pytest.TempPathFactory, shop: Duly) -> Iterator[Gateway]:
    """Another runtime, served beside this one and registered under a hostile name."""
    from tests.server.listening import serving

    gateway = Gateway(tmp_path_factory.mktemp("edge") / "crons.db")

    @gateway.handler("note")
    def note(text: str = "") -> None: ...

    with gateway, serving(gateway.asgi()) as address:
        shop.gateways.add(f"edge {HOSTILE}", address)
        yield gateway


@pytest.fixture(scope="package")
def more(shop: Duly, edge: Gateway) -> dict[str, str]:
    """The address of each of these views, with hostile text wherever users write."""

    @shop.action(name=f"odd {HOSTILE}", queue=HOSTILE)
    def odd(
        ctx: Ctx,
        text: str,
        tone: Literal["calm", "loud"],
        times: int = 1,
        sure: bool = False,
        share: float | None = None,
        parts: dict[str, int] | None = None,
        key: Annotated[str, Redact] = "",
    ) -> None: ...

    @shop.action
    def on_event(ctx: Ctx, event_id: str) -> None:
        raise ValueError(HOSTILE)

    shop.functions.publish()
    shop.webhook("github", source=GitHub(secrets=[SECRET]), process=on_event)
    body = json.dumps({"text": HOSTILE}).encode()
    event = send(shop, body, HOSTILE, HOSTILE).event_id
    shop.run_after(3600, odd, HOSTILE, tone="loud", key="4111")
    calendar = shop.calendars.create(
        f"plant {HOSTILE}", "skip_dates", dates={"2026-12-24": HOSTILE}, by=HOSTILE
    )
    shop.queues.pause(HOSTILE, note=HOSTILE, by=HOSTILE)
    edge.cron_add("note", {"kind": "every", "every_ms": 3_600_000}, name=HOSTILE)
    shop.tokens.create(HOSTILE, ["read"], owner=HOSTILE, by=HOSTILE)
    gateway = shop.gateways.list()[0]
    until(lambda: shop.webhooks.get(str(event)).attempts)
    return {
        "functions": "/functions",
        "no functions": "/functions?search=none+such",
        "function": f"/functions/{odd.name}",
        "calendars": "/calendars",
        "calendar": f"/calendars/{calendar.id}?year=2026",
        "seed": "/calendars/us-federal-holidays",
        "webhooks": "/webhooks",
        "webhook": f"/webhooks/{event}",
        "workers": "/workers",
        "queues": "/queues",
        "gateways": "/gateways",
        "gateway": f"/gateways/{gateway.id}",
        "audit": "/audit",
        "tokens": "/tokens",
    }


NAMES = [
    *("functions", "no functions", "function", "calendars", "calendar", "seed", "webhooks"),
    *("webhook", "workers", "queues", "gateways", "gateway", "audit", "tokens"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_view_is_whole_for_everybody(page: Page, more: dict[str, str], axe: Any, name: str):
    page.goto(more[name])
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.locator("h1").count() == 1
    assert page.locator("img[src=x]").count() == 0
    assert "4111" not in page.content()
    page.evaluate(
        "document.querySelectorAll('main details:not(.drop)').forEach(each => each.open = true)"
    )
    check_whole(page, axe)


def stored_args(shop: Duly, job_id: str) -> dict[str, Any]:
    """With what nobody is shown."""
    record = shop.store.get(job_id)
    assert record is not None
    return dict(json.loads(record.args))


# Functions ---------------------------------------------------------------------------------------


def test_a_function_is_called_from_a_form(visitor: Page, shop: Duly, more: dict[str, str]) -> None:
    page = visitor
    page.goto(more["function"])
    form = page.locator("#run-form")
    form.locator("[name='arg.text']").fill(HOSTILE)
    form.locator("[name='arg.tone']").select_option('"loud"')
    form.locator("[name='arg.times']").fill("often")
    form.locator("[name='arg.parts']").fill('{"a": "b"}')
    form.locator("button").click()
    wrong = page.locator("#run-form [aria-invalid]")
    assert [wrong.nth(n).get_attribute("name") for n in range(wrong.count())] == ["arg.times"]
    assert page.locator("[name='arg.text']").input_value() == HOSTILE, "what was written stays"
    form.locator("[name='arg.times']").fill("2")
    form.locator("button").click()
    page.wait_for_selector("[name='arg.parts'][aria-invalid]")
    assert "int" in page.inner_text("#run-form [role=alert]")
    form.locator("[name='arg.parts']").fill('{"a": 1}')
    form.locator("[name='arg.sure']").select_option("true")
    form.locator("[name='arg.share']").fill("0.5")
    form.locator("[name='arg.key']").fill('"4111"')
    form.locator("[name='run_after']").fill("3600")
    form.locator("button").click()
    page.wait_for_url("**/jobs/*")
    job = shop.job(page.url.rpartition("/")[2])
    args = stored_args(shop, job.id)
    assert args.pop("key") == "4111"
    assert args.pop("text") == HOSTILE
    assert args == {"tone": "loud", "times": 2, "sure": True, "share": 0.5, "parts": {"a": 1}}

    page.goto(more["function"])
    page.check(f"#mark-{job.id}")
    page.click("#bulk button[value=cancel]")
    assert flash(page).endswith("1 job canceled")
    assert job.state == "canceled"


def test_the_status_of_a_function_is_changed(visitor: Page, shop: Duly) -> None:
    page = visitor
    page.goto("/functions?search=greet")
    page.click("a.strong:text-is('greet')")
    for verb, status in (("Pause", "paused"), ("Resume", "active"), ("Deprecate", "deprecated")):
        page.fill("#status-note", f"{verb} {HOSTILE}")
        page.click(f"#status-form button:text-is('{verb}')")
        assert flash(page).endswith(f"The function is {status}")
        info = shop.functions.info("greet")
        assert (str(info.status), info.status_note) == (status, f"{verb} {HOSTILE}")
    assert page.locator("#run-form").count() == 0, "nobody may call it now"
    page.click("#status-form button:text-is('Delete')")
    page.wait_for_selector("#flash :text('deleted')")
    page.click("#status-form button:text-is('Restore')")
    page.wait_for_selector("#flash :text('active')")
    assert shop.functions.info("greet").status == "active"


# Calendars ---------------------------------------------------------------------------------------


def test_a_calendar_is_made_and_changed_day_by_day(visitor: Page, shop: Duly) -> None:
    page = visitor
    scripts = page.locator("html[data-ready]")
    page.goto("/calendars")
    page.click("#new-empty summary")
    page.fill("#form-empty input[name=name]", "by hand")
    page.click("#form-empty button")
    page.wait_for_url("**/calendars/*")
    calendar = shop.calendars.get("by hand")
    schedule = shop.schedules.create(
        "beside", shop.function("fails").bind(), cron="0 9 * * *", calendar="by hand"
    )
    assert schedule.next_tick is not None
    day = schedule.next_tick.date() + timedelta(days=2)
    page.goto(f"/calendars/{calendar.id}?year={day.year}")
    page.check(f"input[value='{day}']")
    page.fill("input[name=label]", "inventory")
    if not scripts.count():
        page.click("#changes button:text-is('Preview')")
    page.wait_for_selector("#changes li:has-text('skipped')")
    assert "beside" in page.inner_text("#changes")
    assert shop.calendars.get("by hand").dates == {}, "nothing is saved yet"
    page.click(f"button[value='year:{day.year + 1}']")
    page.wait_for_selector(f"#year-title:text-is('{day.year + 1}')")
    page.check(f"input[value='{day.year + 1}-05-01']")
    page.click("#changes button:text-is('Save')")
    assert "saved" in flash(page)
    after = shop.calendars.get("by hand")
    assert after.dates == {day: "inventory", date(day.year + 1, 5, 1): ""}
    page.goto(f"/calendars/{calendar.id}?year={day.year}")
    shop.calendars.update("by hand", add=["2030-01-01"])
    page.uncheck(f"input[value='{day}']")
    page.click("#changes button:text-is('Save')")
    page.wait_for_selector("#changes [role=alert]")
    assert day in shop.calendars.get("by hand").dates, "somebody was faster"
    page.goto(f"/calendars/{calendar.id}?year={day.year}")
    page.uncheck(f"input[value='{day}']")
    page.select_option("select[name=kind]", "only_dates")
    page.click("#changes button:text-is('Save')")
    assert "saved" in flash(page)
    after = shop.calendars.get("by hand")
    assert (day in after.dates, str(after.kind)) == (False, "only_dates")
    page.click("button:text-is('Remove')")
    page.wait_for_url("**/calendars")
    assert not [each for each in shop.calendars.list() if each.name == "by hand"]
    shop.schedules.remove(schedule.id)


def test_dates_come_from_elsewhere(visitor: Page, shop: Duly, tmp_path: Path) -> None:
    page = visitor
    file = tmp_path / "plant.ics"
    file.write_text(ICAL.format(day="20270607"))
    page.goto("/calendars")
    page.click("#new-ical summary")
    page.fill("#form-ical input[name=name]", "imported")
    page.set_input_files("#form-ical input[type=file]", file)
    page.click("#form-ical button")
    page.wait_for_url("**/calendars/*")
    calendar = shop.calendars.get("imported")
    assert calendar.dates == {date(2027, 6, 7): "Move of the plant"}
    page.goto("/calendars")
    page.click("#new-ical summary")
    page.fill("#form-ical input[name=name]", "imported")
    page.fill("#form-ical textarea", ICAL.format(day="20280101"))
    page.click("#form-ical button")
    assert "already" in page.inner_text("[role=alert]")
    assert shop.calendars.get("imported").version == calendar.version

    page.goto(f"/calendars/{calendar.id}")
    page.fill("textarea[name=ical]", ICAL.format(day="20270608"))
    page.click("button[value=ical]")
    page.wait_for_selector("#year-title:text-is('2027')")
    assert page.is_checked("input[value='2027-06-07']")
    assert page.is_checked("input[value='2027-06-08']")
    assert shop.calendars.get("imported").version == calendar.version, "nothing is saved yet"
    page.fill("input[name=country]", "DE")
    page.fill("input[name=years]", "2027")
    page.click("button[value=holidays]")
    page.wait_for_selector("label.day.added[title='German Unity Day']")
    page.click("#changes button:text-is('Save')")
    assert "saved" in flash(page)
    after = shop.calendars.get("imported")
    assert after.dates[date(2027, 6, 8)] == "Move of the plant"
    assert after.dates[date(2027, 10, 3)] == "German Unity Day"

    page.goto("/calendars/us-federal-holidays")
    assert page.locator("main input[type=checkbox]").count() == 0
    page.click("summary:text-is('Clone')")
    page.fill("#clone input[name=name]", "ours")
    page.click("#clone button")
    page.wait_for_url(f"**/calendars/{shop.calendars.get('ours').id}")
    for name in ("ours", "imported"):
        shop.calendars.remove(name)


# Webhooks, queues, the kill switch ---------------------------------------------------------------


def test_an_event_is_processed_again(visitor: Page, shop: Duly, more: dict[str, str]) -> None:
    page = visitor
    event_id = more["webhook"].rpartition("/")[2]
    until(lambda: shop.webhooks.get(event_id).job_id)
    first = shop.job(str(shop.webhooks.get(event_id).job_id))
    first.cancel()
    until(lambda: first.state.is_terminal)
    page.goto("/webhooks?state=failed&webhook=github")
    page.click("tbody a.strong")
    assert HOSTILE in page.inner_text("pre").replace('\\"', '"')
    assert (
        "x-hub-signature-256" not in page.inner_text("main").lower() or "sha256" in page.content()
    )
    page.click("button:text-is('Process again')")
    assert "processed again" in flash(page)
    again = shop.job(str(shop.webhooks.get(event_id).job_id))
    assert again.id != first.id
    again.cancel()


def test_a_queue_is_paused_and_limited(visitor: Page, shop: Duly) -> None:
    page = visitor

    def change() -> None:
        page.click("tr:has(a:text-is('slow')) summary")

    page.goto("/queues")
    change()
    page.fill("tr:has(a:text-is('slow')) input[name=note]", HOSTILE)
    page.click("tr:has(a:text-is('slow')) button:text-is('Pause')")
    assert "Queue slow paused" in flash(page)
    paused = {each.name: each.note for each in shop.queues.paused()}
    assert paused["slow"] == HOSTILE
    change()
    page.click("tr:has(a:text-is('slow')) button:text-is('Resume')")
    assert "Queue slow resumed" in flash(page)
    assert "slow" not in {each.name for each in shop.queues.paused()}
    change()
    page.fill("tr:has(a:text-is('slow')) input[name=at_once]", "3")
    page.click("tr:has(a:text-is('slow')) button:text-is('Set limit')")
    assert "at most 3" in flash(page)
    assert shop.queues.limits()["slow"] == 3
    change()
    page.fill("tr:has(a:text-is('slow')) input[name=at_once]", "0")
    page.click("tr:has(a:text-is('slow')) button:text-is('Set limit')")
    assert "greater than or equal to 1" in flash(page)
    change()
    page.fill("tr:has(a:text-is('slow')) input[name=at_once]", "")
    page.click("tr:has(a:text-is('slow')) button:text-is('Set limit')")
    assert "has no limit" in flash(page)
    assert "slow" not in shop.queues.limits()


def test_the_kill_switch(visitor: Page, shop: Duly) -> None:
    page = visitor
    try:
        page.goto("/queues")
        page.fill("#kill-switch input[name=note]", "the database moves")
        page.click("button:text-is('Pause everything')")
        assert "Everything is paused" in flash(page)
        assert shop.paused is not None
        assert (shop.paused.note, shop.paused.paused_by) == ("the database moves", "local")
        assert "the database moves" in page.inner_text(".banner")
        page.click("button:text-is('Resume everything')")
        assert "Everything resumed" in flash(page)
        assert shop.paused is None
    finally:
        shop.resume()


# Gateways ----------------------------------------------------------------------------------------


def test_all_verbs_of_a_gateway(visitor: Page, shop: Duly, edge: Gateway) -> None:
    page = visitor
    gateway = shop.gateways.list()[0]

    def cron() -> Any:
        return next(
            each
            for each in edge.cron_list(disabled=True).crons
            if each.name.startswith("from here")
        )

    page.goto("/gateways")
    page.click("tbody a.strong")
    page.wait_for_url(f"**/gateways/{gateway.id}")
    page.click("#new-cron summary")
    page.fill("#new-cron-form input[name=cron]", "61 * * * *")
    page.fill("#new-cron-form input[name=handler]", "note")
    page.fill("#new-cron-form input[name=name]", "from here")
    page.click("#new-cron-form button")
    assert "61" in page.inner_text("main > .flash")
    page.fill("#new-cron-form input[name=cron]", "0 9 * * *")
    page.fill("#new-cron-form input[name=tz]", "Europe/Berlin")
    page.fill("#new-cron-form textarea", json.dumps({"text": HOSTILE}))
    page.click("#new-cron-form button")
    assert "Cron from here created" in flash(page)
    made = cron()
    assert made.schedule == {"kind": "cron", "cron": "0 9 * * *", "tz": "Europe/Berlin"}
    assert made.payload == {"text": HOSTILE}
    own = f"#cron-{made.id}"
    page.click(f"{own} button:text-is('Run if due')")
    assert "not-due" in flash(page)
    page.click(f"{own} button:text-is('Run now')")
    assert "The cron is running" in flash(page)
    until(lambda: cron().last_status == "ok")
    page.click(f"{own} button:text-is('Disable')")
    assert flash(page).endswith("disabled")
    assert not cron().enabled
    page.click(f"{own} button:text-is('Enable')")
    assert cron().enabled
    page.click(f"{own} summary")
    page.fill(f"{own} input[name=name]", "from here on")
    page.select_option(f"{own} select[name=kind]", "every")
    page.fill(f"{own} input[name=every]", "2h")
    page.click(f"{own} button:text-is('Save')")
    assert "Cron saved" in flash(page)
    after = cron()
    assert (after.name, after.schedule["every_ms"]) == ("from here on", 7_200_000)
    assert after.tz == "Europe/Berlin"
    page.click(f"{own} button:text-is('Remove')")
    assert "Cron removed" in flash(page)
    assert not [each for each in edge.cron_list(disabled=True).crons if each.id == made.id]


def test_a_gateway_is_registered_and_removed(visitor: Page, shop: Duly) -> None:
    page = visitor
    page.goto("/gateways")
    page.fill("#new-gateway input[name=name]", "silent")
    page.fill("#new-gateway input[name=url]", "http://127.0.0.1:1")
    page.click("#new-gateway button")
    page.wait_for_selector(".banner:has-text('has not responded')")
    assert "stale" in page.inner_text("h1")
    assert [each.name for each in shop.gateways.list()][-1] == "silent"
    page.click("button:text-is('Remove')")
    assert "silent removed" in flash(page)
    assert "silent" not in [each.name for each in shop.gateways.list()]


# The audit log and tokens ------------------------------------------------------------------------


def test_the_audit_log_is_filtered(page: Page, shop: Duly) -> None:
    shop.queues.pause("audited", by="ada", note="x")
    shop.queues.resume("audited", by="bob")
    page.goto("/audit")
    page.fill("#action", "queue")
    page.fill("#target", "queue:audited")
    page.press("#target", "Enter")
    wait_for_rows(page, 2)
    page.click("tbody a:text-is('ada')")
    page.wait_for_url("**actor=ada**")
    wait_for_rows(page, 1)
    assert "queue.pause" in page.inner_text("tbody")


def test_a_token_is_shown_once_and_revoked(visitor: Page, shop: Duly) -> None:
    page = visitor
    page.goto("/tokens")
    page.fill("#new-token input[name=name]", HOSTILE)
    page.uncheck("#new-token input[value=read]")
    page.click("#new-token button")
    assert "scopes" in page.inner_text("[role=alert]")
    page.check("#new-token input[value=operate]")
    page.fill("#new-token input[name=owner]", "acme")
    page.click("#new-token button")
    secret = page.input_value("#secret")
    who = shop.tokens.check(secret)
    assert who is not None
    assert (who.owner, {str(scope) for scope in who.scopes}) == ("acme", {"operate"})
    token = shop.tokens.list(owner="acme")[-1]
    page.click("text=I have saved it")
    assert secret not in page.content()
    page.click(f"#row-{token.id} button")
    assert "Token revoked" in flash(page)
    assert shop.tokens.check(secret) is None


def test_the_keyboard_marks_days(page: Page, shop: Duly) -> None:
    calendar = shop.calendars.create("keys", "skip_dates")
    page.goto(f"/calendars/{calendar.id}?year=2027")
    page.focus("input[value='2027-03-01']")
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.value") == "2027-03-02"
    page.wait_for_selector("#changes :text('1 day added')")
    page.focus("#changes button:text-is('Save')")
    page.keyboard.press("Enter")
    page.wait_for_selector("#flash :text('saved')", timeout=TIMEOUT)
    assert shop.calendars.get("keys").dates == {date(2027, 3, 1): ""}
    shop.calendars.remove("keys")
