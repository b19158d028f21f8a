"""The verbs that enqueue, read and cancel jobs, shared by apps, contexts and handles.

`Verbs` is what the app, `Tx`, `Ctx` and `app.on(...)` have in common; `AsyncVerbs` is the same,
awaited. Each class only defines how jobs are stored, read and canceled in its transaction.
"""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from duly.calls.batches import AsyncBatch, Batch, batch_rows
from duly.calls.jobs import AsyncJob, Job, Read, async_job_from, committed, job_from, state_from
from duly.errors import InvalidFunction, InvalidOption, JobNotFound
from duly.functions.events import encode_event
from duly.functions.function import Call, Function
from duly.functions.new_job import new_jobs
from duly.functions.times import Delay, Instant, after, at
from duly.ids import is_id
from duly.model.function import FunctionInfo
from duly.model.job import JobFilter, JobRecord, NewJob, State, newest_first
from duly.model.workflow import NewEvent

if TYPE_CHECKING:
    from duly.core import Core

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

MAX_LISTED = 10_000
NO_EXISTING_JOBS: Mapping[str, str] = {}


class Verbs(ABC):
    """Enqueue, read and cancel jobs: the same methods on app, tx and ctx."""

    _core: Core
    _commits_later = False
    """Whether jobs stored here are part of a transaction that is still open."""

    @abstractmethod
    def _insert(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        """Store new jobs in this object's transaction.

        Returns, by the id of each job whose key is taken, the id of the existing job.
        """

    @abstractmethod
    def _get(self, job_id: str) -> JobRecord | None: ...

    @abstractmethod
    def _list(self, filter: JobFilter) -> Sequence[JobRecord]: ...

    @abstractmethod
    def _cancel(self, job_id: str) -> bool | None: ...

    @abstractmethod
    def _send(self, event: NewEvent) -> None: ...

    def _parent_id(self) -> str | None:
        return None

    def _reader(self) -> Callable[[str], JobRecord | None]:
        """How the jobs returned here are read later."""
        return self._get

    def run(self, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Enqueue a call that runs as soon as a worker is free."""
        call = bind(self._core, function, args, kwargs)
        now = self._core.now()
        return self._enqueue(call, now, now)

    def run_after(
        self, delay: Delay, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[R]:
        """Enqueue a call that runs after a delay, in seconds or as a timedelta."""
        call = bind(self._core, function, args, kwargs)
        now = self._core.now()
        return self._enqueue(call, after(delay, now), now)

    def run_at(
        self, when: Instant, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[R]:
        """Enqueue a call that runs at an aware datetime, or at milliseconds since 1970 UTC."""
        call = bind(self._core, function, args, kwargs)
        now = self._core.now()
        return self._enqueue(call, at(when, now), now)

    def run_many(self, calls: Iterable[Call[R]]) -> list[Job[R]]:
        """Enqueue many calls, all or none, in one statement: `run_many(f.bind(x) for x in xs)`."""
        bound = admit_all(self._core, calls)
        now = self._core.now()
        parent_id = self._parent_id()
        keep = self._core.settings.idempotency_ms
        jobs = [new_jobs(call, now, now, parent_id, keep) for call in bound]
        found = self._insert([row for rows in jobs for row in rows]) if jobs else NO_EXISTING_JOBS
        return [self._handle(call, rows[0], found) for call, rows in zip(bound, jobs, strict=True)]

    def batch(
        self, calls: Iterable[Call[Any]], *, on_complete: Function[..., Any] | None = None
    ) -> Batch:
        """Enqueue many calls as one batch, all or none.

        `on_complete` is called with `batch_id`, once, when all of them have ended. Calls that find
        an existing job with their key add no member; see `Batch.existing`.
        """
        bound = admit_all(self._core, calls)
        hook = (
            None
            if on_complete is None
            else self._core.functions.admit_hook(on_complete, "batch_id")
        )
        keep = self._core.settings.idempotency_ms
        batch_id, rows = batch_rows(bound, hook, self._core.now(), self._parent_id(), keep)
        found = self._insert(rows) if rows else NO_EXISTING_JOBS
        members = zip(bound, rows, strict=False)
        existing = [self._handle(call, row, found) for call, row in members if row.id in found]
        unseen = len(existing) < len(bound) and self._commits_later
        return Batch(self._core, batch_id, unseen=unseen, existing=existing)

    def job(self, job_id: str) -> Job[Any]:
        """Return the job with that id; JobNotFound if there is none."""
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
        """Return jobs that match, newest first; `before` is the last id on the previous page."""
        filter = job_filter(state, function, queue, owner, before, limit)
        found = [self._list(each) for each in self._core.functions.for_each_name(filter)]
        return [self._from_record(record) for record in newest_first(found, limit)]

    def cancel(self, job: Job[Any] | AsyncJob[Any] | str) -> bool:
        """Cancel a job and the jobs it has enqueued; False if it had finished already."""
        job_id = id_of(job)
        won = self._cancel(job_id)
        if won is None:
            raise JobNotFound(job_id)
        return won

    def send(
        self,
        job: Job[Any] | AsyncJob[Any] | str,
        name: str,
        payload: Any = None,
        *,
        once: str | None = None,
    ) -> None:
        """Send an event to a run of a workflow, which reads it with `ctx.wait_for`.

        `once`: a key; events with the same one are stored once. Raises WorkflowEnded if the run has
        ended.
        """
        job_id = id_of(job)
        record = self._get(job_id)
        if record is None:
            raise JobNotFound(job_id)
        text = encode_event(self._core.functions, record.function, name, payload, once)
        self._send(NewEvent(job_id, name, text, once, self._sender()))

    def _sender(self) -> str | None:
        parent = self._parent_id()
        return None if parent is None else f"job:{parent}"

    def _enqueue(self, call: Call[R], scheduled_at: int, now: int) -> Job[R]:
        keep = self._core.settings.idempotency_ms
        rows = new_jobs(call, scheduled_at, now, self._parent_id(), keep)
        return self._handle(call, rows[0], self._insert(rows))

    def _handle(self, call: Call[R], job: NewJob, found: Mapping[str, str]) -> Job[R]:
        decode = call.function.signature.decode_result
        job_id, existed = found.get(job.id, job.id), job.id in found
        return Job(self._core, job_id, decode, self._reader(), existed=existed)

    def _from_record(self, record: JobRecord) -> Job[Any]:
        return job_from(self._core, record, self._get)


class AsyncVerbs(ABC):
    """The verbs for async code: everything that queries the store is awaited."""

    _core: Core
    _commits_later = False
    """Whether jobs stored here are part of a transaction that is still open."""

    @abstractmethod
    async def _insert(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        """Store new jobs in this object's transaction; see Verbs._insert."""

    @abstractmethod
    async def _get(self, job_id: str) -> JobRecord | None: ...

    @abstractmethod
    async def _list(self, filter: JobFilter) -> Sequence[JobRecord]: ...

    @abstractmethod
    async def _cancel(self, job_id: str) -> bool | None: ...

    @abstractmethod
    async def _send(self, event: NewEvent) -> None: ...

    def _parent_id(self) -> str | None:
        return None

    def _reader(self) -> Read:
        """How the jobs returned here are read later."""
        return committed(self._core)

    async def run(
        self, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncJob[R]:
        """Enqueue a call that runs as soon as a worker is free."""
        call = await self._bind(function, args, kwargs)
        now = self._core.clock.now()
        return await self._enqueue(call, now, now)

    async def run_after(
        self, delay: Delay, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncJob[R]:
        """Enqueue a call that runs after a delay, in seconds or as a timedelta."""
        call = await self._bind(function, args, kwargs)
        now = self._core.clock.now()
        return await self._enqueue(call, after(delay, now), now)

    async def run_at(
        self, when: Instant, function: Function[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncJob[R]:
        """Enqueue a call that runs at an aware datetime, or at milliseconds since 1970 UTC."""
        call = await self._bind(function, args, kwargs)
        now = self._core.clock.now()
        return await self._enqueue(call, at(when, now), now)

    async def run_many(self, calls: Iterable[Call[R]]) -> list[AsyncJob[R]]:
        """Enqueue many calls, all or none, in one statement."""
        given = list(calls)
        work = partial(admit_all, self._core, given)
        functions = [getattr(call, "function", None) for call in given]
        bound = await self._off_loop(work, functions)
        now = self._core.clock.now()
        parent_id = self._parent_id()
        keep = self._core.settings.idempotency_ms
        jobs = [new_jobs(call, now, now, parent_id, keep) for call in bound]
        found = (
            await self._insert([row for rows in jobs for row in rows]) if jobs else NO_EXISTING_JOBS
        )
        return [self._handle(call, rows[0], found) for call, rows in zip(bound, jobs, strict=True)]

    async def batch(
        self, calls: Iterable[Call[Any]], *, on_complete: Function[..., Any] | None = None
    ) -> AsyncBatch:
        """Enqueue many calls as one batch, all or none.

        `on_complete` is called with `batch_id`, once, when all of them have ended. Calls that find
        an existing job with their key add no member; see `Batch.existing`.
        """
        given = list(calls)

        def check() -> tuple[list[Call[Any]], Function[..., Any] | None]:
            hook = (
                None
                if on_complete is None
                else self._core.functions.admit_hook(on_complete, "batch_id")
            )
            return admit_all(self._core, given), hook

        functions = [getattr(call, "function", None) for call in given]
        bound, hook = await self._off_loop(check, [*functions, on_complete])
        now, keep = self._core.clock.now(), self._core.settings.idempotency_ms
        batch_id, rows = batch_rows(bound, hook, now, self._parent_id(), keep)
        found = await self._insert(rows) if rows else NO_EXISTING_JOBS
        members = zip(bound, rows, strict=False)
        existing = [self._handle(call, row, found) for call, row in members if row.id in found]
        unseen = len(existing) < len(bound) and self._commits_later
        return AsyncBatch(self._core, batch_id, unseen=unseen, existing=existing)

    async def job(self, job_id: str) -> AsyncJob[Any]:
        """Return the job with that id; JobNotFound if there is none."""
        record = await self._get(job_id)
        if record is None:
            raise JobNotFound(job_id)
        return self._from_record(record)

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
        """Return jobs that match, newest first; `before` is the last id on the previous page."""
        filter = job_filter(state, function, queue, owner, before, limit)
        found = [await self._list(each) for each in self._core.functions.for_each_name(filter)]
        return [self._from_record(record) for record in newest_first(found, limit)]

    async def cancel(self, job: AsyncJob[Any] | Job[Any] | str) -> bool:
        """Cancel a job and the jobs it has enqueued; False if it had finished already."""
        job_id = id_of(job)
        won = await self._cancel(job_id)
        if won is None:
            raise JobNotFound(job_id)
        return won

    async def send(
        self,
        job: AsyncJob[Any] | Job[Any] | str,
        name: str,
        payload: Any = None,
        *,
        once: str | None = None,
    ) -> None:
        """Send an event to a run of a workflow; see `app.send`."""
        job_id = id_of(job)
        record = await self._get(job_id)
        if record is None:
            raise JobNotFound(job_id)
        known, function = self._core.functions, record.function
        encode = partial(encode_event, known, function, name, payload, once)
        is_here = known.by_any_name(function) is not None
        text = encode() if is_here else await self._core.threads.read(encode)
        parent = self._parent_id()
        sender = None if parent is None else f"job:{parent}"
        await self._send(NewEvent(job_id, name, text, once, sender))

    async def _bind(
        self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Call[Any]:
        work = partial(bind, self._core, function, args, kwargs)
        return await self._off_loop(work, [function])

    async def _off_loop(self, work: Callable[[], T], functions: Iterable[object]) -> T:
        """Run work directly, or in a thread if the store must be queried about these functions."""
        if not self._core.functions.is_fresh():
            # A read, which waits for no lock: calls that do may all wait for this very transaction.
            await self._core.threads.read(self._core.functions.refresh)
        if all(map(self._core.functions.is_here, functions)):
            return work()
        return await self._core.threads.read(work)

    async def _enqueue(self, call: Call[R], scheduled_at: int, now: int) -> AsyncJob[R]:
        keep = self._core.settings.idempotency_ms
        rows = new_jobs(call, scheduled_at, now, self._parent_id(), keep)
        return self._handle(call, rows[0], await self._insert(rows))

    def _handle(self, call: Call[R], job: NewJob, found: Mapping[str, str]) -> AsyncJob[R]:
        decode = call.function.signature.decode_result
        job_id, existed = found.get(job.id, job.id), job.id in found
        return AsyncJob(self._core, job_id, decode, self._reader(), existed=existed)

    def _from_record(self, record: JobRecord) -> AsyncJob[Any]:
        return async_job_from(self._core, record, self._reader())


# Shared ------------------------------------------------------------------------------------------


def bind(
    core: Core, function: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Call[Any]:
    """Check a call and bind its arguments."""
    known = _a_function(function)
    return core.functions.admit(Call(known, known.signature.encode(args, kwargs)))


def _a_function(function: Any) -> Function[..., Any]:
    if not isinstance(function, Function):
        name = getattr(function, "__name__", repr(function))
        hint = (
            "get it with app.function(name)"
            if isinstance(function, str)
            else "decorate it with @app.action or @app.mutation"
        )
        raise InvalidFunction(f"{name} is not a duly function; {hint}")
    return function  # pyright: ignore[reportUnknownVariableType]


def admit_all(core: Core, calls: Iterable[Call[R]]) -> list[Call[R]]:
    seen: dict[str, FunctionInfo | None] = {}
    return [core.functions.admit(_a_call(call), seen) for call in calls]


def _a_call(call: Call[R]) -> Call[R]:
    if not isinstance(call, Call):
        raise InvalidFunction(f"give bound calls, f.bind(...), not {call!r}")
    return call


def id_of(job: Job[Any] | AsyncJob[Any] | str) -> str:
    return job if isinstance(job, str) else job.id


def job_filter(
    state: State | str | None,
    function: Function[..., Any] | str | None,
    queue: str | None,
    owner: str | None,
    before: str | None,
    limit: int,
) -> JobFilter:
    """Check and build the filter of a list."""
    return JobFilter(
        state=state_from(state),
        function=name_of_function(function),
        queue=queue,
        owner=owner,
        before_id=_page(before),
        limit=_limit(limit),
    )


def name_of_function(function: Function[..., Any] | str | None) -> str | None:
    return function.name if isinstance(function, Function) else function


def _page(before: str | None) -> str | None:
    if before is not None and not is_id(before):
        raise InvalidOption("before", f"{before!r} is not a job id")
    return before


def _limit(limit: int) -> int:
    if type(limit) is not int or not 1 <= limit <= MAX_LISTED:
        raise InvalidOption("limit", f"must be 1 to {MAX_LISTED:,}, not {limit!r}")
    return limit
