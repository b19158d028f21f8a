"""Detects code inside a transaction, where only `tx` may use the store.

The answer depends on the context, not on the thread: an async transaction belongs to the task that
opened it and to tasks started by it, not to the others of the same event loop.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from duly.errors import UseCtx, UseTx, WouldWaitForItself


class Block:
    """The code of one transaction.

    A task that outlives it keeps this, and so knows that it has ended.
    """

    __slots__ = ("is_body", "is_workflow", "over")

    def __init__(self, is_body: bool, is_workflow: bool = False) -> None:
        self.is_body = is_body
        self.is_workflow = is_workflow
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


@contextmanager
def workflow_code() -> Generator[None]:
    """Everything in the block runs again whenever the workflow continues."""
    block = Block(is_body=False, is_workflow=True)
    before = _block.set(block)
    try:
        yield
    finally:
        block.over = True
        _block.reset(before)


class OutsideWorkflow:
    """The block is a step, or duly's own code: it happens once."""

    # Not a generator: each step enters it.
    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _block.set(None)

    def __exit__(self, *_: object) -> None:
        _block.reset(self._before)


def enter(*, is_body: bool = False) -> Block:
    """The code that follows in this context belongs to one transaction."""
    block = Block(is_body)
    _block.set(block)
    return block


def leave(block: Block) -> None:
    block.over = True
    _block.set(None)


def refuse_inside_mutation(verb: str) -> None:
    """Refuse the app's own operations, which would not be part of the transaction."""
    refuse_in_workflow(verb)
    if is_inside():
        raise UseTx(verb)


def refuse_in_workflow(verb: str) -> None:
    """Refuse what would happen again each time a workflow continues."""
    block = _block.get()
    if block is not None and block.is_workflow and not block.over:
        raise UseCtx.instead_of(verb)


def refuse_handles_inside_mutation() -> None:
    """Refuse handles: if the body runs again, what it did through a handle is already done."""
    refuse_in_workflow("on")
    block = _block.get()
    if block is not None and not block.over and block.is_body:
        raise UseTx("on")


def refuse_waiting_inside_mutation() -> None:
    """Refuse to wait for a job that cannot start before the mutation has returned."""
    refuse_in_workflow("result")
    if is_inside():
        raise WouldWaitForItself


def is_inside() -> bool:
    """Whether a transaction is open in this context."""
    block = _block.get()
    return block is not None and not block.over and not block.is_workflow
