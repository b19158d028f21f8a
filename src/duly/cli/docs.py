"""`duly docs`: where the documentation is, and the guide for coding assistants."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

import duly
from duly.cli.command import Command
from duly.cli.root import Root

GUIDE = "assistants.md"


@click.command(cls=Command)
@click.option("--for-assistants", is_flag=True, help="Print the guide for coding assistants.")
@click.pass_obj
def docs(root: Root, for_assistants: bool) -> None:
    """Show where the documentation is, or print the guide.

    The guide is one Markdown page on how to write code with duly. It fits into the context of a
    coding assistant, and into a file such as AGENTS.md.

    \b
    duly docs
    duly docs --for-assistants >> AGENTS.md
    """
    guide = files("duly.cli").joinpath(GUIDE)
    if for_assistants:
        text = guide.read_text(encoding="utf-8")
        root.out.show({"version": duly.__version__, "guide": text}, lambda: None)
        root.out.say(text.rstrip())
        return
    pages = _pages()
    where = {"version": duly.__version__, "guide": str(guide), "pages": pages and str(pages)}
    root.out.show(where, lambda: None)
    root.out.say(f"duly {duly.__version__}\n")
    if pages is None:
        root.out.say("Pages: docs/ in the source of duly, where `make docs-site` builds a site")
    else:
        root.out.say(f"Pages: {pages / 'index.md'}")
        root.out.say(f"Site:  run `make docs-site` in {pages.parent}")
    root.out.say(f"Guide: {guide}")
    root.out.say("\n`duly docs --for-assistants` prints the guide.")


def _pages() -> Path | None:
    """The pages of a checkout that this is run from; they are not installed with the package."""
    folder = Path(duly.__file__).resolve().parents[2] / "docs"
    return folder if (folder / "index.md").is_file() else None
