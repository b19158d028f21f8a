"""Builds the project's app from Django's settings."""

# Django has no type hints.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings as _settings
from django.core.exceptions import ImproperlyConfigured
from django.db import Error
from django.db import connections as _connections
from django.utils import module_loading as _module_loading

from duly.app import Duly
from duly.app.program import AppProgram
from duly.calls.async_tx import AsyncTx
from duly.calls.context import Bound
from duly.contrib.django.database import LateStore, late_store
from duly.functions.function import Function
from duly.runtime.program import RunningAttempt
from duly.store.base import StoreTx
from duly.store.table import Store

settings: Any = _settings
connections: Any = _connections
module_loading: Any = _module_loading

DISCOVER = "duly.contrib.django.discover"


class DjangoProgram(AppProgram):
    """Manages the Django connections of functions; its store follows the settings."""

    alias: str = "default"

    def bind(self, function: Function[..., Any]) -> Bound:
        return DjangoBound(self, function)

    def ready(self) -> Store:
        self._follow()
        store = super().ready()
        late = self._late()
        return late.made() if late else store

    def migrate(self) -> list[str]:
        self._follow()
        return super().migrate()

    def _follow(self) -> None:
        late = self._late()
        if late and late.leave_renamed():
            self._ready_in = None

    def _late(self) -> LateStore | None:
        # A test may have replaced the store.
        store: object = self.store
        return store if isinstance(store, LateStore) else None


class App(Duly):
    """The app of a Django project; created by `make_app`."""

    _store_maker = staticmethod(late_store)
    _program_type = DjangoProgram
    manage: Sequence[str] | None = None
    """How manage.py or django-admin was called with the command `duly`."""

    def __init__(self, alias: str, **options: Any) -> None:
        super().__init__(alias, **options)
        assert isinstance(self.core, DjangoProgram)
        self.core.alias = alias
        self.found_at = "duly.contrib.django:app"
        self.owns_logging = bool(settings.LOGGING)

    def command(self) -> list[str] | None:
        if self.manage is None:
            return super().command()
        return [sys.executable, *self.manage]


def make_app() -> App:
    """The app that `settings.DULY` describes; by default, in the default database."""
    given: Mapping[str, Any] = getattr(settings, "DULY", {})
    _check_names(given)
    options = {key.lower(): value for key, value in given.items()}
    alias = options.pop("database", "default")
    if alias not in settings.DATABASES:
        raise ImproperlyConfigured(f"DULY: DATABASES has no {alias!r}")
    if isinstance(lifespan := options.get("worker_lifespan"), str):
        options["worker_lifespan"] = partial(_call_by_path, lifespan)
    options["imports"] = [DISCOVER, *options.get("imports", ())]
    return App(alias, **options)


def _call_by_path(path: str, app: Duly) -> Any:
    """Settings cannot import code that needs them, so it is imported when a worker starts."""
    return module_loading.import_string(path)(app)


def _check_names(given: Mapping[str, Any]) -> None:
    options = inspect.signature(Duly.__init__).parameters.keys() - {"self", "url"}
    known = {"DATABASE", *(option.upper() for option in options)}
    if unknown := sorted(given.keys() - known):
        names = ", ".join(sorted(known))
        raise ImproperlyConfigured(f"DULY: unknown {', '.join(unknown)}; use some of {names}")


# ORM connections ---------------------------------------------------------------------------------


class DjangoBound(Bound):
    """Does around each body what Django does around each request."""

    def call_action(self, running: RunningAttempt, arguments: Mapping[str, Any]) -> object:
        close_old_connections()
        try:
            return super().call_action(running, arguments)
        finally:
            close_old_connections()

    def call_mutation(
        self, running: RunningAttempt, tx: StoreTx, arguments: Mapping[str, Any], shared: bool
    ) -> object:
        close_old_connections()
        try:
            return super().call_mutation(running, tx, arguments, shared)
        finally:
            close_old_connections()

    async def await_body(self, arguments: Mapping[str, Any], tx: AsyncTx) -> object:
        close: Any = sync_to_async(close_old_connections)
        await close()
        try:
            return await super().await_body(arguments, tx)
        finally:
            await close()

    async def call_async(self, running: RunningAttempt, arguments: Mapping[str, Any]) -> object:
        # Async code uses the ORM through sync_to_async, which runs in an asgiref thread.
        close: Any = sync_to_async(close_old_connections)
        await close()
        try:
            return await super().call_async(running, arguments)
        finally:
            await close()


def close_old_connections() -> None:
    """Django's version would also close a connection in a transaction, such as a test's."""
    for connection in connections.all(initialized_only=True):
        # A connection that cannot even be closed must not affect the outcome of a job.
        with suppress(Error):
            if not connection.in_atomic_block:
                connection.close_if_unusable_or_obsolete()
