"""Claims the due rows of an index and POSTs each of them once.

At most once: a row is advanced before it is sent, and a failed request is not repeated. Requests
have the format of `POST /api/v1/dispatch/{function}`.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from duly.clock import Clock, SystemClock
from duly.errors import InvalidOption, MissingExtra
from duly.index.rows import LIMIT, IndexRow, ScheduleIndex, require_limit
from duly.model.dispatch import DispatchMessage
from duly.model.keys import MAX_KEY

log = logging.getLogger(__name__)

HEADER = "Idempotency-Key"
"""Made of user, key and nominal time: requests with the same key are for the same fire."""

# The idempotency key ends with "/" and the time in milliseconds: at most 20 characters.
_LONGEST_NAME = MAX_KEY - 21

# The most bytes of a response that are read so that its connection can be reused.
_ANSWER = 64 * 1024


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One attempt to deliver one claimed row."""

    row: IndexRow
    """The row as it was claimed: `next_fire_at` is the nominal time of this fire."""
    status: int
    """The status of the HTTP response; 0 if there was none."""
    error: str | None = None
    """Why there was no response."""

    @property
    def delivered(self) -> bool:
        return 200 <= self.status < 300


Observer = Callable[[Dispatch], Awaitable[None] | None]


def whose(row: IndexRow) -> dict[str, Any]:
    """The default arguments of a fire: the user and key of its schedule."""
    return {"user_id": row.user_id, "key": row.key}


class _Page(NamedTuple):
    """Rows that were claimed together and are being sent."""

    client: Any
    places: asyncio.Semaphore
    reported: dict[IndexRow, Dispatch]


class TickHandler:
    """`await handler()` claims all due rows and POSTs them, several requests at a time.

    `url` is the dispatch route of a duly server, `…/api/v1/dispatch/{function}`, or of a service
    that accepts the same message. `input` returns the function's arguments for a row; without it
    they are `user_id` and `key`.

    `on_dispatch` is called once for every claimed row, whatever its outcome. If it raises, the
    error is logged and the other rows are not affected.
    """

    def __init__(
        self,
        index: ScheduleIndex,
        url: str | Callable[[IndexRow], str],
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        input: Callable[[IndexRow], Mapping[str, Any]] = whose,
        on_dispatch: Observer | Sequence[Observer] = (),
        timeout: float = 10.0,
        at_once: int = 10,
        limit: int = LIMIT,
        clock: Clock | None = None,
    ) -> None:
        if not timeout > 0:
            raise InvalidOption("timeout", f"give a positive number of seconds, not {timeout!r}")
        if at_once < 1:
            raise InvalidOption("at_once", f"give a positive number, not {at_once!r}")
        require_limit(limit)
        self._index = index
        self._url = url
        self._headers = {"Content-Type": "application/json", **headers}
        self._input = input
        self._observers = [on_dispatch] if callable(on_dispatch) else list(on_dispatch)
        self._timeout = timeout
        self._at_once = at_once
        self._limit = limit
        self._clock = clock or SystemClock()
        self._httpx = _httpx()

    async def __call__(self, now: int | None = None) -> list[Dispatch]:
        """Claim and send page by page, until no row is due at `now`."""
        now = self._clock.now() if now is None else now
        done: list[Dispatch] = []
        # The timeout covers the whole attempt; httpx's own timeouts apply to its phases.
        async with self._httpx.AsyncClient(timeout=None, headers=self._headers) as client:
            while rows := await self._index.claim_due(now, self._limit):
                done += await self._send_all(client, rows)
        return done

    async def _send_all(self, client: Any, rows: Sequence[IndexRow]) -> list[Dispatch]:
        page = _Page(client, asyncio.Semaphore(self._at_once), {})
        sending = [asyncio.ensure_future(self._send(page, row)) for row in rows]
        try:
            await asyncio.wait(sending)
        finally:
            for task in sending:
                task.cancel()
            await asyncio.wait(sending)
            # A task that was canceled before its first step could not report that itself.
            for row in rows:
                if row not in page.reported:
                    await self._tell(page, Dispatch(row, 0, "canceled before it was sent"))
        return [page.reported[row] for row in rows]

    async def _send(self, page: _Page, row: IndexRow) -> None:
        attempt = Dispatch(row, 0, "canceled before it was sent")
        try:
            async with page.places:
                attempt = Dispatch(row, 0, "canceled before there was a response")
                attempt = await self._post(page.client, row)
        finally:
            await self._tell(page, attempt)

    async def _post(self, client: Any, row: IndexRow) -> Dispatch:
        status = 0
        try:
            async with asyncio.timeout(self._timeout):
                url = self._url if isinstance(self._url, str) else self._url(row)
                content = msgspec.json.encode(message_of(row, self._input(row)))
                headers = {HEADER: idempotency_key(row)}
                async with client.stream("POST", url, content=content, headers=headers) as answer:
                    status = answer.status_code
                    await _read_some(answer)
        except TimeoutError:
            error = None if status else f"no response within {self._timeout:g} s"
            return Dispatch(row, status, error)
        except Exception as error:
            return Dispatch(row, status, None if status else _reason(error))
        return Dispatch(row, status)

    async def _tell(self, page: _Page, attempt: Dispatch) -> None:
        page.reported[attempt.row] = attempt
        if not attempt.delivered:
            row = attempt.row
            log.warning(
                "schedule %r of %r, due at %d, was not delivered and is dropped: %s",
                *(row.key, row.user_id, row.next_fire_at),
                attempt.error or f"status {attempt.status}",
            )
        for observe in self._observers:
            try:
                result = observe(attempt)
                if inspect.isawaitable(result):
                    await result
            except Exception:
                log.exception("on_dispatch failed")


def message_of(row: IndexRow, input: Mapping[str, Any]) -> DispatchMessage:
    return DispatchMessage(
        nominal_fire_time=row.next_fire_at, schedule=schedule_name(row), arguments=dict(input)
    )


def idempotency_key(row: IndexRow) -> str:
    """The schedule's name and the nominal time in milliseconds."""
    return f"{schedule_name(row)}/{row.next_fire_at}"


def schedule_name(row: IndexRow) -> str:
    """`user/key`, both quoted as in a URL; a digest if that is too long for a key."""
    name = f"{quote(row.user_id, safe='')}/{quote(row.key, safe='')}"
    if len(name) <= _LONGEST_NAME:
        return name
    return hashlib.sha256(name.encode()).hexdigest()


async def _read_some(answer: Any) -> None:
    size = 0
    async for part in answer.aiter_raw():
        size += len(part)
        if size > _ANSWER:
            return


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _httpx() -> Any:
    try:
        return import_module("httpx2")
    except ImportError:
        raise MissingExtra("http", "the tick of a schedule index") from None
