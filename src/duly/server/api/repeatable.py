"""Repeatable requests: under an idempotency key, a request takes effect only once."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from duly.app import Duly, operations
from duly.errors import DulyError, StoreError
from duly.model.access import Principal, RequestClaim
from duly.server.answers import Refused, Shape, readable, status_of

T = TypeVar("T")
log = logging.getLogger(__name__)
MAX_KEY = 200
KEY = "Idempotency-Key"


class Repeatable:
    """Creates something once, however often the request is repeated.

    The first request under a key fixes the id of the new object. A repeated request finds that
    object, or creates it under the same id if the first request did not get that far. If the first
    request is refused, its key is free again.
    """

    def __init__(self, app: Duly, path: str, key: str | None) -> None:
        """`path`: the method and path, without the server's mount path."""
        self._app, self._path = app, path
        self.key = key
        self.made_before = False

    def make(
        self,
        principal: Principal,
        body: Shape,
        make: Callable[[str | None], T],
        find: Callable[[str], T | None],
    ) -> T:
        """The result of `find`, or of `make` with the id that it must use (None: any id)."""
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
        """The result of `act`, which has its effect only once for the id it gets (None: any id)."""
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
            # The same request may have been faster in another process.
            found = self._found(find, claim.target)
            if found is None:
                raise
            return found

    @contextmanager
    def claimed(self, principal: Principal, body: Shape) -> Generator[RequestClaim]:
        """The claim of the first request under the key; released if that one is refused."""
        mine = self._claim_of(principal, body)
        claim = self._claim(mine)
        try:
            yield claim
        except (DulyError, Refused) as error:
            status = error.status if isinstance(error, Refused) else status_of(error)
            # After an error on the server's side, it is unknown how far the request got.
            if claim is mine and status < 500:
                operations.give_up_request(self._app, mine)
            raise

    def _claim_of(self, principal: Principal, body: Shape) -> RequestClaim:
        assert self.key is not None
        check_header(self.key)
        content = json.dumps(readable(body), sort_keys=True)
        fingerprint = hashlib.sha256(f"{self._path}\n{content}".encode()).hexdigest()
        return operations.new_claim(self._app, principal.name, self.key, fingerprint)

    def _claim(self, mine: RequestClaim) -> RequestClaim:
        claim = operations.claim_request(self._app, mine)
        if claim.fingerprint != mine.fingerprint:
            raise Refused(
                422,
                "idempotency_mismatch",
                "this key was already used for a different request",
                field="Idempotency-Key",
                hint="use a new key for a new request",
            )
        return claim

    def _remember(self, claim: RequestClaim) -> None:
        try:
            operations.request_done(self._app, claim)
        except StoreError as error:
            # The object exists. Only a repeat after its removal would create it again.
            log.warning("could not record request %s as done: %s", claim.target, error)

    def digest(self, principal: Principal) -> str:
        """A key that no other principal can have."""
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
        """Respond with 200 instead of 201 or 202."""
        self.made_before = True


def gone() -> Refused:
    """The response to a repeat whose object is gone: it is not created again."""
    return Refused(409, "already_done", "the object that this request created has been removed")


def check_header(text: str) -> None:
    if not 1 <= len(text) <= MAX_KEY or not text.isprintable():
        message = f"must be printable, and 1 to {MAX_KEY} characters long"
        raise Refused(422, "invalid", message, field=KEY)
