"""Create a flow: its nodes, with ids reserved for their jobs, and the jobs of the nodes that need no other."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tenure.contracts.declaration import Contract
from tenure.errors import BadInput, FlowConflict
from tenure.jobs import validation
from tenure.jobs.flow import FlowMade, NewFlow, NewNode, flow_fingerprint
from tenure.postgres.datasets.pins import pin_flow
from tenure.postgres.flow_starts import NewNodeJob, StartedNodes, insert_node_jobs
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Atomic, Plan, carried, if_any, statement
from tenure.postgres.stored_job import job_options


class PreparedFlow(NamedTuple):
    """A checked flow: its nodes in order, each behind its parents, with their payloads as JSON."""

    flow: NewFlow
    nodes: Sequence[NewNode]
    payloads: Sequence[str]
    fingerprint: str | None
    created_by: str | None


def prepare_flow(registry: Registry, flow: NewFlow, nodes: Sequence[NewNode], max_bytes: int) -> Plan[list[str]]:
    """Check the jobs of all nodes; returns their payloads as JSON."""
    payloads: list[str] = []
    contracts: dict[tuple[str, str | None], Contract] = {}
    alike = validation.differ_only_in_payload([node.job for node in nodes])
    for node in nodes:
        job = _job(flow, node)
        try:
            if (which := (job.contract, job.version)) not in contracts:
                contracts[which] = (yield from registry.bound_contract(*which)).contract
            if alike and payloads:
                payloads.append(validation.to_json("payload", job.payload, max_bytes))
            else:
                payloads.append(validation.check_new_job(contracts[which], job, max_bytes))
        except BadInput as error:
            raise type(error)(f"node {node.name!r}: {error}") from None
    return payloads


def _job(flow: NewFlow, node: NewNode) -> Any:
    return node.job if node.job.tenant_id == flow.tenant_id else replace(node.job, tenant_id=flow.tenant_id)


def hash_flow(flow: NewFlow) -> str | None:
    """The hash of a flow with a key: a repeated key must have the same one."""
    if flow.key is None:
        return None
    return hashlib.sha256(json.dumps(flow_fingerprint(flow), sort_keys=True, default=str).encode()).hexdigest()


def create_plan(
    registry: Registry, prepared: PreparedFlow, max_bytes: int
) -> Plan[tuple[FlowMade, set[tuple[str, str]]]]:
    """Create a flow in one transaction, unless its key stands for it already; returns also the queues of new jobs."""
    flow = prepared.flow
    if flow.key is not None and (first := (yield from _first_of_key(prepared))) is not None:
        return first, set()
    made: tuple[FlowMade, set[tuple[str, str]]] = yield Atomic(_create(registry, prepared, max_bytes))
    return made


def _first_of_key(prepared: PreparedFlow) -> Plan[FlowMade | None]:
    flow = prepared.flow
    rows = yield statement("find_flow_of_key", {"tenant_id": flow.tenant_id, "key": flow.key})
    for flow_id, fingerprint in rows:
        if fingerprint != prepared.fingerprint:
            raise FlowConflict(
                f"the key {flow.key!r} was used before for another flow, {flow_id}. Next: use a new key, or "
                f"tenure flows show {flow_id}"
            )
        nodes = yield statement("list_first_nodes", {"id": flow_id})
        return FlowMade(flow_id, dict(nodes), made=False)
    return None


def _create(registry: Registry, prepared: PreparedFlow, max_bytes: int) -> Plan[tuple[FlowMade, set[tuple[str, str]]]]:
    flow, nodes = prepared.flow, prepared.nodes
    rows = yield statement("reserve_job_ids", {"count": len(nodes)})
    ids = {node.name: job_id for node, (job_id,) in zip(nodes, rows, strict=True)}
    values = {
        "first_id": rows[0][0], "last_id": rows[-1][0], "nodes": len(nodes),
        "cleanups": sum(node.cleanup for node in nodes), "name": flow.name, "tenant_id": flow.tenant_id,
        "on_failure": flow.on_failure, "key": flow.key, "fingerprint": prepared.fingerprint,
        "created_by": prepared.created_by,
    }  # fmt: skip
    while not (inserted := (yield statement("insert_flow", values))):
        # Another call with the same key was faster; if retention has deleted its flow since, the key is free again.
        if (first := (yield from _first_of_key(prepared))) is not None:
            return first, set()
    ((flow_id,),) = inserted
    if any(node.job.uses_datasets for node in nodes):
        of_nodes = [(ids[node.name], _job(flow, node)) for node in nodes]
        jobs = yield from pin_flow(flow_id, flow.tenant_id, of_nodes, prepared.created_by)
        nodes = [replace(node, job=job) for node, job in zip(nodes, jobs, strict=True)]
    columns = _columns(nodes, ids)
    texts = [
        f"{payload}{parents}{children}"
        for payload, parents, children in zip(prepared.payloads, columns["parents"], columns["children"], strict=True)
    ]
    columns["payloads"] = list(prepared.payloads)
    for part in carried(range(len(nodes)), texts):
        chosen = {name: if_any([column[n] for n in part]) for name, column in columns.items()}
        yield statement("insert_flow_nodes", {"flow_id": flow_id, **chosen})
    started = StartedNodes()
    first_jobs = [
        NewNodeJob(ids[node.name], ids[node.name], _job(flow, node), prepared.created_by, payload)
        for node, starts, payload in zip(nodes, columns["starts"], prepared.payloads, strict=True)
        if starts == "true"
    ]
    yield from insert_node_jobs(registry, first_jobs, max_bytes, started)
    return FlowMade(flow_id, ids), started.queues


def _columns(nodes: Sequence[NewNode], ids: Mapping[str, int]) -> dict[str, list[Any]]:
    """The parameters of insert_flow_nodes.sql, but the payloads."""
    children: dict[str, list[int]] = {node.name: [] for node in nodes}
    feeding: set[str] = set()
    parents: list[list[int]] = []
    for node in nodes:
        node_id, of_node = ids[node.name], node.parents()
        for parent in of_node:
            children[parent].append(node_id)
        parents.append([ids[parent] for parent in of_node])
        if node.inputs:
            feeding.update(name for given in node.inputs.values() for name in _listed(given))
    starts = [not of_node and not node.cleanup for node, of_node in zip(nodes, parents, strict=True)]
    return {
        "ids": [ids[node.name] for node in nodes],
        "names": [node.name for node in nodes],
        "starts": [_flag(one) for one in starts],
        "opens": [len(of_node) for of_node in parents],
        "cleanups": [_flag(node.cleanup) for node in nodes],
        "feeds": [_flag(node.name in feeding) for node in nodes],
        "policies": [node.on_failure for node in nodes],
        "mapped": [node.each for node in nodes],
        "contracts": [node.job.contract for node in nodes],
        "queues": [node.job.queue for node in nodes],
        "types": [node.job.type for node in nodes],
        "parents": [_array(of_node) for of_node in parents],
        "children": [_array(children[node.name]) for node in nodes],
        "inputs": [json.dumps(_inputs(node, ids)) if node.inputs else None for node in nodes],
        "options": [json.dumps(options) if (options := job_options(node.job)) else None for node in nodes],
    }


def _inputs(node: NewNode, ids: Mapping[str, int]) -> dict[str, int | list[int]]:
    """Argument → the id of the parent whose result it becomes, or the ids of several."""
    return {
        argument: ids[given] if isinstance(given, str) else [ids[parent] for parent in given]
        for argument, given in node.inputs.items()
    }


def _listed(given: str | Sequence[str]) -> Sequence[str]:
    return [given] if isinstance(given, str) else given


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _array(ids: Sequence[int]) -> str:
    return "{" + ",".join(map(str, ids)) + "}"
