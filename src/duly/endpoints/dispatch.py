"""Receives dispatch requests: an external schedule calls a function here, once per fire.

A call is identified by its idempotency key, or by its schedule and nominal time. Both are stored
in the same transaction as the job, so a repeated call finds the first call's job, even after a
restart or when many arrive at the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from duly.endpoints.secrets import check_reference, is_same, resolve
from duly.errors import BadInput, InvalidOption, SecretMissing, StoreError, UnknownFunction
from duly.functions.function import Call, Function
from duly.functions.new_job import new_jobs
from duly.functions.times import at, length_ms
from duly.model.dispatch import DispatchMessage
from duly.model.function import Status, is_reserved
from duly.model.job import KeyedJob, KeyEntry, Trigger
from duly.model.keys import IDEMPOTENCY, check_key
from duly.runtime.transaction_guard import refuse_inside_mutation

if TYPE_CHECKING:
    from duly.core import Core

log = logging.getLogger(__name__)

MAX_BODY = 9 << 20
"""8 MiB of arguments, plus the rest of the message."""
REMEMBERED_MS = 30 * 86_400_000
"""How long a call is remembered; calls with an older nominal time are refused."""


class DispatchAnswer(msgspec.Struct, frozen=True):
    """The response to a caller: an HTTP status and a JSON body."""

    status: int
    body: dict[str, Any]


class _Refused(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        self.answer = _error(status, code, message)
        super().__init__(message)


class Receiver:
    """`app.dispatch`: lets external schedules call functions of this app."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._secrets: tuple[str, ...] = ()

    @property
    def secrets(self) -> tuple[str, ...]:
        """References to the secrets, env:NAME or file:PATH; each of them authenticates callers.

        Use two of them to rotate a secret. Without any, all calls are refused.
        """
        return self._secrets

    @secrets.setter
    def secrets(self, references: Iterable[str]) -> None:
        if isinstance(references, str):
            raise InvalidOption("secrets", "give a list of references, not one string")
        self._secrets = tuple(check_reference(text, "secrets") for text in references)

    def receive(self, function: str, headers: Mapping[str, str], body: bytes) -> DispatchAnswer:
        """Receive one call: 202 with a job, 200 with the first call's job, or an error.

        Without a valid secret the response reveals nothing about functions or earlier calls.
        """
        refuse_inside_mutation("dispatch.receive")
        given = {name.lower(): value for name, value in headers.items()}
        try:
            self._let_in(given.get("authorization", ""))
            return self._take(function, given, body)
        except _Refused as refusal:
            return refusal.answer
        except BadInput as error:
            return _error(400, "bad_input", str(error), getattr(error, "field", None) or None)
        except StoreError as error:
            log.warning("dispatch of %s: %s", function, error)
            return _error(503, "store_unavailable", "the store is unavailable; try again")

    def check(self, headers: Mapping[str, str]) -> DispatchAnswer | None:
        """The refusal of a caller, before its body is read; None if it may call."""
        given = {name.lower(): value for name, value in headers.items()}
        try:
            self._let_in(given.get("authorization", ""))
        except _Refused as refusal:
            return refusal.answer
        return None

    # Authentication

    def _let_in(self, authorization: str) -> None:
        secrets = list(self._resolved())
        if not secrets:
            raise _Refused(503, "not_configured", "no secret is configured for dispatch")
        scheme, _, token = authorization.partition(" ")
        shown = token.strip().encode("utf-8", "surrogateescape")
        # Compare all of them, so that the time does not reveal which one matches.
        matches = [is_same(secret, shown) for secret in secrets]
        if scheme.lower() != "bearer" or not any(matches):
            raise _Refused(401, "unauthorized", "a valid bearer secret is required")

    def _resolved(self) -> Iterable[bytes]:
        for reference in self._secrets:
            try:
                yield resolve(reference)
            except SecretMissing as error:
                log.error("dispatch: %s", error)

    # Calls

    def _take(self, name: str, headers: Mapping[str, str], body: bytes) -> DispatchAnswer:
        if len(body) > MAX_BODY:
            raise _Refused(413, "too_large", f"the body is larger than {MAX_BODY:,} bytes")
        function = self._function(name)
        message = _message(body)
        now = self._core.now()
        nominal = _nominal(message, headers, now)
        keys = _keys(function.name, message, headers, nominal, now)
        call = self._core.functions.admitted(
            Call(function, function.signature.encode((), message.arguments))
        )
        first, *hooks = new_jobs(call, nominal, now, None, self._core.settings.idempotency_ms)
        options = call.function.options
        window = 0 if options.debounce is None else length_ms("debounce", options.debounce)
        fields: dict[str, Any] = msgspec.structs.asdict(first)
        fields |= {"run_at": now + window, "trigger": Trigger.API, "actor": "dispatch"}
        fields["entries"] = (*keys, *fields.get("entries", ()))
        job = KeyedJob(**fields)
        may_merge = options.unique is not None or options.debounce is not None
        # Look first: after a merge, the keys of the merged call lead to the other call's job, too.
        known = not may_merge or any(self._core.ready().is_kept(key, now) for key in keys)
        holder = self._core.insert([job, *hooks]).get(job.id)
        if holder is not None and known:
            return DispatchAnswer(200, {"jobId": holder, "duplicate": True})
        return DispatchAnswer(202, {"jobId": holder or job.id, "duplicate": False})

    def _function(self, name: str) -> Function[..., Any]:
        unknown = _Refused(404, "not_found", "there is no such function")
        if is_reserved(name):
            raise unknown
        try:
            function = self._core.functions.function(name)
        except UnknownFunction:
            raise unknown from None
        info = self._core.ready().function(name)
        if function.internal or (info is not None and info.internal):
            raise unknown
        self._core.functions.refresh()
        status = self._core.functions.status_of(function.name)
        if status == Status.DELETED:
            raise _Refused(410, "deleted", "the function was deleted")
        if status == Status.DEPRECATED:
            raise _Refused(409, "deprecated", "the function is deprecated and accepts no new calls")
        return function


def _message(body: bytes) -> DispatchMessage:
    try:
        return msgspec.json.decode(body, type=DispatchMessage)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _Refused(400, "bad_input", f"invalid body: {error}") from None


def _nominal(message: DispatchMessage, headers: Mapping[str, str], now: int) -> int:
    given = message.nominal_fire_time
    if given is None:
        given = headers.get("duly-nominal-fire-time")
    if given is None:
        raise InvalidOption("nominalFireTime", "is missing")
    if isinstance(given, str):
        try:
            when = datetime.fromisoformat(given)
        except ValueError:
            reason = "give milliseconds since 1970 UTC, or ISO 8601 with a zone"
            raise InvalidOption("nominalFireTime", reason) from None
        nominal = at(when, now)
    else:
        nominal = at(given, now)
    if nominal <= now - REMEMBERED_MS:
        raise InvalidOption("nominalFireTime", "is more than 30 days in the past")
    return nominal


def _keys(
    function: str, message: DispatchMessage, headers: Mapping[str, str], nominal: int, now: int
) -> list[KeyEntry]:
    """The keys that identify this call; duly's own contain a line break, which no name has."""
    key = message.idempotency_key or headers.get("idempotency-key")
    schedule = message.schedule or headers.get("duly-schedule")
    until = max(now, nominal) + REMEMBERED_MS
    entries: list[KeyEntry] = []
    if key is not None:
        check_key("idempotencyKey", key)
        entries.append(KeyEntry(IDEMPOTENCY, f"{function}\ndispatch:{key}", until))
    if schedule is not None:
        check_key("schedule", schedule)
        entries.append(KeyEntry(IDEMPOTENCY, f"{function}\nslot:{schedule}\n{nominal}", until))
    if not entries:
        raise InvalidOption("idempotencyKey", "is missing", "give it or a schedule")
    return entries


def _error(status: int, code: str, message: str, field: str | None = None) -> DispatchAnswer:
    error = {"code": code, "message": message, "field": field, "hint": None}
    return DispatchAnswer(status, {"error": error})
