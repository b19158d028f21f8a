"""An app as the runtime uses it: functions with their bodies, and the jobs of its schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from duly.calls.bulk import NAME as BULK
from duly.calls.bulk import bulk_function
from duly.calls.context import Bound
from duly.clock import Clock
from duly.core import Core, Settings
from duly.endpoints.alerts import NAME as ALERT
from duly.endpoints.alerts import alert_function
from duly.endpoints.post import post_function
from duly.endpoints.target import NAME as POST
from duly.functions.function import Function
from duly.model.function import Published
from duly.model.job import Kind
from duly.model.schedule import ScheduleRecord
from duly.schedules import Schedule, tick_jobs
from duly.schedules.declarations import Declarations
from duly.store.declarations import LeftOut
from duly.store.table import Store
from duly.workflows.bound import BoundWorkflow

Command = Callable[[], Sequence[str] | None]
"""How another process runs the command line bound to an app; None if it cannot."""


class AppProgram(Core):
    """The core of an app, with what the runtime needs from it (`runtime.program.Program`)."""

    def __init__(self, settings: Settings, store: Store, clock: Clock, command: Command) -> None:
        super().__init__(settings, store, clock)
        self.command = command
        self._left_out = LeftOut()

    def builtins(self) -> Mapping[str, Function[..., Any]]:
        return {
            ALERT: alert_function(self.client),
            POST: post_function(self),
            BULK: bulk_function(self),
        }

    # Functions

    @property
    def revision(self) -> int:
        return self.functions.revision

    @property
    def captures_logs(self) -> bool:
        return self.settings.capture_logs

    def published(self) -> list[Published]:
        return self.functions.published()

    def runnables(self, *, with_faulty: bool = True) -> Mapping[str, Bound]:
        """Every function as the worker calls it; imports modules and resolves type hints."""
        self.import_modules()
        functions = self.functions
        chosen = dict(functions.registered) if with_faulty else functions.without_faulty()
        chosen |= functions.builtins
        for function in chosen.values():
            function.signature.resolve()
        bound = {name: self.bind(function) for name, function in chosen.items()}
        aliases = dict(functions.aliases).items()
        return bound | {alias: bound[name] for alias, name in aliases if name in bound}

    def bind(self, function: Function[..., Any]) -> Bound:
        """One function as the worker calls it."""
        return (BoundWorkflow if function.kind == Kind.WORKFLOW else Bound)(self, function)

    # Schedules

    def knows(self, function: str) -> bool:
        return self.functions.knows(function)

    jobs_of_tick = tick_jobs.jobs_of_tick
    alert_jobs = tick_jobs.alert_jobs

    def signal(self, schedule: ScheduleRecord) -> Any:
        hook = self.settings.signal
        return None if hook is None else hook(Schedule(self, schedule))

    @property
    def signals_for(self) -> str | None:
        """This app, if it has no signal hook (its signals are then null); otherwise None."""
        return self.name if self.settings.signal is None else None

    def apply_declared(self) -> bool:
        """Apply the declared set to the store, if it is new or was not applied as a whole.

        Returns whether something had to be left out.
        """
        self._left_out = Declarations(self).apply_at_start(self._left_out)
        return bool(self._left_out)
