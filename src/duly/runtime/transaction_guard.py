"""Detects code inside a transaction, where only `tx` may use the store.

The answer goes with the context, not with the thread: an async transaction belongs to the task that
opened it and to the tasks which that starts, not to the others of the same event loop.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from duly.errors import UseTx, WouldWaitForItself


class Block:
    """The code of one transaction. A task that outlives it remembers it, so it knows its end."""

    __slots__ = ("is_body", "over")

    def __init__(self, is_body: bool) -> None:
        self.is_body = is_body
        self.over = False


_block: ContextVar[Block | None] = ContextVar("duly_block", default=None)


@contextmanager
def mutation_body() -> Generator[None]:
    """Everything in the block belongs to one transaction: it is the body of a mutation."""
    block = enter(is_body=True)
    try:
        yield
    finally:
        leave(block)


@contextmanager
def transaction_block() -> Generator[None]:
    """The same for `app.transaction()`."""
    block = enter()
    try:
        yield
    finally:
        leave(block)


def enter(*, is_body: bool = False) -> Block:
    """What follows in this context belongs to one transaction."""
    block = Block(is_body)
    _block.set(block)
    return block


def leave(block: Block) -> None:
    block.over = True
    _block.set(None)


def refuse_inside_mutation(verb: str) -> None:
    """What the app does by itself would not be part of the transaction."""
    if is_inside():
        raise UseTx(verb)


def refuse_handles_inside_mutation() -> None:
    """A body that is run again would find what it did through a handle of its own done already."""
    block = _block.get()
    if block is not None and not block.over and block.is_body:
        raise UseTx("on")


def refuse_waiting_inside_mutation() -> None:
    """The job waited for cannot start before the mutation has returned."""
    if is_inside():
        raise WouldWaitForItself


def is_inside() -> bool:
    """Whether a transaction is open in this context."""
    block = _block.get()
    return block is not None and not block.over
