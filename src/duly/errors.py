"""Every error that duly raises, in one tree.

DulyError
├── BadInput (ValueError)           refused at the edge, nothing was written
│   ├── InvalidArgument             an argument of a job; names it
│   ├── ArgumentsTooLarge           a job's arguments pass the size limit
│   ├── InvalidOption               an option of a function, call, worker or app
│   ├── InvalidTime                 naive, negative, or more than five years away
│   ├── InvalidCron                 a cron expression; names the field and what is wrong in it
│   ├── UnknownZone                 no time zone has that name
│   ├── InvalidCalendar             a calendar's name, kind, zone or dates; names the field
│   ├── InvalidCondition            a condition of a schedule; names the pointer
│   ├── InvalidRotation             a schedule's rotation; names the entry
│   ├── InvalidFunction             what was decorated cannot be a function
│   ├── FunctionConflict            two functions want one name
│   ├── ScheduleExists              its owner, or the code, has a schedule of that key
│   ├── CalendarExists              its owner has a calendar of that name
│   ├── EndpointExists              its owner has an endpoint of that name
│   ├── ReadOnlyCalendar            a calendar that comes with duly cannot be changed
│   ├── GatewayExists               its owner has a gateway of that name
│   ├── CronExists                  the gateway has a cron of that name
│   ├── StaleVersion                somebody has changed it since it was read
│   ├── WrongStatus                 a function's status does not allow that change
│   ├── WrongDatabase               a handle leads to another database than the app's
│   └── InvalidURL                  the database URL makes no sense
├── UnknownFunction (LookupError)   no function is registered under that name
├── FunctionDeleted (LookupError)   an operator deleted the function
├── JobNotFound (LookupError)       no job has that id
├── WebhookEventNotFound (LookupError)  the inbox holds no event with that id
├── SecretMissing (LookupError)     a reference to a secret leads to nothing
├── TokenNotFound (LookupError)     no token has that id
├── ScheduleNotFound (LookupError)  no schedule has that key or id
├── CalendarNotFound (LookupError)  no calendar has that name or id
├── GatewayNotFound (LookupError)   no gateway has that name or id
├── CronNotFound (LookupError)      the gateway has no cron with that id
├── GatewayError
│   ├── GatewayUnavailable          it gave no answer, or none that makes sense
│   └── GatewayRefused              it answered that it will not; carries why
├── EndpointNotFound (LookupError)  no endpoint has that name or id
├── TransactionError
│   ├── TooManyJobs                 a mutation scheduled more than it may
│   ├── TransactionEnded            the transaction of a `tx` is over
│   ├── NotInTransaction            a handle is in autocommit, so nothing would be atomic
│   ├── IsolationTooHigh            a handle's isolation level hides what a cancel has to see
│   ├── CannotBegin                 a handle of a schedule index can begin no transaction
│   ├── NotCommittedYet (LookupError)   a job of `app.on(…)` whose transaction is not committed
│   ├── UseTx                       inside a mutation only `tx` may touch the store
│   ├── WouldWaitForItself          waiting for a job that cannot start before you return
│   └── CannotCancelSelf            a mutation tried to cancel its own job
├── JobError                        what `job.result()` raises
│   ├── JobFailed                   the job failed; carries kind, message, traceback
│   ├── JobCanceled                 the job was canceled; says by whom
│   └── ResultTimeout (TimeoutError)
├── NonRetryable                    raised by a function: fail at once, whatever its retry policy
│   └── AddressRefused              an address that nothing may be sent to
├── DeliveryFailed                  an address has not answered, or not with success
├── RetryAfter                      raised by a function: fail, and try again after so long
├── Canceled                        raised inside a job whose row was taken away
├── UnstorableResult                a return value that is no strict JSON
├── SignatureMismatch               stored arguments no longer fit the function
├── StoreError
│   ├── StoreUnavailable            no connection; the operation may be repeated
│   │   └── StoreMoved              it is being copied to another database, or was moved there
│   ├── StoreMissing                the database file does not exist
│   ├── StoreReadOnly               the database cannot be written
│   ├── StoreFull                   the disk is full
│   ├── NotMigrated                 duly's tables are missing or old
│   ├── NoScheduleTable             the table of a schedule index is missing; carries its DDL
│   ├── StoreTooNew                 the store needs newer code than this
│   ├── StoreTooOld                 the database engine is too old
│   ├── QueryTooBroad               no index serves the filter
│   ├── CopyRefused                 a store cannot be copied there, or not now
│   └── CopyDiffers                 what arrived is not what was sent; nothing was handed over
└── MissingExtra                    an optional dependency is not installed

CalendarEnds (UserWarning)          no error: a calendar was attached whose last date comes soon
"""

from __future__ import annotations

import contextlib
import difflib
import math
from collections.abc import Iterable
from urllib.parse import urlsplit


class DulyError(Exception):
    """The root of everything that duly raises on purpose."""


# Bad input ---------------------------------------------------------------------------------------


class BadInput(DulyError, ValueError):
    """Something given to duly was refused; nothing was written."""


class InvalidArgument(BadInput):
    """An argument of a job does not fit the function's signature."""

    def __init__(self, function: str, argument: str, reason: str) -> None:
        self.function = function
        self.argument = argument
        self.reason = reason
        super().__init__(f"{function}(): argument {argument!r}: {reason}")


class ArgumentsTooLarge(BadInput):
    """The arguments of one job are larger than the store takes."""

    def __init__(self, function: str, size: int, limit: int) -> None:
        self.function = function
        self.size = size
        self.limit = limit
        super().__init__(
            f"{function}(): arguments are {size:,} bytes as JSON, the limit is {limit:,}; "
            "store the data elsewhere and pass a reference"
        )


class InvalidOption(BadInput):
    """An option has a value that makes no sense."""

    def __init__(self, option: str, reason: str, hint: str = "") -> None:
        self.option = self.field = option
        self.reason = reason
        self.hint = hint
        super().__init__(_with_hint(f"{option}: {reason}", hint))


class InvalidTime(BadInput):
    """A time or delay that a job or schedule cannot have; `field` names it where it has a name."""

    def __init__(self, reason: str, field: str = "", hint: str = "") -> None:
        self.field = field
        self.reason = reason
        self.hint = hint
        super().__init__(_with_hint(f"{field}: {reason}" if field else reason, hint))


class InvalidCalendar(BadInput):
    """A calendar that cannot be stored: a bad name, kind, zone, date or iCal line."""

    def __init__(self, field: str, reason: str, hint: str = "") -> None:
        self.field = field
        self.reason = reason
        self.hint = hint
        super().__init__(_with_hint(f"{field}: {reason}", hint))


class InvalidCondition(BadInput):
    """A condition that cannot be judged; `pointer` names the key that is wrong, if it is one."""

    def __init__(self, pointer: str | None, reason: str, hint: str = "") -> None:
        self.field = "condition"
        self.pointer = pointer
        self.reason = reason
        self.hint = hint
        where = "condition" if pointer is None else f"condition {pointer!r}"
        super().__init__(_with_hint(f"{where}: {reason}", hint))


class InvalidRotation(BadInput):
    """A rotation that cannot be used; `index` is the entry that is wrong, if it is one."""

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
    """A cron expression makes no sense, or would never fire."""

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
    """No time zone has that name."""

    def __init__(self, name: str, nearest: str | None = None) -> None:
        self.name = name
        self.field = "tz"
        self.reason: str = f"no time zone is called {name!r}"
        self.hint: str = (
            f"did you mean {nearest!r}?" if nearest else 'write a name such as "Europe/Istanbul"'
        )
        if not name.strip():
            self.reason = "an empty string is not a time zone"
            self.hint = 'leave it out for UTC, or write a name such as "Europe/Istanbul"'
        super().__init__(f"{self.reason}; {self.hint}")


class InvalidFunction(BadInput):
    """What was decorated cannot become a duly function."""


class FunctionConflict(BadInput):
    """Two different functions want the same name."""

    def __init__(self, name: str, first: str, second: str) -> None:
        self.name = name
        super().__init__(
            f"function {name!r} is defined twice: {first} and {second}; give one of them name=..."
        )


class ScheduleExists(BadInput):
    """The owner has a schedule of that key; or code declares it in two places."""

    def __init__(self, key: str, places: tuple[str, str] | None = None) -> None:
        self.key = key
        self.field = "key"
        self.places = places
        self.reason: str = f"there is a schedule {key!r} already"
        self.hint: str = "update it, or choose another key"
        if places is not None:
            self.reason = f"schedule {key!r} is declared twice: {places[0]} and {places[1]}"
            self.hint = "choose another key for one of them"
        super().__init__(f"{self.reason}; {self.hint}")


class CalendarExists(BadInput):
    """The owner has a calendar of that name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.field = "name"
        super().__init__(f"there is a calendar {name!r} already; update it, or choose another name")


class EndpointExists(BadInput):
    """The owner has an endpoint of that name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.field = "name"
        super().__init__(
            f"there is an endpoint {name!r} already; update it, or choose another name"
        )


class ReadOnlyCalendar(BadInput):
    """A calendar that comes with duly cannot be changed."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"calendar {name!r} comes with duly and cannot be changed; clone it")


class GatewayExists(BadInput):
    """The owner has a gateway of that name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.field = "name"
        super().__init__(f"there is a gateway {name!r} already; remove it, or choose another name")


class CronExists(BadInput):
    """The gateway has a cron of that name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.field = "name"
        super().__init__(f"there is a cron {name!r} already; update it, or choose another name")


class CalendarEnds(UserWarning):
    """A calendar was attached whose last date comes soon; after it, it says nothing any more."""


class StaleVersion(BadInput):
    """Somebody has changed it since it was read."""

    def __init__(self, name: str, expected: int, found: int) -> None:
        self.name = name
        self.expected = expected
        self.found = found
        super().__init__(
            f"{name!r} is at version {found}, not {expected}: it was changed since; read it again"
        )


class WrongStatus(BadInput):
    """The function has a status that does not allow this change."""

    def __init__(self, name: str, current: str, wanted: str) -> None:
        self.name = name
        super().__init__(f"function {name!r} is {current} and cannot become {wanted}; restore it")


class WrongDatabase(BadInput):
    """The handle given to `app.on` leads to another database than the app's."""

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(f"{found}; the app's store is in {wanted}")


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
                "this one belongs to another app, or was defined again since"
            )
        else:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            message = f"no function is registered as {name!r}{hint}"
        super().__init__(message)


class FunctionDeleted(DulyError, LookupError):
    """An operator deleted the function: nothing can be scheduled until it is restored."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"function {name!r} was deleted; an operator can restore it")


class ScheduleNotFound(DulyError, LookupError):
    """No schedule of that owner has that key or id."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"there is no schedule {key!r}; app.schedules.list() shows those there are"
        )


class CalendarNotFound(DulyError, LookupError):
    """No calendar of that owner has that name or id."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.field = "calendar"
        self.reason: str = f"there is no calendar {name!r}"
        self.hint: str = "app.calendars.list() shows those there are"
        super().__init__(f"{self.reason}; {self.hint}")


class EndpointNotFound(DulyError, LookupError):
    """No endpoint of that owner has that name or id."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"there is no endpoint {name!r}; app.endpoints.list() shows those there are"
        )


class GatewayNotFound(DulyError, LookupError):
    """No gateway of that owner has that name or id."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"there is no gateway {name!r}; app.gateways.list() shows those there are")


class CronNotFound(DulyError, LookupError):
    """The gateway has no cron with that id."""

    def __init__(self, cron_id: str) -> None:
        self.cron_id = cron_id
        super().__init__(f"the gateway has no cron {cron_id!r}; cron_list() shows those it has")


class JobNotFound(DulyError, LookupError):
    """No job has that id: it never existed, was rolled back, or retention removed it."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"no job has the id {job_id!r}")


class WebhookEventNotFound(DulyError, LookupError):
    """The inbox holds no event with that id: none was received, or retention removed it."""

    def __init__(self, event_id: str) -> None:
        self.event_id = event_id
        super().__init__(f"no webhook event has the id {event_id!r}")


class SecretMissing(DulyError, LookupError):
    """The variable or file that a reference to a secret names is not there, or is empty."""

    def __init__(self, reference: str) -> None:
        self.reference = reference
        super().__init__(
            f"there is no secret at {reference!r}; set the variable, or write the file"
        )


class TokenNotFound(DulyError, LookupError):
    """No token of the server has that id."""

    def __init__(self, token_id: str) -> None:
        self.token_id = token_id
        super().__init__(f"no token has the id {token_id!r}")


# Transactions ------------------------------------------------------------------------------------


class TransactionError(DulyError):
    """A `tx` was used in a way that would break its guarantees."""


class TooManyJobs(TransactionError):
    """One mutation scheduled more jobs, or more bytes of arguments, than it may."""


class TransactionEnded(TransactionError):
    """The transaction behind a `tx` is over, so nothing can be done in it any more."""


class NotInTransaction(TransactionError):
    """The handle given to `app.on` is in autocommit, so what is done with it is not atomic."""

    def __init__(self, handle: object, instead: str) -> None:
        self.handle = handle
        super().__init__(
            f"this {type(handle).__name__} is in autocommit and in no transaction, so nothing was "
            f"written; {instead}"
        )


class IsolationTooHigh(TransactionError):
    """The transaction given to `app.on` reads an old snapshot, in which a cancel may miss jobs.

    Only a job that has never started and belongs to no batch can be canceled in it.
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
    """A schedule index needs a transaction of its own, which this handle cannot begin."""

    def __init__(self, handle: object, instead: str) -> None:
        self.handle = handle
        super().__init__(
            f"this {type(handle).__name__} cannot begin a transaction, so nothing would be claimed "
            f"atomically; {instead}"
        )


class NotCommittedYet(TransactionError, LookupError):
    """The job was made in a transaction of the caller's that others cannot see yet."""

    def __init__(self, job_id: str, noun: str = "job") -> None:
        self.job_id = job_id
        super().__init__(f"{noun} {job_id} is not committed yet, or rolled back")


class UseTx(TransactionError):
    """Inside a mutation the app itself may not touch the store: the effect would not be atomic."""

    def __init__(self, verb: str) -> None:
        words = {"run": "use tx.run", "cancel": "use tx.cancel", "on": "use the verbs of tx"}
        instead = words.get(verb, "do it outside")
        super().__init__(
            f"app.{verb} inside a mutation would not be part of its transaction; {instead}"
        )


class WouldWaitForItself(TransactionError):
    """A mutation waits for a job that cannot start before the mutation has returned."""

    def __init__(self) -> None:
        super().__init__("a mutation cannot wait for a job; schedule a function that continues")


class CannotCancelSelf(TransactionError):
    """A mutation tried to cancel the job that it is."""

    def __init__(self) -> None:
        super().__init__("a mutation cannot cancel itself; raise an exception instead")


# Results -----------------------------------------------------------------------------------------


class JobError(DulyError):
    """The job has no result to give."""


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
        # Nobody cancels a job that expires.
        reason = f"was canceled by {canceled_by}" if canceled_by else "expired before it started"
        super().__init__(f"job {job_id} {reason}")


class ResultTimeout(JobError, TimeoutError):
    """The job was not finished in the time that the caller was ready to wait."""

    def __init__(self, job_id: str, state: str, seconds: float) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} is still {state} after {seconds:g} s; is a worker running?")


class NonRetryable(DulyError):
    """Raise it, or an exception derived from it, where another attempt would be of no use."""


class AddressRefused(NonRetryable):
    """Nothing may be sent there: no plain address of HTTP, or one that is not public."""


class DeliveryFailed(DulyError):
    """Something was sent, or should have been, and no answer came, or not one of success."""


class RetryAfter(DulyError):
    """Raise it where the next attempt should come after so many seconds: a service said when.

    The retry policy decides whether there is a next attempt, and how long it may be put off. The
    seconds may be text, as a header has them; what is no number is refused with InvalidOption.
    """

    def __init__(self, seconds: float | str, message: str = "") -> None:
        self.seconds: float = _seconds(seconds)
        super().__init__(message or f"to be tried again after {self.seconds:g} s")


def _seconds(given: float | str) -> float:
    try:
        seconds = float(given)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if math.isnan(seconds):
        raise InvalidOption("seconds", f"must be a number, not {given!r}")
    return seconds


class Canceled(DulyError):
    """Raised inside a job that was canceled, timed out or taken over: its result is dropped."""


class UnstorableResult(DulyError):
    """A function returned something that cannot be stored as strict JSON."""


class SignatureMismatch(DulyError):
    """The stored arguments of a job no longer fit the function's signature."""


# Gateways ----------------------------------------------------------------------------------------


class GatewayError(DulyError):
    """A gateway did not do what it was asked."""


class GatewayUnavailable(GatewayError):
    """A gateway gave no answer, or none that makes sense; what was asked may be done, or not."""

    def __init__(self, url: str, reason: str) -> None:
        self.url = url
        self.reason = reason
        super().__init__(f"the gateway at {url} cannot be asked: {reason}")


class GatewayRefused(GatewayError):
    """A gateway answered that it will not do what was asked; nothing was changed."""

    def __init__(
        self, status: int, code: str, message: str, field: str | None = None, hint: str = ""
    ) -> None:
        self.status = status
        self.code = code
        self.field = field
        self.hint = hint
        super().__init__(f"the gateway refused: {message} ({code})")


# The store ---------------------------------------------------------------------------------------


class StoreError(DulyError):
    """The database could not do what was asked."""


class StoreUnavailable(StoreError):
    """The database cannot be reached, or answered that it is busy; trying again may help."""


class StoreRefused(StoreUnavailable):
    """The database answered and refused the connection: a wrong password, an unknown name."""


class StoreMoved(StoreUnavailable):
    """The store is being copied to another database, or was moved there: nothing can be written."""


class StoreMissing(StoreError):
    """The database file does not exist."""


class StoreReadOnly(StoreError):
    """The database cannot be written."""


class StoreFull(StoreError):
    """The disk, or the database's own limit, is full."""


class NotMigrated(StoreError):
    """duly's tables are missing, or older than this code needs."""


class NoScheduleTable(StoreError):
    """The table of a schedule index, or of a collection of schedules, is missing."""

    def __init__(self, table: str, ddl: str) -> None:
        self.table = table
        self.ddl = ddl
        super().__init__(
            f"the table {table} does not exist; leave out skip_schema_init, or run:\n{ddl}"
        )


class StoreTooNew(StoreError):
    """The store was migrated by newer code, and this code may no longer use it."""

    def __init__(self, code: int, min_code: int) -> None:
        self.code = code
        self.min_code = min_code
        super().__init__(
            f"the store needs code of schema version {min_code} or newer, this code has {code}; "
            "upgrade duly"
        )


class StoreTooOld(StoreError):
    """The database engine is older than duly supports."""


class QueryTooBroad(StoreError):
    """No index serves the filter, and scanning took too long."""


class CopyRefused(StoreError):
    """A store cannot be copied to that place, or not now; the source goes on as before."""


class CopyDiffers(StoreError):
    """What has arrived is not what was sent, so that nothing was handed over."""

    def __init__(self, tables: Iterable[str]) -> None:
        self.tables = list(tables)
        super().__init__(
            f"the copy differs from the source in {', '.join(self.tables)}; the source is closed "
            "and whole: give the copy up with `duly copy --abort`, then begin again"
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
    """The URL as it may be shown."""
    with contextlib.suppress(ValueError):
        password = urlsplit(url).password
        if password:
            return url.replace(f":{password}@", ":***@")
    # No URL, and yet with something before the @ that may be a password.
    before, at, after = url.rpartition("@")
    name, colon, _ = before.rpartition("/")[2].partition(":")
    if not at or not colon:
        return url
    return f"{before[: before.rfind(name + colon)]}{name}:***@{after}"
