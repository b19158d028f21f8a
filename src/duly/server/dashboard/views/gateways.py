"""Gateways: other runtimes, and the controls for their crons."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from duly.clock import to_ms
from duly.errors import DulyError
from duly.model.durations import read_length, write_length
from duly.server.answers import Refused, readable
from duly.server.api import gateways as api
from duly.server.auth import Admin, Operator
from duly.server.dashboard.exports import Format, export, pages
from duly.server.dashboard.forms import Form, body_of
from duly.server.dashboard.pages import PageRoute, Sent, Viewer, Viewing, once, redirect, render
from duly.server.dashboard.views.edit import instant, local
from duly.server.slow_requests import Waiting

router = APIRouter(route_class=PageRoute)

PAGE = 50
FILE_PAGE = 200
KINDS = ("cron", "every", "at")


# List --------------------------------------------------------------------------------------------


@router.get("/gateways")
def gateways(viewer: Viewing, after: str | None = None) -> Response:
    return _list(viewer, after)


def _list(viewer: Viewer, after: str | None = None, status: int = 200, **more: Any) -> Response:
    values = dict.fromkeys(("name", "url", "secret", "owner"), "")
    return render(
        viewer,
        "gateways.html",
        status,
        page=api.find(viewer.app, viewer.who, after=after, limit=PAGE),
        after=after,
        ms=_ms,
        can_add=viewer.may("admin") and viewer.who.owner is None,
        **{"values": values, "error": None} | more,
    )


@router.get("/gateways.{format}")
def gateways_file(viewer: Viewing, format: Format) -> Response:
    """The same list as a file."""
    rows, complete = pages(
        lambda cursor: api.find(viewer.app, viewer.who, after=cursor, limit=FILE_PAGE)
    )
    return export(rows, "gateways", format, complete=complete)


@router.post("/gateways")
def add(request: Request, viewer: Viewing, who: Admin, form: Sent) -> Response:
    values = {name: form.text(name) for name in ("name", "url", "secret", "owner")}
    try:
        given = {name: value or None for name, value in values.items()}
        body = body_of(api.NewGatewayBody, **given)
        made = api.add(viewer.app, who, once(viewer), body)
    except (DulyError, Refused) as error:
        return _list(viewer, status=422, values=values, error=str(error))
    return redirect(request, f"/gateways/{made.id}", "Gateway registered")


@router.post("/gateways/{gateway_id}/remove")
def remove(request: Request, viewer: Viewing, who: Admin, gateway_id: str, form: Sent) -> Response:
    name = api.get(viewer.app, who, gateway_id).name
    api.remove(viewer.app, who, gateway_id)
    return redirect(request, "/gateways", f"{name} removed; the gateway itself keeps running")


def _ms(instant: datetime | None) -> int | None:
    return None if instant is None else to_ms(instant)


# Detail ------------------------------------------------------------------------------------------


@router.get("/gateways/{gateway_id}")
async def gateway(viewer: Viewing, waiting: Waiting, gateway_id: str) -> Response:
    """Asks the gateway for its crons; if it does not respond, shows its last known state."""
    return await _page(viewer, waiting, gateway_id)


async def _page(
    viewer: Viewer, waiting: Waiting, gateway_id: str, status: int = 200, **more: Any
) -> Response:
    found = await waiting(gateway_id, lambda: api.crons(viewer.app, viewer.who, gateway_id))
    values = {cron.id: _values(viewer, cron) for cron in found.crons}
    given = {"error": None, "opened": None, "new": _new(viewer)}
    return render(
        viewer,
        "gateway.html",
        status,
        gateway=found,
        values=values | more.pop("edited", {}),
        kinds=KINDS,
        ms=_ms,
        words=_words,
        **given | more,
    )


def _new(viewer: Viewer) -> dict[str, str]:
    empty = dict.fromkeys(("handler", "name", "cron", "every", "at"), "")
    return empty | {"kind": "cron", "tz": viewer.tz, "payload": "{}"}


def _values(viewer: Viewer, cron: api.GatewayCronShape) -> dict[str, str]:
    """The fields of a cron's form, filled with its current values."""
    schedule = cron.schedule
    every = schedule.get("every_ms")
    return {
        "handler": cron.handler,
        "name": cron.name,
        "kind": str(schedule.get("kind", "")),
        "cron": str(schedule.get("cron", "")),
        "tz": cron.tz,
        "every": write_length(every) if isinstance(every, int) else "",
        "at": local(_at(schedule), viewer.zone),
        "payload": json.dumps(readable(cron.payload), indent=2, ensure_ascii=False),
    }


def _at(schedule: dict[str, Any]) -> int | None:
    """The time of a one-off cron; gateways write it in many ways, and not all are read here."""
    try:
        return to_ms(datetime.fromisoformat(str(schedule["at"])))
    except (KeyError, ValueError, DulyError):
        return None


def _words(cron: api.GatewayCronShape) -> str:
    schedule = cron.schedule
    match schedule.get("kind"):
        case "cron":
            return str(schedule.get("cron"))
        case "every" if isinstance(schedule.get("every_ms"), int):
            return f"every {write_length(schedule['every_ms'])}"
        case kind:
            return f"{kind} {schedule.get('at', '')}"


# Cron actions ------------------------------------------------------------------------------------


@router.post("/gateways/{gateway_id}/crons")
async def cron_add(
    request: Request,
    viewer: Viewing,
    who: Operator,
    waiting: Waiting,
    gateway_id: str,
    form: Sent,
) -> Response:
    try:
        body = body_of(
            api.NewCronBody,
            handler=form.text("handler"),
            name=form.given("name"),
            schedule=_schedule(viewer, form, viewer.tz),
            payload=form.object("payload"),
            enabled=form.given("enabled") is not None,
        )
        made = await waiting(
            gateway_id, lambda: api.cron_add(viewer.app, who, once(viewer), gateway_id, body)
        )
    except (DulyError, Refused) as error:
        await _known(viewer, gateway_id)
        new = {name: form.text(name) for name in _new(viewer)}
        more = {"error": str(error), "opened": "new", "new": new}
        return await _page(viewer, waiting, gateway_id, 422, **more)
    return redirect(request, f"/gateways/{gateway_id}", f"Cron {made.name} created")


@router.post("/gateways/{gateway_id}/crons/{cron_id}/edit")
async def cron_update(
    request: Request,
    viewer: Viewing,
    who: Operator,
    waiting: Waiting,
    gateway_id: str,
    cron_id: str,
    form: Sent,
) -> Response:
    known = await _known(viewer, gateway_id)
    try:
        body = _changes(viewer, known, cron_id, form)
        await waiting(
            gateway_id, lambda: api.cron_update(viewer.app, who, gateway_id, cron_id, body)
        )
    except (DulyError, Refused) as error:
        written = {name: form.text(name) for name in _new(viewer)}
        more = {"error": str(error), "opened": cron_id, "edited": {cron_id: written}}
        return await _page(viewer, waiting, gateway_id, 422, **more)
    return redirect(request, f"/gateways/{gateway_id}", "Cron saved")


@router.post("/gateways/{gateway_id}/crons/{cron_id}/{verb}")
async def cron_act(
    request: Request,
    viewer: Viewing,
    who: Operator,
    waiting: Waiting,
    gateway_id: str,
    cron_id: str,
    verb: str,
    form: Sent,
) -> Response:
    """Enable, disable, run or remove it."""
    cron = viewer.app, who, gateway_id, cron_id
    kind = "done"
    match verb:
        case "enable" | "disable":
            body = api.CronChangesBody(enabled=verb == "enable")
            made = await waiting(gateway_id, lambda: api.cron_update(*cron, body))
            text = f"Cron {made.name} {verb}d"
        case "run" | "run-due":
            mode = api.RunCronBody(mode="due" if verb == "run-due" else "force")
            ran = await waiting(gateway_id, lambda: api.cron_run(*cron, mode))
            text = "The cron is running" if ran.ran else f"The cron did not run: {ran.reason}"
            kind = "done" if ran.ran else "failed"
        case "remove":
            removed = (await waiting(gateway_id, lambda: api.cron_remove(*cron))).removed
            text = "Cron removed" if removed else "The cron no longer exists"
        case _:
            raise Refused(404, "not_found", "there is no such action")
    return redirect(request, f"/gateways/{gateway_id}", text, kind)


async def _known(viewer: Viewer, gateway_id: str) -> api.GatewayShape:
    """The gateway's last known state; it is not contacted."""
    return await run_in_threadpool(api.get, viewer.app, viewer.who, gateway_id)


def _changes(
    viewer: Viewer, gateway: api.GatewayShape, cron_id: str, form: Form
) -> api.CronChangesBody:
    """Only the fields that differ from the cron: a schedule may hold more than the form shows."""
    cron = next((each for each in gateway.crons if each.id == cron_id), None)
    before = {} if cron is None else _values(viewer, cron)
    changed = {name for name in _new(viewer) if form.text(name) != before.get(name)}
    fields: dict[str, Any] = {}
    if changed & {"kind", "cron", "tz", "every", "at"}:
        fields["schedule"] = _schedule(viewer, form, before.get("tz", ""))
    if "payload" in changed:
        fields["payload"] = form.object("payload") or {}
    fields |= {name: form.given(name) for name in changed & {"handler", "name"}}
    return body_of(api.CronChangesBody, **fields)


def _schedule(viewer: Viewer, form: Form, shown_tz: str) -> dict[str, Any]:
    """The schedule in the form; `shown_tz` is the zone in which it was shown."""
    tz = form.text("tz") or "UTC"
    match form.text("kind"):
        case "cron":
            return {"kind": "cron", "cron": form.text("cron"), "tz": tz}
        case "every":
            every_ms = read_length(form.text("every"))
            if every_ms is None:
                raise Refused(422, "invalid", "every: write for example 5m or 1h30m", field="every")
            # The field is hidden, and the gateway keeps the zone that it has.
            zoned = {} if tz == shown_tz else {"tz": tz}
            return {"kind": "every", "every_ms": every_ms, **zoned}
        case "at":
            at = instant(form, "at", viewer.zone)
            if at is None:
                raise Refused(422, "invalid", "at: give a date and a time", field="at")
            return {"kind": "at", "at": at.isoformat()}
        case other:
            known = ", ".join(KINDS)
            raise Refused(422, "invalid", f"kind: give one of {known}, not {other!r}")
