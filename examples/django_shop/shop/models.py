"""What the shop stores."""

from django.db import models


class Order(models.Model):
    """An order, with the result id of its confirmation."""

    email = models.EmailField()
    amount = models.PositiveIntegerField()
    confirmation = models.CharField(max_length=64, default="")
    confirmed_at = models.DateTimeField(null=True)
    #: Set by Tenure's own task.
    packed = models.BooleanField(default=False)
