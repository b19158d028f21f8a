"""Spans from the call of a function to its run, with the SDK of OpenTelemetry."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from duly import AsyncCtx, Ctx, Duly, Retry, Tx, Unique
from duly.errors import StoreUnavailable
from duly.runtime import tracing
from duly.runtime.janitor import Janitor


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What was recorded; the provider is there for one test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def of_duly(exporter: InMemorySpanExporter) -> list[Any]:
    return [span for span in exporter.get_finished_spans() if span.name.startswith("duly.run")]


def request() -> Any:
    return trace.get_tracer("test").start_as_current_span("request")


def test_a_run_belongs_to_the_span_of_its_call(shop, hire, spans, db):
    with request() as called:
        job = shop.run(shop.functions["greet"], "ada")
    assert db.count("@traces") == 1
    hire().work()
    (run,) = of_duly(spans)
    context = called.get_span_context()
    assert run.name == "duly.run greet"
    assert (run.context.trace_id, run.parent.span_id) == (context.trace_id, context.span_id)
    assert dict(run.attributes) == {
        "duly.job.id": job.id,
        "duly.function": "greet",
        "duly.attempt": 1,
        "duly.queue": "default",
    }
    assert run.status.status_code == StatusCode.UNSET


def test_all_kinds_of_functions_and_their_children_are_traced(shop, hire, spans):
    @shop.mutation
    def inner(tx: Tx) -> None: ...

    @shop.action
    async def middle(ctx: AsyncCtx) -> None:
        await ctx.run(inner)

    @shop.action
    def outer(ctx: Ctx) -> None:
        ctx.run(middle)

    with request() as called:
        shop.run(outer)
    worker = hire()
    for _ in range(3):
        worker.work()
    runs = {run.name.removeprefix("duly.run "): run for run in of_duly(spans)}
    assert set(runs) == {"outer", "middle", "inner"}
    assert {run.context.trace_id for run in runs.values()} == {called.context.trace_id}
    assert runs["inner"].parent.span_id == runs["middle"].context.span_id
    assert runs["middle"].parent.span_id == runs["outer"].context.span_id


def test_a_failure_is_an_error_that_does_not_tell_its_message(shop, hire, clock, spans):
    @shop.action(retry=Retry(attempts=2))
    def fails(ctx: Ctx) -> None:
        raise ValueError("canary")

    with request():
        shop.run(fails)
    worker = hire()
    worker.work()
    clock.advance(3600)
    worker.work()
    first, second = of_duly(spans)
    assert [run.attributes["duly.attempt"] for run in (first, second)] == [1, 2]
    assert first.status.status_code == second.status.status_code == StatusCode.ERROR
    assert first.status.description == "ValueError"
    assert "canary" not in first.to_json()
    assert first.context.trace_id == second.context.trace_id


def test_keys_and_transactions_and_tracing_go_together(shop, hire, spans, db):
    greet = shop.functions["greet"]
    with request(), shop.transaction() as tx:
        tx.run(greet, "in a transaction")
    with request():
        first = shop.run(greet.using(unique=Unique()), "ada")
        again = shop.run(greet.using(unique=Unique()), "ada")
        shop.run_many([greet.bind("x"), greet.bind("y")])
    assert first.id == again.id
    assert db.count("@traces") == 4
    with request(), suppress(ZeroDivisionError), shop.transaction() as tx:
        tx.run(greet, "rolled back")
        raise ZeroDivisionError
    assert db.count("@traces") == 4
    hire().work()
    assert len(of_duly(spans)) == 4


def test_nothing_is_kept_when_no_span_is_recording(shop, hire, spans, db):
    shop.run(shop.functions["greet"], "ada")
    with trace.use_span(trace.NonRecordingSpan(trace.INVALID_SPAN_CONTEXT)):
        shop.run(shop.functions["greet"], "ada")
    assert db.count("@traces") == 0
    hire().work()
    assert all(run.parent is None for run in of_duly(spans)), "a root of its own"


def test_nothing_happens_without_a_provider(shop, hire, db):
    assert not tracing.is_on()
    assert tracing.current_parent() is None
    shop.run(shop.functions["greet"], "ada")
    hire().work()
    assert db.count("@traces") == 0


def test_duly_does_not_import_opentelemetry():
    code = (
        "import sys, duly\n"
        "app = duly.Duly('sqlite:///never.db')\n"
        "from duly.runtime import tracing\n"
        "assert not tracing.is_on() and tracing.current_parent() is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_trace_of_a_job_goes_with_it(shop, hire, clock, spans, db):
    with request():
        shop.run(shop.functions["greet"], "old")
    hire().work()
    clock.advance(3600)
    shop.run(shop.functions["greet"], "the newest stays")
    hire().work()
    assert db.count("@traces") == 1
    clock.advance(20 * 86_400)
    janitor = Janitor(shop.store, clock)
    while janitor.one_pass() == 0:
        pass
    assert db.count("@traces") == 0


def test_a_store_that_does_not_answer_costs_the_trace_and_not_the_job(
    shop: Duly, hire, spans, monkeypatch
):
    def away(job_ids: object) -> None:
        raise StoreUnavailable("away")

    with request():
        job = shop.run(shop.functions["greet"], "ada")
    monkeypatch.setattr(shop.store, "traces", away)
    hire().work()
    assert shop.job(job.id).state == "succeeded"
