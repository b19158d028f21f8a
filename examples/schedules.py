"""Five schedules: holidays, a condition, rotating inputs, and catch-up after an outage.

The clock is set by hand, so that six days pass at once. Run it with: python examples/schedules.py
"""

import shutil
import tempfile
from datetime import datetime
from zoneinfo import ZoneInfo

from duly import Duly, ManualClock
from duly.testing import advance

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = 3_600
DAY = 24 * HOUR
FOLDER = tempfile.mkdtemp()
clock = ManualClock(datetime(2026, 4, 30, tzinfo=BERLIN))  # a Thursday
app = Duly(f"sqlite:///{FOLDER}/office.db", clock=clock)  # in production: without a clock
shop_answers = True


@app.action
def mail_report(to: str = "staff") -> str:
    return f"mailed to {to}"


@app.action
def mail_news(to: str) -> str:
    return f"mailed to {to}"


@app.action
def fetch_orders() -> int:
    if not shop_answers:
        raise ConnectionError("the shop does not answer")
    return 3


@app.action
def back_up() -> None: ...


@app.action
def rotate_logs() -> None: ...


# A calendar: no report on weekends and holidays.
days_off = app.calendar(
    "days off", tz="Europe/Berlin", rules=["weekends"], dates={"2026-05-01": "Labor Day"}
)
app.schedule("report", mail_report, cron="0 9 * * *", tz="Europe/Berlin", calendar=days_off)

# A condition: after three failures in 24 hours, wait.
app.schedule(
    "orders", fetch_orders, every=4 * HOUR, condition={"/last_24h_stats/failed": {"lt": 3}}
)

# A rotation: each run uses the next inputs.
app.schedule(
    "news",
    mail_news.bind("nobody"),
    cron="0 12 * * *",
    tz="Europe/Berlin",
    rotation=[{"to": "customers"}, {"to": "suppliers"}],
)

# After an outage, only the last missed backup runs, and no missed rotation of the logs.
app.schedule("backup", back_up, cron="0 3 * * *", tz="Europe/Berlin", catch_up=1)
app.schedule("logs", rotate_logs, every=12 * HOUR, catch_up=0)


def history(key: str) -> list[str]:
    """Print and return the ticks of a schedule, the oldest first."""
    lines = [
        f"{tick.at.astimezone(BERLIN):%a %H:%M} {tick.outcome} {tick.reason or ''}".rstrip()
        for tick in reversed(app.schedules.ticks(key))
    ]
    print(f"{key}:", *lines, sep="\n    ")
    return lines


def main() -> None:
    global shop_answers
    app.migrate()
    app.schedules.apply()  # a worker does this when it starts

    advance(app, DAY)  # Thursday; in production a worker runs the jobs
    shop_answers = False
    advance(app, DAY, raises=False)  # Friday
    shop_answers = True
    clock.advance(3 * DAY)  # no worker is running until Tuesday
    advance(app, DAY)  # Tuesday

    assert history("report") == [
        "Thu 09:00 dispatched",
        *(f"{day} 09:00 skipped calendar" for day in ("Fri", "Sat", "Sun")),
        "Mon 09:00 dispatched",  # late, on Tuesday
        "Tue 09:00 dispatched",
    ]
    assert "Fri 16:00 skipped condition_failed" in history("orders")
    assert len(history("news")) == 6
    newest, *_, oldest = [job.result() for job in app.jobs(function=mail_news)]
    assert (oldest, newest) == ("mailed to customers", "mailed to suppliers")
    assert history("backup")[2:4] == ["Sun 03:00 missed", "Mon 03:00 dispatched"]
    assert history("logs")[4] == "Mon 12:00 missed"
    app.close()
    shutil.rmtree(FOLDER)


if __name__ == "__main__":
    main()
