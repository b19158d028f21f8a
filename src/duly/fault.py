"""Named points where tests can kill, pause or fail the running code; free when off.

Production code calls `fault.point("worker.claimed")`. A test sets a handler with `fault.inject`. A
child process is armed through the environment: `DULY_FAULT=worker.claimed:3` kills it with SIGKILL
the third time it reaches that point.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager

Handler = Callable[[str], None]

POINTS = (
    "enqueue.inserted",
    "enqueue.committed",
    "worker.claiming",
    "worker.claimed",
    "action.starting",
    "action.returned",
    "finish.moving",
    "finish.moved",
    "finish.committed",
    "mutation.began",
    "mutation.body_done",
    "mutation.finished",
    "mutation.committed",
    "child.inserted",
    "cancel.moved",
    "rescue.moved",
    "rescue.committed",
    "give_back.moved",
    "ticker.decided",
    "ticker.noted",
    "ticker.enqueued",
    "ticker.written",
    "ticker.committed",
    "expect.checked",
    "calendar.replaced",
    "calendar.detached",
    "declared.read",
    "declared.written",
    "index.advanced",
    "bulk.changed",
    "bulk.paged",
    "webhook.stored",
    "webhook.committed",
    "workflow.step_starting",
    "workflow.step_committed",
    "workflow.step_returned",
    "workflow.recorded",
    "copy.marked",
    "copy.drained",
    "copy.closed",
    "copy.paged",
    "copy.filled",
    "copy.verified",
    "copy.handed_over",
    "copy.opened",
)

_handler: Handler | None = None


def point(name: str) -> None:
    """Reach a named point; does nothing unless a test has armed it."""
    if _handler is not None:
        _handler(name)


@contextmanager
def inject(handler: Handler) -> Generator[None]:
    """Call `handler(name)` at every point inside the block."""
    global _handler
    before, _handler = _handler, handler
    try:
        yield
    finally:
        _handler = before


def kill_at(name: str, nth: int) -> Handler:
    """A handler that kills this process, without clean-up, when it reaches a point the nth time."""
    passes = 0

    def handler(at: str) -> None:
        nonlocal passes
        if at == name:
            passes += 1
            if passes == nth:
                os.kill(os.getpid(), signal.SIGKILL)

    return handler


def _arm_from_environment() -> None:
    global _handler
    spec = os.environ.get("DULY_FAULT")
    if spec:
        name, _, nth = spec.partition(":")
        if name not in POINTS:
            raise ValueError(f"DULY_FAULT names an unknown fault point: {name!r}")
        _handler = kill_at(name, int(nth or 1))


_arm_from_environment()
