"""Requests that may be repeated: what one makes is made once."""

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
    """Makes something once, however often the request comes.

    The first request under a key fixes the id of what it makes; whoever repeats it finds that, or
    makes it under the same id if the first one never came so far. A first request that is refused
    leaves the key to another.
    """

    def __init__(self, app: Duly, path: str, key: str | None) -> None:
        """`path`: with its method, and as it is wherever the server is mounted."""
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
        content = json.dumps(readable(body), sort_keys=True)
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
        self.made_before = True


def gone() -> Refused:
    """The answer to a repeat: nothing is made again."""
    return Refused(409, "already_done", "what this request made was removed since")


def check_header(text: str) -> None:
    if not 1 <= len(text) <= MAX_KEY or not text.isprintable():
        message = f"must be printable, and 1 to {MAX_KEY} characters long"
        raise Refused(422, "invalid", message, field=KEY)
