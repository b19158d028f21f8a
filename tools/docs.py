"""Check every relative link in README.md, CHANGELOG.md and docs/, and print the index of pages.

A link is right when its file exists inside the project and, for a page, its `#anchor` is a
heading there. Links to other sites are not followed.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
TOP_PAGES = ("README.md", "CHANGELOG.md")

FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)")
HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*\s*$")
ANCHOR_TAG = re.compile(r"<a\s+(?:id|name)=[\"']([^\"']+)[\"']")
INLINE_LINK = re.compile(r"\]\(\s*(?:<([^>]*)>|([^)\s]*))(?:\s+[\"'(][^)]*)?\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]^]+\]:\s+<?([^\s>]+)>?")
ELSEWHERE = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


@dataclass(frozen=True)
class Heading:
    level: int
    text: str
    anchor: str


@dataclass(frozen=True)
class Link:
    line: int
    target: str


@dataclass(frozen=True)
class Page:
    path: Path
    headings: tuple[Heading, ...]
    anchors: frozenset[str]
    links: tuple[Link, ...]


def read_page(path: Path) -> Page:
    lines = list(prose(path.read_text(encoding="utf-8")))
    headings = tuple(_headings(lines))
    tags = {tag for _, text in lines for tag in ANCHOR_TAG.findall(text)}
    anchors = frozenset({heading.anchor for heading in headings} | tags)
    return Page(path, headings, anchors, tuple(_links(lines)))


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The numbered lines outside fenced code."""
    fence: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        opened = FENCE.match(line)
        if fence is None and opened:
            fence = opened[1]
        elif fence is None:
            yield number, line
        elif line.strip() and set(line.strip()) == {fence[0]} and len(line.strip()) >= len(fence):
            fence = None


def _headings(lines: Sequence[tuple[int, str]]) -> Iterator[Heading]:
    seen: dict[str, int] = {}
    for _, line in lines:
        if match := HEADING.match(line):
            slug = slugify(match[2])
            count = seen.get(slug, 0)
            seen[slug] = count + 1
            yield Heading(len(match[1]), match[2], f"{slug}-{count}" if count else slug)


def slugify(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")


def _links(lines: Sequence[tuple[int, str]]) -> Iterator[Link]:
    for number, line in lines:
        text = CODE_SPAN.sub("", line)
        for angled, plain in INLINE_LINK.findall(text):
            yield Link(number, angled or plain)
        if reference := REFERENCE.match(text):
            yield Link(number, reference[1])


def find_faults(root: Path, pages: Sequence[Page]) -> Iterator[str]:
    """Every broken link, with its place and what is missing."""
    known = {page.path.resolve(): page for page in pages}
    for page in pages:
        for link in page.links:
            if fault := _fault(root.resolve(), known, page, link):
                yield f"{page.path.relative_to(root)}:{link.line}: {link.target!r} {fault}"


def _fault(root: Path, known: dict[Path, Page], page: Page, link: Link) -> str | None:
    if ELSEWHERE.match(link.target):
        return None
    name, _, anchor = unquote(link.target).partition("#")
    if name.startswith("/"):
        return "is not relative"
    target = (page.path.parent / name).resolve() if name else page.path.resolve()
    if not target.is_relative_to(root):
        return "leads out of the project"
    if not (name or anchor) or not target.exists():
        return "does not exist"
    if anchor and target in known and anchor not in known[target].anchors:
        return f"has no heading #{anchor}"
    return None


def find_pages(root: Path) -> list[Page]:
    paths = [root / name for name in TOP_PAGES] + sorted((root / "docs").rglob("*.md"))
    return [read_page(path) for path in paths]


def print_index(root: Path, pages: Sequence[Page]) -> None:
    for page in pages:
        print(page.path.relative_to(root))
        for heading in page.headings:
            print(f"{'  ' * heading.level}{heading.text}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the documentation and print its index.")
    parser.add_argument("--root", type=Path, default=ROOT, help="The project's root folder.")
    root: Path = parser.parse_args(arguments).root
    try:
        pages = find_pages(root)
    except FileNotFoundError as missing:
        print(f"{missing.filename}: no such page", file=sys.stderr)
        return 1
    print_index(root, pages)
    faults = list(find_faults(root, pages))
    print(f"\n{len(pages)} pages, {sum(len(page.links) for page in pages)} links")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
