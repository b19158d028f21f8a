from django.conf import settings
from django.db import IntegrityError, connection, transaction
from django.db.models import F
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_POST

from duly.contrib.django import app
from shop.models import Order, Product
from shop.tasks import expire_order, send_receipt


@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    """Store the order together with its receipt and expiry jobs: all of them or none."""
    try:
        with transaction.atomic():
            product = Product.objects.get(name=request.POST["product"])
            order = Order.objects.create(product=product, email=request.POST["email"])
            jobs = app.on(connection)
            jobs.run(send_receipt, order.pk)
            jobs.run_after(settings.PAY_WITHIN_SECONDS, expire_order, order.pk)
            # The database refuses a negative stock; everything above is then rolled back.
            Product.objects.filter(pk=product.pk).update(stock=F("stock") - 1)
    except IntegrityError:
        return JsonResponse({"error": "sold out"}, status=409)
    return JsonResponse({"order": order.pk}, status=201)


@require_POST
def pay_order(request: HttpRequest, order_id: int) -> JsonResponse:
    unpaid = Order.objects.filter(pk=order_id, state=Order.State.UNPAID)
    paid = unpaid.update(state=Order.State.PAID) == 1
    return JsonResponse({"paid": paid}, status=200 if paid else 409)
