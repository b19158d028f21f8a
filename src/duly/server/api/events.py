"""Live events as a stream of server-sent events.

Every event of the feed has an id. A client that reconnects with the last id it has seen (browsers
do so by themselves) gets everything that it missed, possibly with some events twice. If it missed
too much, a `gap` event tells it to reload. A stream for named jobs needs no ids: it starts with
their current states.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any

from msgspec import Meta

from duly.app import Duly, operations
from duly.clock import from_ms
from duly.errors import JobNotFound
from duly.model.access import Principal, Scope
from duly.model.job import Trigger
from duly.model.news import (
    AuditNews,
    Cursor,
    Gap,
    JobNews,
    News,
    NewsFilter,
    NewsItem,
    TickNews,
    read_cursor,
)
from duly.model.progress import Event
from duly.server.answers import Refused, iso
from duly.server.api.common import check_id, is_foreign, owner_of
from duly.server.api.jobs import visible
from duly.server.api.operation import Header, Operations, Reader, Stream

api = Operations("events")

HEARTBEAT_SECONDS = 15.0
MAX_JOBS = 100
RETRY_MS = 1_000


@api.get(
    "/events",
    media="text/event-stream",
    says="Events until the client disconnects: job, tick, change, gap.",
)
def events(
    app: Duly,
    who: Reader,
    job: Annotated[list[str], Meta(max_length=MAX_JOBS)] | None = None,
    schedule: str | None = None,
    owner: str | None = None,
    last_event_id: Annotated[str | None, Header("Last-Event-ID")] = None,
) -> Stream:
    """Stream live events: of some jobs, a schedule or an owner, or all events.

    A stream for named jobs starts with their current states and always includes their final states.
    """
    if job:
        for job_id in job:
            visible(app, who, job_id)
        return _jobs(app, job)
    if schedule is not None:
        _check_schedule(app, who, schedule)
    return _feed(app, _wanted(who, owner_of(who, owner), schedule), last_event_id)


def _check_schedule(app: Duly, who: Principal, schedule_id: str) -> None:
    record = operations.schedule(app, check_id(schedule_id, "schedule"))
    if record is None or is_foreign(who, record.owner):
        raise Refused(404, "schedule_not_found", f"no schedule has the id {schedule_id!r}")


def _wanted(who: Principal, owner: str | None, schedule: str | None) -> NewsFilter:
    # Changes by operators do not record an owner.
    sees_changes = owner is None and who.may(Scope.OPERATE)

    def wanted(news: News) -> bool:
        if isinstance(news, AuditNews):
            return sees_changes and (schedule is None or news.target == f"schedule:{schedule}")
        if owner is not None and (news.owner or "") != owner:
            return False
        return schedule is None or _schedule_of(news) == schedule

    return wanted


def _schedule_of(news: JobNews | TickNews) -> str | None:
    if isinstance(news, TickNews):
        return news.schedule_id
    return news.actor if news.trigger == Trigger.SCHEDULE else None


# Streams -----------------------------------------------------------------------------------------


async def _feed(app: Duly, wanted: NewsFilter, last: str | None) -> AsyncGenerator[str]:
    yield f"retry: {RETRY_MS}\n\n"
    cursor = None if last is None else read_cursor(last)
    lost = last is not None and cursor is None
    feed = operations.follow(app, wanted, cursor, idle=HEARTBEAT_SECONDS)
    async with contextlib.aclosing(feed) as heard:
        async for items, here in heard:
            if lost and here is not None:
                # Not earlier: events during the client's reload must be sent.
                lost = False
                yield _event("gap", {}, here)
            yield "".join(map(_text, items)) or _still_here(here)


def _text(item: NewsItem) -> str:
    news = item.news
    if isinstance(news, Gap):
        return _event("gap", {}, item.cursor)
    name = {JobNews: "job", TickNews: "tick", AuditNews: "change"}[type(news)]
    return _event(name, _content(news), item.cursor)


def _still_here(cursor: Cursor | None = None) -> str:
    """A keep-alive comment. Clients remember its id as the id of the last event."""
    return ": still here\n" + ("" if cursor is None else f"id: {cursor}\n") + "\n"


def _content(news: News) -> dict[str, Any]:
    content = {"at": iso(from_ms(news.at)), "at_ms": news.at}
    match news:
        case JobNews():
            value = news.look.progress
            progress = None if value is None else {"value": value, "note": news.note}
            return content | {
                "id": news.id,
                "function": news.function,
                "state": str(news.state),
                "queue": news.queue,
                "owner": news.owner,
                "attempt": news.attempt,
                "revision": news.look.revision,
                "schedule_id": _schedule_of(news),
                "progress": progress,
            }
        case TickNews():
            return content | {
                "schedule_id": news.schedule_id,
                "key": news.key,
                "owner": news.owner or None,
                "kind": news.kind,
                "tick_at": iso(from_ms(news.tick_at)),
                "tick_at_ms": news.tick_at,
                "outcome": news.outcome,
                "reason": news.reason,
                "job_id": news.job_id,
            }
        case AuditNews():
            return content | {"actor": news.actor, "action": news.action, "target": news.target}


async def _jobs(app: Duly, job_ids: Sequence[str]) -> AsyncGenerator[str]:
    """Each job's current state, every newer one, and its final one; then `end`."""
    yield f"retry: {RETRY_MS}\n\n"
    # For a slow reader, only the newest state of each job is kept.
    newest: dict[str, Event] = {}
    bell = asyncio.Event()

    async def watch(job_id: str) -> None:
        with contextlib.suppress(JobNotFound):
            async for event in app.aio.watch(job_id):
                newest[job_id] = event
                bell.set()

    watchers = [asyncio.ensure_future(watch(job_id)) for job_id in dict.fromkeys(job_ids)]
    for watcher in watchers:
        watcher.add_done_callback(lambda _: bell.set())
    try:
        while not all(watcher.done() for watcher in watchers) or newest:
            if not await _rings(bell):
                yield _still_here()
            bell.clear()
            while newest:
                job_id = next(iter(newest))
                yield _event("job", _state(job_id, newest.pop(job_id)))
        if not any(watcher.exception() for watcher in watchers):
            yield _event("end", {})
    finally:
        await stopped(*watchers)


async def _rings(bell: asyncio.Event) -> bool:
    """Whether it rings before a keep-alive is due."""
    try:
        async with asyncio.timeout(HEARTBEAT_SECONDS):
            return await bell.wait()
    except TimeoutError:
        return False


async def stopped(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _state(job_id: str, event: Event) -> dict[str, Any]:
    progress = None if event.progress is None else {"value": event.progress, "note": event.note}
    return {
        "id": job_id,
        "state": str(event.state),
        "attempt": event.attempt,
        "revision": event.revision,
        "progress": progress,
    }


def _event(name: str, content: dict[str, Any], cursor: Cursor | None = None) -> str:
    lines = [f"event: {name}", f"data: {json.dumps(content)}"]
    if cursor is not None:
        lines.append(f"id: {cursor}")
    return "\n".join(lines) + "\n\n"
