"""The same jobs in duly. The tasks keep their parameters, and can still be called directly.

Run it with: python after.py
"""

from pathlib import Path

from duly import Duly, Limit, Retry, Tx, current
from duly.testing import drain, override

OPS = "ops@example.org"

app = Duly(f"sqlite:///{Path(__file__).with_name('shop.db')}")  # yours: postgresql://…


@app.action(retry=Retry(attempts=4, delay=2), retry_on=(ConnectionError,))
def fetch(url: str) -> str:
    return f"the content of {url}"


@app.action
def count_words(text: str) -> int:
    return len(text.split())


@app.action(retry=Retry(attempts=4), limit=Limit(rate=10, per=60))
def send_mail(text: str, to: str) -> None:
    print(f"{to}: {text}")


@app.mutation
def add_up(tx: Tx, batch_id: str) -> None:
    counts = app.batch_of(batch_id).results()  # a chord passes them on; here the hook reads them
    tx.run(send_mail, f"{sum(counts)} words", OPS)


@app.action(timeout=60)
def tidy() -> None:
    print("tidied")


# The chain and the chord -------------------------------------------------------------------------


@app.action(retry=Retry(attempts=4, delay=2), retry_on=(ConnectionError,))
def fetch_then_count(url: str) -> None:
    """Each step of the chain is a job that calls a task and enqueues the next step."""
    current().run(count_then_mail, fetch(url))


@app.mutation
def count_then_mail(tx: Tx, text: str) -> None:
    tx.run(send_mail, str(count_words(text)), OPS)


def mail_count(url: str) -> None:
    """Fetch a page, count its words, and mail the number."""
    app.run(fetch_then_count, url)


def mail_sum(texts: list[str]) -> None:
    """Count the words of all texts, and mail the sum."""
    app.batch([count_words.bind(text) for text in texts], on_complete=add_up)


# The schedules, as printed by `duly import celery-beat … --as-code` ------------------------------

app.schedule(
    "poll",
    fetch.using(expires=5).bind(url="https://example.org/feed"),
    every=10,
)

app.schedule(
    "poll slowly",
    fetch.bind(url="https://example.org/feed/all"),
    every=60,
)

app.schedule(
    "remind",
    send_mail.bind(text="hello", to="ops@example.org"),
    cron="*/15 * * * *",
    tz="Europe/Istanbul",
)

app.schedule(
    "tidy",
    tidy.using(queue="slow"),
    every=3600,
)

app.schedule(
    "good morning",
    send_mail.bind(text="good morning", to="ops@example.org"),
    cron="0 9 * * mon-fri",
    tz="Europe/Istanbul",
)

app.schedule(
    "month",
    send_mail.bind(text="a new month", to="ops@example.org"),
    cron="5 0 1 * *",
    tz="Europe/Istanbul",
)


if __name__ == "__main__":
    with override(app):  # so that the example needs no worker; yours: duly --app after:app worker
        mail_count("https://example.org")
        drain(app)
        mail_sum(["one", "two words", "three more words"])
        drain(app)
        app.run(tidy)
        drain(app)
