"""The table of store verbs, one line each. A verb is defined in the module of its noun.

A verb takes effect as a whole or, if it raises, not at all. Verbs that take the store instead of a
session use several transactions. There are two stores, SQLite and PostgreSQL;
`duly.testing.StoreConformance` is the test suite that any other one has to pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from duly import fault
from duly.store import (
    access,
    expectations,
    feed,
    inbox,
    limits,
    measures,
    queues,
    system,
    views,
    workflows,
)
from duly.store import declarations as declared_verbs
from duly.store import endpoints as endpoint_verbs
from duly.store import functions as function_verbs
from duly.store import gateways as gateway_verbs
from duly.store import workers as worker_verbs
from duly.store.copy_end import CopyEnd
from duly.store.engine import Engine
from duly.store.jobs import batches, bulk, enqueue, holds, read, reports, run
from duly.store.jobs import cancel as cancel_verbs
from duly.store.jobs import replay as replay_verbs
from duly.store.schedules import audit as audit_verbs
from duly.store.schedules import calendars as calendar_verbs
from duly.store.schedules import clock_ahead, data, due, parked, retention, runs, zone_data
from duly.store.schedules import facts as fact_verbs
from duly.store.schedules import kill_switch as switch_verbs
from duly.store.schedules import tick as ticking
from duly.store.session import Session

P = ParamSpec("P")
T = TypeVar("T")
Verb = Callable[Concatenate[Session, P], T]
Method = Callable[Concatenate[Engine, P], T]


def reads(verb: Verb[P, T]) -> Method[P, T]:
    """A verb that reads committed data."""

    @wraps(verb)
    def method(store: Engine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store.read(lambda session: verb(session, *args, **kwargs))

    return method


def reads_in_time(verb: Verb[P, T]) -> Method[P, T]:
    """The same for queries that may have no index."""

    @wraps(verb)
    def method(store: Engine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store.read_in_time(lambda session: verb(session, *args, **kwargs))

    return method


def writes(verb: Verb[P, T], *, then: str | None = None) -> Method[P, T]:
    """A verb that is one transaction; `then` is a fault point after its commit."""

    @wraps(verb)
    def method(store: Engine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        written = store.write(lambda session: verb(session, *args, **kwargs))
        if then is not None:
            fault.point(then)
        return written

    return method


def writes_one(verb: Verb[P, T]) -> Method[P, T]:
    """The same for a single statement."""

    @wraps(verb)
    def method(store: Engine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store.write_one(lambda session: verb(session, *args, **kwargs))

    return method


class Store(Engine):
    """The verbs."""

    def copy_end(self) -> CopyEnd:
        """The store as one end of a copy.

        It need not be open, and may be closed to other callers.
        """
        return CopyEnd(self.read, self.write)

    # Enqueue
    enqueue_audited = writes(enqueue.insert_audited)
    enqueue_child = writes(enqueue.insert_children)

    # Run
    lanes = reads(run.lanes)
    start_bodies = run.start_bodies
    claim_alone = writes(limits.start_alone)
    due_alone = reads(run.due_alone)

    # Cancel
    cancel = writes(cancel_verbs.cancel)
    cancel_matching = cancel_verbs.cancel_matching

    # Read
    get = reads(read.get)
    job_with_key = reads(read.with_key)
    find = reads_in_time(read.find)
    look = reads(read.look)
    logs = reads(read.logs)

    # Reports
    report = reports.report
    is_kept = reads(read.is_kept)
    key_wait = reads(limits.wait_of)
    batch_counts = reads(batches.batch_counts)
    batch_members = reads(batches.batch_members)
    batch_has_members = reads(batches.batch_has_members)
    hooks_of = reads(replay_verbs.hooks_of)
    repeated = reads(replay_verbs.repeated)
    replay = writes(replay_verbs.replay)

    # Bulk jobs
    count = reads_in_time(read.count)
    live_ids = reads_in_time(read.live_ids)
    finished = reads_in_time(read.finished)
    change_page = writes(bulk.change_page, then="bulk.paged")

    # Workflows
    load_run = reads(workflows.load)
    result_of_step = reads(workflows.result_of)
    steps_of = reads(workflows.steps_of)
    places_of = reads(workflows.places_of)
    steps_at = reads(workflows.steps_at)
    step_at = reads(workflows.step_at)
    open_steps = reads(workflows.open_steps)
    progressed = reads(workflows.progressed)
    events_of = reads(workflows.events_of)
    waits_of = reads(workflows.waits_of)
    put_steps = writes_one(workflows.put_steps)
    take_event = writes(workflows.take_event)
    enqueue_recorded = writes(workflows.enqueue)
    cancel_recorded = writes(workflows.cancel)
    send_recorded = writes(workflows.send_recorded)
    send_event = writes(workflows.send_event)
    watch_job = writes(workflows.watch)
    answer_approval = writes(workflows.answer)
    request_of = reads(workflows.request_of)
    release_held = workflows.release_held
    resume_run = writes(workflows.resume)

    # Workers
    workers = reads(worker_verbs.workers)
    beats = reads(worker_verbs.beats)
    holdings = reads(worker_verbs.holdings)

    # Upkeep
    time_out = run.time_out
    expire = run.expire
    hold_unknown = holds.hold_unknown
    release_known = holds.release_known
    free_hooks = holds.free_hooks
    held = reads(holds.held)

    # Limits
    release_slots = writes(limits.release)
    slots_of = reads(limits.slots_of)
    admit_waiters = limits.admit_waiters
    forget_keys = writes(limits.forget_keys)

    # Functions
    publish = writes(function_verbs.publish)
    functions = reads(function_verbs.functions)
    function = reads(function_verbs.function)
    statuses = reads(function_verbs.statuses)
    set_status = writes(function_verbs.set_status)
    relist = holds.relist

    # Webhooks
    receive_webhook = writes(inbox.receive, then="webhook.committed")
    event = reads(inbox.get)
    events = reads_in_time(inbox.find)
    retry_event = writes(replay_verbs.retry_event)
    retain_events = writes(inbox.forget)

    # Measures
    depths = reads(measures.depths)
    oldest_due = reads(measures.oldest_due)
    schedule_counts = reads(measures.schedule_counts)
    waiting_functions = reads(measures.waiting_functions)
    required_zone_data = reads(zone_data.required_zone_data)
    tally = reads(views.tally)
    recent_runs = reads(views.recent_runs)
    function_runs = reads(views.function_runs)
    throughput = reads(views.throughput)
    add_counts = writes_one(measures.add_counts)
    counts = reads(measures.counts)
    traces = reads(read.traces)
    system_tables = reads(system.tables)
    system_rows = reads(system.rows)

    # Queues
    pause_queue = writes(queues.pause)
    resume_queue = writes(queues.resume)
    limit_queue = writes(queues.limit)
    queue_limits = reads(limits.limited_queues)
    paused_queues = reads(queues.paused)

    # Schedules
    due_schedules = reads(due.due_schedules)
    next_due = reads(due.next_due)
    tick = writes(ticking.tick, then="ticker.committed")
    park_schedule = writes(parked.park)
    missing_functions = reads(parked.missing_functions)
    revive_schedules = writes(parked.revive)
    take_zone_data = zone_data.take_zone_data
    compute_zoned = writes(zone_data.compute_zoned)
    re_aim = clock_ahead.re_aim
    run_schedule = writes(runs.run)
    facts = reads(fact_verbs.gather)
    add_schedule = writes(data.add)
    edit_schedule = writes(data.edit)
    remove_schedule = writes(data.remove)
    schedule = reads(data.get)
    find_schedule = reads(data.find_one)
    schedules = data.find_schedules
    is_scheduled = reads(data.is_scheduled)
    scheduled_functions = reads(data.scheduled_functions)
    ticks = reads(data.ticks)
    retain_ticks = retention.retain_ticks
    days = reads(retention.days_of)
    ledger_days = reads(views.ledger_days)
    calendars_of = reads(calendar_verbs.calendars_of)
    next_check = reads(expectations.next_check)
    check_promises = writes(expectations.check)
    set_cost = writes(data.set_cost)
    declared = reads(declared_verbs.read)
    left_out = reads(declared_verbs.left_out)
    apply_declared = writes(declared_verbs.apply)
    pause_everything = writes(switch_verbs.pause_everything)
    resume_everything = writes(switch_verbs.resume_everything)
    kill_switch = reads(switch_verbs.kill_switch)

    # Calendars
    add_calendar = writes(calendar_verbs.add_calendar)
    edit_calendar = writes(calendar_verbs.edit_calendar)
    remove_calendar = writes(calendar_verbs.remove_calendar)
    calendar = reads(calendar_verbs.get_calendar)
    calendar_named = reads(calendar_verbs.calendar_named)
    calendars_in_use = reads(calendar_verbs.calendars_in_use)
    calendars = reads(calendar_verbs.find_calendars)

    # Audit
    audit = writes(audit_verbs.audit)
    audit_of = reads(audit_verbs.audit_of)
    audit_page = reads_in_time(access.audit_page)

    # Live events
    newest = reads(feed.newest)
    sees_writers = reads(feed.sees_writers)
    changes = reads(feed.changes)

    # Access
    add_token = writes(access.add_token)
    revoke_token = writes(access.revoke_token)
    use_token = writes(access.use_token)
    token = reads(access.get_token)
    token_by_digest = reads(access.token_by_digest)
    tokens = reads(access.tokens)
    has_tokens = reads(access.has_tokens)
    claim_request = writes(access.claim_request)
    request_done = writes(access.request_done)
    give_up_request = writes(access.give_up_request)
    forget_requests = writes(access.forget_requests)

    # Endpoints
    add_endpoint = writes(endpoint_verbs.add)
    edit_endpoint = writes(endpoint_verbs.edit)
    remove_endpoint = writes(endpoint_verbs.remove)
    endpoint = reads(endpoint_verbs.get)
    endpoint_named = reads(endpoint_verbs.named)
    endpoints = reads(endpoint_verbs.find)

    # Gateways
    add_gateway = writes(gateway_verbs.add_gateway)
    remove_gateway = writes(gateway_verbs.remove_gateway)
    gateway = reads(gateway_verbs.get_gateway)
    gateway_named = reads(gateway_verbs.gateway_named)
    gateways = reads(gateway_verbs.gateways)
    note_gateway = writes(gateway_verbs.note_gateway)
