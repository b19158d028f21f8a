"""`Gateway`: a runtime that stores and runs its own crons, with an API to manage them.

A cron never runs twice at the same time. A cron that came due while the gateway was down runs
once, late; a cron that was running when the gateway ended is recorded as interrupted and not run
again.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from duly.clock import Clock, SystemClock, os_monotonic
from duly.endpoints.secrets import check_reference
from duly.errors import BadInput, CronExists, CronNotFound, InvalidOption, StoreError
from duly.functions.checks import check_text
from duly.gateway.crons import (
    MAX_CRONS,
    CronChanges,
    CronPage,
    CronRecord,
    GatewayCron,
    Mode,
    NewCron,
    NotRun,
    RemoveAnswer,
    RunAnswer,
    ScheduleData,
    as_seen,
    changed,
    check_limit,
    check_mode,
    finished,
    interrupted,
    may_run,
    new_cron,
    read_schedule,
    started,
    write_schedule,
)
from duly.gateway.handlers import TIMEOUT, Handler, Handlers, Run
from duly.gateway.store import CronStore, NameTaken
from duly.ids import is_id, new_id
from duly.model.trigger import GatewayTrigger
from duly.runtime.loop import AFTER_ERROR, Loop
from duly.store.connect import sqlite_path

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

AT_ONCE = 32
"""The most due crons that run at once; others wait. Runs that are requested never wait."""
MAX_RUNS = 4 * AT_ONCE
"""The same including runs that have timed out but do not end; beyond it, no due cron starts."""
LONGEST_DELAY = 60.0
DRAIN = 10.0


class Gateway:
    """A runtime with its own handlers and crons; run it with `duly gateways serve module:gateway`.

    Its verbs have the same names and results as those of `BridgeClient`.
    """

    def __init__(
        self,
        database: str | Path,
        handlers: Mapping[str, Callable[..., Any]] | None = None,
        *,
        secret: str | None = None,
        clock: Clock | None = None,
        name: str = "gateway",
    ) -> None:
        """Create the gateway.

        `database`: a file, sqlite:///file.db or sqlite:///:memory:; a relative path is relative to
        the working directory. `handlers`: functions by name, in addition to those that
        `@gateway.handler` adds. `secret`: env:NAME or file:PATH of the bearer secret that callers
        must send; without one, only requests from the same machine are accepted.
        """
        check_text("name", name)
        self.name = name
        self.secret = None if secret is None else check_reference(secret)
        self.clock: Clock = clock or SystemClock()
        self._store = CronStore(_path(database))
        self._handlers = Handlers()
        self._declared: list[NewCron] = []
        self._runs: dict[str, Run] = {}
        self._threads: list[threading.Thread] = []
        self._guard = threading.RLock()
        self._loop: Loop | None = None
        for handler_name, call in (handlers or {}).items():
            self._handlers.add(Handler(handler_name, call, TIMEOUT))

    def __repr__(self) -> str:
        return f"<gateway {self.name!r} on {self._store}>"

    # Code

    def handler(self, name: str | None = None, *, timeout: float = TIMEOUT) -> Callable[[F], F]:
        """Register a function for crons, sync or async; the payload is its keyword arguments.

        A run that takes longer than `timeout` seconds is an error. An async function is canceled
        then; a sync one continues, and its cron does not run again until it has ended.
        """

        def register(call: F) -> F:
            self._handlers.add(Handler(name or call.__name__, call, timeout))
            return call

        return register

    def declare(
        self,
        handler: str,
        schedule: GatewayTrigger | ScheduleData,
        *,
        name: str | None = None,
        payload: Mapping[str, Any] | None = None,
        enabled: bool = True,
    ) -> None:
        """Declare a cron in code: it is created at the start, unless its name is taken.

        An existing cron is left as it is.
        """
        given = _new(handler, schedule, name, payload, enabled)
        # Report errors in it before the gateway starts.
        new_cron(new_id(0), given, 0)
        self._declared.append(given)

    # Running

    def open(self) -> Self:
        """Open the store; runs that the last process did not finish are recorded as interrupted."""
        with self._guard:
            if self._store.open():
                _OPENED[self] = os.getpid()
                self._clear_stale_runs()
                for given in self._declared:
                    self._make(given)
        return self

    def start(self) -> Self:
        """Open the store, and run due crons in the background until `stop`."""
        with self._guard:
            self.open()
            if self._loop is None:
                self._loop = Loop(f"gateway-{self.name}", self.one_pass, self.clock)
                self._loop.start()
        return self

    def stop(self, drain: float = DRAIN) -> None:
        """Start no more runs, wait up to `drain` seconds for current ones, and close the store."""
        with self._guard:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.stop()
            loop.join()
        give_up_at = os_monotonic() + drain
        for thread in self._alive():
            thread.join(max(0.0, give_up_at - os_monotonic()))
        self._write_ends()
        self._store.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def one_pass(self) -> float:
        """Start due crons and time out late runs; returns the seconds until the next pass."""
        self._end_late_runs()
        self._write_ends()
        now = self.clock.now()
        free = self._free()
        for cron in self._store.due(now, free) if free else []:
            self._start_safely(cron, now)
        return self._delay(now)

    @property
    def is_stuck(self) -> bool:
        """Whether runs that have timed out but do not end leave no room for others."""
        return self._late() >= MAX_RUNS

    def _late(self) -> int:
        return sum(run.is_late for run in list(self._runs.values()))

    def _free(self) -> int:
        """How many due crons may start now; runs that have timed out do not take up a place."""
        runs = len(self._runs)
        return max(0, min(AT_ONCE - (runs - self._late()), MAX_RUNS - runs))

    def _delay(self, now: int) -> float:
        waits = [LONGEST_DELAY]
        due_at = self._store.next_due()
        if due_at is not None and self._free():
            waits.append((due_at - now) / 1000)
        monotonic = self.clock.monotonic()
        runs = list(self._runs.values())
        waits += [run.deadline - monotonic for run in runs if not run.reported]
        waits += [AFTER_ERROR for run in runs if run.unwritten]
        return max(0.0, min(waits))

    def _clear_stale_runs(self) -> None:
        for stale in self._store.running():
            if stale.id in self._runs:
                continue  # it has outlived a stop() of this object
            log.warning("cron %r was running when the gateway ended", stale.name)
            self._store.edit(stale.id, lambda cron: interrupted(cron, self.clock.now()))

    # Runs

    def _start_safely(self, cron: CronRecord, now: int) -> None:
        try:
            self._start(cron.id, Mode.DUE, now)
        except BadInput as error:
            # A cron that can never run must not be tried over and over.
            log.error("cron %r cannot run: %s", cron.name, error)
            text = f"{type(error).__name__}: {error}"
            self._store.edit(cron.id, lambda found: _unrunnable(found, text, now))

    def _start(self, cron_id: str, mode: Mode, now: int) -> NotRun | None:
        """Mark the cron as running and run it, or return the reason why it may not run."""
        refused: list[NotRun] = []

        def mark(cron: CronRecord) -> CronRecord | None:
            reason = may_run(cron, mode, now)
            if reason is not None:
                refused.append(reason)
                return None
            self._handlers.find(cron.handler)
            return started(cron, now)

        cron = self._store.edit(cron_id, mark)
        if cron is None:
            raise CronNotFound(cron_id)
        if refused:
            return refused[0]
        handler = self._handlers.find(cron.handler)
        run = Run(cron, handler, self.clock.monotonic() + handler.timeout)
        self._runs[cron_id] = run
        try:
            self._threads = [*self._alive(), run.start(self._ended)]
        except RuntimeError as error:  # the machine has no thread left
            self._ended(run, f"RuntimeError: {error}")
        return None

    def _ended(self, run: Run, error: str | None) -> None:
        """Called in a run's thread when its body has returned or raised."""
        self._report(run, error)
        run.unwritten.append(lambda: self._store.rest(run.cron.id, run.cron.running_at))
        run.is_over = True
        self._write_end(run)
        self._wake()

    def _end_late_runs(self) -> None:
        monotonic = self.clock.monotonic()
        for run in list(self._runs.values()):
            if run.deadline <= monotonic and self._report(
                run, f"TimeoutError: took longer than {run.timeout:g} s"
            ):
                run.is_late = True
                # Cancel first: writing to the store may have to wait.
                run.cancel()
                self._write_end(run)
                if self.is_stuck:
                    log.error(
                        "%d runs have timed out but do not end: due crons do not start until one "
                        "of them ends or the gateway is restarted",
                        MAX_RUNS,
                    )

    def _report(self, run: Run, error: str | None) -> bool:
        """Report the outcome of a run, unless it was already reported."""
        now = self.clock.now()

        def write() -> None:
            self._store.edit(run.cron.id, lambda cron: finished(cron, run.cron, error, now))

        first = run.report(write)
        if first and error is not None:
            log.warning("cron %r failed: %s", run.cron.name, error)
        return first

    def _write_end(self, run: Run) -> None:
        """Write the outcome of a run to the store; what fails now is retried in a later pass."""
        with run.writing:
            try:
                while run.unwritten:
                    run.unwritten[0]()
                    del run.unwritten[0]
            except StoreError as error:
                log.warning("the outcome of cron %r is not recorded yet: %s", run.cron.name, error)
                return
            if run.is_over and self._runs.get(run.cron.id) is run:
                del self._runs[run.cron.id]

    def _write_ends(self) -> None:
        for run in list(self._runs.values()):
            if run.unwritten:
                self._write_end(run)

    def _alive(self) -> list[threading.Thread]:
        return [thread for thread in self._threads if thread.is_alive()]

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None:
            loop.wake()

    # The verbs of the bridge

    def cron_list(
        self, *, disabled: bool = False, limit: int = 100, after: str | None = None
    ) -> CronPage:
        """Crons, oldest first; `disabled` includes disabled ones."""
        check_limit(limit)
        if after is not None and not is_id(after):
            raise InvalidOption("after", f"must be the id of a cron, not {after!r}")
        found = self._store.page(disabled, after, limit + 1)
        page = tuple(as_seen(record) for record in found[:limit])
        return CronPage(page, page[-1].id if len(found) > limit else None)

    def cron_get(self, cron_id: str) -> GatewayCron:
        """The current state of a cron; CronNotFound if there is none."""
        found = self._store.get(cron_id)
        if found is None:
            raise CronNotFound(cron_id)
        return as_seen(found)

    def cron_add(
        self,
        handler: str,
        schedule: GatewayTrigger | ScheduleData,
        *,
        name: str | None = None,
        payload: Mapping[str, Any] | None = None,
        enabled: bool = True,
    ) -> GatewayCron:
        """Create a cron; its name defaults to that of its handler. Names are unique."""
        return self.add(_new(handler, schedule, name, payload, enabled))

    def add(self, given: NewCron) -> GatewayCron:
        """The same for a request over the bridge."""
        # Look it up first: a field that was valid then, such as a time, may not be valid now.
        record = self._known(given.id) or self._make(given) or self._known(given.id)
        if record is None:
            raise CronExists(given.name or given.handler)
        self._wake()
        return as_seen(record)

    def _known(self, cron_id: str | None) -> CronRecord | None:
        return None if cron_id is None else self._store.get(cron_id)

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
        """Change the given fields.

        A new schedule, and enabling or disabling, takes effect from now; other changes leave the
        next run as it is.
        """
        return self.change(cron_id, _changes(handler, schedule, name, payload, enabled))

    def change(self, cron_id: str, changes: CronChanges) -> GatewayCron:
        """The same for a request over the bridge."""

        def edit(cron: CronRecord) -> CronRecord:
            after = changed(cron, changes, self.clock.now())
            if changes.handler is not UNSET or changes.payload is not UNSET:
                self._check_call(after)
            return after

        try:
            after = self._store.edit(cron_id, edit)
        except NameTaken:
            raise CronExists(str(changes.name)) from None
        if after is None:
            raise CronNotFound(cron_id)
        self._wake()
        return as_seen(after)

    def cron_run(self, cron_id: str, mode: str = "force") -> RunAnswer:
        """Start a run of a cron without waiting for its end; says whether it started, or why not.

        `mode`: "force" runs it unless it is already running, "due" only if it is due.
        """
        reason = self._start(cron_id, check_mode(mode), self.clock.now())
        self._wake()
        return RunAnswer(reason is None, None if reason is None else str(reason))

    def cron_remove(self, cron_id: str) -> RemoveAnswer:
        """Remove a cron; says whether there was one. A current run continues."""
        return RemoveAnswer(self._store.remove(cron_id))

    def _make(self, given: NewCron) -> CronRecord | None:
        """Store a new cron; None if its name is taken."""
        now = self.clock.now()
        if given.id is not None and not is_id(given.id):
            raise InvalidOption("id", f"{given.id!r} is not a UUID", "leave it out")
        record = new_cron(given.id or new_id(now), given, now)
        self._check_call(record)
        stored = self._store.add(record, MAX_CRONS)
        if stored is None:
            raise InvalidOption("crons", f"a gateway may have at most {MAX_CRONS:,}", "remove some")
        return record if stored else None

    def _check_call(self, cron: CronRecord) -> None:
        self._handlers.find(cron.handler).check(msgspec.json.decode(cron.payload))

    # HTTP

    def asgi(self) -> Any:
        """The REST API as an ASGI application that starts and stops the gateway."""
        from duly.gateway.server import make_app

        return make_app(self)


_OPENED: weakref.WeakKeyDictionary[Gateway, int] = weakref.WeakKeyDictionary()
"""The open gateways, and the process that opened them."""


def _at_exit() -> None:
    for gateway, opened_in in list(_OPENED.items()):
        if opened_in == os.getpid():
            gateway.stop(drain=0)


atexit.register(_at_exit)


def _new(
    handler: str,
    schedule: GatewayTrigger | ScheduleData,
    name: str | None,
    payload: Mapping[str, Any] | None,
    enabled: bool,
) -> NewCron:
    return NewCron(
        handler=handler,
        schedule=write_schedule(read_schedule(schedule)),
        name=name,
        payload=dict(payload or {}),
        enabled=enabled,
    )


def _changes(
    handler: str | None,
    schedule: GatewayTrigger | ScheduleData | None,
    name: str | None,
    payload: Mapping[str, Any] | None,
    enabled: bool | None,
) -> CronChanges:
    return CronChanges(
        handler=UNSET if handler is None else handler,
        schedule=UNSET if schedule is None else write_schedule(read_schedule(schedule)),
        name=UNSET if name is None else name,
        payload=UNSET if payload is None else dict(payload),
        enabled=UNSET if enabled is None else enabled,
    )


def _unrunnable(cron: CronRecord, error: str, now: int) -> CronRecord:
    try:
        return finished(cron, replace(cron, running_at=now), error, now)
    except BadInput:  # even its schedule cannot be read here
        return replace(cron, next_at=None, last_status="error", last_error=error)


def _path(database: str | Path) -> Path | None:
    if isinstance(database, str) and database.startswith("sqlite:"):
        return sqlite_path(database)
    return Path(database).absolute()
