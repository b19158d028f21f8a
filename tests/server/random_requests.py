"""Random requests, good and bad, made from the OpenAPI document."""

from typing import Any, cast

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from duly import Ctx, Duly, Tx, WorkflowCtx
from duly.server import make_asgi
from duly.testing import drain

STREAMS = {"/api/v1/events"}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def furnish(app: Duly) -> dict[str, str]:
    """Something of each kind, so that not every id leads to nothing."""

    @app.action
    def greet(ctx: Ctx, name: str, times: int = 1) -> str:
        return name * times

    @app.mutation
    def note(tx: Tx, text: str) -> None: ...

    @app.workflow
    def ship(ctx: WorkflowCtx) -> None:
        ctx.step(greet, "ann")
        ctx.gather(ctx.event("packed"), ctx.branch(WorkflowCtx.approval, "Ship it?"))

    app.functions.publish()
    run = app.run(ship)
    drain(app)
    schedule = app.schedules.create("hourly", greet.bind("ann"), every=3600)
    app.calendars.create("closed", "skip_dates", dates=["2026-12-24"])
    return {
        "job_id": app.run(greet, "ann").id,
        "schedule_id": schedule.id,
        "calendar": "closed",
        "token_id": app.tokens.create("one", ["read"]).token.id,
        "name": "greet",
        "run_id": run.id,
        "step": "greet",
    }


def ask_everything(app: Duly, specimens: dict[str, str], requests: int) -> int:
    """Ask every operation about equally often, at least so often in all; how often it was."""
    asgi = make_asgi(app, auth="open", only=["api"])
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", asgi)
    found = [cast(Any, each).ok() for each in schema.get_all_operations()]
    operations = [each for each in found if each.path not in STREAMS]
    each = max(4, requests // len(operations) // 2 + 1)
    return sum(ask(operation, specimens, each) for operation in operations)


def ask(operation: Any, specimens: dict[str, str], examples: int) -> int:
    """Requests that fit the document, with real ids where it asks for them, and others."""
    wanted = {part.name for part in operation.path_parameters} & specimens.keys()
    known = {name: specimens[name] for name in wanted} or None
    made = 0

    def check(case: Any) -> None:
        nonlocal made
        made += 1
        case.validate_response(case.call(), checks=CHECKS)

    for mode, path in ((GenerationMode.POSITIVE, known), (GenerationMode.NEGATIVE, None)):
        try:
            strategy = operation.as_strategy(generation_mode=mode, path_parameters=path)
        except Exception:
            if mode is GenerationMode.POSITIVE:
                raise
            continue  # nothing about it can be wrong
        run = settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )(given(strategy)(check))
        try:
            run()
        except Exception as error:
            if type(error).__name__ not in ("Unsatisfiable", "SkipTest"):
                raise
    return made
