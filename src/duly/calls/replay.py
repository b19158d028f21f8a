"""Dead letters: jobs that have used up their attempts, and how to retry them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from duly.calls.jobs import Job, job_from
from duly.errors import DulyError, FunctionDeleted, InvalidOption, JobNotFound, StoreError
from duly.functions.new_job import hook_job, tracked
from duly.ids import new_id
from duly.model.audit import NewAuditEntry
from duly.model.function import Status
from duly.model.job import (
    CLAIM_BYTES,
    LEFT_OUT,
    Hold,
    JobFilter,
    JobRecord,
    NewJob,
    State,
    TrackedJob,
    Trigger,
)

if TYPE_CHECKING:
    from duly.core import Core

PAGE = 500
REMEMBERED_MS = 60 * 86_400_000
"""How long it is remembered that a job was retried: longer than any job is kept by default."""


class Replay(msgspec.Struct, frozen=True):
    """The result of retrying jobs, or, with `dry_run`, what it would be."""

    jobs: tuple[str, ...]
    """The ids of the jobs that are retried."""
    repeated: tuple[str, ...]
    """Skipped: these were retried before."""
    refused: dict[str, str]
    """Skipped for another reason, by id."""


NOTHING = Replay((), (), {})


def replay_one(core: Core, job_id: str, audited_as: str | None = None) -> Job[Any]:
    """Run a failed or canceled job again, as a new one with the same arguments."""
    record = core.ready().get(job_id)
    if record is None:
        raise JobNotFound(job_id)
    fault = why_not(core, record)
    if fault is not None:
        raise fault
    now = core.now()
    found = core.ready().hooks_of([job_id])
    [job, *hooks], audit_entry = again(core, record, found, now), None
    if audited_as is not None:
        audit_entry = NewAuditEntry(
            "job.retry", f"job:{job_id}", audited_as, {"job_id": job.id}, now
        )
    repeated = core.ready().replay([job, *hooks], now + REMEMBERED_MS, audit_entry)
    core.wake()
    new_record = core.get(repeated[job_id])
    if new_record is None:
        raise JobNotFound(repeated[job_id])
    return job_from(core, new_record, core.get)


def replay_all(core: Core, filter: JobFilter, *, dry_run: bool) -> Replay:
    """Retry every dead letter that matches, in batches; or only report which."""
    total = NOTHING
    for each in core.functions.for_each_name(filter):
        before: str | None = filter.before_id
        while found := core.ready().find(
            msgspec.structs.replace(each, exhausted=True, before_id=before, limit=PAGE)
        ):
            page = within_bytes(core, found)
            total = joined(total, replay_page(core, page, dry_run))
            before = page[-1].id
    return total


def replay_page(core: Core, page: Sequence[JobRecord], dry_run: bool = False) -> Replay:
    """Retry these jobs in one transaction."""
    now = core.now()
    jobs, refused = all_again(core, page, now)
    store = core.ready()
    known = store.repeated([record.id for record in page])
    fresh = [job for job in jobs if job.retry_of is not None and job.retry_of not in known]
    if fresh and not dry_run:
        hooks = {job.id: job for job in jobs if job.retry_of is None}
        waiting = [hooks[job.hook_id] for job in fresh if job.hook_id is not None]
        repeated = store.replay([*fresh, *waiting], now + REMEMBERED_MS)
        core.wake()
        fresh = [job for job in fresh if repeated[job.retry_of or ""] == job.id]
    ids = tuple(job.retry_of or "" for job in fresh)
    left = tuple(j.id for j in page if j.id not in ids and j.id not in refused)
    return Replay(ids, left, refused)


def joined(one: Replay, other: Replay) -> Replay:
    return Replay(one.jobs + other.jobs, one.repeated + other.repeated, one.refused | other.refused)


def within_bytes(core: Core, listed: Sequence[JobRecord]) -> Sequence[JobRecord]:
    """The first records that one transaction should write, at least one, with long arguments."""
    records: list[JobRecord] = []
    left = CLAIM_BYTES
    for record in listed:
        if record.args == LEFT_OUT:
            record = core.ready().get(record.id) or record
        left -= len(record.args.encode())
        if left < 0 and records:
            break
        records.append(record)
    return records


def why_not(core: Core, record: JobRecord) -> Exception | None:
    """The reason why a job cannot be retried, if there is one."""
    if record.state not in (State.FAILED, State.CANCELED):
        return InvalidOption(
            "job", f"{record.id} is {record.state}; only failed and canceled jobs can be retried"
        )
    if record.args == LEFT_OUT:
        # It was removed after it was listed, and its arguments with it.
        return JobNotFound(record.id)
    if core.functions.status_of(record.function) == Status.DELETED:
        return FunctionDeleted(record.function)
    return None


def all_again(
    core: Core, records: Sequence[JobRecord], now: int
) -> tuple[list[TrackedJob], dict[str, str]]:
    """New jobs, with their hooks, for those that can be retried; for the others, by id, why not."""
    jobs: list[TrackedJob] = []
    refused: dict[str, str] = {}
    hooks = core.ready().hooks_of([record.id for record in records])
    for record in records:
        try:
            if (fault := why_not(core, record)) is not None:
                raise fault
            jobs += again(core, record, hooks, now)
        except StoreError:
            raise
        except DulyError as error:
            refused[record.id] = str(error)
        except Exception as error:
            # User code computes the limit key, from arguments that may be older than the code.
            refused[record.id] = f"its limit key could not be computed: {type(error).__name__}"
    return jobs, refused


def again(
    core: Core, record: JobRecord, hooks: Mapping[str, JobRecord | None], now: int
) -> list[TrackedJob]:
    """A new job that repeats a record's work, and the hook that waits for it, if it has one.

    `hooks`: what `Store.hooks_of` has found for this record.
    """
    job = core.functions.under_limit(_repeated(record, now))
    if record.id not in hooks:
        return [job]
    hook = _hook(core, record, hooks[record.id], job.id, now)
    return [job] if hook is None else [tracked(job, hook_id=hook.id), hook]


def _repeated(record: JobRecord, now: int) -> TrackedJob:
    length = None if record.expires_at is None else record.expires_at - record.run_at
    fields = _same(record, now)
    fields |= {
        "expires_at": None if length is None or length <= 0 else now + length,
        "retry_of": record.id,
        # It takes the place of the old one: in its batch, or in the events of its entity.
        "batch_id": record.batch_id,
        "trigger": record.trigger if record.trigger == Trigger.WEBHOOK else None,
    }
    return TrackedJob(**fields)


def _hook(
    core: Core, record: JobRecord, hook: JobRecord | None, job_id: str, now: int
) -> TrackedJob | None:
    """The same hook for the new job; if the old hook was removed, what the function has now."""
    if hook is not None:
        args = msgspec.json.encode({"job_id": job_id}).decode()
        fields = _same(hook, now)
        fields |= {"args": args, "expires_at": None, "hold": Hold.BATCH}
        return core.functions.under_limit(TrackedJob(**fields))
    function = core.functions.hook_of(record.function)
    return None if function is None else hook_job(function, {"job_id": job_id}, now)


def _same(record: JobRecord, now: int) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(record, name) for name in NewJob.__struct_fields__}
    times = dict.fromkeys(("created_at", "scheduled_at", "run_at"), now)
    return fields | times | {"id": new_id(now), "parent_id": None, "actor": record.actor}
