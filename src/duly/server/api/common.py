"""Shared by all routes: the app, pages, and idempotent requests."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Depends, Header, Query, Request, Response
from pydantic import Field

from duly.app import Duly, operations
from duly.errors import DulyError, StoreError
from duly.ids import is_id
from duly.model.access import Principal, RequestClaim
from duly.server.answers import Refused, Shape, status_of
from duly.server.served import served

T = TypeVar("T")
log = logging.getLogger(__name__)
MAX_PAGE = 200
MAX_KEY = 200
MAX_NAME = 200


def _app(request: Request) -> Duly:
    return served(request).app


App = Annotated[Duly, Depends(_app)]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="At most so many.")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=MAX_KEY,
        description="A request that is repeated with the same key makes nothing twice.",
    ),
]


Note = Annotated[str, Field(max_length=2_000)]


class NoteBody(Shape):
    note: Note | None = None


NO_NOTE = NoteBody()


class Page(Shape, Generic[T]):
    """Part of a list; `next` asks for what comes after it, None at the end."""

    items: list[T]
    next: str | None


def page(items: Sequence[T], limit: int, id_of: Callable[[T], str]) -> Page[T]:
    """The first `limit` of them; ask for one more than that to know whether there is a next."""
    shown = list(items[:limit])
    return Page[Any](items=shown, next=id_of(shown[-1]) if len(items) > limit else None)


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


class Repeatable:
    """Makes something once, however often the request comes.

    The first request under a key fixes the id of what it makes; whoever repeats it finds that, or
    makes it under the same id if the first one never came so far. A first request that is refused
    leaves the key to another.
    """

    def __init__(
        self, app: App, request: Request, response: Response, key: IdempotencyKey = None
    ) -> None:
        self._app = app
        # Without the prefix under which the server is mounted: that may change.
        root: str = request.scope.get("root_path", "")
        self._path = f"{request.method} {request.scope['path'].removeprefix(root)}"
        self._response = response
        self.key = key

    def make(
        self,
        principal: Principal,
        body: Shape,
        make: Callable[[str | None], T],
        find: Callable[[str], T | None],
    ) -> T:
        """What `make` gives for the id that it has to use (None: any), or what `find` does."""
        if self.key is None:
            return make(None)
        with self.claimed(principal, body) as claim:
            thing = self._found(find, claim.target)
            if thing is None:
                thing = self._made(claim, make, find)
        if not claim.done:
            self._remember(claim)
        return thing

    def do(self, principal: Principal, body: Shape, act: Callable[[str | None], T]) -> T:
        """What `act` gives; under the id that it gets (None: any) it does something once."""
        if self.key is None:
            return act(None)
        with self.claimed(principal, body) as claim:
            try:
                done = act(claim.target)
            except LookupError:
                if claim.done:
                    raise gone() from None
                raise
        if not claim.done:
            self._remember(claim)
        return done

    def _made(
        self, claim: RequestClaim, make: Callable[[str | None], T], find: Callable[[str], T | None]
    ) -> T:
        if claim.done:
            raise gone()
        try:
            return make(claim.target)
        except DulyError:
            # Somebody may have been faster with the same request.
            found = self._found(find, claim.target)
            if found is None:
                raise
            return found

    @contextmanager
    def claimed(self, principal: Principal, body: Shape) -> Generator[RequestClaim]:
        """What the first request under the key makes; if this is it, only if it is not refused."""
        mine = self._claim_of(principal, body)
        claim = self._claim(mine)
        try:
            yield claim
        except (DulyError, Refused) as error:
            status = error.status if isinstance(error, Refused) else status_of(error)
            # Of what went wrong on our side nobody knows how far it came.
            if claim is mine and status < 500:
                operations.give_up_request(self._app, mine)
            raise

    def _claim_of(self, principal: Principal, body: Shape) -> RequestClaim:
        assert self.key is not None
        check_header(self.key)
        content = json.dumps(body.model_dump(mode="json"), sort_keys=True)
        fingerprint = hashlib.sha256(f"{self._path}\n{content}".encode()).hexdigest()
        return operations.new_claim(self._app, principal.name, self.key, fingerprint)

    def _claim(self, mine: RequestClaim) -> RequestClaim:
        claim = operations.claim_request(self._app, mine)
        if claim.fingerprint != mine.fingerprint:
            raise Refused(
                422,
                "idempotency_mismatch",
                "another request was made with this key",
                field="Idempotency-Key",
                hint="use a new key for a new request",
            )
        return claim

    def _remember(self, claim: RequestClaim) -> None:
        try:
            operations.request_done(self._app, claim)
        except StoreError as error:
            # It is made. Only one who repeats this after it was removed again makes it anew.
            log.warning("request %s is not remembered as done: %s", claim.target, error)

    def digest(self, principal: Principal) -> str:
        """The key as nobody else can have it."""
        return hashlib.sha256(f"{principal.name}\n{self.key}".encode()).hexdigest()

    def _found(self, find: Callable[[str], T | None], target: str) -> T | None:
        try:
            found = find(target)
        except LookupError:
            return None
        if found is not None:
            self.made_nothing()
        return found

    def made_nothing(self) -> None:
        """Answer 200 instead of 201 or 202."""
        self._response.status_code = 200


def gone() -> Refused:
    """The answer to a repeat: nothing is made again."""
    return Refused(409, "already_done", "what this request made was removed since")


Once = Annotated[Repeatable, Depends(Repeatable)]


def check_cursor(name: str, text: str | None) -> None:
    """Refuse what no page has given as its `next`."""
    if text is not None and not is_id(text):
        raise Refused(422, "invalid", f"{name}: give the `next` of a page", field=name)


def check_header(text: str) -> None:
    if not text.isprintable():
        raise Refused(422, "invalid", "must be printable", field="Idempotency-Key")


def check_id(text: str, what: str) -> str:
    """An id as stored, or 404: there is nothing of such an id."""
    if not is_id(text):
        raise Refused(404, f"{what}_not_found", f"no {what} has the id {text!r}")
    return text
