"""The kinds of functions: mutations and actions, sync and async, each callable directly."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate

from duly.functions.events import published_events
from duly.functions.function import Function, P, R, R_co
from duly.model.job import Kind
from duly.runtime.transaction_guard import refuse_in_workflow

if TYPE_CHECKING:
    from duly.calls.async_tx import AsyncTx
    from duly.calls.context import AsyncCtx, Ctx, Tx
    from duly.workflows.contexts import AsyncWorkflowCtx, WorkflowCtx


class Mutation(Function[P, R_co]):
    """A function that runs as one database transaction, exactly once."""

    kind = Kind.MUTATION

    def __call__(self, tx: Tx, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run it now, inside the transaction of `tx`."""
        refuse_in_workflow(f"{self.name}()")
        result: R_co = self.body(tx, *args, **kwargs)
        return result


class AsyncMutation(Function[P, R_co]):
    """A mutation that is a coroutine."""

    kind = Kind.MUTATION

    @property
    def is_async(self) -> bool:
        """Always True."""
        return True

    def __call__(self, tx: AsyncTx, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Run it now, inside the transaction of `tx`."""
        refuse_in_workflow(f"{self.name}()")
        result: Coroutine[Any, Any, R_co] = self.body(tx, *args, **kwargs)
        return result


class Action(Function[P, R_co]):
    """A function with side effects, run at most once unless it has `retry`."""

    kind = Kind.ACTION

    def __call__(self, ctx: Ctx, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run it now, in this thread."""
        refuse_in_workflow(f"{self.name}()")
        result: R_co = self.body(ctx, *args, **kwargs)
        return result


class AsyncAction(Function[P, R_co]):
    """An action that is a coroutine."""

    kind = Kind.ACTION

    @property
    def is_async(self) -> bool:
        """Always True."""
        return True

    def __call__(
        self, ctx: AsyncCtx, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R_co]:
        """Run it now, in this event loop."""
        refuse_in_workflow(f"{self.name}()")
        result: Coroutine[Any, Any, R_co] = self.body(ctx, *args, **kwargs)
        return result


class PlainAction(Function[P, R_co]):
    """An action without a context parameter: an ordinary function."""

    kind = Kind.ACTION
    takes_context = False

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run it now, in this thread."""
        refuse_in_workflow(f"{self.name}()")
        result: R_co = self.body(*args, **kwargs)
        return result


class AsyncPlainAction(Function[P, R_co]):
    """A plain action that is a coroutine."""

    kind = Kind.ACTION
    takes_context = False

    @property
    def is_async(self) -> bool:
        """Always True."""
        return True

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Run it now, in this event loop."""
        refuse_in_workflow(f"{self.name}()")
        result: Coroutine[Any, Any, R_co] = self.body(*args, **kwargs)
        return result


class Workflow(Function[P, R_co]):
    """A function of durable steps, which continues after waits, crashes and deploys."""

    kind = Kind.WORKFLOW

    def published_more(self) -> dict[str, Any]:
        """The events that it reads."""
        return published_events(self.traits.events)

    def __call__(self, ctx: WorkflowCtx, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run its code with this context."""
        result: R_co = self.body(ctx, *args, **kwargs)
        return result


class AsyncWorkflow(Function[P, R_co]):
    """A workflow that is an `async def`."""

    kind = Kind.WORKFLOW

    def published_more(self) -> dict[str, Any]:
        """The events that it reads."""
        return published_events(self.traits.events)

    @property
    def is_async(self) -> bool:
        """Always True."""
        return True

    def __call__(
        self, ctx: AsyncWorkflowCtx, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R_co]:
        """Run its code with this context."""
        result: Coroutine[Any, Any, R_co] = self.body(ctx, *args, **kwargs)
        return result


MutationBody = Callable[Concatenate["Tx", P], R]
AsyncMutationBody = Callable[Concatenate["AsyncTx", P], Coroutine[Any, Any, R]]
ActionBody = Callable[Concatenate["Ctx", P], R]
AsyncActionBody = Callable[Concatenate["AsyncCtx", P], Coroutine[Any, Any, R]]
PlainBody = Callable[P, R]
AsyncPlainBody = Callable[P, Coroutine[Any, Any, R]]
WorkflowBody = Callable[Concatenate["WorkflowCtx", P], R]
AsyncWorkflowBody = Callable[Concatenate["AsyncWorkflowCtx", P], Coroutine[Any, Any, R]]
