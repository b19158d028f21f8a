"""The jobs of a shop in Celery: five tasks, a chain, a chord, and six entries of beat.

Run it with: python before.py
"""

from datetime import timedelta

from celery import Celery, chain, chord
from celery.schedules import crontab

OPS = "ops@example.org"
FEED = "https://example.org/feed"

celery = Celery("shop", broker="memory://", backend="cache+memory://")  # yours: redis://…
celery.conf.timezone = "Europe/Istanbul"
celery.conf.beat_schedule = {
    "poll": {"task": "fetch", "schedule": 10.0, "args": (FEED,), "options": {"expires": 5}},
    "poll slowly": {"task": "fetch", "schedule": timedelta(minutes=1), "args": (FEED + "/all",)},
    "remind": {"task": "send_mail", "schedule": crontab(minute="*/15"), "args": ("hello", OPS)},
    "tidy": {"task": "tidy", "schedule": timedelta(hours=1), "options": {"queue": "slow"}},
    "good morning": {
        "task": "send_mail",
        "schedule": crontab(hour=9, minute=0, day_of_week="mon-fri"),
        "args": ("good morning", OPS),
    },
    "month": {
        "task": "send_mail",
        "schedule": crontab(hour=0, minute=5, day_of_month=1),
        "args": ("a new month", OPS),
    },
}


@celery.task(name="fetch", autoretry_for=(ConnectionError,), max_retries=3, retry_backoff=2)
def fetch(url):
    return f"the content of {url}"


@celery.task(name="count_words")
def count_words(text):
    return len(text.split())


@celery.task(name="send_mail", rate_limit="10/m", acks_late=True)
def send_mail(text, to):
    print(f"{to}: {text}")


@celery.task(name="add_up")
def add_up(counts):
    send_mail.delay(f"{sum(counts)} words", OPS)


@celery.task(name="tidy", time_limit=60)
def tidy():
    print("tidied")


def mail_count(url):
    """Fetch a page, count its words, and mail the number: a chain."""
    chain(fetch.s(url), count_words.s(), send_mail.s(OPS)).delay()


def mail_sum(texts):
    """Count the words of all texts, and mail the sum: a chord."""
    chord((count_words.s(text) for text in texts), add_up.s()).delay()


if __name__ == "__main__":
    celery.conf.task_always_eager = True  # so that the example needs no broker and no worker
    mail_count("https://example.org")
    mail_sum(["one", "two words", "three more words"])
    tidy.delay()
