"""Reads of the API that many open pages share: each at most once in a short time for the same tenant and scopes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

#: Seconds that an answer is shared. A page shows a change at most this, and one round of `live.py`, later.
SHARED_S: Final = 0.2
#: Old answers are dropped when there are more than this many.
_MANY: Final = 100


@dataclass(slots=True)
class _Shared:
    """An answer that was asked for, and until when it is shared."""

    task: asyncio.Task[Any]
    until: float


class SharedReads:
    """Answers by what was asked. Concurrent readers wait for the same answer."""

    def __init__(self) -> None:
        self._shared: dict[Hashable, _Shared] = {}

    async def get(self, key: Hashable, read: Callable[[], Awaitable[Any]], seconds: float = SHARED_S) -> Any:
        """Return the shared answer for this key, or read it and share it for so long."""
        now = time.monotonic()
        shared = self._shared.get(key)
        if shared is None or (shared.task.done() and (now >= shared.until or _failed(shared.task))):
            if len(self._shared) > _MANY:
                self._drop_old(now)
            shared = self._shared[key] = _Shared(asyncio.ensure_future(_run(read)), now + seconds)
        # One reader that goes away must not take the answer from the others.
        return await asyncio.shield(shared.task)

    def forget(self, key: Hashable | None = None) -> None:
        """Share no answer from before now, or not the one for this key: what was read has changed."""
        if key is None:
            self._shared.clear()
        else:
            self._shared.pop(key, None)

    def _drop_old(self, now: float) -> None:
        for key, shared in list(self._shared.items()):
            if shared.task.done() and now >= shared.until:
                del self._shared[key]


async def _run(read: Callable[[], Awaitable[Any]]) -> Any:
    return await read()


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None
