from django.db import models


class Product(models.Model):
    name = models.CharField(max_length=100, unique=True)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    stock = models.PositiveIntegerField()


class Order(models.Model):
    class State(models.TextChoices):
        UNPAID = "unpaid"
        PAID = "paid"
        EXPIRED = "expired"

    product = models.ForeignKey(Product, on_delete=models.PROTECT)
    email = models.EmailField()
    state = models.CharField(max_length=10, choices=State.choices, default=State.UNPAID)
    placed_at = models.DateTimeField(auto_now_add=True)
