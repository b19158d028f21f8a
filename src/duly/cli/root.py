"""The root command, with the options for the app, the output and the log."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

import duly
from duly.cli.command import EXIT_CODES, RootGroup
from duly.cli.out import Out
from duly.cli.when import ZoneName
from duly.errors import InvalidOption

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.cli.api import Api

COMMANDS = {
    "audit": ("duly.cli.operate:audit", "Who did what, newest first."),
    "calendars": ("duly.cli.calendars:calendars", "On which dates schedules tick."),
    "copy": ("duly.cli.copy:copy", "Move a store to another database, with nothing lost."),
    "cron": ("duly.cli.cron:cron", "Say a cron expression in words, and when it fires."),
    "dev": ("duly.cli.dev:dev", "Run worker, ticker and server here, with reload on change."),
    "docs": ("duly.cli.docs:docs", "Say where the documentation is, or print the guide."),
    "doctor": ("duly.cli.doctor:doctor", "Look for what is wrong, and say what to do."),
    "endpoints": ("duly.cli.endpoints:endpoints", "Addresses that jobs and schedules POST to."),
    "functions": ("duly.cli.functions:functions", "What can be called, and what is paused."),
    "gateways": ("duly.cli.gateways:gateways", "Runtimes with crons of their own."),
    "import": ("duly.cli.imports:imports", "Take over schedules from cron and other systems."),
    "init": ("duly.cli.init:init", "Write a first app to start from."),
    "jobs": ("duly.cli.jobs:jobs", "Calls and what became of them."),
    "migrate": ("duly.cli.migrate:migrate", "Create or upgrade duly's tables."),
    "observe": ("duly.cli.observe:observe", "Show schedules and gateway crons in one view."),
    "pause": ("duly.cli.operate:pause", "Stop everything: no job starts, no tick dispatches."),
    "queues": ("duly.cli.operate:queues", "Where jobs wait for workers."),
    "resume": ("duly.cli.operate:resume", "Let everything go on after `duly pause`."),
    "run": ("duly.cli.run:run", "Call a function and wait for what it gives."),
    "schedules": ("duly.cli.schedules:schedules", "Rules that say when a function is called."),
    "serve": (
        "duly.cli.serve:serve",
        "Serve the dashboard, the HTTP API, webhooks, health and metrics.",
    ),
    "ticker": ("duly.cli.ticker:ticker", "Tick schedules, and run no jobs."),
    "tokens": ("duly.cli.tokens:tokens", "Who may use the HTTP API."),
    "version": ("duly.cli.operate:version", "Print the version."),
    "webhooks": ("duly.cli.webhooks:webhooks", "What others have sent, and what became of it."),
    "why": ("duly.cli.why:why", "Say why a job or a schedule has not run."),
    "worker": ("duly.cli.worker:worker", "Run jobs, and tick schedules, until Ctrl-C."),
    "workers": ("duly.cli.operate:workers", "The processes that run jobs."),
}


class Root:
    """What every command gets: the app or the server, found when it is first asked for."""

    def __init__(self, path: str | None, bound: Duly | None, url: str | None, token: str | None):
        self._path, self._bound = path, bound
        self._url, self._token = url, token

    @property
    def is_named(self) -> bool:
        """Whether an app, or a server, is named: here, in the environment or in the project."""
        from duly.cli.find import named

        return self._bound is not None or self._url is not None or bool(named(self._path))

    @property
    def is_remote(self) -> bool:
        """Whether a server is operated, and no app of this process."""
        return self._url is not None

    @property
    def app(self) -> Duly:
        if self._url is not None:
            raise InvalidOption("--url", "this runs on the app itself; leave --url out")
        if self._bound is None:
            from duly.cli.find import find_app

            self._bound = find_app(self._path)
        return self._bound

    @cached_property
    def api(self) -> Api:
        """What operates: the server at --url, else the app itself."""
        if self._url is not None:
            from duly.cli.remote import Remote

            return Remote(self._url, self._token)
        from duly.cli.local import Local

        local = Local(self.app)
        click.get_current_context().find_root().call_on_close(local.close)
        return local

    @property
    def asked(self) -> str | None:
        """The server that has been asked, if one has."""
        return self.api.where if self.is_remote and "api" in vars(self) else None

    @cached_property
    def out(self) -> Out:
        params = click.get_current_context().find_root().params
        return Out(as_json=bool(params.get("as_json")), tz=params.get("display_tz"))


@click.group(
    cls=RootGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EXIT_CODES,
)
@click.option(
    "--app",
    "path",
    envvar="DULY_APP",
    metavar="MODULE:NAME",
    help="Where the app is; else DULY_APP, else [tool.duly] app in pyproject.toml.",
)
@click.option(
    "--url", envvar="DULY_URL", metavar="URL", help="Operate the server there; else DULY_URL."
)
@click.option(
    "--token", envvar="DULY_TOKEN", metavar="TOKEN", help="For --url; else DULY_TOKEN, unseen."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; also after a command.")
@click.option(
    "--display-tz",
    type=ZoneName(),
    envvar="DULY_TZ",
    help="Show times in this zone; otherwise in DULY_TZ, or in this machine's zone.",
)
@click.option("--debug", is_flag=True, help="Show where an error comes from.")
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
def cli(
    ctx: click.Context,
    path: str | None,
    url: str | None,
    token: str | None,
    as_json: bool,
    display_tz: str | None,
    debug: bool,
    log_format: str,
    log_level: str,
) -> None:
    """Durable scheduling and background jobs in the database you already have.

    \b
    duly dev                                see it work: a demo, or your --app
    duly --app shop.tasks:app worker        run jobs and schedules until Ctrl-C
    duly --app shop.tasks:app run send_mail to=me@example.com
    duly --url https://ops.example.com schedules list
    """
    from duly.app import Duly
    from duly.cli.logs import set_up_logging

    bound = ctx.obj if isinstance(ctx.obj, Duly) else None
    if bound is None or not bound.owns_logging:
        set_up_logging(log_format, log_level)
    if url is None and ctx.get_parameter_source("token") is ParameterSource.COMMANDLINE:
        raise InvalidOption("--token", "goes with --url")
    ctx.obj = Root(path, bound, url, token)
