"""Durable scheduling and background jobs, inside the database the application already has."""

from duly.app import Duly
from duly.clock import Clock, ManualClock, SystemClock
from duly.context import AsyncCtx, Ctx, Tx
from duly.errors import Canceled, DulyError, JobCanceled, JobFailed, JobNotFound, ResultTimeout
from duly.functions import Action, AsyncAction, Call, Function, Mutation
from duly.jobs import AsyncJob, Job, JobFailure
from duly.model.job import ErrorKind, Kind, State
from duly.model.retry import Retry
from duly.store.base import Rows

__all__ = [
    "Action",
    "AsyncAction",
    "AsyncCtx",
    "AsyncJob",
    "Call",
    "Canceled",
    "Clock",
    "Ctx",
    "Duly",
    "DulyError",
    "ErrorKind",
    "Function",
    "Job",
    "JobCanceled",
    "JobFailed",
    "JobFailure",
    "JobNotFound",
    "Kind",
    "ManualClock",
    "Mutation",
    "ResultTimeout",
    "Retry",
    "Rows",
    "State",
    "SystemClock",
    "Tx",
]

__version__ = "0.1.0"
