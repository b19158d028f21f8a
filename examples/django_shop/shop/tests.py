"""Run with `python manage.py test`. Jobs that a test enqueues stay in the test's transaction."""

from datetime import timedelta

from django.core import mail
from django.db import connection
from django.test import TestCase, override_settings
from django.utils import timezone

from duly.contrib.django import app
from duly.testing import drain
from shop.models import Order, Product
from shop.tasks import forget_expired_orders, mail_report


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


class ScheduledTest(ShopTest):
    def test_the_report_counts_unpaid_orders(self) -> None:
        self.place("tea")

        mail_report()

        self.assertEqual(mail.outbox[0].body, "1 unpaid orders")

    def test_old_expired_orders_are_forgotten(self) -> None:
        self.place("tea")
        self.place("tea")
        month_ago = timezone.now() - timedelta(days=31)
        first = Order.objects.order_by("pk")[:1]
        Order.objects.filter(pk__in=first).update(state=Order.State.EXPIRED, placed_at=month_ago)

        job = app.on(connection).run(forget_expired_orders)
        [done] = [each for each in drain(app, on=connection) if each.id == job.id]

        self.assertEqual((done.result(), Order.objects.count()), (1, 1))
