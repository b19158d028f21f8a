"""`duly gateways serve`: run a gateway and its REST API until stopped."""

from __future__ import annotations

import importlib
import os
from typing import Any

import click

from duly.cli.command import EXIT_USAGE, Command, fail
from duly.cli.find import find_gateway
from duly.cli.root import Root
from duly.cli.serve import listen
from duly.cli.worker import greet
from duly.endpoints.secrets import resolve
from duly.errors import MissingExtra, SecretMissing
from duly.gateway.runtime import Gateway

PORT = 8700


@click.command(cls=Command)
@click.argument("path", metavar="MODULE:GATEWAY")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to bind to.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    help="Port to bind to; 0: any free port.",
)
@click.pass_obj
def serve(root: Root, path: str, host: str, port: int) -> None:
    """Run a gateway's crons and its REST API until SIGTERM or Ctrl-C.

    Without a secret, the gateway binds only to loopback addresses.

    \b
    duly gateways serve edge.runtime:gateway --port 8700
    """
    gateway = find_gateway(path)
    server = _server(gateway, host)
    with listen(host, port) as listener:
        # Errors in its store are reported here, in one line.
        gateway.open()
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listener.getsockname()[1]}"
        facts = {"gateway": gateway.name, "url": address, "pid": os.getpid()}
        greet(root, f"duly gateway {gateway.name!r}: {address}; Ctrl-C stops", facts)
        server.run(sockets=[listener])


def _server(gateway: Gateway, host: str) -> Any:
    try:
        uvicorn = importlib.import_module("uvicorn")
        server = importlib.import_module("duly.gateway.server")
    except ModuleNotFoundError as error:
        raise MissingExtra("server", "the API of a gateway") from error
    _require_secret(gateway, host, server.is_loopback(host))
    config = uvicorn.Config(
        gateway.asgi(),
        lifespan="on",
        log_config=None,
        # Clients are identified by their connection, not by forwarded headers.
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    return uvicorn.Server(config)


def _require_secret(gateway: Gateway, host: str, local: bool) -> None:
    if gateway.secret is None:
        if not local:
            reason = f"without a secret a gateway cannot bind to {host}"
            fail(f"{reason}; give Gateway(secret='env:NAME'), or --host 127.0.0.1", EXIT_USAGE)
        return
    try:
        resolve(gateway.secret)
    except SecretMissing as error:
        fail(str(error), EXIT_USAGE)
