"""Flows through a dispatcher: the same calls as `tenure.postgres.flows.Flows`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from uuid import uuid4

from tenure.client.dispatcher_requests import DispatcherRequests, repeat_if_lost
from tenure.client.job_request import job_fields, tenant_field
from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.flow import (
    CancelledFlow,
    Flow,
    FlowMade,
    FlowNode,
    FlowState,
    NewFlow,
    NewNode,
    ResumedFlow,
    check_flow,
)
from tenure.jobs.flow_json import cancelled_from_json, flow_from_json, node_from_json, resumed_from_json

T = TypeVar("T")
_PATH = "/api/v1/flows"
#: The most nodes that a dispatcher takes in one request.
_MAX_NODES = 10_000
#: How many nodes one request reads, and seconds that a call about thousands of jobs may take.
_PAGE, _LONG_S = 1_000, 120.0


class RemoteFlows:
    """The flows behind one dispatcher. The dispatcher records the owner of the API key, not an actor."""

    def __init__(self, requests: DispatcherRequests, max_bytes: int) -> None:
        self._requests = requests
        self._max_bytes = max_bytes

    async def create(self, flow: NewFlow, *, created_by: str | None = None) -> FlowMade:
        """Create a flow, with the jobs of the nodes that need no other; with a key, at most once."""
        check_flow(flow)
        if len(flow.nodes) > _MAX_NODES:
            raise BadInput(
                f"flow {flow.name!r} has {len(flow.nodes)} nodes, and a dispatcher takes {_MAX_NODES}. "
                "Next: start it from a process that is connected to the database, or map over a list"
            )
        keyed = flow if flow.key is not None else replace(flow, key=f"made:{uuid4().hex}")
        body = self._to_json(keyed)
        made = await repeat_if_lost(
            lambda: self._requests.send("POST", _PATH, body, _made, wait_s=_LONG_S, traced=True)
        )
        # No other caller has a key that was made here: this call made the flow, even if not at its first try.
        return made if flow.key is not None else made._replace(made=True)

    async def read(self, flow_id: int) -> Flow:
        """Return a flow; raises FlowNotFound."""
        return flow_from_json(await self._show(flow_id, limit=0))

    async def nodes(self, flow_id: int) -> Sequence[FlowNode]:
        """Return the nodes of a flow, members too, each behind its parents; raises FlowNotFound."""
        found: list[FlowNode] = []
        cursor: str | None = ""
        while cursor is not None:
            page = await self._show(flow_id, limit=_PAGE, cursor=cursor)
            found += map(node_from_json, page["nodes"])
            cursor = page["next"]
        return sorted(found, key=lambda node: (node.part_of or node.id, node.id))

    async def list(
        self,
        *,
        state: FlowState | None = None,
        name: str | None = None,
        tenant_id: str | None = None,
        limit: int = 50,
        after: int | None = None,
    ) -> Sequence[Flow]:
        """Return flows, newest first; `after` is the id of the last one of the page before."""
        given = {"state": state, "name": name, "tenant_id": tenant_id, "limit": limit, "cursor": after}
        params = {key: str(value) for key, value in given.items() if value is not None}
        return await repeat_if_lost(lambda: self._requests.send("GET", _PATH, None, _flows, params=params, traced=True))

    async def cancel(
        self, flow_id: int, *, mode: str = "soft", reason: str | None = None, actor: str = "unknown"
    ) -> CancelledFlow:
        """Cancel a flow. Where an answer was lost it is called again, and counts only what was left to do."""
        body = validation.to_json("cancel", {"mode": mode, "reason": reason})
        path = f"{_path(flow_id)}/cancel"
        return await repeat_if_lost(
            lambda: self._requests.send("POST", path, body, cancelled_from_json, wait_s=_LONG_S, traced=True)
        )

    async def resume(self, flow_id: int, *, nodes: Sequence[str] | None = None, actor: str = "unknown") -> ResumedFlow:
        """Run failed and cancelled nodes again. Where an answer was lost it is not called again: it may have run."""
        body = validation.to_json("resume", {} if nodes is None else {"nodes": list(nodes)}, self._max_bytes)
        path = f"{_path(flow_id)}/resume"
        return await self._requests.send("POST", path, body, resumed_from_json, wait_s=_LONG_S, traced=True)

    async def _show(self, flow_id: int, **query: Any) -> Any:
        path = _path(flow_id)
        params = {name: str(value) for name, value in query.items() if value != ""}
        return await repeat_if_lost(lambda: self._requests.send("GET", path, None, params=params, traced=True))

    def _to_json(self, flow: NewFlow) -> str:
        """The flow as the body of a request."""
        fields = {
            "name": flow.name, "on_failure": flow.on_failure, "idempotency_key": flow.key,
            **tenant_field(flow.tenant_id),
        }  # fmt: skip
        nodes: list[str] = []
        for node in flow.nodes:
            try:
                nodes.append(self._node_to_json(node))
            except BadInput as error:
                raise type(error)(f"node {node.name!r}: {error}") from None
        return f'{validation.to_json("flow", fields)[:-1]},"nodes":[{",".join(nodes)}]}}'

    def _node_to_json(self, node: NewNode) -> str:
        fields, payload = job_fields(node.job, self._max_bytes)
        if node.after:
            fields["after"] = list(node.after)
        if node.inputs:
            fields["inputs"] = {
                argument: given if isinstance(given, str) else list(given) for argument, given in node.inputs.items()
            }
        optional = {"each": node.each, "on_failure": node.on_failure, "cleanup": node.cleanup or None}
        fields |= {"name": node.name, **{name: value for name, value in optional.items() if value is not None}}
        return f'{validation.to_json("node", fields, self._max_bytes)[:-1]},"payload":{payload}}}'


def _path(flow_id: int) -> str:
    return f"{_PATH}/{validation.check_integer('flow', flow_id, 1, validation.MAX_ID)}"


def _made(answer: Mapping[str, Any]) -> FlowMade:
    return FlowMade(
        int(answer["id"]), {name: int(job_id) for name, job_id in answer["jobs"].items()}, answer["made"]
    )  # fmt: skip


def _flows(answer: Mapping[str, Any]) -> list[Flow]:
    return [flow_from_json(one) for one in answer["flows"]]
