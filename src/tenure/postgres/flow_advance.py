"""Advance flows: take the jobs that have ended into account, and start the nodes that waited for them.

    a statement ends a job, writes a row of tenure.flow_end, and is committed
    advance_flows ─▶ lock the flows, take those rows ─▶ policies ─▶ count down the children ─▶ insert jobs ─▶ commit
                  ◀─ look again

All that happens to the nodes of a flow happens under the lock of its row, so two parents that end together start their
child once. Nobody waits for that lock: a flow that another transaction works on is left to it. It looks again after its
commit, as do cancel, resume and requeue, so it finds what ended meanwhile. When a process dies between two of these
steps, upkeep advances the flow.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple

import psycopg

from tenure.errors import TenureError
from tenure.jobs.outcome import Moved
from tenure.postgres.engine import Engine
from tenure.postgres.flow_starts import NodeToStart, StartedNodes, start_nodes
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Atomic, Plan, statement

#: The most ended jobs that one transaction takes into account, and the most flows that it locks.
_ENDS, _FLOWS = 1_000, 100
#: The most transactions of one call for the same flows; upkeep does the rest, so that the caller goes on.
_ROUNDS = 100
_log = logging.getLogger("tenure")


@dataclass(slots=True)
class LockedFlow:
    """The row of a flow that is locked; the transaction writes the counts back at its end."""

    id: int
    tenant_id: str
    created_by: str | None
    state: str
    on_failure: str
    nodes: int
    open: int
    cleanups: int
    failed: int
    tolerated: int
    last_id: int

    @property
    def went_wrong(self) -> bool:
        """Whether a node ended badly that the policies do not tolerate; a cancel is never tolerated."""
        return self.failed > (0 if self.state in ("cancelling", "cancelled") else self.tolerated)

    def settle_state(self) -> None:
        """Set the state of a flow whose nodes have all ended."""
        if self.open:
            return
        if not self.went_wrong:
            self.state = "succeeded"
        else:
            self.state = "cancelled" if self.state in ("cancelling", "cancelled") else "failed"


class EndedNode(NamedTuple):
    """A node that has just ended."""

    id: int
    flow_id: int
    state: str
    on_failure: str | None
    part_of: int | None
    is_cleanup: bool


class Advanced(NamedTuple):
    """What a transaction did: the queues in which it made jobs that are due, the ended jobs, the flows it locked."""

    queues: Collection[tuple[str, str]] = ()
    ends: int = 0
    flows: Sequence[int] = ()


async def advance_after(engine: Engine, outcomes: Iterable[object], max_bytes: int) -> None:
    """Advance the flows whose jobs these moves have ended. If that fails, log it; upkeep advances them later."""
    ended = {outcome.flow_id for outcome in outcomes if isinstance(outcome, Moved) and outcome.flow_id is not None}
    if ended:
        with _left_to_upkeep(ended):
            await advance_flows(engine, sorted(ended), max_bytes)


async def advance_released(engine: Engine, flow_ids: Collection[int], max_bytes: int) -> None:
    """Advance flows whose jobs ended while this process had locked the flows for something else."""
    if flow_ids:
        with _left_to_upkeep(flow_ids):
            found = await engine.ask("find_flows_with_ends", ids=sorted(flow_ids))
            await advance_flows(engine, [flow_id for (flow_id,) in found], max_bytes)


@contextmanager
def _left_to_upkeep(flow_ids: Collection[int]) -> Iterator[None]:
    try:
        yield
    except (TenureError, psycopg.Error) as error:
        _log.warning("flows %s wait until upkeep advances them: %s", sorted(flow_ids), error)


async def advance_flows(engine: Engine, flow_ids: Sequence[int], max_bytes: int) -> int:
    """Advance flows, but those that others advance now; returns how many ended jobs were taken into account."""
    ends = 0
    for first in range(0, len(flow_ids), _FLOWS):
        left = flow_ids[first : first + _FLOWS]
        for _ in range(_ROUNDS):
            done = await engine.run_and_extend_ranges(partial(advance_plan, engine.registry, left, max_bytes))
            engine.wakeups.request(done.queues)
            ends += done.ends
            if not done.flows:
                break
            left = [flow_id for (flow_id,) in await engine.ask("find_flows_with_ends", ids=done.flows)]
            if not left:
                break
    return ends


def advance_plan(registry: Registry, flow_ids: Sequence[int], max_bytes: int) -> Plan[Advanced]:
    """Advance flows in one transaction, but those that another transaction works on."""
    done: Advanced = yield Atomic(_advance(registry, flow_ids, max_bytes))
    return done


def _advance(registry: Registry, flow_ids: Sequence[int], max_bytes: int) -> Plan[Advanced]:
    flows, ends, ended = yield from take_ends(flow_ids)
    queues = yield from apply_ends(registry, flows, ended, max_bytes)
    return Advanced(queues, ends, list(flows))


def lock_flows(flow_ids: Sequence[int]) -> Plan[dict[int, LockedFlow]]:
    """Lock flows in the order of their ids; returns them by id."""
    rows = yield statement("lock_flows", {"ids": sorted(set(flow_ids))})
    return {row[0]: LockedFlow(*row) for row in rows}


def take_ends(flow_ids: Sequence[int]) -> Plan[tuple[dict[int, LockedFlow], int, list[EndedNode]]]:
    """Lock flows, but those that another transaction has locked, and take ended jobs of them.

    Returns the flows by id, how many jobs were taken, and the nodes that have ended by them.
    """
    *rows, (_, ends, locked, *_) = yield statement("take_flow_ends", {"ids": flow_ids, "limit": _ENDS})
    flows = [LockedFlow(**flow) for flow in json.loads(locked or "[]")]
    return {flow.id: flow for flow in flows}, ends, [EndedNode._make(row) for row in rows]


def apply_ends(
    registry: Registry,
    flows: dict[int, LockedFlow],
    ended: Sequence[EndedNode],
    max_bytes: int,
    ready: Sequence[NodeToStart] = (),
    *,
    changed: bool = False,
) -> Plan[set[tuple[str, str]]]:
    """Do all that follows from nodes that ended or became ready, level by level; returns the queues of the new jobs.

    The caller has locked the flows; this writes their counts. `changed`: the caller has changed them.
    """
    queues: set[tuple[str, str]] = set()
    if not (ended or ready or changed):
        return queues
    while True:
        to_start, complete = yield from _count_ends(flows, ended)
        to_start = [*ready, *to_start]
        if not to_start and not complete:
            to_start = yield from _end_or_clean_up(flows)
        ready, ended = (), []
        if to_start:
            started: StartedNodes = yield from start_nodes(registry, flows, to_start, max_bytes)
            queues |= started.queues
            complete += started.empty
            ended += yield from _ended("fail_nodes", ids=[*started.failed], errors=[*started.failed.values()])
        ended += yield from _ended("end_mapped_nodes", ids=complete, longest=max_bytes)
        if not to_start and not ended:
            break
    yield from write_flows(flows.values())
    return queues


def write_flows(flows: Iterable[LockedFlow]) -> Plan[None]:
    """Write the counts and states of locked flows."""
    written = list(flows)
    columns = {
        field.name: [getattr(flow, field.name) for flow in written]
        for field in fields(LockedFlow)
        if field.name not in ("tenant_id", "created_by", "on_failure")
    }
    yield statement(
        "update_flows",
        {
            "ids": columns["id"], "states": columns["state"], "nodes": columns["nodes"], "opens": columns["open"],
            "cleanups": columns["cleanups"], "failures": columns["failed"], "tolerated": columns["tolerated"],
            "last_ids": columns["last_id"],
        },
    )  # fmt: skip


def _ended(name: str, *, ids: Sequence[int], **values: object) -> Plan[list[EndedNode]]:
    rows = (yield statement(name, {"ids": ids, **values})) if ids else []
    return [EndedNode(*row) for row in rows]


def _count_ends(flows: dict[int, LockedFlow], ended: Sequence[EndedNode]) -> Plan[tuple[list[NodeToStart], list[int]]]:
    """Count ended nodes, apply the failure policies, and count down what waits for the nodes.

    Returns the nodes that are ready, and the mapped nodes whose members have all ended.
    """
    parents: list[int] = []
    members: Counter[int] = Counter()
    stopped: set[int] = set()
    skipping: set[int] = set()
    for node in ended:
        flow = flows[node.flow_id]
        flow.open -= 1
        policy = node.on_failure or flow.on_failure
        if node.state != "succeeded":
            flow.failed += 1
            if policy == "continue":
                flow.tolerated += 1
            elif policy == "skip":
                skipping.add(node.part_of or node.id)
            else:
                stopped.add(node.flow_id)
        if node.part_of is not None:
            members[node.part_of] += 1
        elif node.state == "succeeded" or policy == "continue":
            parents.append(node.id)
    if stopped:
        yield from end_waiting(flows, stopped, "skipped", cleanups=[False])
    if skipping:
        for flow_id, count in (yield statement("skip_descendants", {"ids": sorted(skipping)})):
            flows[flow_id].open -= count
    if not parents and not members:
        return [], []
    values = {"parents": parents, "mapped": list(members), "members": list(members.values())}
    rows = yield statement("count_down_parents", values)
    ready = [NodeToStart(node, flow_id, size) for node, flow_id, is_mapped, size in rows if not is_mapped]
    return ready, [node for node, _, is_mapped, _ in rows if is_mapped]


def end_waiting(
    flows: dict[int, LockedFlow], which: Collection[int], state: str, *, cleanups: Sequence[bool]
) -> Plan[int]:
    """End the waiting nodes of these flows, clean-up nodes (True) or others (False); returns how many."""
    ended = 0
    values = {"ids": sorted(which), "state": state, "cleanups": ["true" if one else "false" for one in cleanups]}
    for flow_id, count in (yield statement("end_waiting_nodes", values)):
        flow = flows[flow_id]
        flow.open -= count
        if state == "cancelled":
            flow.failed += count
        ended += count
    return ended


def _end_or_clean_up(flows: dict[int, LockedFlow]) -> Plan[list[NodeToStart]]:
    """Start or skip the clean-up nodes of flows whose other nodes have all ended, and end flows without open nodes."""
    last = [flow for flow in flows.values() if 0 < flow.open == flow.cleanups]
    to_start: list[NodeToStart] = []
    if dirty := [flow.id for flow in last if flow.went_wrong]:
        rows = yield statement("start_cleanups", {"ids": dirty})
        to_start = [NodeToStart(node, flow_id, size) for node, flow_id, _, size in rows]
    if clean := [flow.id for flow in last if not flow.went_wrong]:
        yield from end_waiting(flows, clean, "skipped", cleanups=[True])
    for flow in last:
        flow.cleanups = 0
    for flow in flows.values():
        flow.settle_state()
    return to_start
