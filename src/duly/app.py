"""The application: functions, a store and a clock, and the verbs over them."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self, TypeVar, overload
from urllib.parse import unquote, urlsplit

import msgspec

from duly.clock import Clock, SystemClock
from duly.context import (
    Bound,
    Tx,
    Verbs,
    open_tx,
    refuse_inside_mutation,
    refuse_waiting_inside_mutation,
)
from duly.errors import (
    BadInput,
    FunctionConflict,
    InvalidFunction,
    InvalidOption,
    InvalidURL,
    UnknownFunction,
)
from duly.functions import (
    Action,
    ActionBody,
    AsyncAction,
    AsyncActionBody,
    Delay,
    Function,
    Instant,
    Mutation,
    MutationBody,
    Options,
    P,
    R,
    at,
    check_body,
    check_text,
    name_of,
)
from duly.jobs import Job
from duly.model.job import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    JobFilter,
    JobRecord,
    NewJob,
)
from duly.model.retry import Retry
from duly.runtime.alone import AloneRuns, Command
from duly.runtime.beat import BEAT_SECONDS
from duly.runtime.janitor import EXHAUSTED_RETENTION, RETENTION
from duly.runtime.service import Service
from duly.runtime.worker import DRAIN_SECONDS, POLL_SECONDS
from duly.store.base import HeldJobs, QueuePause, Store, WorkerInfo
from duly.store.sqlite import SqliteStore

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Function[..., Any])
ENVIRONMENT_URL = "DULY_DATABASE_URL"
EMBEDDED_CONCURRENCY = 10


class Duly(Verbs):
    """An application: register functions on it, call them later through it.

    Nothing touches the database before it is needed; after a fork a process reconnects by itself.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str = "default",
        imports: Sequence[str] = (),
        clock: Clock | None = None,
        schema: str = "duly",
        pooler: bool = False,
        synchronous: str = "FULL",
        auto_migrate: bool = False,
        concurrency: int = EMBEDDED_CONCURRENCY,
        retention: timedelta = RETENTION,
        exhausted_retention: timedelta = EXHAUSTED_RETENTION,
    ) -> None:
        """Describe the application.

        `url`: sqlite:///shop.db, sqlite:///:memory: or postgresql://…; else DULY_DATABASE_URL.
        `imports`: modules that define functions, imported when a worker starts.
        `schema`, `pooler`, `auto_migrate`: PostgreSQL only. `synchronous`: SQLite only.
        """
        given = url or os.environ.get(ENVIRONMENT_URL)
        _check_options(given, name, concurrency, retention, synchronous)
        assert given is not None
        self._app = self
        self.name = name
        self.clock: Clock = clock or SystemClock()
        self.queues = Queues(self)
        self._imports = tuple(imports)
        self._auto_migrate = auto_migrate
        self._concurrency = concurrency
        self._retention = retention
        self._exhausted_retention = exhausted_retention
        self._functions: dict[str, Function[..., Any]] = {}
        self._service: Service | None = None
        self._lock = threading.RLock()
        self._ready_in: int | None = None
        self.found_at: str | None = None
        self.store: Store = _make_store(
            given, _folder_of_caller(), self.clock, schema, pooler, synchronous
        )

    def __repr__(self) -> str:
        return f"<duly app {self.name!r} with {len(self._functions)} functions>"

    # Functions

    @overload
    def mutation(self, body: MutationBody[P, R], /) -> Mutation[P, R]: ...

    @overload
    def mutation(
        self,
        /,
        *,
        name: str | None = ...,
        queue: str = ...,
        priority: int = ...,
        timeout: Delay | None = ...,
        expires: Delay | datetime | None = ...,
        owner: str | None = ...,
        tags: Sequence[str] = ...,
        retry: Retry | None = ...,
        internal: bool = ...,
        alone: bool = ...,
        group: bool = ...,
    ) -> Callable[[MutationBody[P, R]], Mutation[P, R]]: ...

    def mutation(
        self,
        body: MutationBody[P, R] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        timeout: Delay | None = None,
        expires: Delay | datetime | None = None,
        owner: str | None = None,
        tags: Sequence[str] = (),
        retry: Retry | None = None,
        internal: bool = False,
        alone: bool = False,
        group: bool = False,
    ) -> Mutation[P, R] | Callable[[MutationBody[P, R]], Mutation[P, R]]:
        """Register a function that is one database transaction, run exactly once.

        `alone`: never share a commit with others. `group`: on PostgreSQL, do share one; only for
        bodies that insert and do not update common rows.
        """
        options = Options(queue, priority, timeout, expires, owner, tuple(tags), retry)

        def register(body: MutationBody[P, R]) -> Mutation[P, R]:
            checked = check_body(body, "Tx", "app.mutation")
            if _is_coroutine(checked):
                raise InvalidFunction(
                    f"{checked.__qualname__}: a mutation is a plain def; use @app.action for async"
                )
            return self._register(
                Mutation(
                    checked,
                    name_of(checked, name),
                    options,
                    internal=internal,
                    alone=alone,
                    group=group,
                )
            )

        return register if body is None else register(body)

    @overload
    def action(self, body: AsyncActionBody[P, R], /) -> AsyncAction[P, R]: ...

    @overload
    def action(self, body: ActionBody[P, R], /) -> Action[P, R]: ...

    @overload
    def action(
        self,
        /,
        *,
        name: str | None = ...,
        queue: str = ...,
        priority: int = ...,
        timeout: Delay | None = ...,
        expires: Delay | datetime | None = ...,
        owner: str | None = ...,
        tags: Sequence[str] = ...,
        retry: Retry | None = ...,
        internal: bool = ...,
    ) -> ActionDecorator: ...

    def action(
        self,
        body: Any = None,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        timeout: Delay | None = None,
        expires: Delay | datetime | None = None,
        owner: str | None = None,
        tags: Sequence[str] = (),
        retry: Retry | None = None,
        internal: bool = False,
    ) -> Any:
        """Register a function with side effects, run at most once unless `retry` is given."""
        options = Options(queue, priority, timeout, expires, owner, tuple(tags), retry)

        def register(body: Any) -> Function[..., Any]:
            is_async = _is_coroutine(body)
            kind = AsyncAction[..., Any] if is_async else Action[..., Any]
            checked = check_body(body, "AsyncCtx" if is_async else "Ctx", "app.action")
            return self._register(kind(checked, name_of(checked, name), options, internal=internal))

        return register if body is None else register(body)

    def _register(self, function: F) -> F:
        known = self._functions.get(function.name)
        if known is not None and not function.is_redefinition_of(known):
            raise FunctionConflict(function.name, known.source(), function.source())
        self._functions[function.name] = function
        return function

    def function(self, name: str) -> Function[..., Any]:
        """The function registered under that name."""
        if name not in self._functions:
            raise UnknownFunction(name, self._functions)
        return self._functions[name]

    def functions(self) -> Mapping[str, Function[..., Any]]:
        """Every registered function by name."""
        return dict(self._functions)

    def check_registered(self, function: Function[..., Any]) -> None:
        """Refuse a function of another app: no worker of this one would know it."""
        known = self._functions.get(function.name)
        if known is None or known.signature is not function.signature:
            raise UnknownFunction(function.name, self._functions)

    def runnables(self) -> Mapping[str, Bound]:
        """Every function as the worker calls it; modules imported, type hints resolved."""
        for module in self._imports:
            importlib.import_module(module)
        for function in self._functions.values():
            function.signature.resolve()
        return {name: Bound(self, function) for name, function in self._functions.items()}

    def result_decoder(self, record: JobRecord) -> Callable[[str | None], Any]:
        """How a stored result is read: by the function's annotation, if it is known here."""
        function = self._functions.get(record.function)
        return function.signature.decode_result if function else _plain_json

    # Database

    def migrate(self) -> list[str]:
        """Create duly's tables, or bring them up to date, also in a new file; the steps taken."""
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

    def transaction(self, *, parent: tuple[str, int] | None = None) -> AbstractContextManager[Tx]:
        """A transaction outside any job: `with app.transaction() as tx: …`.

        What is scheduled in it commits or vanishes with the rest.
        """
        refuse_inside_mutation("transaction")
        return open_tx(self, self.ready().transaction(), parent)

    def close(self) -> None:
        """Stop what runs and let go of every connection."""
        self.stop()
        self.store.close()
        self._ready_in = None

    # What the verbs stand on

    def _insert(self, jobs: Sequence[NewJob]) -> None:
        refuse_inside_mutation("run")
        self.ready().enqueue(jobs)
        self._wake_for(jobs)

    def insert_children(self, parent: tuple[str, int], jobs: Sequence[NewJob]) -> bool:
        """Store jobs of a running action; False if it was canceled, and so are they."""
        refuse_inside_mutation("run")
        alive = self.ready().enqueue_child(parent, jobs, f"parent:{parent[0]}", self.clock.now())
        self._wake_for(jobs)
        return alive

    def _get(self, job_id: str) -> JobRecord | None:
        return self.read(job_id)

    def _list(self, filter: JobFilter) -> Sequence[JobRecord]:
        return self.read_many(filter)

    def _cancel(self, job_id: str) -> bool | None:
        return self.cancel_as(job_id, "operator")

    def read(self, job_id: str) -> JobRecord | None:
        """The job as it is committed."""
        return self.ready().get(job_id)

    def read_many(self, filter: JobFilter) -> Sequence[JobRecord]:
        """Jobs as they are committed."""
        return self.ready().find(filter)

    def cancel_as(self, job_id: str, by: str) -> bool | None:
        """Cancel in somebody's name."""
        refuse_inside_mutation("cancel")
        return self.ready().cancel(job_id, by, self.clock.now())

    def cancel_all(
        self,
        function: Function[..., Any] | str | None = None,
        *,
        queue: str | None = None,
        owner: str | None = None,
        after: Instant | None = None,
        before: Instant | None = None,
    ) -> int:
        """Cancel every unfinished job of a function, due in [after, before); how many were.

        Works in batches, each a transaction of its own.
        """
        refuse_inside_mutation("cancel_all")
        now = self.clock.now()
        filter = JobFilter(
            function=function.name if isinstance(function, Function) else function,
            queue=queue,
            owner=owner,
            run_after=None if after is None else at(after, now),
            run_before=None if before is None else at(before, now),
        )
        return self.ready().cancel_matching(filter, "operator", now)

    def children(self, job_id: str) -> list[Job[Any]]:
        """The jobs that a job has scheduled, newest first."""
        filter = JobFilter(parent_id=job_id, limit=10_000)
        return [self._from_record(record) for record in self.read_many(filter)]

    def refuse_waiting(self) -> None:
        """A mutation must not wait for a job."""
        refuse_waiting_inside_mutation()

    def workers(self) -> Sequence[WorkerInfo]:
        """The workers that are registered now."""
        return self.ready().workers()

    def held(self) -> Sequence[HeldJobs]:
        """Jobs that cannot start for a reason of their own, by reason and function."""
        return self.ready().held()

    # Running

    def start(
        self,
        *,
        concurrency: int | None = None,
        queues: Sequence[str] | None = None,
        beat_every: float = BEAT_SECONDS,
    ) -> None:
        """Run jobs in threads of this process, beside whatever it does."""
        with self._lock:
            if self._service is not None and self._service.is_here:
                return
            self.ready()
            service = Service(
                self,
                concurrency=concurrency or self._concurrency,
                queues=queues,
                beat_every=beat_every,
                retention=self._retention,
                exhausted_retention=self._exhausted_retention,
                alone_runs=AloneRuns(self._alone_command()),
            )
            service.start()
            self._service = service

    def stop(self, drain: Delay = DRAIN_SECONDS) -> None:
        """Stop running jobs: those that run may end, those that never started are given back."""
        with self._lock:
            service, self._service = self._service, None
        if service is not None and service.is_here:
            seconds = drain.total_seconds() if isinstance(drain, timedelta) else drain
            service.stop(seconds)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def wake(self) -> None:
        """There may be something to do: tell the workers here and elsewhere."""
        service = self._service
        if service is not None:
            service.worker.loop.wake()
        self.store.ring()

    def _wake_for(self, jobs: Iterable[NewJob]) -> None:
        # Whoever sleeps looks again after a poll; only what is due earlier has to wake it.
        before = self.clock.now() + POLL_SECONDS * 1000
        if any(job.run_at < before for job in jobs):
            self.wake()

    def service(self, **settings: Any) -> Service:
        """The loops of a worker process, not started; `duly worker` runs them."""
        self.ready()
        return Service(
            self,
            retention=self._retention,
            exhausted_retention=self._exhausted_retention,
            alone_runs=AloneRuns(self._alone_command()),
            **settings,
        )

    def import_path(self) -> str | None:
        """`module:name`, or `file.py:name`, under which another process finds this app."""
        return self.found_at or _find_in_modules(self)

    def _alone_command(self) -> Command | None:
        path = self.import_path()
        if path is None:
            return None
        duly = [sys.executable, "-m", "duly", "--app", path, "worker"]
        return lambda job_id, file: [*duly, f"--alone={job_id}", f"--child={file}"]

    def main(self) -> None:
        """The command line, bound to this app."""
        cli = importlib.import_module("duly.cli")
        cli.main(obj=self)


class ActionDecorator:
    """What `@app.action(...)` gives: it keeps sync and async bodies apart for type checkers."""

    @overload
    def __call__(self, body: AsyncActionBody[P, R], /) -> AsyncAction[P, R]: ...

    @overload
    def __call__(self, body: ActionBody[P, R], /) -> Action[P, R]: ...

    def __call__(self, body: Any, /) -> Any:
        raise NotImplementedError


class Queues:
    """Named queues: a paused one starts nothing, and loses nothing."""

    def __init__(self, app: Duly) -> None:
        self._app = app

    def pause(self, name: str, *, by: str | None = None, note: str | None = None) -> None:
        """Start no more jobs of this queue; running ones go on."""
        refuse_inside_mutation("queues.pause")
        check_text("queue", name)
        self._app.ready().pause_queue(name, by, note, self._app.clock.now())

    def resume(self, name: str) -> None:
        """Start jobs of this queue again."""
        refuse_inside_mutation("queues.resume")
        self._app.ready().resume_queue(name)
        self._app.wake()

    def paused(self) -> Sequence[QueuePause]:
        """The queues that are paused, by whom and why."""
        return self._app.ready().paused_queues()


# Setting up --------------------------------------------------------------------------------------


def _check_options(
    url: str | None, name: str, concurrency: int, retention: timedelta, synchronous: str
) -> None:
    """Every fault at once, so that one start shows them all."""
    faults: list[BadInput] = []
    if not url:
        faults.append(InvalidURL(f"give a database URL, or set {ENVIRONMENT_URL}"))
    if not name or not name.isprintable():
        faults.append(InvalidOption("name", f"must be printable text, not {name!r}"))
    if concurrency < 1:
        faults.append(InvalidOption("concurrency", f"must be at least 1, not {concurrency}"))
    if retention <= timedelta(0):
        faults.append(InvalidOption("retention", "must be positive"))
    if synchronous not in ("FULL", "NORMAL", "EXTRA"):
        faults.append(InvalidOption("synchronous", "must be FULL, NORMAL or EXTRA"))
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise InvalidOption("Duly(...)", "; ".join(str(fault) for fault in faults))


def _make_store(
    url: str, folder: Path, clock: Clock, schema: str, pooler: bool, synchronous: str
) -> Store:
    scheme = url.partition("://")[0].partition("+")[0]
    if scheme == "sqlite":
        return SqliteStore(_sqlite_path(url, folder), synchronous=synchronous)
    if scheme in ("postgres", "postgresql"):
        postgres = importlib.import_module("duly.store.postgres")
        follow = clock.follow_server if isinstance(clock, SystemClock) else None
        store: Store = postgres.PostgresStore(
            url, schema=schema, pooler=pooler, follow_clock=follow
        )
        return store
    raise InvalidURL(
        f"{without_password(url)!r} is no database URL; "
        "use sqlite:///file.db or postgresql://user@host/name"
    )


def _sqlite_path(url: str, folder: Path) -> Path | None:
    """None is a private temporary file. A relative path starts at the app module's folder."""
    rest = url.partition("://")[2]
    if not rest.startswith("/") or rest == "/":
        raise InvalidURL(
            f"{url!r} names no file; use sqlite:///relative.db or sqlite:////absolute.db"
        )
    name = unquote(rest[1:].partition("?")[0])
    if name == ":memory:":
        return None
    path = Path(name)
    if not path.is_absolute():
        path = folder / path
        log.info("using the database at %s", path)
    return path


def _folder_of_caller() -> Path:
    """The folder of the module that makes the app, so that every process finds the same file."""
    frame = inspect.stack(0)[2].frame
    file = frame.f_globals.get("__file__")
    return Path(file).resolve().parent if file else Path.cwd()


def _find_in_modules(app: Duly) -> str | None:
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is app and not name.startswith("_"):
                if module.__name__ != "__main__":
                    return f"{module.__name__}:{name}"
                file = getattr(module, "__file__", None)
                return f"{Path(file).resolve()}:{name}" if file else None
    return None


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    with contextlib.suppress(ValueError):
        password = urlsplit(url).password
        if password:
            return url.replace(f":{password}@", ":***@")
    return url


def _is_coroutine(body: object) -> bool:
    return inspect.iscoroutinefunction(body)


def _plain_json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
