"""The same jobs in duly. The functions keep their parameters, and can still be called directly.

Run it with: python after.py
"""

from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from duly import Duly, ManualClock, Rule
from duly.testing import drain, override

BERLIN = ZoneInfo("Europe/Berlin")
OPS = "ops@example.org"

app = Duly(f"sqlite:///{Path(__file__).with_name('shop.db')}")  # yours: postgresql://…


@app.action
def on_error(job_id: str) -> None:
    """Take the place of the listener; it also runs if a worker died."""
    job = app.job(job_id)
    if job.error is not None:
        print(f"{job.function} failed: {job.error.message}")


@app.action(on_complete=on_error)
def poll(feed: str) -> None:
    print(f"polled {feed}")


@app.action(on_complete=on_error)
def report() -> None:
    send_mail("12 orders", OPS)


@app.action(on_complete=on_error)
def close_month() -> None:
    send_mail("the month is closed", OPS)


@app.action(on_complete=on_error)
def send_mail(text: str, to: str) -> None:
    print(f"{to}: {text}")


@app.action(on_complete=on_error)
def charge(order: int) -> None:
    raise ConnectionError(f"order {order} was not charged")


@app.action(on_complete=on_error)
def remind(order: int) -> None:
    send_mail(f"order {order} is not paid", OPS)


reminders: dict[int, str] = {}  # yours: a column of the order


def place(order: int) -> None:
    """Take an order, and remind of it unless it is paid within 15 minutes."""
    reminders[order] = app.run_after(15 * 60, remind, order).id


def pay(order: int) -> None:
    app.cancel(reminders.pop(order))


# The schedules, as printed by `duly import apscheduler … --as-code`, and the catch-up by hand -----

app.schedule(
    "poll",
    poll.bind(feed="https://example.org/feed"),
    every=30,
)

app.schedule(
    "report",
    report,
    cron="0 9 * * 1-5",
    tz="Europe/Berlin",
    catch_up=1,
    catch_up_window=3600,
)

app.schedule(
    "close month",
    close_month,
    cron="30 23 L * *",
    tz="Europe/Berlin",
)

app.schedule(
    "stocktaking",
    send_mail.bind(text="stocktaking", to="ops@example.org"),
    cron="0 8 ? * 1#1",
    tz="Europe/Berlin",
)

app.schedule(
    "heartbeat",
    send_mail.bind(text="up", to="ops@example.org"),
    cron="*/20 0 6-8 * * *",
    tz="Europe/Berlin",
)

# By hand: cron has no field for weeks.
app.schedule(
    "cleaning",
    send_mail.bind(text="clean up", to="ops@example.org"),
    trigger=Rule("FREQ=WEEKLY;INTERVAL=2;BYDAY=MO", datetime(2026, 6, 29, 8, tzinfo=BERLIN)),
)


if __name__ == "__main__":
    # So that the example needs no worker; yours: duly --app after:app worker
    with override(app, clock=ManualClock(datetime(2026, 7, 1, tzinfo=BERLIN))):
        app.schedules.apply()
        for key in ("report", "close month", "stocktaking", "heartbeat", "cleaning"):
            runs = app.schedules.preview(key, 3)
            print(f"{key}:", *(f"{run.local:%m-%d %H:%M:%S}" for run in runs), sep="  ")
        place(7)
        place(8)
        pay(8)
        waiting = app.jobs(function=remind, state="pending")
        print("waiting:", *(f"remind {job.arguments['order']}" for job in waiting))
        app.run(report)
        drain(app)
        app.run(close_month)
        drain(app)
        app.run(charge, 9)
        drain(app, raises=False)
