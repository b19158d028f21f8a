"""Conditions: validate and evaluate them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from duly.errors import InvalidCondition, InvalidOption
from duly.model import strict_json
from duly.model.condition import parse_new, with_status
from duly.server.answers import Shape
from duly.server.api.operation import Operations, Reader
from duly.server.api.schedule_shapes import ExplanationShape, explanation_shape

api = Operations("conditions", "/conditions")


class ValidateBody(Shape):
    condition: Any


class Fault(Shape):
    pointer: Annotated[str | None, Meta(description="The key with the error, if it is in a key.")]
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
            description="The context that a tick would see: "
            "prior_run_result, last_24h_stats, signal_rpc_result."
        ),
    ] = None


@api.post("/validate")
def validate(who: Reader, body: ValidateBody) -> Validity:
    """Check whether a condition is valid; if not, say why."""
    try:
        parse_new(body.condition)
    except InvalidCondition as error:
        fault = Fault(pointer=error.pointer, reason=error.reason, hint=error.hint or None)
        return Validity(valid=False, error=fault)
    return Validity(valid=True, error=None)


@api.post("/explain")
def explain(who: Reader, body: ExplainBody) -> ExplanationShape:
    """Evaluate a condition for a context: the result of each operator, with the value it found."""
    condition = parse_new(body.condition)
    if fault := strict_json.fault(body.context):
        raise InvalidOption("context", f"{fault.path}: {fault.reason}".removeprefix(": "))
    return explanation_shape(condition.explain(with_status(body.context)))
