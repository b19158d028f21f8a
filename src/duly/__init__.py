"""Durable scheduling and background jobs, inside the database the application already has."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duly.app.public import *

__all__ = [
    "Action",
    "AnyOf",
    "AsyncAction",
    "AsyncApp",
    "AsyncBatch",
    "AsyncBulk",
    "AsyncCalendars",
    "AsyncCtx",
    "AsyncJob",
    "AsyncMutation",
    "AsyncOn",
    "AsyncPlainAction",
    "AsyncSchedules",
    "AsyncTx",
    "At",
    "AttemptInfo",
    "Batch",
    "BatchNotFound",
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
    "DeclaredCalendar",
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
    "NoCurrentJob",
    "NonRetryable",
    "On",
    "PlainAction",
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
    "Rule",
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
    "current",
    "daily",
    "every",
    "hourly",
    "monthly",
    "next_fires",
    "weekly",
]

__version__ = "0.1.0"


if not TYPE_CHECKING:  # type checkers see plain imports, and report unknown names as errors

    def __getattr__(name: str) -> object:
        """Load everything when the first name is used, so that the command line starts quickly."""
        if name == "errors":  # duly.errors.JobNotFound after a plain `import duly`
            from importlib import import_module

            return import_module("duly.errors")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from duly.app import public

        globals().update({each: getattr(public, each) for each in __all__})
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
