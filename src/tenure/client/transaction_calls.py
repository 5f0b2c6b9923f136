"""Calls in the caller's own transaction: enqueue one job or many, start a flow. Nothing else of the client takes part.

Each function is a coroutine. With a synchronous connection it awaits nothing, so that the caller can run it to its end.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tenure.errors import BadInput
from tenure.jobs.flow import FlowMade, NewFlow
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import NewJob
from tenure.jobs.outcome import Enqueued
from tenure.settings import Settings

if TYPE_CHECKING:
    from tenure.postgres.statement import Plan

T = TypeVar("T")
#: Makes one job, through the middleware of the application.
Through = Callable[[NewJob, Callable[[NewJob], Awaitable[Enqueued]]], Awaitable[Enqueued]]


class TransactionCalls:
    """What one application does in transactions of its callers."""

    def __init__(self, settings: Settings, through: Through | None) -> None:
        from tenure.postgres.callers_transaction import CallersTransaction
        from tenure.postgres.registry import Registry

        self._through = through
        self._transaction = CallersTransaction(
            Registry(settings.numbers), settings.max_payload_bytes, wake=settings.wakeups
        )

    async def enqueue(self, connection: Any, jobs: Sequence[NewJob], verb: str) -> list[Enqueued]:
        """Enqueue jobs: together, or one by one where there is middleware."""
        if self._through is None:
            return await self._run(connection, self._transaction.enqueue(jobs), verb)

        async def one(job: NewJob) -> Enqueued:
            (made,) = await self._run(connection, self._transaction.enqueue([job]), verb)
            return made

        return [await self._through(job, one) for job in jobs]

    async def enqueue_many(
        self, connection: Any, jobs: AsyncIterable[NewJob], batch: int, progress: Callable[[int], None] | None
    ) -> list[int]:
        """Enqueue any number of jobs, batch by batch; returns their ids."""
        ids: list[int] = []
        waiting: list[NewJob] = []

        async def send() -> None:
            ids.extend(made.job_id for made in await self.enqueue(connection, waiting, "enqueue_many_in"))
            waiting.clear()
            if progress is not None:
                progress(len(ids))

        async for job in jobs:
            waiting.append(job)
            if len(waiting) == batch:
                await send()
        if waiting:
            await send()
        return ids

    async def start_flow(self, connection: Any, flow: NewFlow, created_by: str) -> FlowMade:
        """Create a flow; refused where there is middleware, whose hooks wait for the jobs of all nodes together."""
        if self._through is not None:
            raise BadInput(
                "start_in cannot call the enqueue hooks of this app's middleware. "
                "Next: start the flow after the commit, with key=… so that it can be repeated"
            )
        return await self._run(connection, self._transaction.create_flow(flow, created_by), "start_in")

    async def succeed(self, connection: Any, call: HolderCall) -> None:
        """End a held job as succeeded."""
        await self._run(connection, self._transaction.succeed(call), "complete_in")

    async def _run(self, connection: Any, plan: Plan[T], verb: str) -> T:
        from tenure.postgres.callers_connection import is_async

        if is_async(connection, verb):
            return await self._transaction.run_async(connection, plan, verb)
        return self._transaction.run(connection, plan, verb)
