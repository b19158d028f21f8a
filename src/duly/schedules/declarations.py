"""Plans and applies the set of schedules and calendars that an app declares.

Each schedule stores its declaration as it was last applied. The next set is compared with that
declaration and not with the schedule itself, so only changes in the code change the store: the
schedule's position and an operator's decisions about it are kept.
"""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from duly.clock import from_ms
from duly.core import Core
from duly.errors import CalendarExists, DulyError, StoreError
from duly.model.calendar import Calendar
from duly.model.schedule_options import BY_NAME, JSON, Option
from duly.model.schedule_options import Kind as OptionKind
from duly.model.stored_values import read
from duly.model.trigger import Cron, Every, Trigger
from duly.model.trigger import decode as decode_trigger
from duly.nearest import did_you_mean
from duly.runtime.transaction_guard import refuse_inside_mutation
from duly.schedules.calendar_comparison import (
    CalendarStep,
    attachable_after,
    compare_calendars,
    removable,
)
from duly.schedules.checks import check_by
from duly.schedules.comparison import Comparison, DesiredSchedule, PlanStep, differing, is_of_code
from duly.schedules.declared_calendars import DeclaredCalendar
from duly.schedules.declared_schedules import DEFAULT_SPEC, DeclaredSchedule
from duly.schedules.define import from_json, known_calendars
from duly.schedules.set_plan import PlanEntry, SchedulePlan
from duly.store.declarations import AppliedSet, LeftOut, ScheduleWrite, StoredDeclarations

log = logging.getLogger(__name__)

ATTEMPTS = 3


class DesiredSet(NamedTuple):
    """Everything that an app declares, ready to be compared with the store."""

    schedules: Sequence[DesiredSchedule]
    calendars: Mapping[str, Calendar]

    def __bool__(self) -> bool:
        return bool(self.schedules or self.calendars)

    @property
    def calendar_names(self) -> list[str]:
        """The calendars that it declares or refers to."""
        used = {each.definition.calendar for each in self.schedules if each.definition.calendar}
        return sorted(used | self.calendars.keys())

    @property
    def digest(self) -> str:
        """A digest that distinguishes sets of declarations."""
        spec = {
            "schedules": {each.key: each.spec for each in self.schedules},
            "calendars": {name: each.encode() for name, each in self.calendars.items()},
        }
        text = msgspec.json.encode(spec, order="sorted")
        return hashlib.blake2b(text, digest_size=16).hexdigest()


class Steps(NamedTuple):
    """What happens to each calendar and to each schedule."""

    calendars: Sequence[CalendarStep] = ()
    schedules: Sequence[PlanStep] = ()

    def applied(self, digest: str | None = None) -> AppliedSet:
        return AppliedSet(
            [step.write for step in self.schedules if step.write],
            [step.write for step in self.calendars if step.write],
            digest,
            self.left_out,
        )

    @property
    def left_out(self) -> LeftOut:
        """Those that the ticker tries again; not those whose function was deleted."""
        return LeftOut(
            {step.key: step.unknown_calendar for step in self.schedules if step.unknown_calendar},
            {step.name: step.reason for step in self.calendars if step.reason},
        )


class Declarations:
    """All declared schedules and calendars of an app."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def plan(self) -> SchedulePlan:
        """What `apply` would change now."""
        wanted = self._wanted()
        stored = self._stored(wanted)
        steps = self._settle(wanted, stored, None, self._core.now())
        return self._shown(steps, applied_before=wanted.digest in stored.sets)

    def apply(self, by: str | None = None, *, only_new: bool = False) -> SchedulePlan:
        """Apply the set and return the changes.

        `only_new`: if the set was applied before, apply only what had to be left out then.
        """
        refuse_inside_mutation("schedules.apply")
        check_by(by)
        wanted = self._wanted()
        now, chosen = self._core.now(), wanted.digest
        self._publish(wanted.schedules, now)
        steps, known = Steps(), False

        def settle(stored: StoredDeclarations) -> AppliedSet | None:
            nonlocal steps, known
            known = chosen in stored.sets
            if not known or not only_new:
                steps = self._settle(wanted, stored, by, now)
                return steps.applied(chosen)
            if chosen != stored.sets[-1]:
                return None
            steps = self._settle(wanted, stored, by, now, only=stored.left_out)
            return steps.applied(chosen)

        names = wanted.calendar_names
        for attempt in range(ATTEMPTS):
            try:
                self._core.ready().apply_declared(self._core.name, names, settle, by, now)
                break
            except CalendarExists:
                # Another process has created it since its name was found to be free.
                if attempt == ATTEMPTS - 1:
                    raise
        self._core.wake_ticker()
        return self._shown(steps, applied_before=known)

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
        steps = Steps()

        def settle(stored: StoredDeclarations) -> AppliedSet:
            nonlocal steps
            steps = self._orphans(stored)
            return steps.applied()

        store.apply_declared(app, (), settle, by, self._core.now())
        return self._shown(steps)

    def apply_at_start(self, reported: LeftOut) -> LeftOut:
        """Apply a new set, or what had to be left out of it; returns what still is.

        A faulty set changes nothing, and does not stop the worker. What is left out is logged,
        unless it was `reported` already.
        """
        try:
            if self._core.settings.apply == "start":
                return self._apply_at_start(reported)
        except StoreError:
            raise
        except DulyError as error:
            # A mistake in a declaration: the message says what to do, a traceback would not help.
            log.error("%s: %s", self._not_applied(), error)
            log.debug("where that was raised", exc_info=True)
        except Exception:
            log.exception("%s", self._not_applied())
        return LeftOut()

    def _not_applied(self) -> str:
        name = self._core.name
        return f"the schedules that {name!r} declares were not applied; stored ones are unchanged"

    def _apply_at_start(self, reported: LeftOut) -> LeftOut:
        wanted = self._wanted()
        stored = self._stored(wanted)
        if not self._is_to_apply(wanted, stored):
            return LeftOut()
        if wanted.digest in stored.sets:
            steps = self._settle(wanted, stored, None, self._core.now(), only=stored.left_out)
            if steps.left_out == stored.left_out:
                self._report(self._shown(steps), steps.left_out, reported)
                return steps.left_out
        plan = self.apply(only_new=True)
        if plan:
            changes = "\n".join(map(str, plan.changes))
            log.info("applied the schedules of %s:\n%s", self._core.name, changes)
        left_out = self._stored(wanted).left_out
        self._report(plan, left_out, reported)
        return left_out

    def _report(self, plan: SchedulePlan, left_out: LeftOut, reported: LeftOut) -> None:
        """One line for each schedule and calendar that is left out."""
        if left_out != reported:
            for entry in plan.blocked:
                noun = "calendar" if entry.is_calendar else "schedule"
                log.warning("%s %r was not applied: %s", noun, entry.key, entry.reason)

    def _is_to_apply(self, wanted: DesiredSet, stored: StoredDeclarations) -> bool:
        """Whether the set is new, or is the newest one and was not applied as a whole."""
        if not wanted:
            # A script that imports no declarations must not disable schedules that others declare.
            if any(is_of_code(record) for record in stored.schedules):
                log.warning(
                    "%r declares no schedules here; the stored ones continue. To disable them, run "
                    "`duly schedules apply` or app.schedules.apply()",
                    self._core.name,
                )
            return False
        chosen = wanted.digest
        if chosen not in stored.sets:
            return True
        if chosen != stored.sets[-1]:
            log.warning(
                "the schedules that %r declares here were replaced by a newer set; to "
                "bring them back, run `duly schedules apply` or app.schedules.apply()",
                self._core.name,
            )
            return False
        return bool(stored.left_out)

    def _wanted(self) -> DesiredSet:
        """The declarations, checked against the store."""
        self._core.import_modules()
        found: Iterable[DeclaredSchedule] = list(self._core.declarations.values())
        calendars: Iterable[DeclaredCalendar] = list(self._core.declared_calendars.values())
        schedules = [
            DesiredSchedule(
                declared.key, declared.definition(), declared.spec(), not declared.admitted()
            )
            for declared in found
        ]
        return DesiredSet(schedules, {each.name: each.calendar for each in calendars})

    def _stored(self, wanted: DesiredSet) -> StoredDeclarations:
        return self._core.ready().declared(self._core.name, wanted.calendar_names)

    def _settle(
        self,
        wanted: DesiredSet,
        stored: StoredDeclarations,
        by: str | None,
        now: int,
        only: LeftOut | None = None,
    ) -> Steps:
        """What applying does; `only`: to these schedules and calendars."""
        named = None if only is None else only.calendars
        calendars = compare_calendars(self._core.name, wanted.calendars, stored, now, named)
        created = {step.name for step in calendars if step.kind == "create"}
        again = {*stored.left_out.schedules} | {
            each.key for each in wanted.schedules if each.definition.calendar in created
        }
        comparison = Comparison(
            self._core,
            wanted.schedules,
            stored,
            attachable_after(stored, calendars),
            by,
            now,
            again=again,
        )
        return Steps(calendars, comparison.steps(None if only is None else again))

    def _orphans(self, stored: StoredDeclarations) -> Steps:
        removed = [
            PlanStep("remove", record.key, ScheduleWrite("remove", record), record)
            for record in stored.schedules
            if record.orphaned_at is not None and record.key not in self._core.declarations
        ]
        freed = Counter(each.record.calendar or "" for each in removed if each.record is not None)
        calendars = removable(self._core.name, stored, self._core.declared_calendars, freed)
        return Steps(calendars, removed)

    def _shown(self, steps: Steps, *, applied_before: bool = False) -> SchedulePlan:
        reasons = self._reasons(steps.left_out.schedules)
        calendars = [
            PlanEntry(
                step.kind, step.name, fields=step.fields, reason=step.reason, is_calendar=True
            )
            for step in steps.calendars
        ]
        schedules = [self._entry(step, reasons.get(step.key)) for step in steps.schedules]
        return SchedulePlan((*calendars, *schedules), applied_before)

    def _reasons(self, left_out: Mapping[str, str]) -> Mapping[str, str]:
        """Why schedules are left out, with suggestions."""
        if not left_out:
            return {}
        known = [*known_calendars(self._core, ""), *self._core.declared_calendars]
        return {key: _unknown(calendar, known) for key, calendar in left_out.items()}

    def _entry(self, step: PlanStep, reason: str | None) -> PlanEntry:
        record = step.record
        fields: dict[str, tuple[Any, Any]] = {}
        if step.kind in ("change", "revive"):
            for name in sorted(differing(step.before, step.after)):
                shown = self._value(step.before, name), self._value(step.after, name)
                fields["arguments" if name == "args" else name] = shown
        if step.kind == "blocked":
            reason = reason or "its function was deleted"
        return PlanEntry(
            step.kind,
            step.key,
            None if record is None else record.id,
            fields,
            record.key if record is not None and step.kind == "rename" else None,
            reason,
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
    zone = f" ({trigger.tz})" if isinstance(trigger, Every) and trigger.tz != "UTC" else ""
    return f"{trigger.describe()}{zone}"


def _unknown(calendar: str, known: Iterable[str]) -> str:
    hint = did_you_mean(calendar, known) or "declare it with app.calendar(…), or create it"
    return f"there is no calendar {calendar!r}; {hint}"
