"""A worker is killed while it runs jobs; another worker recovers them.

Run it with: python examples/first.py
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from duly import Ctx, Duly, Retry, Tx

FOLDER = os.environ.get("SHOP") or tempfile.mkdtemp()  # passed on to the workers
app = Duly(f"sqlite:///{FOLDER}/shop.db")


@app.mutation  # one transaction, exactly once
def place_order(tx: Tx, item: str) -> int:
    order_id = tx.execute("INSERT INTO orders (item) VALUES (?) RETURNING id", (item,)).scalar()
    tx.run_after(0.5, send_receipt, order_id)  # committed or rolled back with the order
    time.sleep(2)  # time to be killed before the commit
    return order_id


@app.action  # side effects: at most once
def charge_card(ctx: Ctx, cents: int) -> str:
    time.sleep(30)  # time to be killed
    return f"charged {cents}"


@app.action(retry=Retry(attempts=3))  # side effects: retried after a failure
def update_stock(ctx: Ctx, item: str) -> str:
    time.sleep(30 if ctx.attempt == 1 else 0)
    return f"took one {item}, attempt {ctx.attempt}"


@app.action
def send_receipt(ctx: Ctx, order_id: int) -> str:
    return f"receipt for order {order_id}"


def start_worker() -> subprocess.Popen[bytes]:
    """The same as: duly --app examples/first.py:app worker"""
    command = [sys.executable, "-m", "duly", "--app", f"{__file__}:app", "worker"]
    return subprocess.Popen(command, env={**os.environ, "SHOP": FOLDER}, process_group=0)


def main() -> None:
    app.migrate()
    with app.transaction() as tx:
        tx.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    order = app.run(place_order, "teapot")
    charge = app.run(charge_card, 1999)
    stock = app.run(update_stock, "teapot")

    print("1. Three jobs are stored. A worker starts them.")
    worker = start_worker()
    try:
        while any(job.state == "pending" for job in (order, charge, stock)):
            time.sleep(0.01)
        time.sleep(0.3)
    finally:
        os.killpg(worker.pid, signal.SIGKILL)  # the worker and its child process
        worker.wait()
    print("2. The worker was killed while they ran, so they are still marked as running:")
    for job in (order, charge, stock):
        print(f"     {job.function}: {job.state}")

    print("3. Another worker detects that the first one is dead.")
    worker = start_worker()
    try:
        print(f"     place_order started again and returned {order.result(timeout=20)}")
        (receipt,) = order.children()
        print(f"     send_receipt, which place_order enqueued: {receipt.result(timeout=20)!r}")
        print(f"     update_stock: {stock.result(timeout=20)!r}")
        assert charge.error is not None
        print(f"     charge_card {charge.state} ({charge.error.kind}): {charge.error.message}")
    finally:
        worker.terminate()  # SIGTERM: finish running jobs, start no more
        worker.wait()

    with app.transaction() as tx:
        orders = tx.execute("SELECT id, item FROM orders").all()
    print(f"4. The orders table: {orders}")
    assert orders == [(1, "teapot")]
    assert (charge.state, charge.error.kind) == ("failed", "worker_lost")
    assert (stock.state, stock.attempt) == ("succeeded", 2)
    shutil.rmtree(FOLDER)


if __name__ == "__main__":
    main()
