"""The lag of the event loop: how late it runs a callback that another thread asks for.

`ping` and `take` are called in the service thread, which goes on while a handler blocks the event loop.
"""

from __future__ import annotations

import asyncio
import time

#: Seconds between two measurements. A block that is longer than this is seen with certainty.
PING_EVERY_S = 0.5


class LoopLag:
    """Measures the event loop in which it is made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        #: When the callback was asked for that has not run yet; None: none.
        self._asked_at: float | None = None
        self._longest = 0.0

    def ping(self) -> None:
        """Ask the loop for a callback, unless it still owes one."""
        if self._asked_at is None and not self._loop.is_closed():
            self._asked_at = time.monotonic()
            self._loop.call_soon_threadsafe(self._answer, self._asked_at)

    def take(self) -> float:
        """The longest delay since the last call, in seconds; also that of a callback which has not run yet."""
        asked_at, longest = self._asked_at, self._longest
        self._longest = 0.0
        return longest if asked_at is None else max(longest, time.monotonic() - asked_at)

    def _answer(self, asked_at: float) -> None:
        self._longest = max(self._longest, time.monotonic() - asked_at)
        self._asked_at = None
