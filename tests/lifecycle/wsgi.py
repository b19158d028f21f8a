"""A plain WSGI application whose requests enqueue: `/touch/a` is `app.run(touch, "a")`.

Under Gunicorn this file is also the configuration: with preload the app is imported, and used,
before the fork. `LAZY` starts the worker with the first request instead of after the fork.
"""

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

LAZY = bool(os.environ.get("LAZY"))
BEAT_EVERY = 0.25


def application(environ: dict[str, Any], respond: Callable[..., object]) -> Iterable[bytes]:
    from tests.cli.shop import app

    if LAZY:
        app.start(beat_every=BEAT_EVERY)
    name, *args = environ["PATH_INFO"].strip("/").split("/")
    job = app.run(app.function(name), *args)
    respond("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"job": job.id, "pid": os.getpid()}).encode()]


def on_starting(server: Any) -> None:
    """The master has used the app: its connections are open when it forks."""
    if server.cfg.preload_app:
        from tests.cli.shop import app

        app.jobs()


def post_fork(server: Any, worker: Any) -> None:
    from tests.cli.shop import app

    if not LAZY:
        app.start(beat_every=BEAT_EVERY)


def worker_exit(server: Any, worker: Any) -> None:
    from tests.cli.shop import app

    app.stop(drain=20)
