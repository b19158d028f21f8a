"""Functions: list them with their arguments, and change their status."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta
from msgspec.structs import asdict

from duly.app import Duly, operations
from duly.clock import from_ms
from duly.errors import UnknownFunction
from duly.functions.published import schema_of
from duly.model.function import FunctionInfo, is_reserved
from duly.model.function import Status as FunctionStatus
from duly.model.stored_values import read
from duly.server.answers import Ms, Shape, Time, time_of
from duly.server.api.operation import Operations, Operator, Reader, require_all_owners
from duly.server.api.schedule_shapes import ScheduleShape, ScheduleShapes

api = Operations("functions", "/functions")


class FunctionShape(Shape):
    name: str
    kind: str
    app: str
    arguments: Annotated[dict[str, Any], Meta(description="JSON Schema of the arguments.")]
    queue: str | None
    internal: bool
    alias_of: str | None
    trigger: str
    status: FunctionStatus
    status_by: str | None
    status_note: str | None
    status_at: Time | None
    status_at_ms: Ms | None
    published_at: Time
    published_at_ms: Ms


class FunctionStatusShape(FunctionShape):
    removed: Annotated[
        list[ScheduleShape],
        Meta(description="After a restore: the schedules that were removed with the function."),
    ]


class StatusBody(Shape):
    verb: Literal["pause", "resume", "deprecate", "delete", "restore"]
    note: Annotated[str, Meta(max_length=1_000)] | None = None


@api.get("")
def find(app: Duly, who: Reader) -> list[FunctionShape]:
    """List every function that workers have published, from all services."""
    return [_shape(info) for info in app.functions.published() if not is_reserved(info.name)]


@api.get("/{name}")
def get(app: Duly, who: Reader, name: str) -> FunctionShape:
    return _shape(_known(app, name))


@api.post("/{name}/status")
def set_status(app: Duly, who: Operator, name: str, body: StatusBody) -> FunctionStatusShape:
    """Pause, resume, deprecate, delete or restore a function, for all processes on the database."""
    require_all_owners(who)
    known = _known(app, name)
    getattr(app.functions, body.verb)(name, by=who.name, note=body.note)
    removed = operations.removed_with(app, known.name) if body.verb == "restore" else []
    shape = _shape(app.functions.info(name))
    return FunctionStatusShape(**asdict(shape), removed=ScheduleShapes(app).all(removed))


def _known(app: Duly, name: str) -> FunctionInfo:
    if is_reserved(name):
        raise UnknownFunction(name, ())
    return app.functions.info(name)


def _shape(info: FunctionInfo) -> FunctionShape:
    options = read(info.options, dict[str, Any], {})
    return FunctionShape(
        name=info.name,
        kind=str(info.kind),
        app=info.app,
        arguments=schema_of(info),
        queue=options.get("queue"),
        internal=info.internal,
        alias_of=info.alias_of,
        trigger=str(info.trigger),
        status=info.status,
        status_by=info.status_by,
        status_note=info.status_note,
        status_at=time_of(info.status_at),
        status_at_ms=info.status_at,
        published_at=from_ms(info.published_at),
        published_at_ms=info.published_at,
    )
