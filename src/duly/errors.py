"""All exceptions that duly raises, in one tree.

DulyError
├── BadInput (ValueError)           invalid input was refused; nothing was written
│   ├── InvalidArgument             an argument of a job is invalid; names it
│   ├── ArgumentsTooLarge           a job's arguments exceed the size limit
│   ├── InvalidOption               an option of a function, call, worker or app is invalid
│   ├── InvalidTime                 naive, negative, or more than five years away
│   ├── InvalidCron                 a cron expression is invalid; names the field and the problem
│   ├── UnknownZone                 there is no time zone with that name
│   ├── InvalidCalendar             a calendar's name, kind, zone or date is invalid; names it
│   ├── InvalidCondition            a schedule's condition is invalid; names the pointer
│   ├── InvalidRotation             a schedule's rotation is invalid; names the entry
│   ├── InvalidFunction             the decorated object cannot be a duly function
│   ├── FunctionConflict            two functions have the same name
│   ├── ScheduleExists              the owner, or the code, already has a schedule with that key
│   ├── CalendarExists              the owner already has a calendar with that name
│   ├── EndpointExists              the owner already has an endpoint with that name
│   ├── ReadOnlyCalendar            a built-in calendar cannot be changed
│   ├── GatewayExists               the owner already has a gateway with that name
│   ├── CronExists                  the gateway already has a cron with that name
│   ├── StaleVersion                the object was changed after it was read
│   ├── WrongStatus                 the function's status does not allow that change
│   ├── WrongDatabase               a handle points to a database other than the app's
│   └── InvalidURL                  the database URL is invalid
├── UnknownFunction (LookupError)   no function is registered under that name
├── FunctionDeleted (LookupError)   an operator deleted the function
├── JobNotFound (LookupError)       there is no job with that id
├── BatchNotFound (LookupError)     there is no batch with that id
├── NoCurrentJob (LookupError)      `duly.current()` was called outside a job
├── WebhookEventNotFound (LookupError)  the inbox has no event with that id
├── SecretMissing (LookupError)     a secret reference points to nothing
├── TokenNotFound (LookupError)     there is no token with that id
├── ScheduleNotFound (LookupError)  there is no schedule with that key or id
├── CalendarNotFound (LookupError)  there is no calendar with that name or id
├── GatewayNotFound (LookupError)   there is no gateway with that name or id
├── CronNotFound (LookupError)      the gateway has no cron with that id
├── GatewayError
│   ├── GatewayUnavailable          it did not respond, or the response was unusable
│   └── GatewayRefused              it refused the request; carries the reason
├── EndpointNotFound (LookupError)  there is no endpoint with that name or id
├── TransactionError
│   ├── TooManyJobs                 a mutation enqueued more jobs than allowed
│   ├── TransactionEnded            the transaction of a `tx` has ended
│   ├── NotInTransaction            a handle is in autocommit mode, so nothing would be atomic
│   ├── IsolationTooHigh            a handle's isolation level hides rows that a cancel must see
│   ├── CannotBegin                 a schedule index cannot begin a transaction on its handle
│   ├── NotCommittedYet (LookupError)   a job of `app.on(…)` whose transaction is not committed
│   ├── UseTx                       the app was used inside a mutation; use `tx`
│   ├── WouldWaitForItself          waiting for a job that cannot start before you return
│   └── CannotCancelSelf            a mutation tried to cancel its own job
├── WorkflowError
│   ├── StepFailed                  a step of a workflow failed; has kind, message, was()
│   ├── WaitTimeout (TimeoutError)  what a workflow waited for did not happen in time
│   ├── Fail                        raised by a workflow: fail the run
│   ├── UseCtx                      the app was used in a workflow's own code; use `ctx`
│   ├── WorkflowTooLong             a run has recorded as much as it may
│   ├── NotAWorkflow                the job is not a run of a workflow
│   ├── WorkflowEnded               the run has ended, so it reads no more events
│   ├── TooManyEvents               the run has too many events that it has not read
│   ├── ApprovalClosed              the run does not wait for that approval
│   └── SelfApproval                the actor who started a run may not approve it
├── JobError                        what `job.result()` raises
│   ├── JobFailed                   the job failed; has kind, message, traceback
│   ├── JobCanceled                 the job was canceled; says by whom
│   └── ResultTimeout (TimeoutError)
├── NonRetryable                    raised by a function: fail without retrying
│   └── AddressRefused              requests to that address are not allowed
├── DeliveryFailed                  no response from an address, or not a successful one
├── RetryAfter                      raised by a function: fail, retry after the given time
├── Canceled                        raised inside a job that was canceled or taken over
├── UnstorableResult                a return value that is not valid JSON
├── SignatureMismatch               stored arguments no longer fit the function
├── StoreError
│   ├── StoreUnavailable            no connection; the operation can be retried
│   │   ├── StoreRefused            the database refused the connection
│   │   └── StoreMoved              the store is being copied to another database, or was moved
│   ├── StoreMissing                the database file does not exist
│   ├── StoreReadOnly               the database is read-only
│   ├── StoreFull                   the disk is full
│   ├── NotMigrated                 duly's tables are missing or outdated
│   ├── NoScheduleTable             a schedule index's table is missing; has its DDL
│   ├── StoreTooNew                 the store requires a newer version of duly
│   ├── StoreTooOld                 the database engine is too old
│   ├── QueryTooBroad               no index supports the filter, and the scan took too long
│   ├── CopyRefused                 the store cannot be copied to that database, or not yet
│   └── CopyDiffers                 the copy does not match the source, so nothing was switched
└── MissingExtra                    an optional dependency is not installed

CalendarEnds (UserWarning)          a warning: the attached calendar's last date is close
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from urllib.parse import urlsplit

from duly.nearest import did_you_mean, or_nearest


class DulyError(Exception):
    """Base class of all exceptions that duly raises on purpose."""


# Bad input ---------------------------------------------------------------------------------------


class BadInput(DulyError, ValueError):
    """Invalid input was refused; nothing was written."""


class InvalidArgument(BadInput):
    """An argument of a job does not match the function's signature."""

    def __init__(self, function: str, argument: str, reason: str) -> None:
        self.function = function
        self.argument = argument
        self.reason = reason
        super().__init__(f"{function}(): argument {argument!r}: {reason}")


class ArgumentsTooLarge(BadInput):
    """The arguments of one job are larger than the store accepts."""

    def __init__(self, function: str, size: int, limit: int) -> None:
        self.function = function
        self.size = size
        self.limit = limit
        super().__init__(
            f"{function}(): arguments are {size:,} bytes as JSON, but the limit is {limit:,}; "
            "store the data elsewhere and pass a reference"
        )


class InvalidOption(BadInput):
    """An option has an invalid value."""

    def __init__(self, option: str, reason: str, hint: str = "") -> None:
        self.option = self.field = option
        self.reason = reason
        self.hint = hint
        super().__init__(_with_hint(f"{option}: {reason}", hint))


class InvalidTime(BadInput):
    """A time or delay is not valid for a job or schedule; `field` names the option, if known."""

    def __init__(self, reason: str, field: str = "", hint: str = "") -> None:
        self.field = field
        self.reason = reason
        self.hint = hint
        super().__init__(_with_hint(f"{field}: {reason}" if field else reason, hint))


class InvalidCalendar(BadInput):
    """A calendar is not valid: a bad name, kind, zone, date or iCal line."""

    def __init__(self, field: str, reason: str, hint: str = "") -> None:
        self.field = field
        self.reason = reason
        self.hint = hint
        super().__init__(_with_hint(f"{field}: {reason}", hint))


class InvalidCondition(BadInput):
    """A condition is not valid; `pointer` is the key with the problem, if there is one."""

    def __init__(self, pointer: str | None, reason: str, hint: str = "") -> None:
        self.field = "condition"
        self.pointer = pointer
        self.reason = reason
        self.hint = hint
        where = "condition" if pointer is None else f"condition {pointer!r}"
        super().__init__(_with_hint(f"{where}: {reason}", hint))


class InvalidRotation(BadInput):
    """A rotation is not valid; `index` is the entry with the problem, if there is one."""

    def __init__(self, index: int | None, reason: str, hint: str = "") -> None:
        self.field = "rotation"
        self.index = index
        self.reason = reason
        self.hint = hint
        where = "rotation" if index is None else f"rotation[{index}]"
        super().__init__(_with_hint(f"{where}: {reason}", hint))


def _with_hint(message: str, hint: str) -> str:
    return f"{message}; {hint}" if hint else message


class InvalidCron(BadInput):
    """A cron expression is not valid, or would never fire."""

    def __init__(
        self, expression: str, field: str, text: str, position: int, reason: str, hint: str
    ) -> None:
        self.expression = expression
        self.field = field
        self.text = text
        self.position = position
        self.reason = reason
        self.hint = hint
        where = field if field == "expression" else f"{field} (at character {position + 1})"
        super().__init__(f"{expression!r}: {where}: {reason}; {hint}")


class UnknownZone(BadInput):
    """There is no time zone with that name."""

    def __init__(self, name: str, nearest: str | None = None) -> None:
        self.name = name
        self.field = "tz"
        self.reason: str = f"there is no time zone {name!r}"
        self.hint: str = (
            f"did you mean {nearest!r}?" if nearest else 'write a name such as "Europe/Istanbul"'
        )
        if not name.strip():
            self.reason = "an empty string is not a time zone"
            self.hint = 'omit it for UTC, or write a name such as "Europe/Istanbul"'
        super().__init__(f"{self.reason}; {self.hint}")


class InvalidFunction(BadInput):
    """The decorated object cannot be a duly function."""


class FunctionConflict(BadInput):
    """Two different functions have the same name."""

    def __init__(self, name: str, first: str, second: str) -> None:
        self.name = name
        super().__init__(
            f"function {name!r} is defined twice: {first} and {second}; give one of them name=..."
        )


class ScheduleExists(BadInput):
    """The owner already has a schedule with that key, or code declares the key in two places."""

    def __init__(self, key: str, places: tuple[str, str] | None = None) -> None:
        self.key = key
        self.field = "key"
        self.places = places
        self.reason: str = f"schedule {key!r} already exists"
        self.hint: str = "update it, or choose another key"
        if places is not None:
            self.reason = f"schedule {key!r} is declared twice: {places[0]} and {places[1]}"
            self.hint = "choose another key for one of them"
        super().__init__(f"{self.reason}; {self.hint}")


class CalendarExists(BadInput):
    """The owner already has a calendar with that name, or code declares it in two places."""

    def __init__(self, name: str, places: tuple[str, str] | None = None) -> None:
        self.name = name
        self.field = "name"
        self.reason: str = f"calendar {name!r} already exists"
        self.hint: str = "update it, or choose another name"
        if places is not None:
            self.reason = f"calendar {name!r} is declared twice: {places[0]} and {places[1]}"
            self.hint = "choose another name for one of them"
        super().__init__(f"{self.reason}; {self.hint}")


class EndpointExists(BadInput):
    """The owner already has an endpoint with that name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.field = "name"
        super().__init__(f"endpoint {name!r} already exists; update it, or choose another name")


class ReadOnlyCalendar(BadInput):
    """A built-in calendar cannot be changed; clone it."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"calendar {name!r} is built in and cannot be changed; clone it")


class GatewayExists(BadInput):
    """The owner already has a gateway with that name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.field = "name"
        super().__init__(f"gateway {name!r} already exists; remove it, or choose another name")


class CronExists(BadInput):
    """The gateway already has a cron with that name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.field = "name"
        super().__init__(f"cron {name!r} already exists; update it, or choose another name")


class CalendarEnds(UserWarning):
    """The last date of an attached calendar is close; after it, the calendar has no effect."""


class StaleVersion(BadInput):
    """The object was changed after it was read."""

    def __init__(self, name: str, expected: int, found: int) -> None:
        self.name = name
        self.expected = expected
        self.found = found
        super().__init__(
            f"{name!r} was changed: it is at version {found}, not {expected}; read it again"
        )


class WrongStatus(BadInput):
    """The function's status does not allow this change."""

    def __init__(self, name: str, current: str, wanted: str) -> None:
        self.name = name
        super().__init__(f"function {name!r} is {current} and cannot become {wanted}; restore it")


class WrongDatabase(BadInput):
    """The handle passed to `app.on` points to a database other than the app's."""

    def __init__(self, found: str, wanted: str, hint: str = "") -> None:
        self.hint = hint
        super().__init__(_with_hint(f"{found}; the app's store is in {wanted}", hint))


class InvalidURL(BadInput):
    """The database URL cannot be used."""


# Look-ups ----------------------------------------------------------------------------------------


class UnknownFunction(DulyError, LookupError):
    """No function is registered under that name."""

    def __init__(self, name: str, known: Iterable[str] = (), because: str = "") -> None:
        self.name = name
        known = list(known)
        if because:
            message = f"function {name!r}: {because}"
        elif name in known:
            message = (
                f"another function is registered as {name!r}; "
                "this one belongs to another app or has been redefined"
            )
        else:
            hint = did_you_mean(name, known) or "import its module, or start a worker that has it"
            message = f"no function is registered as {name!r}; {hint}"
        super().__init__(message)


class FunctionDeleted(DulyError, LookupError):
    """An operator deleted the function; it cannot be called until it is restored."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"function {name!r} was deleted; an operator can restore it")


class ScheduleNotFound(DulyError, LookupError):
    """The owner has no schedule with that key or id."""

    def __init__(self, key: str, known: Iterable[str] = ()) -> None:
        self.key = key
        hint = did_you_mean(key, known) or "list them with app.schedules.list()"
        super().__init__(f"there is no schedule {key!r}; {hint}")


class CalendarNotFound(DulyError, LookupError):
    """The owner has no calendar with that name or id."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        self.name = name
        self.field = "calendar"
        self.reason: str = f"there is no calendar {name!r}"
        self.hint: str = did_you_mean(name, known) or "list them with app.calendars.list()"
        super().__init__(f"{self.reason}; {self.hint}")


class EndpointNotFound(DulyError, LookupError):
    """The owner has no endpoint with that name or id."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        self.name = name
        hint = did_you_mean(name, known) or "list them with app.endpoints.list()"
        super().__init__(f"there is no endpoint {name!r}; {hint}")


class GatewayNotFound(DulyError, LookupError):
    """There is no gateway with that name or id."""

    def __init__(self, name: str, known: Iterable[str] = ()) -> None:
        self.name = name
        hint = did_you_mean(name, known) or "list them with app.gateways.list()"
        super().__init__(f"there is no gateway {name!r}; {hint}")


class CronNotFound(DulyError, LookupError):
    """The gateway has no cron with that id."""

    def __init__(self, cron_id: str) -> None:
        self.cron_id = cron_id
        super().__init__(f"the gateway has no cron {cron_id!r}; list its crons with cron_list()")


class JobNotFound(DulyError, LookupError):
    """There is no job with that id: it never existed, was rolled back, or retention removed it."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"there is no job {job_id!r}; check the id; retention may have removed it")


class BatchNotFound(DulyError, LookupError):
    """There is no batch with that id: it was never stored, or retention removed its jobs.

    A batch that has no members and no hook is not stored.
    """

    def __init__(self, batch_id: str) -> None:
        self.batch_id = batch_id
        super().__init__(
            f"there is no batch {batch_id!r}; check the id; retention may have removed its jobs"
        )


class NoCurrentJob(DulyError, LookupError):
    """`duly.current()` was called outside a job, or the job's context is of another type."""


class WebhookEventNotFound(DulyError, LookupError):
    """The inbox has no event with that id: it was never received, or was removed by retention."""

    def __init__(self, event_id: str) -> None:
        self.event_id = event_id
        super().__init__(
            f"there is no webhook event {event_id!r}; check the id; retention may have removed it"
        )


class SecretMissing(DulyError, LookupError):
    """The variable or file that a secret reference names does not exist or is empty."""

    def __init__(self, reference: str) -> None:
        self.reference = reference
        super().__init__(
            f"there is no secret at {reference!r}; set the variable, or create the file"
        )


class TokenNotFound(DulyError, LookupError):
    """There is no API token with that id."""

    def __init__(self, token_id: str) -> None:
        self.token_id = token_id
        super().__init__(f"there is no token {token_id!r}; list them with app.tokens.list()")


# Transactions ------------------------------------------------------------------------------------


class TransactionError(DulyError):
    """A `tx` was used in a way that would break its guarantees."""


class TooManyJobs(TransactionError):
    """One mutation enqueued more jobs, or more bytes of arguments, than allowed."""


class TransactionEnded(TransactionError):
    """The transaction of a `tx` has ended, so the `tx` can no longer be used."""


class NotInTransaction(TransactionError):
    """The handle passed to `app.on` is in autocommit mode, so changes would not be atomic."""

    def __init__(self, handle: object, instead: str) -> None:
        self.handle = handle
        super().__init__(
            f"this {type(handle).__name__} is in autocommit mode and outside a transaction, so "
            f"nothing was written; {instead}"
        )


class IsolationTooHigh(TransactionError):
    """The transaction passed to `app.on` reads an old snapshot, in which a cancel can miss jobs.

    In such a transaction only jobs that never started and belong to no batch can be canceled.
    """

    def __init__(self, job_id: str, level: str) -> None:
        self.job_id = job_id
        self.level = level
        super().__init__(
            f"job {job_id} has started or belongs to a batch, and this transaction is "
            f"{level.upper()}, where a cancel may not see all jobs that depend on it; nothing was "
            "written: cancel it in a READ COMMITTED transaction, or with app.cancel() after this "
            "one has committed"
        )


class CannotBegin(TransactionError):
    """A schedule index needs its own transaction, which it cannot begin on this handle."""

    def __init__(self, handle: object, instead: str) -> None:
        self.handle = handle
        super().__init__(
            f"this {type(handle).__name__} cannot begin a transaction, so a claim would not be "
            f"atomic; {instead}"
        )


class NotCommittedYet(TransactionError, LookupError):
    """The job was created in a transaction of yours that has not been committed yet."""

    def __init__(self, job_id: str, noun: str = "job") -> None:
        self.job_id = job_id
        super().__init__(f"{noun} {job_id} is not committed yet, or was rolled back")


class UseTx(TransactionError):
    """The app was used inside a mutation, where its changes would not be atomic; use `tx`."""

    def __init__(self, verb: str) -> None:
        words = {"run": "use tx.run", "cancel": "use tx.cancel", "on": "use the methods of tx"}
        instead = words.get(verb, "call it outside the mutation")
        super().__init__(
            f"app.{verb} inside a mutation would not be part of its transaction; {instead}"
        )


class WouldWaitForItself(TransactionError):
    """A mutation waits for a job that cannot start until the mutation has returned."""

    def __init__(self) -> None:
        super().__init__(
            "a mutation cannot wait for a job; enqueue another function to continue after it"
        )


class CannotCancelSelf(TransactionError):
    """A mutation tried to cancel its own job."""

    def __init__(self) -> None:
        super().__init__("a mutation cannot cancel itself; raise an exception instead")


# Workflows ---------------------------------------------------------------------------------------


class WorkflowError(DulyError):
    """Something in or about a workflow."""


class StepFailed(WorkflowError):
    """A step failed permanently. The same when the workflow runs again from its records."""

    def __init__(self, name: str, kind: str | None, message: str) -> None:
        self.name = name
        self.kind = kind
        """user, timeout, worker_lost, crash_loop, unstorable_result, canceled or expired."""
        self.message = message
        super().__init__(f"step {name} failed: {message}")

    def was(self, error: type[BaseException]) -> bool:
        """Whether the step raised an exception of this class, by name."""
        return self.message.partition(":")[0] == error.__name__


class WaitTimeout(WorkflowError, TimeoutError):
    """What a workflow waited for did not happen in time."""

    def __init__(self, what: str) -> None:
        super().__init__(f"timed out while waiting for {what}")


class Fail(WorkflowError):
    """Raise it in a workflow to fail the run."""


class UseCtx(WorkflowError):
    """The app was used in a workflow's own code, which runs again at each wake."""

    @classmethod
    def instead_of(cls, verb: str) -> UseCtx:
        instead = "call it in a step: ctx.step(function, …)"
        if verb in ("run", "cancel", "send"):
            instead = f"use ctx.{verb}, or {instead}"
        if verb == "result":
            instead = "use ctx.wait(job)"
        return cls(
            f"{verb} in a workflow's own code would happen again each time it continues; {instead}"
        )


class WorkflowTooLong(WorkflowError):
    """A run has recorded as much as it may."""


class NotAWorkflow(WorkflowError):
    """The job is not a run of a workflow."""

    def __init__(self, job_id: str, function: str) -> None:
        super().__init__(f"job {job_id} runs {function}, which is not a workflow")


class WorkflowEnded(WorkflowError):
    """The run has ended, so nothing reads the event."""

    def __init__(self, job_id: str, state: str) -> None:
        self.job_id = job_id
        self.state = state
        super().__init__(f"workflow {job_id} has {state}; it reads no more events")


class TooManyEvents(WorkflowError):
    """The run has too many events that it has not read."""

    def __init__(self, job_id: str, limit: int) -> None:
        super().__init__(
            f"workflow {job_id} has {limit:,} unread events; wait until it has read some"
        )


class ApprovalClosed(WorkflowError):
    """The run does not wait for that approval."""

    def __init__(self, job_id: str, name: str, reason: str, others: Iterable[str] = ()) -> None:
        hint = or_nearest(name, others)
        super().__init__(f"approval {name!r} of workflow {job_id} is not open: {reason}{hint}")


class SelfApproval(WorkflowError):
    """The actor who started the run may not answer this approval."""

    def __init__(self, job_id: str, name: str, by: str) -> None:
        super().__init__(
            f"{by} started workflow {job_id} and may not answer its approval {name!r}; "
            "another person has to"
        )


# Results -----------------------------------------------------------------------------------------


class JobError(DulyError):
    """The job has no result to return."""


class JobFailed(JobError):
    """The job failed."""

    def __init__(self, job_id: str, kind: str, message: str, traceback: str | None = None) -> None:
        self.job_id = job_id
        self.kind = kind
        self.message = message
        self.traceback = traceback
        super().__init__(f"job {job_id} failed ({kind}): {message}")


class JobCanceled(JobError):
    """The job was canceled."""

    def __init__(self, job_id: str, canceled_by: str | None) -> None:
        self.job_id = job_id
        self.canceled_by = canceled_by
        # A job that expires has no canceler.
        reason = f"was canceled by {canceled_by}" if canceled_by else "expired before it started"
        super().__init__(f"job {job_id} {reason}")


class ResultTimeout(JobError, TimeoutError):
    """The job did not finish within the timeout."""

    def __init__(self, job_id: str, state: str, seconds: float) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} is still {state} after {seconds:g} s; is a worker running?")


class NonRetryable(DulyError):
    """Raise it, or a subclass, from a function to fail the job without another attempt."""


class AddressRefused(NonRetryable):
    """Requests to this address are not allowed: it is not plain HTTP(S), or not public."""


class DeliveryFailed(DulyError):
    """A request could not be sent, got no response, or got one that is not a success."""


class RetryAfter(DulyError):
    """Raise it from a function to delay the next attempt, for example as a service has asked.

    The retry policy still decides whether there is another attempt, and how far it can be delayed.
    `seconds` can also be text, as in a `Retry-After` header; text that is not a number raises
    InvalidOption.
    """

    def __init__(self, seconds: float | str, message: str = "") -> None:
        self.seconds: float = _seconds(seconds)
        super().__init__(message or f"retry after {self.seconds:g} s")


def _seconds(given: float | str) -> float:
    try:
        seconds = float(given)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if math.isnan(seconds):
        raise InvalidOption("seconds", f"must be a number, not {given!r}")
    return seconds


class Canceled(DulyError):
    """Raised inside a job that was canceled, timed out or taken over; its result is discarded."""


class UnstorableResult(DulyError):
    """A function returned a value that cannot be stored as JSON."""


class SignatureMismatch(DulyError):
    """The stored arguments of a job no longer match the function's signature."""


# Gateways ----------------------------------------------------------------------------------------


class GatewayError(DulyError):
    """A gateway did not do what was requested."""


class GatewayUnavailable(GatewayError):
    """A gateway sent no usable response; it may or may not have acted on the request."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"the gateway at {url} is not available: {reason}")


class GatewayRefused(GatewayError):
    """A gateway refused the request; nothing was changed."""

    def __init__(
        self, status: int, code: str, message: str, field: str | None = None, hint: str = ""
    ) -> None:
        self.status = status
        self.code = code
        self.field = field
        self.hint = hint
        super().__init__(f"the gateway refused the request: {message} ({code})")


# The store ---------------------------------------------------------------------------------------


class StoreError(DulyError):
    """The database could not carry out an operation."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or reported that it is busy; retrying may help."""


class StoreRefused(StoreUnavailable):
    """The database refused the connection: for example a wrong password or an unknown name."""


class StoreMoved(StoreUnavailable):
    """The store is being copied to another database, or was moved there; it rejects writes."""


class StoreMissing(StoreError):
    """The database file does not exist."""


class StoreReadOnly(StoreError):
    """The database is read-only."""


class StoreFull(StoreError):
    """The disk is full, or the database has reached its size limit."""


class NotMigrated(StoreError):
    """duly's tables are missing, or older than this version needs."""


class NoScheduleTable(StoreError):
    """The table of a schedule index or of a schedule collection is missing."""

    def __init__(self, table: str, ddl: str) -> None:
        self.table = table
        self.ddl = ddl
        super().__init__(
            f"the table {table} does not exist; leave out skip_schema_init, or run:\n{ddl}"
        )


class StoreTooNew(StoreError):
    """The store was migrated by a newer version of duly, and this version can no longer use it."""

    def __init__(self, code: int, min_code: int) -> None:
        self.code = code
        self.min_code = min_code
        super().__init__(
            f"the store requires code of schema version {min_code} or newer, but this code has "
            f"version {code}; upgrade duly"
        )


class StoreTooOld(StoreError):
    """The database server or library is older than duly supports."""


class QueryTooBroad(StoreError):
    """No index supports the filter, and the scan took too long."""


class CopyRefused(StoreError):
    """The store cannot be copied to that database, or not yet; the source continues to work."""


class CopyDiffers(StoreError):
    """The copy does not match the source, so nothing was switched over."""

    def __init__(self, tables: Iterable[str]) -> None:
        self.tables = list(tables)
        super().__init__(
            f"the copy differs from the source in {', '.join(self.tables)}; the source is closed "
            "and intact: abandon the copy with `duly copy --abort`, then start again"
        )


class MissingExtra(DulyError):
    """An optional dependency is not installed."""

    def __init__(self, extra: str, what_for: str, package: str | None = None) -> None:
        self.extra = extra
        needs = f"{package}: pip install {extra}"
        if package is None:
            needs = f'an extra: pip install "duly[{extra}]"'
        super().__init__(f"{what_for} needs {needs}")


def without_password(url: str) -> str:
    """The URL with its password hidden."""
    with contextlib.suppress(ValueError):
        password = urlsplit(url).password
        if password:
            return url.replace(f":{password}@", ":***@")
    # Not a URL, but the part before the @ may still be a password.
    before, at, after = url.rpartition("@")
    name, colon, _ = before.rpartition("/")[2].partition(":")
    if not at or not colon:
        return url
    return f"{before[: before.rfind(name + colon)]}{name}:***@{after}"
