"""An app that uses everything duly can store, and what it holds before it is moved.

Its functions note what they have done in a table of the user's, which has to be in each database:
the user's tables are the user's to move.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from duly import Ctx, Duly, Job, Limit, ManualClock, Retry, Tx, Unique, WorkflowCtx
from duly.functions.new_job import new_job
from duly.ids import new_id
from duly.model.access import RequestClaim
from duly.model.job import KeyedJob
from duly.model.measure import Count
from duly.store.table import Store
from tests.jobs.support import Database, ManualWorker, tidy
from tests.schedules.support import tick_all
from tests.server.hooked import send, wire

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
START = datetime(2026, 3, 2, 8, 55, tzinfo=UTC)


class House:
    """The app on one database, with a worker that works when told."""

    def __init__(self, url: str, clock: ManualClock) -> None:
        self.url, self.clock = url, clock
        self.app = Duly(url, clock=clock)
        self.app.migrate()
        self.db = Database(url)
        self.db.execute("CREATE TABLE IF NOT EXISTS notes (text text)")
        self.broken = True
        self.jobs: dict[str, Job[Any]] = {}
        self.secret = ""
        _register(self)

    def work(self) -> None:
        worker = ManualWorker(self.app)
        worker.work()
        worker.stop()

    def tick(self) -> None:
        tick_all(self.app)

    def close(self) -> None:
        self.db.close()
        self.app.close()


def _register(house: House) -> None:
    app = house.app

    @app.mutation
    def note(tx: Tx, text: str) -> str:
        tx.execute("INSERT INTO notes (text) VALUES (?)", (text,))
        return text

    @app.action(retry=Retry(attempts=3, delay=60, jitter=0))
    def flaky(ctx: Ctx, text: str) -> str:
        ctx.log(f"trying {text}")
        ctx.progress(0.5, "half of it")
        if house.broken:
            raise ValueError("not yet")
        ctx.call(note, text)
        return text

    @app.workflow
    def order(ctx: WorkflowCtx) -> str | None:
        first = ctx.step(note, "step")
        child = ctx.wait(ctx.run(note.using(queue="mail"), "child"))
        return f"{first} {child} {ctx.wait_for('packed')}"

    @app.action
    def fail(ctx: Ctx) -> None:
        raise ValueError("always")

    @app.action(limit=Limit("slow", rate=1, per=3600))
    def limited(ctx: Ctx, text: str) -> None:
        ctx.call(note, text)

    @app.action
    def costly(ctx: Ctx) -> None:
        ctx.cost(2.5)

    @app.mutation
    def all_done(tx: Tx, batch_id: str) -> None:
        tx.execute("INSERT INTO notes (text) VALUES ('all done')")

    app.schedule("declared", costly, cron="0 9 * * *", tz="Europe/Istanbul")
    wire(app)


def fill(house: House) -> None:
    """Put something into every table, and jobs into every state."""
    app, clock, call = house.app, house.clock, house.app.function
    app.schedules.apply()
    clock.advance((datetime(2026, 2, 20, 6, tzinfo=UTC).timestamp() * 1000 - clock.now()) / 1000)
    house.tick()
    house.work()
    # Long ago: retention has left a row of the newest job of the function, and of the day.
    clock.advance((START.timestamp() * 1000 - clock.now()) / 1000)
    tidy(app)

    app.calendars.of("ada").create("closed", "skip_dates", dates=["2027-03-04"])
    for key in ("daily", "paused"):
        bound = call("note").bind(key)
        app.schedules.create(key, bound, cron="0 9 * * *", calendar="closed", owner="ada")
    app.schedules.of("ada").disable("paused")
    app.schedules.create("often", call("note").bind("often"), every=300, catch_up=10)
    app.schedules.create("costs", call("costly"), every=300)

    house.jobs["succeeded"] = app.run(call("note"), "before")
    house.jobs["failed"] = app.run(call("fail"))
    house.jobs["retried"] = app.run(call("flaky"), "in the end")
    house.jobs["limited"] = app.run(call("limited"), "first")
    canceled = house.jobs["canceled"] = app.run_after(3600, call("note"), "never")
    canceled.cancel()
    app.queues.pause("mail", note="moving")
    house.jobs["order"] = app.run(call("order"))
    clock.advance(300)
    house.tick()
    house.work()

    keep = call("note").using(unique=Unique("k", "unfinished"), owner="ada", tags=["x"])
    house.jobs["unique"] = app.run_after(1800, keep, "unique")
    debounced = call("note").using(debounce=1800, unique=Unique("d"))
    house.jobs["pending"] = app.run(debounced, "debounced")
    house.jobs["idempotent"] = app.run(call("note").using(idempotency_key="i"), "idempotent")
    house.jobs["waiting"] = app.run(call("limited"), "second")
    app.batch([call("note").bind(f"member {n}") for n in range(3)], on_complete=call("all_done"))
    send(app, delivery="d-1")
    app.queues.limit("reports", 2)
    app.send(house.jobs["order"], "packed", 5, once="k")
    house.jobs["paused"] = app.run(call("note").using(queue="mail"), "mail")
    house.secret = app.tokens.create("ci", ["read"]).secret
    app.endpoints.create("shop", "https://shop.example/hook", secret="env:SHOP")
    app.gateways.add("edge", "http://edge.example:8700", secret="env:EDGE")
    _fill_the_rest(app.store, app, clock.now())


def _fill_the_rest(store: Store, app: Duly, now: int) -> None:
    store.claim_request(RequestClaim("ada", "key", "print", new_id(now), now + 86_400_000))
    store.add_counts([Count("jobs", '{"function":"note"}', 7)])
    job = new_job(app.function("note").bind("traced"), now, now, None)
    store.enqueue([KeyedJob(**msgspec.structs.asdict(job), trace=TRACE)])
