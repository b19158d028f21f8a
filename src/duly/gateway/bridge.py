"""`BridgeClient`: list and manage a gateway's crons over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
from msgspec.structs import replace

from duly.calls.twins import awaited
from duly.endpoints.secrets import check_reference, resolve
from duly.errors import (
    AddressRefused,
    GatewayRefused,
    GatewayUnavailable,
    InvalidOption,
    MissingExtra,
)
from duly.gateway.crons import (
    CronPage,
    GatewayCron,
    RemoveAnswer,
    RunAnswer,
    ScheduleData,
    check_limit,
    check_mode,
    printable,
    read_schedule,
    sensible,
    write_schedule,
)
from duly.model.nesting import MAX_DEPTH, depth_of
from duly.model.trigger import GatewayTrigger
from duly.runtime.outbound.url import parse_url

T = TypeVar("T")

TIMEOUT = 5.0
MAX_ANSWER = 8 << 20
MAX_URL = 2_000
MAX_NESTED = MAX_DEPTH + 4
"""The deepest answer: a payload is inside a cron, in a list, in a page."""


class Question(NamedTuple, Generic[T]):
    """A request of the bridge, and the type of its answer."""

    method: str
    path: str
    answer: type[T]
    query: Mapping[str, str] | None = None
    body: dict[str, Any] | None = None


class Reply(NamedTuple):
    status: int
    text: bytes


# Questions ----------------------------------------------------------------------------------------


def ask_add(
    handler: str,
    schedule: GatewayTrigger | ScheduleData,
    *,
    name: str | None = None,
    payload: Mapping[str, Any] | None = None,
    enabled: bool = True,
    cron_id: str | None = None,
) -> Question[GatewayCron]:
    given = {"handler": handler, "schedule": _schedule(schedule), "enabled": enabled}
    more = {"name": name, "payload": None if payload is None else dict(payload), "id": cron_id}
    return Question("POST", "/cron", GatewayCron, body=given | _given(more))


def ask_get(cron_id: str) -> Question[GatewayCron]:
    return Question("GET", _cron(cron_id), GatewayCron)


def _cron(cron_id: str) -> str:
    # A name of only dots would lead to another path.
    if not cron_id or not cron_id.strip("."):
        raise InvalidOption("cron_id", f"{cron_id!r} is not the id of a cron")
    return f"/cron/{quote(cron_id, safe='')}"


def _schedule(schedule: GatewayTrigger | ScheduleData) -> dict[str, Any]:
    return write_schedule(read_schedule(schedule))


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def check_url(url: object) -> str:
    """The URL of a gateway without a trailing slash; refused if it is not valid."""
    hint = "write http://host:port"
    if not isinstance(url, str) or len(url) > MAX_URL or not url.isprintable() or " " in url:
        raise InvalidOption("url", "is not the address of a gateway", hint)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidOption("url", "is not the address of a gateway", hint) from None
    if parts.username is not None or parts.password is not None:
        raise InvalidOption("url", "must not contain a password", "give a reference in secret=")
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidOption("url", f"{url!r} is not the address of a gateway", hint)
    if parts.query or parts.fragment:
        raise InvalidOption("url", f"{url!r} must end after its path", hint)
    return url.rstrip("/")


def is_link_local(url: str) -> bool:
    """Whether the host is written as a link-local address; names are not looked up."""
    try:
        address = parse_url(url).address
    except AddressRefused as error:
        raise InvalidOption("url", str(error)) from None
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    return address is not None and address.is_link_local


# Sending ------------------------------------------------------------------------------------------


class _Bridge:
    """A gateway's address and secret, and the encoding of requests and answers."""

    def __init__(self, url: str, secret: str | None = None, *, timeout: float = TIMEOUT) -> None:
        """`url`: the gateway's address. `secret`: env:NAME or file:PATH of its bearer secret.

        `timeout`: seconds until GatewayUnavailable.
        """
        self.url = check_url(url)
        self._secret = None if secret is None else check_reference(secret)
        if isinstance(timeout, bool) or not 0 < timeout <= 600:
            raise InvalidOption("timeout", f"give seconds up to 600, not {timeout!r}")
        self._timeout = timeout
        self._http = _httpx2()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.url}>"

    def _settings(self) -> dict[str, Any]:
        # No proxy from the environment, and no redirects to another address.
        return {
            "timeout": self._timeout,
            "trust_env": False,
            "follow_redirects": False,
            "verify": _trusted() if self.url.lower().startswith("https:") else _unused(),
        }

    def _request(self, question: Question[Any]) -> dict[str, Any]:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if self._secret is not None:
            headers["Authorization"] = f"Bearer {self._token(self._secret)}"
        request: dict[str, Any] = {
            "method": question.method,
            "url": self.url + question.path,
            "params": question.query or {},
            "headers": headers,
        }
        if question.body is not None:
            headers["Content-Type"] = "application/json"
            request["content"] = msgspec.json.encode(question.body)
        return request

    def _token(self, reference: str) -> str:
        token = resolve(reference).decode("latin-1")
        # Check it here, because the HTTP library's error would reveal it.
        if not token.isascii() or not token.isprintable() or " " in token:
            raise GatewayUnavailable(self.url, f"the secret in {reference} cannot be sent")
        return token

    def _check_size(self, size: int) -> None:
        if size > MAX_ANSWER:
            raise GatewayUnavailable(self.url, f"its response is larger than {MAX_ANSWER:,} bytes")

    def _late(self) -> GatewayUnavailable:
        return GatewayUnavailable(self.url, f"no complete response within {self._timeout:g} s")

    def _read(self, question: Question[T], reply: Reply) -> T:
        if 200 <= reply.status < 300:
            if depth_of(reply.text, MAX_NESTED) > MAX_NESTED:
                raise GatewayUnavailable(self.url, "its response is nested too deeply")
            try:
                answer = msgspec.json.decode(reply.text, type=question.answer)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise self._nonsense(str(error)) from None
            believed: T = self._believed(answer)
            return believed
        if 400 <= reply.status < 500:
            raise _refusal(reply)
        raise GatewayUnavailable(self.url, f"it responded with status {reply.status}")

    def _believed(self, answer: Any) -> Any:
        """The answer without values that could not be shown or stored."""
        if isinstance(answer, CronPage):
            readable = (sensible(cron) for cron in answer.crons)
            return replace(answer, crons=tuple(cron for cron in readable if cron is not None))
        if isinstance(answer, GatewayCron):
            cron = sensible(answer)
            if cron is None:
                raise self._nonsense("the cron has no name or is too large")
            return cron
        if isinstance(answer, RunAnswer) and answer.reason is not None:
            return replace(answer, reason=printable(answer.reason))
        return answer

    def _nonsense(self, why: str) -> GatewayUnavailable:
        return GatewayUnavailable(self.url, f"its response is not valid: {printable(why)}")

    def _failed(self, error: Exception) -> GatewayUnavailable:
        if isinstance(error, self._http.TimeoutException):
            return GatewayUnavailable(self.url, f"no response within {self._timeout:g} s")
        return GatewayUnavailable(self.url, printable(str(error), 500) or type(error).__name__)


def _refusal(reply: Reply) -> GatewayRefused:
    try:
        error = msgspec.json.decode(reply.text, type=_Refusal).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return GatewayRefused(reply.status, "refused", f"it responded with status {reply.status}")
    field = None if error.field is None else printable(error.field, 100)
    hint = printable(error.hint or "")
    return GatewayRefused(
        reply.status, printable(error.code, 100), printable(error.message), field, hint
    )


class _Error(msgspec.Struct):
    code: str
    message: str
    field: str | None = None
    hint: str | None = None


class _Refusal(msgspec.Struct):
    error: _Error


# Loading all CA certificates takes longer than most gateways need to respond.


@lru_cache(maxsize=1)
def _trusted() -> ssl.SSLContext:
    return ssl.create_default_context()


@lru_cache(maxsize=1)
def _unused() -> ssl.SSLContext:
    """For a client that never uses TLS; it trusts no certificates."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _httpx2() -> Any:
    try:
        return importlib.import_module("httpx2")
    except ModuleNotFoundError as error:
        raise MissingExtra("http", "asking a gateway") from error


class _Deadline:
    """Closes a connection that is not done in time: the client's timeouts apply to each read."""

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self.extensions = {"trace": self._trace}
        self._stream: Any = None
        self._timer = threading.Timer(seconds, self._pass)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._stream = info["return_value"]
            if self.passed:
                self._cut_off()

    def _pass(self) -> None:
        self.passed = True
        self._cut_off()

    def _cut_off(self) -> None:
        # close() would not wake the reader, and there is no time for a TLS shutdown.
        if self._stream is not None:
            with contextlib.suppress(OSError):  # no longer connected
                socket.socket.shutdown(self._stream.get_extra_info("socket"), socket.SHUT_RDWR)


class BridgeClient(_Bridge):
    """Manages the crons of a gateway over its REST API.

    GatewayUnavailable if it does not respond, GatewayRefused if it refuses a request.
    """

    def __init__(self, url: str, secret: str | None = None, *, timeout: float = TIMEOUT) -> None:
        super().__init__(url, secret, timeout=timeout)
        # One connection per request, so that the deadline of one does not end another.
        alone = self._http.Limits(max_keepalive_connections=0)
        self._client = self._http.Client(**self._settings(), limits=alone)

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def cron_list(
        self, *, disabled: bool = False, limit: int = 100, after: str | None = None
    ) -> CronPage:
        """Crons, oldest first; `disabled` includes disabled ones."""
        query = {"disabled": str(bool(disabled)).lower(), "limit": str(check_limit(limit))}
        more = {} if after is None else {"after": after}
        return self.ask(Question("GET", "/cron", CronPage, query | more))

    def cron_add(
        self,
        handler: str,
        schedule: GatewayTrigger | ScheduleData,
        *,
        name: str | None = None,
        payload: Mapping[str, Any] | None = None,
        enabled: bool = True,
    ) -> GatewayCron:
        """Create a cron; its name defaults to that of its handler."""
        return self.ask(ask_add(handler, schedule, name=name, payload=payload, enabled=enabled))

    def cron_update(
        self,
        cron_id: str,
        *,
        handler: str | None = None,
        schedule: GatewayTrigger | ScheduleData | None = None,
        name: str | None = None,
        payload: Mapping[str, Any] | None = None,
        enabled: bool | None = None,
    ) -> GatewayCron:
        """Change the given fields."""
        changes = {
            "handler": handler,
            "schedule": None if schedule is None else _schedule(schedule),
            "name": name,
            "payload": None if payload is None else dict(payload),
            "enabled": enabled,
        }
        return self.ask(Question("PATCH", _cron(cron_id), GatewayCron, body=_given(changes)))

    def cron_run(self, cron_id: str, mode: str = "force") -> RunAnswer:
        """Run a cron now, or with mode="due" only if it is due; says whether it ran, or why not."""
        body = {"mode": str(check_mode(mode))}
        return self.ask(Question("POST", f"{_cron(cron_id)}/run", RunAnswer, body=body))

    def cron_remove(self, cron_id: str) -> RemoveAnswer:
        """Remove a cron; says whether there was one."""
        return self.ask(Question("DELETE", _cron(cron_id), RemoveAnswer))

    def ask(self, question: Question[T]) -> T:
        """Send a request and wait for its answer."""
        request = self._request(question)
        with _Deadline(self._timeout) as deadline:
            try:
                with self._client.stream(**request, extensions=deadline.extensions) as response:
                    text = b""
                    for chunk in response.iter_raw():
                        text += chunk
                        self._check_size(len(text))
                    reply = Reply(response.status_code, text)
            except (self._http.HTTPError, self._http.InvalidURL, UnicodeError) as error:
                raise (self._late() if deadline.passed else self._failed(error)) from error
            if deadline.passed:  # the response may be incomplete
                raise self._late()
        return self._read(question, reply)


class _Noting(BridgeClient):
    """Sends nothing: its verbs return their request."""

    def __init__(self) -> None: ...

    def ask(self, question: Question[T]) -> Any:
        return question


class AsyncBridgeClient(_Bridge):
    """The async version of `BridgeClient`."""

    def __init__(self, url: str, secret: str | None = None, *, timeout: float = TIMEOUT) -> None:
        super().__init__(url, secret, timeout=timeout)
        self._client = self._http.AsyncClient(**self._settings())

    async def close(self) -> None:
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    cron_list: Final = awaited(BridgeClient.cron_list)
    cron_add: Final = awaited(BridgeClient.cron_add)
    cron_update: Final = awaited(BridgeClient.cron_update)
    cron_run: Final = awaited(BridgeClient.cron_run)
    cron_remove: Final = awaited(BridgeClient.cron_remove)

    async def _do(self, work: Callable[[BridgeClient], T], reads: bool) -> T:
        question: Any = work(_Noting())
        answer: T = await self.ask(question)
        return answer

    async def ask(self, question: Question[T]) -> T:
        """Send a request and wait for its answer."""
        request = self._request(question)
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._client.stream(**request) as response,
            ):
                text = b""
                async for chunk in response.aiter_raw():
                    text += chunk
                    self._check_size(len(text))
                reply = Reply(response.status_code, text)
        except TimeoutError:
            raise self._late() from None
        except (self._http.HTTPError, self._http.InvalidURL, UnicodeError) as error:
            raise self._failed(error) from error
        return self._read(question, reply)
