"""`duly migrate`: create or upgrade duly's tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from duly.cli.command import Command
from duly.cli.root import Root


@click.command(cls=Command)
@click.option("--check", is_flag=True, help="Only check; exit 1 if migrations are pending.")
@click.option("--sql", is_flag=True, help="Only print the SQL that would run.")
@click.pass_obj
def migrate(root: Root, check: bool, sql: bool) -> None:
    """Create or upgrade duly's tables. A missing SQLite file is created.

    \b
    duly --app shop.tasks:app migrate
    duly --app shop.tasks:app migrate --check   # for deploy scripts
    """
    app = root.app
    if check:
        pending = [name for name, _ in app.store.pending_migrations()]
        _tell(root, "to do", pending)
        sys.exit(1 if pending else 0)
    if sql:
        click.echo(app.store.migration_script(app.clock.now()), nl=False)
        return
    taken = app.migrate()
    _tell(root, "applied", taken)
    if not taken:
        root.out.say("nothing to do")


def _tell(root: Root, what: str, names: Sequence[str]) -> None:
    if root.out.as_json:
        root.out.data({what.replace(" ", "_"): list(names)})
    sign = ":" if what == "to do" else ""
    for name in names:
        root.out.say(f"{what}{sign} {name}")
