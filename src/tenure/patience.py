"""How long to wait before asking a database again that was away: longer each time, and never in step with others."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenure.errors import AWAY

_log = logging.getLogger("tenure")
T = TypeVar("T")
#: Whoever waits for long says so from time to time.
_SAY_AGAIN_S = 60.0


class Patience:
    """Waits that double from the first to the longest, each spread by half; `reset` when it answered."""

    def __init__(self, first_s: float = 0.1, longest_s: float = 2.0) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self._next_s = first_s

    def reset(self) -> None:
        """Begin with the shortest wait again."""
        self._next_s = self._first_s

    async def wait(self) -> None:
        """Wait once."""
        await asyncio.sleep(self._next_s * random.uniform(0.5, 1.0))
        self._next_s = min(2 * self._next_s, self._longest_s)


async def once_there(ask: Callable[[], Awaitable[T]], *, who: str, is_stopping: Callable[[], bool]) -> T | None:
    """What is asked for, as soon as somebody is there to give it; None where `who` is told to stop before."""
    patience, said, say_again = Patience(), "", 0.0
    while not is_stopping():
        try:
            return await ask()
        except AWAY as error:
            if str(error) != said or time.monotonic() >= say_again:
                _log.warning("%s waits: %s", who, error)
                said, say_again = str(error), time.monotonic() + _SAY_AGAIN_S
        await patience.wait()
    return None
