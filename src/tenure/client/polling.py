"""Wait for something in the database: read it again and again, less often the longer it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

#: Seconds between two reads: the first and the longest; they double in between.
_FIRST_S, _LONGEST_S = 0.005, 0.5


async def poll(read: Callable[[], Awaitable[T]], is_done: Callable[[T], bool], timeout: float | None) -> T:
    """Read until it is done; raises TimeoutError after this number of seconds."""
    wait_s = _FIRST_S
    async with asyncio.timeout(timeout):
        while not is_done(found := await read()):
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_S)
    return found
