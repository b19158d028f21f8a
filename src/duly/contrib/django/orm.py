"""Runs Django's ORM inside the transaction of a mutation.

During the block, the thread's connection of that alias is replaced by another object, which uses
the driver connection of the transaction and behaves as if inside `transaction.atomic()`. So it
opens savepoints, and never commits, rolls back or closes.
"""

# Django has no type hints.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from duly.calls.async_tx import AsyncTx
from duly.errors import InvalidOption, TransactionEnded

if TYPE_CHECKING:
    from duly.calls.context import Tx

# It is undone when the transaction ends.
_SET_TIME_ZONE = "SELECT set_config('TimeZone', %s, true)"


@contextmanager
def atomic(tx: Tx) -> Generator[None]:
    """`with atomic(tx):` lets the ORM write in the transaction of `tx`, in a savepoint.

    Its changes are committed with the rest of the mutation, and undone if the block raises.
    """
    from django.db import connections as handler
    from django.db.transaction import TransactionManagementError

    connections: Any = handler
    alias = _alias_of(tx)
    raw = tx.connection
    with tx.savepoint():
        own = connections[alias]
        borrowed = _borrow(own, connections.create_connection(alias), raw)
        connections[alias] = borrowed
        try:
            yield
            if borrowed.needs_rollback:
                raise TransactionManagementError(
                    "the ORM asked for a rollback inside atomic(tx); raise an exception instead"
                ) from borrowed.rollback_exc
        finally:
            connections[alias] = own
            _take_back(borrowed)


def _alias_of(tx: Tx | AsyncTx) -> str:
    from duly.contrib.django.project import DjangoProgram

    if isinstance(tx, AsyncTx):
        raise InvalidOption(
            "atomic", "needs a sync mutation: Django's ORM has no async transactions"
        )
    core = tx._core  # pyright: ignore[reportPrivateUsage]
    if not isinstance(core, DjangoProgram):
        raise InvalidOption("atomic", "takes a tx of the app in duly.contrib.django")
    return core.alias


def _borrow(own: Any, wrapper: Any, raw: Any) -> Any:
    from django.db.transaction import Atomic

    if wrapper.vendor == "postgresql":
        _set_time_zone(wrapper, raw)
        djangos = wrapper.get_connection_params()["cursor_factory"]
        raw = BorrowedConnection(raw, _adapters_of(own), _cursor_type(djangos))
    wrapper.connection = raw
    wrapper.autocommit = False
    wrapper.in_atomic_block = True
    # So that atomic(durable=True) is refused.
    wrapper.atomic_blocks = [Atomic(wrapper.alias, True, False)]
    # Django's handling of old connections must not affect this one.
    wrapper.close = _do_nothing
    wrapper.on_commit = _refuse_on_commit
    # A server-side cursor could outlive the block.
    wrapper.settings_dict = {**wrapper.settings_dict, "DISABLE_SERVER_SIDE_CURSORS": True}
    return wrapper


def _take_back(wrapper: Any) -> None:
    """Code that has kept objects of the block cannot use them any more."""
    wrapper.connection = None
    wrapper.connect = _refuse_to_connect


def _do_nothing() -> None:
    pass


def _refuse_to_connect() -> NoReturn:
    raise TransactionEnded(
        "the block of atomic(tx) has ended; use its connection only inside the block"
    )


def _refuse_on_commit(func: Callable[[], object], robust: bool = False) -> NoReturn:
    raise InvalidOption(
        "transaction.on_commit",
        "does not work in a mutation; enqueue a job with tx.run, which is committed with it",
    )


# PostgreSQL --------------------------------------------------------------------------------------


def _set_time_zone(wrapper: Any, raw: Any) -> None:
    """Django shows every instant in the zone that it has set, whatever its original zone."""
    zone = wrapper.timezone_name
    if zone and raw.info.parameter_status("TimeZone") != zone:
        raw.execute(_SET_TIME_ZONE, [zone])


class BorrowedConnection:
    """A psycopg connection of which only the cursors are Django's."""

    def __init__(self, raw: Any, adapters: Any, cursor_type: Any) -> None:
        self._raw = raw
        self._cursor_type = cursor_type
        self.adapters = adapters

    def cursor(self) -> Any:
        return self._cursor_type(self._raw, self.adapters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


# Adapters that Django, its apps and the project register on connections, by alias and database.
_adapters: dict[tuple[str, str], Any] = {}


def _adapters_of(own: Any) -> Any:
    where = own.alias, own.settings_dict["NAME"]
    if where not in _adapters:
        own.ensure_connection()
        _adapters[where] = _copy(own.connection.adapters)
    return _adapters[where]


def _copy(adapters: Any) -> Any:
    return type(adapters)(adapters)


@lru_cache
def _cursor_type(djangos: Any) -> Any:
    def init(self: Any, raw: Any, adapters: Any) -> None:
        self.own_adapters = _copy(adapters)
        djangos.__init__(self, raw)

    adapters = property(lambda self: self.own_adapters)
    return type("Cursor", (djangos,), {"__init__": init, "adapters": adapters})
