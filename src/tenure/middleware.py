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

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tenure.errors import BadInput

if TYPE_CHECKING:
    from tenure.context import Context
    from tenure.errors import Refused
    from tenure.job import Job, NewJob
    from tenure.outcome import Moved
    from tenure.queue import Decision

T = TypeVar("T")


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


async def through(middleware: Sequence[Middleware], job: NewJob, make: Callable[[NewJob], Awaitable[int]]) -> int:
    """Make a job, with every middleware around it, the first given outermost; its id."""
    go_on = make
    for each in reversed(middleware):
        go_on = _around(each, go_on)
    return await go_on(job)


def _around(middleware: Middleware, go_on: Callable[[NewJob], Awaitable[int]]) -> Callable[[NewJob], Awaitable[int]]:
    return lambda job: middleware.enqueue(job, go_on)


def at_once(said: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that has nothing to wait for, where nobody could wait."""
    try:
        said.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    said.close()
    raise BadInput(
        "a middleware's enqueue waits for something, which a synchronous connection cannot. "
        "Next: enqueue_in with an asynchronous connection, or let the middleware not wait"
    )
