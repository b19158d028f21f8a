"""Responses: one shape for every error, and JSON that every client reads the same way."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, cast

import msgspec
from msgspec import UNSET, Meta

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
    NotAWorkflow,
    QueryTooBroad,
    ReadOnlyCalendar,
    ScheduleExists,
    SelfApproval,
    StaleVersion,
    StoreError,
    WrongStatus,
)
from duly.model.nesting import MAX_DEPTH, depth_of

SAFE_INTEGER = 2**53 - 1
"""JavaScript clients cannot represent larger integers exactly."""


# Values ------------------------------------------------------------------------------------------


def iso(instant: datetime) -> str:
    """ISO 8601 in UTC with Z, to the millisecond."""
    return instant.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


Instant = Annotated[datetime, Meta(tz=True)]
"""An instant in a request: it must name its zone."""
Time = datetime
Ms = Annotated[int, Meta(description="Milliseconds since 1970 UTC.")]
"""The same instant as the `Time` next to it: `at` and `at_ms`."""


def time_of(ms: int | None) -> datetime | None:
    return None if ms is None else from_ms(ms)


def ms_of(instant: datetime | None) -> int | None:
    return None if instant is None else round(instant.timestamp() * 1000)


class Shape(msgspec.Struct, forbid_unknown_fields=True):
    """A value in requests or responses; unknown fields are refused."""


def encoded(value: Any) -> bytes:
    """JSON in which integers that JavaScript cannot represent are strings."""
    text = json.dumps(readable(value), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def readable(value: Any) -> Any:
    """The JSON form of a value in a response."""
    match value:
        case None | bool() | float():
            return value
        case Enum():
            return value.value
        case int():
            return value if abs(value) <= SAFE_INTEGER else str(value)
        case str():
            return value
        case datetime():
            return iso(value)
        case Shape():
            return {name: readable(each) for name, each in _written(value)}
        case Mapping():
            return {key: readable(each) for key, each in cast("Mapping[str, Any]", value).items()}
        case list() | tuple():
            return [readable(each) for each in cast("Sequence[Any]", value)]
        case _:
            return value


def _written(shape: Shape) -> Iterator[tuple[str, Any]]:
    fields = given(shape)
    for name, value in fields.items():
        is_instant = name.endswith("_ms") and name.removesuffix("_ms") in fields
        yield name, nearest_ms(value) if is_instant and value is not None else value


def given(shape: Shape) -> dict[str, Any]:
    """The fields that were set; optional fields that were left out are missing."""
    fields = ((name, getattr(shape, name)) for name in shape.__struct_fields__)
    return {name: value for name, value in fields if value is not UNSET}


TOO_DEEP = {"…": "nested too deeply to show"}
"""Replaces values that Python code can produce but few clients could read."""
UNREADABLE = {"…": "cannot be read"}
"""Replaces values that were written to a table by something other than duly."""


def stored(text: str, kind: Any = Any) -> Any:
    """The JSON in a row, even if it is invalid: one bad row must not break a whole page."""
    if depth_of(text.encode()) > MAX_DEPTH:
        return TOO_DEEP
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError:
        return UNREADABLE


def unreadable(body: bytes | bytearray) -> tuple[int, str, str] | None:
    """Why JSON is refused unread, as status, code and message; None if it is fine."""
    # The declared type does not matter: everything is read as JSON from here on. Python would
    # accept any Unicode encoding, but the depth can only be checked in UTF-8.
    if not _is_utf8(body):
        return 400, "bad_request", "JSON must be UTF-8 without NUL characters"
    if depth_of(body) > MAX_DEPTH:
        return 400, "too_deep", f"JSON may be nested at most {MAX_DEPTH} levels deep"
    return None


def _is_utf8(body: bytes | bytearray) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return 0 not in body


# Errors ------------------------------------------------------------------------------------------


class ErrorBody(Shape):
    code: str
    message: str
    field: str | None = None
    hint: str | None = None


class ErrorAnswer(Shape):
    """The response to every request that fails."""

    error: ErrorBody


class Refused(Exception):
    """A refusal that is not a `DulyError`, for example a wrong token or host."""

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


# The first match counts.
STATUSES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int], ...] = (
    (FunctionDeleted, 410),
    (ReadOnlyCalendar, 403),
    ((CalendarExists, EndpointExists, GatewayExists, ScheduleExists), 409),
    ((StaleVersion, WrongStatus), 409),
    (NotAWorkflow, 404),
    (SelfApproval, 403),
    (GatewayUnavailable, 502),
    (GatewayRefused, 422),
    (LookupError, 404),
    (QueryTooBroad, 422),
    (BadInput, 422),
    (StoreError, 503),
    (MissingExtra, 501),
)
DEFAULT_STATUS = 409


def status_of(error: DulyError) -> int:
    if isinstance(error, GatewayRefused) and error.status in (404, 409):
        return error.status
    return next((status for kind, status in STATUSES if isinstance(error, kind)), DEFAULT_STATUS)


def code_of(error: Exception) -> str:
    """JobNotFound → job_not_found, NotAWorkflow → not_a_workflow."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(error).__name__)
    return words.lower()


def error_of(error: Exception) -> Refused | None:
    """The response to an error; None for an unexpected one."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, UnicodeEncodeError) or _is_about_values(error):
        return Refused(422, "invalid", "a text contains a character that cannot be stored")
    if not isinstance(error, DulyError):
        return None
    named = (getattr(error, name, None) for name in ("field", "argument", "option"))
    status = status_of(error)
    return Refused(
        status,
        code_of(error),
        str(error),
        field=next((str(name) for name in named if name), None),
        hint=getattr(error, "hint", None) or None,
        headers={"Retry-After": "1"} if status == 503 else None,
    )


def _is_about_values(error: Exception) -> bool:
    """Whether a database has refused a value; PostgreSQL accepts no NUL in text."""
    return isinstance(error, StoreError) and type(error.__cause__).__name__ == "DataError"


_MISFIT = re.compile(
    r"(?P<said>.*?(?:(?:unknown|missing required) field `(?P<field>[^`]*)`)?)"
    r"(?: - at `(?P<at>.*)`)?",
    re.DOTALL,
)


# The messages of the server's own validation for the same errors.
_WORDS = {
    r"Object missing required field `.*`": "Field required",
    r"Object contains unknown field `.*`": "Extra inputs are not permitted",
    r"Expected `\w+` >= (\S+)": r"Input should be greater than or equal to \1",
    r"Expected `\w+` <= (\S+)": r"Input should be less than or equal to \1",
    r"Expected `str` of length >= (\d+)": r"String should have at least \1 characters",
    r"Expected `str` of length <= (\d+)": r"String should have at most \1 characters",
}


def misfit(error: msgspec.ValidationError, name: str = "") -> Refused:
    """A validation error as field and message. `name`: the name of the value that was converted."""
    found = _MISFIT.fullmatch(str(error))
    assert found is not None
    path = re.sub(r"\[(.*?)\]", r".\1", (found["at"] or "").removeprefix("$"))
    field = ".".join(part for part in (name, path.strip("."), found["field"]) if part) or "body"
    said = found["said"]
    for pattern, words in _WORDS.items():
        said = re.sub(f"^{pattern}$", words, said)
    return Refused(422, "invalid", f"{field}: {said}", field=field)
