"""An endpoint as a target: it can be called and scheduled like a function."""

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
from duly.store.table import Store

NAME = QUEUE = "duly.post"
"""Every worker serves queues of duly's own."""
GRACE_SECONDS = 30
"""An attempt ends by itself; the limit of its job is for the case that it does not."""


class EndpointTarget(Action[[Any], Delivered], StoredTarget):
    """`app.endpoint("billing")`: called with a body, it POSTs that to the endpoint.

    The endpoint is looked for when a job is made, and again when it is sent: only its name is kept.
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
            raise EndpointNotFound(self.endpoint)
        return self.as_stored(record)

    def _with(self, changes: Mapping[str, Any]) -> EndpointTarget:
        changed = {**self._changes, **changes}
        return EndpointTarget(self._plain, self.endpoint, self.owner, changed)

    def as_written(self) -> EndpointTarget:
        """With the options that the caller has given, and none of the endpoint's."""
        return self._with({})

    def as_stored(self, record: EndpointRecord | None) -> EndpointTarget:
        """With what the endpoint says of its attempts; one that is gone is tried once, and fails.

        What the caller has given comes first.
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
    """The arguments of such a call; which endpoint it is has been said already."""

    def __init__(self, body: Callable[..., object], endpoint: str, owner: str) -> None:
        super().__init__(body, NAME)
        self._which = {"endpoint": endpoint, "owner": owner}

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        return super().encode(args, {**kwargs, **self._which})


class _Args(msgspec.Struct):
    """What of the arguments of a job says where it goes."""

    endpoint: str
    owner: str = ""


def target_of(plain: Function[..., Any], args: str) -> EndpointTarget:
    """The endpoint that stored arguments name."""
    which = msgspec.json.decode(args, type=_Args)
    return EndpointTarget(plain, which.endpoint, which.owner)
