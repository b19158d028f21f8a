"""`app.endpoints`: create, change and remove the addresses that jobs and schedules POST to."""

# Without a type checker, callers may pass values that contradict the types.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast

import msgspec

from duly.endpoints.secrets import check_reference, is_reference
from duly.endpoints.views import Endpoint, Observer, as_endpoint, is_reserved
from duly.errors import (
    AddressRefused,
    EndpointExists,
    EndpointNotFound,
    InvalidOption,
    InvalidTime,
    StaleVersion,
)
from duly.functions.checks import check_text, id_for
from duly.functions.times import Delay, seconds_of
from duly.ids import is_id
from duly.model.endpoint import EndpointRecord
from duly.model.retry import Retry, encode_retry
from duly.nearest import MAX_KNOWN
from duly.runtime.outbound import Allow
from duly.runtime.outbound.client import check_header
from duly.runtime.transaction_guard import refuse_inside_mutation

if TYPE_CHECKING:
    from duly.core import Core

O = TypeVar("O", bound=Observer)  # noqa: E741

DEFAULT_TIMEOUT = 10.0
MIN_TIMEOUT = 0.001
MAX_TIMEOUT = 600.0
MAX_HEADERS = 50
MAX_LISTED = 1_000
# Credentials must not be stored in a row.
_SECRET = ("authorization", "cookie", "x-api-key", "x-auth-token")


class EndpointChanges(TypedDict, total=False):
    """The changes to an endpoint."""

    name: str
    url: str
    secret: str | None
    headers: Mapping[str, str] | None
    timeout: Delay
    retry: Retry | None


class Endpoints:
    """The endpoints of an app.

    Refer to an endpoint by its name, which is unique for its owner, or by its id. `of(owner)` has
    the same methods, limited to the endpoints of one owner.
    """

    def __init__(self, core: Core, owner: str | None = None) -> None:
        self._core = core
        self._owner = owner

    def of(self, owner: str) -> Endpoints:
        """The endpoints of one owner."""
        check_text("owner", owner)
        return Endpoints(self._core, owner)

    # How this process sends requests

    @property
    def allow(self) -> tuple[str, ...]:
        """Destinations that are allowed although they are not public: networks, addresses, hosts.

        `app.endpoints.allow = ("10.1.0.0/16", "127.0.0.1:8000", "billing.internal")`
        """
        return self._core.client.allow.entries

    @allow.setter
    def allow(self, entries: Iterable[str]) -> None:
        self._core.client.allow = Allow(entries)

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The SSL context for https; None: verify against the machine's trusted certificates."""
        return self._core.client.tls

    @tls.setter
    def tls(self, context: ssl.SSLContext | None) -> None:
        self._core.client.tls = context

    def on_dispatch(self, observer: O) -> O:
        """Register a function to call with a `Dispatch` for every attempt in this process.

        An observer that raises is logged and does not affect the others.
        """
        if not callable(observer):
            raise InvalidOption("on_dispatch", f"give a function, not {observer!r}")
        self._core.on_dispatch.append(observer)
        return observer

    # Reading

    def get(self, endpoint: str | Endpoint) -> Endpoint:
        """The endpoint as it is now; EndpointNotFound if there is none."""
        return as_endpoint(self._record(endpoint))

    def list(self, *, after: str | None = None, limit: int = 100) -> list[Endpoint]:
        """Endpoints, oldest first; `after` is the id of the last one on the previous page."""
        if type(limit) is not int or not 1 <= limit <= MAX_LISTED:
            raise InvalidOption("limit", f"must be 1 to {MAX_LISTED:,}, not {limit!r}")
        if after is not None and not is_id(after):
            raise InvalidOption("after", f"must be the id of an endpoint, not {after!r}")
        found = self._core.ready().endpoints(self._owner, after, limit)
        return [as_endpoint(record) for record in found]

    # Making and changing

    def create(
        self,
        name: str,
        url: str,
        *,
        secret: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: Delay = DEFAULT_TIMEOUT,
        retry: Retry | None = None,
        owner: str | None = None,
        by: str | None = None,
        id: str | None = None,
    ) -> Endpoint:
        """Create an endpoint. Requests to it are signed if it has a `secret`.

        `secret` and headers that authenticate must be references: env:NAME or file:PATH.
        `id`: the id of the new endpoint.
        """
        refuse_inside_mutation("endpoints.create")
        now = self._core.now()
        record = EndpointRecord(
            id=id_for(id, now),
            owner=self._owner_for(owner),
            name=_name(name),
            url=self._url(url),
            secret=_secret(secret),
            headers=_headers(headers),
            timeout_ms=_timeout(timeout),
            retry=_retry(retry),
            version=1,
            created_at=now,
            updated_at=now,
        )
        if not self._core.ready().add_endpoint(record, by, now):
            raise EndpointExists(name)
        return as_endpoint(record)

    def update(
        self,
        endpoint: str | Endpoint,
        /,
        *,
        version: int | None = None,
        by: str | None = None,
        **changes: Unpack[EndpointChanges],
    ) -> Endpoint:
        """Change the given fields. Pending jobs use the address at the time they are sent.

        `version`: refuse with StaleVersion if the endpoint has changed since it was read.
        """
        refuse_inside_mutation("endpoints.update")
        columns = self._columns(cast("Mapping[str, Any]", changes))

        def change(record: EndpointRecord) -> EndpointRecord | None:
            if version is not None and record.version != version:
                raise StaleVersion(record.name, version, record.version)
            return msgspec.structs.replace(record, **columns)

        found = self._record(endpoint)
        record = self._core.ready().edit_endpoint(found.id, change, by, self._core.now())
        if record is None:
            raise EndpointNotFound(found.name)
        return as_endpoint(record)

    def remove(self, endpoint: str | Endpoint, *, by: str | None = None) -> None:
        """Remove an endpoint. Its unsent jobs fail, unless there is a new one with its name."""
        refuse_inside_mutation("endpoints.remove")
        record = self._record(endpoint)
        self._core.ready().remove_endpoint(record.id, by, self._core.now())

    # Inside

    def _owner_for(self, owner: str | None) -> str:
        if owner is not None:
            check_text("owner", owner)
            if self._owner is not None and owner != self._owner:
                raise InvalidOption("owner", "must be the owner given to of()")
        return owner or self._owner or ""

    def _record(self, endpoint: str | Endpoint) -> EndpointRecord:
        name = endpoint.id if isinstance(endpoint, Endpoint) else endpoint
        if not isinstance(name, str):
            raise InvalidOption("endpoint", f"give the name of an endpoint, not {name!r}")
        store = self._core.ready()
        found = (
            store.endpoint(name) if is_id(name) else store.endpoint_named(self._owner or "", name)
        )
        if found is None or (self._owner is not None and found.owner != self._owner):
            known = store.endpoints(self._owner or "", None, MAX_KNOWN)
            raise EndpointNotFound(name, (each.name for each in known))
        return found

    def _columns(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        checks: dict[str, Any] = {
            "name": ("name", _name),
            "url": ("url", self._url),
            "secret": ("secret", _secret),
            "headers": ("headers", _headers),
            "timeout": ("timeout_ms", _timeout),
            "retry": ("retry", _retry),
        }
        unknown = changes.keys() - checks.keys()
        if unknown:
            raise InvalidOption(min(unknown), "is not a field of an endpoint")
        return {
            column: check(changes[name])
            for name, (column, check) in checks.items()
            if name in changes
        }

    def _url(self, url: str) -> str:
        try:
            self._core.client.check(url)
        except AddressRefused as error:
            raise InvalidOption("url", str(error)) from None
        return url


def _name(name: str) -> str:
    check_text("name", name)
    if is_id(name):
        raise InvalidOption("name", f"{name!r} looks like an id", "choose another name")
    return name


def _secret(secret: str | None) -> str | None:
    return None if secret is None else check_reference(secret)


def _headers(headers: Mapping[str, str] | None) -> str:
    try:
        given = msgspec.convert(headers or {}, dict[str, str])
    except msgspec.ValidationError:
        raise InvalidOption("headers", "give names and values as text") from None
    if len(given) > MAX_HEADERS:
        raise InvalidOption("headers", f"give at most {MAX_HEADERS} headers")
    if len({name.lower() for name in given}) < len(given):
        raise InvalidOption("headers", "a header is given twice")
    for name, value in given.items():
        check_header(name, value)
        _check_ours(name.lower(), value)
    return msgspec.json.encode(given).decode()


def _check_ours(name: str, value: str) -> None:
    if is_reserved(name):
        raise InvalidOption("headers", f"{name} is set by duly")
    if is_reference(value):
        check_reference(value, "headers")
    elif name in _SECRET:
        hint = "give env:NAME or file:PATH with the whole value"
        raise InvalidOption("headers", f"{name} would be stored in plain text", hint)


def _timeout(timeout: Delay) -> int:
    try:
        seconds = seconds_of("timeout", timeout)
    except InvalidTime as error:
        raise InvalidOption("timeout", error.reason) from None
    if not MIN_TIMEOUT <= seconds <= MAX_TIMEOUT:
        raise InvalidOption("timeout", f"must be 1 ms to {MAX_TIMEOUT:g} s, not {timeout!r}")
    return round(seconds * 1000)


def _retry(retry: Retry | None) -> str | None:
    if retry is not None and not isinstance(retry, Retry):
        raise InvalidOption("retry", f"give a Retry(...), not {retry!r}")
    return encode_retry(retry)
