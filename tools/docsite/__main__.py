"""Build the documentation site:  python -m tools.docsite [FOLDER]

The folder, `site` if none is given, is replaced. Serve it with `python -m http.server -d site`.
Nothing is fetched, neither here nor by a browser that reads the site.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.docsite import llms, nav, staging

SEARCH = Path(__file__).with_name("search.js")
GUIDE = Path("src/duly/cli/assistants.md")
NODE_MODULES = Path("node/node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js")
COLOR = re.compile("\x1b\\[[0-9;]*m")


class BuildFailed(Exception):
    """Zensical found something wrong, or is not the version that this was written for."""


def build(site: Path, *, root: Path = nav.ROOT, mermaid: Path | None = None) -> list[str]:
    """Build the pages of a project into the folder; gives warnings."""
    with tempfile.TemporaryDirectory(prefix="docsite-") as work:
        folder = Path(work)
        warnings = staging.stage(root, folder, mermaid or Path(sys.prefix) / NODE_MODULES)
        generate(folder)
        html = folder / "html"
        replace_search(html)
        llms.write(root, folder / "pages", html, root / GUIDE)
        shutil.rmtree(site, ignore_errors=True)
        site.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(html, site)
    return warnings


def generate(folder: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        env=os.environ | {"NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ended.returncode or "No issues found" not in ended.stdout:
        raise BuildFailed(COLOR.sub("", ended.stdout).partition("\nTraceback ")[0])


def replace_search(html: Path) -> None:
    """Put search.js in the place of the theme's search, which finds only what has every word."""
    workers = list((html / "assets" / "javascripts" / "workers").glob("search.*.js"))
    if len(workers) != 1:
        raise BuildFailed(f"one search worker was expected, not {workers}")
    shutil.copyfile(SEARCH, workers[0])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.docsite", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=nav.ROOT / "site")
    folder: Path = parser.parse_args(arguments).folder
    try:
        warnings = build(folder)
    except BuildFailed as failed:
        print(failed, file=sys.stderr)
        return 1
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{folder}: read it with  {Path(sys.executable).name} -m http.server -d {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
