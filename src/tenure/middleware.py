"""Middleware: code of yours around what Tenure does, in the order in which it was given.

    enqueue   around the making of a job          (in the process that enqueues)
    claim     after jobs were claimed
    run       around the handler
    finish    after the database has accepted, or refused, what became of a job
    shutdown  when a worker stops, before it lets its last connections go

Every hook has a default that does nothing, so a subclass writes only the ones it needs. An exception in `enqueue` is
the caller's, one in `run` is a failure of the job as if the handler had raised it; in the other hooks it is logged,
because what they tell of has already happened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tenure.context import Context
    from tenure.errors import Refused
    from tenure.job import Job, NewJob
    from tenure.outcome import Moved
    from tenure.queue import Decision


class Middleware:
    """Hooks around enqueue, claim, run, finish and shutdown; override what you need."""

    async def enqueue(self, job: NewJob, go_on: Callable[[NewJob], Awaitable[int]]) -> int:
        """Around the making of a job: change it, refuse it by raising, or look at the id that it got."""
        return await go_on(job)

    async def claim(self, jobs: Sequence[Job]) -> None:
        """These jobs were claimed, and are about to run."""

    async def run(self, ctx: Context, go_on: Callable[[], Awaitable[Any]]) -> Any:
        """Around the handler: what it returns or raises passes here."""
        return await go_on()

    async def finish(self, job: Job, became: Moved | Decision | Refused) -> None:
        """What became of a job in the database: where it moved, or why that was refused (a lost lease)."""

    async def shutdown(self) -> None:
        """The worker has let go of its last job."""
