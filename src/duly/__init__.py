"""Durable scheduling and background jobs, inside the database the application already has."""

from duly.aio import AsyncApp, AsyncTx
from duly.app import Duly
from duly.batches import AsyncBatch, Batch, BatchProgress
from duly.bulk import AsyncBulk, Bulk, BulkPreview
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
from duly.jobs import AsyncJob, Job, JobFailure, LogLine, Progress
from duly.model.function import FunctionInfo
from duly.model.function import Status as FunctionStatus
from duly.model.job import ErrorKind, Kind, State, Trigger
from duly.model.keys import Limit, Unique
from duly.model.progress import Event
from duly.model.redact import Redact
from duly.model.retry import Retry
from duly.model.why import Cause, Reason
from duly.on import AsyncOn, On
from duly.registry import Group
from duly.replay import Replay
from duly.store.base import Rows
from duly.why import Why

__all__ = [
    "Action",
    "AsyncAction",
    "AsyncApp",
    "AsyncBatch",
    "AsyncBulk",
    "AsyncCtx",
    "AsyncJob",
    "AsyncOn",
    "AsyncTx",
    "Batch",
    "BatchProgress",
    "Bulk",
    "BulkPreview",
    "Call",
    "Canceled",
    "Cause",
    "Clock",
    "Ctx",
    "Declared",
    "Duly",
    "DulyError",
    "ErrorKind",
    "Event",
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
    "Limit",
    "LogLine",
    "ManualClock",
    "Mutation",
    "NonRetryable",
    "On",
    "Progress",
    "Reason",
    "Redact",
    "Replay",
    "ResultTimeout",
    "Retry",
    "RetryAfter",
    "Rows",
    "State",
    "SystemClock",
    "Trigger",
    "Tx",
    "Unique",
    "Why",
]

__version__ = "0.1.0"
