"""Schedules: rules for when a function is called, created and changed while the app runs."""

from duly.schedules.declared_calendars import DeclaredCalendar
from duly.schedules.declared_schedules import DeclaredSchedule
from duly.schedules.define import ScheduleOptions
from duly.schedules.health import Health
from duly.schedules.set_plan import PlanEntry, SchedulePlan
from duly.schedules.twin import AsyncSchedules
from duly.schedules.verbs import Schedules
from duly.schedules.views import Foreseen, Schedule, Tick
from duly.schedules.why import ScheduleWhy

__all__ = [
    "AsyncSchedules",
    "DeclaredCalendar",
    "DeclaredSchedule",
    "Foreseen",
    "Health",
    "PlanEntry",
    "Schedule",
    "ScheduleOptions",
    "SchedulePlan",
    "ScheduleWhy",
    "Schedules",
    "Tick",
]
