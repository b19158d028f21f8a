"""Removes redacted values from job records and arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from duly.clock import os_monotonic
from duly.functions.known_functions import STATUS_SECONDS, KnownFunctions
from duly.model.job import JobRecord
from duly.model.redact import ALL_NAMES, mask, redacted_in
from duly.model.stored_values import read
from duly.store.table import Store

UNREADABLE: dict[str, Any] = {}


class Redaction:
    """Hides redacted arguments of a function, wherever its code is."""

    def __init__(self, functions: KnownFunctions, ready: Callable[[], Store]) -> None:
        self._functions = functions
        self._ready = ready
        self._elsewhere: dict[str, tuple[float, frozenset[str]]] = {}
        """The redacted arguments of other services' functions, and until when they are fresh."""

    def forget(self) -> None:
        self._elsewhere.clear()

    def shown(self, record: JobRecord) -> JobRecord:
        """The record without its redacted arguments."""
        return _masked(record, self._redacted(record.function))

    def shown_all(self, records: Sequence[JobRecord]) -> Sequence[JobRecord]:
        """The same for a list; the store is queried once for each function."""
        hidden = {name: self._redacted(name) for name in {each.function for each in records}}
        return [_masked(record, hidden[record.function]) for record in records]

    def shown_arguments(self, function: str, args: str) -> dict[str, Any]:
        """Arguments without the redacted ones."""
        names = self._redacted(function)
        return read(mask(args, names), dict[str, Any], {})

    def _redacted(self, name: str) -> frozenset[str]:
        known = self._functions.known(name)
        if known is not None and known.signature.is_sound():
            return known.signature.redacted
        return self._by_declaration(name) | self._by_publication(name)

    def _by_declaration(self, name: str) -> frozenset[str]:
        declared = self._functions.declared.get(name)
        if declared is None or not declared.signature.is_sound():
            return frozenset()
        return declared.signature.redacted

    def _by_publication(self, name: str) -> frozenset[str]:
        cached = self._elsewhere.get(name)
        if cached is not None and os_monotonic() < cached[0]:
            return cached[1]
        info = self._ready().function(name)
        if info is None:
            # Do not cache this: it may be published at any time.
            return frozenset()
        schema = read(info.schema, dict[str, Any], UNREADABLE)
        names = ALL_NAMES if schema is UNREADABLE else redacted_in(schema)
        self._elsewhere[name] = os_monotonic() + STATUS_SECONDS, names
        return names


def _masked(record: JobRecord, names: frozenset[str]) -> JobRecord:
    if not names:
        return record
    return msgspec.structs.replace(record, args=mask(record.args, names))
