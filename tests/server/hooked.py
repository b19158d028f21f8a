"""A process that receives one webhook and may be killed: `python -m tests.server.hooked URL`."""

import hashlib
import hmac
import os
import subprocess
import sys

from duly import Ctx, Duly, Tx
from duly.webhooks import GitHub, Received

SECRET = "s3cret-canary"
BODY = b'{"issue":{"id":7}}'


def make_app(url: str) -> Duly:
    app = Duly(url)
    wire(app)
    return app


def wire(app: Duly) -> None:
    @app.mutation
    def process(tx: Tx, event_id: str) -> None:
        tx.execute("INSERT INTO notes VALUES (?)", (event_id,))

    @app.action
    def other(ctx: Ctx, event_id: str) -> None: ...

    app.webhook("github", source=GitHub(secrets=[SECRET]), process=process)


def signed(body: bytes, delivery: str, type_: str = "push", secret: str = SECRET) -> dict[str, str]:
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {
        "X-Hub-Signature-256": f"sha256={digest}",
        "X-GitHub-Delivery": delivery,
        "X-GitHub-Event": type_,
    }


def send(app: Duly, body: bytes = BODY, delivery: str = "d-1", type_: str = "push") -> Received:
    return app.webhooks.receive("github", signed(body, delivery, type_), body)


def receive_in_a_process(url: str, fault: str) -> int:
    """Receive the request in a process that is killed at the fault; how it ended."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "DULY_FAULT": fault,
    }
    command = [sys.executable, "-m", "tests.server.hooked", url]
    return subprocess.run(command, env=environment, timeout=60, check=False).returncode


if __name__ == "__main__":
    send(make_app(sys.argv[1]))
