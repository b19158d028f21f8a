"""Endpoints as targets, which can be called and scheduled like functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from duly.calls.kinds import Action
from duly.endpoints.views import Delivered
from duly.errors import EndpointNotFound
from duly.functions.function import Function, StoredTarget
from duly.model.endpoint import EndpointRecord
from duly.model.retry import decode_retry
from duly.model.signature import Signature
from duly.nearest import MAX_KNOWN
from duly.store.table import Store

NAME = QUEUE = "duly.post"
"""Every worker serves duly's own queues."""
GRACE_SECONDS = 30
"""An attempt ends by itself; the job's timeout is a safety net in case it does not."""


class EndpointTarget(Action[[Any], Delivered], StoredTarget):
    """`app.endpoint("billing")`: calling it with a body POSTs that body to the endpoint.

    The endpoint is looked up when the job is created and again when it is sent; only its name is
    stored.
    """

    def __init__(
        self,
        plain: Function[..., Any],
        endpoint: str,
        owner: str = "",
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        self._plain = plain
        self._changes = dict(changes or {})
        self.endpoint = endpoint
        self.owner = owner
        options = msgspec.structs.replace(plain.options, **self._changes)
        signature = _Bound(plain.body, endpoint, owner)
        super().__init__(plain.body, NAME, options, plain.traits, signature)

    def __repr__(self) -> str:
        return f"<endpoint {self.endpoint}>"

    def looked_up(self, store: Store) -> EndpointTarget:
        record = store.endpoint_named(self.owner, self.endpoint)
        if record is None:
            known = store.endpoints(self.owner, None, MAX_KNOWN)
            raise EndpointNotFound(self.endpoint, (each.name for each in known))
        return self.as_stored(record)

    def _with(self, changes: Mapping[str, Any]) -> EndpointTarget:
        changed = {**self._changes, **changes}
        return EndpointTarget(self._plain, self.endpoint, self.owner, changed)

    def as_written(self) -> EndpointTarget:
        """With the caller's options, and none of the endpoint's."""
        return self._with({})

    def as_stored(self, record: EndpointRecord | None) -> EndpointTarget:
        """With the endpoint's timeout and retries; if it is gone, the job fails after one attempt.

        The caller's options take precedence.
        """
        known = self._with({})
        if record is not None:
            own = msgspec.structs.replace(
                self._plain.options,
                retry=decode_retry(record.retry),
                timeout=record.timeout_ms / 1000 + GRACE_SECONDS,
                owner=record.owner or None,
            )
            known.options = msgspec.structs.replace(own, **self._changes)
        return known


class _Bound(Signature):
    """The arguments of a call to an endpoint, which is already fixed."""

    def __init__(self, body: Callable[..., object], endpoint: str, owner: str) -> None:
        super().__init__(body, NAME)
        self._which = {"endpoint": endpoint, "owner": owner}

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        return super().encode(args, {**kwargs, **self._which})


class _Args(msgspec.Struct):
    """The part of a job's arguments that names the endpoint."""

    endpoint: str
    owner: str = ""


def target_of(plain: Function[..., Any], args: str) -> EndpointTarget:
    """The endpoint that is named in stored arguments."""
    which = msgspec.json.decode(args, type=_Args)
    return EndpointTarget(plain, which.endpoint, which.owner)
