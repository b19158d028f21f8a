"""`duly doctor`: report problems and how to fix them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from duly.cli.command import EXIT_ERROR, Command
from duly.cli.out import Out
from duly.cli.root import Root

if TYPE_CHECKING:
    from rich.console import RenderableType

STYLES = {"ok": "green", "note": "yellow", "wrong": "bold red"}


@click.command(cls=Command)
@click.pass_obj
def doctor(root: Root) -> None:
    """Report problems and how to fix them; exit 1 if something is wrong.

    Notes do not affect the exit code. With --url, the server runs the checks.

    \b
    duly doctor
    duly --url https://ops.example.com doctor --json
    """
    found = _examined(root)
    root.out.show(found, lambda: _shown(root.out, found["findings"]))
    if not found["healthy"]:
        raise SystemExit(EXIT_ERROR)


def _examined(root: Root) -> dict[str, Any]:
    if click.get_current_context().find_root().params["url"] is not None:
        answer: dict[str, Any] = root.api.get("/doctor")
        return answer
    return _here(root)


def _here(root: Root) -> dict[str, Any]:
    """Examine the app directly: the API needs a database that responds."""
    import msgspec

    from duly.app.operations import examine

    app = root.app
    try:
        found: dict[str, Any] = msgspec.to_builtins(examine(app))
    finally:
        app.close()
    return found


def _shown(out: Out, findings: list[dict[str, Any]]) -> RenderableType:
    from rich.console import Group as Lines
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False, show_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in findings:
        text = out.cell(each["text"])
        if each["hint"]:
            text = Text.assemble(text, "\n", out.styled(f"→ {each['hint']}", "cyan"))
        level = out.styled(each["level"], STYLES.get(each["level"], ""))
        table.add_row(level, out.cell(each["check"]), text)
    return Lines(table, _summary(out, findings))


def _summary(out: Out, findings: list[dict[str, Any]]) -> RenderableType:
    wrong = sum(each["level"] == "wrong" for each in findings)
    if not wrong:
        return out.styled("\nno problems found", "green")
    problems = "problem" if wrong == 1 else "problems"
    return out.styled(f"\n{wrong} {problems} found", "bold red")
