"""Batch concurrent calls: the calls of many callers share few round trips.

    caller ─┐
    caller ─┼─▶ waiting ─▶ one batch ─▶ one answer for each call
    caller ─┘      ▲ calls that arrive while batches are under way form the next one

There is no timer. A lone call is sent in the event loop's next turn, and batches grow with the load. An answer that is
an exception belongs to its call alone. An exception of the whole batch goes to all of its calls, with one exception:
after `BadInput` nothing was written, so the calls are sent again one by one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Any, Generic, TypeVar

from tenure.errors import BadInput

Item = TypeVar("Item")
Answer = TypeVar("Answer")
_Call = tuple[Item, asyncio.Future[Answer] | None]


class Batcher(Generic[Item, Answer]):
    """Sends items in batches of up to `largest`, `at_once` batches at a time; belongs to one event loop.

    `ask` gives a future for the answer to one item. A batcher with `on_answers` takes `submit` instead, which makes no
    future: `on_answers` gets the items of each batch with their answers. `context`: in which context variables batches
    are sent; by default in those of the call that starts the sender.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Item]], Awaitable[Sequence[Any]]],
        *,
        largest: int = 1_000,
        at_once: int = 2,
        on_answers: Callable[[Sequence[Item], Sequence[Answer | Exception]], None] | None = None,
        context: Context | None = None,
    ) -> None:
        self._send = send
        self._largest = largest
        self._at_once = at_once
        self._on_answers = on_answers
        self._context = context
        #: The items that wait for a batch; each with the future of its answer, None where `on_answers` gets that.
        self._waiting: deque[_Call[Item, Answer]] = deque()
        #: The senders that run now.
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        """Whether an item waits or a batch is under way."""
        return bool(self._waiting or self.tasks)

    def ask(self, item: Item) -> asyncio.Future[Answer]:
        """Put an item into the next batch; the future gets its answer or its exception."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._put((item, future))
        return future

    def submit(self, item: Item) -> None:
        """Put an item into the next batch; `on_answers` gets its answer."""
        self._put((item, None))

    def _put(self, call: _Call[Item, Answer]) -> None:
        self._waiting.append(call)
        if len(self.tasks) < self._at_once:
            # A task starts in the loop's next turn, so its batch includes all items of this turn.
            context = None if self._context is None else self._context.copy()
            self.tasks.add(asyncio.create_task(self._send_waiting(), context=context))

    async def flush(self) -> None:
        """Wait until no item waits and no batch is under way."""
        while self.tasks:
            await asyncio.wait(self.tasks)

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                calls = [self._waiting.popleft() for _ in range(min(self._largest, len(self._waiting)))]
                calls = [call for call in calls if call[1] is None or not call[1].cancelled()]
                if calls:
                    await self._send_batch(calls)
        finally:
            # Not in a done callback: a call between the two would count on a sender that sends no more.
            self.tasks.discard(asyncio.current_task())

    async def _send_batch(self, calls: Sequence[_Call[Item, Answer]]) -> None:
        items = [item for item, _ in calls]
        answers: Sequence[Answer | Exception]
        try:
            answers = await self._send(items)
        except BadInput as error:
            if len(calls) > 1:  # one item is at fault, and nothing was written
                for call in calls:
                    await self._send_batch([call])
                return
            answers = [error]
        except Exception as error:
            answers = [error] * len(calls)
        except BaseException as error:
            for _, future in calls:
                if future is not None and not future.done():
                    future.set_exception(error)
            raise
        if self._on_answers is not None:
            self._on_answers(items, answers)
            return
        for (_, future), answer in zip(calls, answers, strict=True):
            if future is None or future.done():
                continue  # its caller was cancelled
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
