"""Wake-ups through a dispatcher, by long polling.

    request (cursor) ─▶ response within 25 s: wake-ups, new cursor ─▶ on_wakeup(contract, queue) ─▶ request …

Wake-ups between two requests are in the next response. A dispatcher that does not know the cursor answers that anything
may have happened. Wake-ups are hints, because workers poll; when the dispatcher is away, it is asked less often.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from tenure.client.dispatcher_requests import DispatcherRequests
from tenure.client.retry import RetryDelay
from tenure.errors import TenureError

#: How long the dispatcher may wait for a wake-up, in seconds.
_WAIT_S = 25.0
#: The least seconds between two requests; longer after an empty response that came at once.
_PAUSE_S, _NOTHING_S = 0.02, 0.25
_log = logging.getLogger("tenure.listen")


async def poll_wakeups(requests: DispatcherRequests, on_wakeup: Callable[[str, str], None]) -> None:
    """Call `on_wakeup(contract, queue)` for each wake-up until cancelled, where an empty name stands for any.

    An error is logged once, and the request repeated.
    """
    cursor, is_lost = "", False
    delay = RetryDelay(longest_s=5.0)
    while True:
        sent_at = time.monotonic()
        params = {"wait_seconds": f"{_WAIT_S:g}"} | ({"after": cursor} if cursor else {})
        try:
            wakeups, cursor = await requests.send("GET", "/api/v1/wakeups", None, _read, params=params, wait_s=_WAIT_S)
        except TenureError as error:
            if not is_lost:
                _log.warning("wake-ups are lost, retrying; jobs are found by polling meanwhile: %s", error)
            is_lost = True
            await delay.wait()
            continue
        delay.reset()
        if is_lost:
            _log.info("wake-ups are received again")
        is_lost = False
        for contract, queue in wakeups:
            try:
                on_wakeup(contract, queue)
            except Exception:
                _log.exception("the handler of a wake-up failed")
        least = _PAUSE_S if wakeups else _NOTHING_S
        await asyncio.sleep(max(_PAUSE_S, sent_at + least - time.monotonic()))


def _read(body: Any) -> tuple[list[tuple[str, str]], str]:
    """The wake-ups of a response, and the cursor of the next request."""
    return [(str(one["contract"]), str(one["queue"])) for one in body["wakeups"]], str(body["cursor"])
