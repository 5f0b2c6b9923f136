"""An application's flows: jobs that start in the order of their dependencies.

flow = app.flow("nightly")      build one (`flow.py`), then `await flow.start()`
app.flows                       list, show, wait for, cancel and resume started ones
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from tenure.client.polling import poll
from tenure.errors import BadInput, FlowFailed
from tenure.flow import FlowGraph, Node
from tenure.jobs import validation
from tenure.jobs.flow import (
    CancelledFlow,
    Flow,
    FlowMade,
    FlowNode,
    FlowState,
    NewFlow,
    NewNode,
    OnFailure,
    ResumedFlow,
)
from tenure.jobs.job import NewJob
from tenure.jobs.keyword_options import only_known_options
from tenure.jobs.live_worker import host_and_pid
from tenure.jobs.outcome import Enqueued
from tenure.middleware import Middleware, enqueue_through

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.client.connections import Connections, JobClient
    from tenure.client.remote_flows import RemoteFlows
    from tenure.client.seen_workers import SeenWorkers
    from tenure.client.transaction_calls import TransactionCalls
    from tenure.postgres.flows import Flows

R = TypeVar("R")
#: How many results of jobs are read at the same time.
_READS = 20
#: The states of nodes that ended badly.
_BAD = ("failed", "cancelled")


@dataclass(frozen=True, slots=True)
class AppFlows:
    """Flows that were started: `app.flows`. A flow is what `flow.start()` returned, or its id."""

    app: App

    async def list(
        self,
        *,
        state: FlowState | None = None,
        name: str | None = None,
        tenant: str | None = None,
        limit: int = 50,
        after: int | None = None,
    ) -> Sequence[Flow]:
        """Return flows, newest first; `after` is the id of the last one of the page before."""
        flows = await self._flows()
        return await flows.list(state=state, name=name, tenant_id=tenant, limit=limit, after=after)

    async def show(self, flow: FlowMade | int) -> Flow:
        """Return a flow as it is now."""
        return await (await self._flows()).read(_id(flow))

    async def nodes(self, flow: FlowMade | int) -> Sequence[FlowNode]:
        """Return the nodes of a flow as they are now, the jobs of mapped nodes too, each behind its parents."""
        return await (await self._flows()).nodes(_id(flow))

    async def cancel(
        self,
        flow: FlowMade | int,
        *,
        mode: Literal["soft", "hard"] = "soft",
        reason: str | None = None,
        actor: str = "app",
    ) -> CancelledFlow:
        """Cancel a flow: no node starts any more, and its live jobs are cancelled where their contracts allow it."""
        return await (await self._flows()).cancel(_id(flow), mode=mode, reason=reason, actor=actor)

    async def resume(
        self, flow: FlowMade | int, *, nodes: Sequence[str] | None = None, actor: str = "app"
    ) -> ResumedFlow:
        """Run the failed and cancelled nodes again, all or these; what was skipped because of them waits again."""
        return await (await self._flows()).resume(_id(flow), nodes=nodes, actor=actor)

    @overload
    async def result(self, flow: FlowMade | int, *, timeout: float | None = None) -> dict[str, Any]: ...
    @overload
    async def result(self, flow: FlowMade | int, node: Node[R], *, timeout: float | None = None) -> R: ...
    @overload
    async def result(self, flow: FlowMade | int, node: str, *, timeout: float | None = None) -> Any: ...
    async def result(
        self, flow: FlowMade | int, node: Node[Any] | str | None = None, *, timeout: float | None = None
    ) -> Any:
        """Wait for a flow's end; return the result of this node, or of each last node by its name.

        Raises FlowFailed when the flow, or this node, did not succeed, and TimeoutError when late.
        """
        flows, flow_id = await self._flows(), _id(flow)
        ended = await poll(lambda: flows.read(flow_id), lambda found: found.ended_at is not None, timeout)
        nodes = await flows.nodes(flow_id)
        if node is not None:
            name = node if isinstance(node, str) else node.name
            chosen = [one for one in nodes if one.name == name]
            if not chosen:
                raise BadInput(f"flow {flow_id} has no node {name!r}. Next: tenure flows show {flow_id}")
        else:
            chosen = _last(nodes)
        if ended.state != "succeeded" and (node is None or chosen[0].state != "succeeded"):
            raise FlowFailed(flow_id, ended.name, ended.state, _ended_badly(nodes))
        results = await self._results(chosen, nodes)
        return results if node is None else results[chosen[0].name]

    @overload
    def result_sync(self, flow: FlowMade | int, *, timeout: float | None = None) -> dict[str, Any]: ...
    @overload
    def result_sync(self, flow: FlowMade | int, node: Node[R], *, timeout: float | None = None) -> R: ...
    @overload
    def result_sync(self, flow: FlowMade | int, node: str, *, timeout: float | None = None) -> Any: ...
    def result_sync(self, flow: FlowMade | int, node: Any = None, *, timeout: float | None = None) -> Any:
        """`result`, from synchronous code."""
        return self.app._connections.wait(self.result(flow, node, timeout=timeout))

    async def _flows(self) -> Flows | RemoteFlows:
        return (await self.app._client()).flows

    async def _results(self, chosen: Sequence[FlowNode], nodes: Sequence[FlowNode]) -> dict[str, Any]:
        """The results of nodes by name; None for one that did not succeed, and for each such member of a mapped one."""
        members: dict[int, list[FlowNode]] = {one.id: [] for one in chosen if one.is_mapped}
        for one in nodes:
            if one.part_of in members:
                members[one.part_of].append(one)
        wanted = [part for one in chosen for part in members.get(one.id, (one,)) if part.state == "succeeded"]
        reads = asyncio.Semaphore(_READS)

        async def result(job_id: int) -> Any:
            async with reads:
                job = await self.app.job(job_id)
            task = self.app.tasks.get(job.type)
            return job.result if task is None else task.signature.read_result(job.id, job.result)

        values = await asyncio.gather(*(result(one.job_id or one.id) for one in wanted))
        by_id = {one.id: value for one, value in zip(wanted, values, strict=True)}
        return {
            one.name: [by_id.get(part.id) for part in members[one.id]] if one.is_mapped else by_id.get(one.id)
            for one in chosen
        }


class FlowVerbs:
    """The part of `App` that is about flows."""

    middleware: tuple[Middleware, ...]
    _seen_workers: SeenWorkers
    _connections: Connections
    if TYPE_CHECKING:

        async def _client(self) -> JobClient: ...
        def _note_flow(self, flow: NewFlow) -> None: ...
        def _in_transaction(
            self, connection: Any, verb: str, work: Callable[[TransactionCalls], Coroutine[Any, Any, Any]]
        ) -> Any: ...

    @only_known_options("app.flow")
    def flow(
        self, name: str, *, on_failure: OnFailure = "stop", tenant: str = "default", key: str | None = None
    ) -> FlowGraph:
        """Return a flow without nodes: add them, then `await flow.start()`.

        on_failure      what a node that ends badly does to the rest: "stop" (no node starts any more), "skip" (those
                        that need it are skipped), "continue" (those behind it start, with None as its result)
        tenant          the tenant of all its jobs
        key             the same key and the same flow again are the flow that was started first
        """
        return FlowGraph(self, name, on_failure, tenant, key)  # type: ignore[arg-type]

    @property
    def flows(self) -> AppFlows:
        """The flows that were started: list, show, wait for, cancel and resume them."""
        return AppFlows(self)  # type: ignore[arg-type]

    async def _start_flow(self, flow: NewFlow) -> FlowMade:
        self._note_flow(flow)
        client = await self._client()

        async def create(flow: NewFlow) -> FlowMade:
            return await client.flows.create(flow, created_by=_this_process())

        made = await (create_through(self.middleware, flow, create) if self.middleware else create(flow))
        self._seen_workers.note([node.job for node in flow.nodes], client.takers)
        return made

    def _start_flow_in(self, connection: Any, flow: NewFlow) -> Any:
        return self._in_transaction(
            connection, "start_in", lambda calls: calls.start_flow(connection, flow, _this_process())
        )


def _this_process() -> str:
    return "{}:{}".format(*host_and_pid())


async def create_through(
    middleware: Sequence[Middleware], flow: NewFlow, create: Callable[[NewFlow], Awaitable[FlowMade]]
) -> FlowMade:
    """Create a flow while the enqueue hooks of every node's job wait for it; if one raises before, no flow is made."""
    jobs: dict[str, NewJob] = {}
    all_passed = asyncio.Event()
    made: asyncio.Future[FlowMade] = asyncio.get_running_loop().create_future()

    async def enqueue(node: NewNode) -> None:
        async def wait_for_flow(job: NewJob) -> Enqueued:
            jobs[node.name] = job
            if len(jobs) == len(flow.nodes):
                all_passed.set()
            answer = await made
            return Enqueued(answer.jobs[node.name], answer.made)

        await enqueue_through(middleware, node.job, wait_for_flow)
        if node.name not in jobs:
            raise BadInput(
                f"a middleware enqueued no job for node {node.name!r} of flow {flow.name!r}. "
                "Next: let its enqueue hook call call_next for jobs of flows"
            )

    try:
        async with asyncio.TaskGroup() as hooks:
            for node in flow.nodes:
                hooks.create_task(enqueue(node))
            if flow.nodes:
                await all_passed.wait()
            nodes = [replace(node, job=jobs[node.name]) for node in flow.nodes]
            try:
                made.set_result(await create(replace(flow, nodes=nodes)))
            except Exception as error:
                made.set_exception(error)
                made.exception()
                raise
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    return made.result()


def _id(flow: FlowMade | int) -> int:
    return validation.check_integer("flow", flow.id if isinstance(flow, FlowMade) else flow, 1, validation.MAX_ID)


def _last(nodes: Sequence[FlowNode]) -> list[FlowNode]:
    """The nodes that no other one needs, without members and clean-up nodes."""
    parents = {parent for node in nodes for parent in node.parents}
    return [node for node in nodes if node.id not in parents and node.part_of is None and not node.is_cleanup]


def _ended_badly(nodes: Sequence[FlowNode]) -> dict[str, str]:
    """Node → how it ended, of those that failed or were cancelled; of mapped ones the members too."""
    return {node.name: node.error or node.job_state or node.state for node in nodes if node.state in _BAD}
