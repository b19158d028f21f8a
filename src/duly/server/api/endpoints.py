"""Endpoints: addresses that jobs and schedules POST to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import Field

from duly.clock import to_ms
from duly.endpoints import Endpoint, Endpoints
from duly.endpoints.secrets import is_reference
from duly.endpoints.verbs import LONGEST, SHORTEST
from duly.errors import StaleVersion
from duly.model.access import Principal
from duly.model.audit import Deed
from duly.model.retry import Retry
from duly.server.answers import Ms, Shape, Time
from duly.server.api.common import App, Limit, Once, Page, check_id, owner_of, page
from duly.server.api.jobs import JobShape, run_once, shape_of
from duly.server.auth import Admin, Operator, Reader, ScopedRoute, everybodys

router = APIRouter(prefix="/endpoints", tags=["endpoints"], route_class=ScopedRoute)

Headers = Annotated[
    dict[str, str], Field(description="Those that let somebody in are references: env:NAME.")
]
Secret = Annotated[str | None, Field(description="Where it is: env:NAME or file:PATH.")]


class RetryShape(Shape):
    attempts: int = Field(default=5, ge=1, le=1_000)
    base: float = Field(default=2.0, ge=0, le=86_400)
    cap: float = Field(default=3600.0, ge=0, le=604_800)
    jitter: float = Field(default=1.0, ge=0, le=86_400)


class EndpointShape(Shape):
    id: str
    name: str
    owner: str | None
    url: str
    secret: Secret
    headers: dict[str, str]
    timeout: float = Field(description="Seconds, for one attempt.")
    retry: RetryShape | None = Field(description="null: at most once.")
    version: int
    created_at: Time
    created_at_ms: Ms
    updated_at: Time
    updated_at_ms: Ms


class NewEndpointBody(Shape):
    name: str = Field(min_length=1, max_length=200)
    url: str = Field(min_length=1, max_length=2_000)
    secret: Secret = None
    headers: Headers = Field(default_factory=dict)
    timeout: float = Field(default=10.0, ge=SHORTEST, le=LONGEST)
    retry: RetryShape | None = None
    owner: str | None = None


class EndpointChangesBody(Shape):
    """What is to be different; of another `version` than that it is refused."""

    version: int
    name: str | None = Field(default=None, min_length=1, max_length=200)
    url: str | None = Field(default=None, min_length=1, max_length=2_000)
    secret: Secret = None
    headers: Headers | None = None
    timeout: float | None = Field(default=None, ge=SHORTEST, le=LONGEST)
    retry: RetryShape | None = None


class SendBody(Shape):
    body: Any = None


NOTHING = SendBody()


@router.post("", status_code=201, responses={200: {"model": EndpointShape}})
def create(app: App, who: Admin, once: Once, body: NewEndpointBody) -> EndpointShape:
    """Make an endpoint. What is sent there is signed if there is a secret.

    Any secret that workers can read can be sent by a reference: a token of an owner gives none.
    """
    if _has_references(body.secret, body.headers):
        everybodys(who)

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


@router.get("")
def find(
    app: App,
    who: Reader,
    owner: str | None = None,
    after: Annotated[str | None, Query(description="The `next` of the page before.")] = None,
    limit: Limit = 100,
) -> Page[EndpointShape]:
    """Oldest first."""
    of = owner_of(who, owner)
    endpoints = app.endpoints if of is None else app.endpoints.of(of)
    found = [_shape(each) for each in endpoints.list(after=after, limit=limit + 1)]
    return page(found, limit, lambda endpoint: endpoint.id)


@router.get("/{endpoint_id}")
def get(app: App, who: Reader, endpoint_id: str) -> EndpointShape:
    return _shape(_of(app, who).get(check_id(endpoint_id, "endpoint")))


@router.patch("/{endpoint_id}")
def update(app: App, who: Admin, endpoint_id: str, body: EndpointChangesBody) -> EndpointShape:
    """Change what is given. Jobs that wait are sent to where it leads by then.

    A token of an owner neither gives references to secrets, nor says where those of others go.
    """
    changes: dict[str, Any] = {
        name: getattr(body, name) for name in body.model_fields_set - {"version"}
    }
    if "retry" in changes:
        changes["retry"] = _retry(body.retry)
    found = _of(app, who).get(check_id(endpoint_id, "endpoint"))
    if found.version != body.version:
        raise StaleVersion(found.name, body.version, found.version)
    if not changes.keys().isdisjoint(("url", "secret", "headers")) and _has_references(
        changes.get("secret", found.secret), changes.get("headers", found.headers)
    ):
        everybodys(who)
    return _shape(_of(app, who).update(found, version=body.version, by=who.name, **changes))


@router.delete("/{endpoint_id}", status_code=204)
def remove(app: App, who: Admin, endpoint_id: str) -> None:
    """Remove it. Jobs that are still to be sent there fail."""
    _of(app, who).remove(check_id(endpoint_id, "endpoint"), by=who.name)


@router.post("/{endpoint_id}/send", status_code=202, responses={200: {"model": JobShape}})
def send(
    app: App,
    who: Operator,
    once: Once,
    endpoint_id: str,
    response: Response,
    body: SendBody = NOTHING,
) -> JobShape:
    """POST something there now, as a job; 200 with the one that its key already has."""
    found = _of(app, who).get(check_id(endpoint_id, "endpoint"))
    target = app.endpoint(found.name, owner=found.owner).using(owner=found.owner)
    args = {"body": body.body} if "body" in body.model_fields_set else {}
    now = app.clock.now()

    def deed(job_id: str) -> Deed:
        return Deed("endpoint.send", f"endpoint:{found.id}", who.name, {"job_id": job_id}, now)

    job = run_once(app, who, once, body, target, args, now, deed)
    if job.existed:
        response.status_code = 200
    return shape_of(job.record)


def _of(app: App, who: Principal) -> Endpoints:
    return app.endpoints if who.owner is None else app.endpoints.of(who.owner)


def _has_references(secret: str | None, headers: Mapping[str, str] | None) -> bool:
    return secret is not None or any(map(is_reference, (headers or {}).values()))


def _retry(retry: RetryShape | None) -> Retry | None:
    return None if retry is None else Retry(**retry.model_dump())


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
        retry=None
        if retry is None
        else RetryShape(
            attempts=retry.attempts, base=retry.base, cap=retry.cap, jitter=retry.jitter
        ),
        version=endpoint.version,
        created_at=endpoint.created,
        created_at_ms=to_ms(endpoint.created),
        updated_at=endpoint.updated,
        updated_at_ms=to_ms(endpoint.updated),
    )
