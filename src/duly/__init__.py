"""Durable scheduling and background jobs, inside the database the application already has."""

from duly.aio import AsyncApp, AsyncTx
from duly.app import Duly
from duly.clock import Clock, ManualClock, SystemClock
from duly.context import AsyncCtx, Ctx, Tx
from duly.errors import (
    Canceled,
    DulyError,
    JobCanceled,
    JobFailed,
    JobNotFound,
    NonRetryable,
    ResultTimeout,
    RetryAfter,
)
from duly.functions import Action, AsyncAction, Call, Declared, Function, Mutation
from duly.jobs import AsyncJob, Job, JobFailure
from duly.model.function import FunctionInfo
from duly.model.function import Status as FunctionStatus
from duly.model.job import ErrorKind, Kind, State
from duly.model.redact import Redact
from duly.model.retry import Retry
from duly.on import AsyncOn, On
from duly.registry import Group
from duly.store.base import Rows

__all__ = [
    "Action",
    "AsyncAction",
    "AsyncApp",
    "AsyncCtx",
    "AsyncJob",
    "AsyncOn",
    "AsyncTx",
    "Call",
    "Canceled",
    "Clock",
    "Ctx",
    "Declared",
    "Duly",
    "DulyError",
    "ErrorKind",
    "Function",
    "FunctionInfo",
    "FunctionStatus",
    "Group",
    "Job",
    "JobCanceled",
    "JobFailed",
    "JobFailure",
    "JobNotFound",
    "Kind",
    "ManualClock",
    "Mutation",
    "NonRetryable",
    "On",
    "Redact",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "Rows",
    "State",
    "SystemClock",
    "Tx",
]

__version__ = "0.1.0"
