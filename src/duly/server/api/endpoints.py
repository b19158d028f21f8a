"""Endpoints: addresses that jobs and schedules POST to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType, convert, field
from msgspec.structs import asdict

from duly.app import Duly
from duly.clock import to_ms
from duly.endpoints import Endpoint, Endpoints
from duly.endpoints.secrets import is_reference
from duly.endpoints.verbs import MAX_TIMEOUT, MIN_TIMEOUT
from duly.errors import StaleVersion
from duly.model.access import Principal
from duly.model.audit import NewAuditEntry
from duly.model.retry import Retry
from duly.server.answers import Ms, Shape, Time, given
from duly.server.api.common import Cursor, Limit, Page, check_id, owner_of, page
from duly.server.api.jobs import JobShape, run_once, shape_of
from duly.server.api.operation import Admin, Operations, Operator, Reader, require_all_owners
from duly.server.api.repeatable import Repeatable

api = Operations("endpoints", "/endpoints")

Headers = Annotated[
    dict[str, str], Meta(description="Headers that authenticate must be references: env:NAME.")
]
Secret = Annotated[str | None, Meta(description="The secret reference: env:NAME or file:PATH.")]


class RetryShape(Shape):
    attempts: Annotated[
        Annotated[int, Meta(ge=1, le=1_000)] | None,
        Meta(description="Default: 5, or the number of listed delays plus one."),
    ] = None
    delay: Annotated[
        float | list[float],
        Meta(description="Seconds after the first attempt, or the delay after each attempt."),
    ] = 2.0
    factor: Annotated[
        float, Meta(ge=1, le=1_000, description="Each delay is the previous one times this factor.")
    ] = 2.0
    cap: Annotated[
        float, Meta(ge=0, le=604_800, description="The longest delay, including jitter.")
    ] = 3600.0
    jitter: Annotated[
        float | str,
        Meta(description='Random time added to a delay: at most these seconds, or "20%" of it.'),
    ] = 1.0


class EndpointShape(Shape):
    id: str
    name: str
    owner: str | None
    url: str
    secret: Secret
    headers: dict[str, str]
    timeout: Annotated[float, Meta(description="Seconds for one attempt.")]
    retry: Annotated[RetryShape | None, Meta(description="null: a single attempt.")]
    version: int
    created_at: Time
    created_at_ms: Ms
    updated_at: Time
    updated_at_ms: Ms


class NewEndpointBody(Shape):
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    url: Annotated[str, Meta(min_length=1, max_length=2_000)]
    secret: Secret = None
    headers: Headers = field(default_factory=dict[str, str])
    timeout: Annotated[float, Meta(ge=MIN_TIMEOUT, le=MAX_TIMEOUT)] = 10.0
    retry: RetryShape | None = None
    owner: str | None = None


class EndpointChangesBody(Shape):
    """The changes to an endpoint; refused if its current version is not `version`."""

    version: int
    name: Annotated[str, Meta(min_length=1, max_length=200)] | UnsetType | None = UNSET
    url: Annotated[str, Meta(min_length=1, max_length=2_000)] | UnsetType | None = UNSET
    secret: Secret | UnsetType = UNSET
    headers: Headers | UnsetType | None = UNSET
    timeout: Annotated[float, Meta(ge=MIN_TIMEOUT, le=MAX_TIMEOUT)] | UnsetType | None = UNSET
    retry: RetryShape | UnsetType | None = UNSET


class SendBody(Shape):
    body: Any = UNSET


EMPTY_SEND = SendBody()


@api.post("", status=201, again=EndpointShape)
def create(app: Duly, who: Admin, once: Repeatable, body: NewEndpointBody) -> EndpointShape:
    """Create an endpoint. Requests to it are signed if it has a secret.

    A reference can send any secret that workers can read, so a token with an owner may not use
    references.
    """
    if _has_references(body.secret, body.headers):
        require_all_owners(who)

    def make(endpoint_id: str | None) -> Endpoint:
        return _of(app, who).create(
            body.name,
            body.url,
            secret=body.secret,
            headers=body.headers,
            timeout=body.timeout,
            retry=_retry(body.retry),
            owner=owner_of(who, body.owner),
            by=who.name,
            id=endpoint_id,
        )

    return _shape(once.make(who, body, make, _of(app, who).get))


@api.get("")
def find(
    app: Duly,
    who: Reader,
    owner: str | None = None,
    after: Cursor = None,
    limit: Limit = 100,
) -> Page[EndpointShape]:
    """List endpoints, oldest first."""
    of = owner_of(who, owner)
    endpoints = app.endpoints if of is None else app.endpoints.of(of)
    found = [_shape(each) for each in endpoints.list(after=after, limit=limit + 1)]
    return page(found, limit, lambda endpoint: endpoint.id)


@api.get("/{endpoint_id}")
def get(app: Duly, who: Reader, endpoint_id: str) -> EndpointShape:
    return _shape(_of(app, who).get(check_id(endpoint_id, "endpoint")))


@api.patch("/{endpoint_id}")
def update(app: Duly, who: Admin, endpoint_id: str, body: EndpointChangesBody) -> EndpointShape:
    """Update an endpoint. Pending jobs use its address at the time they are sent.

    A token with an owner may not set references to secrets, nor change where an endpoint that has
    them sends to.
    """
    changes = given(body)
    del changes["version"]
    if "retry" in changes:
        changes["retry"] = _retry(changes["retry"])
    found = _of(app, who).get(check_id(endpoint_id, "endpoint"))
    if found.version != body.version:
        raise StaleVersion(found.name, body.version, found.version)
    if not changes.keys().isdisjoint(("url", "secret", "headers")) and _has_references(
        changes.get("secret", found.secret), changes.get("headers", found.headers)
    ):
        require_all_owners(who)
    return _shape(_of(app, who).update(found, version=body.version, by=who.name, **changes))


@api.delete("/{endpoint_id}", status=204)
def remove(app: Duly, who: Admin, endpoint_id: str) -> None:
    """Remove an endpoint. Jobs that were not sent yet fail."""
    _of(app, who).remove(check_id(endpoint_id, "endpoint"), by=who.name)


@api.post("/{endpoint_id}/send", status=202, again=JobShape)
def send(
    app: Duly,
    who: Operator,
    once: Repeatable,
    endpoint_id: str,
    body: SendBody = EMPTY_SEND,
) -> JobShape:
    """POST to an endpoint now, as a job; 200 with the existing job for the request's key."""
    found = _of(app, who).get(check_id(endpoint_id, "endpoint"))
    target = app.endpoint(found.name, owner=found.owner).using(owner=found.owner)
    args = given(body)
    now = app.clock.now()

    def audit_entry(job_id: str) -> NewAuditEntry:
        return NewAuditEntry(
            "endpoint.send", f"endpoint:{found.id}", who.name, {"job_id": job_id}, now
        )

    job = run_once(app, who, once, body, target, args, now, audit_entry)
    if job.existed:
        once.made_nothing()
    return shape_of(job.record)


def _of(app: Duly, who: Principal) -> Endpoints:
    return app.endpoints if who.owner is None else app.endpoints.of(who.owner)


def _has_references(secret: str | None, headers: Mapping[str, str] | None) -> bool:
    return secret is not None or any(map(is_reference, (headers or {}).values()))


def _retry(retry: RetryShape | None) -> Retry | None:
    return None if retry is None else Retry(**asdict(retry))


def _shape(endpoint: Endpoint) -> EndpointShape:
    retry = endpoint.retry
    return EndpointShape(
        id=endpoint.id,
        name=endpoint.name,
        owner=endpoint.owner,
        url=endpoint.url,
        secret=endpoint.secret,
        headers=dict(endpoint.headers),
        timeout=endpoint.timeout,
        retry=None if retry is None else convert(asdict(retry), RetryShape),
        version=endpoint.version,
        created_at=endpoint.created,
        created_at_ms=to_ms(endpoint.created),
        updated_at=endpoint.updated,
        updated_at_ms=to_ms(endpoint.updated),
    )
