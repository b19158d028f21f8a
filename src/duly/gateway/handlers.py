"""The handlers that a gateway calls when a cron runs, with their timeouts."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from duly.errors import InvalidFunction, InvalidOption
from duly.functions.checks import check_text
from duly.gateway.crons import CronRecord
from duly.nearest import did_you_mean

TIMEOUT = 60.0
MAX_TIMEOUT = 86_400.0


class Handler:
    """A function that a gateway's crons run, with their payload as keyword arguments."""

    def __init__(self, name: str, call: Callable[..., Any], timeout: float) -> None:
        check_text("handler", name)
        if not callable(call):
            raise InvalidFunction(f"handler {name!r}: {call!r} cannot be called")
        if isinstance(timeout, bool) or not 0 < timeout <= MAX_TIMEOUT:
            raise InvalidOption("timeout", f"give seconds up to {MAX_TIMEOUT:g}, not {timeout!r}")
        self.name = name
        self.call = call
        self.timeout = timeout

    def check(self, payload: Mapping[str, Any]) -> None:
        """Refuse a payload that does not match the function's parameters."""
        try:
            inspect.signature(self.call).bind(**payload)
        except TypeError as error:
            raise InvalidOption("payload", f"does not fit handler {self.name!r}: {error}") from None


class Handlers:
    """The handlers of a gateway, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        if handler.name in self._by_name:
            raise InvalidFunction(f"handler {handler.name!r} is defined twice; rename one of them")
        self._by_name[handler.name] = handler

    def find(self, name: str) -> Handler:
        found = self._by_name.get(name)
        if found is not None:
            return found
        known = ", ".join(sorted(self._by_name)) or "none"
        hint = did_you_mean(name, self._by_name) or f"the gateway's handlers are: {known}"
        raise InvalidOption("handler", f"there is no handler {name!r}", hint)


class Run:
    """One run of a cron, in its own thread."""

    def __init__(self, cron: CronRecord, handler: Handler, deadline: float) -> None:
        self.cron = cron
        self.deadline = deadline
        """On the monotonic clock."""
        self.reported = False
        self.is_late = False
        """It has timed out, but may still be running."""
        self.is_over = False
        self.unwritten: list[Callable[[], object]] = []
        """The writes to the store that are still to do after its end, in order."""
        self.writing = threading.Lock()
        self._handler = handler
        self._guard = threading.Lock()
        self._cancel: Callable[[], object] | None = None
        self._canceled = False

    @property
    def timeout(self) -> float:
        return self._handler.timeout

    def start(self, report: Callable[[Run, str | None], None]) -> threading.Thread:
        # A daemon thread, so that a body that never ends does not keep the process alive.
        name = f"duly-cron-{self.cron.name}"
        thread = threading.Thread(target=self._to_the_end, args=(report,), name=name, daemon=True)
        thread.start()
        return thread

    def report(self, write: Callable[[], object]) -> bool:
        """Queue the write of its outcome; False if the outcome was already reported."""
        with self._guard:
            if self.reported:
                return False
            self.reported = True
            self.unwritten.append(write)
            return True

    def cancel(self) -> None:
        """Cancel an async body; a sync one continues until it returns."""
        with self._guard:
            self._canceled = True
            if self._cancel is not None:
                self._cancel()

    def _to_the_end(self, report: Callable[[Run, str | None], None]) -> None:
        error: str | None = None
        try:
            self._call()
        except BaseException as failure:
            error = f"{type(failure).__name__}: {failure}"
        report(self, error)

    def _call(self) -> None:
        payload = msgspec.json.decode(self.cron.payload)
        answer = self._handler.call(**payload)
        if inspect.isawaitable(answer):
            asyncio.run(self._await(answer))

    async def _await(self, answer: Any) -> None:
        task = asyncio.ensure_future(answer)
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            # In a closed loop there is nothing left to cancel.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)

        with self._guard:
            self._cancel = cancel
            if self._canceled:
                task.cancel()
        await task
