"""The audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from duly.server.api.common import Page
from duly.server.api.operation import require_all_owners
from duly.server.api.operations import AuditShape, audited
from duly.server.auth import Operator
from duly.server.dashboard.exports import Format, export, pages
from duly.server.dashboard.pages import PageRoute, Viewer, Viewing, render

router = APIRouter(route_class=PageRoute)

PAGE = 50
FILE_PAGE = 200
KINDS = (
    "schedule",
    "calendar",
    "job",
    "jobs",
    "function",
    "queue",
    "webhook",
    "endpoint",
    "gateway",
    "token",
)
"""The prefixes of actions; the filter accepts a prefix or a whole action."""
PAGES_OF = {
    "schedule": "/schedules/",
    "job": "/jobs/",
    "calendar": "/calendars/",
    "function": "/functions/",
    "gateway": "/gateways/",
    "webhook": "/webhooks/",
}
"""The page for each kind of target."""

Text = Annotated[str, Query(max_length=300)]


@router.get("/audit")
def audit(
    viewer: Viewing,
    who: Operator,
    target: Text = "",
    actor: Text = "",
    action: Text = "",
    before: str | None = None,
) -> Response:
    filters = {"target": target, "actor": actor, "action": action}
    page = _find(viewer, filters, before, PAGE)
    return render(
        viewer,
        "audit.html",
        page=page,
        addresses={entry.target: _address(entry.target) for entry in page.items},
        filters=filters,
        filtered=any(filters.values()),
        kinds=KINDS,
        before=before,
    )


@router.get("/audit.{format}")
def audit_file(
    viewer: Viewing,
    who: Operator,
    format: Format,
    target: Text = "",
    actor: Text = "",
    action: Text = "",
) -> Response:
    """The same list as a file."""
    filters = {"target": target, "actor": actor, "action": action}
    rows, complete = pages(lambda cursor: _find(viewer, filters, cursor, FILE_PAGE))
    return export(rows, "audit", format, complete=complete)


def _find(
    viewer: Viewer, filters: dict[str, str], before: str | None, limit: int
) -> Page[AuditShape]:
    require_all_owners(viewer.who)
    target, actor, action = (value or None for value in filters.values())
    return audited(viewer.app, target, before, limit, actor, action)


def _address(target: str) -> str | None:
    kind, _, name = target.partition(":")
    return PAGES_OF[kind] + name if kind in PAGES_OF and name else None
