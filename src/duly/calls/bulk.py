"""Bulk changes: cancel, retry or reschedule all jobs that match a filter, in one job.

`app.bulk` stores a job of an internal function, which every worker has. The job processes the
matching jobs in the order of their ids, one page per transaction. The same transaction updates the
job's own arguments with its progress. So if an attempt dies, the next one continues after its last
page, and no page is processed twice.
"""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import msgspec

from duly.calls.batches import AsyncBatch, Batch
from duly.calls.context import Ctx, fence_of
from duly.calls.jobs import AsyncJob, Job, committed
from duly.calls.kinds import Action
from duly.calls.replay import REMEMBERED_MS, all_again, within_bytes
from duly.calls.verbs import job_filter, name_of_function
from duly.errors import Canceled, InvalidOption, NonRetryable, QueryTooBroad
from duly.functions.checks import check_text
from duly.functions.function import Function
from duly.functions.new_job import new_job, tracked
from duly.functions.options import Options
from duly.functions.times import Delay, Instant, after, at
from duly.ids import FIRST_ID, is_id, new_id
from duly.model.audit import NewAuditEntry
from duly.model.function import is_reserved
from duly.model.job import MAX_PRIORITY, JobFilter, JobRecord, State
from duly.model.retry import Retry
from duly.runtime.transaction_guard import refuse_inside_mutation
from duly.store.base import CancelJobs, Change, MoveJobs, RepeatJobs

if TYPE_CHECKING:
    from duly.core import Core

NAME = "duly.bulk"
QUEUE = "duly.bulk"
"""Every worker serves it, so that a paused or full queue does not prevent its own jobs from being
canceled."""
RETRY = Retry(attempts=25, cap=60)
PAGE = 500
SAMPLE = 10

Verb = Literal["cancel", "retry", "reschedule"]
Result = dict[str, int]
AnyBatch = Batch | AsyncBatch | str

CHANGEABLE_STATES: dict[Verb, tuple[State, ...]] = {
    "cancel": (State.PENDING, State.RUNNING),
    "retry": (State.FAILED, State.CANCELED),
    "reschedule": (State.PENDING,),
}
"""The states that jobs must be in for each verb."""


class BulkPreview(msgspec.Struct, frozen=True):
    """What a bulk job would change."""

    matched: int
    """How many jobs match now."""
    sample: tuple[str, ...]
    """The oldest of them, by id."""


class JobSelection(TypedDict, total=False):
    """The filter of a bulk change, and who requested it."""

    function: Function[..., Any] | str | None
    queue: str | None
    owner: str | None
    batch: AnyBatch | None
    after: Instant | None
    before: Instant | None
    everything: bool
    by: str | None
    note: str | None


class BulkOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """A bulk change, as it is stored."""

    verb: Verb
    parts: tuple[JobFilter, ...]
    """Filters to process in turn; none matches jobs that are newer than the order itself."""
    run_at: int | None = None
    by: str | None = None
    note: str | None = None


class BulkCheckpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of a bulk change, as it is stored."""

    part: int = 0
    after: str = FIRST_ID
    total: int | None = None
    matched: int = 0
    changed: int = 0

    def result(self) -> Result:
        skipped = self.matched - self.changed
        return {"matched": self.matched, "changed": self.changed, "skipped": skipped}


FIRST_CHECKPOINT = BulkCheckpoint()

# Public interface --------------------------------------------------------------------------------


class Bulk:
    """Cancel, retry or reschedule many jobs by filter; each method stores a job that does it.

    Filters: `function`, `queue`, `owner`, `batch`, and `after` and `before` for jobs that are due
    in [after, before). Without a filter, pass `everything=True`. `by` and `note` record who
    requested the change, and why. Jobs that are stored later are not affected. `dry_run=True`
    only returns what matches now.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    @overload
    def cancel(
        self,
        *,
        state: State | str | None = ...,
        dry_run: Literal[False] = ...,
        **which: Unpack[JobSelection],
    ) -> Job[Result]: ...

    @overload
    def cancel(
        self,
        *,
        state: State | str | None = ...,
        dry_run: Literal[True],
        **which: Unpack[JobSelection],
    ) -> BulkPreview: ...

    def cancel(
        self,
        *,
        state: State | str | None = None,
        dry_run: bool = False,
        **which: Unpack[JobSelection],
    ) -> Job[Result] | BulkPreview:
        """Cancel every unfinished job that matches, pending or running, and its descendants."""
        return self._do(cancel_order(self._core, state, which), dry_run)

    @overload
    def retry(
        self,
        *,
        state: State | str | None = ...,
        dead: bool = ...,
        dry_run: Literal[False] = ...,
        **which: Unpack[JobSelection],
    ) -> Job[Result]: ...

    @overload
    def retry(
        self,
        *,
        state: State | str | None = ...,
        dead: bool = ...,
        dry_run: Literal[True],
        **which: Unpack[JobSelection],
    ) -> BulkPreview: ...

    def retry(
        self,
        *,
        state: State | str | None = None,
        dead: bool = False,
        dry_run: bool = False,
        **which: Unpack[JobSelection],
    ) -> Job[Result] | BulkPreview:
        """Retry every failed or canceled job that matches, each only once; see `app.retry`.

        `dead`: only dead letters.
        """
        return self._do(retry_order(self._core, state, dead, which), dry_run)

    @overload
    def reschedule(
        self,
        *,
        run_at: Instant | None = ...,
        run_after: Delay | None = ...,
        dry_run: Literal[False] = ...,
        **which: Unpack[JobSelection],
    ) -> Job[Result]: ...

    @overload
    def reschedule(
        self,
        *,
        run_at: Instant | None = ...,
        run_after: Delay | None = ...,
        dry_run: Literal[True],
        **which: Unpack[JobSelection],
    ) -> BulkPreview: ...

    def reschedule(
        self,
        *,
        run_at: Instant | None = None,
        run_after: Delay | None = None,
        dry_run: bool = False,
        **which: Unpack[JobSelection],
    ) -> Job[Result] | BulkPreview:
        """Reschedule every pending job that matches to another time, or to a delay from now.

        Their `scheduled_at` does not change. Jobs that have started in the meantime are left alone.
        """
        return self._do(reschedule_order(self._core, run_at, run_after, which), dry_run)

    def _do(self, order: BulkOrder, dry_run: bool) -> Job[Result] | BulkPreview:
        if dry_run:
            return look(self._core, order)
        job_id = enqueue(self._core, order)
        return Job(self._core, job_id, _decoder(self._core), self._core.get)


class AsyncBulk:
    """`Bulk` for async code; its methods are awaited."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @overload
    async def cancel(
        self,
        *,
        state: State | str | None = ...,
        dry_run: Literal[False] = ...,
        **which: Unpack[JobSelection],
    ) -> AsyncJob[Result]: ...

    @overload
    async def cancel(
        self,
        *,
        state: State | str | None = ...,
        dry_run: Literal[True],
        **which: Unpack[JobSelection],
    ) -> BulkPreview: ...

    async def cancel(
        self,
        *,
        state: State | str | None = None,
        dry_run: bool = False,
        **which: Unpack[JobSelection],
    ) -> AsyncJob[Result] | BulkPreview:
        """Cancel every unfinished job that matches; see Bulk.cancel."""
        return await self._do(lambda: cancel_order(self._core, state, which), dry_run)

    @overload
    async def retry(
        self,
        *,
        state: State | str | None = ...,
        dead: bool = ...,
        dry_run: Literal[False] = ...,
        **which: Unpack[JobSelection],
    ) -> AsyncJob[Result]: ...

    @overload
    async def retry(
        self,
        *,
        state: State | str | None = ...,
        dead: bool = ...,
        dry_run: Literal[True],
        **which: Unpack[JobSelection],
    ) -> BulkPreview: ...

    async def retry(
        self,
        *,
        state: State | str | None = None,
        dead: bool = False,
        dry_run: bool = False,
        **which: Unpack[JobSelection],
    ) -> AsyncJob[Result] | BulkPreview:
        """Retry every failed or canceled job that matches; see Bulk.retry."""
        return await self._do(lambda: retry_order(self._core, state, dead, which), dry_run)

    @overload
    async def reschedule(
        self,
        *,
        run_at: Instant | None = ...,
        run_after: Delay | None = ...,
        dry_run: Literal[False] = ...,
        **which: Unpack[JobSelection],
    ) -> AsyncJob[Result]: ...

    @overload
    async def reschedule(
        self,
        *,
        run_at: Instant | None = ...,
        run_after: Delay | None = ...,
        dry_run: Literal[True],
        **which: Unpack[JobSelection],
    ) -> BulkPreview: ...

    async def reschedule(
        self,
        *,
        run_at: Instant | None = None,
        run_after: Delay | None = None,
        dry_run: bool = False,
        **which: Unpack[JobSelection],
    ) -> AsyncJob[Result] | BulkPreview:
        """Reschedule every pending job that matches; see Bulk.reschedule."""
        return await self._do(
            lambda: reschedule_order(self._core, run_at, run_after, which), dry_run
        )

    async def _do(
        self, order: Callable[[], BulkOrder], dry_run: bool
    ) -> AsyncJob[Result] | BulkPreview:
        core = self._core
        if dry_run:
            return await core.threads.read(lambda: look(core, order()))
        job_id = await core.threads.call(lambda: enqueue(core, order()))
        return AsyncJob(core, job_id, _decoder(core), committed(core))


def look(core: Core, order: BulkOrder) -> BulkPreview:
    """What the order would change now."""
    store, live = core.ready(), order.verb != "retry"
    sample: list[str] = []
    for part in order.parts:
        few = msgspec.structs.replace(part, limit=SAMPLE)
        sample += store.live_ids(few, FIRST_ID) if live else _ids(store.finished(few, FIRST_ID))
    return BulkPreview(count(core, order), tuple(sorted(sample)[:SAMPLE]))


def count(core: Core, order: BulkOrder) -> int:
    """How many jobs match now."""
    store, live = core.ready(), order.verb != "retry"
    return sum(store.count(part, live=live) for part in order.parts)


def enqueue(
    core: Core, order: BulkOrder, *, id: str | None = None, audit_entry: NewAuditEntry | None = None
) -> str:
    """Store the job that does it, with the owner of its jobs; returns its id."""
    function = core.functions.builtins[NAME]
    call = function.bind(order)
    now = core.now()
    job = tracked(new_job(call, now, now, None), actor=order.by, owner=order.parts[0].owner)
    if id is not None:
        job = msgspec.structs.replace(job, id=id)
    core.insert([job], audit_entry)
    return job.id


def _decoder(core: Core) -> Callable[[str | None], Any]:
    return core.functions.builtins[NAME].signature.decode_result


def _ids(records: Sequence[JobRecord]) -> list[str]:
    return [record.id for record in records]


# Validation --------------------------------------------------------------------------------------

NO_FILTER_MESSAGE = (
    "give at least one of function, queue, owner, batch, after, before, or everything=True"
)
ALL_AND_FILTER_MESSAGE = "everything=True cannot be combined with a filter"


def cancel_order(core: Core, state: State | str | None, which: JobSelection) -> BulkOrder:
    chosen = _state("cancel", state)
    return _order(core, "cancel", [JobFilter(state=chosen)], which, chosen is not None)


def retry_order(
    core: Core, state: State | str | None, dead: bool, which: JobSelection
) -> BulkOrder:
    chosen = _state("retry", state)
    # One state after the other: the index of finished jobs supports that.
    states = CHANGEABLE_STATES["retry"] if chosen is None else (chosen,)
    filters = [JobFilter(state=each, exhausted=True if dead else None) for each in states]
    return _order(core, "retry", filters, which, dead or chosen is not None)


def reschedule_order(
    core: Core, run_at: Instant | None, run_after: Delay | None, which: JobSelection
) -> BulkOrder:
    now = core.now()
    if run_at is not None and run_after is None:
        due_at = at(run_at, now)
    elif run_after is not None and run_at is None:
        due_at = after(run_after, now)
    else:
        raise InvalidOption("reschedule", "give either run_at or run_after")
    order = _order(core, "reschedule", [JobFilter(state=State.PENDING)], which, False)
    return msgspec.structs.replace(order, run_at=max(due_at, now))


def _state(verb: Verb, state: State | str | None) -> State | None:
    chosen = job_filter(state, None, None, None, None, 1).state
    if chosen is not None and chosen not in CHANGEABLE_STATES[verb]:
        raise InvalidOption(
            "state", f"{verb} only applies to {' and '.join(CHANGEABLE_STATES[verb])} jobs"
        )
    return chosen


def _order(
    core: Core, verb: Verb, filters: Sequence[JobFilter], which: JobSelection, narrowed: bool
) -> BulkOrder:
    refuse_inside_mutation(f"bulk.{verb}")
    unknown = which.keys() - JobSelection.__annotations__.keys()
    if unknown:
        raise TypeError(f"{verb}() got an unexpected keyword argument {min(unknown)!r}")
    words = _words(which, core.now())
    chosen = narrowed or any(value is not None for value in words.values())
    if chosen == bool(which.get("everything", False)):
        raise InvalidOption(verb, ALL_AND_FILTER_MESSAGE if chosen else NO_FILTER_MESSAGE)
    for option in ("by", "note"):
        if which.get(option) is not None:
            check_text(option, which.get(option))
    # Anything that is stored from now on has a greater id, as the job itself has.
    words |= {"before_id": new_id(core.now()), "limit": PAGE}
    parts = [
        msgspec.structs.replace(filter, **words | {"function": name})
        for name in core.functions.names_of(words["function"])
        for filter in filters
    ]
    return BulkOrder(verb, tuple(parts), by=which.get("by"), note=which.get("note"))


def _words(which: JobSelection, now: int) -> dict[str, Any]:
    """The filter as it is stored, without the state."""
    function, batch = name_of_function(which.get("function")), _batch_id(which.get("batch"))
    for option, value in (
        ("function", function),
        ("queue", which.get("queue")),
        ("owner", which.get("owner")),
    ):
        if value is not None:
            check_text(option, value)
    if function is not None and is_reserved(function):
        raise InvalidOption("function", f"{function} is internal to duly; cancel or retry its job")
    due_from, due_before = which.get("after"), which.get("before")
    return {
        "function": function,
        "queue": which.get("queue"),
        "owner": which.get("owner"),
        "batch_id": batch,
        "run_after": None if due_from is None else at(due_from, now),
        "run_before": None if due_before is None else at(due_before, now),
    }


def _batch_id(batch: AnyBatch | None) -> str | None:
    batch_id = batch.id if isinstance(batch, Batch | AsyncBatch) else batch
    if batch_id is not None and not is_id(str(batch_id)):
        raise InvalidOption("batch", f"{batch_id!r} is not a batch id")
    return batch_id


# In a worker -------------------------------------------------------------------------------------


def bulk_function(core: Core) -> Action[[BulkOrder, BulkCheckpoint], Result]:
    """The internal function that makes the changes."""

    def bulk(ctx: Ctx, order: BulkOrder, done: BulkCheckpoint = FIRST_CHECKPOINT) -> Result:
        run = _Run(core, ctx, order, done)
        try:
            return run.to_the_end()
        except QueryTooBroad as error:
            # Time also passes while a machine or a disk hangs. The filter is surely the cause only
            # if the first page was not found twice.
            if run.has_started or ctx.attempt == 1:
                raise
            raise NonRetryable(str(error)) from error

    return Action(bulk, NAME, Options(queue=QUEUE, priority=MAX_PRIORITY, retry=RETRY))


class _Run:
    """One attempt."""

    def __init__(self, core: Core, ctx: Ctx, order: BulkOrder, done: BulkCheckpoint) -> None:
        self._core = core
        self._ctx = ctx
        self._order = order
        self._done = done

    @property
    def has_started(self) -> bool:
        """Whether this attempt or one before it has found a page."""
        return self._done.matched > 0

    def to_the_end(self) -> Result:
        if self._done.total is None:
            self._set(total=self._count())
        self._report()
        while self._done.part < len(self._order.parts):
            ids, change = self._next_page(self._core.now())
            if ids:
                self._change(ids, change)
                self._report()
            else:
                self._set(part=self._done.part + 1, after=FIRST_ID)
        return self._done.result()

    def _count(self) -> int | None:
        try:
            return count(self._core, self._order)
        except QueryTooBroad:
            # There are very many; a single page of them may still be found quickly.
            return None

    def _next_page(self, now: int) -> tuple[Sequence[str], Change]:
        """The next jobs, and the change to make to them."""
        order, store = self._order, self._core.ready()
        part, after = order.parts[self._done.part], self._done.after
        if order.verb == "retry":
            records = within_bytes(self._core, store.finished(part, after))
            jobs, _ = all_again(self._core, records, now)
            return _ids(records), RepeatJobs(jobs, now + REMEMBERED_MS)
        ids = store.live_ids(part, after)
        if order.run_at is not None:
            return ids, MoveJobs(ids, order.run_at)
        return ids, CancelJobs(ids, f"job:{self._ctx.job_id}", part.state == State.PENDING)

    def _change(self, ids: Sequence[str], change: Change) -> None:
        """Change one page and record that it is done, in one transaction."""
        before = self._done

        def with_page(changed: int) -> BulkCheckpoint:
            matched = before.matched + len(ids)
            return msgspec.structs.replace(
                before, after=ids[-1], matched=matched, changed=before.changed + changed
            )

        changed = self._core.ready().change_page(
            fence_of(self._ctx),
            change,
            lambda changed: self._args(with_page(changed)),
            self._core.now(),
        )
        if changed is None:
            raise Canceled("this job was canceled; the jobs that it has not reached are unchanged")
        self._done = with_page(changed)
        self._notify(changed)

    def _args(self, done: BulkCheckpoint) -> str:
        """The arguments for the next attempt, if there is one."""
        return self._core.functions.builtins[NAME].signature.encode((self._order, done), {})

    def _set(self, **changes: Any) -> None:
        self._done = msgspec.structs.replace(self._done, **changes)

    def _notify(self, changed: int) -> None:
        """Notify the workers that are affected immediately."""
        if changed and self._order.verb == "cancel":
            self._core.tell_bodies()
        elif changed:
            self._core.wake()

    def _report(self) -> None:
        done = self._done
        total = None if done.total is None else max(done.total, done.matched)
        note = f"{done.matched:,} of {'very many' if total is None else f'{total:,}'} jobs"
        value = 0.0 if total is None else done.matched / total if total else 1.0
        self._ctx.progress(value, note)
        self._ctx.log(f"{self._order.verb}: {note}, {done.changed:,} changed")
