"""Calendars: the dates on which schedules may tick, stored and changed while the app runs."""

from duly.calendars.twin import AsyncCalendars
from duly.calendars.verbs import Calendars
from duly.calendars.views import EndingCalendar, StoredCalendar, TickChange

__all__ = [
    "AsyncCalendars",
    "Calendars",
    "EndingCalendar",
    "StoredCalendar",
    "TickChange",
]
