"""`duly ticker`: process the ticks of schedules until stopped, without running jobs."""

from __future__ import annotations

import os

import click

from duly.cli.command import Command
from duly.cli.root import Root
from duly.cli.wait import wait_for_database, wait_option
from duly.cli.worker import Stop, greet, on_signals


@click.command(cls=Command)
@wait_option
@click.pass_obj
def ticker(root: Root, wait: float) -> None:
    """Process schedules without running jobs, until SIGTERM or Ctrl-C.

    Any number of tickers can run, in addition to those of the workers. Each also expires jobs and
    removes old history.

    \b
    duly --app shop.tasks:app ticker
    """
    stop = Stop()
    on_signals(stop.ask)
    app = root.app
    wait_for_database(app, wait, lambda: stop.asked)
    if stop.asked:
        return
    service = app.ticker_service()
    service.start()
    facts = {"app": app.name, "pid": os.getpid()}
    greet(root, f"duly ticker: schedules of {app.name!r}; Ctrl-C stops", facts)
    stop.wait()
    service.stop()
    app.close()
