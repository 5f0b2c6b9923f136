"""Routes for operators: change jobs and queues, and look at contracts, queues and workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from tenure.errors import Refused, UnknownContract
from tenure.http import response
from tenure.http.application import ApiRequest
from tenure.http.error_response import ContractNotFound
from tenure.http.models import operators as models


async def _operate(request: ApiRequest, operation: Callable[..., Awaitable[Any]], body: Any) -> Any:
    """Call an operation of the store with the fields of the body; refuses a job of another tenant."""
    key = request.idempotency_key(body.idempotency_key)
    fields = body.model_dump(exclude={"idempotency_key"})
    return await operation(await request.own_job_id(), **fields, actor=request.caller.actor, key=key)


async def cancel_job(request: ApiRequest, body: models.Cancel) -> dict[str, Any]:
    """Cancel a job. hard: at once; soft: at once if it has not started, else its holder is asked to stop."""
    return response.outcome(await _operate(request, request.calls.store.cancel, body))


async def move_job(request: ApiRequest, body: models.Transition) -> dict[str, Any]:
    """Move a job to a state, by the path and guards of the trigger; refused if the contract has no such hop."""
    return response.outcome(await _operate(request, request.calls.store.transition, body))


async def move_job_to_queue(request: ApiRequest, body: models.MoveToQueue) -> dict[str, Any]:
    """Move a job without a holder to another queue; its state, due time and attempts stay."""

    async def move(job_id: int, queue: str, **options: Any) -> dict[str, Any]:
        (change,) = await request.calls.store.change_queue([job_id], queue, **options)
        if isinstance(change, Refused):
            raise change
        return {"id": str(job_id), "queue": change.queue, "before": change.before, "changed": change.changed}

    return dict(await _operate(request, move, body))


async def dead_letter_job(request: ApiRequest, body: models.DeadLetter) -> dict[str, Any]:
    """Set a job aside, with its reason."""
    return response.outcome(await _operate(request, request.calls.store.dead_letter, body))


async def requeue_job(request: ApiRequest, body: models.Requeue) -> dict[str, Any]:
    """Run a finished job again, as a new job that points back to it."""
    new_id = await _operate(request, request.calls.store.requeue, body)
    return {"id": str(request.job_id), "requeued_as": str(new_id)}


async def list_contracts(request: ApiRequest) -> dict[str, Any]:
    """The registered contracts, each in its newest version, with this dispatcher's numbers."""
    store = request.calls.store
    contracts = [await store.contract(name) for name in dict.fromkeys(await store.contracts())]
    return {"contracts": [response.contract(contract) for contract in contracts]}


async def show_contract(request: ApiRequest) -> dict[str, Any]:
    """One contract, as it is declared."""
    try:
        contract = await request.calls.store.contract(request.path_text)
    except UnknownContract as error:
        raise ContractNotFound(str(error)) from None
    return response.contract(contract)


async def list_queues(request: ApiRequest) -> dict[str, Any]:
    """The queues that have live jobs or are paused, with their counts over all tenants."""
    request.caller.require_all_tenants()
    return {"queues": [response.queue(queue) for queue in await request.calls.store.queues.list()]}


async def pause_queue(request: ApiRequest, body: models.PauseQueue) -> dict[str, Any]:
    """Stop claims from a queue. Held jobs go on, and a claim by job id still works."""
    request.caller.require_all_tenants()
    actor = request.caller.actor
    paused, is_new = await request.calls.store.queues.pause(body.queue, actor=actor, reason=body.reason)
    return {"queue": body.queue, "changed": is_new, "paused": asdict(paused)}


async def resume_queue(request: ApiRequest, body: models.ResumeQueue) -> dict[str, Any]:
    """Allow claims from a queue again."""
    request.caller.require_all_tenants()
    changed = await request.calls.store.queues.resume(body.queue, actor=request.caller.actor)
    return {"queue": body.queue, "changed": changed, "paused": None}


async def list_workers(request: ApiRequest) -> dict[str, Any]:
    """The live workers, busy or idle, and all other holders of jobs: what they claim and hold, and when last seen."""
    request.caller.require_all_tenants()
    return {"workers": [worker._asdict() for worker in await request.calls.store.workers.list()]}
