"""An order as a workflow: reserve, charge, approve, wait for the parcel, send a mail.

Run it with: python shop.py
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta

from duly import (
    Ctx,
    Duly,
    Fail,
    NonRetryable,
    Retry,
    StepFailed,
    Tx,
    Unique,
    WaitTimeout,
    WorkflowCtx,
)

LARGE = 100_000
"""Orders from this amount on, in cents, need an approval."""

app = Duly(os.environ.get("DATABASE_URL", "sqlite:///shop.db"))
TABLES = (
    "CREATE TABLE IF NOT EXISTS stock (item text PRIMARY KEY, available integer NOT NULL)",
    """CREATE TABLE IF NOT EXISTS orders (id integer PRIMARY KEY, item text NOT NULL,
        email text NOT NULL, cents integer NOT NULL, state text NOT NULL, tracking text)""",
    "CREATE TABLE IF NOT EXISTS payments (key text PRIMARY KEY, cents integer NOT NULL)",
)


@dataclass
class Parcel:
    tracking: str
    grams: int


class OutOfStock(Exception):
    """There is nothing left to reserve."""


class CardDeclined(NonRetryable):
    """Another attempt would not help."""


# Steps -------------------------------------------------------------------------------------------


@app.mutation
def reserve(tx: Tx, order: int, item: str) -> None:
    """The stock, the order and the record of this step change in one commit."""
    taken = "UPDATE stock SET available = available - 1 WHERE item = ? AND available > 0"
    if not tx.execute(taken, (item,)).rowcount:
        raise OutOfStock(item)
    tx.execute("UPDATE orders SET state = 'reserved' WHERE id = ?", (order,))


@app.mutation
def release(tx: Tx, order: int, item: str, state: str) -> None:
    tx.execute("UPDATE stock SET available = available + 1 WHERE item = ?", (item,))
    tx.execute("UPDATE orders SET state = ? WHERE id = ?", (state, order))


@app.action(retry=Retry(attempts=5, delay=10))
def charge(ctx: Ctx, email: str, cents: int) -> str:
    """Charge the customer. It may run again, so the payment has a key that stays the same."""
    if email.endswith("@bankrupt.example"):
        raise CardDeclined(email)
    return pay(ctx.job_id, cents)


@app.action(retry=Retry(attempts=5, delay=10))
def send_mail(ctx: Ctx, email: str, text: str) -> None:
    print(f"to {email}: {text}")


def pay(key: str, cents: int) -> str:
    """The payment provider: a repeated request with the same key does nothing."""
    with app.transaction() as tx:
        tx.execute("INSERT INTO payments VALUES (?, ?) ON CONFLICT DO NOTHING", (key, cents))
    return key


# The workflow ------------------------------------------------------------------------------------


@app.workflow(
    unique=Unique(lambda order, **_: f"order {order}", "unfinished"), events={"packed": Parcel}
)
def fulfil(ctx: WorkflowCtx, order: int, item: str, email: str, cents: int) -> str:
    ctx.step(reserve, order, item)  # fails the run if there is nothing left

    if cents >= LARGE:
        decision = ctx.approval(f"Accept order {order}?", timeout=timedelta(days=3))
        if not decision:
            ctx.step(release, order, item, "rejected")
            ctx.step(send_mail, email, f"We cannot accept your order {order}.")
            return "rejected"

    try:
        ctx.step(charge, email, cents)
        parcel = ctx.wait_for("packed", Parcel, timeout=timedelta(days=7))
    except (StepFailed, WaitTimeout) as error:
        ctx.step(release, order, item, "failed")
        raise Fail(f"order {order}: {error}") from None

    ctx.step(send_mail, email, f"Your {item} is on its way: {parcel.tracking}")
    return parcel.tracking


# The shop ----------------------------------------------------------------------------------------


def place_order(item: str, email: str, cents: int) -> int:
    """The order and its workflow are one commit."""
    with app.transaction() as tx:
        insert = """INSERT INTO orders (id, item, email, cents, state)
            SELECT coalesce(max(id), 0) + 1, ?, ?, ?, 'new' FROM orders RETURNING id"""
        order: int = tx.execute(insert, (item, email, cents)).scalar()
        tx.run(fulfil, order, item, email, cents)
    return order


def scan(order: int, tracking: str, grams: int) -> None:
    """The parcel is scanned in the warehouse, perhaps twice: the event is sent once."""
    run = app.find(fulfil, f"order {order}")
    if run is None:
        raise LookupError(f"order {order} is not waiting for a parcel")
    with app.transaction() as tx:
        tx.execute(
            "UPDATE orders SET state = 'packed', tracking = ? WHERE id = ?", (tracking, order)
        )
        tx.send(run, "packed", Parcel(tracking, grams), once="packed")


def create_tables(**stock: int) -> None:
    app.migrate()
    with app.transaction() as tx:
        for statement in TABLES:
            tx.execute(statement)
        for item, available in stock.items():
            tx.execute("INSERT INTO stock VALUES (?, ?)", (item, available))


if __name__ == "__main__":
    import time

    create_tables(lamp=3)
    with app:
        number = place_order("lamp", "ada@example.org", 4_900)
        run = app.find(fulfil, f"order {number}")
        assert run is not None
        time.sleep(1)
        print(f"order {number} is {run.state}: it waits for its parcel, and occupies no worker")
        scan(number, "Z9", 800)
        print(f"done: {run.result(timeout=10)}")
    app.close()
