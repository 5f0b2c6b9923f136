"""Middleware: your code around the steps of a job. Several middleware run in the order given, the first one outermost.

    enqueue   around the enqueue of a job, in the process that enqueues
    claim     after a worker has claimed jobs
    run       around the handler
    finish    after the database has accepted or refused the outcome of a job
    shutdown  when a worker stops, before it closes its last connections

Every hook has a default that does nothing, so a subclass overrides only the ones it needs. An exception in `enqueue` is
raised to the caller. An exception in `run` is a failure of the job, as if the handler had raised it. In the other hooks
it is logged, because the step has already happened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tenure.errors import BadInput
from tenure.jobs.outcome import Enqueued

if TYPE_CHECKING:
    from tenure.context import Context
    from tenure.jobs.job import Job, NewJob
    from tenure.jobs.outcome import Outcome

T = TypeVar("T")


class Middleware:
    """Hooks around enqueue, claim, run, finish and shutdown; override the ones you need."""

    async def enqueue(self, job: NewJob, call_next: Callable[[NewJob], Awaitable[int]]) -> int:
        """Around the enqueue: change the job, refuse it by raising, or read the id that `call_next(job)` gives."""
        return await call_next(job)

    async def claim(self, jobs: Sequence[Job]) -> None:
        """After these jobs were claimed, before they start."""

    async def run(self, ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        """Around the handler: `call_next()` returns its result or raises its exception."""
        return await call_next()

    async def finish(self, job: Job, outcome: Outcome) -> None:
        """After the database has answered: `Moved` with the job's new state, or `Refused` (the lease was lost)."""

    async def shutdown(self) -> None:
        """After the worker has released its last job."""


async def enqueue_through(
    middleware: Sequence[Middleware], job: NewJob, enqueue: Callable[[NewJob], Awaitable[Enqueued]]
) -> Enqueued:
    """Enqueue a job through every middleware, the first one outermost."""
    if not middleware:
        return await enqueue(job)
    answer: Enqueued | None = None

    async def call(job: NewJob) -> int:
        nonlocal answer
        answer = await enqueue(job)
        return answer.job_id

    call_next: Callable[[NewJob], Awaitable[int]] = call
    for each in reversed(middleware):
        call_next = _wrap(each, call_next)
    job_id = await call_next(job)
    return Enqueued(job_id, answer is not None and answer.made)


def _wrap(middleware: Middleware, call_next: Callable[[NewJob], Awaitable[int]]) -> Callable[[NewJob], Awaitable[int]]:
    return lambda job: middleware.enqueue(job, call_next)


def run_without_waiting(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that awaits nothing, from synchronous code; refuse one that does."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    coroutine.close()
    raise BadInput(
        "the enqueue hook of a middleware awaits something, which is not possible on a synchronous connection. "
        "Next: use enqueue_in with an asynchronous connection, or a middleware whose enqueue awaits nothing else"
    )
