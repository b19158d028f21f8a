"""The shop's background jobs. `manage.py duly worker` finds this module by its name."""

from django.core.mail import send_mail
from django.db.models import F

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
