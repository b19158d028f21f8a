"""Turns operations into FastAPI routes, which validate requests and document the API.

FastAPI needs pydantic models, which are generated here from the shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from inspect import Parameter, Signature
from types import GenericAlias, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.params import Param
from msgspec import NODEFAULT, UNSET, Meta, UnsetType
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from duly.app import Duly
from duly.model.access import Principal
from duly.server.answers import Shape
from duly.server.api.operation import Check, Operation, Text, extras, header_of, kind_of, scope_of
from duly.server.api.repeatable import KEY, MAX_KEY, Repeatable
from duly.server.auth import App, ScopedRoute, needs
from duly.server.live import streamed
from duly.server.refusals import Answer
from duly.server.slow_requests import MAX_PER_SUBJECT, MAX_VIEWS, Waiting

CONSTRAINTS = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern", "description")


def router_of(operations: Iterable[Operation]) -> APIRouter:
    router = APIRouter(route_class=ScopedRoute)
    for operation in operations:
        add_route(router, operation)
    return router


def add_route(router: APIRouter, operation: Operation, path: str | None = None) -> None:
    """`path`: replaces the operation's own path."""
    answers = operation.shape or operation.hints["return"]
    has_model = operation.media is None and answers is not type(None)
    router.add_api_route(
        path or operation.path,
        _endpoint(operation),
        methods=[operation.method],
        status_code=operation.status,
        tags=[*operation.tags],
        response_model=documented(answers) if has_model else None,
        response_class=Answer if operation.media is None else Response,
        responses=_other_answers(operation),
    )


def _other_answers(operation: Operation) -> dict[int | str, dict[str, Any]]:
    if operation.again is not None:
        return {200: {"model": documented(operation.again)}}
    if operation.media is None:
        return {}
    says = {} if operation.says is None else {"description": operation.says}
    return {200: says | {"content": {operation.media: {"schema": {"type": "string"}}}}}


# Requests ----------------------------------------------------------------------------------------


def _endpoint(operation: Operation) -> Callable[..., Any]:
    """A function whose signature tells FastAPI the operation's parameters."""
    function = operation.function
    parameters = [_parameter(operation, *each) for each in operation.parameters]
    parameters.append(Parameter("_request", Parameter.KEYWORD_ONLY, annotation=Request))

    def endpoint(_request: Request, **given: Any) -> Response:
        """Calls the operation with shapes instead of models."""
        values = {name: shape_of(value) for name, value in given.items()}
        return _answer(operation, _request, values)

    async def patient(_waiting: Waiting, **given: Any) -> Response:
        assert operation.waits is not None
        subject = given.get(operation.waits, operation.waits)
        most = MAX_PER_SUBJECT if operation.waits in given else MAX_VIEWS
        return await _waiting(subject, lambda: endpoint(**given), most)

    found: Callable[..., Any] = endpoint
    if operation.waits is not None:
        found = patient
        parameters.append(Parameter("_waiting", Parameter.KEYWORD_ONLY, annotation=Waiting))
    found.__name__, found.__doc__ = function.__name__, function.__doc__
    found.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return found


def _answer(operation: Operation, request: Request, given: dict[str, Any]) -> Response:
    """The response for an operation's result."""
    result = operation.function(**given)
    status = operation.status
    if any(isinstance(each, Repeatable) and each.made_before for each in given.values()):
        status = 200
    if result is None:
        return Response(status_code=status)
    if isinstance(result, Text):
        return Response(result.content, status, dict(result.headers), operation.media)
    if operation.media is not None:
        who = next(each for each in given.values() if isinstance(each, Principal))
        return streamed(request, who, result, operation.media)
    return Answer(result, status)


_Key = Annotated[
    str | None,
    Header(
        alias=KEY,
        min_length=1,
        max_length=MAX_KEY,
        description="Repeating a request with the same key creates nothing twice.",
    ),
]


def _once(
    app: App,
    request: Request,
    key: _Key = None,
) -> Repeatable:
    # Without the mount path, which may change.
    root: str = request.scope.get("root_path", "")
    path: str = request.scope["path"].removeprefix(root)
    return Repeatable(app, f"{request.method} {path}", key)


def _parameter(operation: Operation, parameter: Parameter, hint: Any) -> Parameter:
    kind: Any = kind_of(hint)
    default = parameter.default
    annotation: Any
    if kind is Duly:
        annotation = App
    elif (scope := scope_of(hint)) is not None:
        annotation = Annotated[Principal, Depends(needs(scope))]
    elif kind is Repeatable:
        annotation = Annotated[Repeatable, Depends(_once)]
    elif _is_shape(kind):
        annotation = model_of(kind)
        default = Parameter.empty if default is Parameter.empty else annotation()
    elif f"{{{parameter.name}}}" in operation.path:
        annotation = kind
    else:
        annotation = Annotated[documented(kind), _place(hint)]
    return Parameter(parameter.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _place(hint: Any) -> Param:
    header = header_of(hint)
    place: Param = Query(**constraints(hint)) if header is None else Header(alias=header)
    return place


# Shapes ------------------------------------------------------------------------------------------


def documented(hint: Any) -> Any:
    """A type for FastAPI: shapes are replaced by their models."""
    arguments = get_args(hint)
    kind: Any = get_origin(hint) or hint
    if kind is Annotated:
        return _constrained(arguments[0], hint)
    if _is_shape(kind):
        return model_of(hint)
    if kind in (Union, UnionType):
        return Union[tuple(documented(each) for each in arguments if each is not UnsetType)]  # noqa: UP007
    if kind in (list, dict):
        return GenericAlias(kind, tuple(map(documented, arguments)))
    return hint


def _is_shape(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Shape)


def _constrained(kind: Any, hint: Any) -> Any:
    if any(isinstance(each, Meta) and each.tz for each in extras(hint)):
        kind = AwareDatetime
    checks = [_checked_by(each) for each in extras(hint) if isinstance(each, Check)]
    return Annotated[(documented(kind), *checks, Field(**constraints(hint)))]


def _checked_by(check: Check) -> BeforeValidator:
    def checked(value: object) -> object:
        try:
            check.refuse(value)
        except ValueError as error:
            raise PydanticCustomError("refused", "{why}", {"why": str(error)}) from None
        return value

    return BeforeValidator(checked)


def constraints(hint: Any) -> dict[str, Any]:
    """The constraints in a type's `Meta`, under the names that pydantic and FastAPI share."""
    said = [each for each in extras(hint) if isinstance(each, Meta)]
    found = {(name, getattr(meta, name)) for meta in said for name in CONSTRAINTS}
    return {name: value for name, value in found if value is not None}


@cache
def model_of(shape: Any) -> type[BaseModel]:
    """The model of a shape, which may be generic, such as `Page[JobShape]`."""
    origin: Any = get_origin(shape) or shape
    of = ", ".join(each.__name__ for each in get_args(shape))
    fields: dict[str, Any] = {
        field.name: (documented(field.type), _default(field))
        for field in msgspec.structs.fields(shape)
    }
    model: type[BaseModel] = create_model(
        f"{origin.__name__}[{of}]" if of else origin.__name__,
        __config__=ConfigDict(extra="forbid"),
        __doc__=origin.__dict__.get("__doc__"),
        **fields,
    )
    SHAPES[model] = origin
    return model


SHAPES: dict[type[BaseModel], type[Shape]] = {}
"""The shapes, by model."""


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not NODEFAULT:
        made = field.default_factory
        if made not in SHAPES.values():
            return Field(default_factory=made)
        return Field(default_factory=model_of(made), json_schema_extra={"default": {}})
    if field.default is NODEFAULT:
        return ...
    return None if field.default is UNSET else field.default


def shape_of(value: Any) -> Any:
    """The shape for a model, with only the fields that were set; other values as they are."""
    if isinstance(value, list):
        return [shape_of(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(value, BaseModel):
        return value
    given = {name: shape_of(getattr(value, name)) for name in value.model_fields_set}
    return SHAPES[type(value)](**given)
