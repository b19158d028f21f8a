"""`app.aio.calendars`: the verbs of `app.calendars`, awaited."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Unpack

from duly.calendars.verbs import Calendars
from duly.calendars.views import (
    CalendarChanges,
    CalendarContent,
    EndingCalendar,
    StoredCalendar,
    TickChange,
)
from duly.core import Core
from duly.model.calendar import WARN_DAYS, Calendar, Dates, Day


class AsyncCalendars:
    """`app.aio.calendars`: the verbs of `app.calendars`, awaited."""

    def __init__(self, core: Core, calendars: Calendars) -> None:
        self._core = core
        self._calendars = calendars

    def of(self, owner: str) -> AsyncCalendars:
        """The calendars of one owner."""
        return AsyncCalendars(self._core, self._calendars.of(owner))

    async def get(self, calendar: str | StoredCalendar) -> StoredCalendar:
        """The calendar as it is now; CalendarNotFound if there is none."""
        return await self._core.threads.read(partial(self._calendars.get, calendar))

    async def list(self, *, after: str | None = None, limit: int = 100) -> list[StoredCalendar]:
        """Those that come with duly, then the others, oldest first."""
        return await self._core.threads.read(
            partial(self._calendars.list, after=after, limit=limit)
        )

    async def create(
        self,
        calendar: str | Calendar,
        kind: str | None = None,
        *,
        tz: str = "UTC",
        dates: Dates = (),
        rules: Iterable[str] = (),
        by: str | None = None,
    ) -> StoredCalendar:
        """Make a calendar."""
        return await self._core.threads.call(
            partial(self._calendars.create, calendar, kind, tz=tz, dates=dates, rules=rules, by=by)
        )

    async def clone(
        self,
        source: str | StoredCalendar,
        name: str,
        *,
        by: str | None = None,
        **changes: Unpack[CalendarContent],
    ) -> StoredCalendar:
        """Make a calendar of another name out of one, changed where something is given."""
        return await self._core.threads.call(
            lambda: self._calendars.clone(source, name, by=by, **changes)
        )

    async def update(
        self,
        calendar: str | StoredCalendar,
        /,
        *,
        version: int | None = None,
        by: str | None = None,
        **changes: Unpack[CalendarChanges],
    ) -> StoredCalendar:
        """Change what is given, for all schedules that it is attached to, at once."""
        return await self._core.threads.call(
            lambda: self._calendars.update(calendar, version=version, by=by, **changes)
        )

    async def remove(self, calendar: str | StoredCalendar, *, by: str | None = None) -> None:
        """Remove it; the schedules that it was attached to go on without it."""
        await self._core.threads.call(partial(self._calendars.remove, calendar, by=by))

    async def import_ical(
        self,
        name: str,
        source: str | os.PathLike[str],
        *,
        kind: str | None = None,
        tz: str | None = None,
        first: Day | None = None,
        last: Day | None = None,
        by: str | None = None,
    ) -> StoredCalendar:
        """Take the dates that the events of an iCalendar file touch: its text, or a `Path`."""
        return await self._core.threads.call(
            lambda: self._calendars.import_ical(
                name, source, kind=kind, tz=tz, first=first, last=last, by=by
            )
        )

    async def holidays(
        self,
        name: str,
        country: str,
        years: int | Iterable[int],
        *,
        subdivision: str | None = None,
        kind: str | None = None,
        tz: str | None = None,
        by: str | None = None,
    ) -> StoredCalendar:
        """Take the public holidays of a country, or of a part of it."""
        return await self._core.threads.call(
            lambda: self._calendars.holidays(
                name, country, years, subdivision=subdivision, kind=kind, tz=tz, by=by
            )
        )

    async def changes(
        self, calendar: str | StoredCalendar, /, n: int = 10, **changes: Unpack[CalendarChanges]
    ) -> Sequence[TickChange]:
        """Which of the next `n` ticks of each attached schedule `update(…)` would change."""
        return await self._core.threads.read(
            lambda: self._calendars.changes(calendar, n, **changes)
        )

    async def ending(self, days: int = WARN_DAYS) -> Sequence[EndingCalendar]:
        """Calendars in use whose last date has passed, or comes within so many days."""
        return await self._core.threads.read(partial(self._calendars.ending, days))
