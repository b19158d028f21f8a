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
    if check or sql:
        pending = root.app.store.pending_migrations()
        for name, text in pending:
            click.echo(text if sql else f"to do: {name}")
        sys.exit(1 if check and pending else 0)
    taken = root.app.migrate()
    for name in taken:
        click.echo(f"applied {name}")
    if not taken:
        click.echo("nothing to do")
