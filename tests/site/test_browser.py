"""The site in a browser: search, copy buttons, diagrams, light and dark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.site.conftest import has_mermaid
from tests.site.questions import QUESTIONS, Question

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SHOWN = 3
# A page that knows which query was asked last, and whether all have been answered.
COUNT_ANSWERS = """
window.Worker = class extends Worker {
  constructor(...all) {
    super(...all);
    this.waiting = 0;
    window.search = this;
    this.addEventListener("message", ({ data }) => { if (data.type === 3) this.waiting--; });
  }
  postMessage(message) {
    if (message.type === 2) { this.waiting++; this.asked = message.data.input; }
    super.postMessage(message);
  }
};
"""
ANSWERED = "(typed) => search.asked === typed && search.waiting === 0"
SHOWN_NOW = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module")
def hits(chromium: Browser, address: str) -> Callable[[str], list[str]]:
    """The pages of the hits of a search, best first; one with several good sections comes again."""
    page = chromium.new_page(base_url=address)
    page.add_init_script(COUNT_ANSWERS)
    page.goto("")
    page.locator(".md-search__button").click()
    field = page.get_by_role("combobox")

    def search(typed: str) -> list[str]:
        field.fill(typed)
        page.wait_for_function(ANSWERED, arg=typed)
        page.evaluate(SHOWN_NOW)
        links = page.get_by_role("option").evaluate_all("all => all.map((each) => each.pathname)")
        return [str(link).strip("/") for link in links]

    return search


def test_the_questions_are_those_of_newcomers() -> None:
    assert len(QUESTIONS) == 38
    assert len({each.typed for each in QUESTIONS}) == 38


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda each: each.typed.replace(" ", "-"))
def test_a_search_finds_the_answer(asked: Question, hits: Callable[[str], list[str]]) -> None:
    for words in (asked.typed, asked.question):
        assert f"docs/{asked.page}" in hits(words)[:SHOWN], words


@pytest.mark.parametrize(
    ("typed", "page"),
    [
        ("run_after", "docs/api/contexts"),
        ("ScheduleNotFound", "docs/api/errors"),
        ("prometh", "docs/how-to/monitoring"),
        ("kubernets", "docs/how-to/containers"),
    ],
)
def test_names_beginnings_and_slips_are_found(
    typed: str, page: str, hits: Callable[[str], list[str]]
) -> None:
    assert page in hits(typed)


def test_what_is_nowhere_is_not_found(hits: Callable[[str], list[str]]) -> None:
    assert hits("xyzzyplugh") == []


def test_a_hit_leads_to_its_section(page: Page) -> None:
    page.goto("")
    page.locator(".md-search__button").click()
    page.get_by_role("combobox").fill("kubernetes")
    page.get_by_role("option").first.click()
    page.wait_for_url("**/docs/how-to/containers/**")

    assert page.locator("h1").inner_text().strip("¶") != ""


def test_more_than_a_page_of_hits_can_be_seen(hits: Callable[[str], list[str]]) -> None:
    assert len(hits("job")) >= 10


def test_code_can_be_copied(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto("docs/quickstart/")
    blocks = page.locator(".highlight")
    page.wait_for_function(
        "document.querySelectorAll('.highlight .md-code__button, .md-clipboard').length > 0"
    )
    assert blocks.count() > 5
    assert page.locator(".highlight:has(code) [data-md-type=copy]").count() == blocks.count()

    first = page.locator(".highlight").first
    first.hover()
    first.locator("[data-md-type=copy]").click()
    copied = str(page.evaluate("navigator.clipboard.readText()"))
    assert copied.strip() == first.locator("code").inner_text().strip()


@pytest.mark.skipif(not has_mermaid(), reason="needs mermaid: make setup")
@pytest.mark.parametrize("path", ["docs/concepts/", "docs/concepts/schedules/"])
def test_a_diagram_is_drawn(page: Page, path: str) -> None:
    page.goto(path)
    diagram = page.locator("div.mermaid").first
    diagram.scroll_into_view_if_needed()

    # It is in a closed shadow root, and as large as what is drawn there.
    box = diagram.bounding_box()
    assert box is not None
    assert box["height"] > 100


def test_light_and_dark(page: Page) -> None:
    page.goto("")
    background = "getComputedStyle(document.body).backgroundColor"
    scheme = "document.body.getAttribute('data-md-color-scheme')"
    seen = {page.evaluate(scheme): page.evaluate(background)}
    for _ in range(3):
        page.locator("label[for^=__palette]:visible").click()
        seen[page.evaluate(scheme)] = page.evaluate(background)

    assert set(seen) == {"default", "slate"}
    assert seen["default"] != seen["slate"]
