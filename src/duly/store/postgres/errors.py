"""Translates the driver's errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator

import psycopg

from duly import errors
from duly.store.base import Blame
from duly.store.copy_mark import PREFIX

# What makes a transaction fail through no fault of its own.
CONFLICTS = (
    psycopg.errors.SerializationFailure,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
)

# The connection is gone, or will be: its own class 08, timeouts that the server ends it for (in a
# transaction, of the transaction, of the session), a server that stops, starts or is full.
LOST = ("08", "25P03", "25P04", "57P", "53300")
# The server cannot do what it could at other times: no memory, no space, read-only (after a
# failover, or a provider's answer to a full disk), errors of the system, damaged data. Not 53400: a
# limit that the statement itself has passed.
TROUBLE = ("25006", "53000", "53100", "53200", "58", "XX001", "XX002")


class Conflict(Exception):
    """The transaction lost against another one and may simply be repeated."""


@contextlib.contextmanager
def translated() -> Generator[None]:
    """Errors of the driver as errors of duly."""
    try:
        yield
    except CONFLICTS as error:
        raise Conflict from error
    except psycopg.Error as error:
        raise _translate(error) from error


@contextlib.contextmanager
def translated_if_ours(schema: str) -> Generator[None]:
    """In a user's transaction only errors about the store itself; others stay the driver's."""
    try:
        yield
    except psycopg.errors.UndefinedTable as error:
        if f'"{schema}.' in str(error):
            raise _translate(error) from error
        raise
    except psycopg.Error as error:
        about_the_store = (errors.StoreUnavailable, errors.StoreReadOnly, errors.StoreFull)
        meaning = _translate(error)
        if isinstance(meaning, about_the_store):
            raise meaning from error
        raise


@contextlib.contextmanager
def in_doubt() -> Generator[None]:
    """After a lost answer: what was asked may have been done, whatever goes wrong now."""
    try:
        yield
    except errors.StoreUnavailable:
        raise
    except Exception as error:
        reason = first_line(error.__cause__ or error)
        raise errors.StoreUnavailable(
            f"the call may have happened before this error: {reason}"
        ) from error


def _translate(error: psycopg.Error) -> Exception:
    text = first_line(error)
    if text.startswith(PREFIX):
        return errors.StoreMoved(text.removeprefix("duly: "))
    match error:
        case psycopg.errors.UndefinedTable() | psycopg.errors.InvalidSchemaName():
            return errors.NotMigrated(f"{text}; run `duly migrate`")
        case psycopg.errors.ReadOnlySqlTransaction():
            return errors.StoreReadOnly(
                f"{text}; is this a standby, or is default_transaction_read_only on?"
            )
        case psycopg.errors.DiskFull():
            return errors.StoreFull(f"{text}; free some space, nothing was written")
        case psycopg.errors.QueryCanceled():
            return errors.QueryTooBroad("no index serves this filter quickly; narrow the filter")
        case psycopg.errors.InsufficientPrivilege():
            return errors.StoreError(
                f"{text}; the role needs SELECT, INSERT, UPDATE, DELETE and TRUNCATE on duly's "
                "tables, and CREATE on the database to migrate"
            )
        case _:
            pass
    if is_lost(error):
        return errors.StoreUnavailable(f"the connection to PostgreSQL was lost: {text}")
    if blame_one(error) == Blame.DATABASE:
        return errors.StoreUnavailable(f"PostgreSQL is in trouble: {text}")
    return errors.StoreError(text)


def is_lost(error: psycopg.Error) -> bool:
    """Whether the connection is gone, or the server going: any outcome is possible."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate.startswith(LOST)


# libpq gives no SQLSTATE for a connection that was not made. A server that speaks another language
# is taken to be down, and what it says is shown.
_REFUSED = re.compile(
    r"authentication failed|no password supplied|(role|user|database) .* does not exist"
    r"|no such (user|database)|no pg_hba\.conf entry|not permitted to log in|permission denied for"
    r"|not currently accepting|SSL|certificate|invalid (connection|channel|sslmode)"
)


def is_refused(error: psycopg.Error) -> bool:
    """Whether a server has answered, and will answer the same until someone changes something."""
    return _REFUSED.search(str(error)) is not None


def blame_one(error: BaseException) -> Blame:
    """Who is to blame for an error in a mutation."""
    if isinstance(error, errors.StoreError) and not isinstance(error, errors.QueryTooBroad):
        return Blame.DATABASE
    if not isinstance(error, psycopg.Error):
        return Blame.BODY
    if is_lost(error) or (error.sqlstate or "").startswith(TROUBLE):
        return Blame.DATABASE
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return Blame.LOCK
    return Blame.CONFLICT if isinstance(error, CONFLICTS) else Blame.BODY


def first_line(error: BaseException) -> str:
    """The first line of a message: psycopg appends hints and, on connect, every address tried."""
    return str(error).strip().split("\n")[0]
