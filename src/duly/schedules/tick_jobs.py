"""Builds the jobs of ticks, and the jobs that send alerts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from duly.endpoints.alerts import NAME as ALERT
from duly.endpoints.alerts import is_address
from duly.endpoints.target import NAME as POST
from duly.endpoints.target import EndpointTarget, target_of
from duly.errors import InvalidOption
from duly.functions.function import Call
from duly.functions.new_job import keys_of_owner, new_jobs, tracked
from duly.functions.published import with_changes
from duly.model.job import NewJob, Trigger
from duly.model.keys import Rules, encode_rules
from duly.model.schedule import ONE_BY_ONE, ScheduleRecord
from duly.store.schedules.ledger import TickJobOrder

if TYPE_CHECKING:
    from duly.core import Core

ONE_AT_A_TIME = encode_rules(Rules(1, None, None))


def call_of_schedule(core: Core, record: ScheduleRecord, args: str | None = None) -> Call[Any]:
    """The call that a schedule makes."""
    given = record.args if args is None else args
    changes: dict[str, Any] = msgspec.json.decode(record.options)
    if record.function == POST:
        target = target_of(core.functions.builtins[POST], given)
        stored = core.ready().endpoint_named(target.owner, target.endpoint)
        changed = with_changes(target, changes)
        assert isinstance(changed, EndpointTarget)
        return Call(changed.as_stored(stored), given)
    return Call(with_changes(core.functions.callable_now(record.function), changes), given)


def jobs_of_tick(core: Core, order: TickJobOrder, now: int) -> Sequence[NewJob]:
    """The job of a tick, as if its function had been called by hand."""
    record = order.plan.record
    call = call_of_schedule(core, record, order.dispatch.args)
    first, *hooks = new_jobs(
        call, order.tick.tick_at, now, order.parent_id, core.settings.idempotency_ms
    )
    more: dict[str, Any] = {"trigger": Trigger.SCHEDULE, "actor": record.id}
    if call.function.options.debounce is None:
        # An operator or a calendar may have moved the tick to an earlier time.
        more["run_at"] = now
    if record.owner:
        more["owner"] = record.owner
    limit = call.function.options.limit
    if limit is not None and order.plan.policies.overlap in ONE_BY_ONE:
        reason = f"{call.function.name}() now has its own limit"
        raise InvalidOption("overlap", reason, "use skip or allow")
    if order.serial and limit is None:
        more |= {"limit_key": f"schedule:{record.id}", "limits": ONE_AT_A_TIME}
    # Owners create their own schedules, whose jobs must not affect each other's.
    return [keys_of_owner(tracked(first, **more), record.owner), *hooks]


def alert_jobs(core: Core, schedule: ScheduleRecord, problem: str, now: int) -> Sequence[NewJob]:
    """The jobs that report a missed expectation of a schedule."""
    assert schedule.alert is not None
    args = {"schedule_id": schedule.id, "problem": problem}
    if is_address(schedule.alert):
        function = core.functions.builtins[ALERT]
        args["url"] = schedule.alert
    else:
        function = core.functions.callable_now(schedule.alert)
    call = Call(function, function.signature.encode((), args))
    return new_jobs(call, now, now, None, core.settings.idempotency_ms)
