"""The pages of the shop, in JSON."""

import json

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponseBadRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from shop.models import Order
from shop.tasks import confirm, pack


@csrf_exempt
@require_POST
def create_order(request: HttpRequest) -> HttpResponseBase:
    """Store an order and its two jobs: all of them, or nothing."""
    given = json.loads(request.body)
    with transaction.atomic():
        order = Order.objects.create(email=given["email"], amount=given["amount"])
        order.confirmation = confirm.enqueue(order.pk).id
        pack.enqueue_in(connection, order.pk)
        if order.amount == 0:
            transaction.set_rollback(True)
            return HttpResponseBadRequest("an order has an amount")
        order.save()
    return JsonResponse({"id": order.pk, "confirmation": order.confirmation}, status=201)


@require_GET
def show_order(request: HttpRequest, order_id: int) -> HttpResponseBase:
    """Show an order, and how its confirmation stands."""
    order = get_object_or_404(Order, pk=order_id)
    confirmation = confirm.get_result(order.confirmation)
    return JsonResponse({"packed": order.packed, "confirmation": confirmation.status})
