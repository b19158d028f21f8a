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
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from duly.clock import from_ms
from duly.core import Core
from duly.errors import CalendarNotFound, DulyError, StoreError
from duly.model.schedule_options import BY_NAME, JSON, Option
from duly.model.schedule_options import Kind as OptionKind
from duly.model.stored_values import read
from duly.model.trigger import Cron, Trigger
from duly.model.trigger import decode as decode_trigger
from duly.runtime.transaction_guard import refuse_inside_mutation
from duly.schedules.checks import check_by
from duly.schedules.comparison import Comparison, DesiredSchedule, PlanStep, differing, is_of_code
from duly.schedules.declared_schedules import DEFAULT_SPEC, DeclaredSchedule
from duly.schedules.define import from_json, known_calendars
from duly.schedules.set_plan import PlanEntry, SchedulePlan
from duly.store.declarations import AppliedSet, ScheduleWrite, StoredDeclarations

log = logging.getLogger(__name__)


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
