"""`app.aio.calendars`: the verbs of `app.calendars` for async code."""

from __future__ import annotations

from typing import Final

from duly.calendars.verbs import Calendars
from duly.calls.twins import Twin, awaited


class AsyncCalendars(Twin[Calendars]):
    """`app.calendars` for async code: the same methods as coroutines; see `Calendars`."""

    def of(self, owner: str) -> AsyncCalendars:
        """Return the calendars of one owner."""
        return AsyncCalendars(self._core, self._sync.of(owner))

    get: Final = awaited(Calendars.get, reads=True)
    list: Final = awaited(Calendars.list, reads=True)
    create: Final = awaited(Calendars.create)
    clone: Final = awaited(Calendars.clone)
    update: Final = awaited(Calendars.update)
    remove: Final = awaited(Calendars.remove)
    import_ical: Final = awaited(Calendars.import_ical)
    holidays: Final = awaited(Calendars.holidays)
    changes: Final = awaited(Calendars.changes, reads=True)
    ending: Final = awaited(Calendars.ending, reads=True)
