"""`duly ticker`: tick schedules until told to stop, and run no jobs."""

from __future__ import annotations

import click

from duly.cli.root import Root
from duly.cli.worker import Stop, greet, on_signals


@click.command()
@click.pass_obj
def ticker(root: Root) -> None:
    """Tick schedules, and run no jobs: until SIGTERM or Ctrl-C.

    Any number of tickers may run, beside those of the workers. It also keeps the tables in order.

    \b
    duly --app shop.tasks:app ticker
    """
    stop = Stop()
    on_signals(stop.ask)
    app = root.app
    service = app.ticker_service()
    service.start()
    greet(f"duly ticker: schedules of {app.name!r}; Ctrl-C stops")
    stop.wait()
    service.stop()
    app.close()
