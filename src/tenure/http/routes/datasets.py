"""Routes for datasets: declare and read them, switch their generations, subscribe tasks, and stage rows."""

from __future__ import annotations

from typing import Any

from tenure.errors import DatasetNotFound
from tenure.http.application import ApiRequest, parse_cursor
from tenure.http.error_response import ForeignTenant
from tenure.http.models import datasets as models
from tenure.http.response import FastJsonResponse, JsonResponse
from tenure.jobs import dataset_json as as_json
from tenure.jobs.dataset import Generation, NewDataset, NewSubscription
from tenure.jobs.validation import MAX_ID
from tenure.postgres.datasets.datasets import Datasets

#: How many generations `show_dataset` shows.
_SHOWN = 20


async def list_datasets(request: ApiRequest, query: models.DatasetListQuery) -> dict[str, Any]:
    """The datasets by tenant and name; a key that is bound to a tenant sees its own."""
    tenant, after = request.caller.resolve_tenant(query.tenant_id), parse_cursor(query.cursor)
    found = await _datasets(request).list(tenant_id=tenant, limit=query.limit, after=after)
    following = str(found[-1].id) if len(found) == query.limit else None
    return {"datasets": list(map(as_json.dataset_to_json, found)), "next": following}


async def show_dataset(request: ApiRequest, query: models.DatasetQuery) -> dict[str, Any]:
    """A dataset with its newest generations and the tasks that run for its events."""
    datasets, name, tenant = _datasets(request), request.path_text, _tenant(request, query.tenant_id)
    found = await datasets.find(name, tenant_id=tenant)
    generations = await datasets.generations(name, tenant_id=tenant, limit=_SHOWN)
    subscriptions = await datasets.subscriptions(dataset=name, tenant_id=tenant)
    return {
        **as_json.dataset_to_json(found),
        "generations": list(map(as_json.generation_to_json, generations)),
        "subscriptions": list(map(as_json.subscription_to_json, subscriptions)),
    }


async def declare_dataset(request: ApiRequest, body: models.DeclareDataset) -> dict[str, Any]:
    """Create a dataset, or change what it keeps: the generation that jobs write which write this shape.

    A shape that no generation has makes a new one, which a cutover makes current.
    """
    new = NewDataset(request.path_text, _tenant(request, body.tenant_id), body.shape, body.keep)
    return as_json.generation_to_json(await _datasets(request).declare(new, created_by=request.caller.actor))


async def list_generations(request: ApiRequest, query: models.GenerationListQuery) -> dict[str, Any]:
    """The generations of a dataset, the newest first."""
    datasets, name, tenant = _datasets(request), request.path_text, _tenant(request, query.tenant_id)
    if query.number is not None:
        one = await datasets.generation(name, query.number, tenant_id=tenant)
        return {"generations": [as_json.generation_to_json(one)], "next": None}
    before = parse_cursor(query.cursor)
    found = await datasets.generations(name, tenant_id=tenant, limit=query.limit, before=before)
    following = str(found[-1].number) if len(found) == query.limit else None
    return {"generations": list(map(as_json.generation_to_json, found)), "next": following}


async def make_generation(request: ApiRequest, body: models.NewGeneration) -> dict[str, Any]:
    """Make an empty generation of the newest one's shape, which a cutover makes current."""
    tenant = _tenant(request, body.tenant_id)
    made = await _datasets(request).new_generation(
        request.path_text, tenant_id=tenant, created_by=request.caller.actor
    )  # fmt: skip
    return as_json.generation_to_json(made)


async def list_flow_generations(request: ApiRequest, query: models.FlowQuery) -> dict[str, Any]:
    """The generations that a flow writes, by dataset; a key that is bound to a tenant sees its own."""
    flow_id = int(query.flow_id)
    found = await _datasets(request).of_flow(flow_id) if 0 < flow_id <= MAX_ID else []
    tenant = request.caller.tenant
    return {"generations": [as_json.generation_to_json(one) for one in found if tenant in (None, one.tenant_id)]}


async def read_current(request: ApiRequest, body: models.CurrentSet) -> dict[str, Any]:
    """The current generations of these datasets, all as they were at one moment: never a mixed set."""
    found = await _datasets(request).current(body.datasets, tenant_id=_tenant(request, body.tenant_id))
    return {"generations": list(map(as_json.generation_to_json, found.values()))}


async def show_generation(request: ApiRequest) -> dict[str, Any]:
    """A generation of a dataset, by its id."""
    return as_json.generation_to_json(await _generation(request))


async def list_rows(request: ApiRequest, query: models.RowQuery) -> JsonResponse:
    """The rows of a generation by scope and key; a page ends early, with `next`, when its rows are large.

    A scope that is replaced while it is read is read as it was, or as it is then: never a mix.
    """
    generation = await _generation(request)
    page = await _datasets(request).page(generation.id, query.scope, limit=query.limit, after=query.after)
    rows = [{"scope": row.scope, "key": row.key, "value": row.value} for row in page.rows]
    return FastJsonResponse({"rows": rows, "next": page.next})


async def list_pointers(request: ApiRequest, query: models.PointerQuery) -> dict[str, Any]:
    """Where the data of a generation is kept, by scope."""
    generation = await _generation(request)
    found = await _datasets(request).pointers(generation.id, limit=query.limit, after=query.after)
    following = found[-1].scope if len(found) == query.limit else None
    return {"pointers": list(map(as_json.pointer_to_json, found)), "next": following}


async def cut_over(request: ApiRequest, body: models.Cutover) -> dict[str, Any]:
    """Make these generations current, all in one transaction, or none; the log names the key's person."""
    done = await _datasets(request).cutover(
        body.generations, actor=request.caller.actor, reason=body.reason, tenant_id=_tenant(request, body.tenant_id)
    )
    return as_json.switch_to_json(done)


async def roll_back(request: ApiRequest, body: models.Rollback) -> dict[str, Any]:
    """Undo the last cutover of these datasets for its whole set, and cancel the jobs that wait to write to it.

    Not repeatable: the same call again undoes the cutover before. After a lost answer, look at the switches.
    """
    done = await _datasets(request).rollback(
        body.datasets, actor=request.caller.actor, reason=body.reason, tenant_id=_tenant(request, body.tenant_id)
    )
    return as_json.rolled_back_to_json(done)


async def list_switches(request: ApiRequest, query: models.SwitchQuery) -> dict[str, Any]:
    """Cutovers and rollbacks with the people who made them, the newest first."""
    found = await _datasets(request).switches(
        dataset=query.dataset, tenant_id=_tenant(request, query.tenant_id), limit=query.limit,
        before=parse_cursor(query.cursor),
    )  # fmt: skip
    following = str(found[-1].id) if len(found) == query.limit else None
    return {"switches": list(map(as_json.switch_to_json, found)), "next": following}


async def list_subscriptions(request: ApiRequest, query: models.SubscriptionQuery) -> dict[str, Any]:
    """The tasks that run for events of datasets; a key that is bound to a tenant sees its own."""
    tenant = request.caller.resolve_tenant(query.tenant_id)
    found = await _datasets(request).subscriptions(dataset=query.dataset, tenant_id=tenant)
    return {"subscriptions": list(map(as_json.subscription_to_json, found))}


async def subscribe(request: ApiRequest, body: models.Subscribe) -> dict[str, Any]:
    """Run these tasks for each event of their datasets from now on; one for each dataset, contract and type."""
    new = [
        NewSubscription(one.dataset, one.job.job(request.caller.resolve_tenant(one.job.tenant_id)), one.argument)
        for one in body.subscriptions
    ]
    return {"ids": list(map(str, await _datasets(request).subscribe(new, application=body.application)))}


async def unsubscribe(request: ApiRequest, body: models.Unsubscribe) -> dict[str, Any]:
    """End a subscription; events that wait for it are dropped."""
    tenant = _tenant(request, body.tenant_id)
    ended = await _datasets(request).unsubscribe(body.dataset, body.type, contract=body.contract, tenant_id=tenant)
    return {"ended": ended}


async def list_job_datasets(request: ApiRequest) -> dict[str, Any]:
    """The generations that a job reads and writes, and what its completion added."""
    datasets, job_id = _datasets(request), await request.own_job_id()
    pins, outputs = await datasets.pins(job_id), await datasets.outputs(job_id)
    return {
        "pins": list(map(as_json.pin_to_json, pins)), "outputs": list(map(as_json.stored_output_to_json, outputs)),
    }  # fmt: skip


async def stage_rows(request: ApiRequest, body: models.Stage) -> dict[str, Any]:
    """Store rows for the completion of this attempt, which names them by the number of the answer.

    For outputs that are too large for one request. Without that completion, the rows leave.
    """
    held = await request.calls.held(request.job_id, body.claims, body.lease_token, request.caller)
    staged = await _datasets(request).stage_rows(
        held, body.dataset, body.rows, body.keys, staged=None if body.staged is None else int(body.staged),
        first=body.first,
    )  # fmt: skip
    return {"staged": str(staged.number), "rows": staged.rows}


def _datasets(request: ApiRequest) -> Datasets:
    return request.calls.store.datasets


def _tenant(request: ApiRequest, tenant: str | None) -> str:
    """The tenant whose datasets are meant; refuses one that is not the key's."""
    return request.caller.resolve_tenant(tenant) or "default"


async def _generation(request: ApiRequest) -> Generation:
    """The generation in the path; refuses one that does not exist or is another tenant's."""
    generation_id = int(request.path_text)
    if not 0 < generation_id <= MAX_ID:
        raise DatasetNotFound(generation_id=generation_id or -1)
    found = await _datasets(request).by_id(generation_id)
    if request.caller.tenant not in (None, found.tenant_id):
        raise ForeignTenant(f"generation {generation_id} is another tenant's. Next: use a key of that tenant")
    return found
