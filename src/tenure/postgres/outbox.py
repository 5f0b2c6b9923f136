"""The outbox: wake-ups of jobs, written in the transaction that makes a job ready, and published to message queues.

    create, promote ──▶ outbox row ──▶ take ──▶ message queue ──▶ mark published ──▶ check ──▶ a new row, if the job
                        (with the job)  (a few seconds)            or mark failed    (later)   still waits

A publisher that dies between `take` and `mark` leaves the row to the next one: a message is sent at least once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from tenure.postgres.engine import EngineUser

#: Due wake-ups of a queue are counted up to this number.
MANY_WAKEUPS = 10_000

#: Wake-ups that one statement deletes.
_PAGE = 10_000


class TakenWakeup(NamedTuple):
    """A wake-up that this publisher publishes now."""

    id: int
    job_id: int
    queue: str


class PendingWakeup(NamedTuple):
    """A wake-up that is not published."""

    id: int
    job_id: int
    contract: str
    queue: str
    created_at: datetime
    #: When a publisher takes it next.
    publish_at: datetime
    tries: int
    last_error: str | None
    #: Seconds since it was due; negative if it is not due yet.
    age_s: float


class PublishedQueue(NamedTuple):
    """A queue whose wake-ups are published, with its due wake-ups."""

    queue: str
    url: str
    seen_at: datetime
    #: Whether jobs from before have their wake-ups.
    is_filled: bool
    #: Seconds since a publisher had this queue in its settings.
    unseen_s: float
    #: Due wake-ups, counted up to `MANY_WAKEUPS`.
    due: int
    #: Seconds since the oldest of them was due; None: none is due, or the queue is paused.
    oldest_s: float | None
    last_error: str | None
    #: Whether the wake-ups wait until the queue is resumed.
    is_paused: bool


class Outbox(EngineUser):
    """Operations on wake-ups; `store.outbox`."""

    async def publish(self, urls: Mapping[str, str]) -> list[str]:
        """Publish the wake-ups of these queues from now on, for all processes; returns the queues that are new."""
        rows = await self._engine.ask("publish_queues", queues=list(urls), urls=list(urls.values()))
        return [queue for queue, is_new in rows if is_new]

    async def unpublish(self, unseen_s: float = 0.0) -> list[str]:
        """Stop publishing queues that no publisher has named for this long; returns them.

        Wake-ups that nobody will publish are deleted, also those of transactions that ended later.
        """
        queues = [queue for (queue,) in await self._engine.ask("unpublish_queues", unseen_s=unseen_s)]
        await self._delete("delete_unpublished_wakeups")
        return queues

    async def take(self, queues: Sequence[str], *, limit: int, hold_s: float) -> list[TakenWakeup]:
        """Take due wake-ups of these queues; for `hold_s` seconds no other publisher takes them."""
        rows = await self._engine.ask("take_wakeups", queues=queues, limit=limit, hold_s=hold_s)
        return [TakenWakeup._make(row) for row in rows]

    async def mark_published(self, ids: Sequence[int], *, check_ms: int) -> list[float]:
        """Record that these are published, to be checked after `check_ms`; returns how late each was, in seconds."""
        rows = await self._engine.ask("mark_wakeups_published", ids=ids, check_ms=check_ms)
        return [age for (age,) in rows]

    async def mark_failed(self, ids: Sequence[int], error: str) -> None:
        """Record why these could not be published; they are taken again later."""
        await self._engine.ask("mark_wakeups_failed", ids=ids, error=error[:1_000])

    async def renew(self, *, check_ms: int, limit: int = 1_000) -> int:
        """Write a new wake-up for jobs that are still ready long after the last one; returns how many."""
        return len(await self._engine.ask("renew_wakeups", check_ms=check_ms, limit=limit))

    async def fill(self, limit: int = 10_000) -> int:
        """Write wake-ups for the next jobs from before their queue was published; returns how many it looked at."""
        pointers = [one.name for one in self._engine.registry.contracts() if one.wakeup == "pointer"]
        rows = await self._engine.ask("fill_wakeups", contracts=pointers, limit=limit)
        return max(1, int(rows[0][1])) if rows else 0

    async def forget(self, age_s: float) -> int:
        """Delete wake-ups that were published this long ago; returns how many."""
        return await self._delete("delete_old_wakeups", age_s=age_s)

    async def _delete(self, name: str, **values: float) -> int:
        """Delete page by page, each in its own transaction, until a page is not full; returns how many."""
        total = 0
        while True:
            deleted = len(await self._engine.ask(name, **values, limit=_PAGE))
            total += deleted
            if deleted < _PAGE:
                return total

    async def queues(self) -> list[PublishedQueue]:
        """Return the published queues, by name."""
        return [
            PublishedQueue._make(row) for row in await self._engine.ask("list_published_queues", bound=MANY_WAKEUPS)
        ]

    async def retry(self, ids: Sequence[int] | None = None, queue: str | None = None) -> int:
        """Make wake-ups due now that could not be published; returns how many."""
        return len(await self._engine.ask("retry_wakeups", ids=ids, queue=queue))

    async def list(self, limit: int = 100) -> list[PendingWakeup]:
        """Return wake-ups that are not published, those that are due first."""
        return [PendingWakeup._make(row) for row in await self._engine.ask("list_wakeups", limit=limit)]
