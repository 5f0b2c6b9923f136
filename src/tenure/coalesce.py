"""Many callers, few round trips: calls that are made at the same time become one batch.

    caller ─┐
    caller ─┼─▶ waiting ─▶ one batch ─▶ answers, each to its caller
    caller ─┘      ▲ what comes while a batch is under way is the next one

No timer: a lone call goes at once, and batches grow with the load. A refusal is one caller's; an error of the whole
batch is everybody's, except that a batch which was refused for what one of them asked is tried one by one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from tenure.errors import BadInput

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Coalescer(Generic[Asked, Answer]):
    """Gathers calls into batches, some of them under way at once; belongs to one event loop."""

    def __init__(
        self,
        send: Callable[[Sequence[Asked]], Awaitable[Sequence[Any]]],
        *,
        largest: int = 1_000,
        at_once: int = 2,
    ) -> None:
        self._send = send
        self._largest = largest
        self._at_once = at_once
        self._waiting: deque[tuple[Asked, asyncio.Future[Answer]]] = deque()
        self._under_way: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many calls wait for a batch."""
        return len(self._waiting)

    @property
    def is_busy(self) -> bool:
        """Whether anything waits or is under way."""
        return bool(self._waiting or self._under_way)

    def ask(self, asked: Asked) -> asyncio.Future[Answer]:
        """Join the next batch; what it answers to this one, or raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((asked, future))
        if len(self._under_way) < self._at_once:
            # A task begins in the loop's next turn, so that whatever is asked in this one goes along.
            self._under_way.add(loop.create_task(self._run()))
        return future

    async def rest(self) -> None:
        """Wait until nothing waits and nothing is under way."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _run(self) -> None:
        try:
            while self._waiting:
                size = min(self._largest, len(self._waiting))
                batch = [self._waiting.popleft() for _ in range(size)]
                await self._answer([(asked, future) for asked, future in batch if not future.cancelled()])
        finally:
            # Here, and not when the task is done: who asks in between would count on a runner that is none any more.
            self._under_way.discard(asyncio.current_task())

    async def _answer(self, batch: list[tuple[Asked, asyncio.Future[Answer]]]) -> None:
        if not batch:
            return
        try:
            answers = await self._send([asked for asked, _ in batch])
        except BadInput as error:
            if len(batch) == 1:
                _fail(batch, error)
                return
            for one in batch:  # one of them is at fault, and nothing was written
                await self._answer([one])
        except BaseException as error:
            _fail(batch, error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if future.done():
                    continue  # its caller went away
                if isinstance(answer, Exception):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)


def _fail(batch: list[tuple[Asked, asyncio.Future[Answer]]], error: BaseException) -> None:
    for _, future in batch:
        if not future.done():
            future.set_exception(error)
