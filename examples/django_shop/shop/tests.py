"""Run with `python manage.py test`. Jobs that a test enqueues stay in the test's transaction."""

from django.core import mail
from django.db import connection
from django.test import TestCase, override_settings

from duly.contrib.django import app
from duly.testing import drain
from shop.models import Order, Product


class ShopTest(TestCase):
    fixtures = ("products",)

    @classmethod
    def setUpClass(cls) -> None:
        # Before the class's transaction starts: SQLite allows one writer at a time.
        app.migrate()
        # PostgreSQL cannot drop a database that has open connections.
        cls.addClassCleanup(app.close)
        super().setUpClass()

    def place(self, product: str) -> int:
        order = {"product": product, "email": "a@example.org"}
        return self.client.post("/orders", order).status_code


class OrderTest(ShopTest):
    def test_an_order_schedules_its_receipt_and_its_end(self) -> None:
        self.assertEqual(self.place("tea"), 201)

        scheduled = {job.function for job in app.on(connection).jobs()}
        self.assertEqual(scheduled, {"send_receipt", "expire_order"})

    def test_a_receipt_is_sent(self) -> None:
        self.place("tea")

        drain(app, on=connection)

        self.assertEqual([sent.to for sent in mail.outbox], [["a@example.org"]])

    @override_settings(PAY_WITHIN_SECONDS=0)
    def test_an_order_that_is_not_paid_expires(self) -> None:
        self.place("tea")

        drain(app, on=connection)

        self.assertEqual(Order.objects.get().state, Order.State.EXPIRED)
        self.assertEqual(Product.objects.get(name="tea").stock, 100)


class SoldOutTest(ShopTest):
    def test_an_order_of_nothing_leaves_nothing(self) -> None:
        Product.objects.filter(name="tea").update(stock=0)

        self.assertEqual(self.place("tea"), 409)

        self.assertEqual(app.on(connection).jobs(), [])
        self.assertFalse(Order.objects.exists())
