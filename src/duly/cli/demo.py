"""The demo app: self-destructing messages, a photo album, news and a shop.

duly dev     runs this app and shows its activity
duly init    writes a copy for you to change
"""

import os
from time import sleep
from uuid import uuid4

from duly import Ctx, Duly, Retry, Tx
from duly.webhooks import HMAC

# To use several machines later, set DULY_DATABASE_URL=postgresql://…; the code stays the same.
app = Duly(os.environ.get("DULY_DATABASE_URL", "sqlite:///duly-dev.db"))


# A mutation runs exactly once, in one transaction ------------------------------------------------


@app.mutation
def send(tx: Tx, author: str, text: str) -> str:
    """Store a message and schedule its deletion: both or neither."""
    message_id = uuid4().hex
    tx.execute("INSERT INTO messages VALUES (?, ?, ?)", (message_id, author, text))
    tx.run_after(5, destroy, message_id)
    return message_id


@app.mutation
def destroy(tx: Tx, message_id: str) -> None:
    tx.execute("DELETE FROM messages WHERE id = ?", (message_id,))


# An action has side effects: it is retried only if it has a retry policy -------------------------


@app.action(retry=Retry(attempts=5, delay=1, factor=1), timeout=60)
def print_album(ctx: Ctx, photos: int) -> str:
    """Print photos, one by one. The first attempt ends with a paper jam."""
    for photo in range(photos):
        ctx.progress(photo / photos, f"photo {photo + 1} of {photos}")
        if ctx.attempt == 1 and photo == photos - 2:
            raise RuntimeError("paper jam")
        sleep(0.1)
    return f"{photos} photos, at attempt {ctx.attempt}"


@app.action(retry=Retry(attempts=5))
def post_news(ctx: Ctx, audience: str, tone: str = "plain") -> str:
    ctx.log(f"nothing new for {audience}")
    return f"{tone} news for {audience}"


# A schedule calls a function, and records why a tick was skipped ----------------------------------

days_off = app.calendar(
    "days off",
    tz="Europe/Istanbul",
    rules=["weekends", "tr-public-holidays"],
)
app.schedule(
    "morning news",
    post_news.bind("everybody"),
    cron="0 9 * * *",
    tz="Europe/Istanbul",
    calendar=days_off,
    condition={"/last_24h_stats/failed": {"lt": 3}},
    rotation=[{"audience": "engineers", "tone": "dry"}, {"audience": "everybody"}],
)
app.schedule("hourglass", send.bind("hourglass", "five seconds to live"), every=5)
app.schedule(
    "call for help",
    post_news.bind("operators", tone="alarming"),
    every=10,
    condition={"/last_24h_stats/failed": {"gt": 2}},
)


# A webhook is verified, stored and acknowledged; then a job processes it -------------------------


@app.mutation
def on_order(tx: Tx, event_id: str) -> None:
    order = app.webhooks.get(event_id).payload()
    tx.run(send, "shop", f"new order: {order['item']}")


app.webhook(
    "orders",
    source=HMAC(secrets=["env:ORDERS_WEBHOOK_SECRET"], header="X-Signature"),
    process=on_order,
)


# Before the first start --------------------------------------------------------------------------


def set_up() -> None:
    """Create the tables; existing data is kept."""
    app.migrate()
    with app.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS messages (id TEXT, author TEXT, text TEXT)")


if __name__ == "__main__":
    set_up()
