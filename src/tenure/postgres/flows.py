"""Flows: create, read, cancel and resume them; `store.flows`.

flow_creation.py   a flow with its nodes, and the jobs of the first ones
flow_advance.py    jobs have ended: policies, and the nodes that are ready
flow_starts.py     the jobs of nodes that are ready, with the results of their parents
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple, TypeVar, get_args

import psycopg

from tenure.errors import UNREACHABLE, BadInput, FlowNotFound, Refused, TenureError
from tenure.jobs import validation
from tenure.jobs.flow import (
    CancelledFlow,
    Flow,
    FlowMade,
    FlowNode,
    FlowState,
    NewFlow,
    NodeInput,
    ResumedFlow,
    TaskOfFlow,
    WaitingNode,
    check_flow,
)
from tenure.postgres.engine import EngineUser
from tenure.postgres.flow_advance import advance_flows, advance_released
from tenure.postgres.flow_creation import PreparedFlow, create_plan, hash_flow, prepare_flow
from tenure.postgres.flow_operations import begin_cancel, resume_plan
from tenure.postgres.operate import OperatorVerbs
from tenure.postgres.statement import Atomic, Plan

_log = logging.getLogger("tenure")
T = TypeVar("T")
#: How many jobs one call cancels.
_CANCELLED: Final = 1_000


class AdvancedFlows(NamedTuple):
    """What a round of upkeep did: how many ended jobs it took into account, and what went wrong."""

    ends: int
    troubles: Sequence[str] = ()


class Flows(EngineUser):
    """Operations on flows; `store.flows`."""

    async def create(self, flow: NewFlow, *, created_by: str | None = None) -> FlowMade:
        """Create a flow, with the jobs of the nodes that need no other; with a key, at most once."""
        nodes = check_flow(flow)
        if created_by is not None:
            validation.check_name("created_by", created_by)
        registry = self._engine.registry
        payloads = await self._engine.run(lambda: prepare_flow(registry, flow, nodes, self._max_bytes))
        prepared = PreparedFlow(flow, nodes, payloads, hash_flow(flow), created_by)
        made, queues = await self._engine.run_and_extend_ranges(
            partial(create_plan, registry, prepared, self._max_bytes)
        )
        self._engine.wakeups.request(queues)
        return made

    async def read(self, flow_id: int) -> Flow:
        """Return a flow; raises FlowNotFound."""
        validation.check_integer("flow", flow_id, 1, validation.MAX_ID)
        rows = await self._engine.ask("list_flows", id=flow_id, limit=1)
        if not rows:
            raise FlowNotFound(flow_id)
        return Flow._make(rows[0])

    async def nodes(self, flow_id: int) -> Sequence[FlowNode]:
        """Return the nodes of a flow, members too, each behind its parents; raises FlowNotFound."""
        await self.read(flow_id)
        return await self._nodes(flow_id)

    async def page(self, flow_id: int, *, limit: int, after: int | None = None) -> Sequence[FlowNode]:
        """Return some nodes of a flow, as `nodes` does; `after` is the highest id of the page before."""
        validation.check_integer("flow", flow_id, 1, validation.MAX_ID)
        validation.check_integer("limit", limit, 1, validation.MAX_BATCH)
        if after is not None:
            validation.check_integer("after", after, 1, validation.MAX_ID)
        rows = await self._engine.ask("list_flow_node_ids", id=flow_id, after=after or 0, limit=limit)
        return await self._nodes(flow_id, [node_id for (node_id,) in rows]) if rows else []

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
        if state not in (None, *get_args(FlowState)):
            raise BadInput(f"a flow is {', '.join(get_args(FlowState))}, not {state!r}")
        if name is not None:
            validation.check_name("flow", name)
        if tenant_id is not None:
            validation.check_name("tenant_id", tenant_id)
        validation.check_integer("limit", limit, 1, validation.MAX_BATCH)
        if after is not None:
            validation.check_integer("after", after, 1, validation.MAX_ID)
        rows = await self._engine.ask("list_flows", state=state, name=name, tenant=tenant_id, limit=limit, after=after)
        return [Flow._make(row) for row in rows]

    async def find_waiting(self, job_id: int) -> WaitingNode | None:
        """Return the node of a flow that has this id and whose job is not made; None if there is none."""
        validation.check_integer("id", job_id, 1, validation.MAX_ID)
        for flow_id, flow, tenant_id, node_id, open_parents in await self._engine.ask("find_flow_node", job_id=job_id):
            by_id = {node.id: node for node in await self._nodes(flow_id, [node_id, *open_parents])}
            return WaitingNode(flow_id, flow, tenant_id, by_id[node_id], [by_id[one] for one in open_parents])
        return None

    async def task(self, node_id: int) -> TaskOfFlow | None:
        """Return the names of a node and of its flow, and the nodes whose results its job gets."""
        rows = await self._engine.ask("read_task_of_flow", node=node_id)
        inputs = [NodeInput(argument, parent, name) for _, _, argument, parent, name in rows if parent is not None]
        return TaskOfFlow(rows[0][0], rows[0][1], inputs) if rows else None

    async def cancel(
        self, flow_id: int, *, mode: str = "soft", reason: str | None = None, actor: str = "unknown"
    ) -> CancelledFlow:
        """Cancel a flow: no node starts any more, and its live jobs are cancelled where their contracts allow it.

        Clean-up nodes run when the others have ended. A repeat cancels the jobs that are still live.
        """
        _check_call(flow_id, actor)
        if mode not in ("soft", "hard"):
            raise BadInput(f"mode must be soft or hard; got {mode!r}")
        if reason is not None:
            validation.check_name("reason", reason)
        cancelling = await self._in_one(partial(begin_cancel, self._engine.registry, flow_id, self._max_bytes))
        self._engine.wakeups.request(cancelling.queues)
        jobs, left = 0, dict[str, str]()
        ids = list(cancelling.nodes)
        for first in range(0, len(ids), _CANCELLED):
            part = ids[first : first + _CANCELLED]
            answers = await OperatorVerbs(self._engine, self._max_bytes).cancel_many(
                part, mode=mode, reason=reason or f"flow {flow_id} is cancelled", actor=actor
            )
            refused = {job_id: str(one) for job_id, one in zip(part, answers, strict=True) if isinstance(one, Refused)}
            jobs += len(part) - len(refused)
            live = await self._engine.ask("find_live_ids", ids=list(refused)) if refused else []
            left |= {cancelling.nodes[job_id]: refused[job_id] for (job_id,) in live}
        await advance_released(self._engine, [flow_id], self._max_bytes)
        return CancelledFlow(await self.read(flow_id), cancelling.waiting, jobs, left)

    async def resume(self, flow_id: int, *, nodes: Sequence[str] | None = None, actor: str = "unknown") -> ResumedFlow:
        """Run the failed and cancelled nodes again, all or these, and let those that were skipped wait again."""
        _check_call(flow_id, actor)
        for name in nodes or ():
            validation.check_name("node", name)
        resumed = await self._in_one(partial(resume_plan, self._engine.registry, flow_id, nodes, self._max_bytes))
        self._engine.wakeups.request(resumed.queues)
        await advance_released(self._engine, [flow_id], self._max_bytes)
        return ResumedFlow(await self.read(flow_id), resumed.jobs, resumed.waiting, resumed.left)

    async def _in_one(self, plan: Callable[[], Plan[T]]) -> T:
        """Run a plan in one transaction."""

        def atomic() -> Plan[T]:
            done: T = yield Atomic(plan())
            return done

        return await self._engine.run_and_extend_ranges(atomic)

    async def advance(self, limit: int = 1_000) -> AdvancedFlows:
        """Advance flows whose ended jobs are not taken into account yet; leaves out those that others advance now."""
        validation.check_integer("limit", limit, 1, validation.MAX_BATCH)
        ids = [flow_id for (flow_id,) in await self._engine.ask("find_ended_flows", limit=limit)]
        try:
            return AdvancedFlows(await advance_flows(self._engine, ids, self._max_bytes))
        except UNREACHABLE:
            raise
        except (TenureError, psycopg.Error):
            if len(ids) == 1:
                raise
        ends, troubles = 0, []
        for flow_id in ids:  # one by one, so that the others go on
            try:
                ends += await advance_flows(self._engine, [flow_id], self._max_bytes)
            except (TenureError, psycopg.Error) as error:
                troubles.append(f"flow {flow_id}: {error}")
        return AdvancedFlows(ends, troubles)

    async def catch_up(self, until: datetime | None = None) -> datetime | None:
        """Advance all flows whose jobs have ended; returns None, or a time if others advance some of them still.

        The caller passes that time to the next call, so that jobs which end later are not waited for. A flow that
        cannot be advanced is logged and not waited for.
        """
        stuck: list[int] = []
        for (flow_id,) in await self._engine.ask("find_ended_flows", limit=validation.MAX_BATCH):
            try:
                await advance_flows(self._engine, [flow_id], self._max_bytes)
            except UNREACHABLE:
                raise
            except (TenureError, psycopg.Error) as error:
                _log.warning("flow %d cannot be advanced: %s", flow_id, error)
                stuck.append(flow_id)
        ((newest,),) = await self._engine.ask("find_newest_end", until=until, but=stuck)
        found: datetime | None = newest
        return found

    async def _nodes(self, flow_id: int, ids: Sequence[int] | None = None) -> Sequence[FlowNode]:
        rows = await self._engine.ask("list_flow_nodes", id=flow_id, ids=ids)
        return [FlowNode._make((*row[:8], tuple(row[8]), *row[9:])) for row in rows]


def _check_call(flow_id: int, actor: str) -> None:
    validation.check_integer("flow", flow_id, 1, validation.MAX_ID)
    validation.check_name("actor", actor)
