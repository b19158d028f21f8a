"""`app.aio.schedules`: the verbs of `app.schedules`, awaited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Unpack

from duly.core import Core
from duly.functions import Call, Function
from duly.model.condition import Explanation
from duly.model.forecast import MOST_TICKS, Forecast
from duly.schedules.declared import SchedulePlan
from duly.schedules.define import ScheduleOptions
from duly.schedules.found import Key, Ticks
from duly.schedules.reading import Foresight, Healths
from duly.schedules.verbs import Schedules
from duly.schedules.views import Schedule, Tick
from duly.schedules.why import ScheduleWhy
from duly.times import Instant


class AsyncSchedules:
    """The schedules of an app for async code; see `Schedules`. The event loop goes on meanwhile."""

    def __init__(self, core: Core, schedules: Schedules) -> None:
        self._core = core
        self._schedules = schedules

    def of(self, owner: str) -> AsyncSchedules:
        """The schedules of one owner."""
        return AsyncSchedules(self._core, self._schedules.of(owner))

    # Making and changing

    async def create(
        self,
        key: str,
        call: Call[Any] | Function[..., Any],
        *,
        owner: str | None = None,
        by: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Make a schedule that calls a function, with the arguments that `bind` gave it."""
        create = partial(self._schedules.create, key, call, owner=owner, by=by, **options)
        return await self._core.threads.call(create)

    async def update(
        self,
        key: Key,
        call: Call[Any] | Function[..., Any] | None = None,
        *,
        by: str | None = None,
        version: int | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:
        """Change what is given, and nothing else; None takes an option away."""
        update = partial(self._schedules.update, key, call, by=by, version=version, **options)
        return await self._core.threads.call(update)

    async def enable(self, key: Key, *, note: str | None = None, by: str | None = None) -> Schedule:
        """Let it tick again, from now: nothing that was due meanwhile is caught up."""
        enable = partial(self._schedules.enable, key, note=note, by=by)
        return await self._core.threads.call(enable)

    async def disable(
        self, key: Key, *, note: str | None = None, by: str | None = None
    ) -> Schedule:
        """Stop it at once; what is due now does not fire. Jobs that exist go on."""
        disable = partial(self._schedules.disable, key, note=note, by=by)
        return await self._core.threads.call(disable)

    async def remove(self, key: Key, *, by: str | None = None) -> None:
        """Remove it; its unfinished jobs and its ledger stay."""
        await self._core.threads.call(partial(self._schedules.remove, key, by=by))

    # Reading

    async def get(self, key: Key) -> Schedule:
        """The schedule as it is now; ScheduleNotFound if there is none."""
        return await self._core.threads.read(partial(self._schedules.get, key))

    async def list(
        self,
        *,
        function: Function[..., Any] | str | None = None,
        enabled: bool | None = None,
        parked: bool | None = None,
        calendar: str | None = None,
        owner: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[Schedule]:
        """Schedules, oldest first; `after` is the id of the last one of the page before."""
        find = partial(
            self._schedules.list,
            function=function,
            enabled=enabled,
            parked=parked,
            calendar=calendar,
            owner=owner,
            after=after,
            limit=limit,
        )
        return await self._core.threads.read(find)

    async def ticks(
        self,
        key: Key,
        *,
        after: Instant | None = None,
        before: Instant | None = None,
        outcome: str | None = None,
        reason: str | None = None,
        limit: int = 100,
    ) -> Ticks:
        """What became of its ticks, newest first, of those in [after, before)."""
        find = partial(
            self._schedules.ticks,
            key,
            after=after,
            before=before,
            outcome=outcome,
            reason=reason,
            limit=limit,
        )
        return await self._core.threads.read(find)

    async def preview(
        self,
        key: Key,
        n: int = 10,
        *,
        after: Instant | None = None,
        tz: str | None = None,
        simulate: bool = False,
        result: Mapping[str, Any] | None = None,
    ) -> Foresight:
        """What the next `n` ticks would come to, as things stand now; nothing is changed."""
        look = partial(
            self._schedules.preview, key, n, after=after, tz=tz, simulate=simulate, result=result
        )
        # Not among the reads: it may take seconds, and wait for the signal hook.
        return await self._core.threads.call(look)

    async def forecast(
        self, *, days: int = 7, start: Instant | None = None, most_ticks: int = MOST_TICKS
    ) -> Forecast:
        """Dispatches per hour for the next days, and the busiest minutes."""
        return await self._core.threads.call(
            partial(self._schedules.forecast, days=days, start=start, most_ticks=most_ticks)
        )

    async def explain(self, key: Key, condition: Mapping[str, Any] | None = None) -> Explanation:
        """What its condition comes to now, or what another one would: each operator by itself."""
        return await self._core.threads.call(partial(self._schedules.explain, key, condition))

    async def health(self, key: Key | None = None) -> Healths:
        """How schedules do: ok, missed, paused or never ran; and since when, and why."""
        return await self._core.threads.read(partial(self._schedules.health, key))

    async def why(self, key: Key) -> ScheduleWhy:
        """Why it has not run: paused by whom, what its last tick came to, and when it is next."""
        return await self._core.threads.call(partial(self._schedules.why, key))

    # Running

    async def run(
        self, key: Key, *, inputs: Mapping[str, Any] | None = None, by: str | None = None
    ) -> Tick:
        """Run it now, beside its ticks, with other inputs if they are given."""
        run = partial(self._schedules.run, key, inputs=inputs, by=by)
        return await self._core.threads.call(run)

    async def backfill(
        self,
        key: Key,
        start: Instant,
        end: Instant,
        *,
        dry_run: bool = False,
        without_ledger: bool = False,
        by: str | None = None,
    ) -> Ticks:
        """Run the ticks of [start, end) that have no row in the ledger yet, oldest first."""
        fill = partial(
            self._schedules.backfill,
            key,
            start,
            end,
            dry_run=dry_run,
            without_ledger=without_ledger,
            by=by,
        )
        return await self._core.threads.call(fill)

    async def skip_next(self, key: Key, *, by: str | None = None) -> Schedule:
        """Skip the next tick; the ledger will say that an operator did."""
        return await self._core.threads.call(partial(self._schedules.skip_next, key, by=by))

    async def move_next(self, key: Key, to: Instant, *, by: str | None = None) -> Schedule:
        """Move the next tick, and only that one, to another time before the following tick."""
        return await self._core.threads.call(partial(self._schedules.move_next, key, to, by=by))

    # Calendar, condition, rotation

    async def attach(self, key: Key, calendar: str, *, by: str | None = None) -> Schedule:
        """Let a calendar decide on which dates it ticks."""
        return await self._core.threads.call(partial(self._schedules.attach, key, calendar, by=by))

    async def detach(self, key: Key, *, by: str | None = None) -> Schedule:
        """Let it tick on every date again."""
        return await self._core.threads.call(partial(self._schedules.detach, key, by=by))

    async def set_rotation(
        self, key: Key, rotation: Sequence[Mapping[str, Any]], *, by: str | None = None
    ) -> Schedule:
        """Let successive dispatches take these inputs in turn, from the first."""
        return await self._core.threads.call(
            partial(self._schedules.set_rotation, key, rotation, by=by)
        )

    async def clear_rotation(self, key: Key, *, by: str | None = None) -> Schedule:
        """Let every dispatch take the bound arguments again."""
        return await self._core.threads.call(partial(self._schedules.clear_rotation, key, by=by))

    # What code declares

    async def plan(self) -> SchedulePlan:
        """What `apply` would change now; nothing is changed."""
        return await self._core.threads.call(self._schedules.plan)

    async def apply(self, *, by: str | None = None, dry_run: bool = False) -> SchedulePlan:
        """Make the store say what this code declares, also if that was replaced since."""
        return await self._core.threads.call(partial(self._schedules.apply, by=by, dry_run=dry_run))

    async def prune(self, *, by: str | None = None, dry_run: bool = False) -> SchedulePlan:
        """Remove those that code declares no longer; with `dry_run`, only say which they are."""
        return await self._core.threads.call(partial(self._schedules.prune, by=by, dry_run=dry_run))
