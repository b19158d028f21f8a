"""`app.aio.schedules`: the verbs of `app.schedules` for async code."""

from __future__ import annotations

from typing import Final

from duly.calls.twins import Twin, awaited
from duly.schedules.verbs import Schedules


class AsyncSchedules(Twin[Schedules]):
    """`app.schedules` for async code: the same methods as coroutines; see `Schedules`."""

    def of(self, owner: str) -> AsyncSchedules:
        """The schedules of one owner."""
        return AsyncSchedules(self._core, self._sync.of(owner))

    # Creating and changing
    create: Final = awaited(Schedules.create)
    update: Final = awaited(Schedules.update)
    enable: Final = awaited(Schedules.enable)
    disable: Final = awaited(Schedules.disable)
    remove: Final = awaited(Schedules.remove)

    # Reading
    get: Final = awaited(Schedules.get, reads=True)
    list: Final = awaited(Schedules.list, reads=True)
    ticks: Final = awaited(Schedules.ticks, reads=True)
    health: Final = awaited(Schedules.health, reads=True)
    # Not marked as reads: they may take seconds, or wait for the signal hook.
    preview: Final = awaited(Schedules.preview)
    forecast: Final = awaited(Schedules.forecast)
    explain: Final = awaited(Schedules.explain)
    why: Final = awaited(Schedules.why)

    # Running
    run: Final = awaited(Schedules.run)
    backfill: Final = awaited(Schedules.backfill)
    skip_next: Final = awaited(Schedules.skip_next)
    move_next: Final = awaited(Schedules.move_next)

    # Calendar, condition, rotation
    attach: Final = awaited(Schedules.attach)
    detach: Final = awaited(Schedules.detach)
    set_rotation: Final = awaited(Schedules.set_rotation)
    clear_rotation: Final = awaited(Schedules.clear_rotation)

    # Declarations
    plan: Final = awaited(Schedules.plan)
    apply: Final = awaited(Schedules.apply)
    prune: Final = awaited(Schedules.prune)
