"""Waits for a database that is down when a long-running command starts."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from duly.clock import os_monotonic, os_sleep
from duly.errors import StoreMoved, StoreRefused, StoreUnavailable

if TYPE_CHECKING:
    from duly.app import Duly

log = logging.getLogger(__name__)

WAIT_SECONDS = 300.0
ASK_EVERY = 1.0
SAY_EVERY = 30.0

wait_option = click.option(
    "--wait",
    type=click.FloatRange(0),
    default=WAIT_SECONDS,
    show_default=True,
    help="Seconds to wait for the database at startup; 0: fail immediately.",
)


def wait_for_database(
    app: Duly,
    seconds: float,
    is_over: Callable[[], bool] = lambda: False,
    lives: Callable[[], None] = lambda: None,
    start: Callable[[], object] = lambda: None,
) -> None:
    """Connect and `start`; if the database is down, log that and retry for `seconds`.

    A database that responds with a refusal (wrong password, missing migrations) is not down.
    `lives` is called before each try; `is_over` stops the wait.
    """
    until = os_monotonic() + seconds
    say_at = os_monotonic()
    while not is_over():
        lives()
        try:
            app.ready()
            start()
            return
        except (StoreMoved, StoreRefused):
            raise
        except StoreUnavailable as error:
            left = until - os_monotonic()
            if left <= 0:
                raise
            if os_monotonic() >= say_at:
                say_at = os_monotonic() + SAY_EVERY
                log.warning("%s; waiting for the database for up to %.0f s", error, left)
        os_sleep(min(ASK_EVERY, left))
