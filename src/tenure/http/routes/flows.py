"""Routes for flows: create, list, show, draw, cancel and resume them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from tenure.errors import BadInput, FlowNotFound
from tenure.flows.svg import to_svg
from tenure.http.application import ApiRequest, parse_cursor
from tenure.http.error_response import ForeignTenant
from tenure.http.models import flows as models
from tenure.http.response import JsonResponse
from tenure.jobs.flow import Flow, NewNode
from tenure.jobs.flow_json import cancelled_to_json, flow_to_json, node_to_json, resumed_to_json
from tenure.jobs.validation import MAX_ID

#: What a browser may do with a picture: nothing but show it.
_PICTURE_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}


async def create_flow(request: ApiRequest, body: models.CreateFlow) -> JsonResponse:
    """Create a flow, with the jobs of the nodes that wait for none; all of it or nothing.

    With an idempotency key at most once: the same key and flow again get the first flow (200).
    """
    tenant = request.caller.resolve_tenant(body.tenant_id)
    key = request.idempotency_key(body.idempotency_key)
    nodes = [_node(n, one, tenant, request.given_trace_id) for n, one in enumerate(body.nodes)]
    created = await request.calls.store.flows.create(body.flow(nodes, tenant, key), created_by=request.caller.actor)
    jobs = {name: str(job_id) for name, job_id in created.jobs.items()}
    answer = {"id": str(created.id), "made": created.made, "jobs": jobs}
    return JsonResponse(answer, status_code=201 if created.made else 200)


def _node(n: int, one: models.NodeOfFlow, tenant: str | None, trace_id: str | None) -> NewNode:
    """A node of a body; a refusal says which."""
    try:
        node = one.node(tenant)
    except BadInput as error:
        raise type(error)(f"nodes[{n}]: {error}") from None
    if trace_id is not None and node.job.trace_id is None:
        node.job = replace(node.job, trace_id=trace_id)
    return node


async def list_flows(request: ApiRequest, query: models.FlowSearch) -> dict[str, Any]:
    """Flows, the newest first; a key that is bound to a tenant sees its own."""
    tenant = request.caller.resolve_tenant(query.tenant_id)
    found = await request.calls.store.flows.list(
        state=query.state, name=query.name, tenant_id=tenant, limit=query.limit, after=parse_cursor(query.cursor)
    )
    following = str(found[-1].id) if len(found) == query.limit else None
    return {"flows": [flow_to_json(one) for one in found], "next": following}


async def show_flow(request: ApiRequest, query: models.FlowQuery) -> dict[str, Any]:
    """A flow with its nodes, a page at a time."""
    flow = await _own_flow(request)
    after = parse_cursor(query.cursor)
    nodes = await request.calls.store.flows.page(flow.id, limit=query.limit, after=after) if query.limit else []
    following = str(max(node.id for node in nodes)) if nodes and len(nodes) == query.limit else None
    return {**flow_to_json(flow), "nodes": [node_to_json(node) for node in nodes], "next": following}


async def draw_flow(request: ApiRequest) -> Response:
    """A picture of a flow as it is now: its nodes with states and durations, and the critical path."""
    flow = await _own_flow(request)
    nodes = await request.calls.store.flows.nodes(flow.id)
    # In a thread: a flow may have thousands of nodes, and others' requests must not wait for its picture.
    async with request.calls.drawing:
        picture = await asyncio.to_thread(to_svg, flow, nodes, datetime.now(UTC))
    return Response(picture, media_type="image/svg+xml", headers=_PICTURE_HEADERS)


async def cancel_flow(request: ApiRequest, body: models.CancelFlow) -> dict[str, Any]:
    """Cancel a flow: no node starts any more, and its live jobs are cancelled where their contracts allow it.

    Clean-up nodes run when the others have ended. The same call again cancels the jobs that are still live.
    """
    flow = await _own_flow(request)
    cancelled = await request.calls.store.flows.cancel(
        flow.id, mode=body.mode, reason=body.reason, actor=request.caller.actor
    )
    return cancelled_to_json(cancelled)


async def resume_flow(request: ApiRequest, body: models.ResumeFlow) -> dict[str, Any]:
    """Run the failed and cancelled nodes of a flow again, all or these; what was skipped because of them waits again.

    It has no idempotency key: where an answer was lost, look at the flow first.
    """
    flow = await _own_flow(request)
    resumed = await request.calls.store.flows.resume(flow.id, nodes=body.nodes, actor=request.caller.actor)
    return resumed_to_json(resumed)


async def _own_flow(request: ApiRequest) -> Flow:
    """The flow that the path names; refuses one that does not exist or is another tenant's."""
    flow_id = int(request.path_text)
    if not 0 < flow_id <= MAX_ID:
        raise FlowNotFound(flow_id)
    flow = await request.calls.store.flows.read(flow_id)
    if request.caller.tenant not in (None, flow.tenant_id):
        raise ForeignTenant(f"flow {flow_id} is another tenant's. Next: use a key of that tenant")
    return flow
