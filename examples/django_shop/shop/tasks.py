"""The shop's background jobs. `manage.py duly worker` finds this module by its name."""

from datetime import timedelta

from django.core.mail import send_mail
from django.db.models import F
from django.utils import timezone

from duly import Ctx, Retry, Tx
from duly.contrib.django import app, atomic
from shop.models import Order, Product


@app.action(retry=Retry(attempts=5))
def send_receipt(ctx: Ctx, order_id: int) -> None:
    """Mail the customer. If the mail server fails, the job is retried."""
    order = Order.objects.select_related("product").get(pk=order_id)
    text = f"You ordered: {order.product.name}, {order.product.price} EUR."
    send_mail(f"Order {order_id}", text, "shop@example.org", [order.email])


@app.mutation
def expire_order(tx: Tx, order_id: int) -> bool:
    """Restock an unpaid order. Runs exactly once: it commits together with the job's success."""
    with atomic(tx):
        order = Order.objects.select_for_update().get(pk=order_id)
        if order.state != Order.State.UNPAID:
            return False
        order.state = Order.State.EXPIRED
        order.save(update_fields=["state"])
        Product.objects.filter(pk=order.product_id).update(stock=F("stock") + 1)
    return True


@app.action
def mail_report() -> None:
    """Mail the number of unpaid orders to the shop."""
    unpaid = Order.objects.filter(state=Order.State.UNPAID).count()
    send_mail("Orders", f"{unpaid} unpaid orders", "shop@example.org", ["staff@example.org"])


@app.mutation
def forget_expired_orders(tx: Tx) -> int:
    """Delete orders that expired and are older than 30 days; return how many."""
    with atomic(tx):
        before = timezone.now() - timedelta(days=30)
        old = Order.objects.filter(state=Order.State.EXPIRED, placed_at__lt=before)
        return old.delete()[0]


app.schedule("report", mail_report, cron="0 8 * * MON-FRI", tz="Europe/Istanbul")
app.schedule("forget expired orders", forget_expired_orders, cron="30 3 * * *")
