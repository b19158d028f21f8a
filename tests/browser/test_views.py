"""Every view in a real browser: it opens, nothing goes wrong, everybody can use it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from duly import Duly, Expect
from tests.browser.conftest import HOSTILE
from tests.browser.serving import check_whole, wait_for_rows

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page


def until(condition: Callable[[], object], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.01)


@pytest.fixture(scope="package")
def paths(shop: Duly) -> dict[str, str]:
    """The address of every view, with hostile text wherever users write."""
    fails = shop.function("fails")
    schedule = shop.schedules.create(
        f"key {HOSTILE}",
        fails.bind(HOSTILE),
        cron="0 9 * * 1-5",
        tz="America/New_York",
        condition={"/last_24h_stats/failed": {"neq": HOSTILE}},
        calendar="us-federal-holidays",
        rotation=[{"text": HOSTILE}, {"text": "b"}],
        expect=Expect(within=3600),
        note=HOSTILE,
        by=HOSTILE,
    )
    for _ in range(3):
        shop.schedules.run(schedule.id)
    shop.schedules.create("disabled", fails.bind(), every=3600, enabled=False)
    job = shop.run(fails.using(tags=[HOSTILE], owner=HOSTILE), HOSTILE)
    running = shop.run(shop.function("wait"))
    until(lambda: job.state.is_terminal and running.logs())
    return {
        "overview": "/",
        "schedules": "/schedules",
        "no schedules": "/schedules?search=none+such",
        "schedule": f"/schedules/{schedule.id}",
        "edit": f"/schedules/{schedule.id}/edit",
        "jobs": "/jobs",
        "dead letters": "/jobs?dead=1",
        "failed job": f"/jobs/{job.id}",
        "running job": f"/jobs/{running.id}",
        "not found": "/jobs/none",
    }


NAMES = [
    "overview",
    "schedules",
    "no schedules",
    "schedule",
    "edit",
    "jobs",
    "dead letters",
    "failed job",
    "running job",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_view_is_whole_for_everybody(
    context: BrowserContext, page: Page, paths: dict[str, str], axe: Any, name: str
) -> None:
    page.goto(paths[name])
    page.wait_for_selector("html[data-ready]", state="attached")
    assert page.locator("h1").count() == 1
    page.evaluate("document.querySelectorAll('main details').forEach(each => each.open = true)")
    check_whole(page, axe)


def test_the_login_page_is_whole(chromium: Any, shop: Duly, axe: Any) -> None:
    from tests.browser.conftest import watch
    from tests.browser.serving import served

    secret = shop.tokens.create("ops", ["read"]).secret
    with served(shop, only=["dashboard"]) as address:
        context = chromium.new_context(base_url=address, timezone_id="UTC")
        page = context.new_page()
        errors = watch(page)
        page.goto("/jobs?state=failed")
        assert axe(page) == []
        page.fill("input[name=token]", secret)
        page.press("input[name=token]", "Enter")
        page.wait_for_url("**/jobs?state=failed")
        assert page.locator("button[name=verb]").count() == 0, "a reader is shown no actions"
        page.wait_for_selector("[data-live-text]:text-is('Live')")
        page.click("text=Log out")
        page.wait_for_url("**/login")
        assert errors == []
        context.close()


@pytest.mark.spec("N58")
@pytest.mark.parametrize("asks", ["a filter", "a live update"])
def test_a_session_that_has_ended_leads_to_the_applications_login(
    chromium: Any, shop: Duly, asks: str
) -> None:
    from tests.browser.own_login import hosting
    from tests.server.listening import serving

    with serving(hosting(shop)) as address:
        context = chromium.new_context(base_url=address, timezone_id="UTC")
        page = context.new_page()
        page.goto("/ops/jobs?state=failed")
        page.click("text=Log in as Ada")
        page.wait_for_url("**/ops/jobs?state=failed")
        page.wait_for_selector("[data-live-text]:text-is('Live')")
        context.clear_cookies(name="user")
        if asks == "a filter":
            page.select_option("select[name=state]", "succeeded")
        else:
            shop.run(shop.function("greet"), "ann")
        page.wait_for_selector("text=Log in as Ada")
        assert page.url.startswith(f"{address}/login?next=/ops/jobs%3Fstate%3D")
        context.close()


def test_the_switch_of_colours_stays(page: Page, paths: dict[str, str]) -> None:
    page.goto("/")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.click("button[name=theme][value=dark]")
    assert page.evaluate(ground) != light
    page.goto("/jobs")
    assert page.get_attribute("html", "data-theme") == "dark"
    assert page.evaluate(ground) != light


def test_the_zone_of_the_browser_is_taken(chromium: Any, address: str) -> None:
    context = chromium.new_context(base_url=address, timezone_id="Asia/Tokyo")
    page = context.new_page()
    page.goto("/jobs")
    page.wait_for_selector("footer input[name=tz][value='Asia/Tokyo']")
    context.close()


def test_the_keyboard_is_enough(page: Page, shop: Duly) -> None:
    greet = shop.function("greet")
    made = [shop.schedules.create(f"keys {n}", greet.bind(), every=3600) for n in range(2)]
    page.goto("/schedules")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    page.keyboard.press("/")
    page.keyboard.type("keys")
    page.wait_for_url("**/schedules?search=keys")
    wait_for_rows(page, 2)
    assert page.evaluate("document.activeElement.name") == "search"
    page.focus(f"#mark-{made[0].id}")
    page.keyboard.press("Space")
    assert page.inner_text("[data-count]") == "1 selected"
    page.focus("button[value=disable]")
    page.keyboard.press("Enter")
    page.wait_for_selector(".flash")
    assert [shop.schedules.get(each.id).enabled for each in made] == [False, True]
