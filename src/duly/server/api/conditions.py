"""Conditions: validate and evaluate them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from duly.errors import InvalidCondition, InvalidOption
from duly.model import strict_json
from duly.model.condition import parse
from duly.server.answers import Shape
from duly.server.api.operation import Operations, Reader
from duly.server.api.schedule_shapes import ExplanationShape, explanation_shape

api = Operations("conditions", "/conditions")


class ValidateBody(Shape):
    condition: Any


class Fault(Shape):
    pointer: Annotated[str | None, Meta(description="The key that is wrong, if it is one.")]
    reason: str
    hint: str | None


class Validity(Shape):
    valid: bool
    error: Fault | None


class ExplainBody(Shape):
    condition: Any
    context: Annotated[
        Any,
        Meta(
            description="As a tick would see it: "
            "prior_run_result, last_24h_stats, signal_rpc_result."
        ),
    ] = None


@api.post("/validate")
def validate(who: Reader, body: ValidateBody) -> Validity:
    """Whether it could be a schedule's; if not, why not."""
    try:
        parse(body.condition)
    except InvalidCondition as error:
        fault = Fault(pointer=error.pointer, reason=error.reason, hint=error.hint or None)
        return Validity(valid=False, error=fault)
    return Validity(valid=True, error=None)


@api.post("/explain")
def explain(who: Reader, body: ExplainBody) -> ExplanationShape:
    """What it comes to for a context: each operator with what it finds there."""
    condition = parse(body.condition)
    if fault := strict_json.fault(body.context):
        raise InvalidOption("context", f"{fault.path}: {fault.reason}".removeprefix(": "))
    return explanation_shape(condition.explain(body.context))
