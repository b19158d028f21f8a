"""Durable scheduling and background jobs, inside the database the application already has."""

from duly.app import Duly
from duly.clock import Clock, ManualClock, SystemClock
from duly.context import AsyncCtx, Ctx, Tx
from duly.errors import DulyError
from duly.functions import Action, AsyncAction, Call, Function, Mutation
from duly.jobs import AsyncJob, Job, JobFailure
from duly.model.job import ErrorKind, Kind, State
from duly.model.retry import Retry

__all__ = [
    "Action",
    "AsyncAction",
    "AsyncCtx",
    "AsyncJob",
    "Call",
    "Clock",
    "Ctx",
    "Duly",
    "DulyError",
    "ErrorKind",
    "Function",
    "Job",
    "JobFailure",
    "Kind",
    "ManualClock",
    "Mutation",
    "Retry",
    "State",
    "SystemClock",
    "Tx",
]

__version__ = "0.1.0"
