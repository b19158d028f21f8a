"""Tickers and callers that do not have the code of a function, or the signal hook of an app."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from starlette.testclient import TestClient

from duly import Ctx, Duly, Limit, ManualClock, Retry, Unique
from duly.clock import from_ms
from duly.errors import InvalidOption
from duly.runtime.ticker import Ticker
from duly.server import make_asgi
from tests.jobs.support import Database
from tests.schedules.support import ledger, tick_all, utc

HOUR = 3600
COLUMNS = """function, kind, queue, priority, timeout_ms, expires_at - run_at, retry, tags, owner,
    unique_key, pending_key, limit_key, limits, hold"""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def bare(app: Duly, url: str, clock: ManualClock) -> Iterator[Duly]:
    """The same app in a process that has none of its code."""
    other = Duly(url, clock=clock)
    yield other
    other.close()


Options = dict[str, Any]
SAME: Options = {"queue": "mail", "timeout": 7, "retry": Retry(attempts=3), "tags": ("t",)}
OPTIONS: dict[str, Options] = {
    "alone": SAME,
    "expiring": SAME | {"expires": 60, "priority": 2, "owner": "o"},
    "single": SAME | {"unique": Unique("one")},
    "limited": SAME | {"limit": Limit("key", at_once=1)},
    "debounced": SAME | {"debounce": 5},
}


def ticked(app: Duly, clock: ManualClock, key: str) -> None:
    clock.advance(HOUR)
    tick_all(app)


def run_now(app: Duly, clock: ManualClock, key: str) -> None:
    clock.advance(HOUR)
    app.schedules.run(key)


def backfilled(app: Duly, clock: ManualClock, key: str) -> None:
    clock.advance(HOUR)
    now = from_ms(clock.now())
    app.schedules.backfill(key, now - timedelta(hours=1), now)


def called(app: Duly, clock: ManualClock, key: str) -> None:
    function = app.function(key.split()[0])
    app.run(function.using(priority=9) if key.endswith("urgent") else function)


@pytest.mark.parametrize("way", [ticked, run_now, backfilled, called])
def test_jobs_are_stored_as_if_the_code_were_there(
    app: Duly, bare: Duly, clock: ManualClock, db: Database, way: Callable[..., None]
):
    @app.action(queue="hooks", priority=8, timeout=9, tags=("h",), limit=Limit("h", at_once=1))
    def after(ctx: Ctx, job_id: str) -> None: ...

    def define(name: str, **options: Any) -> Any:
        @app.action(name=name, **options)
        def work(ctx: Ctx) -> None: ...

        return work

    functions = [define(name, **options) for name, options in OPTIONS.items()]
    functions += [
        define(f"{name}-hooked", on_complete=after, **options) for name, options in OPTIONS.items()
    ]
    app.functions.publish()

    def stored_by(by: Duly, key: str) -> list[Any]:
        way(by, clock, key)
        rows = db.execute(f"SELECT {COLUMNS} FROM @jobs ORDER BY function")
        for table in ("@jobs", "@keys", "@slots"):
            db.execute(f"DELETE FROM {table}")
        return rows

    targets = {function.name: function for function in functions}
    targets |= {f"{f.name} urgent": f.using(priority=9) for f in functions}
    for key, target in targets.items():
        app.schedules.create(key, target, cron="0 * * * *", overlap="allow")
        expected = stored_by(app, key)
        assert len(expected) == (2 if "hooked" in key else 1)
        assert stored_by(bare, key) == expected, key
        app.schedules.remove(key)


def test_a_server_without_the_code_stores_the_same(app: Duly, bare: Duly, db: Database):
    @app.action(queue="hooks", priority=8)
    def after(ctx: Ctx, job_id: str) -> None: ...

    @app.action(**OPTIONS["limited"], on_complete=after)
    def send(ctx: Ctx) -> None: ...

    app.functions.publish()
    stored: list[Any] = []
    for each in (app, bare):
        with TestClient(make_asgi(each, auth="open")) as client:
            body = {"function": "send", "options": {"priority": 9}}
            assert client.post("/api/v1/jobs", json=body).status_code == 201
        stored.append(db.execute(f"SELECT {COLUMNS} FROM @jobs ORDER BY function"))
        db.execute("DELETE FROM @jobs")
    assert stored[0] == stored[1]
    assert [row[2] for row in stored[1]] == ["hooks", "mail"]


def options_of(app: Duly, key: str) -> Any:
    return json.loads(app.schedules.get(key).record.options)


def test_a_schedule_keeps_no_options_of_its_function(
    app: Duly, bare: Duly, url: str, clock: ManualClock, db: Database
):
    @app.action(**OPTIONS["limited"])
    def send(ctx: Ctx) -> None: ...

    app.functions.publish()
    urgent = bare.function("send").using(priority=9)
    app.schedules.create("here", send.using(priority=9), cron="0 * * * *")
    bare.schedules.create("there", bare.function("send"), cron="0 * * * *")
    bare.schedules.create("urgent", urgent, cron="0 * * * *")

    later = Duly(url, clock=clock)
    later.action(name="send", **OPTIONS["limited"] | {"queue": "post", "priority": 9})(send.body)
    for which in (bare, later):
        for key, options in {
            "here": {"priority": 9},
            "there": {},
            "urgent": {"priority": 9},
        }.items():
            which.schedules.update(key, cron="5 * * * *")
            assert options_of(app, key) == options
    later.functions.publish()
    clock.advance(HOUR + 300)
    tick_all(later)
    assert set(db.execute("SELECT queue, priority FROM @jobs")) == {("post", 9)}
    with pytest.raises(InvalidOption, match="limit"):
        bare.schedules.create("free", urgent.using(limit=None), cron="0 * * * *")
    later.close()


@pytest.mark.parametrize("publish", [True, False], ids=["published", "only the function"])
def test_a_schedule_waits_for_the_hook_of_its_function(
    app: Duly, bare: Duly, clock: ManualClock, db: Database, publish: bool
):
    """What `apply` has published is enough to tick; without the hook the schedule rests."""

    @app.action
    def after(ctx: Ctx, job_id: str) -> None: ...

    @app.action(on_complete=after)
    def post(ctx: Ctx) -> None: ...

    app.schedule("s", post, cron="0 * * * *")
    app.schedules.apply()
    if not publish:
        db.execute("DELETE FROM @functions WHERE name = 'after'")
    clock.advance(HOUR)
    ticker = Ticker(bare.core)
    for _ in range(5):
        ticker.one_pass()
        clock.advance(1.5)
    revived = "SELECT count(*) FROM @audit WHERE action = 'schedule.revive'"
    if not publish:
        assert "after" in str(app.schedules.get("s").error)
        assert db.scalar(revived) == 0
        app.functions.publish()
        ticker.one_pass()
    assert ledger(app, "s") == [("dispatched", None)]
    assert db.scalar(revived) == (0 if publish else 1)


# Signals -----------------------------------------------------------------------------------------

STOPPED = {"/signal_rpc_result": {"neq": "stop"}}
ANYTHING: dict[str, Any] = {"": {"neq": {}}}


@pytest.mark.spec("R139")
def test_what_asks_for_the_signal_of_another_app_is_left_to_it(
    app: Duly, url: str, clock: ManualClock
):
    """Where there is no hook, no answer means null for the app's own schedules only."""
    shop = Duly(url, name="shop", clock=clock, signal=lambda schedule: "stop")
    mail = Duly(url, name="mail", clock=clock)
    for each in (shop, mail):

        @each.action(name=f"{each.name}-post")
        def post(ctx: Ctx) -> None: ...

        conditions: list[Any] = [STOPPED, ANYTHING, None, {"/last_24h_stats/failed": {"lt": 9}}]
        for n, condition in enumerate(conditions):
            each.schedule(
                f"{each.name} {n}", post, cron="0 * * * *", overlap="allow", condition=condition
            )
        each.schedules.apply()
    clock.advance(HOUR)
    # Those that are left to others neither fill the page nor keep the ticker busy.
    assert tick_all(mail, page=1) > 0.5
    assert [ledger(mail, f"mail {n}") for n in range(4)] == [[("dispatched", None)]] * 4
    assert [ledger(shop, f"shop {n}") for n in (2, 3)] == [[("dispatched", None)]] * 2
    assert [ledger(shop, f"shop {n}") for n in (0, 1)] == [[], []]
    tick_all(shop)
    assert ledger(shop, "shop 0") == [("skipped", "condition_failed")]
    assert ledger(shop, "shop 1") == [("dispatched", None)]
    shop.close()
    mail.close()
