"""The dashboard: pages for people, over the same functions as the HTTP API.

Every page is a plain GET and every action a plain form, so that all of it works without
JavaScript. A view is a module in views/ with a router of its own; see pages.py for what they share.
"""

from fastapi import APIRouter

from duly.server.dashboard import live, login, static
from duly.server.dashboard.views import (
    audit,
    calendars,
    functions,
    gateways,
    jobs,
    overview,
    queues,
    schedule,
    schedules,
    tokens,
    webhooks,
    workers,
)

PARTS = (
    *(static, login, live),
    *(overview, schedules, schedule, jobs, webhooks),
    *(functions, calendars, queues, workers, gateways),
    *(audit, tokens),
)

router = APIRouter()
for part in PARTS:
    router.include_router(part.router)
