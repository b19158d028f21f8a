"""Lays out what Zensical reads: the pages as they are in the project, and what they link to.

A page keeps its place, so links between pages need no change. A link to a file of code gets a page
that shows the code.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from urllib.parse import unquote

from tools import docs
from tools.docsite import api, nav

IMAGES = {".png", ".svg", ".jpg", ".gif", ".ico"}
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "sh", ".yml": "yaml", ".yaml": "yaml"}
TARGET = re.compile(r"(\]\(\s*<?|<img\s[^>]*?src=\")([^)\s>\"]+)")
NAV = re.compile(r"^nav = \[\n.*?^\]\n", re.MULTILINE | re.DOTALL)
# Without mermaid a diagram is shown as text; the theme would fetch mermaid from elsewhere.
NO_MERMAID = """\
window.mermaid = {
  initialize() {},
  async render(id, text) {
    const lines = text.split("\\n").map(
      (line, n) => `<tspan x="0" y="${n + 1}em" xml:space="preserve">${
        line.replace(/&/g, "&amp;").replace(/</g, "&lt;")}</tspan>`);
    const size = `viewBox="0 0 900 ${lines.length * 17}"`;
    return { svg: `<svg ${size}><text>${lines.join("")}</text></svg>` };
  },
};
"""


def stage(root: Path, folder: Path, mermaid: Path) -> list[str]:
    """Fill the folder; gives warnings. The pages are those of the navigation."""
    pages = folder / "pages"
    warnings: list[str] = []
    for entry in nav.entries(root):
        if not entry.path.startswith(nav.API):
            _copy_page(root, entry.path, pages)
    for name, text in api.pages():
        _write(pages / nav.API / name, text)
    _write(folder / "zensical.toml", _config(root))
    script = pages / "assets" / "mermaid.js"
    if mermaid.is_file():
        script.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(mermaid, script)
    else:
        _write(script, NO_MERMAID)
        warnings.append(f"{mermaid} is missing: diagrams are shown as text; run `make setup`")
    return warnings


def _config(root: Path) -> str:
    items = nav.only_existing(root, nav.config()["project"]["nav"])
    written = f"nav = {_toml(items)}\n"
    return NAV.sub(lambda _: written, nav.CONFIG.read_text(encoding="utf-8"), count=1)


def _toml(items: str | list[nav.Item]) -> str:
    if isinstance(items, str):
        return json.dumps(items)
    parts = [
        json.dumps(item)
        if isinstance(item, str)
        else "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in item.items()) + "}"
        for item in items
    ]
    return f"[{', '.join(parts)}]"


def _copy_page(root: Path, path: str, pages: Path) -> None:
    text = (root / path).read_text(encoding="utf-8")
    written: list[str] = []
    prose = {number for number, _ in docs.prose(text)}
    for number, line in enumerate(text.splitlines(), start=1):
        written.append(_with_links(root, path, line, pages) if number in prose else line)
    _write(pages / path, "\n".join(written) + "\n")


def _with_links(root: Path, path: str, line: str, pages: Path) -> str:
    def link(match: re.Match[str]) -> str:
        target = match[2]
        name, hash, anchor = unquote(target).partition("#")
        if not name or docs.ELSEWHERE.match(name):
            return match[0]
        file = (root / path).parent.joinpath(name).resolve()
        if file.suffix == ".md" or not file.is_relative_to(root.resolve()) or not file.is_file():
            return match[0]
        inside = file.relative_to(root.resolve()).as_posix()
        if file.suffix in IMAGES:
            (pages / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, pages / inside)
            return match[0]
        _write(pages / f"{inside}.md", _code_page(file, inside))
        return f"{match[1]}{name}.md{hash}{anchor}"

    return TARGET.sub(link, line)


def _code_page(file: Path, inside: str) -> str:
    code = file.read_text(encoding="utf-8")
    fence = "`" * (max([2, *(len(run) for run in re.findall(r"`{3,}", code))]) + 1)
    return f"# {inside}\n\n{fence}{LANGUAGES.get(file.suffix, 'text')}\n{code.rstrip()}\n{fence}\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
