"""Small flows for tests: their nodes, and a worker that runs their jobs by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenure.errors import PermanentError
from tenure.jobs.flow import FlowMade, NewNode
from tenure.jobs.job import Job, NewJob
from tenure.postgres.store import Store


def node(name: str, *after: str, contract: str = "standard", **more: Any) -> NewNode:
    """A node whose job has the node's name as type."""
    return NewNode(name, NewJob(name, more.pop("payload", {}), contract), after=after, **more)


async def states(store: Store, made: FlowMade) -> Mapping[str, str]:
    """Node → its state."""
    return {one.name: one.state for one in await store.flows.nodes(made.id)}


async def claim_all(store: Store, contract: str = "standard") -> Sequence[Job]:
    """Claim and start all due jobs."""
    jobs = await store.claim(contract, worker="w", limit=1_000)
    for job in jobs:
        await store.start(job.held)
    return jobs


async def run(store: Store, contract: str = "standard", **results: Any) -> list[str]:
    """Run all due jobs until none is due; returns their types in order."""
    ran: list[str] = []
    while jobs := await claim_all(store, contract):
        for job in jobs:
            await store.succeed(job.held, results.get(job.type))
            ran.append(job.type)
    return ran


async def fail(store: Store, job: Job) -> None:
    """End a job badly, whatever its budget."""
    await store.fail(job.held, PermanentError("no"))
