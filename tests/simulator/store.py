"""The real store, on connections that can fail and a lock that no caller waits for."""

from __future__ import annotations

import inspect
import sqlite3
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from duly.errors import StoreError
from duly.model.job import Claim, Settlement
from duly.runtime import outbox
from duly.store.base import ClaimRequest
from duly.store.sqlite import SqliteSession, SqliteStore
from duly.store.table import Store
from tests.simulator.faults import SimConnection, SimulatedCrash
from tests.simulator.log import Violation

if TYPE_CHECKING:
    from tests.simulator.process import Process

T = TypeVar("T")


class SimTurnstile:
    """The lock between all writers; no caller waits here, so a lock that is held was forgotten."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.world = process.world
        self.holder: object = None

    def __enter__(self) -> None:
        self.enter(self)

    def __exit__(self, *exception: object) -> None:
        self.leave(self)

    def enter(self, holder: object) -> None:
        if not self.process.store.is_writing:
            self.world.interleave(self.process)
        if self.world.writer is not None:
            raise Violation("locks are released", f"{self.world.writer.name} keeps the lock")
        self.world.writer = self.process
        self.holder = holder

    def begun(self) -> None:
        """Measures nothing."""

    def leave(self, holder: object) -> None:
        if self.holder is not holder:
            return
        self.holder = None
        if self.world.writer is not self.process and not self.process.faults.dead:
            raise Violation("locks are released", f"{self.process.name} has no lock to release")
        if self.world.writer is self.process:
            self.world.writer = None

    def close(self) -> None:
        """Nothing to close."""


VERBS = {
    method.__wrapped__: name
    for name, method in vars(Store).items()
    if hasattr(method, "__wrapped__")
}


def booked(
    work: Callable[[SqliteSession], T], verb: FrameType, inputs: object
) -> Callable[[SqliteSession], T]:
    """The same, between two marks in the book that say which verb of the store it is."""
    given, name = verb.f_locals, verb.f_code.co_name
    if name == "method":
        # A line of the table: what it was called with, as the verb has it.
        called = inspect.signature(given["verb"]).bind(None, *given["args"], **given["kwargs"])
        name, given = VERBS[given["verb"]], called.arguments
    about: dict[str, Any] = {
        each: given[each] for each in ("now", "action", "slots") if each in given
    }
    if name == "run_schedule":
        about["inputs"] = inputs
    mark = msgspec.json.encode({"verb": name, **about}).decode()

    def marked(session: SqliteSession) -> T:
        # Past all faults: this is not part of what is simulated.
        cursor = sqlite3.Cursor(session.raw)
        cursor.execute("INSERT INTO sim_book (op, row) VALUES ('begin', ?)", (mark,))
        answer = work(session)
        if session.raw.in_transaction:
            cursor.execute("INSERT INTO sim_book (op) VALUES ('done')")
        return answer

    return marked


class SimStore(SqliteStore):
    """The real store over connections that can fail."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.world.path, synchronous="OFF")
        self.process = process
        self.opened: list[SimConnection] = []
        self.is_writing = False
        self.finishes_with_claim = process.world.settings.finishes_with_claim
        self._turnstile = SimTurnstile(process)  # type: ignore[assignment]

    def connect(self) -> SimConnection:
        if self.process.faults.dead:
            raise SimulatedCrash
        spare = self.process.world.spare
        raw = spare.pop() if spare else self._connect_anew()
        raw.faults = self.process.faults
        self.opened.append(raw)
        return raw

    def _connect_anew(self) -> SimConnection:
        raw = sqlite3.connect(
            self.path,
            timeout=0,
            isolation_level=None,
            cached_statements=256,
            factory=SimConnection,
        )
        raw.held_in = set()  # it goes from one process to the next
        sqlite3.Cursor(raw).execute("PRAGMA synchronous = OFF")
        sqlite3.Cursor(raw).execute("PRAGMA foreign_keys = ON")
        return raw

    def exchange(
        self, settlements: Sequence[Settlement], request: ClaimRequest | None, now: int
    ) -> tuple[set[str], Sequence[Claim]]:
        ledger = self.process.world.ledger
        before = ledger.sync()
        try:
            settled, claims = super().exchange(settlements, request, now)
        except StoreError as error:
            if request is None and not isinstance(error, outbox.OUTAGE):
                raise Violation("every end can be stored", str(error)) from error
            raise
        ledger.sync()
        for job_id in settled:
            ledger.settled(job_id, {s.token for s in settlements if s.id == job_id}, before)
        return settled, claims

    def deregister(self, worker_id: str, now: int) -> None:
        self.process.world.ledger.may_leave.add(worker_id)
        super().deregister(worker_id, now)

    def read(self, ask: Callable[[SqliteSession], T]) -> T:
        self.process.world.interleave(self.process)
        return super().read(ask)

    def write(self, work: Callable[[SqliteSession], T]) -> T:
        if self.process.world.almanac is not None:
            work = booked(work, sys._getframe(1), self.process.inputs)
        self.process.world.interleave(self.process)
        self.is_writing = True
        try:
            return super().write(work)
        finally:
            self.is_writing = False
