"""The changing part of a page as server-sent events: rendered again a few times a second, sent when it differs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from tenure.errors import TenureError, Unavailable

_log = logging.getLogger("tenure.dashboard")
#: Seconds between two rounds of a stream. With `SHARED_S` a change is shown within half a second.
ROUND_S: Final = 0.25
#: A stream without changes sends a beat in this many seconds; a page that misses some shows that it is stale.
BEAT_S: Final = 2.0
#: The person's rights are looked up again in this many seconds.
_CHECK_S: Final = 5.0
_MOST_STREAMS: Final = 500


class Streams:
    """All open streams of a dispatcher."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()
        self._open = 0

    def stop(self) -> None:
        """End all streams."""
        self._stopping.set()

    def rounds(
        self, render: Callable[[], Awaitable[str]], may_go_on: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[bytes]:
        """The events of one stream; refuses one more than a dispatcher serves."""
        if self._open >= _MOST_STREAMS:
            raise Unavailable("this dispatcher has too many open pages. Next: close some, or add a dispatcher")
        return self._rounds(render, may_go_on)

    async def _rounds(
        self, render: Callable[[], Awaitable[str]], may_go_on: Callable[[], Awaitable[bool]]
    ) -> AsyncIterator[bytes]:
        self._open += 1
        sent: str | None = None
        beat = check = time.monotonic()
        try:
            while not self._stopping.is_set():
                now = time.monotonic()
                if now >= check:
                    if not await may_go_on():
                        return  # the browser connects again, with the session that it has then
                    check = now + _CHECK_S
                try:
                    text: str | None = await render()
                except TenureError as error:  # the database is away, or the job is gone: the page grows stale
                    _log.debug("a live page cannot be rendered: %s", error)
                    text = None
                if text is not None and (text != sent or now >= beat):
                    # A beat without a change is an event that swaps nothing.
                    yield _event(text) if text != sent else b"event: beat\ndata: \n\n"
                    sent, beat = text, now + BEAT_S
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), ROUND_S)
        finally:
            self._open -= 1


def _event(text: str) -> bytes:
    return "".join(f"data: {line}\n" for line in text.splitlines()).encode(errors="replace") + b"\n"
