"""The site is whole: every page in one group, every link good, nothing fetched from elsewhere."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest

from tests.site.questions import QUESTIONS, Question
from tools.docsite import nav
from tools.docsite.__main__ import SEARCH, BuildFailed, generate

ROOT = nav.ROOT
GROUPS = ["Start", "Guides", "Operate", "Reference", "Internals"]
# Attributes by which a browser loads something without being asked to.
LOADED = {
    ("audio", "src"), ("embed", "src"), ("iframe", "src"), ("img", "src"), ("img", "srcset"),
    ("link", "href"), ("object", "data"), ("script", "src"), ("source", "src"),
    ("source", "srcset"), ("track", "src"), ("video", "poster"), ("video", "src"),
}  # fmt: skip
CSS_URL = re.compile(r"url\(\s*[\"']?([^\"')]+)|@import\s+[\"']([^\"']+)")
ELSEWHERE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
HERE = "http://site/"


# Navigation --------------------------------------------------------------------------------------


def test_the_groups_are_five() -> None:
    assert list(dict.fromkeys(entry.group for entry in nav.listed() if entry.group)) == GROUPS


def test_the_groups_are_those_of_the_index() -> None:
    text = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    for group, part in zip(parts[::2], parts[1::2], strict=True):
        links = re.findall(r"^\| \[[^\]]+\]\(([^)]+)\)", part, re.MULTILINE)
        pages = [(ROOT / "docs" / link).resolve().relative_to(ROOT).as_posix() for link in links]
        listed = [entry.path for entry in nav.listed() if entry.group == group]
        assert [path for path in listed if path in pages] == pages, group
    assert parts[::2] == GROUPS


def test_the_search_knows_the_groups() -> None:
    """Pages of others are shown last: they are code."""
    listed = re.search(r"LISTED = new Set\((\[.*?\])\)", SEARCH.read_text(encoding="utf-8"))

    assert listed
    assert json.loads(listed[1]) == ["Home", *GROUPS]


def test_every_page_of_the_documentation_stands_in_one_group() -> None:
    listed = Counter(entry.path for entry in nav.listed() if entry.group)
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}

    assert pages - set(listed) == set(), "add them to tools/docsite/zensical.toml"
    assert [path for path, times in listed.items() if times > 1] == []


def test_every_page_of_the_navigation_exists() -> None:
    missing = [entry.path for entry in nav.listed() if not nav.exists(ROOT, entry.path)]

    assert missing == [], "take them out of tools/docsite/zensical.toml"


def test_no_page_has_what_only_the_generator_understands() -> None:
    """On a forge it would be noise."""
    noise = re.compile(r"^(?:---$|!!! |\?\?\? |=== \"|::: )|\{ ?[.#:][\w-]+.*\}$", re.MULTILINE)
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        assert [match[0] for match in noise.finditer(text)] == [], path


# The build ---------------------------------------------------------------------------------------


def test_the_site_builds_without_warnings(built: tuple[Path, list[str]]) -> None:
    site, warnings = built

    assert (site / "index.html").is_file()
    assert [each for each in warnings if "mermaid" not in each] == []


def test_a_link_to_nothing_fails_the_build(site: Path, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages/index.md").write_text("# Home\n\n[gone](gone.md)\n")
    (tmp_path / "zensical.toml").write_text(
        '[project]\nsite_name = "s"\ndocs_dir = "pages"\nsite_dir = "html"\n'
    )

    with pytest.raises(BuildFailed, match="page does not exist"):
        generate(tmp_path)


def test_code_that_a_page_links_to_gets_a_page(site: Path) -> None:
    shown = (site / "examples/webhooks.py/index.html").read_text(encoding="utf-8")

    assert 'class="language-python highlight"' in shown
    assert ">examples/webhooks.py" in shown


class Document(HTMLParser):
    """The ids and references of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.styles: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_style = tag == "style"
        for name, value in attrs:
            value = value or ""
            if name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value)
            elif tag == "a" and name == "href":
                self.links.append(value)
            elif (tag, name) in LOADED:
                self.loaded += [part.split()[0] for part in value.split(",") if part.strip()]
            elif name == "style":
                self.styles.append(value)

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.styles.append(data)


@cache
def documents(site: Path) -> dict[str, Document]:
    """By address, as a browser sees it."""
    found: dict[str, Document] = {}
    for path in site.rglob("*.html"):
        document = Document()
        document.feed(path.read_text(encoding="utf-8"))
        found[path.relative_to(site).as_posix().removesuffix("index.html")] = document
    return found


def broken(site: Path) -> Iterator[str]:
    pages = documents(site)
    for address, document in pages.items():
        for link in document.links + document.loaded:
            whole, anchor = urldefrag(urljoin(HERE + address, link))
            if not whole.startswith(HERE):
                continue
            target = unquote(urlsplit(whole).path).removeprefix("/")
            page = pages.get(target)
            if page is None and not (site / target).is_file():
                yield f"{address}: {link} leads nowhere"
            elif page and anchor and unquote(anchor) not in page.ids and anchor != "__search":
                yield f"{address}: {link} has no such anchor"


def test_every_link_and_anchor_leads_somewhere(site: Path) -> None:
    assert list(broken(site)) == []


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda each: each.typed.replace(" ", "-"))
def test_the_section_that_answers_a_question_exists(asked: Question, site: Path) -> None:
    ids = documents(site)[f"docs/{asked.page}/"].ids

    assert not asked.section or asked.section in ids


def test_every_page_of_the_navigation_is_built(site: Path) -> None:
    for entry in nav.entries():
        address = re.sub(r"(?:(?<=/)|^)(?:README|index)\.md$|\.md$", "/", entry.path).lstrip("/")
        assert f"{address.rstrip('/')}/".lstrip("/") in documents(site), entry.path


def test_a_browser_is_sent_to_no_other_machine(site: Path) -> None:
    sent: list[str] = []
    for address, document in documents(site).items():
        sent += [f"{address}: {url}" for url in document.loaded if ELSEWHERE.match(url)]
        sent += [f"{address}: {url}" for style in document.styles for url in _elsewhere(style)]
    for path in site.rglob("*.css"):
        sent += [f"{path.name}: {url}" for url in _elsewhere(path.read_text(encoding="utf-8"))]

    assert sent == []


def _elsewhere(css: str) -> list[str]:
    urls = ["".join(match) for match in CSS_URL.findall(css)]
    return [url for url in urls if ELSEWHERE.match(url)]


@pytest.mark.parametrize(
    "css", ["a{b:url(https://x.example/f.woff)}", '@import "//x.example/a.css";']
)
def test_a_style_from_elsewhere_is_noticed(css: str) -> None:
    assert len(_elsewhere(css)) == 1
