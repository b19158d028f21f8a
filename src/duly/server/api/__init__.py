"""The operations under /api/v1: one module per noun, loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duly.server.api.operation import Operations

MODULES = {
    "jobs": "jobs",
    "workflows": "workflows",
    "functions": "functions",
    "schedules": "schedules",
    "calendars": "calendars",
    "conditions": "conditions",
    "forecast": "forecast",
    "forecast.ics": "forecast",
    "cron": "forecast",
    "queues": "operations",
    "workers": "operations",
    "doctor": "operations",
    "kill-switch": "operations",
    "audit": "operations",
    "system": "system",
    "tokens": "tokens",
    "webhooks": "webhooks",
    "endpoints": "endpoints",
    "gateways": "gateways",
    "observe": "gateways",
    "events": "events",
}
"""The modules by the first part of their paths."""


def operations_of(noun: str) -> Operations:
    """The operations whose paths start with this noun; KeyError if there are none."""
    operations: Operations = import_module(f"{__name__}.{MODULES[noun]}").api
    return operations


def all_operations() -> list[Operations]:
    return [operations_of(noun) for noun in {MODULES[each]: each for each in MODULES}.values()]
