"""The facts about flows that the audit checks: counts, starts and ends of nodes, and the state of the flow."""

from __future__ import annotations

from collections.abc import Iterator

from tenure.postgres.audit_reads import AuditedFlow, AuditedNode, UntakenEnd

#: After this many minutes, an ended job that its flow did not take into account is a violation.
LATE_MINUTES = 10

#: The doubts that audit_flow_nodes.sql finds about a node.
_DOUBTS = {
    "blocked": "it waits, and a parent ended so that it will not start",
    "parents": "the number of parents that it waits for is not the number of those that have not ended",
    "ready": "it waits, and all its parents have ended",
    "early": "it was started before its parents had ended",
    "members": "the number of members that it waits for is not the number of those that have not ended",
    "whole": "its members have ended, and it has not",
    "jobless": "it is started, and its job is not live and has left no end",
    "both": "its job is live, and has left an end",
    "times": "its times are not those of a node that is {state}",
}


def check_flow(flow: AuditedFlow) -> Iterator[str]:
    """Yield what is wrong with a flow's own row."""
    there = flow.by_nodes
    for name in ("nodes", "open", "cleanups", "failed"):
        row, nodes = getattr(flow, name), getattr(there, name)
        if row != nodes:
            yield f"{name} is {row} in the row, and {nodes} by the nodes"
    if flow.tolerated > there.tolerated:  # less: nodes that were cancelled while they waited are not tolerated
        yield f"tolerated is {flow.tolerated} in the row, and {there.tolerated} by the nodes"
    has_ended = flow.state not in ("running", "cancelling")
    if has_ended != (there.open == 0):
        yield f"it is {flow.state}, and {there.open} of its nodes have not ended"
    elif not has_ended and there.open == there.cleanups:
        yield f"it is {flow.state}, and only clean-up nodes that wait have not ended"
    elif (
        (flow.state == "succeeded" and there.failed > there.tolerated)
        or (flow.state == "failed" and there.failed == there.tolerated)
        or (flow.state == "cancelled" and there.failed == 0)
    ):
        yield f"it is {flow.state}, and {there.failed} nodes ended badly, {there.tolerated} of them tolerated"


def check_node(node: AuditedNode) -> Iterator[str]:
    """Yield what is wrong with a node that has doubts."""
    for doubt in node.doubts.split():
        yield f"node {node.name!r} of flow {node.flow_id}: {_DOUBTS[doubt].format(state=node.state)}"


def check_end(end: UntakenEnd) -> str:
    """What is wrong with the end of a job that was not taken into account."""
    if not end.is_of_node:
        return f"it ended as a node that flow {end.flow_id} does not have"
    return f"it ended more than {LATE_MINUTES} minutes ago, and flow {end.flow_id} did not go on. Next: run upkeep"
