"""The root command: which app, how to log, how errors look."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

import duly
from duly.app import Duly
from duly.cli.find import find_app
from duly.errors import DulyError

EXIT_ERROR = 1
EXIT_USAGE = 2


class Root:
    """What every command gets: the app, found when it is first asked for."""

    def __init__(self, path: str | None, bound: Duly | None) -> None:
        self._path = path
        self._bound = bound

    @property
    def app(self) -> Duly:
        if self._bound is None:
            self._bound = find_app(self._path)
        return self._bound


class Group(click.Group):
    """Errors of duly are one line on stderr and exit code 1, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DulyError as error:
            fail(str(error))


def fail(message: str, code: int = EXIT_ERROR) -> NoReturn:
    """End with one line that says what happened."""
    click.echo(f"duly: {message}", err=True)
    sys.exit(code)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--app",
    "path",
    envvar="DULY_APP",
    metavar="MODULE:NAME",
    help="Where the app is; else DULY_APP, else [tool.duly] app in pyproject.toml.",
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", help="On stderr."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    help="info shows every change of a job's state.",
)
@click.version_option(duly.__version__, "-V", "--version", message="duly %(version)s")
@click.pass_context
def cli(ctx: click.Context, path: str | None, log_format: str, log_level: str) -> None:
    """Durable background jobs in the database you already have.

    \b
    duly --app shop.tasks:app migrate     create or upgrade duly's tables
    duly --app shop.tasks:app worker      run jobs and schedules until Ctrl-C
    """
    bound = ctx.obj if isinstance(ctx.obj, Duly) else None
    if bound is None or not bound.owns_logging:
        set_up_logging(log_format, log_level)
    ctx.obj = Root(path, bound)


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(duly.__version__)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("job_id", "function", "attempt", "schedule"):
            if hasattr(record, name):
                fields[name] = getattr(record, name)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def set_up_logging(log_format: str, log_level: str) -> None:
    """Only the command line installs handlers; the library never does."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(level=log_level.upper(), handlers=[handler], force=True)


def main(
    obj: Duly | None = None, args: Sequence[str] | None = None, program: str | None = None
) -> None:
    """Run the command line; `app.main()` binds it to an app."""
    from duly.cli import gateways, migrate, serve, ticker, worker

    cli.add_command(gateways.gateways)
    cli.add_command(migrate.migrate)
    cli.add_command(serve.serve)
    cli.add_command(ticker.ticker)
    cli.add_command(worker.worker)
    cli(args=args, prog_name=program, obj=obj)
