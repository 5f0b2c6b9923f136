"""Flows as JSON: the same fields from the command line, from the dispatcher, and in what its clients read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tenure.jobs.flow import CancelledFlow, Flow, FlowNode, ResumedFlow
from tenure.jobs.formats import ids_to_text


def flow_to_json(flow: Flow) -> dict[str, Any]:
    """A flow without its nodes."""
    fields = flow._asdict()
    counts = {f"{name}_count": fields.pop(field) for name, field in _COUNTS.items()}
    return {**ids_to_text(fields, "id"), **counts}


def flow_from_json(fields: Mapping[str, Any]) -> Flow:
    """The flow that `flow_to_json` has written."""
    return Flow(
        int(fields["id"]), fields["name"], fields["tenant_id"], fields["state"], fields["on_failure"],
        fields["node_count"], fields["open_count"], fields["failed_count"],
        datetime.fromisoformat(fields["created_at"]), _time(fields["ended_at"]), fields["created_by"],
    )  # fmt: skip


def node_to_json(node: FlowNode) -> dict[str, Any]:
    """A node of a flow."""
    fields = ids_to_text(node._asdict(), "id", "job_id", "part_of")
    return {**fields, "parents": [str(parent) for parent in node.parents]}


def node_from_json(fields: Mapping[str, Any]) -> FlowNode:
    """The node that `node_to_json` has written."""
    return FlowNode(
        int(fields["id"]), fields["name"], fields["state"], _id(fields["job_id"]), fields["type"], fields["contract"],
        fields["queue"], fields["open"], tuple(map(int, fields["parents"])), fields["on_failure"], fields["is_mapped"],
        fields["is_cleanup"], _id(fields["part_of"]), fields["error"], fields["job_state"],
        _time(fields["started_at"]), _time(fields["finished_at"]),
    )  # fmt: skip


def cancelled_to_json(cancelled: CancelledFlow) -> dict[str, Any]:
    """What cancelling a flow did."""
    counts = {"waiting_count": cancelled.waiting, "job_count": cancelled.jobs}
    return {"flow": flow_to_json(cancelled.flow), **counts, "left": dict(cancelled.left)}


def cancelled_from_json(fields: Mapping[str, Any]) -> CancelledFlow:
    """What `cancelled_to_json` has written."""
    return CancelledFlow(flow_from_json(fields["flow"]), fields["waiting_count"], fields["job_count"], fields["left"])


def resumed_to_json(resumed: ResumedFlow) -> dict[str, Any]:
    """What resuming a flow did."""
    jobs = {node: str(job_id) for node, job_id in resumed.jobs.items()}
    flow = flow_to_json(resumed.flow)
    return {"flow": flow, "jobs": jobs, "waiting_count": resumed.waiting, "left": dict(resumed.left)}


def resumed_from_json(fields: Mapping[str, Any]) -> ResumedFlow:
    """What `resumed_to_json` has written."""
    jobs = {node: int(job_id) for node, job_id in fields["jobs"].items()}
    return ResumedFlow(flow_from_json(fields["flow"]), jobs, fields["waiting_count"], fields["left"])


#: The counts of a flow, by the first part of their JSON names.
_COUNTS = {"node": "nodes", "open": "open", "failed": "failed"}


def _id(text: str | None) -> int | None:
    return None if text is None else int(text)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
