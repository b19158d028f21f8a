"""The verbs that every store does in the same way: one session, one transaction each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

from duly import fault
from duly.ids import FIRST_ID, is_id
from duly.model.access import RequestClaim, TokenRecord
from duly.model.calendar import Calendar
from duly.model.decide import Facts, Signal
from duly.model.endpoint import EndpointRecord
from duly.model.function import FunctionInfo, Published, Status
from duly.model.gateway import GatewayRecord
from duly.model.inbox import EventPage, FoundEvent, InboxFilter, InboxRecord
from duly.model.job import (
    Claim,
    Hold,
    JobFilter,
    JobRecord,
    KeyEntry,
    Lost,
    NewJob,
    Settlement,
    TrackedJob,
)
from duly.model.keys import KeyWait
from duly.model.measure import Count, Depth, ScheduleCounts
from duly.model.news import Changes, Cursor
from duly.model.progress import LogEntry, Look, ProgressReport
from duly.model.schedule import Plan, ScheduleRecord, TickRecord
from duly.store import (
    access,
    declared,
    endpoints,
    expectations,
    feed,
    gateways,
    inbox,
    limits,
    measures,
    system,
    views,
)
from duly.store import access_statements as access_sql
from duly.store import measure_statements as measure_sql
from duly.store import schedule_statements as schedule_sql
from duly.store import statements as sql
from duly.store.base import Change, HeldJobs, Lane, QueuePause, WorkerInfo
from duly.store.copying import CopyEnd
from duly.store.declared import Settle, Stored
from duly.store.expectations import MakeAlert
from duly.store.inbox import MakeEventJobs
from duly.store.inbox import Stored as StoredEvent
from duly.store.schedules import (
    ahead,
    audit,
    calendars,
    data,
    facts,
    kill_switch,
    parked,
    retention,
    runs,
    ticking,
    zone_data,
)
from duly.store.schedules.audit import AuditEntry, Deed
from duly.store.schedules.calendars import CalendarRecord
from duly.store.schedules.data import Edit, ScheduleFilter, TickFilter
from duly.store.schedules.facts import Range
from duly.store.schedules.ledger import MakeJobs
from duly.store.schedules.retention import Day
from duly.store.schedules.rows import schedule_of
from duly.store.schedules.runs import Choose
from duly.store.schedules.ticking import Ticked
from duly.store.session import Session
from duly.store.system import SystemTable
from duly.store.views import Ended, Run, Tally

S = TypeVar("S", bound=Session)
T = TypeVar("T")

MOST_KEYS = 100
"""As many as AWAITED_KEYS gives."""
MOST_HOOKS = 100
"""As many as HOOKS gives."""


class SharedVerbs(ABC, Generic[S]):
    """A store is how it reads and how it writes; the rest follows."""

    @abstractmethod
    def _read(self, ask: Callable[[S], T]) -> T:
        """Look at what is committed."""

    @abstractmethod
    def _read_in_time(self, ask: Callable[[S], T]) -> T:
        """The same for what no index may serve: QueryTooBroad if it takes long."""

    @abstractmethod
    def _write(self, work: Callable[[S], T]) -> T:
        """Do it in a transaction that is durable, or leaves no trace, when this returns."""

    def _single(self, work: Callable[[S], T]) -> T:
        """The same for a single statement."""
        return self._write(work)

    # Copy

    def copy_end(self) -> CopyEnd:
        return CopyEnd(self._read, self._write)

    # Enqueue

    def enqueue_audited(self, jobs: Sequence[NewJob], deed: Deed) -> Mapping[str, str]:
        return self._write(lambda s: s.insert_audited(jobs, deed))

    def enqueue_child(
        self, parent: tuple[str, int], jobs: Sequence[NewJob], by: str, now: int
    ) -> dict[str, str] | None:
        return self._write(lambda s: s.insert_children(parent, jobs, by, now))

    # Run

    def lanes(self) -> Sequence[Lane]:
        return [Lane(*row) for row in self._read(lambda s: s.lanes())]

    def start_bodies(self, attempts: Sequence[tuple[str, int]]) -> set[str]:
        write = self._single if len(attempts) == 1 else self._write
        return write(lambda s: s.start_bodies(attempts))

    def claim_alone(
        self, job_id: str, worker_id: str, functions: Sequence[str], now: int
    ) -> Claim | None:
        return self._write(lambda s: limits.start_alone(s, job_id, worker_id, functions, now))

    def due_alone(
        self, functions: Sequence[str], queues: Sequence[str] | None, now: int
    ) -> Sequence[str]:
        return self._read(lambda s: s.due_alone(functions, queues, now))

    # Cancel

    def cancel(self, job_id: str, by: str, now: int, deed: Deed | None = None) -> bool | None:
        return self._write(lambda s: s.cancel(job_id, by, now, deed))

    def cancel_matching(self, filter: JobFilter, by: str, now: int) -> int:
        canceled, after = self._write(lambda s: s.cancel_page(filter, FIRST_ID, by, now))
        while after:
            more, after = self._write(lambda s: s.cancel_page(filter, after, by, now))  # noqa: B023
            canceled += more
        return canceled

    # Read

    def find(self, filter: JobFilter) -> Sequence[JobRecord]:
        return self._read_in_time(lambda s: s.find(filter))

    def get(self, job_id: str) -> JobRecord | None:
        return self._read(lambda s: s.get(job_id))

    def look(self, job_ids: Collection[str]) -> Sequence[Look]:
        return self._read(lambda s: s.look(job_ids)) if job_ids else []

    # Progress and log lines

    def report(self, progress: Sequence[ProgressReport], lines: Sequence[LogEntry]) -> None:
        alone = not (progress and lines)
        (self._single if alone else self._write)(lambda s: s.report(progress, lines))

    def logs(self, job_id: str, after: int) -> Sequence[LogEntry]:
        rows = self._read(lambda s: s.logs(job_id, after)) if is_id(job_id) else []
        return [LogEntry(job_id, *row) for row in rows]

    def is_kept(self, entry: KeyEntry, now: int) -> bool:
        which = {"scope": entry.scope, "key": entry.key, "now": now}
        return bool(self._read(lambda s: s.run(sql.IS_KEPT, which)))

    def key_wait(self, job_id: str, now: int) -> KeyWait | None:
        return self._read(lambda s: limits.wait_of(s, job_id, now))

    def batch_counts(self, batch_id: str) -> Mapping[str, int]:
        return self._read(lambda s: s.batch_counts(batch_id))

    def repeated(self, job_ids: Sequence[str]) -> set[str]:
        return self._read(lambda s: s.repeated(job_ids))

    def replay(
        self, jobs: Sequence[TrackedJob], expires_at: int, deed: Deed | None = None
    ) -> Mapping[str, str]:
        return self._write(lambda s: s.replay(jobs, expires_at, deed))

    # Bulk jobs

    def count(self, filter: JobFilter, *, live: bool) -> int:
        return self._read_in_time(lambda s: s.count(filter, live))

    def live_ids(self, filter: JobFilter, after: str) -> Sequence[str]:
        return self._read_in_time(lambda s: s.live_ids(filter, after))

    def finished(self, filter: JobFilter, after: str) -> Sequence[JobRecord]:
        return self._read_in_time(lambda s: s.finished(filter, after))

    def change_page(
        self,
        running: tuple[str, int],
        change: Change,
        checkpoint: Callable[[int], str],
        now: int,
    ) -> int | None:
        changed = self._write(lambda s: s.change_page(running, change, checkpoint, now))
        fault.point("bulk.paged")
        return changed

    # Workers

    def workers(self) -> Sequence[WorkerInfo]:
        return self._read(lambda s: s.workers())

    def beats(self) -> dict[str, int]:
        return self._read(lambda s: s.beats())

    def holdings(self, worker_id: str) -> dict[str, int]:
        return self._read(lambda s: s.holdings(worker_id))

    def rescue(
        self,
        worker_id: str,
        beat: int | None,
        judge: Callable[[Lost], Settlement],
        now: int,
    ) -> int | None:
        rescued = self._write(lambda s: s.rescue(worker_id, beat, judge, now))
        fault.point("rescue.committed")
        return rescued

    def relist(self, worker_id: str, functions: Sequence[str]) -> None:
        self._write(lambda s: s.relist(worker_id, functions))
        self._release(functions)

    def _release(self, functions: Sequence[str]) -> None:
        """Free the jobs that waited for somebody who has these functions."""
        for hold in (Hold.FUNCTION, Hold.SIGNATURE):
            while self._write(lambda s: s.release(hold, functions)):  # noqa: B023
                pass

    # Upkeep: every process looks every second, and as a rule finds nothing. No lock and no
    # transaction id is taken for that.

    def time_out(self, before: int, judge: Callable[[Claim], Settlement | None], now: int) -> int:
        overdue = self._read(lambda s: s.overdue(before))
        # Whatever becomes of one meanwhile, its token is another then.
        settlements = [s for claim in overdue if (s := judge(claim)) is not None]
        return len(self._write(lambda s: s.settle(settlements, now))) if settlements else 0

    def expire(self, now: int) -> int:
        if not self._read(lambda s: s.run(sql.EXPIRED_IDS, {"now": now})):
            return 0
        return self._write(lambda s: s.expire(now))

    def hold_unknown(self, now: int) -> int:
        stuck = self._read(lambda s: s.stuck_at_heads(now))
        return self._write(lambda s: s.hold_stuck(stuck, now)) if stuck else 0

    def release_known(self) -> int:
        freed = self._read(lambda s: s.freed())
        return sum(self._release_some(hold, functions) for hold, functions in freed.items())

    def _release_some(self, hold: Hold, functions: Collection[str]) -> int:
        if not functions or not self._read(lambda s: s.held_ids(hold, functions)):
            return 0
        return self._write(lambda s: s.release(hold, functions))

    def free_hooks(self, after: Sequence[str]) -> tuple[Sequence[str], int]:
        function, job_id = after or ("", FIRST_ID)
        hooks = self._read(lambda s: s.run(sql.HOOKS, {"function": function, "id": job_id}))
        stuck = [hook_id for _, hook_id, is_stuck in hooks if is_stuck]
        freed = self._write(lambda s: s.free_hooks(stuck)) if stuck else 0
        return hooks[-1][:2] if len(hooks) == MOST_HOOKS else (), freed

    def held(self) -> Sequence[HeldJobs]:
        return self._read(lambda s: s.held())

    # Limits

    def release_slots(self, ended: Sequence[tuple[str, int]], now: int) -> bool:
        return self._write(lambda s: limits.release(s, ended, now))

    def slots_of(self, worker_id: str) -> set[tuple[str, int]]:
        rows = self._read(lambda s: s.run(sql.SLOTS_OF, {"worker": worker_id}))
        return {(job_id, token) for job_id, token in rows}

    def admit_waiters(self, after: str, now: int) -> tuple[str, bool]:
        keys = [row[0] for row in self._read(lambda s: s.run(sql.AWAITED_KEYS, {"after": after}))]
        ready = self._read(lambda s: limits.awaiting(s, keys, now))
        # A transaction for each: nobody has to wait for the locks of a hundred keys.
        admitted = [self._write(lambda s: s.admit_waiters(key, now)) for key in ready]  # noqa: B023
        return keys[-1] if len(keys) == MOST_KEYS else "", any(admitted)

    def forget_keys(self, now: int) -> int:
        return self._write(lambda s: s.forget_keys(now))

    # Functions

    def publish(self, functions: Sequence[Published], now: int, *, force: bool = False) -> None:
        self._write(lambda s: s.publish(functions, now, force))

    def functions(self) -> Sequence[FunctionInfo]:
        return self._read(lambda s: s.functions())

    def function(self, name: str) -> FunctionInfo | None:
        return self._read(lambda s: s.function(name))

    def statuses(self) -> Mapping[str, Status]:
        return self._read(lambda s: s.statuses())

    def set_status(
        self,
        name: str,
        status: Status,
        allowed: Sequence[Status],
        *,
        by: str | None,
        note: str | None,
        now: int,
    ) -> bool:
        return self._write(lambda s: s.set_status(name, status, allowed, by=by, note=note, now=now))

    # Schedules

    def due_schedules(
        self, now: int, limit: int, *, zone_data: str, signals_for: str | None = None
    ) -> Sequence[ScheduleRecord]:
        where = {"now": now, "limit": limit, "zone_data": zone_data, "signals_for": signals_for}
        rows = self._read(lambda s: s.run(schedule_sql.PEEK_DUE, where))
        return [schedule_of(row) for row in rows]

    def next_due(self, *, zone_data: str, signals_for: str | None = None) -> int | None:
        where = {"zone_data": zone_data, "signals_for": signals_for}
        rows = self._read(lambda s: s.run(schedule_sql.NEXT_DUE, where))
        return rows[0][0] if rows else None

    def tick(
        self,
        now: int,
        page: int,
        signals: Mapping[str, Signal],
        make_jobs: MakeJobs,
        *,
        zone_data: str,
        signals_for: str | None = None,
        only: str | None = None,
    ) -> Ticked:
        ticked = self._write(
            lambda s: ticking.tick(
                s,
                now,
                page,
                signals,
                make_jobs,
                zone_data=zone_data,
                signals_for=signals_for,
                only=only,
            )
        )
        fault.point("ticker.committed")
        return ticked

    def park_schedule(self, schedule_id: str, error: str, now: int) -> None:
        self._write(lambda s: parked.park(s, schedule_id, error, now))

    def missing_functions(self) -> Sequence[str]:
        return self._read(parked.missing_functions)

    def revive_schedules(self, functions: Sequence[str], now: int) -> int:
        return self._write(lambda s: parked.revive(s, functions, now))

    def take_zone_data(self, version: str) -> bool:
        if self._read(lambda s: zone_data.has_zone_data(s, version)):
            return False
        return self._write(lambda s: zone_data.take_zone_data(s, version))

    def compute_zoned(self, version: str, after: str, now: int) -> str | None:
        return self._write(lambda s: zone_data.compute_zoned(s, version, after or FIRST_ID, now))

    def re_aim(self, now: int, zone_data: str) -> int:
        ids = self._read(lambda s: ahead.find_ahead(s, now, zone_data))
        moved = 0
        for start in range(0, len(ids), ahead.RE_AIMED_AT_ONCE):
            page = ids[start : start + ahead.RE_AIMED_AT_ONCE]
            moved += self._write(lambda s: ahead.re_aim(s, page, now))  # noqa: B023
        return moved

    def run_schedule(
        self,
        schedule_id: str,
        choose: Choose,
        make_jobs: MakeJobs,
        now: int,
        *,
        by: str | None = None,
        parent_id: str | None = None,
        ancestors: frozenset[str] = frozenset(),
        slots: Range | None = None,
        run_id: str | None = None,
    ) -> Sequence[TickRecord] | None:
        if not is_id(schedule_id):
            return None
        return self._write(
            lambda s: runs.run(
                s,
                schedule_id,
                choose,
                make_jobs,
                now,
                by=by,
                parent_id=parent_id,
                ancestors=ancestors,
                slots=slots,
                run_id=run_id,
            )
        )

    def facts(
        self,
        plans: Sequence[Plan],
        now: int,
        signals: Mapping[str, Signal] | None = None,
        slots: Range | None = None,
    ) -> Facts:
        return self._read(lambda s: facts.gather(s, plans, now, signals, slots=slots))

    def add_schedule(self, record: ScheduleRecord, by: str | None, now: int) -> bool:
        return self._write(lambda s: data.add(s, record, by, now))

    def edit_schedule(
        self,
        schedule_id: str,
        change: Edit,
        action: str,
        by: str | None,
        detail: Mapping[str, Any] | None,
        now: int,
    ) -> ScheduleRecord | None:
        if not is_id(schedule_id):
            return None
        return self._write(lambda s: data.edit(s, schedule_id, change, action, by, detail, now))

    def remove_schedule(self, schedule_id: str, by: str | None, now: int) -> bool:
        if not is_id(schedule_id):
            return False
        return self._write(lambda s: data.remove(s, schedule_id, by, now))

    def schedule(self, schedule_id: str) -> ScheduleRecord | None:
        return self._read(lambda s: data.get(s, schedule_id)) if is_id(schedule_id) else None

    def find_schedule(self, app: str, owner: str, key: str) -> ScheduleRecord | None:
        return self._read(lambda s: data.find_one(s, app, owner, key))

    def schedules(self, filter: ScheduleFilter) -> Sequence[ScheduleRecord]:
        read = self._read if filter.search is None else self._read_in_time
        return read(lambda s: data.find(s, filter))

    def is_scheduled(self, functions: Sequence[str]) -> bool:
        return self._read(
            lambda s: bool(s.run(schedule_sql.IS_SCHEDULED, {"functions": s.array(functions)}))
        )

    def scheduled_functions(self) -> set[str]:
        return {row[0] for row in self._read(lambda s: s.run(schedule_sql.SCHEDULED_FUNCTIONS))}

    def ticks(self, schedule_id: str, filter: TickFilter) -> Sequence[TickRecord]:
        if not is_id(schedule_id):
            return []
        return self._read(lambda s: data.ticks(s, schedule_id, filter))

    def retain_ticks(self, after: str, cutoff: int) -> tuple[str, int]:
        last, old, costs = self._read(lambda s: retention.old_ticks(s, after or FIRST_ID, cutoff))
        removed = 0
        for ticks in old:
            while gone := self._write(lambda s: retention.forget_ticks(s, ticks)):  # noqa: B023
                removed += gone
        if costs:
            self._write(lambda s: retention.forget_costs(s, costs))
        return last, removed

    def days(self, schedule_id: str) -> Sequence[Day]:
        return self._read(lambda s: retention.days_of(s, schedule_id))

    def ledger_days(self, schedule_id: str) -> Sequence[Day]:
        return self._read(lambda s: views.ledger_days(s, schedule_id))

    def calendars_of(self, plans: Sequence[Plan]) -> Mapping[str, Calendar]:
        return self._read(lambda s: calendars.calendars_of(s, plans))

    def next_check(self) -> int | None:
        rows = self._read(lambda s: s.run(schedule_sql.NEXT_CHECK))
        return rows[0][0] if rows else None

    def check_promises(self, now: int, make_alert: MakeAlert) -> int:
        return self._write(lambda s: expectations.check(s, now, make_alert))

    def set_cost(self, job_id: str, token: int, amount: float) -> None:
        spent = {"id": job_id, "token": token, "amount": amount}
        self._write(lambda s: s.run(schedule_sql.SET_COST, spent))

    def declared(self, app: str, calendars: Sequence[str] = ()) -> Stored:
        return self._read(lambda s: declared.read(s, app, calendars))

    def apply_declared(
        self, app: str, calendars: Sequence[str], settle: Settle, by: str | None, now: int
    ) -> None:
        self._write(lambda s: declared.apply(s, app, calendars, settle, by, now))

    def pause_everything(self, by: str | None, note: str | None, now: int) -> None:
        self._write(lambda s: kill_switch.pause_everything(s, by, note, now))

    def resume_everything(self, by: str | None, now: int) -> bool:
        return self._write(lambda s: kill_switch.resume_everything(s, by, now))

    def kill_switch(self) -> QueuePause | None:
        rows = self._read(lambda s: s.run(schedule_sql.KILL_SWITCH))
        if not rows:
            return None
        by, at, note = rows[0]
        return QueuePause(schedule_sql.EVERYTHING, at, by, note)

    # Calendars

    def add_calendar(self, record: CalendarRecord, by: str | None, now: int) -> bool:
        return self._write(lambda s: calendars.add_calendar(s, record, by, now))

    def edit_calendar(
        self,
        calendar_id: str,
        change: Callable[[CalendarRecord], CalendarRecord | None],
        by: str | None,
        now: int,
    ) -> CalendarRecord | None:
        if not is_id(calendar_id):
            return None
        return self._write(lambda s: calendars.edit_calendar(s, calendar_id, change, by, now))

    def remove_calendar(self, calendar_id: str, by: str | None, now: int) -> bool:
        if not is_id(calendar_id):
            return False
        return self._write(lambda s: calendars.remove_calendar(s, calendar_id, by, now))

    def calendar(self, calendar_id: str) -> CalendarRecord | None:
        if not is_id(calendar_id):
            return None
        return self._read(lambda s: calendars.get_calendar(s, calendar_id))

    def calendar_named(self, owner: str, name: str) -> CalendarRecord | None:
        return self._read(lambda s: calendars.calendar_named(s, owner, name))

    def calendars_in_use(self) -> Mapping[str, Calendar]:
        return self._read(calendars.calendars_in_use)

    def calendars(
        self, owner: str | None, after: str | None = None, limit: int = 100
    ) -> Sequence[CalendarRecord]:
        if after is not None and not is_id(after):
            return []
        return self._read(lambda s: calendars.find_calendars(s, owner, after, limit))

    # Audit

    def audit(
        self,
        action: str,
        target: str,
        actor: str | None,
        detail: Mapping[str, Any] | None,
        now: int,
    ) -> None:
        self._write(lambda s: audit.audit(s, action, target, actor, detail, now))

    def audit_of(self, target: str, limit: int = 100) -> Sequence[AuditEntry]:
        return self._read(lambda s: audit.audit_of(s, target, limit))

    def audit_page(
        self,
        target: str | None,
        before: str | None,
        limit: int,
        *,
        actor: str | None = None,
        action: str | None = None,
    ) -> Sequence[AuditEntry]:
        if before is not None and not is_id(before):
            return []
        return self._read_in_time(
            lambda s: access.audit_page(s, target, before, limit, actor, action)
        )

    # Live events

    def newest(self, now: int) -> Cursor:
        return self._read(lambda s: feed.newest(s, now))

    def sees_writers(self) -> bool:
        return self._read(feed.sees_writers)

    def changes(self, cursor: Cursor, now: int, limit: int) -> Changes:
        return self._read(lambda s: feed.changes(s, cursor, now, limit))

    # Access

    def add_token(self, record: TokenRecord, by: str | None, now: int) -> bool:
        return self._write(lambda s: access.add_token(s, record, by, now))

    def revoke_token(self, token_id: str, by: str | None, now: int) -> bool:
        if not is_id(token_id):
            return False
        return self._write(lambda s: access.revoke_token(s, token_id, by, now))

    def use_token(self, token_id: str, now: int) -> None:
        self._write(lambda s: s.run(access_sql.USE_TOKEN, {"id": token_id, "now": now}))

    def token(self, token_id: str) -> TokenRecord | None:
        if not is_id(token_id):
            return None
        return self._read(lambda s: access.get_token(s, token_id))

    def token_by_digest(self, digest: str) -> TokenRecord | None:
        return self._read(lambda s: access.token_by_digest(s, digest))

    def tokens(
        self, owner: str | None, after: str | None = None, limit: int = 100
    ) -> Sequence[TokenRecord]:
        if after is not None and not is_id(after):
            return []
        return self._read(lambda s: access.tokens(s, owner, after or "", limit))

    def has_tokens(self, now: int) -> bool:
        return bool(self._read(lambda s: s.run(access_sql.HAS_TOKENS, {"now": now})))

    def claim_request(self, claim: RequestClaim) -> RequestClaim:
        return self._write(lambda s: access.claim_request(s, claim))

    def request_done(self, claim: RequestClaim) -> None:
        self._write(lambda s: access.request_done(s, claim))

    def give_up_request(self, claim: RequestClaim) -> None:
        self._write(lambda s: access.give_up_request(s, claim))

    def forget_requests(self, now: int) -> int:
        return len(self._write(lambda s: s.run(access_sql.FORGET_REQUESTS, {"now": now})))

    # Endpoints

    def add_endpoint(self, record: EndpointRecord, by: str | None, now: int) -> bool:
        return self._write(lambda s: endpoints.add(s, record, by, now))

    def edit_endpoint(
        self,
        endpoint_id: str,
        change: Callable[[EndpointRecord], EndpointRecord | None],
        by: str | None,
        now: int,
    ) -> EndpointRecord | None:
        if not is_id(endpoint_id):
            return None
        return self._write(lambda s: endpoints.edit(s, endpoint_id, change, by, now))

    def remove_endpoint(self, endpoint_id: str, by: str | None, now: int) -> bool:
        if not is_id(endpoint_id):
            return False
        return self._write(lambda s: endpoints.remove(s, endpoint_id, by, now))

    def endpoint(self, endpoint_id: str) -> EndpointRecord | None:
        return self._read(lambda s: endpoints.get(s, endpoint_id)) if is_id(endpoint_id) else None

    def endpoint_named(self, owner: str, name: str) -> EndpointRecord | None:
        return self._read(lambda s: endpoints.named(s, owner, name))

    def endpoints(
        self, owner: str | None, after: str | None = None, limit: int = 100
    ) -> Sequence[EndpointRecord]:
        if after is not None and not is_id(after):
            return []
        return self._read(lambda s: endpoints.find(s, owner, after, limit))

    # Gateways

    def add_gateway(self, record: GatewayRecord, by: str | None, now: int) -> bool:
        return self._write(lambda s: gateways.add_gateway(s, record, by, now))

    def remove_gateway(self, gateway_id: str, by: str | None, now: int) -> bool:
        if not is_id(gateway_id):
            return False
        return self._write(lambda s: gateways.remove_gateway(s, gateway_id, by, now))

    def gateway(self, gateway_id: str) -> GatewayRecord | None:
        if not is_id(gateway_id):
            return None
        return self._read(lambda s: gateways.get_gateway(s, gateway_id))

    def gateway_named(self, owner: str, name: str) -> GatewayRecord | None:
        return self._read(lambda s: gateways.gateway_named(s, owner, name))

    def gateways(
        self, owner: str | None, after: str | None = None, limit: int = 100
    ) -> Sequence[GatewayRecord]:
        if after is not None and not is_id(after):
            return []
        return self._read(lambda s: gateways.gateways(s, owner, after, limit))

    def note_gateway(self, record: GatewayRecord) -> None:
        self._write(lambda s: gateways.note_gateway(s, record))

    # Webhooks

    def receive_webhook(self, record: InboxRecord, make_jobs: MakeEventJobs | None) -> StoredEvent:
        stored = self._write(lambda s: inbox.receive(s, record, make_jobs))
        fault.point("webhook.committed")
        return stored

    def event(self, event_id: str) -> FoundEvent | None:
        return self._read(lambda s: inbox.get(s, event_id)) if is_id(event_id) else None

    def events(self, filter: InboxFilter) -> EventPage:
        return self._read_in_time(lambda s: inbox.find(s, filter))

    def retry_event(
        self,
        event_id: str,
        again: Callable[[JobRecord], TrackedJob],
        expires_at: int,
        by: str | None,
        now: int,
    ) -> str | None:
        if not is_id(event_id):
            return None
        return self._write(lambda s: inbox.retry(s, event_id, again, expires_at, by, now))

    def retain_events(self, after: str, cutoff: int) -> tuple[str, int]:
        return self._write(lambda s: inbox.forget(s, after, cutoff))

    # Measures

    def depths(self, now: int) -> Sequence[Depth]:
        return self._read(lambda s: measures.depths(s, now))

    def oldest_due(self) -> int | None:
        rows = self._read(lambda s: s.run(measure_sql.OLDEST_DUE))
        return rows[0][0] if rows else None

    def schedule_counts(self) -> ScheduleCounts:
        return self._read(measures.schedule_counts)

    def waiting_functions(self) -> Sequence[str]:
        return self._read(measures.waiting_functions)

    def required_zone_data(self) -> str:
        return self._read(zone_data.required_zone_data)

    def tally(self, now: int, overdue: int, day: int, owner: str | None) -> Tally:
        return self._read(lambda s: views.tally(s, now, overdue, day, owner))

    def recent_runs(self, schedule_ids: Sequence[str], limit: int) -> Mapping[str, list[Run]]:
        return self._read(lambda s: views.recent_runs(s, schedule_ids, limit))

    def function_runs(self, functions: Sequence[str], limit: int) -> Mapping[str, list[Run]]:
        return self._read(lambda s: views.function_runs(s, functions, limit))

    def throughput(self, since: int, step: int, owner: str | None) -> Sequence[Ended]:
        return self._read(lambda s: views.throughput(s, since, step, owner))

    def add_counts(self, counts: Sequence[Count]) -> None:
        if counts:
            self._single(lambda s: measures.add_counts(s, counts))

    def counts(self) -> Sequence[Count]:
        return self._read(measures.counts)

    def traces(self, job_ids: Sequence[str]) -> Mapping[str, str]:
        return dict(self._read(lambda s: s.run(sql.TRACES_OF, {"ids": s.array(job_ids)})))

    def system_tables(self) -> Sequence[SystemTable]:
        return self._read(system.tables)

    def system_rows(
        self, table: str, after: Sequence[str | int] | None, limit: int
    ) -> Sequence[Mapping[str, Any]]:
        return self._read(lambda s: system.rows(s, table, after, limit))

    # Queues

    def pause_queue(self, name: str, by: str | None, note: str | None, now: int) -> None:
        values = {"name": name, "by": by, "note": note, "now": now}
        self._change_queue(sql.PAUSE_QUEUE, values, "pause", by, {"note": note}, now)

    def resume_queue(self, name: str, by: str | None, now: int) -> None:
        self._change_queue(sql.RESUME_QUEUE, {"name": name}, "resume", by, None, now)

    def limit_queue(self, name: str, at_once: int | None, by: str | None, now: int) -> None:
        values = {"name": name, "at_once": at_once}
        self._change_queue(sql.LIMIT_QUEUE, values, "limit", by, {"at_once": at_once}, now)

    def _change_queue(
        self,
        statement: sql.Statement,
        values: Mapping[str, Any],
        verb: str,
        by: str | None,
        detail: Mapping[str, Any] | None,
        now: int,
    ) -> None:
        def change(session: Session) -> None:
            session.run(statement, values)
            audit.audit(session, f"queue.{verb}", f"queue:{values['name']}", by, detail, now)

        self._write(change)

    def queue_limits(self) -> Mapping[str, int]:
        return self._read(limits.limited_queues)

    def paused_queues(self) -> Sequence[QueuePause]:
        return self._read(lambda s: s.paused_queues())
