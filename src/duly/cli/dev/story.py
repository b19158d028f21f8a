"""The scripted part of the demo: duly's main features in ten seconds.

A generator that yields while it waits, so that the main loop keeps running.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import os
import secrets
from collections.abc import Generator
from functools import partial

import msgspec

from duly.calls.jobs import Job
from duly.cli import demo
from duly.cli.dev.children import Children
from duly.cli.dev.view import View
from duly.cli.out import Out
from duly.cli.schedules.preview import foreseen
from duly.clock import to_ms
from duly.model.job import State

SECRET = "ORDERS_WEBHOOK_SECRET"
PHOTOS = 20
KILL_AT = 0.1
"""The album's progress at which its worker is killed, well before the paper jam."""

Steps = Generator[None]


class Story:
    """Previews schedules, kills a worker whose job is recovered, and runs a delayed delete."""

    def __init__(self, view: View, out: Out, url: str, children: Children) -> None:
        self._view, self._out, self._url = view, out, url
        self._children = children
        self.shown = False
        """Whether a preview was printed, jobs have run and one was recovered."""

    def tell(self) -> Steps:
        self._explain_schedules()
        message = demo.app.run(demo.send, "Ada", "read this quickly")
        album = yield from self._lose_a_worker()
        self._children.start_worker()
        yield from self._see_it_recovered(album)
        yield from self._see_it_destroyed(message)
        yield from self._order_a_teapot()
        self._view.say("That was the demo; it keeps running. Try this in another terminal:")
        for command in ("jobs list", "schedules list", "run print_album photos:=30"):
            self._view.say(f"    duly --url {self._url} {command}", "")

    def _explain_schedules(self) -> None:
        for key, n in (("morning news", 6), ("call for help", 1)):
            ticks = demo.app.schedules.preview(key, n, tz=self._out.tz.key)
            found = [{**msgspec.to_builtins(tick), "due_at_ms": to_ms(tick.due)} for tick in ticks]
            self._view.say(f"duly schedules preview {key!r}")
            self._view.show({"preview": found}, partial(foreseen, self._out, found))

    def _lose_a_worker(self) -> Generator[None, None, Job[str]]:
        """A job whose worker was killed while it was running."""
        while True:
            album = demo.app.run(demo.print_album, PHOTOS)
            second = self._children.start_second_worker()
            self._view.say("A second worker starts printing an album, and is about to be killed.")
            while not album.state.is_terminal and _done(album) < KILL_AT:
                yield
            self._children.kill(second)
            if album.state is State.RUNNING:
                self._view.say("kill -9: the worker is gone, but its job is still marked running.")
                return album

    def _see_it_recovered(self, album: Job[str]) -> Steps:
        while album.attempt < 2 and not album.state.is_terminal:
            yield
        self._view.say("Another worker noticed, and prints the album again.")
        while not album.state.is_terminal:
            yield
        self._view.say(f"Printed: {album.result()}.")
        self.shown = True

    def _see_it_destroyed(self, message: Job[str]) -> Steps:
        while not message.state.is_terminal:
            yield
        (end,) = message.children()
        while not end.state.is_terminal:
            yield
        self._view.say(
            "Ada's message deleted itself: the delete was stored in the same transaction as it."
        )

    def _order_a_teapot(self) -> Steps:
        body = json.dumps({"item": "teapot", "order": secrets.token_hex(4)}).encode()
        signature = hmac.new(os.environ[SECRET].encode(), body, hashlib.sha256).hexdigest()
        connection = http.client.HTTPConnection(self._url.removeprefix("http://"), timeout=10)
        yield
        try:
            connection.request("POST", "/hooks/orders", body, {"X-Signature": signature})
            answer = connection.getresponse()
            answer.read()
        except OSError as error:
            self._view.say(f"The server did not respond to the shop's webhook: {error}", "yellow")
        else:
            self._view.say(f"The shop sent a webhook, and got status {answer.status}.")
        finally:
            connection.close()


def _done(album: Job[str]) -> float:
    progress = album.progress
    return 0.0 if progress is None else progress.value
