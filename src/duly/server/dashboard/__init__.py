"""The dashboard: web pages on top of the same functions as the HTTP API.

Every page is a plain GET and every action a plain form, so everything works without JavaScript.
Each view is a module in views/ with its own router; pages.py holds the code that they share.
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
    runs,
    schedule,
    schedules,
    tokens,
    webhooks,
    workers,
)

PARTS = (
    *(static, login, live),
    *(overview, schedules, schedule, jobs, runs, webhooks),
    *(functions, calendars, queues, workers, gateways),
    *(audit, tokens),
)

router = APIRouter()
for part in PARTS:
    router.include_router(part.router)
