"""Responses: one shape for every error, and JSON that every client reads alike."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, cast

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer
from starlette.exceptions import HTTPException
from starlette.responses import Response

from duly.clock import from_ms, nearest_ms
from duly.errors import (
    BadInput,
    CalendarExists,
    DulyError,
    EndpointExists,
    FunctionDeleted,
    GatewayExists,
    GatewayRefused,
    GatewayUnavailable,
    MissingExtra,
    QueryTooBroad,
    ReadOnlyCalendar,
    ScheduleExists,
    StaleVersion,
    StoreError,
    WrongStatus,
)
from duly.model.nesting import MAX_DEPTH, depth_of

SAFE_INTEGER = 2**53 - 1
"""Beyond it a JavaScript client would read another number."""


# Values ------------------------------------------------------------------------------------------


def iso(instant: datetime) -> str:
    """With Z, to the millisecond."""
    return instant.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


Time = Annotated[datetime, PlainSerializer(iso, return_type=str)]
Ms = Annotated[
    int,
    Field(description="Milliseconds since 1970 UTC."),
    PlainSerializer(nearest_ms, return_type=int),
]


def time_of(ms: int | None) -> datetime | None:
    return None if ms is None else from_ms(ms)


class Shape(BaseModel):
    """What goes over the wire; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=False)


class Answer(JSONResponse):
    """JSON in which integers that JavaScript cannot hold are strings."""

    def render(self, content: Any) -> bytes:
        text = json.dumps(readable(content), ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8", "backslashreplace")


def readable(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) > SAFE_INTEGER:
        return str(value)
    if isinstance(value, Mapping):
        return {key: readable(each) for key, each in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [readable(each) for each in cast("Sequence[Any]", value)]
    return value


TOO_DEEP = {"…": "nested too deep to be shown"}
"""Instead of what Python code may have given, and few clients could read."""
UNREADABLE = {"…": "cannot be read"}
"""Instead of what somebody has written into a table past duly."""


def stored(text: str, kind: Any = Any) -> Any:
    """The JSON of a row, whatever it holds: one row must not cost the page that it stands on."""
    if depth_of(text.encode()) > MAX_DEPTH:
        return TOO_DEEP
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:
        return UNREADABLE


# Errors ------------------------------------------------------------------------------------------


class ErrorBody(Shape):
    code: str
    message: str
    field: str | None = None
    hint: str | None = None


class ErrorAnswer(Shape):
    """What every request gets that cannot be answered."""

    error: ErrorBody


class Refused(Exception):
    """An answer that is no error of duly's own: a wrong token, a foreign host."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        field: str | None = None,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status, self.headers = status, headers
        self.body = ErrorBody(code=code, message=message, field=field, hint=hint)
        super().__init__(message)


SAID_IN_WORDS = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    415: "unsupported_media_type",
}


# The first that fits.
STATUSES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int], ...] = (
    (FunctionDeleted, 410),
    (ReadOnlyCalendar, 403),
    ((CalendarExists, EndpointExists, GatewayExists, ScheduleExists), 409),
    ((StaleVersion, WrongStatus), 409),
    (GatewayUnavailable, 502),
    (GatewayRefused, 422),
    (LookupError, 404),
    (QueryTooBroad, 422),
    (BadInput, 422),
    (StoreError, 503),
    (MissingExtra, 501),
)
OTHERWISE = 409


def status_of(error: DulyError) -> int:
    if isinstance(error, GatewayRefused) and error.status in (404, 409):
        return error.status
    return next((status for kind, status in STATUSES if isinstance(error, kind)), OTHERWISE)


def code_of(error: Exception) -> str:
    """JobNotFound → job_not_found."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()


def answer_to(error: DulyError) -> Answer:
    named = (getattr(error, name, None) for name in ("field", "argument", "option"))
    body = ErrorBody(
        code=code_of(error),
        message=str(error),
        field=next((str(name) for name in named if name), None),
        hint=getattr(error, "hint", None) or None,
    )
    status = status_of(error)
    return refusal(status, body, {"Retry-After": "1"} if status == 503 else None)


def refusal(status: int, body: ErrorBody, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer({"error": body.model_dump()}, status, dict(headers or {}))


PageFor = Callable[[Request, int, str], Response | None]
"""What a person is shown instead of JSON; None for programs."""


def no_page(request: Request, status: int, text: str) -> None:
    return None


def install_errors(api: FastAPI, page_for: PageFor = no_page) -> None:
    """Give every error the one shape, where no person is shown a page."""

    def of_duly(_: Request, error: Exception) -> Answer:
        assert isinstance(error, DulyError)
        return unstorable(_, error) if _is_about_values(error) else answer_to(error)

    def unstorable(_: Request, error: Exception) -> Answer:
        message = "a text holds a character that cannot be stored"
        return refusal(422, ErrorBody(code="invalid", message=message))

    def refused(_: Request, error: Exception) -> Answer:
        assert isinstance(error, Refused)
        return refusal(error.status, error.body, error.headers)

    def invalid(_: Request, error: Exception) -> Answer:
        assert isinstance(error, RequestValidationError)
        return _invalid(error)

    def other(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if (page := page_for(request, error.status_code, str(error.detail))) is not None:
            page.headers.update(error.headers or {})
            return page
        code = SAID_IN_WORDS.get(error.status_code, "refused")
        body = ErrorBody(code=code, message=str(error.detail))
        return refusal(error.status_code, body, error.headers)

    def unexpected(request: Request, error: Exception) -> Response:
        # Whoever runs the server finds it in the log; those who ask need not know.
        message = "something went wrong here"
        shown = page_for(request, 500, message)
        return shown or refusal(500, ErrorBody(code="internal", message=message))

    api.add_exception_handler(DulyError, of_duly)
    api.add_exception_handler(UnicodeEncodeError, unstorable)
    api.add_exception_handler(Refused, refused)
    api.add_exception_handler(RequestValidationError, invalid)
    api.add_exception_handler(HTTPException, other)
    api.add_exception_handler(Exception, unexpected)


def _is_about_values(error: DulyError) -> bool:
    """Whether a database has refused a value; PostgreSQL takes no text with a NUL in it."""
    return isinstance(error, StoreError) and type(error.__cause__).__name__ == "DataError"


def _invalid(error: RequestValidationError) -> Answer:
    first = error.errors()[0]
    where = [str(part) for part in first["loc"]]
    if first["type"] == "json_invalid":
        body = ErrorBody(code="invalid_json", message="the body is no JSON", hint=first["msg"])
        return refusal(400, body)
    field = ".".join(where[1:]) or where[0]
    return refusal(422, ErrorBody(code="invalid", message=f"{field}: {first['msg']}", field=field))
