"""What the server and the command line need from an app beyond its public verbs.

They use the app and these functions, and do not touch the core or the store behind it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from duly.app.duly import Duly
from duly.calendars import Calendars
from duly.calls import bulk, runs
from duly.calls.jobs import Job, job_from
from duly.calls.replay import replay_one
from duly.core import Core
from duly.endpoints.target import NAME as POST
from duly.endpoints.target import EndpointTarget, target_of
from duly.errors import JobNotFound, ScheduleExists
from duly.functions.events import encode_event
from duly.functions.function import Call
from duly.functions.new_job import keys_of_owner, new_jobs, tracked
from duly.ids import new_id
from duly.model.access import RequestClaim
from duly.model.audit import NewAuditEntry
from duly.model.function import Published
from duly.model.history import Day
from duly.model.job import JobFilter, JobRecord, Kind, State, Trigger, newest_first
from duly.model.news import Cursor, NewsBatch, NewsFilter
from duly.model.workflow import Decision, NewEvent, Phase, SentEvent, in_phase, phase_of
from duly.observe import doctor, metrics
from duly.schedules import Schedule, Schedules, removals, tick_jobs, update, verbs_read
from duly.schedules.declared_schedules import DeclaredSchedule
from duly.schedules.verbs import drafted
from duly.workflows import verbs as workflow_verbs
from duly.workflows.verbs import decide

P = ParamSpec("P")
T = TypeVar("T")
Run = tuple[JobRecord, runs.RunSummary]


class PhasedJob(Protocol):
    """What is needed to know how far a run is."""

    @property
    def id(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def state(self) -> State: ...
    @property
    def hold(self) -> str | None: ...


AppVerb = Callable[Concatenate[Duly, P], T]


def _of(verb: Callable[[Core], Callable[P, T]]) -> AppVerb[P, T]:
    """Turn a verb of the core, or of its store, into one that takes the app."""

    def ask(app: Duly, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return verb(app.core)(*args, **kwargs)

    return ask


def _over(function: Callable[Concatenate[Core, P], T]) -> AppVerb[P, T]:
    """Turn a function of the core into one that takes the app."""

    @wraps(function)
    def ask(app: Duly, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return function(app.core, *args, **kwargs)

    return ask


# The process -------------------------------------------------------------------------------------

now = _of(lambda core: core.now)
end_streams = _of(lambda core: core.end_streams)
examine = _over(doctor.examine)
metrics_text = _over(metrics.metrics_text)
system_tables = _of(lambda core: core.ready().system_tables)
system_rows = _of(lambda core: core.ready().system_rows)
audit_page = _of(lambda core: core.ready().audit_page)
is_dead = _of(lambda core: core.ready().is_dead)
holdings = _of(lambda core: core.ready().holdings)


async def in_thread(app: Duly, work: Callable[[], T]) -> T:
    """Run work that may wait for the database in one of the app's threads."""
    return await app.core.threads.call(work)


def follow(
    app: Duly, wanted: NewsFilter, cursor: Cursor | None, *, idle: float
) -> AsyncGenerator[NewsBatch]:
    """Changes since the cursor, or from now on; an empty page if there were none for a while."""
    return app.core.feed.follow(wanted, cursor, idle=idle)


# Repeatable requests -----------------------------------------------------------------------------

claim_request = _of(lambda core: core.ready().claim_request)
give_up_request = _of(lambda core: core.ready().give_up_request)
request_done = _of(lambda core: core.ready().request_done)


def new_claim(app: Duly, actor: str, key: str, fingerprint: str) -> RequestClaim:
    """The claim of a request; it is remembered as long as an idempotency key."""
    at = app.clock.now()
    until = at + app.core.settings.idempotency_ms
    return RequestClaim(actor, key, fingerprint, new_id(at), until)


# Functions ---------------------------------------------------------------------------------------

function_runs = _of(lambda core: core.ready().function_runs)
removed_with = _over(removals.removed_with)


def published(app: Duly) -> list[Published]:
    """The functions registered here, as workers would publish them."""
    return app.core.functions.published()


import_modules = _of(lambda core: core.import_modules)


def publish(app: Duly) -> None:
    """Import the modules of the app and publish its functions, as a worker does when it starts."""
    import_modules(app)
    app.ready().publish(published(app), app.core.now())


# Jobs --------------------------------------------------------------------------------------------

find_jobs = _of(lambda core: core.find_by_any_name)
stored_job = _of(lambda core: core.ready().get)
tally = _of(lambda core: core.ready().tally)
throughput = _of(lambda core: core.ready().throughput)
cancel_order = _over(bulk.cancel_order)
retry_order = _over(bulk.retry_order)
reschedule_order = _over(bulk.reschedule_order)
look_at_bulk = _over(bulk.look)
enqueue_bulk = _over(bulk.enqueue)


def run(
    app: Duly,
    call: Call[Any],
    due: int,
    by: str,
    audit_entry: Callable[[str], NewAuditEntry] | None = None,
) -> Job[Any] | None:
    """Enqueue the call as a job that records who requested it over HTTP.

    `audit_entry`: makes the audit entry from the id of the job. None if the key of the call belongs
    to a job that is no longer kept.
    """
    core = app.core
    admitted = core.functions.admitted(call)
    job, *hooks = new_jobs(admitted, due, core.now(), None, core.settings.idempotency_ms)
    asked = tracked(job, trigger=Trigger.API, actor=by)
    made = keys_of_owner(asked, admitted.function.options.owner)
    existing = core.insert(
        [made, *hooks], None if audit_entry is None else audit_entry(made.id)
    ).get(made.id)
    record = core.get(existing or made.id)
    if record is None and existing is None:
        raise JobNotFound(made.id)
    if record is None:
        return None
    return job_from(core, record, core.get, existed=existing is not None)


def cancel(app: Duly, job_id: str, by: str) -> bool:
    """Cancel a job with an audit entry; False if it has finished or does not exist."""
    audit_entry = NewAuditEntry("job.cancel", f"job:{job_id}", by, None, app.clock.now())
    return bool(app.core.cancel(job_id, by, audit_entry))


def retry(app: Duly, job_id: str, by: str) -> Job[Any]:
    """Retry a failed or canceled job, with an audit entry."""
    return replay_one(app.core, job_id, audited_as=by)


def job_states(app: Duly, job_ids: Iterable[str | None]) -> dict[str, str]:
    """The states of jobs, by their ids; without those that do not exist."""
    known = [job_id for job_id in job_ids if job_id is not None]
    return {look.job_id: str(look.state) for look in app.ready().look(known)}


# Workflows ---------------------------------------------------------------------------------------

steps_after = _over(runs.steps_after)
step_called = _over(runs.step_called)
events_after = _over(runs.events_after)
summaries = _over(runs.summaries)


def find_runs(app: Duly, function: str | None, phase: Phase | None, of: JobFilter) -> list[Run]:
    """Runs of workflows, newest first. `function`: only of this one, by any of its names."""
    names = [function] if function is not None else _workflows(app)
    which = in_phase(phase, of)
    pages = (
        app.core.find_by_any_name(msgspec.structs.replace(which, function=name)) for name in names
    )
    found = [job for job in newest_first(pages, of.limit) if job.kind == Kind.WORKFLOW]
    return list(zip(found, summaries(app, found), strict=True))


def _workflows(app: Duly) -> list[str]:
    """The workflows that are published or registered here."""
    stored = {info.name for info in app.ready().functions() if info.kind == Kind.WORKFLOW}
    here = {info.name for info in published(app) if info.kind == Kind.WORKFLOW}
    return sorted(stored | here)


def phases(app: Duly, jobs: Iterable[PhasedJob]) -> dict[str, Phase]:
    """How far those jobs are that are runs, by their ids."""
    every = [job for job in jobs if job.kind == Kind.WORKFLOW]
    known = app.ready().progressed([job.id for job in every if job.state == State.PENDING])
    return {
        job.id: phase_of(job.state, job.hold, known[job.id].begun_at if job.id in known else None)
        for job in every
    }


def send_event(
    app: Duly, job: JobRecord, name: str, payload: Any, once: str | None, by: str
) -> tuple[SentEvent, bool]:
    """Send an event with an audit entry; returns it, or the first one with the same `once`, and
    whether it is new."""
    core = app.core
    text = encode_event(core.functions, job.function, name, payload, once)
    audit_entry = _of_run(app, "send", job.id, by, {"event": name})
    return core.send(NewEvent(job.id, name, text, once, by), audit_entry)


def approve(app: Duly, job_id: str, name: str, choice: str | None, data: Any, by: str) -> Decision:
    """Answer an approval, with an audit entry."""
    audit_entry = _of_run(app, "approve", job_id, by, {"approval": name, "choice": choice})
    return decide(app.core, job_id, name, choice, data, by, audit_entry)


def reject(app: Duly, job_id: str, name: str, data: Any, by: str) -> Decision:
    """Answer an approval with its last option, with an audit entry."""
    audit_entry = _of_run(app, "reject", job_id, by, {"approval": name})
    return workflow_verbs.reject(app.core, job_id, name, data, by, audit_entry)


def resume_run(app: Duly, job_id: str, by: str) -> bool:
    """Let a held run continue with any code, with an audit entry; False if it is not held."""
    return workflow_verbs.resume(app.core, job_id, _of_run(app, "resume", job_id, by))


def _of_run(
    app: Duly, verb: str, job_id: str, by: str, detail: Mapping[str, Any] | None = None
) -> NewAuditEntry:
    return NewAuditEntry(f"workflow.{verb}", f"job:{job_id}", by, detail, app.clock.now())


# Schedules ---------------------------------------------------------------------------------------

schedules = _over(Schedules)
schedule = _of(lambda core: core.ready().schedule)
find_schedules = _of(lambda core: core.ready().schedules)
healths = _over(verbs_read.healths)
call_of_schedule = _over(tick_jobs.call_of_schedule)
foresee_update = _over(update.foresee_update)
calendars_of = _of(lambda core: core.ready().calendars_of)
calendars = _over(Calendars)
recent_runs = _of(lambda core: core.ready().recent_runs)


def draft(
    app: Duly, key: str, call: Call[Any], options: Mapping[str, Any], owner: str | None, by: str
) -> Schedule:
    """The schedule that `create` would make; nothing is stored."""
    return Schedule(app.core, drafted(app.core, key, call, options, owner or "", by=by))


def check_declaration(app: Duly, key: str, call: Call[Any], options: Mapping[str, Any]) -> None:
    """Refuse what `app.schedule` would refuse; nothing is declared."""
    if (known := app.core.declarations.get(key)) is not None:
        raise ScheduleExists(key, (known.source, "the import"))
    DeclaredSchedule(app.core, key, call, options, "").definition()


def endpoint_of(app: Duly, schedule: Schedule) -> EndpointTarget:
    """The endpoint that a schedule POSTs to."""
    return target_of(app.core.functions.builtins[POST], schedule.record.args)


def days(app: Duly, schedule_id: str) -> list[Day]:
    """The outcomes of a schedule's ticks and jobs, day by day (UTC); a day can appear twice.

    Once for rows that were removed, and once for those that the ledger still has.
    """
    store = app.ready()
    return [*store.days(schedule_id), *store.ledger_days(schedule_id)]
