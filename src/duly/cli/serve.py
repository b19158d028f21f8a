"""`duly serve`: the dashboard, the HTTP API, webhooks, health and metrics."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import click

from duly.app import Duly, operations
from duly.cli.command import EXIT_USAGE, Command, fail
from duly.cli.root import Root
from duly.cli.wait import wait_for_database, wait_option
from duly.cli.worker import end_with_parent, greet, on_signals
from duly.errors import MissingExtra
from duly.model.access import PARTS

PORT = 8484
GRACE_SECONDS = 5
MAX_CONNECTIONS = 1_000
"""Further connections get 503; processes are often limited to 1,024 open files."""
OPEN_TO_ALL = {"hooks", "health"}
"""Parts that need no tokens: webhooks are signed, and health reveals nothing."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


@click.command(cls=Command)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind to.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    help="0: any free port.",
)
@click.option(
    "--only", type=click.Choice(PARTS), multiple=True, help="Serve only this part; repeatable."
)
@click.option(
    "--auth",
    type=click.Choice(["tokens", "open"]),
    help="Default: tokens once a token exists, and always on non-loopback addresses.",
)
@click.option(
    "--allow-host", multiple=True, help="Accept only requests for this host name; repeatable."
)
@click.option(
    "--open-metrics",
    is_flag=True,
    help="Serve metrics without a token; requires --only health.",
)
@click.option("--read-only", is_flag=True, help="Refuse all changes.")
@click.option("--root-path", default="", help="Path prefix under which a proxy serves it.")
@click.option("--with-worker", is_flag=True, help="Also run jobs and schedules in this process.")
@wait_option
@click.option("--with-parent", "file", type=int, hidden=True)
@click.pass_obj
def serve(
    root: Root,
    host: str,
    port: int,
    only: tuple[str, ...],
    auth: str | None,
    allow_host: tuple[str, ...],
    open_metrics: bool,
    read_only: bool,
    root_path: str,
    with_worker: bool,
    wait: float,
    file: int | None,
) -> None:
    """Serve the dashboard, the HTTP API, webhooks, health and metrics.

    Runs until SIGTERM or Ctrl-C. Without tokens it binds to loopback only, unless --only limits
    it to webhooks, which are signed, or health.

    \b
    duly --app shop.tasks:app serve
    duly --app shop.tasks:app serve --only hooks --host 0.0.0.0
    duly --app shop.tasks:app serve --only health --open-metrics --host 10.0.0.5
    """
    if find_spec("uvicorn") is None or find_spec("fastapi") is None:
        raise MissingExtra("server", "duly serve")
    if open_metrics and set(only) != {"health"}:
        fail("--open-metrics requires --only health", EXIT_USAGE)
    app = root.app
    wait_for_database(app, wait)
    chosen = _auth(app, host, frozenset(only or PARTS), auth)
    hosts = allow_host or ((host, *LOOPBACK_NAMES) if chosen == "open" else None)
    _publish(app)
    asgi = app.asgi(
        auth=chosen,
        only=only or None,
        hosts=hosts,
        metrics_open=open_metrics,
        read_only=read_only,
    )
    with _listener(host, port, file) as listener:
        url = f"http://{_shown(host)}:{listener.getsockname()[1]}"
        facts = {"app": app.name, "url": url, "auth": chosen, "pid": os.getpid()}
        greet(root, f"duly serve: {url} (auth: {chosen}); Ctrl-C stops", facts)
        server = _server(app, asgi, root_path, with_parent=file is not None)
        if with_worker:
            app.start()
        try:
            server.run(sockets=[listener])
        finally:
            app.close()


def _publish(app: Duly) -> None:
    """Publish the functions, so that clients see them even before a worker has run.

    This precedes the routes, because a module may declare a webhook with its own path.
    """
    operations.publish(app)


def _server(app: Duly, asgi: Any, root_path: str, *, with_parent: bool) -> Any:
    """The server, not started; from now on a signal stops it instead of the process."""
    uvicorn: Any = import_module("uvicorn")

    class Server(uvicorn.Server):  # type: ignore[misc]
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            # Shutdown waits for streams, which do not end by themselves.
            await asyncio.to_thread(operations.end_streams, app)
            await super().shutdown(sockets)  # pyright: ignore[reportUnknownMemberType]

    config = uvicorn.Config(
        asgi,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        root_path=root_path,
        timeout_graceful_shutdown=GRACE_SECONDS,
        limit_concurrency=MAX_CONNECTIONS,
    )
    server = Server(config)

    def stop() -> None:
        server.should_exit = True

    # While uvicorn runs it handles signals itself and raises them again when it stops. The app
    # still has to be closed then.
    on_signals(stop)
    if with_parent:
        end_with_parent(stop)
    return server


def _auth(app: Duly, host: str, parts: frozenset[str], asked: str | None) -> str:
    """The authentication to use; exits if the address would be open to all."""
    if parts <= OPEN_TO_ALL and asked != "open":
        return "tokens"
    if _is_loopback(host):
        # Revoked tokens count: revoking the last one must not open the server.
        return asked or ("tokens" if app.tokens.list(limit=1) else "open")
    if asked == "open" or not app.tokens.exist():
        fail(
            f"{host} is not a loopback address, so it requires authentication: create a token with "
            "`duly tokens create`, bind to 127.0.0.1, or serve --only hooks",
            EXIT_USAGE,
        )
    return "tokens"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _listener(host: str, port: int, file: int | None) -> socket.socket:
    """A listening socket; `file` is one that the parent has bound."""
    return listen(host, port) if file is None else socket.socket(fileno=file)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; exits if the address is not available."""
    try:
        return bind(host, port)
    except OSError as error:
        fail(f"cannot bind to {host}:{port}: {error.strerror or error}")


def bind(host: str, port: int) -> socket.socket:
    # asyncio sets TCP_NODELAY only on sockets whose protocol is TCP. Without it, the body of every
    # small response waits 40 ms for the client to acknowledge the headers.
    listener = socket.socket(_family(host), socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


def _shown(host: str) -> str:
    return f"[{host.strip('[]')}]" if ":" in host else host
