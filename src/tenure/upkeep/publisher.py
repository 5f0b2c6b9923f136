"""The publisher: sends the wake-ups of the outbox to message queues, in any number of processes at once.

    register ─▶ which queues are published (every minute), and wake-ups for jobs from before
    publish  ─▶ take due wake-ups ─▶ send ─▶ mark published, or mark failed; a NOTIFY of new jobs starts it at once
    renew    ─▶ a new wake-up for each job that still waits long after its last one

A message says only which job waits. Lost, doubled and late messages change only when the job starts.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from tenure.postgres.listener import Listener
from tenure.postgres.outbox import TakenWakeup
from tenure.postgres.store import Store
from tenure.upkeep.rounds import Report

if TYPE_CHECKING:
    from tenure.sqs.message_queue import MessageQueues

#: So many wake-ups are taken at once; nobody else takes them for this many seconds.
_BATCH, _HOLD_S = 500, 60.0
#: New wake-ups for jobs that still wait, in one round.
_RENEWALS = 1_000


class Publisher:
    """Publishes the wake-ups of these queues (queue → address); one for each process that runs upkeep."""

    def __init__(self, store: Store, urls: Mapping[str, str], *, rewake_ms: int, listen: str | None = None) -> None:
        """`listen`: the direct address of the database, for wake-ups that start a round at once."""
        self._store, self._outbox, self._urls = store, store.outbox, dict(urls)
        self._rewake_ms, self._listen = rewake_ms, listen
        self._queues: MessageQueues
        self._woken = asyncio.Event()
        #: The longest time that a published wake-up was late in the last round, in seconds.
        self.lag_s = 0.0

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Keep the connections to the message queues, and listen for new jobs, during the block."""
        from tenure.sqs.message_queue import MessageQueues

        async with MessageQueues.open() as self._queues:
            listening = None
            if self._listen is not None:
                listening = asyncio.create_task(Listener(self._listen, lambda contract, queue: self._woken.set()).run())
            try:
                yield
            finally:
                if listening is not None:
                    listening.cancel()
                    await asyncio.gather(listening, return_exceptions=True)

    async def wait(self, seconds: float) -> None:
        """Wait until a job may be new, at most this long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
        self._woken.clear()

    async def register(self) -> Report:
        """Publish these queues from now on, and write wake-ups for jobs from before."""
        new = await self._outbox.publish(self._urls)
        while await self._outbox.fill():
            self._woken.set()
        return Report("register", len(new))

    async def publish(self) -> Report:
        """Publish all wake-ups that are due now."""
        published, problems = 0, Counter[str]()
        self.lag_s = 0.0
        while True:
            taken = await self._outbox.take(list(self._urls), limit=_BATCH, hold_s=_HOLD_S)
            by_queue: dict[str, list[TakenWakeup]] = defaultdict(list)
            for wakeup in taken:
                by_queue[wakeup.queue].append(wakeup)
            sent = await asyncio.gather(*(self._send(queue, wakeups) for queue, wakeups in by_queue.items()))
            for count, found in sent:
                published += count
                problems += found
            if len(taken) < _BATCH:
                break
        trouble = "; ".join(f"{problem} ({count} wake-ups)" for problem, count in problems.most_common(3))
        return Report("publish", published, trouble=trouble or None)

    async def renew(self) -> Report:
        """Write new wake-ups for jobs that still wait long after their last one."""
        renewed = await self._outbox.renew(check_ms=self._rewake_ms, limit=_RENEWALS)
        if renewed:
            self._woken.set()
        return Report("renew wake-ups", renewed)

    async def _send(self, queue: str, wakeups: list[TakenWakeup]) -> tuple[int, Counter[str]]:
        """Send the wake-ups of one queue; returns how many were taken, and why others were not."""
        answers = await self._queues.send(self._urls[queue], [wakeup.job_id for wakeup in wakeups])
        failed: dict[str, list[int]] = defaultdict(list)
        published = []
        for wakeup, problem in zip(wakeups, answers, strict=True):
            if problem is None:
                published.append(wakeup.id)
            else:
                failed[problem].append(wakeup.id)
        if published:
            ages = await self._outbox.mark_published(published, check_ms=self._rewake_ms)
            self.lag_s = max([self.lag_s, *ages])
        for problem, ids in failed.items():
            await self._outbox.mark_failed(ids, problem)
        return len(published), Counter({problem: len(ids) for problem, ids in failed.items()})
