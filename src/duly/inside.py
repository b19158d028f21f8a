"""Is this thread inside a mutation, where only `tx` may touch the store?"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from duly.errors import UseTx, WouldWaitForItself

_inside = threading.local()


@contextmanager
def mutation_body() -> Generator[None]:
    """Everything in the block belongs to one transaction."""
    _inside.mutation = True
    try:
        yield
    finally:
        _inside.mutation = False


def refuse_inside_mutation(verb: str) -> None:
    """What the app does by itself would not be part of the transaction."""
    if getattr(_inside, "mutation", False):
        raise UseTx(verb)


def refuse_waiting_inside_mutation() -> None:
    """The job waited for cannot start before the mutation has returned."""
    if getattr(_inside, "mutation", False):
        raise WouldWaitForItself
