"""Reads submitted forms and checks that they come from the dashboard's own pages."""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec
from fastapi import Request

from duly.endpoints.secrets import is_same
from duly.server.answers import Refused, Shape, misfit
from duly.server.auth import cookie_of

T = TypeVar("T", bound=Shape)

CSRF = "duly_csrf"
MAX_FIELDS = 2_000
FORM = "application/x-www-form-urlencoded"
WITH_FILES = "multipart/form-data"
MAX_HEADER = 1_024
_BOUNDARY = re.compile(r'boundary="?([^";,\s]{1,70})"?', re.IGNORECASE)
_NAME = re.compile(rb'\r\n(?i:content-disposition):[^\r\n]*?[; ]name="([^"\r\n]*)"')


class Form:
    """The fields of a form; a name may have several values."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields

    def all(self, name: str) -> list[str]:
        return [value for field, value in self._fields if field == name]

    def text(self, name: str) -> str:
        return next(iter(self.all(name)), "").replace("\r\n", "\n").strip()

    def given(self, name: str) -> str | None:
        """None if it was left empty."""
        return self.text(name) or None

    def json(self, name: str) -> Any:
        """The value of a JSON field; None if it was left empty."""
        text = self.text(name)
        if not text:
            return None
        try:
            return json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise Refused(422, "invalid", f"{name} is not JSON: {error}", field=name) from None

    def object(self, name: str) -> dict[str, Any] | None:
        """The value of a field that must be a JSON object; None if it was left empty."""
        value = self.json(name)
        if value is not None and not isinstance(value, dict):
            raise Refused(422, "invalid", f"{name}: give an object", field=name)
        return cast("dict[str, Any] | None", value)

    def number(self, name: str) -> float | None:
        text = self.text(name)
        if not text:
            return None
        try:
            number = float(text)
            if isfinite(number):
                return number
            raise ValueError(text)
        except ValueError:
            message = f"{name}: give a number, not {text!r}"
            raise Refused(422, "invalid", message, field=name) from None

    def whole(self, name: str) -> int | None:
        number = self.number(name)
        if number is not None and number != int(number):
            raise Refused(422, "invalid", f"{name}: give a whole number", field=name)
        return None if number is None else int(number)


def body_of(shape: type[T], **fields: Any) -> T:
    """The body for an API route; Refused, with the field's name, if a value does not fit."""
    try:
        return msgspec.convert(fields, shape, strict=False)
    except msgspec.ValidationError as error:
        raise misfit(error) from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


async def read_form(request: Request) -> Form:
    """The submitted form; 403 if it lacks the CSRF token of its page."""
    declared = request.headers.get("content-type", "")
    kind = declared.partition(";")[0].strip().lower()
    if kind not in (FORM, WITH_FILES):
        raise Refused(415, "unsupported_media_type", f"submit a form: {FORM}")
    body = await request.body()
    form = Form(_fields(body) if kind == FORM else _parts(declared, body))
    known, shown = cookie_of(request, CSRF), form.text("csrf")
    if not known or not is_same(known.encode(), shown.encode()):
        message = "the form does not come from a page of this dashboard, or the page is too old"
        raise Refused(403, "csrf", message, hint="go back, reload the page and try again")
    return form


def _fields(body: bytes) -> list[tuple[str, str]]:
    try:
        text = body.decode("utf-8", "replace")
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise _too_many() from None


def _parts(declared: str, body: bytes) -> list[tuple[str, str]]:
    """The fields of a form with a file; the file is text like the other fields.

    Parsed in a single pass, because the sender is not authenticated yet.
    """
    found = _BOUNDARY.search(declared)
    if found is None:
        raise Refused(400, "bad_request", "the form's content type has no boundary")
    mark = b"--" + found[1].encode("latin-1", "replace")
    if body.count(mark) > MAX_FIELDS + 1:
        raise _too_many()
    _, *parts = (b"\r\n" + body).split(b"\r\n" + mark)
    return [_part(part) for part in parts if not part.startswith(b"--")]


def _part(part: bytes) -> tuple[str, str]:
    end = part.find(b"\r\n\r\n", 0, MAX_HEADER)
    name = _NAME.search(part, 0, max(end, 0))
    if name is None:
        raise Refused(400, "bad_request", "a part of the form has no name")
    # Browsers escape a quote in a name like this.
    named = name[1].decode("utf-8", "replace").replace("%22", '"')
    return named, part[end + 4 :].decode("utf-8-sig", "replace")


def _too_many() -> Refused:
    return Refused(413, "too_large", f"a form may have at most {MAX_FIELDS} fields")
