"""llms.txt and llms-full.txt: the pages as plain Markdown for assistants; see llmstxt.org."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tools import docs
from tools.docsite import nav

# llms.txt may be shortened by what is under this heading.
OPTIONAL = "Optional"
# What a user does not need to write code with duly.
SECONDARY = ("Internals",)
ROW = re.compile(r"^\| *\[[^\]]+\]\(([^)]+)\) *\| *(.+?) *\|$", re.MULTILINE)


def write(root: Path, pages: Path, site: Path, guide: Path) -> None:
    """The two files, and each page in Markdown at its own place."""
    for path in sorted(pages.rglob("*.md")):
        copy = site / path.relative_to(pages)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    shutil.copyfile(guide, site / "assistants.md")
    entries = [entry for entry in nav.entries(root) if entry.group]
    (site / "llms.txt").write_text(_index(root, pages, entries), encoding="utf-8")
    (site / "llms-full.txt").write_text("".join(_full(pages, entries, guide)), encoding="utf-8")


def _index(root: Path, pages: Path, entries: list[nav.Entry]) -> str:
    project = nav.config()["project"]
    questions = _questions(root)
    lines = [
        f"# {project['site_name']}",
        "",
        f"> {project['site_description']}",
        "",
        "Start with the guide for assistants, which shows how to write correct code with duly.",
        "Every page is plain Markdown at its address; llms-full.txt has all of them in one file.",
        "",
        "## Guide",
        "",
        "- [Guide for assistants](assistants.md): functions, transactions, schedules, tests,"
        " common mistakes",
        "- [README](README.md): what duly is, and how it compares",
    ]
    for group, members in groupby(entries, key=lambda entry: entry.group):
        lines += ["", f"## {OPTIONAL if group in SECONDARY else group}", ""]
        for entry in members:
            text = (pages / entry.path).read_text(encoding="utf-8")
            about = questions.get(entry.path) or first_sentence(text)
            lines.append(f"- [{title(text)}]({entry.path})" + (f": {about}" if about else ""))
    return "\n".join(lines) + "\n"


def _questions(root: Path) -> dict[str, str]:
    """What docs/index.md says that each page answers."""
    text = (root / "docs" / "index.md").read_text(encoding="utf-8")
    return {f"docs/{path}": question for path, question in ROW.findall(text)}


def _full(pages: Path, entries: list[nav.Entry], guide: Path) -> Iterator[str]:
    yield guide.read_text(encoding="utf-8")
    for path in ("README.md", *(entry.path for entry in entries if entry.group not in SECONDARY)):
        yield f"\n\n<!-- {path} -->\n\n{(pages / path).read_text(encoding='utf-8')}"


def title(text: str) -> str:
    heading = next(line for _, line in docs.prose(text) if line.startswith("# "))
    return heading.removeprefix("# ").partition(" {")[0].strip()


def first_sentence(text: str) -> str:
    """Of the first paragraph; "" if the page begins with something else."""
    paragraphs = "\n".join(line for _, line in docs.prose(text)).split("\n\n")[1:]
    first = next((each for each in paragraphs if each.strip()), "")
    if not re.match(r"[\w`\[*(]", first.strip()):
        return ""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return re.split(r"(?<=[.?]) (?=[A-Z])", words)[0]
