"""Converts calls to job rows."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from duly.functions.function import Call, Function
from duly.functions.times import Delay, at, length_ms, within_five_years
from duly.ids import new_id
from duly.model.job import Hold, KeyedJob, KeyEntry, NewJob, TrackedJob
from duly.model.keys import encode_rules, keyed, limit_key, rules_of
from duly.model.retry import encode_retry
from duly.runtime.tracing import current_parent

IDEMPOTENCY_MS = 86_400_000


def new_job(call: Call[Any], scheduled_at: int, now: int, parent_id: str | None) -> NewJob:
    """The row of a call: due at its scheduled time, or now if that time has passed."""
    function, options = call.function, call.function.options
    run_at = max(scheduled_at, now)
    job = NewJob(
        id=new_id(now),
        function=function.name,
        kind=function.kind,
        queue=options.queue,
        priority=options.priority,
        created_at=now,
        scheduled_at=scheduled_at,
        run_at=run_at,
        expires_at=_expires_at(options.expires, run_at, now),
        timeout_ms=None if options.timeout is None else length_ms("timeout", options.timeout),
        retry=encode_retry(options.retry),
        args=call.args,
        parent_id=parent_id,
        owner=options.owner,
        tags=msgspec.json.encode(options.tags).decode() if options.tags else None,
    )
    return job if options.limit is None else under_limit(call, tracked(job))


def under_limit(call: Call[Any], job: TrackedJob) -> TrackedJob:
    """The job with its limit key, if its function has a limit."""
    limit = call.function.options.limit
    if limit is None:
        return job
    key = limit_key(limit, call.function.name, partial(_arguments_of, call))
    return tracked(job, limit_key=key, limits=encode_rules(rules_of(limit)))


def _arguments_of(call: Call[Any]) -> dict[str, Any]:
    """All arguments of the call, including defaults."""
    parameters = inspect.signature(call.function.body).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return defaults | call.function.signature.decode(call.args)


def new_jobs(
    call: Call[Any],
    scheduled_at: int,
    now: int,
    parent_id: str | None,
    idempotency_ms: int = IDEMPOTENCY_MS,
) -> list[NewJob]:
    """The row of a call, followed by the row of its hook job, if it has a hook."""
    debounce = call.function.options.debounce
    if debounce is not None:
        scheduled_at = max(scheduled_at, now) + length_ms("debounce", debounce)
    job = _with_keys(call, new_job(call, scheduled_at, now, parent_id), now, idempotency_ms)
    if (trace := current_parent()) is not None:
        job = _traced(job, trace)
    hook = call.function.options.on_complete
    if hook is None:
        return [job]
    waiting = hook_job(hook, {"job_id": job.id}, now)
    return [tracked(job, hook_id=waiting.id), waiting]


def hook_job(hook: Function[..., Any], arguments: Mapping[str, Any], now: int) -> TrackedJob:
    """A held job that waits for other jobs to end; it does not expire."""
    call = Call(hook, hook.signature.encode((), arguments))
    return tracked(new_job(call, now, now, None), hold=Hold.BATCH, expires_at=None)


def tracked(job: NewJob, **more: Any) -> TrackedJob:
    """The same job with additional fields that most jobs do not have."""
    kind = type(job) if isinstance(job, TrackedJob) else TrackedJob
    return kind(**msgspec.structs.asdict(job) | more)


def keys_of_owner(job: TrackedJob, owner: str | None) -> TrackedJob:
    """The job with keys that only this owner's jobs can hold, so that owners cannot collide."""
    if not owner or not isinstance(job, KeyedJob):
        return job
    # Keys have a fixed number of line breaks, so they stay distinct whatever the owner is called.
    end = f"\nowner:{owner}"
    entries = [KeyEntry(entry.scope, entry.key + end, entry.expires_at) for entry in job.entries]
    return tracked(
        job,
        pending_key=None if job.pending_key is None else job.pending_key + end,
        unique_key=None if job.unique_key is None else job.unique_key + end,
        entries=tuple(entries),
    )


def _with_keys(call: Call[Any], job: NewJob, now: int, idempotency_ms: int) -> NewJob:
    """The job with its unique and idempotency keys, if it has any."""
    options = call.function.options
    if options.unique is None and options.debounce is None and options.idempotency_key is None:
        return job
    keys = keyed(
        call.function.name,
        call.args,
        partial(_arguments_of, call),
        unique=options.unique,
        debounced=options.debounce is not None,
        idempotency_key=options.idempotency_key,
        idempotency_ms=idempotency_ms,
        now=now,
    )
    return KeyedJob(**msgspec.structs.asdict(job) | keys)


def _traced(job: NewJob, trace: str) -> KeyedJob:
    values: dict[str, Any] = msgspec.structs.asdict(job)
    values["trace"] = trace
    return KeyedJob(**values)


def _expires_at(expires: Delay | datetime | None, run_at: int, now: int) -> int | None:
    if expires is None:
        return None
    if isinstance(expires, datetime):
        return at(expires, now)
    return within_five_years(run_at + length_ms("expires", expires), run_at)
