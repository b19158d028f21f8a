"""The application: functions, a store, a clock, and the verbs over them."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import os
import sys
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, Self, TypeAlias, Unpack, overload

import msgspec

from duly.app.aio import AsyncApp
from duly.app.functions import Functions
from duly.app.options import ENVIRONMENT_URL, check
from duly.app.program import AppProgram
from duly.app.queues import Queues
from duly.app.tokens import Tokens
from duly.calendars import Calendars
from duly.calls.batches import Batch, batch_of
from duly.calls.bulk import Bulk
from duly.calls.context import Tx, open_tx
from duly.calls.jobs import AsyncJob, Job, job_from
from duly.calls.on import AsyncHandle, AsyncOn, AsyncpgHandle, DjangoProxy, On, SyncHandle
from duly.calls.registry import F, Group, Registry
from duly.calls.replay import Replay, replay_all, replay_one
from duly.calls.verbs import id_of, job_filter, name_of_function
from duly.clock import Clock, SystemClock
from duly.core import Settings
from duly.endpoints import Endpoints, EndpointTarget
from duly.endpoints.dispatch import Receiver
from duly.endpoints.target import NAME as POST
from duly.errors import (
    InvalidFunction,
    InvalidOption,
    MissingExtra,
    StoreError,
)
from duly.functions.around import Wrapper
from duly.functions.checks import check_def, check_text, name_of
from duly.functions.function import Call, Function, P, R
from duly.functions.new_job import IDEMPOTENCY_MS
from duly.functions.published import Declared
from duly.functions.times import Delay, Instant, at
from duly.gateway import Gateways
from duly.model.attempt import Hook
from duly.model.calendar import Calendar, Dates
from duly.model.function import is_reserved
from duly.model.job import JobFilter, JobRecord, Kind, NewJob, State
from duly.model.queue import QueuePause
from duly.model.schedule import FLOOR_MS
from duly.model.signature import Signature
from duly.model.workflow import NewEvent
from duly.observe.connections import warn_about_pools
from duly.observe.health import HealthReport
from duly.observe.health import look as look_at_health
from duly.observe.view import Observe
from duly.observe.why import Why, explain
from duly.runtime.alone import AloneRuns, Command
from duly.runtime.heartbeat import HEARTBEAT_SECONDS
from duly.runtime.isolate import refuse_while_importing
from duly.runtime.janitor import EXHAUSTED_RETENTION, LEDGER_RETENTION, RETENTION
from duly.runtime.lifespan import WorkerLifespan
from duly.runtime.service import Service, TickerService
from duly.runtime.signals import SIGNAL_SECONDS
from duly.runtime.threads import READS, to_the_end
from duly.runtime.transaction_guard import (
    refuse_handles_inside_mutation,
    refuse_in_workflow,
    refuse_inside_mutation,
)
from duly.runtime.worker import CONCURRENCY, DRAIN_SECONDS, THREADS
from duly.schedules import Schedule, ScheduleOptions, Schedules
from duly.schedules.declared_calendars import (
    DeclaredCalendar,
    calendar_from,
    declare_calendar,
)
from duly.schedules.declared_schedules import DeclaredSchedule, declare
from duly.store.base import POOL, HeldJobs, WorkerInfo
from duly.store.connect import make_store
from duly.store.handles import UserHandle, borrow
from duly.store.table import Store
from duly.webhooks.declaration import MAX_BYTES, Entity, Filter, Webhook
from duly.webhooks.inbox import Webhooks
from duly.webhooks.sources import Source
from duly.workflows.verbs import WorkflowVerbs

log = logging.getLogger(__name__)

ASGIApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
"""The type that ASGI servers run and web frameworks mount."""

EMBEDDED_CONCURRENCY = 10
"""With `with app:`, which shares its process with other code, unless the app has a setting."""
IDEMPOTENCY = timedelta(milliseconds=IDEMPOTENCY_MS)
MIN_INTERVAL = timedelta(milliseconds=FLOOR_MS)
SIGNAL_TIMEOUT = timedelta(seconds=SIGNAL_SECONDS)


class Duly(WorkflowVerbs, Registry):
    """An application: register functions on it, then call them later through it.

    The database is not touched until it is needed. After a fork, the child process reconnects by
    itself.
    """

    # Attributes of an app that runs inside a framework.
    _store_maker = staticmethod(make_store)
    _program_type: type[AppProgram] = AppProgram
    owns_logging: bool = False
    """Whether the process's logging is already configured, so that the CLI leaves it alone."""

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str = "default",
        imports: Sequence[str] = (),
        clock: Clock | None = None,
        schema: str = "duly",
        pooler: bool = False,
        pool: int = POOL,
        synchronous: str = "FULL",
        auto_migrate: bool = False,
        apply: str = "start",
        concurrency: int | None = None,
        threads: int | None = None,
        capture_logs: bool = True,
        retention: timedelta = RETENTION,
        exhausted_retention: timedelta = EXHAUSTED_RETENTION,
        ledger_retention: timedelta = LEDGER_RETENTION,
        idempotency: timedelta = IDEMPOTENCY,
        min_interval: timedelta = MIN_INTERVAL,
        signal: Callable[[Schedule], Any] | None = None,
        signal_timeout: timedelta = SIGNAL_TIMEOUT,
        worker_lifespan: WorkerLifespan | None = None,
        build: str | None = None,
    ) -> None:
        """Configure the application.

        `url`: sqlite:///shop.db (relative to the working directory), sqlite:////var/lib/shop.db,
        sqlite:///:memory: or postgresql://…; default: DULY_DATABASE_URL.
        `imports`: modules that define functions, imported when a worker starts.
        `apply`: "start" applies changed schedule declarations to the store when the app, or a
        worker, starts; "manual" leaves that to `app.schedules.apply()`.
        `concurrency`: how many jobs a worker process runs at the same time, apart from sync
        actions; default: 100 for `duly worker`, 10 for `with app:`. `threads`: how many sync
        actions; default: 10, at most `concurrency`. The options of `duly worker` take precedence.
        `capture_logs`: store what a job logs with `logging` as log lines of that job.
        `ledger_retention`: how long ticks are kept; each schedule's last hundred are always kept.
        `idempotency`: how long an `idempotency_key` is remembered.
        `min_interval`: the shortest interval of a schedule that is not declared in code.
        `signal`: the signal hook. It is called for `signal_rpc_result` when the condition of a
        schedule uses it, and must return JSON. If it raises, or takes longer than `signal_timeout`,
        the condition is not met.
        `worker_lifespan`: a function with one `yield`, sync or async, that receives the app. Each
        worker process enters it before it claims jobs; what it yields is `ctx.state` in functions.
        `pool`: how many connections the callers in this process share; a call that finds all of
        them in use waits up to 10 s, then raises StoreUnavailable.
        `build`: identifies the code, for workflows that one version cannot continue; default: a
        hash of the modules that define functions.
        `schema`, `pooler`, `pool`, `auto_migrate`: PostgreSQL only. `synchronous`: SQLite only.
        """
        given = url or os.environ.get(ENVIRONMENT_URL)
        check(
            given,
            name=name,
            imports=imports,
            apply=apply,
            concurrency=concurrency,
            threads=threads,
            retention=retention,
            exhausted_retention=exhausted_retention,
            ledger_retention=ledger_retention,
            idempotency=idempotency,
            min_interval=min_interval,
            signal_timeout=signal_timeout,
            worker_lifespan=worker_lifespan,
            build=build,
            synchronous=synchronous,
            pool=pool,
        )
        assert given is not None
        clock = clock or SystemClock()
        store = self._store_maker(given, clock, schema, pooler, synchronous, pool)
        settings = Settings(
            name=name,
            imports=tuple(imports),
            auto_migrate=auto_migrate,
            apply=apply,
            capture_logs=capture_logs,
            concurrency=concurrency,
            threads=threads,
            keep={
                "retention": retention,
                "exhausted_retention": exhausted_retention,
                "ledger_retention": ledger_retention,
            },
            idempotency_ms=round(idempotency.total_seconds() * 1000),
            interval_floor_ms=round(min_interval.total_seconds() * 1000),
            signal=signal,
            signal_seconds=signal_timeout.total_seconds(),
            worker_lifespan=worker_lifespan and partial(worker_lifespan, self),
            build=build,
            # Reads of async code need connections while its transactions are open.
            transactions=max(1, pool - READS),
        )
        self._core = self._program = self._program_type(settings, store, clock, self.command)
        self.functions: Functions = Functions(self._core)
        self.queues: Queues = Queues(self._core)
        self.schedules: Schedules = Schedules(self._core)
        self.calendars: Calendars = Calendars(self._core)
        self.bulk: Bulk = Bulk(self._core)
        self.webhooks: Webhooks = Webhooks(self._core)
        self.endpoints: Endpoints = Endpoints(self._core)
        self.dispatch: Receiver = Receiver(self._core)
        self.tokens: Tokens = Tokens(self._core)
        self.gateways: Gateways = Gateways(self._core)
        self.observe: Observe = Observe(self._core, self.gateways)
        self.aio: AsyncApp = AsyncApp(self)
        self.found_at: str | None = None

    def __repr__(self) -> str:
        return f"<duly app {self.name!r} with {len(self.functions)} functions>"

    # Functions

    def _register(self, function: F) -> F:
        return self._core.functions.register(function)

    def _wrap(self, wrapper: Wrapper) -> None:
        self._core.functions.wrap(wrapper)

    def _hook(self, state: State, hook: Hook) -> None:
        self._core.functions.hook(state, hook)

    def include(self, group: Group) -> None:
        """Add the functions of a group to the app, including those registered on it later."""
        group.join(self._core.functions.register)

    @overload
    def declare(self, stub: Callable[P, R], /) -> Declared[P, R]: ...

    @overload
    def declare(
        self, /, *, name: str | None = ..., kind: Kind | str | None = ...
    ) -> Callable[[Callable[P, R]], Declared[P, R]]: ...

    def declare(
        self,
        stub: Callable[P, R] | None = None,
        /,
        *,
        name: str | None = None,
        kind: Kind | str | None = None,
    ) -> Declared[P, R] | Callable[[Callable[P, R]], Declared[P, R]]:
        """Declare a function of another service by its signature, to call it from here.

        The stub has no context parameter and no body. The queue, the retries and the other options
        are those that the function's workers have published. Pass `kind` to call it before any of
        them has started.
        """

        chosen = _kind(kind)

        def register(stub: Callable[P, R]) -> Declared[P, R]:
            checked = check_def(stub, "app.declare")
            if inspect.iscoroutinefunction(checked):
                raise InvalidFunction(
                    f"{checked.__qualname__}: declare it with a plain def, even if it is async"
                )
            full_name = name_of(checked, name)
            signature = Signature(checked, full_name, has_context=False)
            return self._core.functions.declare(Declared(checked, full_name, signature, chosen))

        return register if stub is None else register(stub)

    def function(self, name: str) -> Function[..., Any]:
        """Return the function with that name, registered here or published by its workers."""
        return self._core.functions.function(name)

    def endpoint(self, name: str, owner: str | None = None) -> EndpointTarget:
        """Return an endpoint to call like a function: `app.run(app.endpoint("mail"), {"id": 7})`.

        The database is not touched; if there is no endpoint with that name, calling it raises.
        """
        check_text("name", name)
        return EndpointTarget(self._core.functions.builtins[POST], name, owner or "")

    def schedule(
        self,
        key: str,
        call: Call[Any] | Function[..., Any],
        **options: Unpack[ScheduleOptions],
    ) -> DeclaredSchedule:
        """Declare a schedule: it calls the function with these arguments at each tick.

        The database is not touched; all declarations are applied together when the app starts.
        """
        caller = _frame(1)
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        return declare(self._core, key, call, options, place)

    def calendar(
        self,
        calendar: str | Calendar,
        kind: str | None = None,
        *,
        tz: str = "UTC",
        dates: Dates = (),
        rules: Iterable[str] = (),
    ) -> DeclaredCalendar:
        """Declare a calendar, by name and content or as a Calendar; `kind` is skip_dates unless
        given.

        The database is not touched; it is created before the schedules that use it.
        """
        caller = _frame(1)
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        return declare_calendar(self._core, calendar_from(calendar, kind, tz, dates, rules), place)

    def webhook(
        self,
        name: str,
        *,
        source: Source,
        process: Function[..., Any] | None = None,
        routes: Mapping[str, Function[..., Any]] | None = None,
        filter: Filter | None = None,
        path: str | None = None,
        entity: Entity | None = None,
        owner: str | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> Webhook:
        """Declare a webhook: requests of `source` to `POST /hooks/{name}`, or to `path`, are
        verified, stored and then processed by a job.

        `process` is called with the `event_id` of every event, unless `routes` has a function for
        its type. `filter`: the types to process, or a function that decides for each event; other
        events are stored as filtered, and so are events without a function. `entity`: what an event
        is about, as a JSON pointer or a function of the event; events about the same entity are
        processed one after the other, in the order of their arrival.
        """
        declared = Webhook(
            name, source, process, dict(routes or {}), filter, path, entity, owner, max_bytes
        )
        return self.webhooks.add(declared)

    # Database

    @property
    def name(self) -> str:
        """The name of the app."""
        return self._core.name

    @property
    def clock(self) -> Clock:
        """The clock that the app uses."""
        return self._core.clock

    @property
    def store(self) -> Store:
        """The store; `ready()` also connects it."""
        return self._core.store

    @property
    def core(self) -> AppProgram:
        """The app's internals, for the runtime; not part of the public API."""
        return self._program

    def migrate(self) -> list[str]:
        """Create or upgrade duly's tables, and create a missing SQLite file; returns the steps."""
        return self._core.migrate()

    def ready(self) -> Store:
        """Connect now, and check that this code can use the store."""
        return self._core.ready()

    def transaction(self) -> AbstractContextManager[Tx]:
        """Open a transaction outside any job: `with app.transaction() as tx: …`.

        Jobs enqueued in it are committed or rolled back together with the rest.
        """
        return open_tx(self._core)

    @overload
    def on(self, handle: AsyncHandle | AsyncpgHandle, *, notify: bool = ...) -> AsyncOn: ...

    @overload
    def on(self, handle: SyncHandle | DjangoProxy, *, notify: bool = ...) -> On: ...

    def on(self, handle: Any, *, notify: bool = True) -> On | AsyncOn:
        """Return the app's methods inside your own transaction, on the connection or session given.

        Jobs enqueued there are committed or rolled back with it. `notify=False`: do not wake
        workers on PostgreSQL; they find the job within a second.
        """
        refuse_handles_inside_mutation()
        borrowed = borrow(handle)
        if isinstance(borrowed, UserHandle):
            return On(self._core, borrowed, notify=notify)
        return AsyncOn(self._core, borrowed, notify=notify)

    def close(self) -> None:
        """Stop the workers of this process and close all connections."""
        self.stop()
        self._core.close()

    # Jobs

    def _insert(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        return self._core.insert(jobs)

    def _get(self, job_id: str) -> JobRecord | None:
        refuse_in_workflow("job")
        return self._core.get(job_id)

    def _list(self, filter: JobFilter) -> Sequence[JobRecord]:
        refuse_in_workflow("jobs")
        return self._core.find(filter)

    def _cancel(self, job_id: str) -> bool | None:
        return self._core.cancel(job_id, "operator")

    def _send(self, event: NewEvent) -> None:
        self._core.send(event)

    def cancel_all(
        self,
        function: Function[..., Any] | str | None = None,
        *,
        queue: str | None = None,
        owner: str | None = None,
        after: Instant | None = None,
        before: Instant | None = None,
    ) -> int:
        """Cancel every unfinished job that matches, due in [after, before); returns how many.

        Works in batches, each in its own transaction.
        """
        refuse_inside_mutation("cancel_all")
        if all(chosen is None for chosen in (function, queue, owner, after, before)):
            raise InvalidOption(
                "cancel_all", "give at least one of function, queue, owner, after, before"
            )
        now = self.clock.now()
        filters = [
            JobFilter(
                function=name,
                queue=queue,
                owner=owner,
                run_after=None if after is None else at(after, now),
                run_before=None if before is None else at(before, now),
            )
            for name in self._core.functions.names_of(name_of_function(function))
        ]
        store = self.ready()
        canceled = sum(store.cancel_matching(filter, "operator", now) for filter in filters)
        if canceled:
            self._core.tell_bodies()
        return canceled

    def batch_of(self, batch_id: str) -> Batch:
        """Return the batch with that id, for example in its hook; BatchNotFound if unknown."""
        return batch_of(self._core, batch_id)

    def dead(
        self,
        function: Function[..., Any] | str | None = None,
        *,
        queue: str | None = None,
        owner: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[Job[Any]]:
        """Return dead letters: jobs that have used up their attempts, newest first."""
        chosen = job_filter(None, function, queue, owner, before, limit)
        found = self._core.find_by_any_name(msgspec.structs.replace(chosen, exhausted=True))
        return [job_from(self._core, record, self._core.get) for record in found]

    def retry(self, job: Job[Any] | AsyncJob[Any] | str) -> Job[Any]:
        """Run a failed or canceled job again; returns the new job, which links to the old one.

        It has the same `on_complete`, and takes the old job's place in its batch. A job can be
        retried once; further calls return the same new job.
        """
        refuse_inside_mutation("retry")
        return replay_one(self._core, id_of(job))

    def retry_dead(
        self,
        function: Function[..., Any] | str | None = None,
        *,
        queue: str | None = None,
        owner: str | None = None,
        dry_run: bool = False,
    ) -> Replay:
        """Retry every dead letter that matches; with `dry_run`, only report what would happen."""
        refuse_inside_mutation("retry_dead")
        return replay_all(
            self._core, job_filter(None, function, queue, owner, None, 1), dry_run=dry_run
        )

    def why(self, job: Job[Any] | AsyncJob[Any] | str) -> Why:
        """Explain why a job has not run yet: the reasons in order, as data and as a sentence."""
        return explain(self._core, id_of(job))

    def workers(self) -> Sequence[WorkerInfo]:
        """The workers that are currently registered."""
        return [_without_builtins(worker) for worker in self.ready().workers()]

    def held(self) -> Sequence[HeldJobs]:
        """Due jobs that cannot start, counted by reason and function."""
        return self.ready().held()

    def health(self, *, depths: bool = True) -> HealthReport:
        """Report duly's health: whether its database answers, and how late jobs and schedules are.

        Takes a few lookups; `depths=False` does not count the jobs waiting in the queues.
        """
        return look_at_health(self._core, depths=depths)

    # Pausing everything

    def pause(self, note: str | None = None, *, by: str | None = None) -> None:
        """Start no jobs in any queue, and dispatch no ticks of any schedule, until `resume`.

        Running jobs continue and new ones are accepted; ticks are skipped with `kill_switch`.
        """
        refuse_inside_mutation("pause")
        self.ready().pause_everything(by, note, self._core.now())

    def resume(self, *, by: str | None = None) -> bool:
        """Start jobs and dispatch ticks again; False if nothing was paused."""
        refuse_inside_mutation("resume")
        resumed = self.ready().resume_everything(by, self._core.now())
        self._core.wake()
        return resumed

    @property
    def paused(self) -> QueuePause | None:
        """Who paused everything, when and why; None if it is not paused."""
        return self.ready().kill_switch()

    # Running

    def start(
        self,
        *,
        concurrency: int | None = None,
        threads: int | None = None,
        queues: Sequence[str] | None = None,
        beat_every: float = HEARTBEAT_SECONDS,
        ticker: bool = True,
    ) -> None:
        """Run jobs in background threads of this process.

        `concurrency`, `threads`: instead of the app's own settings.
        `ticker=False`: leave schedules to other processes.
        """
        with self._core.lock:
            if self._core.service is not None and self._core.service.is_here:
                return
            own = self._core.settings.concurrency
            service = self.service(
                concurrency=concurrency or own or EMBEDDED_CONCURRENCY,
                threads=threads,
                queues=queues,
                beat_every=beat_every,
                ticker=ticker,
            )
            self._apply_declared()
            service.start()
            self._core.service = service
            warn_about_pools(service.worker.max_threads)

    def _apply_declared(self) -> None:
        """Apply declared schedules, so that they exist when `start` returns."""
        try:
            self._program.apply_declared()
        except StoreError as error:
            log.warning("declared schedules: %s; the ticker will try again", error)

    def stop(self, drain: Delay = DRAIN_SECONDS) -> None:
        """Stop the worker: running jobs may finish, jobs that have not started are given back."""
        with self._core.lock:
            service, self._core.service = self._core.service, None
        if service is not None and service.is_here:
            seconds = drain.total_seconds() if isinstance(drain, timedelta) else drain
            service.stop(seconds)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            await self._core.threads.call(self.start)
        except asyncio.CancelledError:
            # It may still be starting: stopping waits for that.
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await to_the_end(asyncio.ensure_future(self._core.threads.call(self.stop)))

    @asynccontextmanager
    async def lifespan(self, web: object) -> AsyncGenerator[None]:
        """For `FastAPI(lifespan=app.lifespan)` and Starlette: run jobs while the server runs."""
        async with self:
            yield

    def service(
        self,
        *,
        concurrency: int | None = None,
        threads: int | None = None,
        drain: float = DRAIN_SECONDS,
        **settings: Any,
    ) -> Service:
        """The loops of a worker process, not started; `duly worker` runs them.

        `concurrency`, `threads`: instead of the app's own settings.
        `drain`: how many seconds a job in a separate process has to finish.
        """
        refuse_while_importing()
        self.ready()
        return Service(
            self._program,
            concurrency=concurrency or self._core.settings.concurrency or CONCURRENCY,
            threads=threads or self._core.settings.threads or THREADS,
            **self._core.settings.keep,
            alone_runs=AloneRuns(self._program, self._alone_command(drain)),
            **settings,
        )

    def ticker_service(self) -> TickerService:
        """A ticker and a janitor, not started; `duly ticker` runs them."""
        refuse_while_importing()
        self.ready()
        self._core.import_modules()
        return TickerService(self._program, **self._core.settings.keep)

    def asgi(
        self,
        *,
        auth: str | Callable[[Any], Any] = "tokens",
        login: str | None = None,
        only: Collection[str] | None = None,
        hosts: Collection[str] | None = None,
        metrics_open: bool = False,
        read_only: bool = False,
    ) -> ASGIApp:
        """Return the server as an ASGI application: `api.mount("/ops", app.asgi(auth=who))`.

        `auth`: "tokens"; or a function that receives the request and returns a
        `duly.server.Principal`, or None, for requests without a token; or "open" to allow everyone.
        `login`: your own login page, to which browsers without a session are redirected, such as
        "/login?next={next}". `only`: some of dashboard, api, hooks, health. `hosts`: the host names
        that are accepted. `metrics_open`: serve metrics without a token too. `read_only`: limit
        every principal to reading.
        """
        if find_spec("fastapi") is None:
            raise MissingExtra("server", "app.asgi")
        server = importlib.import_module("duly.server")
        made: ASGIApp = server.make_asgi(
            self,
            auth=auth,
            login=login,
            only=only,
            hosts=hosts,
            metrics_open=metrics_open,
            read_only=read_only,
        )
        return made

    def import_path(self) -> str | None:
        """`module:name`, or `file.py:name`, where another process finds this app."""
        return self.found_at or _find_in_modules(self)

    def command(self) -> list[str] | None:
        """How another process runs the command line bound to this app; None if it cannot."""
        path = self.import_path()
        if path is None or find_spec("click") is None:
            return None
        return [sys.executable, "-m", "duly", "--app", path]

    def _alone_command(self, drain: float) -> Command | None:
        command = self.command()
        if command is None:
            return None
        worker = [*command, "worker", f"--drain={drain}"]
        return lambda job_id, file: [*worker, f"--alone={job_id}", f"--child={file}"]

    def main(self, args: Sequence[str] | None = None, *, program: str | None = None) -> None:
        """Run the command line, bound to this app, with `args` or the arguments of the process."""
        cli = importlib.import_module("duly.cli")
        cli.main(obj=self, args=args, program=program)


# Setting up --------------------------------------------------------------------------------------


def _frame(depth: int) -> FrameType:
    """The caller of the caller, and so on. `inspect.stack` is slow: it reads all frames."""
    frame = inspect.currentframe()
    for _ in range(depth + 1):
        assert frame is not None
        frame = frame.f_back
    assert frame is not None
    return frame


def _find_in_modules(app: Duly) -> str | None:
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is app and not name.startswith("_"):
                if module.__name__ != "__main__":
                    return f"{module.__name__}:{name}"
                file = getattr(module, "__file__", None)
                return f"{Path(file).resolve()}:{name}" if file else None
    return None


def _without_builtins(worker: WorkerInfo) -> WorkerInfo:
    functions = tuple(name for name in worker.functions if not is_reserved(name))
    return msgspec.structs.replace(worker, functions=functions)


def _kind(kind: Kind | str | None) -> Kind | None:
    try:
        return None if kind is None else Kind(kind)
    except ValueError:
        raise InvalidOption("kind", f"must be one of {', '.join(Kind)}, not {kind!r}") from None
