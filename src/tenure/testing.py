"""Test your own tasks: run what is due, look at what was enqueued, and move time instead of waiting.

    await testing.drain(app)                       every job that is due runs here, to its end or its next wait
    await testing.advance(app, hours=1)            as if so much time had passed: retries, delays and leases come due
    await testing.assert_enqueued(app, send, "a")  there is such a job, waiting or done; gives it

They work on the application's own database, which in tests is best the embedded one: `App()` in a temporary directory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec

from tenure.errors import BadInput
from tenure.job import Job
from tenure.local import Local

if TYPE_CHECKING:
    from tenure.app import App
    from tenure.postgres.store import Store
    from tenure.task import Task

P = ParamSpec("P")


async def drain(app: App, *, queues: Sequence[str] | None = None, concurrency: int = 50) -> Counter[str]:
    """Run every job that is due, and what those enqueue, until nothing is; what happened, counted."""
    store = _store(await app._local())
    for contract in await store.contracts():
        await store.settle(contract)
        await store.reap(contract)
        await store.promote(contract)
    worker = app.worker(queues=queues, concurrency=concurrency, poll=0.05, upkeep=False, wakeups=False)
    await worker.run(until_idle=True)
    return worker.counts


async def advance(app: App, **span: float) -> None:
    """Let time pass for every job that is not finished: `advance(app, minutes=5)`, in the words of timedelta."""
    from tenure.postgres.moving import advance as move

    await move(_store(await app._local()), timedelta(**span))


async def enqueued(app: App, task: Task[..., Any] | None = None) -> list[Job]:
    """Jobs, newest first, finished or not: of this task, or of all."""
    store = _store(await app._local())
    found = await store.find(type=None if task is None else task.name, limit=1_000)
    jobs = await store.jobs([listed.id for listed in found.jobs])
    return sorted(jobs, key=lambda job: job.id, reverse=True)


async def assert_enqueued(app: App, task: Task[P, Any], *args: P.args, **kwargs: P.kwargs) -> Job:
    """The newest job of this task with these arguments; an AssertionError that says what there is instead."""
    wanted = task.call(*args, **kwargs).job.payload
    jobs = await enqueued(app, task)
    for job in jobs:
        if job.payload == wanted:
            return job
    there = "\n".join(f"  {job.payload}" for job in jobs) or "  none at all"
    raise AssertionError(f"no job of {task.name} has the arguments {wanted}; there are:\n{there}")


def _store(local: object) -> Store:
    """The app's own database; refused where there is only a dispatcher."""
    if not isinstance(local, Local):
        raise BadInput("these tools work on the database itself, and this app goes through a dispatcher")
    return local.store
