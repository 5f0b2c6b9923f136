"""Queues: what stands in each, and which are paused. A paused queue is not claimed from; everything else goes on.

The pause is looked up by the claim itself, so it holds for every process that claims. Jobs that are held go on, leases
that run out are closed, what waits becomes ready, and who names a job by its id still gets it.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from tenure import intake
from tenure.around import Paused
from tenure.postgres.engine import Engine, ask

#: Jobs are counted up to here, and so many queues are listed: a million more must not make looking slow.
MANY_JOBS = 10_000
MANY_QUEUES = 1_000


class Queue(NamedTuple):
    """A queue as it is now, over all contracts."""

    name: str
    #: Due, and to be claimed next.
    ready: int
    #: Ready, but not due yet.
    delayed: int
    #: To be made ready by upkeep.
    waiting: int
    held: int
    #: Since when the oldest ready job is due.
    oldest: datetime | None
    #: Those of the counts above that are lower bounds.
    at_least: tuple[str, ...]
    paused: Paused | None
    #: The database's clock when it was counted.
    now: datetime


class Queues:
    """The verbs on queues; `store.queues`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list(self) -> list[Queue]:
        """The queues that have live jobs or are paused, by name, the first thousand."""
        rows = await self._engine.run(lambda: ask("queues", {"bound": MANY_JOBS, "queues": MANY_QUEUES}))
        return [_queue(*row) for row in rows]

    async def pause(self, name: str, *, actor: str, reason: str | None = None) -> tuple[Paused, bool]:
        """Let nobody claim from a queue; how it is paused now, and whether by this call."""
        values = {"name": intake.name("queue", name), "actor": intake.name("actor", actor)}
        why = None if reason is None else intake.name("reason", reason)
        ((*paused, new),) = await self._engine.run(lambda: ask("pause", {**values, "reason": why}))
        return Paused(*paused), new

    async def resume(self, name: str, *, actor: str) -> bool:
        """Let a queue be claimed from again; whether it was paused."""
        values = {"name": intake.name("queue", name), "actor": intake.name("actor", actor)}
        resumed = bool(await self._engine.run(lambda: ask("resume", values)))
        if resumed:
            self._engine.wakeups.want([("", name)])
        return resumed


def _queue(
    name: str,
    ready: int,
    delayed: int,
    waiting: int,
    held: int,
    oldest: datetime | None,
    *more_and_paused: object,
) -> Queue:
    *more, at, by, reason, now = more_and_paused
    counts = {"ready": ready, "delayed": delayed, "waiting": waiting, "held": held}
    at_least = tuple(kind for kind, is_more in zip(counts, more, strict=True) if is_more)
    shown = {kind: min(number, MANY_JOBS) if kind in at_least else number for kind, number in counts.items()}
    paused = Paused(at, by, reason) if isinstance(at, datetime) else None  # type: ignore[arg-type]
    return Queue(name, **shown, oldest=oldest, at_least=at_least, paused=paused, now=now)  # type: ignore[arg-type]
