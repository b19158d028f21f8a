"""Shell completion for names: fast or not at all, and never with an error message."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import FrameType
from typing import Any

import click

PATIENCE = 1.0
MAX_OFFERED = 200
Complete = Callable[[click.Context, click.Parameter, str], list[str]]


class _TimeIsUp(BaseException):
    """Completion took too long. A BaseException, so that user code does not catch it."""


def _offering(names: Callable[[click.Context], Iterable[str]]) -> Complete:
    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        try:
            with _quietly(), _within(PATIENCE):
                return sorted(name for name in names(ctx) if name.startswith(incomplete))
        except (Exception, SystemExit, _TimeIsUp):
            return []

    return complete


@contextmanager
def _quietly() -> Generator[None]:
    """Discard output of the user's code, which the shell would take for names."""
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        yield


@contextmanager
def _within(seconds: float) -> Generator[None]:
    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _stop(number: int, frame: FrameType | None) -> None:
    raise _TimeIsUp


def _remote(ctx: click.Context) -> Any:
    """The API of the server at --url, if it is given."""
    params = ctx.find_root().params
    if params.get("url") is None:
        return None
    from duly.cli.remote import Remote

    return Remote(params["url"], params.get("token"))


def _app(ctx: click.Context) -> Any:
    from duly.app import Duly
    from duly.cli.find import find_app

    root = ctx.find_root()
    return root.obj if isinstance(root.obj, Duly) else find_app(root.params.get("path"))


def _functions(ctx: click.Context) -> Iterable[str]:
    if remote := _remote(ctx):
        return [each["name"] for each in remote.items("/functions") if not each["internal"]]
    # The functions in the code, which need no database.
    return list(_app(ctx).functions)


def _schedules(ctx: click.Context) -> Iterable[str]:
    if remote := _remote(ctx):
        return [each["key"] for each in remote.pages("/schedules", most=MAX_OFFERED)]
    return [each.key for each in _app(ctx).schedules.list(limit=MAX_OFFERED)]


functions = _offering(_functions)
schedules = _offering(_schedules)
