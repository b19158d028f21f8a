"""Tools for testing applications and stores."""

from __future__ import annotations

import sys

# Failed asserts in a library show no values unless pytest rewrites them before the import.
if pytest := sys.modules.get("pytest"):
    pytest.register_assert_rewrite("duly.testing.conformance", "duly.testing.index_conformance")

from duly.clock import ManualClock
from duly.testing.conformance import StoreConformance
from duly.testing.index_conformance import ScheduleIndexConformance
from duly.testing.kit import (
    advance,
    assert_enqueued,
    assert_not_enqueued,
    async_ctx,
    ctx,
    drain,
    enqueued,
    override,
    tx,
)
from duly.testing.workflows import (
    History,
    approve,
    assert_steps,
    deliver,
    history,
    replay,
)

__all__ = [
    "History",
    "ManualClock",
    "ScheduleIndexConformance",
    "StoreConformance",
    "advance",
    "approve",
    "assert_enqueued",
    "assert_not_enqueued",
    "assert_steps",
    "async_ctx",
    "ctx",
    "deliver",
    "drain",
    "enqueued",
    "history",
    "override",
    "replay",
    "tx",
]
