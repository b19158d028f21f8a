"""The core that all parts of an app share: settings, functions, store, clock, threads, wake-ups.

Nothing here is public; users meet it through `Duly`, `Tx`, `Ctx` and `Job`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from duly.clock import Clock, os_monotonic
from duly.errors import InvalidOption, StoreError, StoreUnavailable
from duly.functions.build import build_of
from duly.functions.function import Function
from duly.functions.known_functions import KnownFunctions
from duly.functions.new_job import IDEMPOTENCY_MS
from duly.functions.redaction import Redaction
from duly.model.attempt import Hooks
from duly.model.audit import NewAuditEntry
from duly.model.endpoint import Dispatch
from duly.model.job import JobFilter, JobRecord, NewJob, newest_first
from duly.model.schedule import FLOOR_MS, ScheduleRecord
from duly.model.workflow import NewEvent, SentEvent
from duly.runtime.counts import FLUSH_SECONDS, Counts
from duly.runtime.demand import POLL_SECONDS
from duly.runtime.feed import Feed
from duly.runtime.hooks import HookCalls
from duly.runtime.janitor import RetentionOptions
from duly.runtime.lifespan import Lifespan
from duly.runtime.outbound import Client
from duly.runtime.records import Records
from duly.runtime.service import Service
from duly.runtime.signals import SIGNAL_SECONDS
from duly.runtime.threads import Outcome, Threads, outcomes_of
from duly.runtime.transaction_guard import refuse_inside_mutation
from duly.runtime.watch import Watchers
from duly.store.table import Store


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `Duly(...)`, apart from its database and its clock."""

    name: str
    imports: tuple[str, ...] = ()
    """Modules that define functions and declare schedules."""
    auto_migrate: bool = False
    apply: str = "start"
    """When declared schedules are applied to the store: "start" or "manual"."""
    capture_logs: bool = True
    concurrency: int | None = None
    """How many jobs a worker process runs at the same time, apart from sync actions."""
    threads: int | None = None
    """How many sync actions it runs at the same time."""
    keep: RetentionOptions = {}
    """How long finished jobs, dead letters and ticks are kept."""
    idempotency_ms: int = IDEMPOTENCY_MS
    interval_floor_ms: int = FLOOR_MS
    signal: Callable[[Any], Any] | None = None
    """The user's signal hook; it receives a `Schedule`."""
    signal_seconds: float = SIGNAL_SECONDS
    worker_lifespan: Callable[[], object] | None = None
    """Makes the context manager that each worker process enters."""
    build: str | None = None
    """Identifies the code; a hash of it if it is not given."""
    transactions: int | None = None
    """How many transactions of async code may be open at the same time."""


CHECK_RESULTS = "DULY_CHECK_RESULTS"
"""The environment variable with which `duly dev` asks its workers to check results."""


class Core(ABC):
    """One application as its own parts see it; `duly.app.program` has the complete class."""

    def __init__(self, settings: Settings, store: Store, clock: Clock) -> None:
        self.settings = settings
        self.store = store
        self.clock = clock
        self.client = Client()
        """How this process sends requests to addresses that users entered."""
        self.on_dispatch: list[Callable[[Dispatch], object]] = []
        self.functions = KnownFunctions(self, self.builtins())
        self.redaction = Redaction(self.functions, self.ready)
        self.declarations: dict[str, Any] = {}
        """The schedules that code declares, by key; see schedules/declared_schedules.py."""
        self.declared_calendars: dict[str, Any] = {}
        """The calendars that code declares, by name."""
        self.service: Service | None = None
        self.threads = Threads(transactions=settings.transactions)
        self.counts = Counts()
        self.hook_calls = HookCalls(self)
        self.lifespan = Lifespan(settings.worker_lifespan)
        self.checks_results = CHECK_RESULTS in os.environ
        """Whether to warn of results that do not match their annotation; not in production."""
        self.paranoid = False
        """Whether workflows end after each operation and compare arguments; in tests."""
        self._build: tuple[int, str] | None = None
        self.records = Records(self.ready)
        self.watchers = Watchers(self.ready)
        self.feed = Feed(self.ready, self.now)
        self.lock = threading.RLock()
        """Held while the app connects, migrates, starts or stops."""
        self._tell_at = 0.0
        self._ready_in: int | None = None
        _cores.add(self)

    @property
    def name(self) -> str:
        return self.settings.name

    @abstractmethod
    def builtins(self) -> Mapping[str, Function[..., Any]]:
        """duly's own functions, which every worker has."""

    @abstractmethod
    def signal(self, schedule: ScheduleRecord) -> Any:
        """What the user's signal hook returns for a schedule; None if there is no hook."""

    @property
    def build(self) -> str:
        """Identifies the code of the app's functions."""
        if self.settings.build is not None:
            return self.settings.build
        revision = self.functions.revision
        if self._build is None or self._build[0] != revision:
            self._build = revision, build_of(self.functions.registered.values())
        return self._build[1]

    @property
    def signal_seconds(self) -> float:
        """The timeout of the signal hook, in seconds."""
        return self.settings.signal_seconds

    def import_modules(self) -> None:
        """Import the modules that define functions and declare schedules."""
        for module in self.settings.imports:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                # As opposed to one that the module imports.
                if f"{module}.".startswith(f"{error.name}."):
                    raise InvalidOption("imports", f"there is no module {module!r}") from error
                raise

    # Hooks

    @property
    def may_have_hooks(self) -> bool:
        """Whether any function has hooks, or modules that may declare some are not imported."""
        if any(module not in sys.modules for module in self.settings.imports):
            return True
        functions = list(self.functions.registered.values())
        return bool(self.functions.hooks) or any(function.hooks for function in functions)

    def hooks_of(self, function: str) -> Hooks:
        """The hooks of a function that was registered here, by its name or an alias."""
        self.import_modules()
        known = self.functions.by_any_name(function)
        return {} if known is None else self.functions.hooks_of(known)

    def read_job(self, job_id: str) -> JobRecord | None:
        return self.ready().get(job_id)

    def monotonic(self) -> float:
        return self.clock.monotonic()

    # Store

    def migrate(self) -> list[str]:
        with self.lock:
            self._ready_in = None
            return list(self.store.migrate(self.clock.now()))

    def ready(self) -> Store:
        """The store, connected and checked."""
        if not self.is_ready:
            with self.lock:
                if self.settings.auto_migrate:
                    self.store.migrate(self.clock.now())
                self.store.open(self.clock.now())
                self._ready_in = os.getpid()
        return self.store

    @property
    def is_ready(self) -> bool:
        """Whether this process is connected already."""
        return self._ready_in == os.getpid()

    def now(self) -> int:
        """The current time, after connecting: a database server's clock is better than ours."""
        self.ready()
        return self.clock.now()

    def exchange(self, store: Store, clock: Clock) -> tuple[Store, Clock]:
        """Use another store and another clock from now on; returns the previous ones. For tests."""
        before = self.store, self.clock
        self.counts.forget()
        self.end_streams()
        self.store, self.clock = store, clock
        self._ready_in = None
        self.functions.forget()
        self.redaction.forget()
        return before

    def end_streams(self) -> None:
        """End all streams that watch jobs or follow changes."""
        self.watchers.close()
        self.feed.close()

    def close(self) -> None:
        self.end_streams()
        self.hook_calls.wait()
        self.threads.close()
        self.tell_counts()
        self.store.close()
        self._ready_in = None

    def tell_counts(self) -> None:
        """Write the counts made in this process to the store, if it can be written."""
        if self.is_ready:
            with contextlib.suppress(StoreError):
                self.counts.flush(self.store)

    def tell_counts_in_time(self) -> None:
        """The same, from time to time, for processes in which no loop does it."""
        if os_monotonic() >= self._tell_at:
            self._tell_at = os_monotonic() + FLUSH_SECONDS
            self.tell_counts()

    def insert(
        self, jobs: Sequence[NewJob], audit_entry: NewAuditEntry | None = None
    ) -> Mapping[str, str]:
        """Store jobs in one transaction; returns, by id, the jobs that hold the keys of others."""
        found, notified = self._store_jobs(jobs, audit_entry)
        self._wake_for(jobs, notified=notified)
        return found

    def _store_jobs(
        self, jobs: Sequence[NewJob], audit_entry: NewAuditEntry | None = None
    ) -> tuple[Mapping[str, str], bool]:
        """Also returns whether other processes were notified."""
        refuse_inside_mutation("run")
        store = self.ready()
        if audit_entry is not None:
            return store.enqueue_audited(jobs, audit_entry), False
        due = self.is_due_soon(jobs)
        return store.enqueue(jobs, ring=due), due

    def insert_each(self, batches: list[Sequence[NewJob]]) -> list[Outcome]:
        """Store what several callers enqueue in one commit; one by one if that is refused.

        Only for jobs without keys, which never wait for another transaction.
        """
        every = [job for jobs in batches for job in jobs]
        try:
            _, notified = self._store_jobs(every)
        except Exception as error:
            # The answer may have been lost: repeating could store the jobs twice.
            if len(batches) == 1 or isinstance(error, StoreUnavailable):
                return [(None, error)] * len(batches)
            return outcomes_of([partial(self.insert, jobs) for jobs in batches])
        self._wake_for(every, notified=notified)
        return [({}, None) for _ in batches]

    def insert_children(
        self, parent: tuple[str, int], jobs: Sequence[NewJob]
    ) -> Mapping[str, str] | None:
        """Store jobs of a running action; None if that was canceled: they are stored canceled."""
        refuse_inside_mutation("run")
        found = self.ready().enqueue_child(parent, jobs, f"parent:{parent[0]}", self.clock.now())
        self._wake_for(jobs)
        return found

    def get(self, job_id: str) -> JobRecord | None:
        """The job as committed."""
        record = self.ready().get(job_id)
        return None if record is None else self.redaction.shown(record)

    def find(self, filter: JobFilter) -> Sequence[JobRecord]:
        """Jobs as committed."""
        return self.redaction.shown_all(self.ready().find(filter))

    def find_by_any_name(self, filter: JobFilter) -> Sequence[JobRecord]:
        """The same, including jobs that are stored under older names of the function."""
        found = [self.find(each) for each in self.functions.for_each_name(filter)]
        return newest_first(found, filter.limit)

    def wake_ticker(self) -> None:
        """A schedule has changed: wake the tickers here and elsewhere."""
        service = self._service_here()
        if service is not None:
            service.wake_ticker()
        self.store.ring()

    def cancel(self, job_id: str, by: str, audit_entry: NewAuditEntry | None = None) -> bool | None:
        """Cancel a job on behalf of `by`; None if there is no such job."""
        refuse_inside_mutation("cancel")
        won = self.ready().cancel(job_id, by, self.now(), audit_entry)
        if won:
            self.tell_bodies()
        return won

    def send(
        self, event: NewEvent, audit_entry: NewAuditEntry | None = None
    ) -> tuple[SentEvent, bool]:
        """Send an event to a workflow; returns it, and whether it is new."""
        refuse_inside_mutation("send")
        sent = self.ready().send_event(event, self.now(), audit_entry)
        self.wake()
        return sent

    def tell_bodies(self) -> None:
        """Jobs were canceled: bodies here learn of it now, elsewhere with the next heartbeat."""
        service = self._service_here()
        if service is not None:
            service.look()

    # Waking

    def wake(self) -> None:
        """There may be work: wake the workers here and elsewhere."""
        self._wake_here()
        self.store.ring()

    def _wake_here(self) -> None:
        service = self._service_here()
        if service is not None:
            service.worker.loop.wake()

    def _service_here(self) -> Service | None:
        # Read once: another thread may stop it meanwhile.
        service = self.service
        # In a forked child the parent's loop is not running, and its lock may be held forever.
        return service if service is not None and service.is_here else None

    def is_due_soon(self, jobs: Iterable[NewJob]) -> bool:
        """Sleeping workers look again after a poll; only jobs due before that need to wake them."""
        before = self.clock.now() + POLL_SECONDS * 1000
        return any(job.run_at < before for job in jobs)

    def _wake_for(self, jobs: Iterable[NewJob], *, notified: bool = False) -> None:
        """`notified`: other processes have been notified already."""
        if notified:
            self._wake_here()
        elif self.is_due_soon(jobs):
            self.wake()


_cores: weakref.WeakSet[Core] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked child, the lock may be held by a thread that does not exist there."""
    for core in _cores:
        core.lock = threading.RLock()
        core.counts.forget()
        core.hook_calls.forget()
        core.records.forget()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)
