"""Start nodes of flows that are ready: make their jobs, with the results of their parents as arguments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.flow import MAX_MEMBERS
from tenure.jobs.job import NewJob
from tenure.postgres.datasets.pins import pin_jobs, refusal_of, resolve_uses
from tenure.postgres.enqueue import JobGroup, insert_with_ids
from tenure.postgres.notify import queues_to_wake
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Plan, Row, carried, statement
from tenure.postgres.stored_job import job_from_options

#: About how many bytes of payloads and results are in memory at a time.
_PART_BYTES: Final = 8 * 1024 * 1024
_PART: Final = 1_000


class NodeToStart(NamedTuple):
    """A node that waits for nothing any more; `size`: about how many bytes its job carries."""

    id: int
    flow_id: int
    size: int
    #: It is a member of a mapped node, and runs again.
    is_member: bool = False


class NewNodeJob(NamedTuple):
    """The job of a node, with the id that it gets."""

    id: int
    node: int
    job: NewJob
    created_by: str | None
    #: Its payload as JSON, if it is checked already.
    payload: str | None = None


class FlowOfJobs(Protocol):
    """What starting nodes reads and changes of a flow."""

    tenant_id: str
    created_by: str | None
    nodes: int
    open: int
    last_id: int


@dataclass(slots=True)
class StartedNodes:
    """What became of the nodes to start."""

    #: The (contract, queue) of jobs that can be claimed now.
    queues: set[tuple[str, str]] = field(default_factory=set)
    #: Mapped nodes whose list is empty.
    empty: list[int] = field(default_factory=list)
    #: Node → why it cannot be started.
    failed: dict[int, str] = field(default_factory=dict)


def start_nodes(
    registry: Registry, flows: Mapping[int, FlowOfJobs], ready: Sequence[NodeToStart], max_bytes: int
) -> Plan[StartedNodes]:
    """Insert the jobs of nodes that are ready, and those of the members of mapped nodes."""
    started = StartedNodes()
    for part in _parts([node for node in ready if not node.is_member]):
        rows = yield statement("read_starting_nodes", {"ids": part})
        yield from _start(registry, flows, rows, max_bytes, started)
    for part in _parts([node for node in ready if node.is_member]):
        rows = yield statement("read_starting_members", {"ids": part})
        yield from _start(registry, flows, rows, max_bytes, started)
    return started


def _start(
    registry: Registry, flows: Mapping[int, FlowOfJobs], rows: Sequence[Row], max_bytes: int, started: StartedNodes
) -> Plan[None]:
    """Insert the jobs of the nodes in these rows, and of their members."""
    jobs: list[NewNodeJob] = []
    members: list[Iterator[NewNodeJob]] = []
    for node, flow_id, job_id, contract, queue, type_name, mapped, payload, options, results in rows:
        flow = flows[flow_id]
        job = job_from_options(type_name, None, contract, queue, flow.tenant_id, options)
        if results is None:
            jobs.append(NewNodeJob(job_id, node, job, flow.created_by, payload))
            continue
        job.payload, arguments = json.loads(payload), json.loads(results)
        if mapped is None:
            jobs.append(_node_job(job_id, node, job, arguments, flow))
            continue
        items = arguments.pop(mapped, None)
        if (trouble := _no_list(mapped, items)) is not None:
            started.failed[node] = trouble
        elif not items:
            started.empty.append(node)
        else:
            members.append((yield from _insert_members(node, job, mapped, items, arguments, flow)))
    yield from insert_node_jobs(registry, chain(jobs, *members), max_bytes, started)


def _node_job(job_id: int, node: int, job: NewJob, arguments: Mapping[str, Any], flow: FlowOfJobs) -> NewNodeJob:
    if arguments:
        job.payload |= arguments
    return NewNodeJob(job_id, node, job, flow.created_by)


def _no_list(argument: str, items: Any) -> str | None:
    """Why a mapped node cannot be made of this value; None: it can."""
    if not isinstance(items, list):
        return f"it runs once for each item of {argument!r}, whose value is no list but a {type(items).__name__}"
    if len(items) > MAX_MEMBERS:
        return f"the list {argument!r} has {len(items)} items; at most {MAX_MEMBERS} are allowed"
    return None


def _insert_members(
    node: int, job: NewJob, mapped: str, items: Sequence[Any], arguments: Mapping[str, Any], flow: FlowOfJobs
) -> Plan[Iterator[NewNodeJob]]:
    """Insert the members of a mapped node; returns their jobs, which are made one after the other as they are taken."""
    rows = yield statement("insert_members", {"id": node, "count": len(items)})
    flow.nodes += len(items)
    flow.open += len(items)
    flow.last_id = max(flow.last_id, rows[-1][0])
    return (
        _node_job(member, member, _copy(job), {**arguments, mapped: item}, flow)
        for (member,), item in zip(rows, items, strict=True)
    )


def _copy(job: NewJob) -> NewJob:
    copy = {each.name: getattr(job, each.name) for each in fields(job)}
    return NewJob(**{**copy, "payload": dict(job.payload)})


def _parts(ready: Sequence[NodeToStart]) -> Iterator[list[int]]:
    """Yield nodes in parts whose payloads fit into memory."""
    part: list[int] = []
    size = 0
    for node in ready:
        if part and (size + node.size > _PART_BYTES or len(part) == _PART):
            yield part
            part, size = [], 0
        part.append(node.id)
        size += node.size
    if part:
        yield part


def insert_node_jobs(
    registry: Registry, jobs: Iterable[NewNodeJob], max_bytes: int, started: StartedNodes
) -> Plan[None]:
    """Insert jobs under the ids that were reserved for them; one that cannot be made becomes a failure of its node.

    Takes the jobs a part at a time: the payloads of all members of a mapped node may be larger than the memory.
    """
    part: list[tuple[NewNodeJob, str]] = []
    size = 0
    for one in jobs:
        payload = one.payload
        if payload is None:
            try:
                payload = validation.to_json("payload", one.job.payload, max_bytes)
            except BadInput as error:
                started.failed[one.node] = str(error)
                continue
        if part and (size + len(payload) > _PART_BYTES or len(part) == validation.MAX_BATCH):
            yield from _insert_part(registry, part, started)
            part, size = [], 0
        part.append((one, payload))
        size += len(payload)
    yield from _insert_part(registry, part, started)


def _insert_part(registry: Registry, jobs: Sequence[tuple[NewNodeJob, str]], started: StartedNodes) -> Plan[None]:
    using = [one.job for one, _ in jobs if one.job.uses_datasets]
    resolved = (yield from resolve_uses(using)) if using else {}
    groups: dict[tuple[str, str | None, str | None], list[tuple[NewNodeJob, str]]] = {}
    for one, payload in jobs:
        if (refusal := refusal_of(one.job, resolved)) is not None:
            started.failed[one.node] = str(refusal)
            continue
        groups.setdefault((one.job.contract, one.job.version, one.created_by), []).append((one, payload))
    for (contract, version, created_by), group in groups.items():
        bound = yield from registry.bound_contract(contract, version)
        made = JobGroup(bound, [one.job for one, _ in group], [payload for _, payload in group])
        for part in carried(range(len(group)), made.payloads):
            ids, nodes = [group[n][0].id for n in part], [group[n][0].node for n in part]
            yield insert_with_ids(made, part, ids, created_by, nodes=nodes)
            if bound.contract.wakeup == "pointer":
                yield statement("insert_wakeups", {"ids": ids})
        started.queues |= queues_to_wake(made.jobs)
        if resolved:
            yield from pin_jobs(((one.id, one.job) for one, _ in group), resolved)
