"""A flow: jobs that start in the order of their dependencies, and what its parts look like when they are read.

    extract ──▶ transform × each item ──▶ load        an arrow: `after`, or a result that is an argument (`inputs`)

A *node* is one step of a flow. Most nodes are one job. A *mapped* node (`each`) is one job, a *member*, for each item
of the list that a parent returns; it ends when all of them have ended, and its result is the list of their results.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, Literal, NamedTuple, get_args

from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.job import NewJob

#: What happens to the rest of the flow when a node ends badly.
#:   stop      no node starts any more; those that run end
#:   skip      the nodes that need it, directly or not, are skipped; the others go on
#:   continue  the nodes after it start as if it had succeeded, with null in place of its result
OnFailure = Literal["stop", "skip", "continue"]
ON_FAILURE: Final[tuple[str, ...]] = get_args(OnFailure)
FlowState = Literal["running", "cancelling", "succeeded", "failed", "cancelled"]
#: waiting: its parents have not ended; started: its job is live or has succeeded; failed also: it could not be started.
NodeState = Literal["waiting", "started", "succeeded", "failed", "cancelled", "skipped"]
MAX_NODES: Final = 100_000
#: The most dependencies of all nodes together.
MAX_DEPENDENCIES: Final = 1_000_000
#: The most jobs that a mapped node becomes.
MAX_MEMBERS: Final = 100_000
#: The name of a member: that of its mapped node, and its place.
_MEMBER: Final = re.compile(r".+\[(0|[1-9][0-9]*)\]", re.DOTALL)
#: What a job that is a node cannot have.
_NOT_IN_A_FLOW: Final = {"key": "give the flow a key", "unique": "leave unique out"}


@dataclass(slots=True)
class NewNode:
    """A node of a flow to create. Its job's delay and expiry count from the moment at which it starts."""

    name: str
    job: NewJob
    #: The parents that must end before it starts, by name.
    after: Sequence[str] = ()
    #: Argument → the parent whose result it becomes, by name, or several, whose results become a list. These are
    #: parents too.
    inputs: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    #: The argument among `inputs` whose list makes this a mapped node: a job for each item. It names one parent.
    each: str | None = None
    #: None: as the flow says.
    on_failure: OnFailure | None = None
    #: It runs when all other nodes have ended, and one of them badly; else it is skipped.
    cleanup: bool = False

    def parents(self) -> tuple[str, ...]:
        """The names of its parents, each once."""
        if not self.inputs:
            return tuple(dict.fromkeys(self.after))
        of_inputs = (name for given in self.inputs.values() for name in ([given] if isinstance(given, str) else given))
        return tuple(dict.fromkeys((*self.after, *of_inputs)))


@dataclass(slots=True)
class NewFlow:
    """A flow to create."""

    name: str
    nodes: Sequence[NewNode]
    on_failure: OnFailure = "stop"
    #: The tenant of all its jobs.
    tenant_id: str = "default"
    #: The same key and the same flow again are the first flow.
    key: str | None = None


class FlowMade(NamedTuple):
    """A flow that was created by this call, or by an earlier one with the same key."""

    id: int
    #: Node → the id of its job. A mapped node has an id too, and no job.
    jobs: Mapping[str, int]
    made: bool = True


class FlowNode(NamedTuple):
    """A node as it is now."""

    id: int
    #: The name of a member is that of its mapped node with its place: transform[3].
    name: str
    state: NodeState
    #: The job that runs it; after a resume another one than at first. None: a mapped node.
    job_id: int | None
    type: str
    contract: str
    queue: str
    #: How many parents (waiting) or members (started and mapped) have not ended.
    open: int
    parents: tuple[int, ...]
    on_failure: OnFailure | None
    is_mapped: bool
    is_cleanup: bool
    #: The mapped node that a member belongs to.
    part_of: int | None
    #: Why it could not be started, or None.
    error: str | None
    #: The state of its job in its contract's words; None: it has none yet.
    job_state: str | None
    started_at: datetime | None
    finished_at: datetime | None


class Flow(NamedTuple):
    """A flow as it is now."""

    id: int
    name: str
    tenant_id: str
    state: FlowState
    on_failure: OnFailure
    #: How many nodes it has, members too; how many have not ended; how many ended badly.
    nodes: int
    open: int
    failed: int
    created_at: datetime
    ended_at: datetime | None
    created_by: str | None


class NodeInput(NamedTuple):
    """A node whose result is an argument of another node's job, or one of several that are."""

    argument: str
    id: int
    name: str


class TaskOfFlow(NamedTuple):
    """What a worker of document 001 is told about the flow of its task."""

    flow: str
    node: str
    inputs: Sequence[NodeInput]


class WaitingNode(NamedTuple):
    """A node whose job is not made, and the parents that it waits for."""

    flow_id: int
    flow: str
    tenant_id: str
    node: FlowNode
    #: The parents that have not ended.
    parents: Sequence[FlowNode]

    @property
    def role(self) -> str:
        """The role of its state, as jobs have one."""
        return "waiting" if self.node.state == "waiting" else "done"


class CancelledFlow(NamedTuple):
    """What cancelling a flow did."""

    flow: Flow
    #: How many waiting nodes will not start, and how many jobs were cancelled or asked to stop.
    waiting: int
    jobs: int
    #: Node → why its job goes on: its contract has no cancel.
    left: Mapping[str, str]


class ResumedFlow(NamedTuple):
    """What resuming a flow did."""

    flow: Flow
    #: Node → the job that runs it again.
    jobs: Mapping[str, int]
    #: How many skipped or cancelled nodes wait again, or were started.
    waiting: int
    #: Node → why it was not run again.
    left: Mapping[str, str]


def check_flow(flow: NewFlow) -> list[NewNode]:
    """Check the shape of a flow; returns its nodes so that each stands behind its parents, clean-up nodes last."""
    validation.check_name("flow", flow.name)
    validation.check_name("tenant_id", flow.tenant_id)
    if flow.key is not None:
        validation.check_name("key", flow.key)
    _check_policy("on_failure", flow.on_failure)
    if not 0 < len(flow.nodes) <= MAX_NODES:
        raise BadInput(f"flow {flow.name!r} has {len(flow.nodes)} nodes; it must have 1 to {MAX_NODES}")
    by_name: dict[str, NewNode] = {}
    for n, node in enumerate(flow.nodes):
        validation.check_name("node", node.name)
        if node.name in by_name:
            raise BadInput(f"nodes[{n}].name: flow {flow.name!r} has two nodes {node.name!r}. Next: rename one of them")
        by_name[node.name] = node
    for n, node in enumerate(flow.nodes):
        if (whole := member_of(node.name)) is not None and whole in by_name and by_name[whole].each is not None:
            raise BadInput(f"nodes[{n}].name: {named_as_member(node.name, whole)}")
    parents = {node.name: node.parents() for node in flow.nodes}
    if sum(map(len, parents.values())) > MAX_DEPENDENCIES:
        raise BadInput(f"flow {flow.name!r} has more than {MAX_DEPENDENCIES} dependencies. Next: join some in a node")
    if all(node.cleanup for node in flow.nodes):
        raise BadInput(f"flow {flow.name!r} has only clean-up nodes, which run after others. Next: add a node")
    for n, node in enumerate(flow.nodes):
        _check_node(f"nodes[{n}]", node, by_name)
    ordered = [by_name[name] for name in _in_order(flow.name, parents)]
    return [node for node in ordered if not node.cleanup] + [node for node in ordered if node.cleanup]


def member_of(name: str) -> str | None:
    """The mapped node of which a job could have this name, "work" of "work[0]"; None: it is no such name."""
    return name.rpartition("[")[0] if name.endswith("]") and _MEMBER.fullmatch(name) else None


def named_as_member(name: str, whole: str) -> str:
    """Why a node cannot have this name."""
    return f"{name!r} names a job of the mapped node {whole!r}. Next: give one of them another name"


def _in_order(flow: str, parents: Mapping[str, Sequence[str]]) -> Iterable[str]:
    """These nodes, each behind its parents; as they are given, if that is such an order. Refuses a cycle."""
    before: set[str] = set()
    for name, of_node in parents.items():
        if not before.issuperset(of_node):
            break
        before.add(name)
    else:
        return parents
    try:
        return list(TopologicalSorter(parents).static_order())
    except CycleError as error:
        # The library names each node before the one that needs it.
        cycle = " → ".join(error.args[1])
        raise BadInput(f"flow {flow!r} has a cycle: {cycle}. Next: remove one of these dependencies") from None


def _check_node(path: str, node: NewNode, by_name: Mapping[str, NewNode]) -> None:
    if node.on_failure is not None:
        _check_policy(f"{path}.on_failure", node.on_failure)
    for n, parent in enumerate(node.after):
        _check_parent(f"{path}.after[{n}]", node, parent, by_name)
    for argument, given in node.inputs.items():
        _check_argument(path, argument)
        if isinstance(given, str):
            _check_parent(f"{path}.inputs.{argument}", node, given, by_name)
        else:
            for n, parent in enumerate(given):
                _check_parent(f"{path}.inputs.{argument}[{n}]", node, parent, by_name)
        if isinstance(node.job.payload, dict) and argument in node.job.payload:
            raise BadInput(f"{path}.inputs.{argument}: the payload has {argument!r} too. Next: give it once")
    if node.inputs and not isinstance(node.job.payload, dict):
        raise BadInput(f"{path}.inputs: the payload is no object that could take arguments. Next: make it an object")
    if node.each is not None and node.each not in node.inputs:
        raise BadInput(f"{path}.each: {node.each!r} is no input. Next: add it to inputs, with the list's node")
    if node.each is not None and not isinstance(node.inputs[node.each], str):
        raise BadInput(f"{path}.each: {node.each!r} has several parents. Next: name the one that returns the list")
    if node.cleanup and (node.parents() or node.each is not None):
        raise BadInput(f"{path}: a clean-up node runs after all others and has no parents. Next: leave them out")
    for name, instead in _NOT_IN_A_FLOW.items():
        if getattr(node.job, name) is not None:
            raise BadInput(f"{path}: the job of a node cannot have {name}. Next: {instead}")


def _check_argument(path: str, argument: str) -> None:
    try:
        validation.check_name("argument", argument)
    except BadInput as error:
        raise BadInput(f"{path}.inputs: {error}") from None


def _check_parent(path: str, node: NewNode, parent: str, by_name: Mapping[str, NewNode]) -> None:
    if parent == node.name:
        raise BadInput(f"{path}: node {node.name!r} is after itself")
    if parent not in by_name:
        near = get_close_matches(parent, by_name, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"add a node {parent!r}, or correct the name"
        raise BadInput(f"{path}: there is no node {parent!r} in this flow. Next: {hint}")
    if by_name[parent].cleanup:
        raise BadInput(f"{path}: {parent!r} is a clean-up node, which runs after all others")


def _check_policy(path: str, policy: Any) -> None:
    if policy not in ON_FAILURE:
        raise BadInput(f"{path} must be one of {', '.join(ON_FAILURE)}; got {policy!r}")


def flow_fingerprint(flow: NewFlow) -> list[Any]:
    """All of a flow but its key, as JSON values: a repeated key must have the same one."""
    nodes = [
        [
            node.name,
            sorted(node.after),
            {argument: given if isinstance(given, str) else list(given) for argument, given in node.inputs.items()},
            node.each,
            node.on_failure,
            node.cleanup,
            _job_values(node.job),
        ]
        for node in sorted(flow.nodes, key=lambda node: node.name)
    ]
    return [flow.name, flow.on_failure, nodes]


def _job_values(job: NewJob) -> dict[str, Any]:
    """The fields of a job that make it what it is; not the trace of the call."""
    values = {each.name: getattr(job, each.name) for each in fields(job) if each.name not in ("trace_id", "notify")}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}
