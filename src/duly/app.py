"""The application: functions, a store and a clock, and the verbs over them."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, Self, overload

from duly.clock import Clock, SystemClock
from duly.connect import make_store
from duly.context import Tx, open_tx
from duly.core import Core
from duly.errors import (
    BadInput,
    InvalidFunction,
    InvalidOption,
    InvalidURL,
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
    words_of,
)
from duly.inside import refuse_inside_mutation
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
from duly.runtime.worker import DRAIN_SECONDS
from duly.store.base import HeldJobs, QueuePause, Store, WorkerInfo
from duly.verbs import Verbs, name_of_function

log = logging.getLogger(__name__)

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
        _check_options(given, name, concurrency, min(retention, exhausted_retention), synchronous)
        assert given is not None
        clock = clock or SystemClock()
        store = make_store(given, _folder_of_caller(), clock, schema, pooler, synchronous)
        self._core = Core(name, clock, store, imports, auto_migrate)
        self.queues = Queues(self._core)
        self._concurrency = concurrency
        self._retention = retention
        self._exhausted_retention = exhausted_retention
        self._lock = threading.RLock()
        self.found_at: str | None = None

    def __repr__(self) -> str:
        return f"<duly app {self.name!r} with {len(self.functions())} functions>"

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
        options = Options(queue, priority, timeout, expires, owner, words_of(tags), retry)

        def register(body: MutationBody[P, R]) -> Mutation[P, R]:
            checked = check_body(body, "Tx", "app.mutation")
            if _is_coroutine(checked):
                raise InvalidFunction(
                    f"{checked.__qualname__}: a mutation is a plain def; use @app.action for async"
                )
            return self._core.register(
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
        options = Options(queue, priority, timeout, expires, owner, words_of(tags), retry)

        def register(body: Any) -> Function[..., Any]:
            is_async = _is_coroutine(body)
            kind = AsyncAction[..., Any] if is_async else Action[..., Any]
            checked = check_body(body, "AsyncCtx" if is_async else "Ctx", "app.action")
            return self._core.register(
                kind(checked, name_of(checked, name), options, internal=internal)
            )

        return register if body is None else register(body)

    def function(self, name: str) -> Function[..., Any]:
        """The function registered under that name."""
        return self._core.function(name)

    def functions(self) -> Mapping[str, Function[..., Any]]:
        """Every registered function by name."""
        return dict(self._core.functions)

    # Database

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def clock(self) -> Clock:
        return self._core.clock

    @property
    def store(self) -> Store:
        """The store; `ready()` also connects it."""
        return self._core.store

    @property
    def core(self) -> Core:
        """What the runtime works with; not for users."""
        return self._core

    def migrate(self) -> list[str]:
        """Create duly's tables, or bring them up to date, also in a new file; the steps taken."""
        return self._core.migrate()

    def ready(self) -> Store:
        """Connect now, and make sure that this code may use the store."""
        return self._core.ready()

    def transaction(self) -> AbstractContextManager[Tx]:
        """A transaction outside any job: `with app.transaction() as tx: …`.

        What is scheduled in it commits or vanishes with the rest.
        """
        return open_tx(self._core)

    def close(self) -> None:
        """Stop what runs and let go of every connection."""
        self.stop()
        self._core.close()

    # Jobs

    def _insert(self, jobs: Sequence[NewJob]) -> None:
        self._core.insert(jobs)

    def _get(self, job_id: str) -> JobRecord | None:
        return self._core.get(job_id)

    def _list(self, filter: JobFilter) -> Sequence[JobRecord]:
        return self._core.find(filter)

    def _cancel(self, job_id: str) -> bool | None:
        return self._core.cancel(job_id, "operator")

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
        if all(chosen is None for chosen in (function, queue, owner, after, before)):
            raise InvalidOption("cancel_all", "say which jobs: a function, queue, owner or time")
        now = self.clock.now()
        filter = JobFilter(
            function=name_of_function(function),
            queue=queue,
            owner=owner,
            run_after=None if after is None else at(after, now),
            run_before=None if before is None else at(before, now),
        )
        return self.ready().cancel_matching(filter, "operator", now)

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
            if self._core.service is not None and self._core.service.is_here:
                return
            service = self.service(
                concurrency=concurrency or self._concurrency,
                queues=queues,
                beat_every=beat_every,
            )
            service.start()
            self._core.service = service

    def stop(self, drain: Delay = DRAIN_SECONDS) -> None:
        """Stop running jobs: those that run may end, those that never started are given back."""
        with self._lock:
            service, self._core.service = self._core.service, None
        if service is not None and service.is_here:
            seconds = drain.total_seconds() if isinstance(drain, timedelta) else drain
            service.stop(seconds)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def service(self, **settings: Any) -> Service:
        """The loops of a worker process, not started; `duly worker` runs them."""
        self.ready()
        return Service(
            self._core,
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


class ActionDecorator(Protocol):
    """What `@app.action(...)` gives: it keeps sync and async bodies apart for type checkers."""

    @overload
    def __call__(self, body: AsyncActionBody[P, R], /) -> AsyncAction[P, R]: ...

    @overload
    def __call__(self, body: ActionBody[P, R], /) -> Action[P, R]: ...


class Queues:
    """Named queues: a paused one starts nothing, and loses nothing."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def pause(self, name: str, *, by: str | None = None, note: str | None = None) -> None:
        """Start no more jobs of this queue; running ones go on."""
        refuse_inside_mutation("queues.pause")
        check_text("queue", name)
        self._core.ready().pause_queue(name, by, note, self._core.clock.now())

    def resume(self, name: str) -> None:
        """Start jobs of this queue again."""
        refuse_inside_mutation("queues.resume")
        self._core.ready().resume_queue(name)
        self._core.wake()

    def paused(self) -> Sequence[QueuePause]:
        """The queues that are paused, by whom and why."""
        return self._core.ready().paused_queues()


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


def _is_coroutine(body: object) -> bool:
    return inspect.iscoroutinefunction(body)
