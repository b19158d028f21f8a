"""A browser and a server, opened once for all tests here; each test gets a page of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from duly import Ctx, Duly, Retry, WorkflowCtx

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

HERE = Path(__file__).parent
HOSTILE = "<img src=x onerror=alert(1)>\"'&</textarea>"
FOUND = bool(shutil.which("chromium") or shutil.which("chromium-browser")) and bool(
    importlib.util.find_spec("playwright")
)
TIMEOUT = 20_000  # milliseconds; it is never that long but on a machine that does much else
END = threading.Event()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if FOUND or os.environ.get("CI"):
        return
    skip = pytest.mark.skip(reason="needs Chromium and Playwright: apt-get install chromium")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(skip)


@pytest.fixture
def postgres_url(postgres_with_notes: str) -> str:
    return postgres_with_notes


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    assert FOUND, "CI has to have Chromium and Playwright"
    from tests.browser.serving import browser

    with browser() as opened:
        yield opened


def add_functions(app: Duly) -> None:
    """What the tests call."""

    @app.action
    def greet(ctx: Ctx, name: str = "ann", times: int = 1) -> str:
        return f"hello, {name}" * times

    @app.action(queue="slow")
    def wait(ctx: Ctx, steps: int = 1) -> None:
        ctx.log("it has begun")
        ctx.progress(0.25, "a quarter")
        while True:
            ctx.check()
            END.wait(0.02)

    @app.action
    def fails(ctx: Ctx, text: str = HOSTILE) -> None:
        raise ValueError(text)

    @app.workflow
    def parcel(ctx: WorkflowCtx) -> list[Any]:
        return [ctx.step(greet), ctx.wait_for("packed"), ctx.approval("Ship it?").choice]

    @app.action(retry=Retry(attempts=5, delay=1000))
    def stubborn(ctx: Ctx) -> None:
        raise ValueError("not yet")


@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Duly]:
    """An app with a worker and a ticker, on SQLite."""
    app = Duly(f"sqlite:///{tmp_path_factory.mktemp('shop') / 'shop.db'}", name="shop")
    app.migrate()
    add_functions(app)
    app.start()
    yield app
    app.stop(drain=0)
    app.close()


@pytest.fixture(scope="package")
def address(shop: Duly, chromium: Browser) -> Iterator[str]:
    from tests.browser.serving import served

    with served(shop, auth="open") as address:
        yield address


@pytest.fixture
def context(chromium: Browser, address: str) -> Iterator[BrowserContext]:
    context = chromium.new_context(
        base_url=address, timezone_id="Europe/Berlin", viewport={"width": 1280, "height": 900}
    )
    context.set_default_timeout(TIMEOUT)
    # Else the first page of each test would be loaded twice.
    context.add_cookies([{"name": "duly_tz", "value": "Europe/Berlin", "url": address}])
    yield context
    context.close()


Errors = list[str]


def watch(page: Page) -> Errors:
    """What the console says is wrong; refusals by the content security policy are among it."""
    errors: Errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))

    def said(message: Any) -> None:
        if message.type in ("error", "warning"):
            errors.append(message.text)

    page.on("console", said)
    return errors


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page in whose console nothing may go wrong."""
    page = context.new_page()
    errors = watch(page)
    yield page
    assert errors == []


@pytest.fixture(params=["scripts", "no scripts"])
def visitor(request: pytest.FixtureRequest, chromium: Browser, address: str) -> Iterator[Page]:
    """A page, with scripts or without."""
    context = chromium.new_context(
        base_url=address,
        timezone_id="UTC",
        java_script_enabled=request.param == "scripts",
        viewport={"width": 1280, "height": 900},
    )
    context.set_default_timeout(TIMEOUT)
    page = context.new_page()
    page.on("dialog", lambda dialog: dialog.accept())
    yield page
    context.close()


@pytest.fixture(scope="package")
def axe() -> Callable[[Page], list[str]]:
    """What axe-core finds wrong with a page."""
    source = (HERE / "vendor" / "axe.min.js").read_text()

    def look(page: Page) -> list[str]:
        page.evaluate(source)
        found: Any = page.evaluate("axe.run({resultTypes: ['violations']})")
        return [
            f"{each['id']}: {node['html'][:160]} {node['failureSummary'][:300]}"
            for each in found["violations"]
            for node in each["nodes"][:3]
        ]

    return look
