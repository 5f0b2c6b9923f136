"""Run nodes of a flow again: those that failed or were cancelled; what was skipped because of them waits again.

    read the nodes ─▶ which run again, which wait again ─▶ count what each waits for ─▶ write them back

A node that runs again gets a new job and keeps its id. It waits for its parents if they run again too. Nodes that ended
well stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tenure.postgres.flow_advance import LockedFlow
from tenure.postgres.flow_starts import NodeToStart
from tenure.postgres.statement import Plan, statement

BAD: Final = ("failed", "cancelled")


@dataclass(slots=True)
class GraphNode:
    """A node as a resume sees it; `on_failure` is the policy that applies to it."""

    id: int
    name: str
    state: str
    on_failure: str
    part_of: int | None
    is_mapped: bool
    is_cleanup: bool
    job_id: int | None
    parents: Sequence[int]
    open: int

    @property
    def blocks(self) -> bool:
        """Whether its children cannot start because of how it ended."""
        return self.state == "skipped" or (self.state in BAD and self.on_failure != "continue")

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.state in ("waiting", "started")


@dataclass(slots=True)
class Resumed:
    """What a resume did: nodes that start again, how many wait again, and node → why it was left."""

    started: list[GraphNode]
    waiting: int
    left: Mapping[str, str]

    def ready(self, flow_id: int) -> Plan[list[NodeToStart]]:
        """Measure the nodes to start; returns them as `apply_ends` takes them."""
        if not self.started:
            return []
        members = Counter(node.part_of for node in self.started)
        rows = yield statement("measure_nodes", {"ids": sorted({node.part_of or node.id for node in self.started})})
        # A member has one item of the list: no more than the list divided by the members that run again.
        sizes = {node_id: size + listed // max(1, members[node_id]) for node_id, size, listed in rows}
        return [
            NodeToStart(node.id, flow_id, sizes[node.part_of or node.id], is_member=node.part_of is not None)
            for node in self.started
        ]


def read_graph(flow: LockedFlow) -> Plan[dict[int, GraphNode]]:
    """Read all nodes of a locked flow, by id: parents come first."""
    rows = yield statement("read_flow_graph", {"id": flow.id, "on_failure": flow.on_failure})
    return {row[0]: GraphNode(*row) for row in rows}


def reset_nodes(
    flow: LockedFlow,
    graph: Mapping[int, GraphNode],
    chosen: Collection[int],
    made: Mapping[int, int] | None = None,
) -> Plan[Resumed]:
    """Let these nodes, which ended badly, run again; `made`: node → the job that was made for it already.

    The caller has locked the flow, and goes on with `apply_ends` and the nodes that are ready.
    """
    before = {node.id: (node.state, node.open) for node in graph.values()}
    made, left = made or {}, dict[str, str]()
    again = _run_again(graph, chosen, made, left)
    for node in graph.values():  # parents first
        waits_again = node.id in again and node.state == "waiting"
        blocking = _blocking(node, graph) if waits_again or node.state == "skipped" else None
        if waits_again and blocking is not None:
            node.state, _ = before[node.id]
            again.remove(node.id)
            left[node.name] = f"its parent {blocking.name!r} is {blocking.state}"
        elif (node.state == "skipped" and blocking is None) or (node.is_cleanup and node.state != "started"):
            node.state = "waiting"
            again.add(node.id)
    started = _count_open(graph, again, made)
    yield from _give_jobs(flow, [graph[node_id] for node_id in again if not graph[node_id].is_mapped], made)
    changed = [node for node in graph.values() if node.id in again or before[node.id] != (node.state, node.open)]
    values = {
        "ids": [node.id for node in changed], "states": [node.state for node in changed],
        "opens": [node.open for node in changed], "job_ids": [node.job_id for node in changed],
    }  # fmt: skip
    if changed:
        yield statement("reset_flow_nodes", values)
    _recount(flow, graph)
    waiting = sum(graph[node_id].state == "waiting" and not graph[node_id].is_cleanup for node_id in again)
    return Resumed(started, waiting, left)


def _blocking(node: GraphNode, graph: Mapping[int, GraphNode]) -> GraphNode | None:
    """A parent because of which the node cannot start."""
    return next((graph[parent] for parent in node.parents if graph[parent].blocks), None)


def _run_again(
    graph: Mapping[int, GraphNode], chosen: Collection[int], made: Mapping[int, int], left: dict[str, str]
) -> set[int]:
    """Set the states of nodes that run again; returns their ids. Of a mapped node, its members that ended badly do."""
    members: dict[int, list[GraphNode]] = {}
    for node in graph.values():
        if node.part_of is not None:
            members.setdefault(node.part_of, []).append(node)
    again: set[int] = set()
    for node in [graph[node_id] for node_id in chosen]:
        bad = [member for member in members.get(node.id, ()) if member.state in BAD]
        if node.part_of is not None:
            bad = [node]
        elif node.id in members and not bad and node.state in BAD:
            left[node.name] = "its members have succeeded, and their results are too large together"
            continue
        elif not bad:
            node.state = "started" if node.id in made else "waiting"
            again.add(node.id)
        for member in bad:
            member.state = "started"
            again.add(member.id)
            if member.part_of is not None:
                graph[member.part_of].state = "started"
    for mapped in members:
        graph[mapped].open = sum(member.is_open for member in members[mapped])
    return again


def _count_open(graph: Mapping[int, GraphNode], again: Collection[int], made: Mapping[int, int]) -> list[GraphNode]:
    """Count what each waiting node waits for; returns the nodes that wait for nothing and are to be started."""
    started = [graph[node_id] for node_id in again if graph[node_id].part_of is not None]
    for node in graph.values():
        if node.state != "waiting" or node.is_cleanup:
            continue
        node.open = sum(graph[parent].is_open for parent in node.parents)
        if node.open == 0:
            node.state = "started"
            started.append(node)
    return sorted((node for node in started if node.id not in made), key=lambda node: node.id)


def _give_jobs(flow: LockedFlow, nodes: Sequence[GraphNode], made: Mapping[int, int]) -> Plan[None]:
    """Reserve the id of a new job for each of these nodes."""
    to_make = sorted((node for node in nodes if node.id not in made), key=lambda node: node.id)
    rows = (yield statement("reserve_job_ids", {"count": len(to_make)})) if to_make else []
    for node, (job_id,) in zip(to_make, rows, strict=True):
        node.job_id = job_id
    for node in nodes:
        node.job_id = made.get(node.id, node.job_id)
    flow.last_id = max([flow.last_id, *(node.job_id for node in nodes if node.job_id is not None)])


def _recount(flow: LockedFlow, graph: Mapping[int, GraphNode]) -> None:
    """Set the counts of a flow that runs again."""
    bad = [node for node in graph.values() if node.state in BAD]
    flow.state = "running"
    flow.open = sum(node.is_open for node in graph.values())
    flow.cleanups = sum(node.is_cleanup and node.state == "waiting" for node in graph.values())
    flow.failed = len(bad)
    flow.tolerated = sum(node.on_failure == "continue" for node in bad)
