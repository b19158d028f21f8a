"""Run with: pytest, or on PostgreSQL: DULY_TEST_URL=postgresql://localhost/shop_test pytest"""

from datetime import timedelta
from typing import Any

import pytest
import shop
from shop import Parcel, charge, create_tables, place_order, release, reserve, scan, send_mail

from duly import Duly
from duly.testing import advance, approve, assert_steps, deliver, drain

ADA = "ada@example.org"


@pytest.fixture
def app(duly_app: Duly) -> Duly:
    """The shop with empty tables, and one lamp."""
    with duly_app.transaction() as tx:
        for table in ("stock", "orders", "payments"):
            tx.execute(f"DROP TABLE IF EXISTS {table}")
    create_tables(lamp=1)
    return duly_app


def select(app: Duly, query: str) -> list[tuple[Any, ...]]:
    with app.transaction() as tx:
        return [tuple(row) for row in tx.execute(query)]


def run_of(app: Duly, order: int) -> Any:
    run = app.find(shop.fulfil, f"order {order}")
    assert run is not None
    return run


def test_an_order_is_reserved_charged_and_sent(app: Duly) -> None:
    order = place_order("lamp", ADA, 4_900)
    run = run_of(app, order)
    drain(app, paranoid=True)
    assert select(app, "SELECT available FROM stock") == [(0,)]

    scan(order, "Z9", 800)
    scan(order, "Z9", 800)
    drain(app, paranoid=True)

    assert run.result() == "Z9"
    assert_steps(app, run, reserve, charge.bind(ADA, 4_900), send_mail)
    assert select(app, "SELECT cents FROM payments") == [(4_900,)]


def test_a_parcel_may_be_scanned_before_the_order_is_charged(app: Duly) -> None:
    order = place_order("lamp", ADA, 4_900)
    run = run_of(app, order)
    scan(order, "Z9", 800)
    drain(app)
    assert run.result() == "Z9"


@pytest.mark.parametrize("choice", ["approve", "reject"])
def test_a_large_order_needs_an_approval(app: Duly, choice: str) -> None:
    run = run_of(app, place_order("lamp", ADA, 250_000))
    approve(app, run, choice=choice, by="bob")
    if choice == "approve":
        deliver(app, run, "packed", Parcel("Z9", 800))
        assert run.result() == "Z9"
    else:
        assert run.result() == "rejected"
        assert_steps(app, run, reserve, release, send_mail)
        assert select(app, "SELECT available FROM stock") == [(1,)]


def test_what_was_reserved_is_released_if_the_order_fails(app: Duly) -> None:
    run = run_of(app, place_order("lamp", "eve@bankrupt.example", 4_900))
    drain(app, raises=False)
    assert run.error.message.startswith("Fail: order 1: step charge failed: CardDeclined")
    assert select(app, "SELECT available, state FROM stock, orders") == [(1, "failed")]

    slow = run_of(app, place_order("lamp", ADA, 4_900))
    advance(app, timedelta(days=7), raises=False)
    assert "timed out while waiting for event 'packed'" in slow.error.message
    assert select(app, "SELECT available FROM stock") == [(1,)]


def test_an_order_fails_if_nothing_is_left(app: Duly) -> None:
    place_order("lamp", ADA, 4_900)
    second = run_of(app, place_order("lamp", ADA, 4_900))
    drain(app, raises=False)
    assert second.error.message == "StepFailed: step reserve failed: OutOfStock: lamp"
    assert select(app, "SELECT count(*) FROM payments") == [(1,)]
