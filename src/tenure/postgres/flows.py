"""Flows: create, read, cancel and resume them; `store.flows`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tenure.jobs import validation
from tenure.jobs.flow import CancelledFlow, Flow, FlowMade, FlowNode, FlowState, NewFlow, ResumedFlow
from tenure.postgres.engine import Engine, EngineUser


class WaitingNode(NamedTuple):
    """A node whose job is not made yet, and the parents that it waits for."""

    flow_id: int
    flow: str
    tenant_id: str
    node: FlowNode
    #: The parents that have not ended.
    parents: Sequence[FlowNode]


class Flows(EngineUser):
    """Operations on flows; `store.flows`."""

    def __init__(self, engine: Engine, max_bytes: int = validation.MAX_BYTES) -> None:
        super().__init__(engine, max_bytes)

    async def create(self, flow: NewFlow, *, created_by: str | None = None) -> FlowMade:
        """Create a flow, with the jobs of the nodes that need no other; with a key, at most once."""
        raise NotImplementedError

    async def read(self, flow_id: int) -> Flow:
        """Return a flow; raises FlowNotFound."""
        raise NotImplementedError

    async def nodes(self, flow_id: int) -> Sequence[FlowNode]:
        """Return the nodes of a flow, members too, each behind its parents; raises FlowNotFound."""
        raise NotImplementedError

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
        raise NotImplementedError

    async def find_waiting(self, job_id: int) -> WaitingNode | None:
        """Return the node of a flow that has this id and whose job is not made; None if there is none."""
        raise NotImplementedError

    async def cancel(
        self, flow_id: int, *, mode: str = "soft", reason: str | None = None, actor: str = "unknown"
    ) -> CancelledFlow:
        """Cancel a flow: no node starts any more, and its live jobs are cancelled where their contracts allow it."""
        raise NotImplementedError

    async def resume(self, flow_id: int, *, nodes: Sequence[str] | None = None, actor: str = "unknown") -> ResumedFlow:
        """Run the failed and cancelled nodes again, all or these, and let those that were skipped wait again."""
        raise NotImplementedError
