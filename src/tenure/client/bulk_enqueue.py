"""Enqueue many jobs in batches, in order: while one batch is sent, the next one is prepared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from tenure.jobs.job import NewJob

#: Sends a prepared batch; the ids of its jobs.
SendBatch = Callable[[], Coroutine[Any, Any, list[int]]]


class BulkEnqueue:
    """Enqueues batches; `prepare` checks one and gives the function that sends it, `progress` gets the count so far."""

    def __init__(
        self, prepare: Callable[[Sequence[NewJob]], Awaitable[SendBatch]], progress: Callable[[int], None] | None
    ) -> None:
        self._prepare = prepare
        self._progress = progress
        self._under_way: asyncio.Task[list[int]] | None = None
        self.ids: list[int] = []

    async def send(self, jobs: Sequence[NewJob]) -> None:
        """Prepare a batch, and start to send it as soon as the batch before it is answered."""
        send = await self._prepare(jobs)
        await self.wait()
        self._under_way = asyncio.create_task(send())
        await asyncio.sleep(0)  # the task starts before the next batch is prepared

    async def wait(self) -> None:
        """Wait until the batch under way is answered."""
        if self._under_way is not None:
            sent, self._under_way = self._under_way, None
            self.ids += await sent
            if self._progress is not None:
                self._progress(len(self.ids))

    async def add_notes(self, error: BaseException) -> None:
        """After an error: wait for the batch under way, and add a note to the error with the jobs that exist."""
        if self._under_way is not None:
            if isinstance(error, asyncio.CancelledError):
                self._under_way.cancel()
            try:
                await self.wait()
            except (Exception, asyncio.CancelledError) as other:
                error.add_note(f"the batch before was not made: {other!r}")
        if self.ids:
            first, last = self.ids[0], self.ids[-1]
            error.add_note(f"{len(self.ids)} jobs were made before that, the first as {first}, the last as {last}")
