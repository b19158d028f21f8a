"""`duly migrate`: create or upgrade duly's tables."""

from __future__ import annotations

import sys

import click

from duly.cli.root import Root


@click.command()
@click.option("--check", is_flag=True, help="Change nothing; exit 1 if something is to be done.")
@click.option("--sql", is_flag=True, help="Change nothing; print the SQL that would run.")
@click.pass_obj
def migrate(root: Root, check: bool, sql: bool) -> None:
    """Create duly's tables, or bring them up to date. A missing SQLite file is created.

    \b
    duly --app shop.tasks:app migrate
    duly --app shop.tasks:app migrate --check   # for deploy scripts
    """
    app = root.app
    if check:
        pending = app.store.pending_migrations()
        for name, _ in pending:
            click.echo(f"to do: {name}")
        sys.exit(1 if pending else 0)
    if sql:
        click.echo(app.store.migration_script(app.clock.now()), nl=False)
        return
    taken = app.migrate()
    for name in taken:
        click.echo(f"applied {name}")
    if not taken:
        click.echo("nothing to do")
