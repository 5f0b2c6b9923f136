"""Queues: how many jobs each has, and which are paused. Claims skip a paused queue; everything else goes on.

The claim itself looks up the pause, so it holds for every process that claims. Held jobs go on, expired leases are
closed, waiting jobs become ready, and a claim by job id still works.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from tenure.jobs import validation
from tenure.jobs.unserved import UnservedType
from tenure.jobs.why import QueuePause
from tenure.postgres.engine import EngineUser
from tenure.postgres.live_workers import MANY_QUEUES, Workers
from tenure.postgres.statement import Row

#: Jobs are counted up to this number, and MANY_QUEUES queues are listed, so that large queues do not slow the query.
MANY_JOBS = 10_000
#: With many queues each is counted up to a lower number, so that no more than about this many jobs are read in all.
MOST_ROWS = 30_000


class Queue(NamedTuple):
    """The current counts of a queue, over all contracts."""

    name: str
    #: Due jobs, also those of a dead worker that the next claim takes in place.
    ready: int
    #: Ready, but not due yet.
    delayed: int
    #: Upkeep makes these ready.
    waiting: int
    held: int
    #: Claims skip these, because they cannot be logged.
    quarantined: int
    #: Since when the oldest ready job is due.
    oldest: datetime | None
    #: The counts that are lower bounds.
    at_least: tuple[str, ...]
    paused: QueuePause | None
    #: The database's time of the count.
    now: datetime
    #: The types of its jobs that no live worker takes.
    unserved: tuple[UnservedType, ...] = ()


class Queues(EngineUser):
    """Operations on queues; `store.queues`."""

    async def list(self) -> list[Queue]:
        """Return the queues that have live jobs or are paused, by name; at most 1,000."""
        rows = await self._rows(MOST_ROWS)
        unserved: dict[str, list[UnservedType]] = {}
        for one in await Workers(self._engine).unserved():
            unserved.setdefault(one.queue, []).append(one)
        return [_queue(row, unserved.get(row[0], ())) for row in rows]

    async def oldest(self) -> dict[str, float]:
        """Return for how many seconds the oldest ready job of each queue is due; counts as few jobs as possible."""
        queues = [_queue(row, ()) for row in await self._rows(0)]
        return {one.name: max(0.0, (one.now - one.oldest).total_seconds()) for one in queues if one.oldest}

    async def _rows(self, most: int) -> Sequence[Row]:
        await self._engine.refresh()
        values = {"bound": MANY_JOBS, "rows": most, "queues": MANY_QUEUES, **self._engine.registry.reclaiming()}
        return await self._engine.ask("list_queues", **values)

    async def pause(self, name: str, *, actor: str, reason: str | None = None) -> tuple[QueuePause, bool]:
        """Pause a queue: claims skip it. Returns the pause, and whether this call made it."""
        values = {"name": validation.check_name("queue", name), "actor": validation.check_name("actor", actor)}
        why = None if reason is None else validation.check_name("reason", reason)
        ((*paused, new),) = await self._engine.ask("pause_queue", **values, reason=why)
        return QueuePause(*paused), new

    async def resume(self, name: str, *, actor: str) -> bool:
        """Resume a queue; returns whether it was paused."""
        values = {"name": validation.check_name("queue", name), "actor": validation.check_name("actor", actor)}
        resumed = bool(await self._engine.ask("resume_queue", **values))
        if resumed:
            self._engine.wakeups.request([("", name)])
        return resumed


def _queue(row: Row, unserved: Sequence[UnservedType]) -> Queue:
    """Convert a row: name, five counts, oldest, whether each count is a lower bound, the pause, the time."""
    name, *counts, oldest = row[:7]
    is_more, (at, by, reason, now) = row[7:12], row[12:]
    shown = [min(count, MANY_JOBS) if more else count for count, more in zip(counts, is_more, strict=True)]
    at_least = tuple(field for field, more in zip(Queue._fields[1:6], is_more, strict=True) if more)
    paused = None if at is None else QueuePause(at, by, reason)
    return Queue._make((name, *shown, oldest, at_least, paused, now, tuple(unserved)))
