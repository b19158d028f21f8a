"""Code shared by all operations: pages and owners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar

from msgspec import Meta

from duly.ids import is_id
from duly.model.access import Principal
from duly.server.answers import Refused, Shape

T = TypeVar("T")
MAX_PAGE = 200
MAX_NAME = 200


Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE, description="The most items to return.")]
Cursor = Annotated[str | None, Meta(description="The `next` value of the previous page.")]
Note = Annotated[str, Meta(max_length=2_000)]


class NoteBody(Shape):
    note: Note | None = None


EMPTY_NOTE = NoteBody()


class Page(Shape, Generic[T]):
    """Part of a list; `next` is the cursor of the next page, None at the end."""

    items: list[T]
    next: str | None


def page(items: Sequence[T], limit: int, id_of: Callable[[T], str]) -> Page[T]:
    """The first `limit` items; fetch one more than that to know whether there is a next page."""
    shown = list(items[:limit])
    return Page(items=shown, next=id_of(shown[-1]) if len(items) > limit else None)


def owner_of(principal: Principal, asked: str | None) -> str | None:
    """The owner to filter a list by: the principal's own, if it is limited to one."""
    if principal.owner is None:
        return asked
    if asked not in (None, principal.owner):
        message = "a token with an owner cannot see other owners' data"
        raise Refused(403, "forbidden", message, field="owner")
    return principal.owner


def is_foreign(principal: Principal, owner: str | None) -> bool:
    """Whether the principal must not see something because it belongs to another owner."""
    return principal.owner is not None and (owner or "") != principal.owner


def check_cursor(name: str, text: str | None) -> None:
    """Refuse a cursor that is not the `next` value of a page."""
    if text is not None and not is_id(text):
        raise Refused(422, "invalid", f"{name}: give the `next` value of a page", field=name)


def check_id(text: str, what: str) -> str:
    """The id as it is stored; 404 if it cannot be an id."""
    if not is_id(text):
        raise Refused(404, f"{what}_not_found", f"no {what} has the id {text!r}")
    return text
