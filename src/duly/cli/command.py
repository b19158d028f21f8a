"""Commands that load when they are used, suggest corrections and print no tracebacks."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import click
from click.shell_completion import CompletionItem

from duly.cli import EXIT_INTERRUPTED
from duly.cli.safe import safe
from duly.cli.when import ZoneName
from duly.errors import DulyError, InvalidOption, UnknownZone
from duly.nearest import nearest

EXIT_ERROR = 1
EXIT_USAGE = 2
BAD_ANSWER_ERRORS = (AttributeError, LookupError, TypeError, ValueError)
"""Errors caused by a response with a missing field or a field of another type."""
PYTHON_VERBS = {
    "app.calendars.list()": "`duly calendars list`",
    "app.endpoints.list()": "`duly endpoints list`",
    "app.gateways.list()": "`duly gateways list`",
    "app.schedules.list()": "`duly schedules list`",
    "app.tokens.create": "`duly tokens create`",
    "cron_list()": "`duly gateways crons`",
    "send Authorization: Bearer …": "set DULY_TOKEN",
}
"""What errors suggest to a program, and what to type instead."""
EXIT_CODES = """\b
Exit codes:
  0    success
  1    the command failed, or a check found a problem
  2    the command line is wrong
  130  interrupted by Ctrl-C"""


class Command(click.Command):
    """A command that also accepts --json and --display-tz after its name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        named = {name for parameter in self.params for name in parameter.opts}
        self.params += [option for option in _shared() if not named & set(option.opts)]


def _shared() -> list[click.Option]:
    def remember(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value:
            ctx.find_root().params[str(parameter.name)] = value

    return [
        click.Option(
            ["--json", "as_json"],
            is_flag=True,
            expose_value=False,
            callback=remember,
            help="Print JSON.",
        ),
        click.Option(
            ["--display-tz"],
            type=ZoneName(),
            # Before the times that are read in it.
            is_eager=True,
            expose_value=False,
            callback=remember,
            help="Show times in this zone.",
        ),
    ]


class Group(click.Group):
    """A group whose `lazy` commands are imported when they are used.

    `lazy` maps a name to (module:attribute, help). The help is repeated here so that --help imports
    nothing; a test compares it with the command's own. `sections` maps the titles under which the
    help lists the commands to their names.
    """

    command_class = Command

    def __init__(
        self,
        *args: Any,
        lazy: Mapping[str, tuple[str, str]] | None = None,
        sections: Mapping[str, Sequence[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy or {}
        self.sections = sections
        if self.invoke_without_command:
            self.params += _shared()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self.invoke_without_command and not set(args) & set(self.list_commands(ctx)):
            # No command follows, so options at the end belong to the group.
            ctx.allow_interspersed_args = True
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.lazy, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.lazy:
            module, _, attribute = self.lazy[cmd_name][0].partition(":")
            return cast("click.Command", getattr(importlib.import_module(module), attribute))
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        known = self.get_command(ctx, name) is not None
        if not known and not ctx.resilient_parsing and not name.startswith("-"):
            near = nearest(name, self.list_commands(ctx))
            meant = f" Did you mean {near!r}?" if near else ""
            raise click.UsageError(f"There is no command {name!r}.{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        every = self.list_commands(ctx)
        width = max(map(len, every))
        for title, names in (self.sections or {"Commands": every}).items():
            # The same width everywhere, so that the sections line up.
            rows = [(f"{name:<{width}}", self._short_help(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete without importing lazy commands."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        found = [CompletionItem(name, help=self._short_help(ctx, name)) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def _short_help(self, ctx: click.Context, name: str) -> str:
        if name in self.lazy:
            return self.lazy[name][1]
        command = self.get_command(ctx, name)
        assert command is not None
        return command.get_short_help_str(100)


# Nested groups use the same class.
Group.group_class = Group


class RootGroup(Group):
    """The root group, which turns every error into a line on stderr and an exit code."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        _never_fail_to_print()
        try:
            code: Any = super().main(*args, **{**kwargs, "standalone_mode": False})
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            click.echo("duly: interrupted", err=True)
            code = EXIT_INTERRUPTED
        except BrokenPipeError:
            _leave_pipe()
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
            raise
        except click.Abort:
            # A prompt was answered with Ctrl-C, so its line has not ended.
            click.echo(err=True)
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            _fail_with(error, getattr(ctx.obj, "asked", None))


def _fail_with(error: Exception, server: str | None) -> NoReturn:
    import logging

    from duly.cli.find import described, line_of

    logging.getLogger(__name__).debug("the error was raised here", exc_info=error)
    # If code of the user's raised it, that is the place to look.
    where = line_of(error)
    at = f"{where}: " if where else ""
    if isinstance(error, DulyError):
        fail(f"{at}{error}", _exit_code(error), hint=getattr(error, "hint", None))
    what = f"{at}{described(error)}"
    if server and isinstance(error, BAD_ANSWER_ERRORS):
        what = f"{server} does not look like a duly server of this version: {what}"
    fail(what, hint="give --debug for the full traceback")


def _exit_code(error: DulyError) -> int:
    """The code for a wrong command line, or for a command that failed."""
    # An option of the command line, or the name of an argument, as opposed to one in code.
    typed = isinstance(error, InvalidOption) and (
        error.option.startswith("--") or error.option.isupper()
    )
    return EXIT_USAGE if typed or isinstance(error, UnknownZone) else EXIT_ERROR


def _never_fail_to_print() -> None:
    """Escape characters that a stream cannot encode, and replace closed streams."""
    # Streams that were closed before the start are None, despite their type.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _leave_pipe() -> NoReturn:
    """The reader closed the pipe: write nothing more, even during Python's shutdown."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(EXIT_ERROR)


def fail(message: str, code: int = EXIT_ERROR, *, hint: str | None = None) -> NoReturn:
    """Exit with a line that says what happened and one that says what to do."""
    click.echo(f"duly: {safe(as_typed(message))}", err=True)
    if hint and hint not in message:
        click.echo(f"      {safe(as_typed(hint))}", err=True)
    sys.exit(code)


def as_typed(text: str) -> str:
    """A message with the commands to type instead of calls in Python."""
    for verb, command in PYTHON_VERBS.items():
        text = text.replace(verb, command)
    return text
