"""What operators do to flows, under the lock of the flow's row: cancel, resume, and requeue the job of a node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from tenure.errors import BadInput, FlowConflict, FlowNotFound, Refused
from tenure.postgres.flow_advance import LockedFlow, apply_ends, end_waiting, lock_flows, take_ends
from tenure.postgres.flow_resume import BAD, GraphNode, read_graph, reset_nodes
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Plan, statement

Queues = Collection[tuple[str, str]]


class Cancelling(NamedTuple):
    """A flow that is being cancelled: how many waiting nodes will not start, job → its node, and the queues to wake."""

    waiting: int
    nodes: dict[int, str]
    queues: Queues


def begin_cancel(registry: Registry, flow_id: int, max_bytes: int) -> Plan[Cancelling]:
    """Let no node of a flow start any more, but its clean-up nodes; returns the live jobs of the others.

    Runs in one transaction; a repeat finds the jobs that are live still. Refuses a flow that has ended otherwise.
    """
    flow, flows = yield from _lock(flow_id)
    queues = yield from _catch_up(registry, flows, max_bytes)
    if flow.state == "cancelled":
        return Cancelling(0, {}, queues)
    if flow.state not in ("running", "cancelling"):
        raise FlowConflict(f"flow {flow_id} has {flow.state} already. Next: tenure flows show {flow_id}")
    flow.state = "cancelling"
    waiting = yield from end_waiting(flows, [flow_id], "cancelled", cleanups=[False])
    queues |= yield from apply_ends(registry, flows, [], max_bytes, changed=True)
    rows = yield statement("list_started_jobs", {"id": flow_id})
    return Cancelling(waiting, {job_id: name for name, job_id in rows}, queues)


class Requeued(NamedTuple):
    """What a requeue did: the new job, the queues to wake, and the flows that it locked."""

    made: int | Refused
    queues: Queues = ()
    flows: Sequence[int] = ()


class Resuming(NamedTuple):
    """What a resume did, and the queues to wake."""

    jobs: dict[str, int]
    waiting: int
    left: dict[str, str]
    queues: Queues


def resume_plan(registry: Registry, flow_id: int, names: Sequence[str] | None, max_bytes: int) -> Plan[Resuming]:
    """Run failed and cancelled nodes again, all or these; runs in one transaction."""
    flow, flows = yield from _lock(flow_id)
    queues = yield from _catch_up(registry, flows, max_bytes)
    if flow.state == "cancelling":
        raise FlowConflict(f"flow {flow_id} is being cancelled. Next: resume it when its jobs have ended")
    graph = yield from read_graph(flow)
    left: dict[str, str] = {}
    chosen = [node.id for node in _named(graph, names) if _may_run_again(node, left, named=names is not None)]
    if chosen:
        resumed = yield from reset_nodes(flow, graph, chosen)
        left |= resumed.left
    if not chosen or len(resumed.left) == len(chosen):
        why = "; ".join(f"node {name!r}: {reason}" for name, reason in left.items()) or "no node ended badly"
        raise FlowConflict(f"nothing of flow {flow_id} can be resumed: {why}. Next: tenure flows show {flow_id}")
    ready = yield from resumed.ready(flow_id)
    queues |= yield from apply_ends(registry, flows, [], max_bytes, ready, changed=True)
    jobs = {node.name: node.job_id for node in resumed.started if node.job_id is not None}
    return Resuming(jobs, resumed.waiting, left, queues)


def _named(graph: dict[int, GraphNode], names: Sequence[str] | None) -> list[GraphNode]:
    if names is None:
        return list(graph.values())
    by_name = {node.name: node for node in graph.values()}
    if unknown := [name for name in names if name not in by_name]:
        raise BadInput(f"the flow has no node {unknown[0]!r}. Next: tenure flows show lists them")
    return [by_name[name] for name in dict.fromkeys(names)]


def _may_run_again(node: GraphNode, left: dict[str, str], *, named: bool) -> bool:
    if node.state in BAD:
        return True
    if named:
        left[node.name] = f"it is {node.state}"
    return False


def _lock(flow_id: int) -> Plan[tuple[LockedFlow, dict[int, LockedFlow]]]:
    flows = yield from lock_flows([flow_id])
    if flow_id not in flows:
        raise FlowNotFound(flow_id)
    return flows[flow_id], flows


def _catch_up(registry: Registry, flows: dict[int, LockedFlow], max_bytes: int) -> Plan[set[tuple[str, str]]]:
    """Take all ended jobs of these flows into account."""
    queues: set[tuple[str, str]] = set()
    while True:
        _, ends, ended = yield from take_ends(list(flows))
        if not ends:
            return queues
        queues |= yield from apply_ends(registry, flows, ended, max_bytes)


def requeue_node(
    registry: Registry, job_id: int, insert: Callable[[int | None], Plan[int | Refused]], max_bytes: int
) -> Plan[Requeued]:
    """Run `insert`, which makes a new job of an ended one, and let the flow go on with it if the job ran a node.

    `insert` takes the node of the new job. None: the old job was in no flow, or its node ran again since, or did not
    end badly, or the flow is being cancelled.
    """
    rows = yield statement("find_node_of_job", {"job_id": job_id})
    flows = yield from lock_flows([flow_id for _, flow_id in rows])
    if not flows:
        return Requeued((yield from insert(None)))
    ((node_id, flow_id),) = rows
    flow = flows[flow_id]
    queues = yield from _catch_up(registry, flows, max_bytes)
    graph = yield from read_graph(flow)
    node = graph[node_id]
    if flow.state == "cancelling" or node.job_id != job_id or node.state not in BAD:
        return Requeued((yield from insert(None)), queues, [flow_id])
    made = yield from insert(node_id)
    if isinstance(made, int):
        resumed = yield from reset_nodes(flow, graph, [node_id], {node_id: made})
        ready = yield from resumed.ready(flow_id)
        queues |= yield from apply_ends(registry, flows, [], max_bytes, ready, changed=True)
    return Requeued(made, queues, [flow_id])
