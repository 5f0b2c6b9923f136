"""Finish: successes go to the database in groups; what ends while groups are under way is the next one.

No timer: a lone success goes in the loop's next turn, and groups grow with the load. Two are under way at once, so that
one is being written while another is made.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context

from tenure.outcome import Moved
from tenure.worker.handle import Done
from tenure.worker.running import Running
from tenure.worker.settle import insisting
from tenure.worker.source import JobSource

_LARGEST = 1_000
_AT_ONCE = 2


class Finisher:
    """Says of jobs that they ended well; `answered` hears what the database made of each."""

    def __init__(
        self,
        source: JobSource,
        answered: Callable[[Sequence[tuple[Running, Done]], Sequence[Moved | Exception]], None],
    ) -> None:
        self._source = source
        self._answered = answered
        self._context = copy_context()  # not that of the job that happens to end first
        self._ended: deque[tuple[Running, Done]] = deque()
        self.tasks: set[asyncio.Task[None]] = set()

    def add(self, running: Running, done: Done) -> None:
        """This job's handler returned; somebody says so soon."""
        self._ended.append((running, done))
        if len(self.tasks) < _AT_ONCE:
            # A task begins in the loop's next turn, so that whatever ends in this one goes along.
            self.tasks.add(asyncio.create_task(self._run(), context=self._context.copy()))

    async def _run(self) -> None:
        try:
            while self._ended:
                group = [self._ended.popleft() for _ in range(min(_LARGEST, len(self._ended)))]
                self._answered(group, await self._said(group))
        finally:
            self.tasks.discard(asyncio.current_task())

    async def _said(self, group: list[tuple[Running, Done]]) -> Sequence[Moved | Exception]:
        """What became of each, or the error for which nothing of the group was written."""
        held = [running.held for running, _ in group]
        results = [done.result for _, done in group]
        try:
            return await insisting(lambda: self._source.succeed(held, results), *(running for running, _ in group))
        except Exception as error:  # one of them may be at fault: each is told of alone, and its trouble is its own
            return [error] * len(group)
