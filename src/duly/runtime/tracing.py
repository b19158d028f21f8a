"""OpenTelemetry spans from the call of a function to its run.

duly depends on no package for this: a program that has not imported `opentelemetry` cannot have a
span, and without a configured provider nothing happens at all.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from duly.model.job import Claim
from duly.runtime.program import Runnable, RunningAttempt
from duly.store.base import NeedsAlone, StoreTx

API = "opentelemetry.trace"


def current_parent() -> str | None:
    """The current span, as a `traceparent` header; None if none is recorded."""
    api: Any = sys.modules.get(API)
    span = None if api is None else api.get_current_span()
    if span is None or not span.is_recording():
        return None
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def is_on() -> bool:
    """Whether tracing is configured in this process."""
    api: Any = sys.modules.get(API)
    if api is None:
        return False
    provider = api.get_tracer_provider()
    return not isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider)


def traced(
    claims: Sequence[Claim], runnables: Mapping[str, Runnable], parents: Mapping[str, str]
) -> list[Runnable]:
    """The functions of these claims, each in a span that belongs to the span of its call."""
    spans = [Traced(runnables[claim.function], parents.get(claim.id)) for claim in claims]
    return cast("list[Runnable]", spans)


class Traced:
    """A function whose calls are spans; everything else is delegated to the function itself."""

    def __init__(self, runnable: Runnable, parent: str | None) -> None:
        self._runnable = runnable
        self._parent = parent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runnable, name)

    def call_mutation(
        self, running: RunningAttempt, tx: StoreTx, arguments: Mapping[str, Any], shared: bool
    ) -> object:
        with _span(running.claim, self._parent):
            return self._runnable.call_mutation(running, tx, arguments, shared)

    def call_action(self, running: RunningAttempt, arguments: Mapping[str, Any]) -> object:
        with _span(running.claim, self._parent):
            return self._runnable.call_action(running, arguments)

    async def call_async(self, running: RunningAttempt, arguments: Mapping[str, Any]) -> object:
        with _span(running.claim, self._parent):
            return await self._runnable.call_async(running, arguments)


@contextmanager
def _span(claim: Claim, parent: str | None) -> Generator[None]:
    api: Any = sys.modules[API]
    tracer = api.get_tracer("duly")
    attributes = {
        "duly.job.id": claim.id,
        "duly.function": claim.function,
        "duly.attempt": claim.attempt,
        "duly.queue": claim.queue,
    }
    # An exception's message may contain redacted values, so only its type is recorded.
    with tracer.start_as_current_span(
        f"duly.run {claim.function}",
        context=_context(api, parent),
        kind=api.SpanKind.CONSUMER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except NeedsAlone:
            raise
        except BaseException as error:
            span.set_status(api.Status(api.StatusCode.ERROR, type(error).__name__))
            raise


def _context(api: Any, parent: str | None) -> Any:
    if parent is None:
        return None
    _, trace_id, span_id, flags = parent.split("-")
    context = api.SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=api.TraceFlags(int(flags, 16)),
    )
    return api.set_span_in_context(api.NonRecordingSpan(context))
