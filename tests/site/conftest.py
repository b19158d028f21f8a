"""The documentation site, built once for a run, served on loopback and opened in a browser."""

from __future__ import annotations

import fcntl
import http.server
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import FOUND, TIMEOUT, watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HERE = Path(__file__).parent
IN_BROWSER = {"page", "chromium", "hits"}
CAN_BUILD = importlib.util.find_spec("zensical") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("CI"):
        return
    no_browser = pytest.mark.skip(reason="needs Chromium and Playwright: apt-get install chromium")
    no_site = pytest.mark.skip(reason="needs zensical: make setup")
    for item in items:
        if HERE not in item.path.parents:
            continue
        fixtures = set(getattr(item, "fixturenames", ()))
        if "site" in fixtures and not CAN_BUILD:
            item.add_marker(no_site)
        if fixtures & IN_BROWSER and not FOUND:
            item.add_marker(no_browser)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The site and the warnings of its build, which all workers of a run share."""
    from tools.docsite.__main__ import build

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    site, said = shared / "site", shared / "site-warnings.json"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            said.write_text(json.dumps(build(site)))
    return site, json.loads(said.read_text())


@pytest.fixture(scope="session")
def site(built: tuple[Path, list[str]]) -> Path:
    return built[0]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None: ...


@pytest.fixture(scope="package")
def address(site: Path) -> Iterator[str]:
    handler = partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    assert FOUND, "CI has to have Chromium and Playwright"
    from tests.browser.serving import browser

    with browser() as opened:
        yield opened


@pytest.fixture
def page(chromium: Browser, address: str) -> Iterator[Page]:
    """A page that asks nothing of other machines, and in whose console nothing goes wrong."""
    context = chromium.new_context(
        base_url=address, viewport={"width": 1280, "height": 900}, color_scheme="light"
    )
    context.set_default_timeout(TIMEOUT)
    page = context.new_page()
    errors = watch(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    yield page
    context.close()
    assert errors == []
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


def has_mermaid() -> bool:
    from tools.docsite.__main__ import NODE_MODULES

    return (Path(sys.prefix) / NODE_MODULES).is_file()
