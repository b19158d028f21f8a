"""A shop in FastAPI: orders in SQLAlchemy, background jobs in duly.

Both use the same database, so an order and its jobs are committed together.
"""

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel, Field
from sqlalchemy import CheckConstraint, create_engine, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from duly import Ctx, Duly, Retry, Tx
from duly.errors import JobNotFound

HERE = Path(__file__).parent
URL = os.environ.get("SHOP_DATABASE_URL", f"sqlite:///{HERE}/shop.db")
MAILS = Path(os.environ.get("SHOP_MAILS", HERE / "mails"))
TIME_TO_PAY = timedelta(minutes=15)

app = Duly(URL)
engine = create_engine(URL)


# Tables ------------------------------------------------------------------------------------------


class Table(DeclarativeBase):
    pass


class Stock(Table):
    __tablename__ = "stock"

    item: Mapped[str] = mapped_column(primary_key=True)
    on_shelf: Mapped[int] = mapped_column(CheckConstraint("on_shelf >= 0"))


class Order(Table):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    email: Mapped[str]
    state: Mapped[str] = mapped_column(default="new")  # reserved, sold out, paid, expired


def create_tables() -> None:
    """Run once, before the first server process starts."""
    app.migrate()
    Table.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.merge(Stock(item="lamp", on_shelf=3))


# Background jobs ---------------------------------------------------------------------------------


@app.mutation
def reserve(tx: Tx, order_id: int) -> str:
    """Take one item off the shelf, and put it back if it is not paid for in time."""
    item = tx.execute("SELECT item FROM orders WHERE id = ?", (order_id,)).scalar()
    taken = tx.execute(
        "UPDATE stock SET on_shelf = on_shelf - 1 WHERE item = ? AND on_shelf > 0", (item,)
    ).rowcount
    state = "reserved" if taken else "sold out"
    tx.execute("UPDATE orders SET state = ? WHERE id = ?", (state, order_id))
    if taken:
        tx.run_after(TIME_TO_PAY, expire, order_id)
    return state


@app.mutation
def expire(tx: Tx, order_id: int) -> bool:
    """Expire an unpaid order and put its item back; return whether it was still unpaid."""
    expired = tx.execute(
        "UPDATE orders SET state = 'expired' WHERE id = ? AND state = 'reserved' RETURNING item",
        (order_id,),
    ).first()
    if expired is not None:
        tx.execute("UPDATE stock SET on_shelf = on_shelf + 1 WHERE item = ?", expired)
    return expired is not None


@app.action(retry=Retry(attempts=5), timeout=30)
def send_receipt(ctx: Ctx, order_id: int) -> str:
    """Retried if it fails, so the mail service must recognize a mail that it has already sent."""
    with Session(engine) as session:
        order = session.get_one(Order, order_id)
        deliver(ctx.job_id, order.email, f"Thank you for ordering one {order.item}.")
        return order.email


def deliver(key: str, email: str, text: str) -> None:
    """A stand-in for a mail service: one file for each mail. The same key is the same mail."""
    MAILS.mkdir(exist_ok=True)
    (MAILS / f"{key}.txt").write_text(f"To: {email}\n\n{text}\n", encoding="utf-8")


# Web handlers ------------------------------------------------------------------------------------

web = FastAPI(title="Shop", lifespan=app.lifespan)


def open_session() -> Iterator[Session]:
    with Session(engine) as session:
        yield session


Database = Annotated[Session, Depends(open_session)]


class NewOrder(BaseModel):
    item: str
    email: str = Field(pattern=".@.")


@web.post("/orders", status_code=201)
def place_order(new: NewOrder, session: Database) -> dict[str, Any]:
    """Store the order and its two jobs: all of them or none."""
    with session.begin():
        if session.get(Stock, new.item) is None:
            raise HTTPException(404, "we do not sell that")
        order = Order(item=new.item, email=new.email)
        session.add(order)
        session.flush()
        jobs = app.on(session)
        reserving = jobs.run(reserve, order.id)
        receipt = jobs.run(send_receipt, order.id)
        return {"order": order.id, "reserve": reserving.id, "receipt": receipt.id}


@web.post("/orders/{order_id}/pay")
def pay(order_id: int, session: Database) -> dict[str, Any]:
    """Only a reserved order can be paid for. `expire` checks the same, so only one of them wins."""
    reserved = update(Order).where(Order.id == order_id, Order.state == "reserved")
    with session.begin():
        paid = session.scalar(reserved.values(state="paid").returning(Order.id))
    if paid is None:
        raise HTTPException(409, "this order is not waiting to be paid")
    return {"order": order_id, "state": "paid"}


@web.get("/orders/{order_id}")
def show_order(order_id: int, session: Database) -> dict[str, Any]:
    order = session.get(Order, order_id)
    if order is None:
        raise HTTPException(404, "no such order")
    return {"order": order.id, "item": order.item, "state": order.state}


@web.get("/jobs/{job_id}")
def show_job(job_id: str) -> dict[str, Any]:
    try:
        job = app.job(job_id)
    except JobNotFound:
        raise HTTPException(404, "no such job") from None
    error = job.error and job.error.message
    return {"function": job.function, "state": job.state, "attempt": job.attempt, "error": error}


if __name__ == "__main__":
    create_tables()
