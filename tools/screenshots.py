"""Make docs/images/*.png: the main views of the dashboard, with realistic data.

make screenshots
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from duly import Budget, Ctx, Duly, Expect, Retry  # noqa: E402
from tests.browser.serving import browser, served  # noqa: E402

IMAGES = ROOT / "docs" / "images"
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
ZONE = "Europe/Berlin"
chance = random.Random(7)


# An app ------------------------------------------------------------------------------------------


def make_app(file: Path, end: threading.Event) -> Duly:
    app = Duly(f"sqlite:///{file}", name="shop")

    @app.action(queue="mail", retry=Retry(attempts=5))
    def send_digest(ctx: Ctx, team: str, pages: int = 4) -> str:
        return f"{pages} pages for {team}"

    @app.action(queue="billing", retry=Retry(attempts=3))
    def settle_invoices(ctx: Ctx, region: str) -> int:
        raise ConnectionError("payments.example.com gave no answer within 30 s")

    @app.action(queue="media")
    def encode_video(ctx: Ctx, video: str, quality: str = "1080p") -> None:
        for done, (level, line) in enumerate(
            [
                ("info", "reading the source: 12 min 40 s at 29.97 fps"),
                ("info", "first pass: 1 of 2"),
                ("warning", "two frames are broken; the ones before them are repeated"),
                ("info", "second pass: 2 of 2"),
            ]
        ):
            ctx.log(line, level=level)
            ctx.progress(0.16 * (done + 1), f"frame {done * 3_700 + 1_204:,} of 22,788")
        end.wait()

    @app.action
    def refresh_prices(ctx: Ctx) -> int:
        return 1_204

    @app.action
    def back_up(ctx: Ctx, bucket: str = "nightly") -> str:
        return "ok"

    @app.action
    def clean_carts(ctx: Ctx, older_than_days: int = 30) -> int:
        return 87

    @app.action
    def sync_stock(ctx: Ctx, warehouse: str) -> int:
        return 42

    app.migrate()
    app.functions.publish()
    return app


def make_schedules(app: Duly) -> dict[str, str]:
    f = app.function
    create = app.schedules.create
    made = [
        create(
            "weekday digest",
            f("send_digest").bind("sales"),
            cron="0 9 * * 1-5",
            tz=ZONE,
            calendar="us-federal-holidays",
            condition={"/last_24h_stats/failed": {"lt": 3}},
            expect=Expect(within=3600),
        ),
        create("settle invoices", f("settle_invoices").bind("eu"), cron="15 */4 * * *"),
        create("refresh prices", f("refresh_prices").bind(), every=300),
        create("nightly backup", f("back_up").bind(), cron="30 2 * * *", tz="America/New_York"),
        create("clean carts", f("clean_carts").bind(), cron="0 */6 * * *", jitter=600),
        create(
            "stock, in turn",
            f("sync_stock").bind("berlin"),
            cron="*/30 7-20 * * *",
            tz=ZONE,
            rotation=[{"warehouse": "berlin"}, {"warehouse": "lyon"}, {"warehouse": "porto"}],
            budget=Budget(runs=20, per=86_400),
        ),
        create(
            "month end", f("settle_invoices").bind("us"), cron="0 22 L * *", tz="America/Chicago"
        ),
        create("price audit", f("refresh_prices").bind(), cron="45 6 * * 1", tz="Asia/Tokyo"),
    ]
    app.schedules.disable("price audit", note="until the new catalogue is in", by="ada")
    return {each.key: each.id for each in made}


# What has happened -------------------------------------------------------------------------------


class Past(NamedTuple):
    """The past of a schedule: a run each `every`; how many of a hundred failed or were skipped."""

    key: str
    function: str
    every: int
    failed: int
    skipped: int
    args: dict[str, Any]
    queue: str
    took: int


PASTS = [
    Past("weekday digest", "send_digest", DAY, 2, 16, {"team": "sales"}, "mail", 4_000),
    Past("settle invoices", "settle_invoices", 4 * HOUR, 13, 2, {"region": "eu"}, "billing", 9_000),
    Past("refresh prices", "refresh_prices", 5 * MINUTE, 1, 1, {}, "default", 900),
    Past("nightly backup", "back_up", DAY, 1, 0, {"bucket": "nightly"}, "default", 240_000),
    Past("clean carts", "clean_carts", 6 * HOUR, 0, 5, {}, "default", 2_200),
    Past(
        "stock, in turn", "sync_stock", 30 * MINUTE, 4, 22, {"warehouse": "lyon"}, "default", 7_000
    ),
]
REASONS = {
    "calendar": {"calendar": "us-federal-holidays", "date": "2026-10-03"},
    "condition_failed": {"pointer": "/last_24h_stats/failed", "actual": 4, "expected": {"lt": 3}},
    "overlap_in_flight": {"running": 1},
    "budget_exceeded": {"runs": 20, "per": 86_400},
}


def remember(file: Path, ids: dict[str, str], now: int) -> None:
    """Write a year of days and some days of ticks and jobs, as schedules would have left them."""
    with sqlite3.connect(file) as db:
        for past in PASTS:
            db.executemany(
                "INSERT OR IGNORE INTO duly_days VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                list(days(past, ids[past.key], now)),
            )
            for tick, job in ticks(past, ids[past.key], now):
                insert(db, "duly_ticks", tick)
                if job is not None:
                    insert(db, "duly_history", job)
            last = max(now - now % past.every, 0)
            db.execute(
                "UPDATE duly_schedules SET created_at = ?, last_dispatch_at = ? WHERE id = ?",
                (now - 340 * DAY, last, ids[past.key]),
            )
            db.execute(
                "UPDATE duly_schedules SET last_job_id = (SELECT id FROM duly_history WHERE actor ="
                " ? ORDER BY id DESC LIMIT 1) WHERE id = ?",
                (ids[past.key], ids[past.key]),
            )


def insert(db: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    db.execute(f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})", list(row.values()))


def days(past: Past, schedule_id: str, now: int) -> Iterator[tuple[Any, ...]]:
    per_day = max(1, DAY // past.every)
    for back in range(6, 330):
        day = now // DAY - back
        if past.key == "weekday digest" and day % 7 in (2, 3):
            continue
        if 150 <= back < 153:
            yield schedule_id, day, 0, 0, per_day, 0, 0, 0
            continue
        skipped = sum(chance.random() * 100 < past.skipped for _ in range(per_day))
        run = per_day - skipped
        failed = sum(chance.random() * 300 < past.failed for _ in range(run))
        yield schedule_id, day, run, skipped, 0, run - failed, failed, 0


def ticks(
    past: Past, schedule_id: str, now: int
) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    reasons = ["calendar", "condition_failed", "overlap_in_flight"]
    first = now - now % past.every - min(120, 5 * DAY // past.every) * past.every
    for at in range(first, now - MINUTE, past.every):
        if past.key == "weekday digest" and at // DAY % 7 in (2, 3):
            continue
        tick: dict[str, Any] = {"schedule_id": schedule_id, "kind": "slot", "tick_at": at}
        tick |= {"due_at": at, "decided_at": at + chance.randrange(4, 60), "dst_adjusted": 0}
        if chance.random() * 100 < past.skipped:
            reason = chance.choice(reasons)
            detail = json.dumps(REASONS[reason])
            yield tick | {"outcome": "skipped", "reason": reason, "detail": detail}, None
            continue
        job = finished(past, schedule_id, at)
        yield tick | {"outcome": "dispatched", "job_id": job["id"]}, job


def id_at(at: int) -> str:
    """The id of a job that was stored then."""
    text = f"{at:012x}{chance.getrandbits(80):020x}"
    return f"{text[:8]}-{text[8:12]}-7{text[13:16]}-8{text[17:20]}-{text[20:]}"


def finished(past: Past, schedule_id: str, at: int) -> dict[str, Any]:
    failed = chance.random() * 100 < past.failed
    started = at + chance.randrange(20, 400)
    took = round(past.took * chance.lognormvariate(0, 0.4))
    job: dict[str, Any] = {"id": id_at(at), "function": past.function, "kind": "action"}
    job |= {"queue": past.queue, "priority": 5, "token": 1, "attempt": 1, "crashes": 0}
    job |= {"system_retries": 0, "created_at": at, "scheduled_at": at, "run_at": at}
    job |= {"started_at": started, "completed_at": started + took, "args": json.dumps(past.args)}
    job |= {"trigger": "schedule", "actor": schedule_id, "state": "succeeded", "result": '"ok"'}
    if failed:
        job |= {"state": "failed", "result": None, "error_kind": "user", "exhausted": 1}
        job |= {"error_message": "ConnectionError: payments.example.com gave no answer"}
        job["error_traceback"] = (
            'Traceback (most recent call last):\n  File "shop/billing.py", line 41, in '
            "settle_invoices\n    answer = client.post(url, json=invoice)\n"
            "ConnectionError: payments.example.com gave no answer within 30 s"
        )
    return job


# Pictures ----------------------------------------------------------------------------------------


class Shot(NamedTuple):
    name: str
    path: str
    width: int = 1360
    height: int = 900
    dark: bool = False
    whole: bool = False


def shots(ids: dict[str, str], job_id: str) -> list[Shot]:
    digest = f"/schedules/{ids['weekday digest']}"
    return [
        Shot("overview", "/", height=960),
        Shot("overview-dark", "/", height=960, dark=True),
        Shot("schedules", "/schedules"),
        Shot("schedule", digest, height=1180),
        Shot("jobs", "/jobs"),
        Shot("job", f"/jobs/{job_id}", height=960),
        Shot("function", "/functions/send_digest", height=960),
        Shot("calendar", "/calendars/us-federal-holidays", height=960),
        Shot("schedule-small", digest, 360, 1800),
    ]


def main(names: list[str]) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    end = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shop.db"
        app = make_app(file, end)
        now = round(time.time() * 1000)
        ids = make_schedules(app)
        remember(file, ids, now)
        app.start()
        video = app.run(app.function("encode_video"), "launch-film.mov", quality="2160p")
        for team in ("support", "it", "hr"):
            app.run_after(1_800, app.function("send_digest"), team)
        until = time.monotonic() + 10
        while len(video.logs()) < 4 and time.monotonic() < until:
            time.sleep(0.05)
        wanted = [s for s in shots(ids, video.id) if not names or s.name in names]
        with served(app, auth="open", only=["dashboard"]) as address, browser() as chromium:
            for shot in wanted:
                take(chromium, address, shot)
        end.set()
        app.stop()
        app.close()


def take(chromium: Any, address: str, shot: Shot) -> None:
    page = chromium.new_page(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme="dark" if shot.dark else "light",
        timezone_id=ZONE,
        device_scale_factor=1,
    )
    page.goto(address + shot.path)
    page.wait_for_selector("html[data-ready]", timeout=5_000, state="attached")
    if shot.name == "schedule-edit":
        page.fill("input[name=cron]", "30 9 * * 1,3,5")
        page.wait_for_selector("#changes li")
    page.wait_for_timeout(250)
    page.screenshot(path=IMAGES / f"{shot.name}.png")
    page.close()
    print(f"docs/images/{shot.name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
