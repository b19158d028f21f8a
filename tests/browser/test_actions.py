"""Every action, done in a browser and found in the database; with scripts and without."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from duly import Duly
from tests.browser.conftest import TIMEOUT, add_functions
from tests.browser.test_views import until

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page


def flash(page: Page) -> str:
    return page.inner_text("#flash .flash")


def test_what_is_done_to_a_schedule(visitor: Page, shop: Duly) -> None:
    page = visitor
    greet = shop.function("greet")
    schedule = shop.schedules.create("acted on", greet.bind("ann"), cron="0 3 * * *")

    def now() -> Any:
        return shop.schedules.get(schedule.id)

    try:
        page.goto(f"/schedules/{schedule.id}")
        page.click("button:text-is('Run now')")
        assert "Running now as job" in flash(page)
        assert len(shop.schedules.ticks(schedule.id)) == 1

        page.click("summary:text-is('More')")
        page.fill("#toggle input[name=note]", "too loud")
        page.click("#toggle button")
        assert "Schedule disabled" in flash(page)
        assert (now().enabled, now().note) == (False, "too loud")
        page.click("summary:text-is('More')")
        page.click("#toggle button")
        assert "Schedule enabled" in flash(page)
        assert now().enabled

        page.click("summary:text-is('More')")
        page.click("button:text-is('Skip the next tick')")
        assert "will be skipped" in flash(page)
        assert "will be skipped" in page.inner_text(".banner")
        page.click("summary:text-is('More')")
        moved = now().next_tick.strftime("%Y-%m-%dT04:30:00")
        page.fill("#move input[name=to]", moved)
        page.click("#move button")
        assert "was moved" in flash(page)
        assert now().due.strftime("%H:%M") == "04:30"

        page.click("summary:text-is('More')")
        page.fill("#run-with textarea", json.dumps({"name": "bob", "times": 2}))
        page.click("#run-with button")
        job = shop.schedules.ticks(schedule.id)[0].job
        assert job is not None
        assert job.arguments == {"name": "bob", "times": 2}

        page.click("summary:text-is('More')")
        page.fill("#run-with textarea", "{")
        page.click("#run-with button")
        assert "inputs is not JSON" in flash(page)

        page.click("summary:text-is('More')")
        page.click("#remove button")
        page.wait_for_url("**/schedules")
        assert "Schedule removed" in flash(page)
        assert not [each for each in shop.schedules.list() if each.key == "acted on"]
    finally:
        if shop.store.schedule(schedule.id):
            shop.schedules.remove(schedule.id)


def test_a_schedule_is_edited(visitor: Page, shop: Duly) -> None:
    page = visitor
    schedule = shop.schedules.create(
        "edited", shop.function("greet").bind("ann"), cron="0 3 * * *", note="before"
    )
    page.goto(f"/schedules/{schedule.id}")
    page.click("a:text-is('Edit')")
    page.fill("input[name=cron]", "0 5 * * *")
    page.select_option("select[name=overlap]", "allow")
    page.fill("input[name=jitter]", "30")
    page.fill("textarea[name=args]", json.dumps({"name": "eve"}))
    page.fill("textarea[name=note]", "")
    page.fill("input[name=budget_runs]", "5")
    page.fill("input[name=budget_per]", "3600")
    if not page.locator("html[data-ready]").count():
        page.click("button:text-is('Preview')")
    page.wait_for_selector("#changes .added:has-text('05:00:00')")
    page.wait_for_selector("#changes .removed:has-text('03:00:00')")
    assert shop.schedules.get(schedule.id).version == schedule.version, "nothing is saved yet"
    page.click("button:text-is('Save')")
    page.wait_for_url(f"**/schedules/{schedule.id}")
    after = shop.schedules.get(schedule.id)
    assert after.trigger.describe().startswith("At 05:00")
    assert (after.policies.overlap, after.policies.jitter, after.note) == ("allow", 30_000, None)
    assert after.arguments == {"name": "eve"}
    assert after.policies.budget is not None
    assert after.policies.budget.runs == 5

    page.goto(f"/schedules/{schedule.id}/edit")
    page.fill("input[name=cron]", "61 * * * *")
    page.click("button:text-is('Save')")
    assert "61" in page.inner_text("#changes [role=alert]")
    assert page.input_value("input[name=cron]") == "61 * * * *", "what was written stays"
    page.goto(f"/schedules/{schedule.id}/edit")
    shop.schedules.update(schedule.id, note="somebody was faster")
    page.fill("input[name=jitter]", "10")
    page.click("button:text-is('Save')")
    assert "changed" in page.inner_text("#changes [role=alert]")
    assert shop.schedules.get(schedule.id).policies.jitter == 30_000
    shop.schedules.remove(schedule.id)


def test_a_backfill_and_a_condition_are_tried_first(visitor: Page, shop: Duly) -> None:
    page = visitor
    # Not today: the ticker runs.
    hourly = "0 * 5 1 *"
    schedule = shop.schedules.create("filled", shop.function("greet").bind(), cron=hourly)
    page.goto(f"/schedules/{schedule.id}")
    page.fill("#backfill-form input[name=start]", "2026-01-05T00:00:00")
    page.fill("#backfill-form input[name=end]", "2026-01-05T05:00:00")
    page.click("button:text-is('Dry run')")
    page.wait_for_selector(".dry li >> nth=4")
    assert page.locator(".dry li").count() == 5
    assert shop.schedules.ticks(schedule.id) == []
    page.click("button:has-text('Backfill 5')")
    assert flash(page).endswith("5 ticks dispatched, 0 skipped")
    assert len(shop.schedules.ticks(schedule.id)) == 5

    page.fill("#tester-form textarea", '{"/last_24h_stats/failed": {"lt": -1}}')
    if not page.locator("html[data-ready]").count():
        page.click("#tester-form button")
    page.wait_for_selector("#explained:has-text('does not pass')")
    assert "/last_24h_stats/failed" in page.inner_text("#explained td")
    assert shop.schedules.get(schedule.id).condition is None
    shop.schedules.remove(schedule.id)


def test_what_is_done_to_many_schedules(visitor: Page, shop: Duly) -> None:
    page = visitor
    made = [
        shop.schedules.create(f"many {n}", shop.function("greet").bind(), every=3600)
        for n in range(3)
    ]

    def do(verb: str, count: int) -> None:
        page.goto("/schedules?search=many")
        for each in made[:count]:
            page.check(f"#mark-{each.id}")
        page.click(f"button[value={verb}]")
        page.wait_for_selector("#flash .flash")

    page.goto("/schedules?search=many")
    page.check(f"#mark-{made[0].id}")
    page.check(f"#mark-{made[1].id}")
    page.fill("input[name=note]", "holidays")
    page.click("button[value=disable]")
    assert flash(page).endswith("2 schedules disabled")
    after = [shop.schedules.get(each.id) for each in made]
    assert [(each.enabled, each.note) for each in after] == [
        (False, "holidays"),
        (False, "holidays"),
        (True, None),
    ]
    do("enable", 2)
    assert all(shop.schedules.get(each.id).enabled for each in made)
    do("run", 3)
    assert all(len(shop.schedules.ticks(each.id)) == 1 for each in made)
    do("remove", 3)
    assert not [each for each in shop.schedules.list(limit=1000) if each.key.startswith("many")]


def test_what_is_done_to_jobs(visitor: Page, shop: Duly) -> None:
    page = visitor
    running = shop.run(shop.function("wait"))
    failed = shop.run(shop.function("fails"), "once")
    until(lambda: running.logs() and failed.state == "failed")
    page.goto(f"/jobs/{running.id}")
    assert "a quarter" in page.inner_text(".progress")
    assert "it has begun" in page.inner_text(".log")
    page.click("button:text-is('Cancel')")
    assert "Job canceled" in flash(page)
    assert running.state == "canceled"

    page.goto(f"/jobs/{failed.id}")
    page.click("button:text-is('Retry')")
    again = page.url.rpartition("/")[2]
    assert shop.job(again).record.retry_of == failed.id

    page.goto(f"/jobs/{failed.id}")
    page.click("summary:text-is('Edit the arguments')")
    page.fill("#again-form textarea", json.dumps({"text": 5}))
    page.click("#again-form button")
    assert "text" in page.inner_text("#again [role=alert]")
    page.fill("#again-form textarea", json.dumps({"text": "twice"}))
    page.fill("#again-form input[name=run_after]", "3600")
    page.click("#again-form button")
    page.wait_for_selector("#flash .flash")
    made = shop.job(page.url.rpartition("/")[2])
    assert (made.arguments, made.state) == ({"text": "twice"}, "pending")
    assert "not due" in page.inner_text("main") or "due" in page.inner_text("main")
    made.cancel()


def test_what_is_done_to_many_jobs(visitor: Page, shop: Duly) -> None:
    page = visitor
    wait = shop.function("wait").using(queue="parked")
    jobs = [shop.run_after(3600, wait) for _ in range(4)]
    page.goto("/jobs?queue=parked&state=pending")
    page.check(f"#mark-{jobs[0].id}")
    page.click("button[value=cancel]")
    assert flash(page).endswith("1 job canceled")
    assert [job.state for job in jobs] == ["canceled", "pending", "pending", "pending"]

    page.check("#all-matching")
    page.click("button[value=cancel]")
    page.wait_for_selector("h1:has-text('duly.bulk')")
    until(lambda: all(job.state == "canceled" for job in jobs))
    bulk = shop.job(page.url.rpartition("/")[2])
    assert bulk.result(timeout=5) == {"matched": 3, "changed": 3, "skipped": 0}
    page.goto("/jobs?queue=parked&state=canceled")
    page.check(f"#mark-{jobs[1].id}")
    page.click("button[value=retry]")
    assert flash(page).endswith("1 job retried")
    shop.cancel_all(queue="parked")
    page.goto("/jobs")
    page.click("button[value=cancel]")
    assert "select at least one" in flash(page)


@pytest.mark.postgres
def test_the_same_on_postgres(chromium: Any, postgres_url: str) -> None:
    from tests.browser.conftest import watch
    from tests.browser.serving import served

    app = Duly(postgres_url, name="shop")
    add_functions(app)
    app.start()
    try:
        schedule = app.schedules.create("on postgres", app.function("fails").bind(), every=3600)
        with served(app, auth="open", under="/ops") as address:
            context: BrowserContext = chromium.new_context(timezone_id="UTC")
            context.set_default_timeout(TIMEOUT)
            page = context.new_page()
            errors = watch(page)
            page.goto(f"{address}/")
            page.click("nav >> text=Schedules")
            page.fill("#search", "postgres")
            page.wait_for_url("**/ops/schedules?search=postgres")
            page.click("a:text-is('on postgres')")
            page.click("button:text-is('Run now')")
            page.wait_for_selector(".axis .s-failed", state="attached")
            page.click(".axis a")
            page.wait_for_selector("h1:has-text('failed')")
            page.click("button:text-is('Retry')")
            page.wait_for_selector("dt:text-is('Retry of')")
            page.click("nav >> text=Overview")
            page.wait_for_selector("a.tile:has-text('Failed') strong:text-is('2')")
            page.click("nav >> text=Jobs")
            page.wait_for_selector("tbody tr >> nth=1")
            page.goto(f"{address}/schedules/{schedule.id}/edit")
            page.fill("input[name=every]", "2h")
            page.wait_for_selector("#changes .removed")
            page.click("button:text-is('Save')")
            page.wait_for_selector("#flash .flash")
            assert app.schedules.get(schedule.id).record.version == 2
            assert errors == []
            context.close()
    finally:
        app.stop(drain=0)
        app.close()
