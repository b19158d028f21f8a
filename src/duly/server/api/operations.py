"""Operator controls: queues, workers, the kill switch and the audit log."""

from __future__ import annotations

from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from duly.app import Duly, operations
from duly.clock import from_ms
from duly.functions.published import options_of
from duly.model.audit import ROW
from duly.model.queue import QueuePause
from duly.observe.doctor import Level
from duly.server.answers import Ms, Shape, Time, stored, time_of
from duly.server.api.common import EMPTY_NOTE, Cursor, Limit, NoteBody, Page, check_cursor, page
from duly.server.api.operation import Operations, Operator, Reader, require_all_owners

api = Operations("operations")


class PauseShape(Shape):
    by: str | None
    note: str | None
    at: Time | None
    at_ms: Ms | None


class QueueShape(Shape):
    name: str
    paused: PauseShape | None
    at_once: Annotated[
        int | None, Meta(description="The most jobs that run at once, across all workers.")
    ]


class LimitBody(Shape):
    at_once: Annotated[int, Meta(ge=1, le=1_000_000)] | None


class WorkerShape(Shape):
    id: str
    app: str
    host: str
    pid: int
    queues: list[str] | None
    functions: list[str]
    slots: int
    threads: int
    alone: bool
    started_at: Time
    started_at_ms: Ms


class FindingShape(Shape):
    check: str
    level: Level
    text: str
    hint: Annotated[str | None, Meta(description="What to do.")]


class DiagnosisShape(Shape):
    healthy: Annotated[bool, Meta(description="True if no problem was found; notes do not count.")]
    findings: list[FindingShape]


class SwitchShape(Shape):
    paused: PauseShape | None


class AuditShape(Shape):
    id: str
    at: Time
    at_ms: Ms
    actor: str | None
    action: str
    target: str
    detail: Any


# Queues ------------------------------------------------------------------------------------------


@api.get("/queues")
def queues(app: Duly, who: Reader) -> list[QueueShape]:
    """List every queue that a function, a worker, a pause or a limit names."""
    paused = {pause.name: pause for pause in app.queues.paused() if pause.name != "*"}
    limits = app.queues.limits()
    used = {options_of(info).queue for info in app.functions.published()}
    named = {queue for worker in app.workers() for queue in worker.queues or ()}
    names = {name for name in used | named | set(limits) | set(paused) if name}
    return [
        QueueShape(name=name, paused=_pause(paused.get(name)), at_once=limits.get(name))
        for name in sorted(names)
    ]


@api.post("/queues/{name}/pause")
def pause_queue(app: Duly, who: Operator, name: str, body: NoteBody = EMPTY_NOTE) -> QueueShape:
    """Pause a queue: start no more of its jobs."""
    require_all_owners(who)
    app.queues.pause(name, by=who.name, note=body.note)
    return _queue(app, name)


@api.post("/queues/{name}/resume")
def resume_queue(app: Duly, who: Operator, name: str) -> QueueShape:
    """Resume a paused queue."""
    require_all_owners(who)
    app.queues.resume(name, by=who.name)
    return _queue(app, name)


@api.put("/queues/{name}/limit")
def limit_queue(app: Duly, who: Operator, name: str, body: LimitBody) -> QueueShape:
    """Limit how many of a queue's jobs run at once, across all workers; null: no limit."""
    require_all_owners(who)
    app.queues.limit(name, body.at_once, by=who.name)
    return _queue(app, name)


def _queue(app: Duly, name: str) -> QueueShape:
    paused = next((pause for pause in app.queues.paused() if pause.name == name), None)
    return QueueShape(name=name, paused=_pause(paused), at_once=app.queues.limits().get(name))


def _pause(pause: QueuePause | None) -> PauseShape | None:
    if pause is None:
        return None
    return PauseShape(
        by=pause.paused_by, note=pause.note, at=time_of(pause.paused_at), at_ms=pause.paused_at
    )


# Workers, the kill switch, the audit log ---------------------------------------------------------


@api.get("/workers")
def workers(app: Duly, who: Reader) -> list[WorkerShape]:
    """List the registered workers."""
    require_all_owners(who)
    return [
        WorkerShape(
            id=worker.id,
            app=worker.app,
            host=worker.host,
            pid=worker.pid,
            queues=None if worker.queues is None else list(worker.queues),
            functions=list(worker.functions),
            slots=worker.slots,
            threads=worker.threads,
            alone=worker.alone,
            started_at=from_ms(worker.started_at),
            started_at_ms=worker.started_at,
        )
        for worker in app.workers()
    ]


@api.get("/doctor")
def doctor(app: Duly, who: Reader) -> DiagnosisShape:
    """Check for problems that the server can see, with advice; takes a few seconds at most."""
    require_all_owners(who)
    found = operations.examine(app)
    findings = [FindingShape(**msgspec.structs.asdict(each)) for each in found.findings]
    return DiagnosisShape(healthy=found.healthy, findings=findings)


@api.get("/kill-switch")
def kill_switch(app: Duly, who: Reader) -> SwitchShape:
    """Get the state of the kill switch: whether everything is paused, by whom, when and why."""
    return SwitchShape(paused=_pause(app.paused))


@api.post("/kill-switch/pause")
def pause(app: Duly, who: Operator, body: NoteBody = EMPTY_NOTE) -> SwitchShape:
    """Pause everything: no job starts and no tick is dispatched."""
    require_all_owners(who)
    app.pause(body.note, by=who.name)
    return SwitchShape(paused=_pause(app.paused))


@api.post("/kill-switch/resume")
def resume(app: Duly, who: Operator) -> SwitchShape:
    """Resume everything."""
    require_all_owners(who)
    app.resume(by=who.name)
    return SwitchShape(paused=_pause(app.paused))


@api.get("/audit")
def audit(
    app: Duly,
    who: Operator,
    target: Annotated[str | None, Meta(description="For example schedule:<id>.")] = None,
    before: Cursor = None,
    limit: Limit = 100,
) -> Page[AuditShape]:
    """List audit entries, newest first."""
    require_all_owners(who)
    return audited(app, target, before, limit)


def audited(
    app: Duly,
    target: str | None,
    before: str | None,
    limit: int,
    actor: str | None = None,
    action: str | None = None,
) -> Page[AuditShape]:
    """A page of the audit log."""
    check_cursor("before", before)
    entries = operations.audit_page(app, target, before, limit + 1, actor=actor, action=action)
    shapes = [
        AuditShape(
            id=entry.id,
            at=from_ms(entry.at),
            at_ms=entry.at,
            actor=entry.actor,
            action=entry.action,
            target=entry.target,
            detail=None if entry.detail is None else _shown(stored(entry.detail)),
        )
        for entry in entries
    ]
    return page(shapes, limit, lambda entry: entry.id)


def _shown(detail: Any) -> Any:
    """The detail without a removed schedule's row, which may hold redacted values."""
    if not isinstance(detail, dict):
        return detail
    fields = cast("dict[str, Any]", detail)
    return {name: value for name, value in fields.items() if name != ROW}
