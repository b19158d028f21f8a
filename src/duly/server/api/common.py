"""Shared by all operations: pages, and whose data they are about."""

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


Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE, description="At most so many.")]
Cursor = Annotated[str | None, Meta(description="The `next` of the page before.")]
Note = Annotated[str, Meta(max_length=2_000)]


class NoteBody(Shape):
    note: Note | None = None


EMPTY_NOTE = NoteBody()


class Page(Shape, Generic[T]):
    """Part of a list; `next` asks for what comes after it, None at the end."""

    items: list[T]
    next: str | None


def page(items: Sequence[T], limit: int, id_of: Callable[[T], str]) -> Page[T]:
    """The first `limit` of them; ask for one more than that to know whether there is a next."""
    shown = list(items[:limit])
    return Page(items=shown, next=id_of(shown[-1]) if len(items) > limit else None)


def owner_of(principal: Principal, asked: str | None) -> str | None:
    """Whose things a list is about: those of the one who asks, where there is such a one."""
    if principal.owner is None:
        return asked
    if asked not in (None, principal.owner):
        raise Refused(403, "forbidden", "a token of an owner sees nothing of others", field="owner")
    return principal.owner


def is_foreign(principal: Principal, owner: str | None) -> bool:
    """Whether something is another owner's, so that for this one there is no such thing."""
    return principal.owner is not None and (owner or "") != principal.owner


def check_cursor(name: str, text: str | None) -> None:
    """Refuse what no page has given as its `next`."""
    if text is not None and not is_id(text):
        raise Refused(422, "invalid", f"{name}: give the `next` of a page", field=name)


def check_id(text: str, what: str) -> str:
    """An id as stored, or 404: there is nothing of such an id."""
    if not is_id(text):
        raise Refused(404, f"{what}_not_found", f"no {what} has the id {text!r}")
    return text
