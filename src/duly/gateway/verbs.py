"""`app.gateways`: registered gateways, their last known state, and their crons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from duly.calls.twins import Twin, awaited
from duly.clock import from_ms
from duly.core import Core
from duly.endpoints.secrets import check_reference
from duly.errors import (
    DulyError,
    GatewayError,
    GatewayExists,
    GatewayNotFound,
    GatewayRefused,
    InvalidOption,
    SecretMissing,
)
from duly.functions.checks import check_id, check_text, id_for
from duly.gateway.ask_all import AskAll
from duly.gateway.bridge import BridgeClient, ask_add, ask_get, check_url, is_link_local
from duly.gateway.crons import (
    MAX_CRONS,
    MAX_LISTED,
    GatewayCron,
    RemoveAnswer,
    RunAnswer,
    ScheduleData,
)
from duly.ids import is_id
from duly.model.gateway import GatewayRecord, answered, silent, worth_noting
from duly.model.stored_values import read
from duly.model.trigger import GatewayTrigger
from duly.nearest import MAX_KNOWN
from duly.runtime.transaction_guard import is_inside, refuse_inside_mutation
from duly.schedules.checks import check_by

T = TypeVar("T")

MAX_PAGE = 1_000
MAX_ASKED = 200
"""The most gateways that are queried at the same time."""
ASK_SECONDS = 2.0
"""How long a list waits for all gateways together, in seconds."""
VERB_SECONDS = 5.0


class RegisteredGateway(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway and its last known state."""

    id: str
    owner: str | None
    name: str
    url: str
    secret: str | None
    """The reference to its secret, never the secret itself."""
    version: int
    created: datetime
    updated: datetime
    crons: tuple[GatewayCron, ...] = ()
    """Its crons as of `seen_at`."""
    seen: datetime | None = None
    stale_since: datetime | None = None
    """Since when it has not responded."""
    error: str | None = None
    """Why it did not respond."""

    @property
    def stale(self) -> bool:
        """Whether it did not respond to the last request."""
        return self.stale_since is not None


# Inside the class, `list` is a verb.
GatewayList = list[RegisteredGateway]
AskForCrons = AskAll[GatewayRecord, tuple[GatewayCron, ...]]


class Gateways:
    """The gateways of an app, by id or by name, which is unique for its owner.

    `of(owner)` has the same methods, limited to the gateways of one owner.
    """

    def __init__(
        self,
        core: Core,
        owner: str | None = None,
        ask_all: AskForCrons | None = None,
    ) -> None:
        self._core = core
        self._owner = owner
        self._ask_all: AskForCrons = ask_all or AskAll(_all_crons)

    def of(self, owner: str) -> Gateways:
        """The gateways of one owner."""
        check_text("owner", owner)
        return Gateways(self._core, owner, self._ask_all)

    # Gateways

    def add(
        self,
        name: str,
        url: str,
        *,
        secret: str | None = None,
        link_local: bool = False,
        owner: str | None = None,
        by: str | None = None,
        id: str | None = None,
    ) -> RegisteredGateway:
        """Register a gateway: its URL, and env:NAME or file:PATH of its bearer secret.

        It is not contacted yet. A link-local address (169.254.0.0/16, fe80::/10), where cloud
        providers serve credentials, is refused unless `link_local` is true. `id`: the id of the
        new gateway.
        """
        refuse_inside_mutation("gateways.add")
        check_text("name", name)
        check_by(by)
        if is_id(name):
            raise InvalidOption("name", f"{name!r} looks like an id", "choose another name")
        if not link_local and is_link_local(check_url(url)):
            reason = f"{url!r} is a link-local address, where cloud providers serve credentials"
            raise InvalidOption("url", reason, "pass link_local if the gateway really is there")
        record = GatewayRecord(
            id=id_for(id, self._core.now()),
            owner=self._owner_for(owner),
            name=name,
            url=check_url(url),
            secret=None if secret is None else check_reference(secret),
            version=1,
            created_at=self._core.now(),
            updated_at=self._core.now(),
        )
        if not self._core.ready().add_gateway(record, by, record.created_at):
            raise GatewayExists(name)
        return as_seen(record)

    def get(self, name: str) -> RegisteredGateway:
        """The gateway with its last known state; GatewayNotFound if there is none."""
        return as_seen(self._record(name))

    def list(self, *, after: str | None = None, limit: int = 100) -> list[RegisteredGateway]:
        """Gateways with their last known state, oldest first; they are not contacted.

        `after` is the id of the last one on the previous page.
        """
        if type(limit) is not int or not 1 <= limit <= MAX_PAGE:
            raise InvalidOption("limit", f"must be 1 to {MAX_PAGE:,}, not {limit!r}")
        if after is not None and not is_id(after):
            raise InvalidOption("after", f"must be the id of a gateway, not {after!r}")
        return [as_seen(each) for each in self._core.ready().gateways(self._owner, after, limit)]

    def remove(self, name: str, *, by: str | None = None) -> bool:
        """Remove a gateway, which itself keeps running; says whether there was one."""
        refuse_inside_mutation("gateways.remove")
        check_by(by)
        found = self._find(name)
        return found is not None and self._core.ready().remove_gateway(
            found.id, by, self._core.now()
        )

    # Queries

    def crons(self, name: str) -> RegisteredGateway:
        """Fetch a gateway's crons; if it does not respond, its last known ones, marked as stale."""
        return self._ask([self._record(name)], VERB_SECONDS)[0]

    def look(self, seconds: float = ASK_SECONDS) -> tuple[RegisteredGateway, ...]:
        """Query all gateways at the same time; those that do not respond in time are stale."""
        found = self._core.ready().gateways(self._owner, None, MAX_ASKED)
        return tuple(self._ask(found, seconds))

    def _ask(self, records: Iterable[GatewayRecord], seconds: float) -> GatewayList:
        asked = [*records]
        # Keyed by fields that do not change, so that a query that hangs is not sent again.
        places = {record.id: _place(record) for record in asked}
        answers = self._ask_all(places.values(), seconds)
        now = self._core.now()
        gateways: GatewayList = []
        for record in asked:
            crons, error = answers.get(places[record.id], (None, None))
            after = _heard(record, crons, error, seconds, now)
            # Inside a transaction, the write would wait for that same transaction.
            if worth_noting(record, after) and not is_inside():
                self._core.ready().note_gateway(after)
            gateways.append(as_seen(after))
        return gateways

    def find_cron(self, gateway: str, cron_id: str) -> GatewayCron | None:
        """A cron's current state from its gateway; None if there is none with that id."""
        with _bridge(self._record(gateway), VERB_SECONDS) as bridge:
            try:
                return bridge.ask(ask_get(cron_id))
            except GatewayRefused as refused:
                if refused.code == "cron_not_found":
                    return None
                raise

    # The verbs of the bridge

    def cron_add(
        self,
        gateway: str,
        handler: str,
        schedule: GatewayTrigger | ScheduleData,
        *,
        name: str | None = None,
        payload: Mapping[str, Any] | None = None,
        enabled: bool = True,
        by: str | None = None,
        id: str | None = None,
    ) -> GatewayCron:
        """Create a cron on a gateway. `id`: the id of the new cron."""
        check_id(id)

        def add(bridge: BridgeClient) -> GatewayCron:
            given: dict[str, Any] = {"name": name, "payload": payload, "enabled": enabled}
            return bridge.ask(ask_add(handler, schedule, cron_id=id, **given))

        return self._pass_on(gateway, "cron_add", {"cron": name or handler}, by, add)

    def cron_update(
        self,
        gateway: str,
        cron_id: str,
        *,
        handler: str | None = None,
        schedule: GatewayTrigger | ScheduleData | None = None,
        name: str | None = None,
        payload: Mapping[str, Any] | None = None,
        enabled: bool | None = None,
        by: str | None = None,
    ) -> GatewayCron:
        """Change a gateway's cron."""
        changes = {"handler": handler, "name": name, "payload": payload, "enabled": enabled}
        changed = [field for field, value in changes.items() if value is not None]
        detail = {"cron": cron_id, "changed": changed + ["schedule"] * (schedule is not None)}
        return self._pass_on(
            *(gateway, "cron_update", detail, by),
            lambda bridge: bridge.cron_update(
                cron_id,
                handler=handler,
                schedule=schedule,
                name=name,
                payload=payload,
                enabled=enabled,
            ),
        )

    def cron_run(
        self, gateway: str, cron_id: str, mode: str = "force", *, by: str | None = None
    ) -> RunAnswer:
        """Run a gateway's cron now, or with mode="due" only if it is due."""
        detail = {"cron": cron_id, "mode": mode}
        return self._pass_on(
            *(gateway, "cron_run", detail, by), lambda bridge: bridge.cron_run(cron_id, mode)
        )

    def cron_remove(self, gateway: str, cron_id: str, *, by: str | None = None) -> RemoveAnswer:
        """Remove a gateway's cron; says whether there was one."""
        return self._pass_on(
            *(gateway, "cron_remove", {"cron": cron_id}, by),
            lambda bridge: bridge.cron_remove(cron_id),
        )

    def _pass_on(
        self,
        gateway: str,
        verb: str,
        detail: dict[str, Any],
        by: str | None,
        ask: Callable[[BridgeClient], T],
    ) -> T:
        """Forward a verb to a gateway and write an audit entry with its outcome."""
        refuse_inside_mutation(f"gateways.{verb}")
        check_by(by)
        record = self._record(gateway)
        outcome = "unknown"
        try:
            with _bridge(record, VERB_SECONDS) as bridge:
                answer = ask(bridge)
            outcome = "done"
        except GatewayRefused:
            outcome = "refused"
            raise
        finally:
            self._audit(record, verb, detail | {"outcome": outcome}, by)
        return answer

    def _audit(
        self, record: GatewayRecord, verb: str, detail: dict[str, Any], by: str | None
    ) -> None:
        target = f"gateway:{record.id}"
        self._core.ready().audit(f"gateway.{verb}", target, by, detail, self._core.now())

    # Inside

    def _owner_for(self, owner: str | None) -> str:
        if owner is None:
            return self._owner or ""
        if self._owner is not None and owner != self._owner:
            raise InvalidOption("owner", f"must be {self._owner!r}, as in of()")
        check_text("owner", owner)
        return owner

    def _record(self, name: str) -> GatewayRecord:
        found = self._find(name)
        if found is None:
            known = self._core.ready().gateways(self._owner or "", None, MAX_KNOWN)
            raise GatewayNotFound(name, (each.name for each in known))
        return found

    def _find(self, name: str) -> GatewayRecord | None:
        store = self._core.ready()
        if is_id(name):
            found = store.gateway(name)
        else:
            found = store.gateway_named(self._owner or "", name)
        hidden = found is not None and self._owner is not None and found.owner != self._owner
        return None if hidden else found


def _place(record: GatewayRecord) -> GatewayRecord:
    return msgspec.structs.replace(record, crons=None, seen_at=None, error=None, stale_since=None)


def _bridge(record: GatewayRecord, timeout: float) -> BridgeClient:
    return BridgeClient(record.url, record.secret, timeout=timeout)


def _all_crons(record: GatewayRecord) -> tuple[GatewayCron, ...]:
    found: list[GatewayCron] = []
    after: str | None = None
    with _bridge(record, VERB_SECONDS) as bridge:
        while len(found) < MAX_CRONS:
            page = bridge.cron_list(disabled=True, limit=MAX_LISTED, after=after)
            found += page.crons
            after = page.after
            if after is None or not page.crons:
                break
    return tuple(found[:MAX_CRONS])


def _heard(
    record: GatewayRecord,
    crons: tuple[GatewayCron, ...] | None,
    error: BaseException | None,
    seconds: float,
    now: int,
) -> GatewayRecord:
    if crons is not None:
        return answered(record, msgspec.json.encode(crons).decode(), now)
    if error is None:
        return silent(record, f"no response within {seconds:g} s", now)
    if isinstance(error, GatewayError | SecretMissing):
        return silent(record, str(error), now)
    if isinstance(error, DulyError):
        raise error
    return silent(record, f"{type(error).__name__} during the request", now)


def as_seen(record: GatewayRecord) -> RegisteredGateway:
    """The public form of a gateway."""
    return RegisteredGateway(
        id=record.id,
        owner=record.owner or None,
        name=record.name,
        url=record.url,
        secret=record.secret,
        version=record.version,
        created=from_ms(record.created_at),
        updated=from_ms(record.updated_at),
        crons=_stored(record.crons),
        seen=None if record.seen_at is None else from_ms(record.seen_at),
        stale_since=None if record.stale_since is None else from_ms(record.stale_since),
        error=record.error,
    )


def _stored(text: str | None) -> tuple[GatewayCron, ...]:
    return () if text is None else read(text, tuple[GatewayCron, ...], ())


class AsyncGateways(Twin[Gateways]):
    """`app.aio.gateways`: the async versions of the verbs of `app.gateways`."""

    def of(self, owner: str) -> AsyncGateways:
        """The gateways of one owner."""
        return AsyncGateways(self._core, self._sync.of(owner))

    add: Final = awaited(Gateways.add)
    get: Final = awaited(Gateways.get, reads=True)
    list: Final = awaited(Gateways.list, reads=True)
    remove: Final = awaited(Gateways.remove)
    crons: Final = awaited(Gateways.crons)
    look: Final = awaited(Gateways.look)
    cron_add: Final = awaited(Gateways.cron_add)
    cron_update: Final = awaited(Gateways.cron_update)
    cron_run: Final = awaited(Gateways.cron_run)
    cron_remove: Final = awaited(Gateways.cron_remove)
