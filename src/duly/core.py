"""What the app, the contexts and the jobs stand on: functions, a store, a clock.

Nothing here is public; users meet it through `Duly`, `Tx`, `Ctx` and `Job`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec

from duly.alerts import NAME as ALERT
from duly.alerts import alert_function, is_address
from duly.clock import Clock, os_monotonic
from duly.context import Bound
from duly.endpoints.sending import post_function
from duly.endpoints.target import NAME as POST
from duly.endpoints.target import EndpointTarget, target_of
from duly.errors import (
    EndpointNotFound,
    FunctionConflict,
    FunctionDeleted,
    InvalidOption,
    SignatureMismatch,
    StoreError,
    StoreUnavailable,
    UnknownFunction,
)
from duly.feed import Feed
from duly.functions import Call, Function, with_hook
from duly.inside import is_inside, refuse_inside_mutation
from duly.making import IDEMPOTENCY_MS, keys_of_owner, new_jobs, tracked, under_limit
from duly.model.function import (
    RESERVED,
    FunctionInfo,
    Published,
    Status,
    is_reserved,
)
from duly.model.job import JobFilter, JobRecord, NewJob, TrackedJob, Trigger, newest_first
from duly.model.keys import Rules, encode_rules
from duly.model.redact import EVERY, mask, redacted_in
from duly.model.schedule import FLOOR_MS, ONE_BY_ONE, ScheduleRecord
from duly.model.signature import check_against
from duly.model.stored import read
from duly.outbound import Client
from duly.published import Declared, by_name, options_of, schema_of, with_changes
from duly.runtime.counts import FLUSH_SECONDS, Counts
from duly.runtime.demand import POLL_SECONDS
from duly.runtime.janitor import Keep
from duly.runtime.service import Service
from duly.runtime.signals import SIGNAL_SECONDS
from duly.store.schedules.audit import Deed
from duly.store.schedules.ledger import Order
from duly.store.table import Store
from duly.threads import Outcome, Threads, outcomes_of
from duly.watch import Watchers

ONE_AT_A_TIME = encode_rules(Rules(1, None, None))
NOBODY = "00000000-0000-0000-0000-000000000000"
STATUS_SECONDS = 1.0
"""How old what is known of the functions' status may be when a call is checked."""

F = TypeVar("F", bound=Function[..., Any])
P = ParamSpec("P")
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
        self.client = Client()
        """How this process sends to addresses that users have written."""
        self.on_dispatch: list[Callable[[Any], object]] = []
        self.builtins: dict[str, Function[..., Any]] = {
            ALERT: alert_function(self.client),
            POST: post_function(self),
        }
        """Functions of duly's own, which every worker has and nobody is told of."""
        self.revision = 0
        self.keep: Keep = {}
        self.idempotency_ms = IDEMPOTENCY_MS
        self.interval_floor_ms = FLOOR_MS
        self.declarations: dict[str, Any] = {}
        """The schedules that code declares, by key; see declared.py."""
        self.apply = "start"
        self.apply_hook: Callable[[], None] = lambda: None
        self.signal_hook: Callable[[ScheduleRecord], Any] | None = None
        self.signal_seconds = SIGNAL_SECONDS
        self._aliases: dict[str, str] = {}
        self._statuses: Mapping[str, Status] = {}
        self._declared: dict[str, Declared[..., Any]] = {}
        self._redacted_elsewhere: dict[str, tuple[float, frozenset[str]]] = {}
        """What functions of other services hide, and until when that is believed."""
        self._elsewhere: dict[str, tuple[float, Function[..., Any]]] = {}
        """Functions of other services, and until when what they have published is believed."""
        self._fresh_until = 0.0
        self.service: Service | None = None
        self.command: Callable[[], Sequence[str] | None] = lambda: None
        self.captures_logs = True
        self.threads = Threads()
        self.counts = Counts()
        self.watchers = Watchers(self.ready)
        self._tell_at = 0.0
        self.feed = Feed(self.ready, self.now)
        self._imports = tuple(imports)
        self._auto_migrate = auto_migrate
        self.lock = threading.RLock()
        """Held while the app connects, migrates, starts or stops."""
        _cores.add(self)
        self._ready_in: int | None = None

    # Functions

    def register(self, function: F) -> F:
        for name in (function.name, *function.traits.aliases):
            _refuse_reserved(name)
            known = self.by_any_name(name)
            if known is not None and not function.is_redefinition_of(known):
                raise FunctionConflict(name, known.source(), function.source())
        self.functions[function.name] = function
        self._aliases |= dict.fromkeys(function.traits.aliases, function.name)
        self.revision += 1
        return function

    def by_any_name(self, name: str) -> Function[..., Any] | None:
        return self.functions.get(self._aliases.get(name, name))

    def known(self, name: str) -> Function[..., Any] | None:
        """As by_any_name, with what nobody may call by name."""
        return self.builtins.get(name) or self.by_any_name(name)

    def names_of(self, name: str | None) -> list[str | None]:
        """A function's name and those under which jobs of it may still be stored."""
        known = None if name is None else self.by_any_name(name)
        return [name] if known is None else [known.name, *known.traits.aliases]

    def for_each_name(self, filter: JobFilter) -> list[JobFilter]:
        """The filter, once for each name that its function has and had."""
        names = self.names_of(filter.function)
        return [msgspec.structs.replace(filter, function=name) for name in names]

    def function(self, name: str) -> Function[..., Any]:
        known = self.by_any_name(name)
        return by_name(self._published(name)) if known is None else known

    def _published(self, name: str) -> FunctionInfo:
        info = self.ready().function(name)
        if info is None:
            raise UnknownFunction(name, self.functions)
        return info

    def status_of(self, name: str) -> Status:
        """What operators have decided about a function, as far as is known here."""
        self._know_statuses()
        return self._statuses.get(name, Status.ACTIVE)

    def is_here(self, function: object) -> bool:
        """Whether its code is in this process, so that a call is checked without the store."""
        if isinstance(function, Declared | EndpointTarget):
            return False
        hook = function.options.on_complete if isinstance(function, Function) else None
        return hook is None or self.is_here(hook)

    def admit(self, call: Call[R], seen: dict[str, FunctionInfo | None] | None = None) -> Call[R]:
        """The call as it may be enqueued; a function of another app is refused.

        `seen`: what the store has said of functions elsewhere, for calls admitted together.
        """
        self._know_statuses()
        function = call.function
        status = self._statuses.get(function.name)
        if status == Status.DELETED:
            raise FunctionDeleted(function.name)
        if status == Status.DEPRECATED:
            warnings.warn(f"function {function.name!r} is deprecated", DeprecationWarning, 4)
        return self.admitted(call, seen)

    def admitted(
        self, call: Call[R], seen: dict[str, FunctionInfo | None] | None = None
    ) -> Call[R]:
        """The same, whatever operators have decided about the function."""
        function = call.function
        if isinstance(function, Declared):
            return self._admit_declared(function, call.args, {} if seen is None else seen)
        if isinstance(function, EndpointTarget):
            return self._with_hook(Call(self._admit_endpoint(function), call.args))
        known = self.functions.get(function.name)
        if known is None or known.signature is not function.signature:
            raise UnknownFunction(function.name, self.functions)
        return self._with_hook(call)

    def _admit_endpoint(self, target: EndpointTarget) -> Function[..., Any]:
        record = self.ready().endpoint_named(target.owner, target.endpoint)
        if record is None:
            raise EndpointNotFound(target.endpoint)
        return target.as_stored(record)

    def _with_hook(self, call: Call[R], argument: str = "job_id") -> Call[R]:
        """The call with its hook as it may be enqueued."""
        hook = call.function.options.on_complete
        if hook is None:
            return call
        admitted = self.admit_hook(hook, argument)
        return call if admitted is hook else Call(with_hook(call.function, admitted), call.args)

    def admit_hook(self, hook: Function[..., Any], argument: str) -> Function[..., Any]:
        """The function as it may wait for the end of others; it must take that argument."""
        return self.admit(Call(hook, hook.signature.encode((), {argument: NOBODY}))).function

    def _admit_declared(
        self, function: Declared[..., R], args: str, seen: dict[str, FunctionInfo | None]
    ) -> Call[R]:
        if function.name not in seen:
            seen[function.name] = self.ready().function(function.name)
        info = seen[function.name]
        if info is None:
            return Call(function.as_published(None), args)
        check_against(function.name, schema_of(info), args)
        return self._with_hook(Call(self._as_published(function, info), args))

    def under_limit(self, job: TrackedJob) -> TrackedJob:
        """A job that is stored again, with the limit that its function has here, or elsewhere."""
        function = self.by_any_name(job.function) or self._published_elsewhere(job.function)
        # Arguments that do not fit any more have no key, and are not run either.
        with contextlib.suppress(SignatureMismatch):
            return job if function is None else under_limit(Call(function, job.args), job)
        return job

    def _as_published(self, function: Declared[P, R], info: FunctionInfo) -> Declared[P, R]:
        name = options_of(info).on_complete
        if name is None or "on_complete" in function.changes:
            return function.as_published(info)
        return function.as_published(info, self._hook_elsewhere(name))

    def _hook_elsewhere(self, name: str) -> Function[..., Any]:
        """The hook of a function elsewhere, without one of its own: no hook is waited for."""
        known = self.by_any_name(name)
        if known is not None:
            return known
        info = self._published(name)
        return by_name(info).as_published(info)

    def _published_elsewhere(self, name: str) -> Function[..., Any] | None:
        """A function whose code is in other workers, as far as they have told."""
        known = self._elsewhere.get(name)
        if known is None or os_monotonic() >= known[0]:
            store = self.ready()
            info = store.function(name)
            if info is not None and info.alias_of is not None:
                info = store.function(info.alias_of)
            if info is None:
                # Nothing to remember: it may be published at any time.
                return None
            until = os_monotonic() + STATUS_SECONDS
            known = self._elsewhere[name] = until, self._as_published(by_name(info), info)
        return known[1]

    def published(self, names: Iterable[str] | None = None) -> list[Published]:
        """The functions as they are described to everybody."""
        chosen = self._without_faulty() if names is None else names
        return [row for name in chosen for row in self.functions[name].published(self.name)]

    def import_modules(self) -> None:
        """Import the modules that define functions and declare schedules."""
        for module in self._imports:
            importlib.import_module(module)

    def runnables(self, *, with_faulty: bool = True) -> Mapping[str, Bound]:
        """Every function as the worker calls it; modules imported, type hints resolved."""
        self.import_modules()
        chosen = dict(self.functions) if with_faulty else self._without_faulty()
        chosen |= self.builtins
        for function in chosen.values():
            function.signature.resolve()
        bound = {name: self.bind(function) for name, function in chosen.items()}
        aliases = dict(self._aliases).items()
        return bound | {alias: bound[name] for alias, name in aliases if name in bound}

    def _without_faulty(self) -> dict[str, Function[..., Any]]:
        """The functions whose type hints can be resolved."""
        return {name: f for name, f in dict(self.functions).items() if f.signature.is_sound()}

    def bind(self, function: Function[..., Any]) -> Bound:
        """One function as the worker calls it."""
        return Bound(self, function)

    def result_decoder(self, record: JobRecord) -> Callable[[str | None], Any]:
        """How a stored result is read: by the function's annotation, if it is known here."""
        function = self.known(record.function)
        return function.signature.decode_result if function else _plain_json

    # Store

    def migrate(self) -> list[str]:
        with self.lock:
            self._ready_in = None
            return list(self.store.migrate(self.clock.now()))

    def ready(self) -> Store:
        """The store, connected and checked."""
        if self._ready_in != os.getpid():
            with self.lock:
                if self._auto_migrate:
                    self.store.migrate(self.clock.now())
                self.store.open(self.clock.now())
                self._ready_in = os.getpid()
        return self.store

    def is_fresh(self) -> bool:
        """Whether a call can be checked without asking the store."""
        return self._ready_in == os.getpid() and os_monotonic() < self._fresh_until

    def keep_fresh(self) -> None:
        """Before a transaction begins: in it, what is known at its beginning counts.

        To ask on another connection meanwhile could wait for ever, if all that a pooler has are
        in transactions which do the same.
        """
        if not self.is_fresh():
            self.refresh()

    def _know_statuses(self) -> None:
        if not self._fresh_until or not is_inside():
            self.keep_fresh()

    def refresh(self) -> None:
        """Ask the store what operators have decided about functions."""
        self._statuses = self.ready().statuses()
        self._fresh_until = os_monotonic() + STATUS_SECONDS

    def now(self) -> int:
        """The time, asked after connecting: a database server's clock is better than ours."""
        self.ready()
        return self.clock.now()

    def exchange(self, store: Store, clock: Clock) -> tuple[Store, Clock]:
        """Use another store and another clock from now on; those used until now. For tests."""
        before = self.store, self.clock
        self.counts.forget()
        self.end_streams()
        self.store, self.clock = store, clock
        self._ready_in = None
        self._fresh_until = 0.0
        self._redacted_elsewhere.clear()
        self._elsewhere.clear()
        return before

    def end_streams(self) -> None:
        """Let everybody go who watches jobs or follows what happens."""
        self.watchers.close()
        self.feed.close()

    def close(self) -> None:
        self.end_streams()
        self.threads.close()
        self.tell_counts()
        self.store.close()
        self._ready_in = None

    def tell_counts(self) -> None:
        """Tell the store what was counted here, if it can be told."""
        if self._ready_in == os.getpid():
            with contextlib.suppress(StoreError):
                self.counts.flush(self.store)

    def tell_counts_in_time(self) -> None:
        """The same, now and then, for processes in which no loop does so."""
        if os_monotonic() >= self._tell_at:
            self._tell_at = os_monotonic() + FLUSH_SECONDS
            self.tell_counts()

    def insert(self, jobs: Sequence[NewJob], deed: Deed | None = None) -> Mapping[str, str]:
        """Store jobs in a transaction of their own; by id, who holds the keys of the others."""
        found, told = self._store_jobs(jobs, deed)
        self._wake_for(jobs, told=told)
        return found

    def _store_jobs(
        self, jobs: Sequence[NewJob], deed: Deed | None = None
    ) -> tuple[Mapping[str, str], bool]:
        """Who holds the keys of the others; and whether other processes were told."""
        refuse_inside_mutation("run")
        store = self.ready()
        if deed is not None:
            return store.enqueue_audited(jobs, deed), False
        due = self.is_due_soon(jobs)
        return store.enqueue(jobs, ring=due), due

    def insert_each(self, batches: list[Sequence[NewJob]]) -> list[Outcome]:
        """Store what several callers ask for in one commit; one by one if that is refused.

        Only for jobs without keys: they wait for nobody.
        """
        every = [job for jobs in batches for job in jobs]
        try:
            _, told = self._store_jobs(every)
        except Exception as error:
            # The answer may have got lost: to repeat would double.
            if len(batches) == 1 or isinstance(error, StoreUnavailable):
                return [(None, error)] * len(batches)
            return outcomes_of([partial(self.insert, jobs) for jobs in batches])
        self._wake_for(every, told=told)
        return [({}, None) for _ in batches]

    def insert_children(
        self, parent: tuple[str, int], jobs: Sequence[NewJob]
    ) -> Mapping[str, str] | None:
        """Store jobs of a running action; None if it was canceled, and so are they."""
        refuse_inside_mutation("run")
        found = self.ready().enqueue_child(parent, jobs, f"parent:{parent[0]}", self.clock.now())
        self._wake_for(jobs)
        return found

    def get(self, job_id: str) -> JobRecord | None:
        """The job as it is committed."""
        record = self.ready().get(job_id)
        return None if record is None else self.shown(record)

    def find(self, filter: JobFilter) -> Sequence[JobRecord]:
        """Jobs as they are committed."""
        return self.shown_all(self.ready().find(filter))

    def find_by_any_name(self, filter: JobFilter) -> Sequence[JobRecord]:
        """The same, with jobs that are stored under older names of the function."""
        found = [self.find(each) for each in self.for_each_name(filter)]
        return newest_first(found, filter.limit)

    def shown(self, record: JobRecord) -> JobRecord:
        """The record without the arguments that nobody is shown."""
        return _masked(record, self._redacted(record.function))

    def shown_all(self, records: Sequence[JobRecord]) -> Sequence[JobRecord]:
        """The same for a list; the store is asked about a function once, whatever it answers."""
        hidden = {name: self._redacted(name) for name in {each.function for each in records}}
        return [_masked(record, hidden[record.function]) for record in records]

    def shown_arguments(self, function: str, args: str) -> dict[str, Any]:
        """Arguments without those that nobody is shown."""
        names = self._redacted(function)
        return read(mask(args, names), dict[str, Any], {})

    # Schedules

    def jobs_of_tick(self, order: Order, now: int) -> Sequence[NewJob]:
        """The job that a tick calls for, as if somebody had called the function by hand."""
        record = order.plan.record
        call = self.call_of_schedule(record, order.dispatch.args)
        first, *hooks = new_jobs(
            call, order.tick.tick_at, now, order.parent_id, self.idempotency_ms
        )
        more: dict[str, Any] = {"trigger": Trigger.SCHEDULE, "actor": record.id}
        if call.function.options.debounce is None:
            # An operator, or a calendar, may have moved the tick to an earlier time.
            more["run_at"] = now
        if record.owner:
            more["owner"] = record.owner
        limit = call.function.options.limit
        if limit is not None and order.plan.policies.overlap in ONE_BY_ONE:
            reason = f"{call.function.name}() has got a limit of its own"
            raise InvalidOption("overlap", reason, "take skip or allow")
        if order.serial and limit is None:
            more |= {"limit_key": f"schedule:{record.id}", "limits": ONE_AT_A_TIME}
        # Owners make schedules of their own, and must not meet each other's jobs by them.
        return [keys_of_owner(tracked(first, **more), record.owner), *hooks]

    def alert_jobs(self, schedule: ScheduleRecord, problem: str, now: int) -> Sequence[NewJob]:
        """The jobs that tell of a promise that a schedule has broken."""
        assert schedule.alert is not None
        args = {"schedule_id": schedule.id, "problem": problem}
        if is_address(schedule.alert):
            function = self.builtins[ALERT]
            args["url"] = schedule.alert
        else:
            function = self._scheduled(schedule.alert)
        call = Call(function, function.signature.encode((), args))
        return new_jobs(call, now, now, None, self.idempotency_ms)

    def call_of_schedule(self, record: ScheduleRecord, args: str | None = None) -> Call[Any]:
        """The call that a schedule makes."""
        given = record.args if args is None else args
        changes: dict[str, Any] = msgspec.json.decode(record.options)
        if record.function == POST:
            target = target_of(self.builtins[POST], given)
            stored = self.ready().endpoint_named(target.owner, target.endpoint)
            changed = with_changes(target, changes)
            assert isinstance(changed, EndpointTarget)
            return Call(changed.as_stored(stored), given)
        return Call(with_changes(self._scheduled(record.function), changes), given)

    def _scheduled(self, name: str) -> Function[..., Any]:
        """A function by its name; what others have published is believed for a second."""
        known = self.by_any_name(name)
        if known is not None:
            return known
        elsewhere = self._published_elsewhere(name)
        if elsewhere is None:
            raise UnknownFunction(name, self.functions)
        return elsewhere

    def signal(self, schedule: ScheduleRecord) -> Any:
        """What the user's hook says for the condition of a schedule; None without one."""
        return None if self.signal_hook is None else self.signal_hook(schedule)

    @property
    def signals_for(self) -> str | None:
        """Without a hook, the one app that none means null for; None with one."""
        return self.name if self.signal_hook is None else None

    def knows(self, name: str) -> bool:
        """Whether a function and its hook are registered here, or described by who has them."""
        try:
            self._scheduled(name)
        except UnknownFunction:
            return False
        except StoreError:
            raise
        except Exception:  # the tick that calls it will say what is wrong
            return True
        return True

    def apply_declared(self) -> None:
        """Bring the schedules that code declares into the store, if they are new."""
        self.apply_hook()

    def wake_ticker(self) -> None:
        """A schedule has changed: tell the tickers here and elsewhere."""
        service = self._service_here()
        if service is not None:
            service.wake_ticker()
        self.store.ring()

    def declare(self, function: Declared[P, R]) -> Declared[P, R]:
        """Remember what a declaration hides, for until a worker has published it."""
        _refuse_reserved(function.name)
        self._declared[function.name] = function
        return function

    def _redacted(self, name: str) -> frozenset[str]:
        known = self.known(name)
        if known is not None and known.signature.is_sound():
            return known.signature.redacted
        return self._redacted_by_declaration(name) | self._redacted_by_publication(name)

    def _redacted_by_declaration(self, name: str) -> frozenset[str]:
        declared = self._declared.get(name)
        if declared is None or not declared.signature.is_sound():
            return frozenset()
        return declared.signature.redacted

    def _redacted_by_publication(self, name: str) -> frozenset[str]:
        cached = self._redacted_elsewhere.get(name)
        if cached is not None and os_monotonic() < cached[0]:
            return cached[1]
        info = self.ready().function(name)
        if info is None:
            # Nothing to remember: it may be published at any time.
            return frozenset()
        schema = read(info.schema, dict[str, Any], UNREADABLE)
        names = EVERY if schema is UNREADABLE else redacted_in(schema)
        self._redacted_elsewhere[name] = os_monotonic() + STATUS_SECONDS, names
        return names

    def cancel(self, job_id: str, by: str, deed: Deed | None = None) -> bool | None:
        """Cancel in somebody's name; None if there is no such job."""
        refuse_inside_mutation("cancel")
        won = self.ready().cancel(job_id, by, self.now(), deed)
        if won:
            self.tell_bodies()
        return won

    def tell_bodies(self) -> None:
        """Jobs were canceled: what runs here is told now, elsewhere with the next beat."""
        service = self._service_here()
        if service is not None:
            service.look()

    # Waking

    def wake(self) -> None:
        """There may be something to do: tell the workers here and elsewhere."""
        self._wake_here()
        self.store.ring()

    def _wake_here(self) -> None:
        service = self._service_here()
        if service is not None:
            service.worker.loop.wake()

    def _service_here(self) -> Service | None:
        # Read once: another thread may stop it meanwhile.
        service = self.service
        # In a forked child the parent's loop is only a memory, and its lock may be held for ever.
        return service if service is not None and service.is_here else None

    def is_due_soon(self, jobs: Iterable[NewJob]) -> bool:
        """Whoever sleeps looks again after a poll; only what is due earlier has to wake it."""
        before = self.clock.now() + POLL_SECONDS * 1000
        return any(job.run_at < before for job in jobs)

    def _wake_for(self, jobs: Iterable[NewJob], *, told: bool = False) -> None:
        """`told`: those in other processes know already."""
        if told:
            self._wake_here()
        elif self.is_due_soon(jobs):
            self.wake()


_cores: weakref.WeakSet[Core] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked child, where the lock may be held by a thread that is gone."""
    for core in _cores:
        core.lock = threading.RLock()
        core.counts.forget()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)


UNREADABLE: dict[str, Any] = {}


def _refuse_reserved(name: str) -> None:
    if is_reserved(name):
        raise InvalidOption("name", f"{name!r}: names that begin with {RESERVED!r} are duly's own")


def _masked(record: JobRecord, names: frozenset[str]) -> JobRecord:
    if not names:
        return record
    return msgspec.structs.replace(record, args=mask(record.args, names))


def _plain_json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
