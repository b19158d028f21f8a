"""The routes under /api/v1, one module for each noun."""

from duly.server.api import (
    calendars,
    conditions,
    endpoints,
    forecast,
    functions,
    gateways,
    jobs,
    operations,
    schedules,
    system,
    tokens,
    webhooks,
)

ROUTERS = (
    jobs.router,
    functions.router,
    schedules.router,
    calendars.router,
    conditions.router,
    forecast.router,
    operations.router,
    system.router,
    tokens.router,
    webhooks.router,
    endpoints.router,
    gateways.router,
)
