"""What the driver's errors mean."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import psycopg

from duly import errors
from duly.store.copy_mark import PREFIX

# What makes a transaction fail through no fault of its own.
CONFLICTS = (
    psycopg.errors.SerializationFailure,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
)


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
    return errors.StoreError(text)


def is_lost(error: BaseException) -> bool:
    """Whether the connection is gone, or the server going: any outcome is possible."""
    if isinstance(error, psycopg.errors.AdminShutdown | psycopg.errors.CrashShutdown):
        return True
    if isinstance(error, psycopg.errors.CannotConnectNow | psycopg.errors.TooManyConnections):
        return True
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and (
        error.sqlstate is None or error.sqlstate.startswith("08")
    )


def first_line(error: BaseException) -> str:
    """The first line of a message: psycopg appends hints and, on connect, every address tried."""
    return str(error).strip().split("\n")[0]
