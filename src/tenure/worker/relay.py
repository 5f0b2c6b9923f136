"""The relay: lives that wait for nothing share a task, one that waits has its own.

    runner ─▶ life, life, life … waits ─┐
              next runner ◀─────────────┘ takes over at the next life; the one that waits keeps its task until it ends

A task for each job would cost more than a short job does. So one runner goes from life to life for as long as none of
them waits. The loop's next turn finds out that one does: from then on that task is its alone, its limit counts, and
another runner takes over, so that everything that was claimed begins at once. No life sees another's task in any state
but a new one's: whatever left a context variable or a cancellation behind was the last one of its runner.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextvars import copy_context
from typing import Any

from tenure.worker.running import Running

#: So many runners at the most begin in one turn of the loop.
_MOST_AT_ONCE = 256


class Relay:
    """Begins lives and sees them through."""

    def __init__(self, live: Callable[[Running], Coroutine[Any, Any, None]]) -> None:
        self._live = live
        self._loop = asyncio.get_running_loop()
        #: What every life begins with.
        self._context = copy_context()
        self._values = list(self._context.items())
        self._waiting: deque[Running] = deque()
        #: The life that has begun and has not yet been seen to wait.
        self._ahead: Running | None = None
        #: Runners that were called and have not begun; and how many may be, which grows while lives are seen to wait.
        self._called, self._wanted = 0, 1
        self._is_watched = False
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, lives: Iterable[Running]) -> None:
        """Begin these lives, in this order, in the loop's next turn."""
        self._waiting.extend(lives)
        self._call()

    def _call(self) -> None:
        """Call the next runner, or the next ones, if there is anything to run."""
        while self._called < min(self._wanted, len(self._waiting)):
            self._called += 1
            task = self._loop.create_task(self._run(), context=self._context.copy())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _run(self) -> None:
        self._called -= 1
        task = asyncio.current_task()
        assert task is not None
        while self._waiting:
            if self._ahead is not None:  # another runner's: it has let go of the loop, so it waits
                self._ahead.waits()
            running = self._ahead = self._waiting.popleft()
            running.runner = task
            if not self._is_watched:
                self._is_watched = True
                self._loop.call_soon(self._watch)
            await self._live(running)
            if running.is_waiting:
                return  # others have gone on meanwhile
            self._ahead, self._wanted = None, 1
            if task.cancelling() or getattr(task, "_must_cancel", False) or not self._is_clean():
                break
        self._call()

    def _is_clean(self) -> bool:
        """Whether the last life left the context as it found it."""
        found = copy_context()
        return len(found) == len(self._values) and all(found.get(each, found) is value for each, value in self._values)

    def _watch(self) -> None:
        """In the turn after a life began: whatever is still ahead has not ended, so it waits."""
        self._is_watched = False
        running, self._ahead = self._ahead, None
        if running is not None:
            running.waits()
            self._wanted = min(2 * self._wanted, _MOST_AT_ONCE)
        self._call()
