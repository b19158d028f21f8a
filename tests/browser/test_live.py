"""Live updates: soon, without losing what somebody does, and with many tabs."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import pytest

from duly import Duly
from tests.browser.test_views import until

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

TABS = 10
SOON = 0.5


def live(page: Page) -> None:
    page.wait_for_selector("[data-live-text]:text-is('Live')")


def test_a_change_is_seen_soon_and_nothing_is_lost(page: Page, shop: Duly) -> None:
    greet = shop.function("greet")
    made = [shop.schedules.create(f"live {n:02d}", greet.bind(), every=3600) for n in range(30)]
    page.goto("/schedules?search=live")
    live(page)
    page.check(f"#mark-{made[20].id}")
    page.fill("#bulk-note", "half a sent")
    page.focus("#bulk-note")
    page.evaluate("scrollTo(0, 300)")
    took: list[float] = []
    for each in made[8:20]:
        began = time.monotonic()
        shop.schedules.disable(each.id)
        page.wait_for_selector(f"#row-{each.id} .s-disabled")
        took.append(time.monotonic() - began)
    assert statistics.median(took) < SOON, took
    assert page.is_checked(f"#mark-{made[20].id}")
    assert page.inner_text("[data-count]") == "1 selected"
    assert page.input_value("#bulk-note") == "half a sent"
    assert page.evaluate("document.activeElement.id") == "bulk-note"
    assert page.evaluate("scrollY") == 300
    page.click("[data-pause]")
    shop.schedules.disable(made[7].id)
    shop.schedules.remove(made[6].id)
    # Another tab of the browser shows it, and so this one was told.
    other = page.context.new_page()
    other.goto("/schedules?search=live")
    other.wait_for_selector(f"#row-{made[7].id} .s-disabled")
    other.close()
    assert page.locator(f"#row-{made[6].id}").count() == 1, "it is paused"
    page.click("[data-pause]")
    page.wait_for_selector(f"#row-{made[6].id}", state="detached")
    for each in made:
        if each is not made[6]:
            shop.schedules.remove(each.id)


def test_a_job_is_followed_to_its_end(page: Page, shop: Duly) -> None:
    job = shop.run_after(3600, shop.function("wait"))
    page.goto(f"/jobs/{job.id}")
    live(page)
    assert "Why it is waiting" in page.inner_text("main")
    page.goto("/jobs?function=wait")
    live(page)
    soon = shop.run(shop.function("wait"))
    page.wait_for_selector(f"#row-{soon.id} .s-running")
    page.goto(f"/jobs/{soon.id}")
    page.wait_for_selector(".progress:has-text('a quarter')")
    page.wait_for_selector(".log:has-text('it has begun')")
    live(page)
    soon.cancel()
    page.wait_for_selector("h1 .s-canceled")
    job.cancel()


@pytest.mark.spec("N94")
def test_a_run_is_answered_in_place(page: Page, shop: Duly) -> None:
    run = shop.run(shop.function("parcel"))
    page.goto(f"/jobs/{run.id}")
    live(page)
    page.wait_for_selector("#waits :text('event packed')")
    page.wait_for_selector("#steps .s-succeeded")
    page.fill("#send-packed textarea", '{"id": 1}')
    for _ in range(2):  # It is fetched again each second.
        page.wait_for_event("response", lambda response: response.url.endswith(run.id))
    assert page.input_value("#send-packed textarea") == '{"id": 1}', "updates leave it alone"
    page.click("text=Send packed")
    page.wait_for_selector("#waits :text('Ship it?')")
    page.click("text=Reject")
    page.wait_for_selector("h1 .s-succeeded")
    assert run.result() == ["hello, ann", {"id": 1}, "reject"]


def test_ten_tabs_share_one_stream(context: BrowserContext, shop: Duly) -> None:
    schedule = shop.schedules.create("tabs", shop.function("greet").bind(), every=3600)
    streams: list[str] = []
    context.on(
        "request", lambda request: streams.append(request.url) if "/live" in request.url else None
    )
    pages = []
    for _ in range(TABS):
        page = context.new_page()
        page.goto("/schedules?search=tabs")
        live(page)
        pages.append(page)
    assert len(streams) == 1
    shop.schedules.disable(schedule.id)
    for page in pages:
        page.wait_for_selector(f"#row-{schedule.id} .s-disabled")
    pages[0].close()
    until(lambda: pages[1].evaluate("1") and len(streams) == 2)
    shop.schedules.enable(schedule.id)
    for page in pages[1:]:
        page.wait_for_selector(f"#row-{schedule.id} .s-enabled")
    shop.schedules.remove(schedule.id)


def test_without_locks_only_tabs_that_are_seen_follow(context: BrowserContext, shop: Duly) -> None:
    """As on plain HTTP, where browsers offer no locks."""
    schedule = shop.schedules.create("no locks", shop.function("greet").bind(), every=3600)
    context.add_init_script("Object.defineProperty(navigator, 'locks', {value: undefined})")
    page = context.new_page()
    page.goto("/schedules?search=no+locks")
    live(page)
    shop.schedules.disable(schedule.id)
    page.wait_for_selector(f"#row-{schedule.id} .s-disabled")
    shop.schedules.remove(schedule.id)


def test_the_answer_to_a_condition_stays_when_the_page_is_refreshed(page: Page, shop: Duly) -> None:
    schedule = shop.schedules.create("asked", shop.function("greet").bind(), every=3600)
    page.goto(f"/schedules/{schedule.id}")
    live(page)
    page.fill("#tester-form textarea", '{"/last_24h_stats/failed": {"lt": -1}}')
    page.wait_for_selector("#explained:has-text('does not pass')")
    shop.schedules.disable(schedule.id)
    page.wait_for_selector("#main .s-disabled")
    assert page.locator("#explained td").count() > 0
    shop.schedules.remove(schedule.id)
