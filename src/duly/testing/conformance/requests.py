"""Idempotent requests: the first request fixes the id, until its key is given up."""

from __future__ import annotations

import msgspec

from duly.ids import new_id
from duly.model.access import RequestClaim
from duly.testing.conformance.ground import NOW, SECOND, Ground


def claim(**fields: object) -> RequestClaim:
    made = RequestClaim("ada", "k", "print", new_id(NOW), NOW + SECOND)
    return msgspec.structs.replace(made, **fields)


class Requests(Ground):
    """The first request with a key wins."""

    def test_the_first_request_of_a_key_fixes_what_is_made(self) -> None:
        first = claim()
        assert self.store.claim_request(first) == first
        assert self.store.claim_request(claim(fingerprint="other")) == first
        other = claim(actor="bob")
        assert self.store.claim_request(other) == other

    def test_a_request_is_known_to_be_done(self) -> None:
        first = self.store.claim_request(claim())
        self.store.request_done(first)
        done = self.store.claim_request(claim())
        assert (done.target, done.done) == (first.target, True)
        # That does not change, even if another request gives it up.
        self.store.give_up_request(first)
        assert self.store.claim_request(claim()) == done

    def test_a_key_that_is_given_up_is_free(self) -> None:
        first, second = self.store.claim_request(claim()), claim(fingerprint="other")
        self.store.give_up_request(second)
        assert self.store.claim_request(second) == first
        self.store.give_up_request(first)
        assert self.store.claim_request(second) == second
        # If it continued anyway, it changes nothing for the other one.
        self.store.request_done(first)
        assert self.store.claim_request(claim()) == second

    def test_one_that_was_given_up_by_another_is_still_known_to_be_done(self) -> None:
        first = self.store.claim_request(claim())
        self.store.give_up_request(first)
        self.store.request_done(first)
        found = self.store.claim_request(claim())
        assert (found.target, found.done) == (first.target, True)

    def test_requests_are_forgotten(self) -> None:
        first, second = self.store.claim_request(claim()), claim()
        assert self.store.forget_requests(NOW + SECOND - 1) == 0
        assert self.store.claim_request(second) == first
        assert self.store.forget_requests(NOW + SECOND) == 1
        assert self.store.claim_request(second) == second
