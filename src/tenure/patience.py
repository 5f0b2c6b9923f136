"""How long to wait before asking a database again that was away: longer each time, and never in step with others."""

from __future__ import annotations

import asyncio
import random


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
