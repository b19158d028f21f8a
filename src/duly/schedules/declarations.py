"""Declared schedules: `app.schedule(…)`, and how a set of them is applied to the store.

Each schedule stores its declaration as it was last applied. The next set is compared with that
declaration and not with the schedule itself, so only changes in the code change the store: the
schedule's position and an operator's decisions about it are kept.
"""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import hashlib
import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast

import msgspec

from duly.clock import from_ms
from duly.core import Core
from duly.errors import (
    BadInput,
    CalendarNotFound,
    DulyError,
    InvalidOption,
    ScheduleExists,
    StoreError,
)
from duly.functions.checks import check_flag
from duly.functions.function import Call, Function
from duly.model.calendar import Calendar
from duly.model.due import due_at
from duly.model.function import Status
from duly.model.rotation import parse as parse_rotation
from duly.model.schedule import POLICIES, Policies, ScheduleRecord, plan_of, write_trigger
from duly.model.schedule_options import BY_NAME, JSON, Option
from duly.model.schedule_options import Kind as OptionKind
from duly.model.stored_values import read
from duly.model.trigger import Cron, Every, Trigger, is_same_time
from duly.model.trigger import decode as decode_trigger
from duly.model.trigger import encode as encode_trigger
from duly.runtime.transaction_guard import refuse_inside_mutation
from duly.schedules.checks import check_by, check_key
from duly.schedules.define import (
    Definition,
    bound,
    calendar_name,
    define,
    detail_of,
    from_json,
    known_calendars,
    to_json,
)
from duly.schedules.rows import (
    KEPT_BY_OPERATOR,
    WAS_DISABLED,
    checked,
    columns_of,
    new_record,
    with_next_tick_under,
    without_next_tick,
)
from duly.store.declarations import AppliedSet, ScheduleWrite, StoredDeclarations

log = logging.getLogger(__name__)

ScheduleSpec = dict[str, Any]
"""The declaration of a schedule, as data; options that are left out have their defaults."""

TIMES = frozenset({"trigger", "start_at", "end_at"})
DEFAULT_SPEC: ScheduleSpec = {
    **{name: msgspec.to_builtins(getattr(Policies(), name)) for name in POLICIES},
    "enabled": True,
    "fire_at_once": False,
}


# Declaring ---------------------------------------------------------------------------------------


class DeclaredSchedule:
    """A schedule that is declared in code. Pass it wherever a schedule's key is accepted."""

    def __init__(
        self,
        core: Core,
        key: str,
        call: Call[Any] | Function[..., Any],
        given: Mapping[str, Any],
        source: str,
    ) -> None:
        check_key(key)
        self._core = core
        self._call = call
        self._given = dict(given)
        self._definition: Definition | None = None
        self.key = key
        self.source = source
        """Where it is declared: file and line."""
        _check_flags(given)
        if _is_resolvable(call, given):
            self.definition()
        else:
            _check_without_hints(core, cast(Function[..., Any], call), given)

    def __repr__(self) -> str:
        return f"<declared schedule {self.key!r} of {self.function}>"

    @property
    def function(self) -> str:
        """The name of the function."""
        return self._function.name

    @property
    def _function(self) -> Function[..., Any]:
        call = self._call
        return call.function if isinstance(call, Call) else call

    def definition(self) -> Definition:
        """The declaration, checked; for internal use."""
        if self._definition is None:
            self._definition = define(self._core, self._call, self._given, look_up=False)
            _check_span(self._definition)
        return self._definition

    def admitted(self) -> bool:
        """Whether the schedule may exist: False if its function was deleted."""
        if self._core.functions.status_of(self.function) == Status.DELETED:
            return False
        call = self._call
        self._core.functions.admitted(call if isinstance(call, Call) else bound(call))
        return True

    def spec(self) -> ScheduleSpec:
        """The declaration, as data."""
        definition = self.definition()
        spec = msgspec.structs.asdict(definition)
        policies = msgspec.to_builtins(spec.pop("policies"))
        spec |= policies | {"trigger": encode_trigger(definition.trigger)}
        for name in ("enabled", "fire_at_once", "note"):
            spec[name] = self._given.get(name)
        unusual = {n: v for n, v in spec.items() if v is not None and v != DEFAULT_SPEC.get(n)}
        return cast(ScheduleSpec, from_json(to_json(unusual)))


def declare(
    core: Core,
    key: str,
    call: Call[Any] | Function[..., Any],
    given: Mapping[str, Any],
    source: str,
) -> DeclaredSchedule:
    """Add a declaration; repeating the same one, as when a module is imported again, is allowed."""
    declared = DeclaredSchedule(core, key, call, given, source)
    known: DeclaredSchedule | None = core.declarations.get(key)
    if known is not None and not (known.source == source and _are_the_same(known, declared)):
        raise ScheduleExists(key, (known.source, source))
    core.declarations[key] = declared
    return declared


def _are_the_same(one: DeclaredSchedule, other: DeclaredSchedule) -> bool:
    try:
        return one.spec() == other.spec()
    except BadInput:
        return False


def _check_flags(given: Mapping[str, Any]) -> None:
    for name in ("enabled", "fire_at_once"):
        check_flag(name, given.get(name, False))
    if given.get("calendar") is not None:
        calendar_name(given["calendar"])
    if not isinstance(given.get("note"), str | None):
        raise InvalidOption("note", f"must be text, not {given['note']!r}")


def _is_resolvable(call: Call[Any] | Function[..., Any], given: Mapping[str, Any]) -> bool:
    """Whether all required type hints can be resolved while modules are still being imported."""
    # The hints of bound calls were already resolved when they were bound.
    wanted: list[Any] = [call, given.get("alert")]
    return all(f.signature.is_sound() for f in wanted if isinstance(f, Function))


def _check_without_hints(
    core: Core, function: Function[..., Any], given: Mapping[str, Any]
) -> None:
    """Check everything that needs no type hints; the rest is checked when they can be resolved."""
    parse_rotation(given.get("rotation"))
    with_hints = ("rotation", "alert", "expect")
    rest = {name: value for name, value in given.items() if name not in with_hints}
    _check_span(define(core, Call(function, "{}"), rest, look_up=False))


def _check_span(definition: Definition) -> None:
    start, end = definition.start_at, definition.end_at
    if start is not None and end is not None and end < start:
        raise InvalidOption("end_at", "is before start_at")


# The plan ----------------------------------------------------------------------------------------

Kind = Literal["create", "change", "rename", "revive", "orphan", "remove", "blocked", "unchanged"]

SIGNS: Mapping[str, str] = {
    "create": "+",
    "change": "~",
    "rename": ">",
    "revive": "+",
    "orphan": "-",
    "remove": "-",
    "blocked": "!",
    "unchanged": "=",
}


class PlanEntry(msgspec.Struct, frozen=True):
    """What applying does to one declared schedule."""

    kind: Kind
    """create, change, rename, revive, orphan, remove, blocked or unchanged."""
    key: str
    schedule_id: str | None = None
    """None if it is not stored yet."""
    fields: dict[str, tuple[Any, Any]] = {}
    """What changes: before and after."""
    renamed_from: str | None = None

    def __str__(self) -> str:
        head = f"{SIGNS[self.kind]} {self.key}: {self.kind}"
        if self.renamed_from is not None:
            head += f" from {self.renamed_from}"
        if self.kind == "blocked":
            head += ", its function was deleted"
        changes = (f"    {n}: {a!r} -> {b!r}" for n, (a, b) in self.fields.items())
        return "\n".join([head, *changes])


class SchedulePlan(msgspec.Struct, frozen=True):
    """The changes that applying the declared schedules makes, or has made."""

    entries: tuple[PlanEntry, ...]
    applied_before: bool = False
    """Whether this set was applied before; if so, starting the app does not apply it again."""

    @property
    def changes(self) -> tuple[PlanEntry, ...]:
        """The entries that change something."""
        return tuple(e for e in self.entries if e.kind not in ("unchanged", "blocked"))

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __iter__(self) -> Iterator[PlanEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        shown = [str(entry) for entry in self.entries if entry.kind != "unchanged"]
        unchanged = len(self.entries) - len(shown)
        return "\n".join([*shown, f"{unchanged} unchanged"])


# Planning and applying ---------------------------------------------------------------------------


class DesiredSchedule(NamedTuple):
    """A declaration, ready to be compared with the stored schedule."""

    key: str
    definition: Definition
    spec: ScheduleSpec
    blocked: bool


class PlanStep(NamedTuple):
    """What happens to one schedule; `before` and `after` are its old and new declarations."""

    kind: Kind
    key: str
    write: ScheduleWrite | None = None
    record: ScheduleRecord | None = None
    before: Mapping[str, Any] = MappingProxyType({})
    after: Mapping[str, Any] = MappingProxyType({})


class Declarations:
    """All declared schedules of an app."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def plan(self) -> SchedulePlan:
        """What `apply` would change now."""
        wanted, names = self._wanted()
        stored = self._core.ready().declared(self._core.name, names)
        with self._suggesting_calendars():
            steps = self._settle(wanted, stored, None, self._core.now())
        return self._shown(steps, applied_before=digest(wanted) in stored.sets)

    def apply(self, by: str | None = None, *, only_new: bool = False) -> SchedulePlan:
        """Apply the set and return the changes. `only_new`: only if it was never applied before."""
        refuse_inside_mutation("schedules.apply")
        check_by(by)
        wanted, names = self._wanted()
        now, chosen = self._core.now(), digest(wanted)
        self._publish(wanted, now)
        steps: list[PlanStep] = []
        known = False

        def settle(stored: StoredDeclarations) -> AppliedSet | None:
            nonlocal known
            known = chosen in stored.sets
            if known and only_new:
                return None
            steps[:] = self._settle(wanted, stored, by, now)
            return AppliedSet([step.write for step in steps if step.write], chosen)

        with self._suggesting_calendars():
            self._core.ready().apply_declared(self._core.name, names, settle, by, now)
        self._core.wake_ticker()
        return self._shown(steps, applied_before=known)

    @contextmanager
    def _suggesting_calendars(self) -> Generator[None]:
        """Add a suggestion to the error for an unknown calendar, after the transaction."""
        try:
            yield
        except CalendarNotFound as error:
            raise CalendarNotFound(error.name, known_calendars(self._core, "")) from error

    def _publish(self, wanted: Iterable[DesiredSchedule], now: int) -> None:
        """Publish the functions for tickers that do not have their code."""
        names = {w.definition.function for w in wanted} | {w.definition.alert for w in wanted}
        functions = [f for f in self._core.functions.registered.values() if f.name in names]
        names |= {f.options.on_complete.name for f in functions if f.options.on_complete}
        described = self._core.functions.published(
            name for name in self._core.functions.registered if name in names
        )
        if described:
            self._core.ready().publish(described, now)

    def prune(self, by: str | None = None, *, dry_run: bool = False) -> SchedulePlan:
        """Remove the orphans that this code does not declare either; returns which."""
        refuse_inside_mutation("schedules.prune")
        check_by(by)
        self._core.import_modules()
        app, store = self._core.name, self._core.ready()
        if dry_run:
            return self._shown(self._orphans(store.declared(app)))
        steps: list[PlanStep] = []

        def settle(stored: StoredDeclarations) -> AppliedSet:
            steps[:] = self._orphans(stored)
            return AppliedSet([step.write for step in steps if step.write])

        store.apply_declared(app, (), settle, by, self._core.now())
        return self._shown(steps)

    def apply_at_start(self) -> None:
        """Apply a new set. A faulty one changes nothing, and does not stop the worker."""
        try:
            if self._core.settings.apply == "start" and self._is_new():
                plan = self.apply(only_new=True)
                if plan:
                    log.info("applied the schedules of %s:\n%s", self._core.name, plan)
        except StoreError:
            raise
        except DulyError as error:
            # A mistake in a declaration: the message says what to do, a traceback would not help.
            log.error("%s: %s", self._not_applied(), error)
            log.debug("where that was raised", exc_info=True)
        except Exception:
            log.exception("%s", self._not_applied())

    def _not_applied(self) -> str:
        name = self._core.name
        return f"the schedules that {name!r} declares were not applied; stored ones are unchanged"

    def _is_new(self) -> bool:
        wanted, _ = self._wanted()
        stored = self._core.ready().declared(self._core.name)
        alive = any(is_of_code(record) for record in stored.schedules)
        if not wanted:
            # A script that imports no declarations must not disable schedules that others declare.
            if alive:
                log.warning(
                    "%r declares no schedules here; the stored ones continue. To disable them, run "
                    "`duly schedules apply` or app.schedules.apply()",
                    self._core.name,
                )
            return False
        chosen = digest(wanted)
        if chosen in stored.sets and chosen != stored.sets[-1]:
            log.warning(
                "the schedules that %r declares here were replaced by a newer set; to "
                "bring them back, run `duly schedules apply` or app.schedules.apply()",
                self._core.name,
            )
        return chosen not in stored.sets

    def _wanted(self) -> tuple[list[DesiredSchedule], list[str]]:
        """The declarations, checked against the store, and the calendars that they refer to."""
        self._core.import_modules()
        found: Iterable[DeclaredSchedule] = list(self._core.declarations.values())
        wanted = [
            DesiredSchedule(
                declared.key, declared.definition(), declared.spec(), not declared.admitted()
            )
            for declared in found
        ]
        return wanted, sorted({w.definition.calendar for w in wanted if w.definition.calendar})

    def _settle(
        self,
        wanted: Sequence[DesiredSchedule],
        stored: StoredDeclarations,
        by: str | None,
        now: int,
    ) -> list[PlanStep]:
        return Comparison(self._core, wanted, stored, by, now).steps()

    def _orphans(self, stored: StoredDeclarations) -> list[PlanStep]:
        return [
            PlanStep("remove", record.key, ScheduleWrite("remove", record), record)
            for record in stored.schedules
            if record.orphaned_at is not None and record.key not in self._core.declarations
        ]

    def _shown(self, steps: Iterable[PlanStep], *, applied_before: bool = False) -> SchedulePlan:
        return SchedulePlan(tuple(self._entry(step) for step in steps), applied_before)

    def _entry(self, step: PlanStep) -> PlanEntry:
        record = step.record
        fields: dict[str, tuple[Any, Any]] = {}
        if step.kind in ("change", "revive"):
            for name in sorted(differing(step.before, step.after)):
                shown = self._value(step.before, name), self._value(step.after, name)
                fields["arguments" if name == "args" else name] = shown
        return PlanEntry(
            step.kind,
            step.key,
            None if record is None else record.id,
            fields,
            record.key if record is not None and step.kind == "rename" else None,
        )

    def _value(self, spec: Mapping[str, Any], name: str) -> Any:
        """One declared value, in readable form."""
        value = spec.get(name, DEFAULT_SPEC.get(name))
        if not value:
            return value
        if name == "trigger":
            return in_words(decode_trigger(value))
        if name == "args":
            return self._core.redaction.shown_arguments(spec["function"], value)
        if name == "rotation":
            entries = read(value, list[msgspec.Raw], [])
            texts = [bytes(entry).decode() for entry in entries]
            return [self._core.redaction.shown_arguments(spec["function"], text) for text in texts]
        if name == "options":
            return from_json(value)
        return _for_people(BY_NAME[name], value) if name in BY_NAME else value


def _for_people(option: Option, spec: Any) -> Any:
    if option.kind is OptionKind.INSTANT:
        return from_ms(spec)
    # Some records are shown as text, in their stored form.
    return from_json(spec) if option.kind in JSON and isinstance(spec, str) else option.shown(spec)


def in_words(trigger: Trigger) -> str:
    if isinstance(trigger, Cron):
        return f"{trigger.expression} ({trigger.tz})"
    zone = "" if trigger.tz == "UTC" else f" ({trigger.tz})"
    return f"{trigger.describe()}{zone}"


def digest(wanted: Iterable[DesiredSchedule]) -> str:
    """A digest that distinguishes sets of declarations."""
    spec = {w.key: w.spec for w in wanted}
    text = msgspec.json.encode(spec, order="sorted")
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


class Comparison:
    """One comparison of declarations with the store; it neither reads nor writes the store."""

    def __init__(
        self,
        core: Core,
        wanted: Sequence[DesiredSchedule],
        stored: StoredDeclarations,
        by: str | None,
        now: int,
    ) -> None:
        self._core = core
        self._wanted = {w.key: w for w in wanted}
        self._stored = {record.key: record for record in stored.schedules}
        self._attachable = stored.calendars
        self._calendars: dict[str, Calendar] = {
            found.id: found.calendar for found in stored.calendars.values()
        }
        self._by = by
        self._now = now
        self._undeclared = [
            record
            for record in stored.schedules
            if record.key not in self._wanted and is_of_code(record)
        ]

    def steps(self) -> list[PlanStep]:
        steps = [self._step(wanted) for wanted in self._wanted.values()]
        # The remaining ones were not renamed either.
        return steps + [self._orphan(record) for record in self._undeclared]

    def _step(self, wanted: DesiredSchedule) -> PlanStep:
        record = self._stored.get(wanted.key)
        if wanted.blocked:
            return PlanStep("blocked", wanted.key, None, record)
        self._check_calendar(wanted)
        if record is None:
            return self._rename(wanted) or self._create(wanted)
        before = spec_of(record)
        changed = differing(before, wanted.spec)
        if is_of_code(record) and not changed:
            return PlanStep("unchanged", wanted.key, None, record)
        kind: Kind = "change" if is_of_code(record) else "revive"
        after = self._changed(record, wanted, changed)
        detail = {"changed": sorted(changed)}
        return PlanStep(
            kind, wanted.key, ScheduleWrite(kind, after, detail), record, before, wanted.spec
        )

    def _check_calendar(self, wanted: DesiredSchedule) -> None:
        name = wanted.definition.calendar
        if name is None:
            return
        found = self._attachable.get(name)
        if found is None:
            raise CalendarNotFound(name)
        if found.calendar.exhausted(self._now):
            log.warning("calendar %r of schedule %r has no more dates", name, wanted.key)

    def _rename(self, wanted: DesiredSchedule) -> PlanStep | None:
        """The same declaration under another key is the same schedule."""
        for record in self._undeclared:
            if spec_of(record) == wanted.spec:
                self._undeclared.remove(record)
                after = msgspec.structs.replace(record, key=wanted.key, changed_by=self._by)
                write = ScheduleWrite("rename", after, {"from": record.key})
                return PlanStep("rename", wanted.key, write, record)
        return None

    def _create(self, wanted: DesiredSchedule) -> PlanStep:
        spec = wanted.spec
        at_once = spec.get("fire_at_once", False)
        record = new_record(
            self._core,
            self._resolved(wanted),
            wanted.key,
            self._now,
            app=self._core.name,
            enabled=False,
            fire_at_once=at_once,
            note=spec.get("note"),
            by=self._by,
            declared=to_json(spec),
        )
        if spec.get("enabled", True):
            record = with_next_tick_under(record, self._now, self._calendars, fire_at_once=at_once)
        return PlanStep("create", wanted.key, ScheduleWrite("create", record))

    def _orphan(self, record: ScheduleRecord) -> PlanStep:
        spec = spec_of(record) | ({} if record.enabled else {WAS_DISABLED: True})
        after = msgspec.structs.replace(
            without_next_tick(record),
            orphaned_at=self._now,
            declared=to_json(spec),
            changed_by=self._by,
        )
        return PlanStep("orphan", record.key, ScheduleWrite("orphan", after), record)

    def _changed(
        self, record: ScheduleRecord, wanted: DesiredSchedule, changed: set[str]
    ) -> ScheduleRecord:
        """The schedule, with the changes made in code and no others."""
        if _is_rezoned(spec_of(record), wanted.spec):
            record = _in_zone(record, wanted.definition.trigger.tz)
            changed = changed - {"trigger"}
        columns = self._columns(record, wanted, changed)
        enabled = record.enabled
        if record.orphaned_at is not None:
            enabled = not was_held(record)
        if "enabled" in changed:
            enabled = wanted.spec.get("enabled", True)
        columns |= {"declared": to_json(wanted.spec), "orphaned_at": None, "changed_by": self._by}
        after = msgspec.structs.replace(record, **columns)
        if not enabled:
            return without_next_tick(after)
        if after.remaining != 0 and (record.next_tick_at is None or changed & TIMES):
            return with_next_tick_under(after, self._now, self._calendars)
        return self._due_again(msgspec.structs.replace(after, enabled=True), changed)

    def _due_again(self, record: ScheduleRecord, changed: set[str]) -> ScheduleRecord:
        """The schedule with the same next tick, due when its policies now say."""
        plan = plan_of(record)
        more: dict[str, Any] = {}
        if record.next_tick_at is not None:
            more["due_at"] = due_at(plan, record.next_tick_at, self._calendars)
        if "expect" in changed:
            more |= {**checked(plan, self._now, self._calendars), "late": None}
        return msgspec.structs.replace(record, **more)

    def _columns(
        self, record: ScheduleRecord, wanted: DesiredSchedule, changed: set[str]
    ) -> dict[str, Any]:
        definition = _with_times(self._resolved(wanted), record, changed)
        fresh = columns_of(definition, record.key, self._now, False)
        columns = {name: value for name, value in fresh.items() if name in changed}
        if changed & {"trigger", "start_at"}:
            # An interval is counted from its start.
            columns |= {name: fresh[name] for name in ("trigger", "zoned", "start_at")}
        if changed & POLICIES:
            spec = {name: getattr(definition.policies, name) for name in changed & POLICIES}
            policies = msgspec.structs.replace(plan_of(record).policies, **spec)
            columns["policies"] = to_json(policies)
        if "rotation" in changed:
            columns["rotation_index"] = 0
        if "note" in changed:
            columns["note"] = wanted.spec.get("note")
        return columns

    def _resolved(self, wanted: DesiredSchedule) -> Definition:
        """The definition, with its calendar in stored form."""
        name = wanted.definition.calendar
        if name is None:
            return wanted.definition
        return msgspec.structs.replace(wanted.definition, calendar=self._attachable[name].id)


def _with_times(definition: Definition, record: ScheduleRecord, changed: set[str]) -> Definition:
    """The definition, with the stored trigger and start where code has not changed them."""
    if "start_at" not in changed:
        return msgspec.structs.replace(definition, start_at=record.start_at)
    if "trigger" in changed:
        return definition
    trigger, declared = plan_of(record).trigger, definition.trigger
    if isinstance(trigger, Every):
        is_the_same = isinstance(declared, Every) and declared.milliseconds == trigger.milliseconds
        trigger = declared if is_the_same else msgspec.structs.replace(trigger, anchor=None)
    return msgspec.structs.replace(definition, trigger=trigger)


def _is_rezoned(before: ScheduleSpec, after: ScheduleSpec) -> bool:
    """Whether code changes the zone of an interval, and nothing else that affects its ticks."""
    if before.get("trigger") in (None, after["trigger"]):
        return False
    return is_same_time(decode_trigger(before["trigger"]), decode_trigger(after["trigger"]))


def _in_zone(record: ScheduleRecord, tz: str) -> ScheduleRecord:
    """The schedule with the same interval in another zone, if it still has an interval."""
    trigger = plan_of(record).trigger
    if not isinstance(trigger, Every):
        return record
    zoned = write_trigger(msgspec.structs.replace(trigger, tz=tz))
    return msgspec.structs.replace(record, trigger=zoned)


def spec_of(record: ScheduleRecord) -> ScheduleSpec:
    """The declaration of a schedule as it was last applied."""
    return {
        name: value
        for name, value in _noted(record).items()
        if name not in (WAS_DISABLED, KEPT_BY_OPERATOR)
    }


def was_held(orphan: ScheduleRecord) -> bool:
    """Whether it was disabled before it became an orphan."""
    return bool(_noted(orphan).get(WAS_DISABLED, False))


def is_of_code(record: ScheduleRecord) -> bool:
    """Whether code declares it: it is not an orphan, and no operator has kept it."""
    return record.orphaned_at is None and KEPT_BY_OPERATOR not in _noted(record)


def _noted(record: ScheduleRecord) -> ScheduleSpec:
    return detail_of(record.declared)
