"""What the app, the contexts and the jobs stand on: functions, a store, a clock.

Nothing here is public; users meet it through `Duly`, `Tx`, `Ctx` and `Job`.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from duly.clock import Clock
from duly.context import Bound
from duly.errors import FunctionConflict, UnknownFunction
from duly.functions import Call, Function
from duly.inside import refuse_inside_mutation
from duly.model.job import JobFilter, JobRecord, NewJob
from duly.runtime.service import Service
from duly.runtime.worker import POLL_SECONDS
from duly.store.base import Store

F = TypeVar("F", bound=Function[..., Any])
R = TypeVar("R")


class Core:
    """One application as its own parts see it."""

    def __init__(
        self, name: str, clock: Clock, store: Store, imports: Sequence[str], auto_migrate: bool
    ) -> None:
        self.name = name
        self.clock = clock
        self.store = store
        self.functions: dict[str, Function[..., Any]] = {}
        self.service: Service | None = None
        self._imports = tuple(imports)
        self._auto_migrate = auto_migrate
        self._lock = threading.RLock()
        self._ready_in: int | None = None

    # Functions

    def register(self, function: F) -> F:
        known = self.functions.get(function.name)
        if known is not None and not function.is_redefinition_of(known):
            raise FunctionConflict(function.name, known.source(), function.source())
        self.functions[function.name] = function
        return function

    def function(self, name: str) -> Function[..., Any]:
        if name not in self.functions:
            raise UnknownFunction(name, self.functions)
        return self.functions[name]

    def admit(self, call: Call[R]) -> Call[R]:
        """The call as it may be enqueued; a function of another app is refused."""
        known = self.functions.get(call.function.name)
        if known is None or known.signature is not call.function.signature:
            raise UnknownFunction(call.function.name, self.functions)
        return call

    def runnables(self) -> Mapping[str, Bound]:
        """Every function as the worker calls it; modules imported, type hints resolved."""
        for module in self._imports:
            importlib.import_module(module)
        for function in self.functions.values():
            function.signature.resolve()
        return {name: Bound(self, function) for name, function in self.functions.items()}

    def result_decoder(self, record: JobRecord) -> Callable[[str | None], Any]:
        """How a stored result is read: by the function's annotation, if it is known here."""
        function = self.functions.get(record.function)
        return function.signature.decode_result if function else _plain_json

    # Store

    def migrate(self) -> list[str]:
        with self._lock:
            self._ready_in = None
            return list(self.store.migrate(self.clock.now()))

    def ready(self) -> Store:
        """The store, connected and checked."""
        if self._ready_in != os.getpid():
            with self._lock:
                if self._auto_migrate:
                    self.store.migrate(self.clock.now())
                self.store.open(self.clock.now())
                self._ready_in = os.getpid()
        return self.store

    def is_fresh(self) -> bool:
        """Whether a call can be checked without asking the store."""
        return self._ready_in == os.getpid()

    def refresh(self) -> None:
        """Ask the store for whatever checking a call needs."""
        self.ready()

    def now(self) -> int:
        """The time, asked after connecting: a database server's clock is better than ours."""
        self.ready()
        return self.clock.now()

    def close(self) -> None:
        self.store.close()
        self._ready_in = None

    def insert(self, jobs: Sequence[NewJob]) -> None:
        """Store jobs in a transaction of their own."""
        refuse_inside_mutation("run")
        self.ready().enqueue(jobs)
        self._wake_for(jobs)

    def insert_children(self, parent: tuple[str, int], jobs: Sequence[NewJob]) -> bool:
        """Store jobs of a running action; False if it was canceled, and so are they."""
        refuse_inside_mutation("run")
        alive = self.ready().enqueue_child(parent, jobs, f"parent:{parent[0]}", self.clock.now())
        self._wake_for(jobs)
        return alive

    def get(self, job_id: str) -> JobRecord | None:
        """The job as it is committed."""
        return self.ready().get(job_id)

    def find(self, filter: JobFilter) -> Sequence[JobRecord]:
        """Jobs as they are committed."""
        return self.ready().find(filter)

    def cancel(self, job_id: str, by: str) -> bool | None:
        """Cancel in somebody's name; None if there is no such job."""
        refuse_inside_mutation("cancel")
        return self.ready().cancel(job_id, by, self.now())

    # Waking

    def wake(self) -> None:
        """There may be something to do: tell the workers here and elsewhere."""
        if self.service is not None:
            self.service.worker.loop.wake()
        self.store.ring()

    def _wake_for(self, jobs: Iterable[NewJob]) -> None:
        # Whoever sleeps looks again after a poll; only what is due earlier has to wake it.
        before = self.clock.now() + POLL_SECONDS * 1000
        if any(job.run_at < before for job in jobs):
            self.wake()


def _plain_json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
