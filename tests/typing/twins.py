"""The awaited twins of sync verbs take what these take, and give what they give."""

from collections.abc import Sequence
from typing import Any, assert_type

from duly import (
    AsyncBatch,
    AsyncCalendars,
    AsyncCtx,
    AsyncJob,
    AsyncSchedules,
    BatchProgress,
    Ctx,
    Duly,
    Replay,
    Schedule,
    StoredCalendar,
    Tick,
    Tx,
)
from duly.calendars.views import TickChange
from duly.gateway import (
    AsyncBridgeClient,
    AsyncGateways,
    CronPage,
    GatewayCron,
    RegisteredGateway,
    RunAnswer,
)
from duly.index import ScheduleCollection, ScheduleRecord
from duly.observe.view import ObservedPage

app = Duly("sqlite:///:memory:")


@app.action
def post(ctx: Ctx, url: str) -> bytes:
    return b""


@app.mutation
def move(tx: Tx, account: int, amount: float = 1.0) -> bool:
    return True


async def use_schedules() -> None:
    schedules = app.aio.schedules
    assert_type(schedules, AsyncSchedules)
    assert_type(schedules.of("anna"), AsyncSchedules)
    made = await schedules.create("digest", post.bind("x"), cron="0 9 * * *", owner="anna")
    assert_type(made, Schedule)
    assert_type(await schedules.list(enabled=True, limit=5), list[Schedule])
    assert_type(await schedules.ticks(made), list[Tick])
    assert_type(await schedules.run("digest", inputs={"url": "x"}), Tick)
    await schedules.create("digest")  # error
    await schedules.create(5, post)  # error
    await schedules.create("digest", post, cron=9)  # error
    await schedules.create("digest", post, crons="0 9 * * *")  # error
    await schedules.list(True)  # error
    await schedules.list(limit="5")  # error
    await schedules.get()  # error
    await schedules.get("digest", by="anna")  # error
    await schedules.run("digest", inputs=[])  # error
    not_awaited: Schedule = schedules.get("digest")  # error
    schedules.remove("digest")  # error: not awaited
    text: str = await schedules.get("digest")  # error
    key: str = schedules.get("digest").key  # error
    del not_awaited, text, key


async def use_calendars(calendars: AsyncCalendars) -> None:
    assert_type(await calendars.get("plant closed"), StoredCalendar)
    assert_type(await calendars.list(), list[StoredCalendar])
    assert_type(await calendars.update("plant closed", version=3, tz="UTC"), StoredCalendar)
    assert_type(await calendars.changes("plant closed", 5, tz="UTC"), Sequence[TickChange])
    await calendars.create()  # error
    await calendars.create("plant closed", tz=1)  # error
    await calendars.update(calendar="plant closed")  # error: positional only
    await calendars.update("plant closed", zone="UTC")  # error
    not_awaited: StoredCalendar = calendars.get("plant closed")  # error
    calendars.remove("plant closed")  # error: not awaited
    del not_awaited


async def use_gateways(gateways: AsyncGateways, bridge: AsyncBridgeClient) -> None:
    assert_type(await gateways.add("north", "http://127.0.0.1:1"), RegisteredGateway)
    assert_type(await gateways.cron_run("north", "id", by="anna"), RunAnswer)
    assert_type(await bridge.cron_list(limit=5), CronPage)
    assert_type(await bridge.cron_update("id", enabled=False), GatewayCron)
    assert_type(await app.aio.observe.schedules(status="late"), ObservedPage)
    await gateways.add("north")  # error
    await gateways.cron_run("north", "id", modes="due")  # error
    await bridge.cron_list(5)  # error
    await bridge.cron_update("id", enabled="no")  # error
    await app.aio.observe.schedules(state="late")  # error
    page: CronPage = bridge.cron_list()  # error
    bridge.cron_remove("id")  # error: not awaited
    del page


async def use_others(ctx: AsyncCtx, batch: AsyncBatch, collection: ScheduleCollection) -> None:
    assert_type(await ctx.call(move, 1, amount=2.0), bool)
    assert_type(await batch.progress(), BatchProgress)
    assert_type(await batch.cancel(), int)
    assert_type(await batch.retry("failed"), Replay)
    assert_type([job async for job in batch.jobs("failed")], list[AsyncJob[Any]])
    assert_type(await collection.get("anna", "schedules/a"), ScheduleRecord | None)
    await ctx.call(move)  # error
    await ctx.call(move, 1, amounts=2.0)  # error
    await ctx.cost("much")  # error
    await batch.progress(1)  # error
    await collection.create("anna", "schedules/a")  # error
    await collection.list(5)  # error
    if batch.progress().done:  # error
        ctx.cost(1)  # error: not awaited
