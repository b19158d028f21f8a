"""The contexts `Tx`, `Ctx` and `AsyncCtx` that functions receive as their first argument.

`Tx` is the transaction of a mutation; `Ctx` and `AsyncCtx` belong to actions. All of them share one
set of verbs with the app.
"""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from duly.calls.async_tx import AsyncTransaction, AsyncTx, Lane
from duly.calls.current import IsCurrent
from duly.calls.kinds import AsyncMutation, Mutation
from duly.calls.orm import close_session, open_session
from duly.calls.twins import Twin, awaited
from duly.calls.verbs import NO_EXISTING_JOBS, AsyncVerbs, Verbs
from duly.errors import (
    Canceled,
    CannotCancelSelf,
    InvalidFunction,
    NonRetryable,
    RetryAfter,
    TooManyJobs,
    TransactionEnded,
)
from duly.functions.function import Function
from duly.model.job import JobFilter, JobRecord, Kind, NewJob
from duly.model.progress import check_line, check_progress
from duly.model.schedule import check_cost
from duly.model.workflow import NewEvent
from duly.runtime.program import RunningAttempt, Scrub
from duly.runtime.transaction_guard import mutation_body, refuse_inside_mutation, transaction_block
from duly.store.base import NeedsAlone, Rows, StoreTx

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from duly.core import Core

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

MAX_JOBS_PER_MUTATION = 1_000
MAX_BYTES_PER_MUTATION = 8 << 20
NO_ARGUMENTS: Mapping[str, Any] = {}


class Tx(Verbs):
    """One database transaction: everything done through it commits or rolls back together.

    A mutation gets it as its first argument; `app.transaction()` opens one outside any job.
    """

    _commits_later = True

    def __init__(
        self,
        core: Core,
        store_tx: StoreTx,
        *,
        running: RunningAttempt | None = None,
        parent_id: str | None = None,
        shared: bool = False,
    ) -> None:
        self._core = core
        self._tx: StoreTx | None = store_tx
        self._running = running
        self._parent = parent_id
        self._shared = shared
        self._needs_alone = False
        self._scheduled = 0
        self._bytes = 0
        self._doomed: Exception | None = None
        self._session: Session | None = None
        self.due_now: bool = False
        self._function: str | None = None
        self._arguments: Mapping[str, Any] = NO_ARGUMENTS

    def call_is(self, function: str, arguments: Mapping[str, Any]) -> None:
        """Name the call that runs in the transaction."""
        self._function, self._arguments = function, arguments

    @property
    def job_id(self) -> str | None:
        """The id of the job that runs this mutation; None in `app.transaction()`."""
        return self._running.claim.id if self._running else None

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._running.claim.attempt if self._running else 1

    @property
    def function(self) -> str | None:
        """The name of the mutation that runs; None in `app.transaction()`."""
        return self._function

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the mutation, by name, without defaults and redaction."""
        return MappingProxyType(self._arguments)

    @property
    def state(self) -> Any:
        """What `Duly(worker_lifespan=…)` yielded in this worker process."""
        return self._core.lifespan.state

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Rows:
        """Run a statement in the transaction. `?` marks a parameter on every database."""
        return self._open().execute(sql, parameters)

    @property
    def connection(self) -> Any:
        """The driver's own connection, inside the transaction. Do not commit on it."""
        tx = self._open()
        if self._shared:
            self._needs_alone = True
            raise NeedsAlone
        return tx.connection

    @property
    def session(self) -> Session:
        """A SQLAlchemy Session inside the transaction; it is flushed when the body ends.

        Its commit and rollback do not end the transaction: they release, or return to, a savepoint.
        """
        if self._session is None:
            self._session = open_session(self._core.store, self.connection)
        self._open()
        return self._session

    @contextmanager
    def savepoint(self) -> Generator[None]:
        """Undo what the block does, and only that, if it raises."""
        before = self._scheduled, self._bytes
        # The session's savepoints and duly's must not overlap.
        self.settle()
        try:
            with self._open().savepoint():
                try:
                    yield
                    self.settle()
                except BaseException:
                    self._undo_session()
                    raise
        except BaseException:
            self._scheduled, self._bytes = before
            raise

    def settle(self) -> None:
        """Flush the session and release its savepoint."""
        if self._session is not None:
            self._session.commit()

    def _undo_session(self) -> None:
        if self._session is not None:
            # This fails if the transaction has already failed.
            with suppress(Exception):
                self._session.rollback()

    def _use_session(self, session: Session) -> None:
        """Flush this session when the body ends, and let savepoints include it."""
        self._session = session

    def _interrupt(self) -> None:
        """Called from another thread: make the current statement fail."""
        if (tx := self._tx) is not None:
            tx.interrupt()

    def _open(self) -> StoreTx:
        if self._tx is None:
            raise TransactionEnded("the transaction of this tx has ended; use tx only inside it")
        if self._running is not None and self._running.canceled:
            raise Canceled("this job was canceled or timed out; its transaction is rolled back")
        return self._tx

    def _insert(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        tx = self._open()
        self._count(jobs)
        found = tx.insert_jobs(jobs)
        self.due_now = True
        return found

    def _count(self, jobs: Sequence[NewJob]) -> None:
        self._scheduled += len(jobs)
        self._bytes += sum(len(job.args.encode()) for job in jobs)
        if self._scheduled > MAX_JOBS_PER_MUTATION:
            self._doom(f"a mutation can enqueue at most {MAX_JOBS_PER_MUTATION:,} jobs")
        if self._bytes > MAX_BYTES_PER_MUTATION:
            self._doom(
                f"a mutation can enqueue at most {MAX_BYTES_PER_MUTATION:,} bytes of arguments"
            )

    def _doom(self, message: str) -> None:
        self._doomed = TooManyJobs(message)
        raise self._doomed

    def _get(self, job_id: str) -> JobRecord | None:
        if self._tx is None:
            return self._core.get(job_id)
        record = self._open().get(job_id)
        return None if record is None else self._core.redaction.shown(record)

    def _list(self, filter: JobFilter) -> Sequence[JobRecord]:
        return self._core.redaction.shown_all(self._open().find(filter))

    def _cancel(self, job_id: str) -> bool | None:
        if job_id == self.job_id:
            raise CannotCancelSelf
        tx = self._open()
        caller = self.job_id or self._parent
        won = tx.cancel(job_id, f"job:{caller}" if caller else "operator", self._core.clock.now())
        # An ancestor's cancellation includes its descendants, and this job may be one of them.
        if won and self._running is not None and not tx.lock_running(*_fence(self._running)):
            self._doomed = CannotCancelSelf()
            raise self._doomed
        return won

    def _send(self, event: NewEvent) -> None:
        self._open().send(event, self._core.clock.now())
        self.due_now = True

    def _parent_id(self) -> str | None:
        return self._parent

    def end(self) -> None:
        """End the tx just before its transaction ends: it can no longer be used."""
        self._tx = None
        if self._session is not None:
            close_session(self._session)
            self._session = None

    def raise_if_alone_is_needed(self) -> None:
        """Run the mutation alone if it was refused the connection, even if it caught that error."""
        if self._needs_alone:
            raise NeedsAlone

    def raise_if_doomed(self) -> None:
        """Raise if a limit was exceeded, even if the body caught that exception."""
        if self._doomed is not None:
            raise self._doomed


class Ctx(Verbs):
    """The context of a sync action: information about its job, and methods to enqueue others.

    When the job is canceled or times out, the body continues to run, but the jobs it enqueues do
    not: `run` and similar methods return jobs that are already canceled. `check`, `progress` and
    `call` raise Canceled.
    """

    def __init__(
        self, core: Core, running: RunningAttempt, arguments: Mapping[str, Any] = NO_ARGUMENTS
    ) -> None:
        self._core = core
        self._running = running
        self._arguments = arguments
        self._cost = 0.0
        self._spending = threading.Lock()

    @property
    def job_id(self) -> str:
        """The id of the job that runs this action."""
        return self._running.claim.id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._running.claim.attempt

    @property
    def function(self) -> str:
        """The name of the function that runs, as the job has it."""
        return self._running.claim.function

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the job, by name, without defaults and redaction."""
        return MappingProxyType(self._arguments)

    @property
    def state(self) -> Any:
        """What `Duly(worker_lifespan=…)` yielded in this worker process."""
        return self._core.lifespan.state

    @property
    def canceled(self) -> bool:
        """Whether the job was canceled or timed out; if so, its result will be discarded."""
        return self._running.canceled

    def check(self) -> None:
        """Raise Canceled if the job was canceled or timed out."""
        if self.canceled:
            raise Canceled("this job was canceled or timed out; its result is discarded")

    def progress(self, value: float, note: str | None = None) -> None:
        """Report how far the job is, from 0 to 1; raises Canceled as `check` does.

        Calls are cheap: frequent updates are stored a few times a second; the last one is always
        stored.
        """
        checked = check_progress(value, note)
        self.check()
        self._running.progress(checked, note)

    def log(self, text: str, *, level: str = "info") -> None:
        """Store a log line with the job; read it with `job.logs()`."""
        check_line(text, level)
        self._running.say(level, text)

    def cost(self, amount: float) -> None:
        """Add to the cost of the job, which counts against the budget of its schedule.

        Stored immediately and permanently, whatever the outcome of the job. It has no effect in a
        job that was not called by a schedule.
        """
        checked = check_cost(amount)
        refuse_inside_mutation("cost")
        claim = self._running.claim
        # The sum is stored, not the amount, so a repeated write counts once.
        with self._spending:
            self._core.ready().set_cost(claim.id, claim.token, self._cost + checked)
            self._cost += checked

    def call(self, mutation: Mutation[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a mutation now, in its own transaction, and return what it returns.

        Raises Canceled, and commits nothing, if the job was canceled or timed out.
        """
        if not isinstance(mutation, Mutation):
            raise InvalidFunction(_not_callable_here(mutation))
        with (
            self._calling(mutation, args, kwargs) as arguments,
            open_tx(self._core, self._fence()) as tx,
            IsCurrent(tx),
        ):
            tx.call_is(mutation.name, arguments)
            result: R = self._core.functions.body_of(mutation)(tx, **arguments)
        return result

    @contextmanager
    def _calling(
        self, mutation: Function[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Generator[Mapping[str, Any]]:
        self.check()
        text = mutation.signature.encode(args, kwargs)
        try:
            yield mutation.signature.decode(text)
        except BaseException:
            # Its error may become the error of this job.
            if mutation.signature.redacted:
                self._running.failed_calls.add((mutation.signature.scrub, text))
            raise

    def _fence(self) -> tuple[str, int] | None:
        return _fence(self._running)

    def _insert(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        found = self._core.insert_children(_fence(self._running), jobs)
        # None: this job was canceled, so the new ones are stored as canceled; the body continues.
        return NO_EXISTING_JOBS if found is None else found

    def _get(self, job_id: str) -> JobRecord | None:
        return self._core.get(job_id)

    def _list(self, filter: JobFilter) -> Sequence[JobRecord]:
        return self._core.find(filter)

    def _cancel(self, job_id: str) -> bool | None:
        return self._core.cancel(job_id, f"job:{self.job_id}")

    def _send(self, event: NewEvent) -> None:
        self._core.send(event)

    def _parent_id(self) -> str | None:
        return self.job_id


class AsyncCtx(AsyncVerbs, Twin[Ctx]):
    """The context of an async action: like `Ctx`, with methods that are coroutines.

    When the job is canceled or times out, `CancelledError` is raised in the body wherever it awaits
    anything other than these methods, which behave as on `Ctx`.
    """

    def __init__(
        self, core: Core, running: RunningAttempt, arguments: Mapping[str, Any] = NO_ARGUMENTS
    ) -> None:
        super().__init__(core, Ctx(core, running, arguments))
        self._running = running

    @property
    def job_id(self) -> str:
        """The id of the job that runs this action."""
        return self._sync.job_id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._sync.attempt

    @property
    def function(self) -> str:
        """The name of the function that runs, as the job has it."""
        return self._sync.function

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the job, by name, without defaults and redaction."""
        return self._sync.arguments

    @property
    def state(self) -> Any:
        """What `Duly(worker_lifespan=…)` yielded in this worker process."""
        return self._sync.state

    @property
    def canceled(self) -> bool:
        """Whether the job was canceled or timed out; if so, its result will be discarded."""
        return self._sync.canceled

    def check(self) -> None:
        """Raise Canceled if the job was canceled or timed out."""
        self._sync.check()

    async def progress(self, value: float, note: str | None = None) -> None:
        """Report how far the job is, from 0 to 1, and let other tasks run; see Ctx.progress."""
        self._sync.progress(value, note)
        await asyncio.sleep(0)

    def log(self, text: str, *, level: str = "info") -> None:
        """Store a log line with the job; read it with `job.logs()`."""
        self._sync.log(text, level=level)

    cost: Final = awaited(Ctx.cost)

    async def call(
        self,
        mutation: Mutation[P, R] | AsyncMutation[P, R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Run a mutation now, in its own transaction, and return what it returns; see Ctx.call.

        The body of an async one runs in the current task, so it is canceled with it.
        """
        if not isinstance(mutation, AsyncMutation):
            return await self._do(lambda ctx: ctx.call(mutation, *args, **kwargs), reads=False)
        core, fence = self._core, self._sync._fence()  # pyright: ignore[reportPrivateUsage]
        opening = partial(open_tx, core, fence)
        with self._sync._calling(mutation, args, kwargs) as arguments:  # pyright: ignore[reportPrivateUsage]
            async with AsyncTransaction(core, opening, is_body=fence is not None) as tx:
                tx.call_is(mutation.name, arguments)
                with IsCurrent(tx):
                    result: R = await core.functions.body_of(mutation)(tx, **arguments)
        return result

    async def _insert(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        return await self._do(lambda ctx: ctx._insert(jobs), reads=False)  # pyright: ignore[reportPrivateUsage]

    async def _list(self, filter: JobFilter) -> Sequence[JobRecord]:
        return await self._do(lambda ctx: ctx._list(filter), reads=True)  # pyright: ignore[reportPrivateUsage]

    async def _cancel(self, job_id: str) -> bool | None:
        return await self._do(lambda ctx: ctx._cancel(job_id), reads=False)  # pyright: ignore[reportPrivateUsage]

    async def _send(self, event: NewEvent) -> None:
        await self._do(lambda ctx: ctx._send(event), reads=False)  # pyright: ignore[reportPrivateUsage]

    async def _get(self, job_id: str) -> JobRecord | None:
        with self._running.undisturbed():
            return await self._core.threads.look(partial(self._core.get, job_id))

    async def _do(self, work: Callable[[Ctx], T], reads: bool) -> T:
        with self._running.undisturbed():
            return await super()._do(work, reads)

    async def _off_loop(self, work: Callable[[], T], functions: Iterable[object]) -> T:
        with self._running.undisturbed():
            return await super()._off_loop(work, functions)

    def _parent_id(self) -> str | None:
        return self.job_id


class Bound:
    """A function of one app, as the worker calls it."""

    def __init__(self, core: Core, function: Function[..., Any]) -> None:
        self._core = core
        self._body = core.functions.body_of(function)
        self.name = function.name
        self.kind: Kind = function.kind
        self.is_async = function.is_async
        self.isolated = function.traits.isolate is not None
        # Others would wait for whatever an async body awaits.
        self.alone = function.traits.alone or (self.is_async and not function.traits.group)
        self.group = function.traits.group
        self.decode: Callable[[str], Mapping[str, Any]] = function.signature.decode
        self.encode_result: Callable[[object], str | None] = function.signature.encode_result
        self.scrub: Scrub = function.signature.scrub
        self.hooks = core.functions.hooks_of(function)
        self._result_fault = function.signature.result_fault
        self._retry_on = function.traits.retry_on

    def may_retry(self, error: BaseException) -> bool:
        if isinstance(error, NonRetryable):
            return False
        only = self._retry_on
        return not only or isinstance(error, (RetryAfter, *only))

    def start(self, running: RunningAttempt) -> bool:
        return bool(self._core.ready().start_bodies([_fence(running)]))

    def start_async(self, running: RunningAttempt) -> Awaitable[bool]:
        return self._core.threads.call(partial(self.start, running))

    def prepare(self) -> None:
        self._core.functions.keep_fresh()

    def call_mutation(
        self, running: RunningAttempt, tx: StoreTx, arguments: Mapping[str, Any], shared: bool
    ) -> object:
        own = Tx(self._core, tx, running=running, parent_id=running.claim.id, shared=shared)
        own.call_is(running.claim.function, arguments)
        try:
            if self.is_async:
                value = self._wait_for_body(running, own, arguments)
            else:
                running.context = own
                with mutation_body():
                    value = self._body(own, **arguments)
                    own.settle()
        finally:
            own.end()
            own.raise_if_alone_is_needed()
        own.raise_if_doomed()
        running.scheduled = own.due_now
        return self._checked(running, value)

    def _wait_for_body(
        self, running: RunningAttempt, tx: Tx, arguments: Mapping[str, Any]
    ) -> object:
        """Run the body on the event loop; this thread executes its statements meanwhile."""
        home = self._core.threads.here()
        lane = Lane(home)
        running.context = own = AsyncTx(self._core, tx, lane)
        try:
            with mutation_body():
                body = own._run_body(partial(self.await_body, arguments))  # pyright: ignore[reportPrivateUsage]
                value = running.on_loop(body, home)
                with lane.here():
                    tx.settle()
        finally:
            lane.close()
            with lane.here():
                tx.end()
        return value

    async def await_body(self, arguments: Mapping[str, Any], tx: AsyncTx) -> object:
        """Run the body of an async mutation, on the event loop."""
        value: object = await self._body(tx, **arguments)
        return value

    def call_action(self, running: RunningAttempt, arguments: Mapping[str, Any]) -> object:
        running.context = ctx = Ctx(self._core, running, arguments)
        return self._checked(running, self._body(ctx, **arguments))

    def call_async(
        self, running: RunningAttempt, arguments: Mapping[str, Any]
    ) -> Awaitable[object]:
        running.context = ctx = AsyncCtx(self._core, running, arguments)
        coroutine: Awaitable[object] = self._body(ctx, **arguments)
        return self._later_checked(running, coroutine) if self._core.checks_results else coroutine

    async def _later_checked(self, running: RunningAttempt, value: Awaitable[object]) -> object:
        return self._checked(running, await value)

    def _checked(self, running: RunningAttempt, value: object) -> object:
        """The result; in development and tests, warn if it does not match its annotation."""
        if self._core.checks_results and (fault := self._result_fault(value)):
            log.warning(
                "%s: the result does not match the return annotation: %s; "
                "workers in production do not check this",
                self.name,
                self.scrub(fault, running.claim.args),
            )
        return value


@contextmanager
def open_tx(
    core: Core,
    parent: tuple[str, int] | None = None,
    as_tx: Callable[[StoreTx], Tx] | None = None,
) -> Generator[Tx]:
    """Open a Tx outside any job; with a parent, its jobs are children of a running action.

    `as_tx` makes the Tx of a workflow's step.
    """
    refuse_inside_mutation("transaction")
    core.functions.keep_fresh()
    with core.ready().transaction() as store_tx:
        if parent is not None and not store_tx.lock_running(*parent):
            raise Canceled("this job was canceled; its result is discarded")
        if as_tx is None:
            tx = Tx(core, store_tx, parent_id=parent[0] if parent else None)
        else:
            tx = as_tx(store_tx)
        try:
            with mutation_body() if parent or as_tx else transaction_block():
                yield tx
                tx.settle()
        finally:
            tx.end()
        tx.raise_if_doomed()
    if tx.due_now:
        core.wake()


def _not_callable_here(function: object) -> str:
    if isinstance(function, AsyncMutation):
        return (
            f"{function.name} is an async mutation, which needs an event loop: make the action an "
            "async def and await ctx.call, or enqueue the mutation with ctx.run"
        )
    return f"ctx.call runs a mutation, not {function!r}"


def fence_of(ctx: Ctx) -> tuple[str, int]:
    """What distinguishes the running attempt from all others: the job's id and its token."""
    return _fence(ctx._running)  # pyright: ignore[reportPrivateUsage]


def _fence(running: RunningAttempt) -> tuple[str, int]:
    return running.claim.id, running.claim.token
