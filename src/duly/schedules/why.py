"""`app.schedules.why(key)`: gathers the facts about a schedule and explains why it has not run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from duly.core import Core
from duly.model.decide import Decided
from duly.model.expect import read_late
from duly.model.schedule import ScheduleRecord, TickFilter
from duly.model.why import Pause
from duly.model.why_schedule import (
    ScheduleFacts,
    ScheduleReason,
    schedule_reasons,
    schedule_sentence,
)
from duly.schedules.define import detail_of

MAX_LOOKED_AT = 100
"""How many changes of a schedule are checked to find out who disabled it."""


class ScheduleWhy(msgspec.Struct, frozen=True):
    """Why a schedule has not run: the reasons in order, and a sentence."""

    schedule_id: str
    key: str
    reasons: tuple[ScheduleReason, ...]
    text: str

    def __str__(self) -> str:
        return self.text


def explain_schedule(core: Core, record: ScheduleRecord, coming: Sequence[Decided]) -> ScheduleWhy:
    found = schedule_reasons(_facts(core, record, coming), core.now())
    return ScheduleWhy(record.id, record.key, tuple(found), schedule_sentence(record.key, found))


def _facts(core: Core, record: ScheduleRecord, coming: Sequence[Decided]) -> ScheduleFacts:
    store = core.ready()
    killed = store.kill_switch()
    newest = next(iter(store.ticks(record.id, TickFilter(limit=1))), None)
    return ScheduleFacts(
        record=record,
        function=store.function(record.function),
        kill_switch=None if killed is None else Pause(killed.paused_by, killed.note),
        disabled=None if record.enabled else Pause(_disabled_by(core, record), record.note),
        late=None if (late := read_late(record.late)) is None else late.problem,
        newest=newest,
        detail={} if newest is None else detail_of(newest.detail),
        job=None if newest is None or newest.job_id is None else store.get(newest.job_id),
        coming=coming,
        has_workers=any(not worker.alone for worker in store.workers()),
    )


def _disabled_by(core: Core, record: ScheduleRecord) -> str | None:
    """Who disabled it, which may not be who changed it last."""
    for entry in core.ready().audit_of(f"schedule:{record.id}", MAX_LOOKED_AT):
        detail = detail_of(entry.detail)
        if entry.action in ("schedule.disable", "schedule.create") or (
            "enabled" in detail.get("changed", ())
        ):
            return entry.actor
    return None
