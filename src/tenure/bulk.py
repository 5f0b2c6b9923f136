"""Many jobs, batch by batch: while one batch is under way the next is made ready. In their order, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from tenure.job import NewJob

#: Makes jobs that are ready; their ids.
Make = Callable[[], Coroutine[Any, Any, list[int]]]


class Bulk:
    """Makes jobs by `ready`, which checks a batch and gives what makes it; `progress` hears how many there are."""

    def __init__(
        self, ready: Callable[[Sequence[NewJob]], Awaitable[Make]], progress: Callable[[int], None] | None
    ) -> None:
        self._ready = ready
        self._progress = progress
        self._under_way: asyncio.Task[list[int]] | None = None
        self.ids: list[int] = []

    async def send(self, jobs: Sequence[NewJob]) -> None:
        """Begin to make these jobs, as soon as those before them are made."""
        make = await self._ready(jobs)
        await self.answered()
        self._under_way = asyncio.create_task(make())
        await asyncio.sleep(0)  # it is on its way before the next ones are looked at

    async def answered(self) -> None:
        """Wait until what is under way is made."""
        if self._under_way is not None:
            sent, self._under_way = self._under_way, None
            self.ids += await sent
            if self._progress is not None:
                self._progress(len(self.ids))

    async def give_up(self, error: BaseException) -> None:
        """Something went wrong: see what became of the batch that was under way, and note on the error what is made."""
        if self._under_way is not None:
            if isinstance(error, asyncio.CancelledError):
                self._under_way.cancel()
            try:
                await self.answered()
            except (Exception, asyncio.CancelledError) as other:
                error.add_note(f"the batch before was not made: {other!r}")
        if self.ids:
            first, last = self.ids[0], self.ids[-1]
            error.add_note(f"{len(self.ids)} jobs were made before that, the first as {first}, the last as {last}")
