"""Gateways: other runtimes and their crons, and the combined list of all schedules."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta
from msgspec.structs import asdict

from duly.app import Duly
from duly.clock import to_ms
from duly.errors import GatewayUnavailable, SecretMissing
from duly.gateway import GatewayCron, Gateways, RegisteredGateway
from duly.model.access import Principal
from duly.observe.view import ObservedGateway, ObservedSchedule
from duly.observe.view import ObservedPage as Observed
from duly.server.answers import Ms, Refused, Shape, Time
from duly.server.api.common import Cursor, Limit, Page, check_id, owner_of, page
from duly.server.api.operation import Admin, Operations, Operator, Reader, require_all_owners
from duly.server.api.repeatable import Repeatable

api = Operations("gateways")

T = TypeVar("T")
UNREACHABLE = "cannot be reached"
"""All that an owner sees: the reason would reveal details of the server's network."""
Local = Annotated[str, Meta(description="ISO 8601 with the offset of the requested time zone.")]


# Shapes ------------------------------------------------------------------------------------------


class GatewayCronShape(Shape):
    id: str
    name: str
    handler: str
    schedule: dict[str, Any]
    description: Annotated[str | None, Meta(description="The schedule in words.")]
    tz: str
    enabled: bool
    payload: dict[str, Any]
    next_at: Time | None
    running_at: Time | None
    last_run_at: Time | None
    last_status: str | None
    last_error: str | None
    last_duration_ms: int | None
    consecutive_errors: int
    unreadable: Annotated[str | None, Meta(description="Why the schedule cannot be read here.")]


class GatewayShape(Shape):
    id: str
    name: str
    owner: str | None
    url: Annotated[str | None, Meta(description="null for a token with an owner.")]
    secret: Annotated[str | None, Meta(description="A reference; null for a token with an owner.")]
    version: int
    stale: Annotated[bool, Meta(description="Whether it did not respond to the last request.")]
    stale_since: Time | None
    seen_at: Time | None
    error: str | None
    crons: Annotated[list[GatewayCronShape], Meta(description="The crons as of `seen_at`.")]
    created_at: Time
    created_at_ms: Ms


class NewGatewayBody(Shape):
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    url: Annotated[str, Meta(min_length=1, max_length=2_000)]
    secret: Annotated[str | None, Meta(description="env:NAME or file:PATH.")] = None
    link_local: Annotated[bool, Meta(description="Accept a link-local address.")] = False
    owner: str | None = None


class NewCronBody(Shape):
    handler: Annotated[str, Meta(min_length=1, max_length=200)]
    schedule: Annotated[
        dict[str, Any],
        Meta(
            description='{"kind": "at", "at": …}, {"kind": "every", "every_ms": …} or '
            '{"kind": "cron", "cron": …, "tz": …}'
        ),
    ]
    name: str | None = None
    payload: dict[str, Any] | None = None
    enabled: bool = True


class CronChangesBody(Shape):
    handler: str | None = None
    schedule: dict[str, Any] | None = None
    name: str | None = None
    payload: dict[str, Any] | None = None
    enabled: bool | None = None


class RunCronBody(Shape):
    mode: Literal["force", "due"] = "force"


DEFAULT_CRON_RUN = RunCronBody()


class Ran(Shape):
    ran: bool
    reason: Annotated[
        str | None, Meta(description="not-due or already-running, if it did not run.")
    ]


class Removed(Shape):
    removed: bool


class ObservedShape(Shape):
    """One row of the list: resource, type with expression, zone, status, next and last run."""

    source: Literal["schedule", "gateway"]
    id: str
    owner: str | None
    resource: str
    key: str
    type: str
    expression: str
    words: str
    tz: Annotated[str, Meta(description="Empty for UTC.")]
    status: str
    next_run: Local | None
    last_run: Local | None
    last_status: str | None
    stale_since: Annotated[
        Time | None, Meta(description="Since when its gateway has not responded.")
    ]
    error: Annotated[str | None, Meta(description="Why it is parked, or why its gateway is stale.")]


class ObservedGatewayShape(Shape):
    id: str
    name: str
    owner: str | None
    url: Annotated[str | None, Meta(description="null for a token with an owner.")]
    seen_at: Time | None
    stale_since: Time | None
    error: str | None


class ObservedPage(Shape):
    rows: list[ObservedShape]
    gateways: list[ObservedGatewayShape]
    next: str | None


# Gateways ----------------------------------------------------------------------------------------


@api.post("/gateways", status=201, again=GatewayShape)
def add(app: Duly, who: Admin, once: Repeatable, body: NewGatewayBody) -> GatewayShape:
    """Register a gateway, for all owners or for one; it is not contacted yet.

    A token with an owner may not do this, because the address may be inside your network and the
    secret may be any that the server can read.
    """
    require_all_owners(who)

    def make(gateway_id: str | None) -> RegisteredGateway:
        return app.gateways.add(
            body.name,
            body.url,
            secret=body.secret,
            link_local=body.link_local,
            owner=body.owner,
            by=who.name,
            id=gateway_id,
        )

    return _shape(who, once.make(who, body, make, app.gateways.get))


@api.get("/gateways")
def find(
    app: Duly,
    who: Reader,
    owner: str | None = None,
    after: Cursor = None,
    limit: Limit = 100,
) -> Page[GatewayShape]:
    """List gateways with their last known state, oldest first; they are not contacted."""
    of = owner_of(who, owner)
    gateways = app.gateways if of is None else app.gateways.of(of)
    found = [_shape(who, each) for each in gateways.list(after=after, limit=limit + 1)]
    return page(found, limit, lambda gateway: gateway.id)


@api.get("/gateways/{gateway_id}")
def get(app: Duly, who: Reader, gateway_id: str) -> GatewayShape:
    return _shape(who, _known(app, who, gateway_id))


@api.delete("/gateways/{gateway_id}", status=204)
def remove(app: Duly, who: Admin, gateway_id: str) -> None:
    """Remove a gateway, which itself keeps running. A token with an owner may not do this."""
    require_all_owners(who)
    app.gateways.remove(_known(app, who, gateway_id).id, by=who.name)


# Their crons -------------------------------------------------------------------------------------


@api.get("/gateways/{gateway_id}/crons", waits="gateway_id")
def crons(app: Duly, who: Reader, gateway_id: str) -> GatewayShape:
    """Fetch a gateway's crons; if it does not respond, its last known crons, marked as stale."""
    found = _ask(app, who, gateway_id, lambda gateways, known: gateways.crons(known))
    return _shape(who, found)


@api.post("/gateways/{gateway_id}/crons", status=201, again=GatewayCronShape, waits="gateway_id")
def cron_add(
    app: Duly, who: Operator, once: Repeatable, gateway_id: str, body: NewCronBody
) -> GatewayCronShape:
    """Create a cron on a gateway: 201, or 200 if an earlier request with the key created it."""

    def add(gateways: Gateways, known: str) -> GatewayCron:
        def make(cron_id: str | None) -> GatewayCron:
            return gateways.cron_add(
                known,
                body.handler,
                body.schedule,
                name=body.name,
                payload=body.payload,
                enabled=body.enabled,
                by=who.name,
                id=cron_id,
            )

        return once.make(who, body, make, lambda cron_id: gateways.find_cron(known, cron_id))

    return _cron(_ask(app, who, gateway_id, add))


@api.patch("/gateways/{gateway_id}/crons/{cron_id}", waits="gateway_id")
def cron_update(
    app: Duly,
    who: Operator,
    gateway_id: str,
    cron_id: str,
    body: CronChangesBody,
) -> GatewayCronShape:
    """Update a gateway's cron."""
    changed = _ask(
        *(app, who, gateway_id),
        lambda gateways, known: gateways.cron_update(known, cron_id, by=who.name, **asdict(body)),
    )
    return _cron(changed)


@api.post("/gateways/{gateway_id}/crons/{cron_id}/run", waits="gateway_id")
def cron_run(
    app: Duly,
    who: Operator,
    gateway_id: str,
    cron_id: str,
    body: RunCronBody = DEFAULT_CRON_RUN,
) -> Ran:
    """Run a gateway's cron now, or only if it is due."""
    answer = _ask(
        *(app, who, gateway_id),
        lambda gateways, known: gateways.cron_run(known, cron_id, body.mode, by=who.name),
    )
    return Ran(ran=answer.ran, reason=None if answer.reason is None else str(answer.reason))


@api.delete("/gateways/{gateway_id}/crons/{cron_id}", waits="gateway_id")
def cron_remove(app: Duly, who: Operator, gateway_id: str, cron_id: str) -> Removed:
    """Remove a gateway's cron; `removed` is false if there was none."""
    answer = _ask(
        *(app, who, gateway_id),
        lambda gateways, known: gateways.cron_remove(known, cron_id, by=who.name),
    )
    return Removed(removed=answer.removed)


# Across everything -------------------------------------------------------------------------------


@api.get("/observe/schedules", tags=("observe",), waits="views")
def observe(
    app: Duly,
    who: Reader,
    owner: str | None = None,
    tz: Annotated[str, Meta(description="The time zone in which to show times.")] = "UTC",
    after: Cursor = None,
    limit: Limit = 100,
) -> ObservedPage:
    """List all schedules and the crons of all gateways; unresponsive gateways are stale."""
    of = owner_of(who, owner)
    return shown(who, app.observe.schedules(owner=of, tz=tz, after=after, limit=limit))


def shown(who: Principal, found: Observed) -> ObservedPage:
    """A page of the list, limited to what the principal may see."""
    return ObservedPage(
        rows=[_observed(who, row) for row in found.rows],
        gateways=[_observed_gateway(who, gateway) for gateway in found.gateways],
        next=found.after,
    )


# Helpers -----------------------------------------------------------------------------------------


def _of(app: Duly, who: Principal) -> Gateways:
    return app.gateways if who.owner is None else app.gateways.of(who.owner)


def _known(app: Duly, who: Principal, gateway_id: str) -> RegisteredGateway:
    return _of(app, who).get(check_id(gateway_id, "gateway"))


def _ask(
    app: Duly,
    who: Principal,
    gateway_id: str,
    ask: Callable[[Gateways, str], T],
) -> T:
    """The gateway's response."""
    known = _known(app, who, gateway_id).id
    try:
        return ask(_of(app, who), known)
    except (GatewayUnavailable, SecretMissing):
        if who.owner is None:
            raise
        raise Refused(502, "gateway_unavailable", f"the gateway {UNREACHABLE}") from None


def _why(who: Principal, error: str | None) -> str | None:
    """Why a gateway did not respond, as far as the principal may know."""
    return error if error is None or who.owner is None else UNREACHABLE


def _where(who: Principal, place: str | None) -> str | None:
    """The address or secret reference of a gateway, for principals that may set it."""
    return place if who.owner is None else None


def _shape(who: Principal, gateway: RegisteredGateway) -> GatewayShape:
    return GatewayShape(
        id=gateway.id,
        name=gateway.name,
        owner=gateway.owner,
        url=_where(who, gateway.url),
        secret=_where(who, gateway.secret),
        version=gateway.version,
        stale=gateway.stale,
        stale_since=gateway.stale_since,
        seen_at=gateway.seen,
        error=_why(who, gateway.error),
        crons=[_cron(cron) for cron in gateway.crons],
        created_at=gateway.created,
        created_at_ms=to_ms(gateway.created),
    )


def _cron(cron: GatewayCron) -> GatewayCronShape:
    return GatewayCronShape(
        id=cron.id,
        name=cron.name,
        handler=cron.handler,
        schedule=cron.schedule,
        description=None if cron.unreadable else cron.trigger.describe(),
        tz=cron.tz,
        enabled=cron.enabled,
        payload=cron.payload,
        next_at=cron.next_at,
        running_at=cron.running_at,
        last_run_at=cron.last_run_at,
        last_status=cron.last_status,
        last_error=cron.last_error,
        last_duration_ms=cron.last_duration_ms,
        consecutive_errors=cron.consecutive_errors,
        unreadable=cron.unreadable,
    )


def _observed(who: Principal, row: ObservedSchedule) -> ObservedShape:
    # For a cron of a stale gateway, the error is the gateway's.
    error = row.error if row.stale_since is None else _why(who, row.error)
    return ObservedShape(
        source="gateway" if row.source == "gateway" else "schedule",
        id=row.id,
        owner=row.owner,
        resource=row.resource,
        key=row.key,
        type=row.type,
        expression=row.expression,
        words=row.words,
        tz=row.tz,
        status=row.status,
        next_run=_local(row.next_run),
        last_run=_local(row.last_run),
        last_status=row.last_status,
        stale_since=row.stale_since,
        error=error,
    )


def _local(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat(timespec="milliseconds")


def _observed_gateway(who: Principal, gateway: ObservedGateway) -> ObservedGatewayShape:
    return ObservedGatewayShape(
        id=gateway.id,
        name=gateway.name,
        owner=gateway.owner,
        url=_where(who, gateway.url),
        seen_at=gateway.seen,
        stale_since=gateway.stale_since,
        error=_why(who, gateway.error),
    )
