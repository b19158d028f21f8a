"""Compares the declared calendars of an app with what its code said when it was last applied.

As for schedules, only changes in the code change the store. Dates are compared one by one, so a day
that an operator has added to a declared calendar is kept until code says something about that day.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from duly.ids import new_id
from duly.model.calendar import Calendar
from duly.model.stored_values import attempt
from duly.schedules.define import detail_of, to_json
from duly.schedules.set_plan import Kind
from duly.store.declarations import AttachableCalendar, CalendarWrite, StoredDeclarations
from duly.store.schedules.calendars import CalendarRecord


class CalendarStep(NamedTuple):
    """What happens to one calendar; `before` and `after` are its old and new declarations."""

    kind: Kind
    name: str
    write: CalendarWrite | None = None
    before: Calendar | None = None
    after: Calendar | None = None
    reason: str | None = None

    @property
    def fields(self) -> dict[str, tuple[Any, Any]]:
        """What code changes: before and after; of the dates, only those that change."""
        before, after = self.before, self.after
        if before is None or after is None:
            return {}
        pairs = {name: (getattr(before, name), getattr(after, name)) for name in ("kind", "tz")}
        pairs["rules"] = list(before.rules), list(after.rules)
        pairs["dates"] = _only_in(before, after), _only_in(after, before)
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _only_in(calendar: Calendar, other: Calendar) -> dict[str, str]:
    return {
        day.isoformat(): label
        for day, label in calendar.dates.items()
        if other.dates.get(day) != label
    }


def compare_calendars(
    app: str,
    wanted: Mapping[str, Calendar],
    stored: StoredDeclarations,
    now: int,
    only: Collection[str] | None = None,
) -> list[CalendarStep]:
    """What applying does to each calendar. `only`: to these, and no calendar becomes an orphan."""
    chosen = [name for name in wanted if only is None or name in only]
    steps = [_step(app, wanted[name], stored, now) for name in chosen]
    if only is not None:
        return steps
    return steps + [
        _orphan(record, now)
        for name, record in stored.records.items()
        if record.app == app and record.orphaned_at is None and name not in wanted
    ]


def attachable_after(
    stored: StoredDeclarations, steps: Sequence[CalendarStep]
) -> Mapping[str, AttachableCalendar]:
    """The calendars that schedules can use once these steps have been done, by name."""
    changed = {
        step.name: AttachableCalendar(step.write.record.id, decoded(step.write.record.definition))
        for step in steps
        if step.write is not None
    }
    return MappingProxyType({**stored.calendars, **changed})


def _step(app: str, wanted: Calendar, stored: StoredDeclarations, now: int) -> CalendarStep:
    name, record = wanted.name, stored.records.get(wanted.name)
    text = to_json(wanted.encode())
    if record is None:
        fresh = CalendarRecord(new_id(now), "", name, text, 1, now, now, app, text)
        return CalendarStep("create", name, CalendarWrite("create", fresh))
    found = stored.calendars.get(name)
    if record.app != app:
        return _adopt(app, wanted, record, None if found is None else found.calendar)
    before = _declared(record)
    if record.orphaned_at is None and before == wanted:
        return CalendarStep("unchanged", name)
    kind: Kind = "change" if record.orphaned_at is None else "revive"
    after = wanted
    if before is not None and found is not None:
        after = _with_changes(found.calendar, before, wanted)
    changed = msgspec.structs.replace(
        record, definition=to_json(after.encode()), declared=text, orphaned_at=None
    )
    action = "update" if kind == "change" else kind
    return CalendarStep(kind, name, CalendarWrite(action, changed), before, wanted)


def _adopt(
    app: str, wanted: Calendar, record: CalendarRecord, found: Calendar | None
) -> CalendarStep:
    """A calendar that this code did not create; it is declared from now on, if it is the same."""
    if record.app and record.orphaned_at is None:
        reason = f"the app {record.app!r} declares a calendar with this name; choose another name"
        return CalendarStep("blocked", wanted.name, reason=reason)
    if found != wanted:
        reason = (
            "a different calendar with this name exists that code did not create; "
            "rename or remove it, or choose another name"
        )
        return CalendarStep("blocked", wanted.name, reason=reason)
    adopted = msgspec.structs.replace(
        record, app=app, declared=to_json(wanted.encode()), orphaned_at=None
    )
    return CalendarStep("adopt", wanted.name, CalendarWrite("adopt", adopted))


def _orphan(record: CalendarRecord, now: int) -> CalendarStep:
    after = msgspec.structs.replace(record, orphaned_at=now)
    return CalendarStep("orphan", record.name, CalendarWrite("orphan", after))


def removable(
    app: str, stored: StoredDeclarations, wanted: Collection[str], freed: Mapping[str, int]
) -> list[CalendarStep]:
    """The orphans to remove. One that schedules still use is kept; `freed` counts those that go."""
    steps: list[CalendarStep] = []
    for name, attached in stored.attached.items():
        record = stored.records[name]
        if record.app != app or name in wanted:
            continue
        users = attached - freed.get(record.id, 0)
        if users:
            many = "a schedule uses it" if users == 1 else f"{users:,} schedules use it"
            steps.append(CalendarStep("blocked", name, reason=many))
        else:
            steps.append(CalendarStep("remove", name, CalendarWrite("remove", record)))
    return steps


def _with_changes(found: Calendar, before: Calendar, after: Calendar) -> Calendar:
    """The stored calendar, with the changes made in code and no others."""
    dates: dict[dt.date, str] = {
        day: label
        for day, label in found.dates.items()
        if day not in before.dates or day in after.dates
    }
    dates |= {day: name for day, name in after.dates.items() if before.dates.get(day) != name}
    fields = {
        name: getattr(after if getattr(before, name) != getattr(after, name) else found, name)
        for name in ("kind", "tz", "rules")
    }
    return Calendar.decode({"name": after.name, "dates": dates, **fields})


def _declared(record: CalendarRecord) -> Calendar | None:
    """The declaration as it was last applied; None if it cannot be read."""
    return attempt(lambda: Calendar.decode(detail_of(record.declared)), None)


def decoded(definition: str) -> Calendar:
    """A calendar from its stored form."""
    return Calendar.decode(detail_of(definition))
