"""The background jobs of a shop in APScheduler 3: six schedules, reminders, and an error listener.

Run it with: python before.py
"""

import threading
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from apscheduler.events import EVENT_JOB_ERROR
from apscheduler.schedulers.background import BackgroundScheduler

BERLIN = ZoneInfo("Europe/Berlin")
OPS = "ops@example.org"
FEED = "https://example.org/feed"

scheduler = BackgroundScheduler(timezone=BERLIN)  # yours: with a job store
failed = threading.Event()


def poll(feed):
    print(f"polled {feed}")


def report():
    send_mail("12 orders", OPS)


def close_month():
    send_mail("the month is closed", OPS)


def send_mail(text, to):
    print(f"{to}: {text}")


def charge(order):
    raise ConnectionError(f"order {order} was not charged")


def remind(order):
    send_mail(f"order {order} is not paid", OPS)


def place(order):
    """Take an order, and remind of it unless it is paid within 15 minutes."""
    due = datetime.now(BERLIN) + timedelta(minutes=15)
    scheduler.add_job(remind, "date", run_date=due, args=[order], id=f"remind {order}")


def pay(order):
    scheduler.remove_job(f"remind {order}")


def on_error(event):
    error = event.exception
    print(f"{event.job_id} failed: {type(error).__name__}: {error}")
    failed.set()


scheduler.add_listener(on_error, EVENT_JOB_ERROR)
scheduler.add_job(poll, "interval", seconds=30, args=[FEED], id="poll")
scheduler.add_job(
    report,
    "cron",
    day_of_week="mon-fri",
    hour=9,
    id="report",
    coalesce=True,
    misfire_grace_time=3600,
)
scheduler.add_job(close_month, "cron", day="last", hour=23, minute=30, id="close month")
scheduler.add_job(
    send_mail, "cron", day="1st mon", hour=8, args=["stocktaking", OPS], id="stocktaking"
)
scheduler.add_job(
    send_mail, "cron", hour="6-8", second="*/20", minute=0, args=["up", OPS], id="heartbeat"
)
scheduler.add_job(
    send_mail, "cron", week="*/2", day_of_week="mon", hour=8, args=["clean up", OPS], id="cleaning"
)


if __name__ == "__main__":
    scheduler.start()
    for key in ("report", "close month", "stocktaking", "heartbeat", "cleaning"):
        runs = [datetime(2026, 7, 1, tzinfo=BERLIN)]
        for _ in range(3):
            runs.append(scheduler.get_job(key).trigger.get_next_fire_time(runs[-1], runs[-1]))
            runs[-1] += timedelta(microseconds=1)
        print(f"{key}:", *(f"{run:%m-%d %H:%M:%S}" for run in runs[1:]), sep="  ")
    place(7)
    place(8)
    pay(8)
    print("waiting:", *(job.id for job in scheduler.get_jobs() if job.id.startswith("remind")))
    report()
    close_month()
    scheduler.add_job(charge, args=[9], id="charge")
    failed.wait(60)
    scheduler.shutdown()
