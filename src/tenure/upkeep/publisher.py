"""The publisher: sends the wake-ups of the outbox to message queues, in any number of processes at once.

    register ─▶ which queues are published (every minute), and wake-ups for jobs that have none
    publish  ─▶ take due wake-ups ─▶ send ─▶ mark published, or mark failed; a NOTIFY of new jobs starts it at once
    renew    ─▶ a new wake-up for each job that still waits long after its last one

Each queue is published by a task of its own: while one does not answer, the rounds go on with the others.
A message says only which job waits. Lost, doubled and late messages change only when the job starts.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tenure.postgres.listener import Listener
from tenure.postgres.outbox import TakenWakeup
from tenure.postgres.store import Store
from tenure.upkeep.rounds import Report

if TYPE_CHECKING:
    from tenure.sqs.message_queue import MessageQueues

#: So many wake-ups of a queue are taken at once; nobody else takes them for this long, longer than a send lasts.
_BATCH, _HOLD_S = 100, 60.0
#: Batches of one queue in one round.
_BATCHES = 20
#: New wake-ups for jobs that still wait, in one round.
_RENEWALS = 1_000


@dataclass
class _Published:
    """What one queue's part of a round has done."""

    count: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    lag_s: float = 0.0


class Publisher:
    """Publishes the wake-ups of these queues (queue → address); one for each process that runs upkeep."""

    def __init__(
        self, store: Store, urls: Mapping[str, str], *, rewake_ms: int, listen: str | None = None, round_s: float = 1.0
    ) -> None:
        """`listen`: the direct address of the database, for wake-ups that start a round at once.

        `round_s`: a round waits so long for its queues; one that needs longer goes on beside the next rounds.
        """
        self._store, self._outbox, self._urls = store, store.outbox, dict(urls)
        self._rewake_ms, self._listen, self._round_s = rewake_ms, listen, round_s
        self._queues: MessageQueues
        self._woken = asyncio.Event()
        #: The queues that are being published.
        self._running: dict[str, asyncio.Task[_Published]] = {}
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
                tasks = [*self._running.values(), *([listening] if listening is not None else [])]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self._running.clear()

    async def wait(self, seconds: float) -> None:
        """Wait until a job may be new, at most this long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
        self._woken.clear()

    async def register(self) -> Report:
        """Publish these queues from now on, and write wake-ups for jobs that have none (at first and every hour)."""
        new = await self._outbox.publish(self._urls)
        while await self._outbox.fill():
            self._woken.set()
        return Report("register", len(new))

    async def publish(self) -> Report:
        """Publish the wake-ups that are due now. A queue that needs long keeps no other queue waiting."""
        for queue in self._urls.keys() - self._running.keys():
            self._running[queue] = asyncio.create_task(self._publish(queue))
        await asyncio.wait(self._running.values(), timeout=self._round_s)
        ended = [self._running.pop(queue) for queue, task in list(self._running.items()) if task.done()]
        answers = await asyncio.gather(*ended, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        rounds = [answer for answer in answers if not isinstance(answer, BaseException)]
        self.lag_s = max((one.lag_s for one in rounds), default=0.0)
        problems = sum((one.problems for one in rounds), Counter[str]())
        trouble = "; ".join(f"{problem} ({count} wake-ups)" for problem, count in problems.most_common(3))
        return Report("publish", sum(one.count for one in rounds), trouble=trouble or None)

    async def renew(self) -> Report:
        """Write new wake-ups for jobs that still wait long after their last one."""
        renewed = await self._outbox.renew(check_ms=self._rewake_ms, limit=_RENEWALS)
        if renewed:
            self._woken.set()
        return Report("renew wake-ups", renewed)

    async def _publish(self, queue: str) -> _Published:
        """Publish the due wake-ups of one queue, a bounded number; stop when the queue does not take them."""
        done = _Published()
        for _ in range(_BATCHES):
            taken = await self._outbox.take([queue], limit=_BATCH, hold_s=_HOLD_S)
            if not await self._send(queue, taken, done) or len(taken) < _BATCH:
                return done
        self._woken.set()  # more may be due
        return done

    async def _send(self, queue: str, wakeups: list[TakenWakeup], done: _Published) -> bool:
        """Send the wake-ups of one queue and note how it went; returns whether the queue is available."""
        answers = await self._queues.send(self._urls[queue], [wakeup.job_id for wakeup in wakeups])
        failed: dict[str, list[int]] = defaultdict(list)
        published = []
        for wakeup, problem in zip(wakeups, answers, strict=True):
            if problem is None:
                published.append(wakeup.id)
            else:
                failed[problem.text].append(wakeup.id)
        if published:
            ages = await self._outbox.mark_published(published, check_ms=self._rewake_ms)
            done.lag_s = max([done.lag_s, *ages])
        for text, ids in failed.items():
            await self._outbox.mark_failed(ids, text)
        done.count += len(published)
        done.problems += Counter({text: len(ids) for text, ids in failed.items()})
        return not any(problem is not None and problem.is_unavailable for problem in answers)
