"""Translates the driver's errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator

import psycopg

from duly import errors
from duly.store.base import Blame
from duly.store.copy_mark import PREFIX

# Errors that make a transaction fail although it is not at fault.
CONFLICTS = (
    psycopg.errors.SerializationFailure,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
)

# The connection is gone, or will be: its own class 08, timeouts that make the server end it (in a
# transaction, of the transaction, of the session), a server that stops, starts or is full.
LOST = ("08", "25P03", "25P04", "57P", "53300")
# The server temporarily cannot do something: no memory, no space, read-only (after a failover, or
# as a provider's answer to a full disk), system errors, damaged data. Not 53400: a limit that the
# statement itself has exceeded.
TROUBLE = ("25006", "53000", "53100", "53200", "58", "XX001", "XX002")


class Conflict(Exception):
    """The transaction lost against another one and can simply be repeated."""


@contextlib.contextmanager
def translated() -> Generator[None]:
    """Raise driver errors as duly's errors."""
    try:
        yield
    except CONFLICTS as error:
        raise Conflict from error
    except psycopg.Error as error:
        raise _translate(error) from error


@contextlib.contextmanager
def translated_if_ours(schema: str) -> Generator[None]:
    """In a user's transaction, translate only errors about the store itself.

    Other errors stay the driver's.
    """
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
    """After a lost answer the call may have taken effect, whichever error follows."""
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
        return errors.StoreUnavailable(f"PostgreSQL cannot serve the request: {text}")
    return errors.StoreError(text)


def is_lost(error: psycopg.Error) -> bool:
    """Whether the connection is lost, or the server is going down: any outcome is possible."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate.startswith(LOST)


# libpq gives no SQLSTATE for a connection that was not made. If the server's messages are in
# another language, it is treated as down, and its message is shown.
_REFUSED = re.compile(
    r"authentication failed|no password supplied|(role|user|database) .* does not exist"
    r"|no such (user|database)|no pg_hba\.conf entry|not permitted to log in|permission denied for"
    r"|not currently accepting|SSL|certificate|invalid (connection|channel|sslmode)"
)


def is_refused(error: psycopg.Error) -> bool:
    """Whether a server has answered, and will answer the same until someone changes a setting."""
    return _REFUSED.search(str(error)) is not None


def blame_one(error: BaseException) -> Blame:
    """The cause of an error in a mutation."""
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
