"""The tasks of the shop: one of Django's framework, one of Tenure's own. The same worker runs both."""

from django.utils import timezone
from django_tasks import task  # Django 6: from django.tasks import task

from shop.models import Order
from tenure.integrations.django import app


@task(queue_name="mail", priority=10)
def confirm(order_id: int) -> str:
    """Confirm an order by mail."""
    order = Order.objects.get(pk=order_id)  # it is there: order and job were committed together
    print(f"Dear {order.email}, thank you for order {order.pk}", flush=True)
    order.confirmed_at = timezone.now()
    order.save(update_fields=["confirmed_at"])
    return order.email


@app().task(max_attempts=10, timeout=30)
def pack(order_id: int) -> None:
    """Pack an order."""
    Order.objects.filter(pk=order_id).update(packed=True)
