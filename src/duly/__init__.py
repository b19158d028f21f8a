"""Durable scheduling and background jobs, inside the database the application already has."""

from duly.aio import AsyncApp, AsyncTx
from duly.app import Duly
from duly.batches import AsyncBatch, Batch, BatchProgress
from duly.bulk import AsyncBulk, Bulk, BulkPreview
from duly.calendars import (
    AsyncCalendars,
    Calendars,
    EndingCalendar,
    StoredCalendar,
    TickChange,
)
from duly.clock import Clock, ManualClock, SystemClock
from duly.context import AsyncCtx, Ctx, Tx
from duly.errors import (
    CalendarEnds,
    CalendarExists,
    CalendarNotFound,
    Canceled,
    CronExists,
    CronNotFound,
    DulyError,
    GatewayError,
    GatewayExists,
    GatewayNotFound,
    GatewayRefused,
    GatewayUnavailable,
    InvalidCalendar,
    InvalidCondition,
    InvalidCron,
    InvalidRotation,
    JobCanceled,
    JobFailed,
    JobNotFound,
    NonRetryable,
    ReadOnlyCalendar,
    ResultTimeout,
    RetryAfter,
    ScheduleExists,
    ScheduleNotFound,
    StaleVersion,
    UnknownZone,
)
from duly.functions import Action, AsyncAction, Call, Function, Mutation
from duly.jobs import AsyncJob, Job, JobFailure, LogLine, Progress
from duly.model.calendar import Calendar
from duly.model.condition import Explanation
from duly.model.expect import Expect
from duly.model.forecast import Forecast
from duly.model.function import FunctionInfo
from duly.model.function import Status as FunctionStatus
from duly.model.job import ErrorKind, Kind, State, Trigger
from duly.model.keys import Limit, Unique
from duly.model.progress import Event
from duly.model.redact import Redact
from duly.model.retry import Retry
from duly.model.schedule import Budget
from duly.model.trigger import (
    At,
    Cron,
    Every,
    daily,
    every,
    hourly,
    monthly,
    next_fires,
    weekly,
)
from duly.model.why import Cause, Reason
from duly.model.why_schedule import ScheduleCause, ScheduleReason
from duly.on import AsyncOn, On
from duly.published import Declared
from duly.registry import Group
from duly.replay import Replay
from duly.schedules import (
    AsyncSchedules,
    DeclaredSchedule,
    Foreseen,
    Health,
    PlanEntry,
    Schedule,
    SchedulePlan,
    Schedules,
    ScheduleWhy,
    Tick,
)
from duly.store.base import Rows
from duly.why import Why

__all__ = [
    "Action",
    "AsyncAction",
    "AsyncApp",
    "AsyncBatch",
    "AsyncBulk",
    "AsyncCalendars",
    "AsyncCtx",
    "AsyncJob",
    "AsyncOn",
    "AsyncSchedules",
    "AsyncTx",
    "At",
    "Batch",
    "BatchProgress",
    "Budget",
    "Bulk",
    "BulkPreview",
    "Calendar",
    "CalendarEnds",
    "CalendarExists",
    "CalendarNotFound",
    "Calendars",
    "Call",
    "Canceled",
    "Cause",
    "Clock",
    "Cron",
    "CronExists",
    "CronNotFound",
    "Ctx",
    "Declared",
    "DeclaredSchedule",
    "Duly",
    "DulyError",
    "EndingCalendar",
    "ErrorKind",
    "Event",
    "Every",
    "Expect",
    "Explanation",
    "Forecast",
    "Foreseen",
    "Function",
    "FunctionInfo",
    "FunctionStatus",
    "GatewayError",
    "GatewayExists",
    "GatewayNotFound",
    "GatewayRefused",
    "GatewayUnavailable",
    "Group",
    "Health",
    "InvalidCalendar",
    "InvalidCondition",
    "InvalidCron",
    "InvalidRotation",
    "Job",
    "JobCanceled",
    "JobFailed",
    "JobFailure",
    "JobNotFound",
    "Kind",
    "Limit",
    "LogLine",
    "ManualClock",
    "Mutation",
    "NonRetryable",
    "On",
    "PlanEntry",
    "Progress",
    "ReadOnlyCalendar",
    "Reason",
    "Redact",
    "Replay",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "Rows",
    "Schedule",
    "ScheduleCause",
    "ScheduleExists",
    "ScheduleNotFound",
    "SchedulePlan",
    "ScheduleReason",
    "ScheduleWhy",
    "Schedules",
    "StaleVersion",
    "State",
    "StoredCalendar",
    "SystemClock",
    "Tick",
    "TickChange",
    "Trigger",
    "Tx",
    "Unique",
    "UnknownZone",
    "Why",
    "daily",
    "every",
    "hourly",
    "monthly",
    "next_fires",
    "weekly",
]

__version__ = "0.1.0"
