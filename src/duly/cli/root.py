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
    "audit": ("duly.cli.operate:audit", "Show the audit log, newest entry first."),
    "calendars": ("duly.cli.calendars:calendars", "List, create, change and remove calendars."),
    "copy": ("duly.cli.copy:copy", "Move a store to another database and verify the copy."),
    "cron": ("duly.cli.cron:cron", "Explain a cron expression or a rule and show when it fires."),
    "dev": ("duly.cli.dev:dev", "Run a worker, ticker and server locally, with reload on change."),
    "docs": ("duly.cli.docs:docs", "Show where the documentation is, or print the guide."),
    "doctor": ("duly.cli.doctor:doctor", "Report problems and how to fix them."),
    "endpoints": (
        "duly.cli.endpoints:endpoints",
        "List, create, change and remove endpoints, and send to them.",
    ),
    "functions": ("duly.cli.functions:functions", "List, pause and deprecate functions."),
    "gateways": ("duly.cli.gateways:gateways", "Manage gateways and their crons."),
    "import": ("duly.cli.imports:imports", "Import schedules from cron and other systems."),
    "init": ("duly.cli.init:init", "Write a starter app."),
    "jobs": ("duly.cli.jobs:jobs", "List, inspect, retry and cancel jobs."),
    "migrate": ("duly.cli.migrate:migrate", "Create or upgrade duly's tables."),
    "observe": ("duly.cli.observe:observe", "Show schedules and gateway crons in one list."),
    "pause": (
        "duly.cli.operate:pause",
        "Pause everything: no job starts and no tick is dispatched.",
    ),
    "queues": ("duly.cli.operate:queues", "List, pause and resume queues."),
    "resume": ("duly.cli.operate:resume", "Resume after `duly pause`."),
    "run": ("duly.cli.run:run", "Run a function and wait for its result."),
    "schedules": ("duly.cli.schedules:schedules", "List, create, change and preview schedules."),
    "serve": (
        "duly.cli.serve:serve",
        "Serve the dashboard, the HTTP API, webhooks, health and metrics.",
    ),
    "ticker": ("duly.cli.ticker:ticker", "Process schedules without running jobs."),
    "tokens": ("duly.cli.tokens:tokens", "Create, list and revoke API tokens."),
    "version": ("duly.cli.operate:version", "Print the version."),
    "webhooks": ("duly.cli.webhooks:webhooks", "List, inspect and retry received webhooks."),
    "why": ("duly.cli.why:why", "Explain why a job or a schedule has not run."),
    "worker": ("duly.cli.worker:worker", "Run jobs and schedules until Ctrl-C."),
    "workers": ("duly.cli.operate:workers", "List workers."),
    "workflows": (
        "duly.cli.workflows:workflows",
        "List and inspect workflow runs, send them events, answer and resume them.",
    ),
}


SECTIONS: dict[str, tuple[str, ...]] = {
    "Get started": ("init", "dev", "migrate", "docs"),
    "Run": ("worker", "ticker", "serve"),
    "Jobs": ("run", "jobs", "workflows", "why", "functions", "queues"),
    "Schedules": ("schedules", "calendars", "cron", "import"),
    "HTTP": ("endpoints", "webhooks", "tokens"),
    "Operations": ("doctor", "workers", "pause", "resume", "audit", "copy", "version"),
    "Advanced": ("gateways", "observe"),
}
"""The commands as the help lists them."""


class Root:
    """The context of every command: the app or server, found when it is first used."""

    def __init__(self, path: str | None, bound: Duly | None, url: str | None, token: str | None):
        self._path, self._bound, self._bound_at_start = path, bound, bound
        self._url, self._token = url, token

    @property
    def is_named(self) -> bool:
        """Whether an app or a server is given: here, in the environment or in pyproject.toml."""
        from duly.cli.find import named

        return self._bound is not None or self._url is not None or bool(named(self._path))

    @property
    def is_remote(self) -> bool:
        """Whether commands go to a server instead of a local app."""
        return self._url is not None

    def set_up(self) -> None:
        """Prepare the app of this folder with the function that pyproject.toml names, if any."""
        from duly.cli.find import set_up

        if self._bound_at_start is None:
            set_up(self._path)

    @property
    def app(self) -> Duly:
        if self._url is not None:
            raise InvalidOption("--url", "cannot be used here: this command needs the app itself")
        if self._bound is None:
            from duly.cli.find import find_app

            self._bound = find_app(self._path)
        return self._bound

    @cached_property
    def api(self) -> Api:
        """The API to use: of the server at --url, or of the app itself."""
        if self._url is not None:
            from duly.cli.remote import Remote

            return Remote(self._url, self._token)
        from duly.cli.local import Local

        local = Local(self.app)
        click.get_current_context().find_root().call_on_close(local.close)
        return local

    @property
    def asked(self) -> str | None:
        """The server that requests were sent to, if any."""
        return self.api.where if self.is_remote and "api" in vars(self) else None

    @cached_property
    def out(self) -> Out:
        params = click.get_current_context().find_root().params
        return Out(as_json=bool(params.get("as_json")), tz=params.get("display_tz"))


@click.group(
    cls=RootGroup,
    lazy=COMMANDS,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EXIT_CODES,
)
@click.option(
    "--app",
    "path",
    envvar="DULY_APP",
    metavar="MODULE:NAME",
    help="The app. Default: DULY_APP, or [tool.duly] app in pyproject.toml.",
)
@click.option(
    "--url",
    envvar="DULY_URL",
    metavar="URL",
    help="Use the server at this address instead of a local app. Default: DULY_URL.",
)
@click.option(
    "--token",
    envvar="DULY_TOKEN",
    metavar="TOKEN",
    help="API token for --url. Prefer DULY_TOKEN: command lines are visible to other users.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON. Also accepted after a command.")
@click.option(
    "--display-tz",
    type=ZoneName(),
    envvar="DULY_TZ",
    help="Show times in this zone. Default: DULY_TZ, or this machine's zone.",
)
@click.option("--debug", is_flag=True, help="Show the full traceback of an error.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="Format of log records on stderr.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    help="Minimum level to log; info includes every change of a job's state.",
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
    duly dev                                try a demo, or your --app
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
        raise InvalidOption("--token", "requires --url")
    ctx.obj = Root(path, bound, url, token)
