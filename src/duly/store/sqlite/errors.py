"""Translates the driver's errors."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Generator

from duly import errors
from duly.store.base import Blame
from duly.store.copy_mark import PREFIX
from duly.store.turnstile import WAIT_SECONDS

_BLAME = {
    "SQLITE_BUSY": Blame.LOCK,
    "SQLITE_LOCKED": Blame.LOCK,
    "SQLITE_CANTOPEN": Blame.DATABASE,
    "SQLITE_CORRUPT": Blame.DATABASE,
    "SQLITE_FULL": Blame.DATABASE,
    "SQLITE_IOERR": Blame.DATABASE,
    "SQLITE_NOMEM": Blame.DATABASE,
    "SQLITE_NOTADB": Blame.DATABASE,
    "SQLITE_PROTOCOL": Blame.DATABASE,
    "SQLITE_READONLY": Blame.DATABASE,
}

FILE_ERRORS: dict[int, type[errors.StoreError]] = {
    errno.EACCES: errors.StoreReadOnly,
    errno.EPERM: errors.StoreReadOnly,
    errno.EROFS: errors.StoreReadOnly,
    errno.ENOSPC: errors.StoreFull,
}


@contextlib.contextmanager
def translated(where: str) -> Generator[None]:
    """Raise driver errors as duly's errors."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, where) from error


@contextlib.contextmanager
def translated_if_ours(where: str) -> Generator[None]:
    """In a user's transaction, translate only errors about the store itself.

    Other errors stay the driver's.
    """
    try:
        yield
    except sqlite3.Error as error:
        meaning = translate(error, where)
        if type(meaning) is errors.StoreError:
            raise
        raise meaning from error


@contextlib.contextmanager
def translated_locks(where: str) -> Generator[None]:
    """Errors of the lock files next to the database."""
    try:
        yield
    except OSError as error:
        kind = FILE_ERRORS.get(error.errno or 0, errors.StoreUnavailable)
        raise kind(f"{where}: {error.filename}: {error.strerror}") from error


def translate(error: Exception, where: str) -> Exception:
    if not isinstance(error, sqlite3.Error):
        return error
    name, text = code_of(error), str(error)
    if text.startswith(PREFIX):
        return errors.StoreMoved(text.removeprefix("duly: "))
    if "no such table" in text and "duly_" in text:
        return errors.NotMigrated(f"{where}: {text}; run `duly migrate`")
    if name in ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL"):
        return errors.StoreUnavailable(
            f"{where} was locked for {WAIT_SECONDS:g} s; is a transaction left open somewhere?"
        )
    if name == "SQLITE_FULL":
        return errors.StoreFull(f"{where}: {text}; free some space, nothing was written")
    if name == "SQLITE_READONLY":
        return errors.StoreReadOnly(f"{where}: {text}; check the file's and folder's permissions")
    if name in ("SQLITE_IOERR", "SQLITE_CANTOPEN"):
        return errors.StoreUnavailable(f"{where}: {text}")
    return errors.StoreError(f"{where}: {text}")


def blame_one(error: BaseException) -> Blame:
    """The cause of an error in a mutation; a body already holds the write lock."""
    if isinstance(error, sqlite3.Error):
        return _BLAME.get(code_of(error), Blame.BODY)
    if isinstance(error, errors.StoreUnavailable):
        return Blame.CONFLICT
    if isinstance(error, errors.StoreError) and not isinstance(error, errors.QueryTooBroad):
        return Blame.DATABASE
    return Blame.BODY


def code_of(error: BaseException) -> str:
    """The primary result code, which is the start of an extended code's name."""
    name = getattr(error, "sqlite_errorname", None) or ""
    return "_".join(name.split("_")[:2])
