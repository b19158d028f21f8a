"""What a function gets as its first argument, and what it can do with it.

`Tx` is the transaction of a mutation, `Ctx` and `AsyncCtx` belong to actions. All of them, and the
app itself, share one set of verbs.
"""

# What callers without a type checker hand in is not always what the types say.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from duly.errors import (
    Canceled,
    CannotCancelSelf,
    InvalidFunction,
    InvalidOption,
    JobNotFound,
    TooManyJobs,
    TransactionEnded,
)
from duly.functions import Call, Delay, Function, Instant, Mutation, after, at, new_job
from duly.ids import is_id
from duly.inside import mutation_body, refuse_inside_mutation
from duly.jobs import AsyncJob, Job, job_from
from duly.model.job import JobFilter, JobRecord, Kind, NewJob, State
from duly.runtime.program import NeedsAlone, Running
from duly.store.base import Rows, StoreTx

if TYPE_CHECKING:
    from duly.core import Core

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

MAX_JOBS_PER_MUTATION = 1_000
MAX_BYTES_PER_MUTATION = 8 << 20
MAX_LISTED = 10_000


class Verbs(ABC):
    """Calling functions later, and looking after the calls: the same on app, tx and ctx."""

    _core: Core

    @abstractmethod
    def _insert(self, jobs: Sequence[NewJob]) -> None:
        """Store new jobs in whatever transaction this object stands for."""

    @abstractmethod
    def _get(self, job_id: str) -> JobRecord | None: ...

    @abstractmethod
    def _list(self, filter: JobFilter) -> Sequence[JobRecord]: ...

    @abstractmethod
    def _cancel(self, job_id: str) -> bool | None: ...

    def _parent_id(self) -> str | None:
        return None

    def run(self, function: Function[P, R], *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Call the function as soon as a worker is free."""
        call = self._bind(function, args, kwargs)
        now = self._core.now()
        return self._enqueue(call, now, now)

    def run_after(
        self, delay: Delay, function: Function[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> Job[R]:
        """Call the function so many seconds from now (or a timedelta)."""
        call = self._bind(function, args, kwargs)
        now = self._core.now()
        return self._enqueue(call, after(delay, now), now)

    def run_at(
        self, when: Instant, function: Function[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> Job[R]:
        """Call the function at an aware datetime, or at milliseconds since 1970 UTC."""
        call = self._bind(function, args, kwargs)
        now = self._core.now()
        return self._enqueue(call, at(when, now), now)

    def run_many(self, calls: Iterable[Call[R]]) -> list[Job[R]]:
        """Call many functions, all or none, in one statement: `run_many(f.bind(x) for x in xs)`."""
        bound = [self._checked(call) for call in calls]
        now = self._core.now()
        parent_id = self._parent_id()
        jobs = [new_job(call, now, now, parent_id) for call in bound]
        if jobs:
            self._insert(jobs)
        return [self._handle(call, job) for call, job in zip(bound, jobs, strict=True)]

    def job(self, job_id: str) -> Job[Any]:
        """The job with that id; JobNotFound if there is none."""
        record = self._get(job_id)
        if record is None:
            raise JobNotFound(job_id)
        return self._from_record(record)

    def jobs(
        self,
        *,
        state: State | str | None = None,
        function: Function[..., Any] | str | None = None,
        queue: str | None = None,
        owner: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[Job[Any]]:
        """Jobs that match, newest first; `before` is the last id of the page before."""
        filter = JobFilter(
            state=_state(state),
            function=_name(function),
            queue=queue,
            owner=owner,
            before_id=_page(before),
            limit=_limit(limit),
        )
        return [self._from_record(record) for record in self._list(filter)]

    def cancel(self, job: Job[Any] | str) -> bool:
        """Cancel a job and what it has scheduled; False if it was finished already."""
        job_id = job if isinstance(job, str) else job.id
        won = self._cancel(job_id)
        if won is None:
            raise JobNotFound(job_id)
        return won

    def _bind(
        self, function: Function[..., R], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Call[R]:
        if not isinstance(function, Function):
            name = getattr(function, "__name__", repr(function))
            raise InvalidFunction(f"{name} is not registered; decorate it with @app.action")
        self._core.check_registered(function)
        return Call(function, function.signature.encode(args, kwargs))

    def _checked(self, call: Call[R]) -> Call[R]:
        if not isinstance(call, Call):
            raise InvalidFunction(f"run_many takes bound calls, f.bind(...), not {call!r}")
        self._core.check_registered(call.function)
        return call

    def _enqueue(self, call: Call[R], scheduled_at: int, now: int) -> Job[R]:
        job = new_job(call, scheduled_at, now, self._parent_id())
        self._insert([job])
        return self._handle(call, job)

    def _handle(self, call: Call[R], job: NewJob) -> Job[R]:
        return Job(self._core, job.id, call.function.signature.decode_result, self._get)

    def _from_record(self, record: JobRecord) -> Job[Any]:
        return job_from(self._core, record, self._get)


class Tx(Verbs):
    """One database transaction: everything done through it happens together or not at all.

    A mutation gets it as its first argument; `app.transaction()` opens one outside any job.
    """

    def __init__(
        self,
        core: Core,
        store_tx: StoreTx,
        *,
        running: Running | None = None,
        parent_id: str | None = None,
        shared: bool = False,
    ) -> None:
        self._core = core
        self._tx: StoreTx | None = store_tx
        self._running = running
        self._parent = parent_id
        self._shared = shared
        self._scheduled = 0
        self._bytes = 0
        self._doomed: Exception | None = None
        self.due_now = False

    @property
    def job_id(self) -> str | None:
        """The id of the job that runs this mutation; None in `app.transaction()`."""
        return self._running.claim.id if self._running else None

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._running.claim.attempt if self._running else 1

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run a statement in the transaction. `?` marks a parameter on every database."""
        return self._open().execute(sql, parameters)

    @property
    def connection(self) -> Any:
        """The driver's own connection, inside the transaction. Do not commit it."""
        tx = self._open()
        if self._shared:
            raise NeedsAlone
        return tx.connection

    @contextmanager
    def savepoint(self) -> Generator[None]:
        """What happens inside is undone, alone, when the block raises."""
        before = self._scheduled, self._bytes
        try:
            with self._open().savepoint():
                yield
        except BaseException:
            self._scheduled, self._bytes = before
            raise

    def _open(self) -> StoreTx:
        if self._tx is None:
            raise TransactionEnded("the transaction of this tx is over; do not keep it")
        if self._running is not None and self._running.canceled:
            raise Canceled("this job was canceled or timed out; its transaction is rolled back")
        return self._tx

    def _insert(self, jobs: Sequence[NewJob]) -> None:
        tx = self._open()
        self._count(jobs)
        tx.insert_jobs(jobs)
        self.due_now = True

    def _count(self, jobs: Sequence[NewJob]) -> None:
        self._scheduled += len(jobs)
        self._bytes += sum(len(job.args.encode()) for job in jobs)
        if self._scheduled > MAX_JOBS_PER_MUTATION:
            self._doom(f"a mutation may schedule {MAX_JOBS_PER_MUTATION:,} jobs, not more")
        if self._bytes > MAX_BYTES_PER_MUTATION:
            self._doom(f"a mutation may schedule {MAX_BYTES_PER_MUTATION:,} bytes of arguments")

    def _doom(self, message: str) -> None:
        self._doomed = TooManyJobs(message)
        raise self._doomed

    def _get(self, job_id: str) -> JobRecord | None:
        return self._core.get(job_id) if self._tx is None else self._open().get(job_id)

    def _list(self, filter: JobFilter) -> Sequence[JobRecord]:
        return self._open().find(filter)

    def _cancel(self, job_id: str) -> bool | None:
        if job_id == self.job_id:
            raise CannotCancelSelf
        tx = self._open()
        caller = self.job_id or self._parent
        won = tx.cancel(job_id, f"job:{caller}" if caller else "operator", self._core.clock.now())
        # An ancestor takes its descendants along, and this job may be one of them.
        if won and self._running is not None and not tx.lock_running(*_fence(self._running)):
            self._doomed = CannotCancelSelf()
            raise self._doomed
        return won

    def _parent_id(self) -> str | None:
        return self._parent

    def end(self) -> None:
        """The transaction is about to end: nothing may be done with it any more."""
        self._tx = None

    def raise_if_doomed(self) -> None:
        """A limit was passed: swallowing the exception does not save the transaction."""
        if self._doomed is not None:
            raise self._doomed


class Ctx(Verbs):
    """What a sync action knows of its job, and how it calls other functions."""

    def __init__(self, core: Core, running: Running) -> None:
        self._core = core
        self._running = running

    @property
    def job_id(self) -> str:
        """The id of the job that runs this action."""
        return self._running.claim.id

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._running.claim.attempt

    @property
    def canceled(self) -> bool:
        """Whether the job was canceled or timed out: its result will be dropped."""
        return self._running.canceled

    def check(self) -> None:
        """Raise Canceled if the job was canceled or timed out."""
        if self.canceled:
            raise Canceled("this job was canceled or timed out; its result is dropped")

    def call(self, mutation: Mutation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a mutation now, in a transaction of its own, and return what it returns."""
        if not isinstance(mutation, Mutation):
            raise InvalidFunction(f"ctx.call runs a mutation, not {mutation!r}")
        self.check()
        arguments = mutation.signature.decode(mutation.signature.encode(args, kwargs))
        claim = self._running.claim
        with open_tx(self._core, (claim.id, claim.token)) as tx:
            result: R = mutation.body(tx, **arguments)
        return result

    def _insert(self, jobs: Sequence[NewJob]) -> None:
        claim = self._running.claim
        if not self._core.insert_children((claim.id, claim.token), jobs):
            raise Canceled("this job was canceled, so what it schedules is canceled too")

    def _get(self, job_id: str) -> JobRecord | None:
        return self._core.get(job_id)

    def _list(self, filter: JobFilter) -> Sequence[JobRecord]:
        return self._core.find(filter)

    def _cancel(self, job_id: str) -> bool | None:
        return self._core.cancel(job_id, f"job:{self.job_id}")

    def _parent_id(self) -> str | None:
        return self.job_id


class AsyncCtx:
    """What an async action knows of its job; the verbs are those of Ctx, awaited."""

    def __init__(self, core: Core, running: Running) -> None:
        self._ctx = Ctx(core, running)

    @property
    def job_id(self) -> str:
        """The id of the job that runs this action."""
        return self._ctx.job_id

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._ctx.attempt

    @property
    def canceled(self) -> bool:
        """Whether the job was canceled or timed out: its result will be dropped."""
        return self._ctx.canceled

    def check(self) -> None:
        """Raise Canceled if the job was canceled or timed out."""
        self._ctx.check()

    async def run(self, function: Function[P, R], *args: P.args, **kwargs: P.kwargs) -> AsyncJob[R]:
        """Call the function as soon as a worker is free."""
        return AsyncJob(await _in_thread(lambda: self._ctx.run(function, *args, **kwargs)))

    async def run_after(
        self, delay: Delay, function: Function[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncJob[R]:
        """Call the function so many seconds from now (or a timedelta)."""
        return AsyncJob(
            await _in_thread(lambda: self._ctx.run_after(delay, function, *args, **kwargs))
        )

    async def run_at(
        self, when: Instant, function: Function[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> AsyncJob[R]:
        """Call the function at an aware datetime, or at milliseconds since 1970 UTC."""
        return AsyncJob(await _in_thread(lambda: self._ctx.run_at(when, function, *args, **kwargs)))

    async def run_many(self, calls: Iterable[Call[R]]) -> list[AsyncJob[R]]:
        """Call many functions, all or none, in one statement."""
        bound = list(calls)
        return [AsyncJob(job) for job in await _in_thread(lambda: self._ctx.run_many(bound))]

    async def call(self, mutation: Mutation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a mutation now, in a transaction of its own, and return what it returns."""
        return await _in_thread(lambda: self._ctx.call(mutation, *args, **kwargs))

    async def job(self, job_id: str) -> AsyncJob[Any]:
        """The job with that id; JobNotFound if there is none."""
        return AsyncJob(await _in_thread(lambda: self._ctx.job(job_id)))

    async def jobs(
        self,
        *,
        state: State | str | None = None,
        function: Function[..., Any] | str | None = None,
        queue: str | None = None,
        owner: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[AsyncJob[Any]]:
        """Jobs that match, newest first; `before` is the last id of the page before."""
        found = await _in_thread(
            lambda: self._ctx.jobs(
                state=state, function=function, queue=queue, owner=owner, before=before, limit=limit
            )
        )
        return [AsyncJob(job) for job in found]

    async def cancel(self, job: AsyncJob[Any] | Job[Any] | str) -> bool:
        """Cancel a job and what it has scheduled; False if it was finished already."""
        job_id = job if isinstance(job, str) else job.id
        return await _in_thread(lambda: self._ctx.cancel(job_id))


class Bound:
    """A function of one app, as the worker calls it."""

    def __init__(self, core: Core, function: Function[..., Any]) -> None:
        self._core = core
        self._body = function.body
        self.name = function.name
        self.kind: Kind = function.kind
        self.is_async = function.is_async
        self.alone = function.alone
        self.group = function.group
        self.decode: Callable[[str], Mapping[str, Any]] = function.signature.decode
        self.encode_result: Callable[[object], str | None] = function.signature.encode_result

    def call_mutation(
        self, running: Running, tx: StoreTx, arguments: Mapping[str, Any], shared: bool
    ) -> object:
        own = Tx(self._core, tx, running=running, parent_id=running.claim.id, shared=shared)
        try:
            with mutation_body():
                value = self._body(own, **arguments)
        finally:
            own.end()
        own.raise_if_doomed()
        running.scheduled = own.due_now
        return value

    def call_action(self, running: Running, arguments: Mapping[str, Any]) -> object:
        return self._body(Ctx(self._core, running), **arguments)

    def call_async(self, running: Running, arguments: Mapping[str, Any]) -> Awaitable[object]:
        coroutine: Awaitable[object] = self._body(AsyncCtx(self._core, running), **arguments)
        return coroutine


@contextmanager
def open_tx(core: Core, parent: tuple[str, int] | None = None) -> Generator[Tx]:
    """A Tx outside any job; with a parent, its jobs are the children of a running action."""
    refuse_inside_mutation("transaction")
    with core.ready().transaction() as store_tx:
        if parent is not None and not store_tx.lock_running(*parent):
            raise Canceled("this job was canceled; its result is dropped")
        tx = Tx(core, store_tx, parent_id=parent[0] if parent else None)
        try:
            with mutation_body():
                yield tx
        finally:
            tx.end()
        tx.raise_if_doomed()
    if tx.due_now:
        core.wake()


def _fence(running: Running) -> tuple[str, int]:
    return running.claim.id, running.claim.token


def _name(function: Function[..., Any] | str | None) -> str | None:
    return function.name if isinstance(function, Function) else function


def _state(state: State | str | None) -> State | None:
    try:
        return None if state is None else State(state)
    except ValueError:
        raise InvalidOption("state", f"{state!r} is none of {', '.join(State)}") from None


def _page(before: str | None) -> str | None:
    if before is not None and not is_id(before):
        raise InvalidOption("before", f"{before!r} is no job id")
    return before


def _limit(limit: int) -> int:
    if type(limit) is not int or not 1 <= limit <= MAX_LISTED:
        raise InvalidOption("limit", f"must be 1 to {MAX_LISTED:,}, not {limit!r}")
    return limit


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)
