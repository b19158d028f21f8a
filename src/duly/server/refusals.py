"""The server's JSON responses, with one shape for every error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

from duly.errors import DulyError
from duly.server.answers import ErrorAnswer, ErrorBody, Refused, encoded, error_of

ERROR_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    415: "unsupported_media_type",
}


class Answer(JSONResponse):
    """JSON that every client can read."""

    def render(self, content: Any) -> bytes:
        return encoded(content)


def refusal(status: int, body: ErrorBody, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(ErrorAnswer(body), status, dict(headers or {}))


PageFor = Callable[[Request, int, str], Response | None]
"""Returns the error page for a browser; None for other clients, which get JSON."""


def no_page(request: Request, status: int, text: str) -> None:
    return None


def install_errors(api: FastAPI, page_for: PageFor = no_page) -> None:
    """Respond to every error in the same shape, unless a page is shown."""

    def foreseen(_: Request, error: Exception) -> Answer:
        said = error_of(error)
        assert said is not None
        return refusal(said.status, said.body, said.headers)

    def invalid(_: Request, error: Exception) -> Answer:
        assert isinstance(error, RequestValidationError)
        return _invalid(error)

    def other(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if (page := page_for(request, error.status_code, str(error.detail))) is not None:
            page.headers.update(error.headers or {})
            return page
        code = ERROR_CODES.get(error.status_code, "refused")
        body = ErrorBody(code=code, message=str(error.detail))
        return refusal(error.status_code, body, error.headers)

    def unexpected(request: Request, error: Exception) -> Response:
        # The details are only for the server's log.
        message = "internal server error"
        shown = page_for(request, 500, message)
        return shown or refusal(500, ErrorBody(code="internal", message=message))

    for kind in (DulyError, UnicodeEncodeError, Refused):
        api.add_exception_handler(kind, foreseen)
    api.add_exception_handler(RequestValidationError, invalid)
    api.add_exception_handler(HTTPException, other)
    api.add_exception_handler(Exception, unexpected)


def _invalid(error: RequestValidationError) -> Answer:
    first = error.errors()[0]
    where = [str(part) for part in first["loc"]]
    if first["type"] == "json_invalid":
        body = ErrorBody(code="invalid_json", message="the body is not JSON", hint=first["msg"])
        return refusal(400, body)
    field = ".".join(where[1:]) or where[0]
    return refusal(422, ErrorBody(code="invalid", message=f"{field}: {first['msg']}", field=field))
