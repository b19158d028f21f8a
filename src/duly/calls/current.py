"""`duly.current()`: the context of the running job, for code that is not passed one."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, overload

from duly.errors import NoCurrentJob
from duly.runtime.reports import current_speaker

if TYPE_CHECKING:
    from duly.calls.async_tx import AsyncTx
    from duly.calls.context import AsyncCtx, Ctx, Tx

C = TypeVar("C")

# Only for contexts that are not those of the attempt: setting it in each body would be a trace
# that keeps async bodies from sharing a task.
_inner: ContextVar[object | None] = ContextVar("duly_context", default=None)


@overload
def current() -> Tx | AsyncTx | Ctx | AsyncCtx: ...


@overload
def current(kind: type[C], /) -> C: ...


def current(kind: type[Any] = object, /) -> Any:
    """Return the context of the running job, in the function itself or in anything it calls.

    `current(Ctx)` also checks its type. Raises NoCurrentJob outside a job.
    """
    found = _inner.get() or getattr(current_speaker(), "context", None)
    if found is None:
        raise NoCurrentJob(
            "no job is running here: call current() in a function that a worker runs, or in a test "
            "inside `with duly.testing.ctx(app):`. A thread that you start yourself does not know "
            "the job: run its target with contextvars.copy_context().run"
        )
    if not isinstance(found, kind):
        raise NoCurrentJob(
            f"the running job has a {_name(found)}, not a {kind.__name__}; "
            "mutations have a Tx, async mutations an AsyncTx, sync actions a Ctx, async actions "
            "an AsyncCtx"
        )
    return found


def _name(context: object) -> str:
    return type(context).__name__.removeprefix("Manual")


class IsCurrent:
    """Within the block, `current()` returns this context."""

    # Not a generator: each step of a workflow enters it.
    __slots__ = ("_before", "_context")

    def __init__(self, context: object) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._before = _inner.set(self._context)

    def __exit__(self, *_: object) -> None:
        _inner.reset(self._before)
