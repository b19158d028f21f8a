"""`duly dev`: run all parts of an app on this machine and show their activity."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Callable, Generator
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from duly.app import Duly
from duly.cli.command import EXIT_ERROR, EXIT_USAGE, Command, fail
from duly.cli.dev.children import Children
from duly.cli.dev.code import LOADED, Code, Failure, Loaded, load
from duly.cli.dev.view import View
from duly.cli.root import Root
from duly.cli.serve import PORT, bind
from duly.cli.when import Length
from duly.cli.worker import Stop, end_with_parent, log_options, on_signals
from duly.clock import os_monotonic, os_sleep
from duly.errors import DulyError, MissingExtra
from duly.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from duly.cli.dev.story import Story

HOST = "127.0.0.1"
PORTS_TRIED = 100
LOOK_EVERY = 0.05
DATABASE = "duly-dev.db"
SHUTDOWN_SLACK = 3
"""The factor by which a slow machine may exceed the time of the demo."""

Steps = Generator[None]
"""Work done between refreshes, one step at a time."""


@click.command(cls=Command)
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    default=PORT,
    show_default=True,
    help="Port of the server; if it is in use, the next free one.",
)
@click.option("--for", "seconds", type=Length(), help="Stop after this time: 20s, 5m.")
@click.option("--load", "load_only", is_flag=True, hidden=True)
@click.pass_obj
def dev(root: Root, port: int, seconds: float | None, load_only: bool) -> None:
    """Run a worker, ticker and server locally, with reload on change.

    Ctrl-C stops them. Without an app it runs a demo, with its database duly-dev.db in this folder.
    Use the other commands in a second terminal to inspect it.

    \b
    duly dev
    duly --app shop.tasks:app dev
    duly dev --for 20s              exit 1 if the demo does not succeed in time
    """
    if find_spec("uvicorn") is None or find_spec("fastapi") is None:
        raise MissingExtra("server", "duly dev")
    if load_only:
        _try_to_load(root)
    else:
        raise SystemExit(_run(root, port, seconds))


def _try_to_load(root: Root) -> None:
    """Load the code, and print the folders of its modules."""
    # End with the parent even while an import hangs.
    end_with_parent(lambda: os._exit(EXIT_ERROR))
    app = root.app
    root.set_up()
    click.echo(LOADED + json.dumps(load(app)._asdict()))
    app.close()


def _run(root: Root, port: int, seconds: float | None) -> int:
    is_demo = not root.is_named
    app = _demo() if is_demo else root.app
    if not is_demo and isinstance(app.store, SqliteStore):
        # A database server is migrated only by `duly migrate`.
        app.migrate()
    app.ready()
    if not is_demo:
        root.set_up()
    command = app.command()
    if command is None:
        fail("the app must be in a module or script that can be imported", EXIT_USAGE)
    try:
        with _listener(port) as listener:
            running = Dev(root, app, command, listener)
            return running.demo(seconds) if is_demo else running.app(seconds)
    finally:
        app.close()


def _demo() -> Duly:
    """The demo, always on its own database because it writes to it."""
    os.environ["DULY_DATABASE_URL"] = f"sqlite:///{os.path.abspath(DATABASE)}"
    os.environ.setdefault("ORDERS_WEBHOOK_SECRET", secrets.token_hex(16))
    from duly.cli import demo
    from duly.cli.find import find_app

    demo.set_up()
    demo.app.schedules.apply()
    return find_app(f"{demo.__name__}:app")


def _listener(first: int) -> socket.socket:
    """The server's socket, which stays open when the server restarts."""
    last = min(first + PORTS_TRIED - 1, 65_535)
    for port in range(first, last + 1):
        with suppress(OSError):
            return bind(HOST, port)
    return fail(f"no free port in {first}-{last}", hint="give another --port")


class StopRequests(Stop):
    """Counts stop requests; the second one means to hurry."""

    times = 0

    def ask(self) -> None:
        self.asked = True
        self.times += 1

    def hurry(self) -> bool:
        return self.times > 1


class Dev:
    """The processes of an app, its code, and the view of their activity."""

    def __init__(self, root: Root, app: Duly, command: list[str], listener: socket.socket) -> None:
        self._app = app
        self._out = root.out
        self._listener = listener
        self._command = [*command, *log_options()]
        self._children = Children(self._command)
        self._url = "http://{}:{}".format(*listener.getsockname())
        self._view = View(app, root.out, self._url)
        self._stop = StopRequests()
        self._is_well = True
        self._remedy = ""

    def app(self, seconds: float | None) -> int:
        """Run the user's app until a stop request or the time limit; the exit code."""
        self._remedy = "; it restarts when the code changes"
        loaded = load(self._app)
        code = Code(self._command, loaded.folders)
        try:
            self._until_stopped(self._follow(code, loaded), seconds)
        finally:
            code.close()
        return 0 if self._is_well else EXIT_ERROR

    def demo(self, seconds: float | None) -> int:
        """Run the demo; if its time is limited, fail unless its main job was shown."""
        from duly.cli.dev.story import Story

        story = Story(self._view, self._out, self._url, self._children)
        self._until_stopped(self._tell(story), seconds, lambda: story.shown)
        return 0 if story.shown or seconds is None else EXIT_ERROR

    def _until_stopped(
        self, steps: Steps, seconds: float | None, is_done: Callable[[], bool] = lambda: True
    ) -> None:
        """Run the steps and refresh the view between them."""
        began = os_monotonic()

        def is_over() -> bool:
            lasted = os_monotonic() - began
            return seconds is not None and lasted >= (
                seconds if is_done() else SHUTDOWN_SLACK * seconds
            )

        on_signals(self._stop.ask)
        with self._view.shown():
            where = self._app.ready().address().where
            self._view.begin(self._url, where)
            try:
                while not self._stop.asked and not is_over():
                    next(steps, None)
                    self._look_at_children()
                    self._view.update()
                    os_sleep(LOOK_EVERY)
            finally:
                self._children.end(self._stop.hurry)
                self._hear()

    # Steps ---------------------------------------------------------------------------------------

    def _tell(self, story: Story) -> Steps:
        self._children.start_server(self._listener.fileno())
        try:
            yield from story.tell()
        except DulyError as error:
            self._view.say(f"the demo failed: {error}", "red")

    def _follow(self, code: Code, loaded: Loaded) -> Steps:
        """Start the processes, and restart them when the code changes."""
        self._start(loaded)
        while True:
            match code.look():
                case Failure(why):
                    self._is_well = False
                    self._view.say(f"{why}\nthe old code keeps running", "red")
                case Loaded() as loaded:
                    self._view.say("the code has changed")
                    self._children.end(self._stop.hurry)
                    self._start(loaded)
                case None:
                    pass
            yield

    def _start(self, loaded: Loaded) -> None:
        self._is_well = True
        if loaded.warning:
            self._view.say(loaded.warning, "yellow")
        self._children.start_server(self._listener.fileno())
        self._children.start_worker()

    # Processes -----------------------------------------------------------------------------------

    def _look_at_children(self) -> None:
        self._hear()
        for child in self._children.ended():
            self._is_well = False
            self._hear()
            said = f"the {child.name} ended with exit code {child.code}"
            self._view.say(f"{said}{self._remedy}", "red")

    def _hear(self) -> None:
        for line in self._children.heard():
            self._view.heard(line)
