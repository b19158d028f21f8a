"""The schedules that were removed together with their function."""

from __future__ import annotations

from typing import Any

from duly.core import Core
from duly.model.audit import ROW
from duly.model.schedule import ScheduleRecord
from duly.schedules.define import from_json
from duly.schedules.views import Schedule

DELETED = "function.deleted"


def removed_with(core: Core, function: str) -> list[Schedule]:
    """The schedules that were removed when a function, since restored, was deleted."""
    # The newest entry is the restore itself.
    entries = core.ready().audit_of(f"function:{function}", 2)
    if len(entries) < 2 or entries[1].action != DELETED or entries[1].detail is None:
        return []
    ids: list[str] = from_json(entries[1].detail).get("removed", [])
    found = (_as_it_was(core, schedule_id) for schedule_id in ids)
    return [Schedule(core, record) for record in found if record is not None]


def _as_it_was(core: Core, schedule_id: str) -> ScheduleRecord | None:
    for entry in core.ready().audit_of(f"schedule:{schedule_id}", 10):
        detail: dict[str, Any] = {} if entry.detail is None else from_json(entry.detail)
        if ROW in detail:
            return ScheduleRecord(**detail[ROW])
    return None
