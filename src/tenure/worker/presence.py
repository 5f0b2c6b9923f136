"""Presence: the worker's row in `tenure.worker`, written every 5 seconds from the service thread.

No heartbeat and no claim waits for it. While the writes fail the worker goes on, and other processes do not see it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace

from tenure.client.job_source import JobSource
from tenure.worker.loop_lag import PING_EVERY_S, LoopLag
from tenure.worker.shared_parts import SharedParts

_log = logging.getLogger("tenure.worker")

#: How often the row is written, in seconds.
EVERY_S = 5.0
#: Every this many writes, the stored options that no live worker declares any more are ended.
_WITHDRAW_EVERY = 12
#: How long one write may take, in seconds.
_TIMEOUT_S = 5.0


class Presence:
    """Keeps the row of one worker."""

    def __init__(self, parts: SharedParts) -> None:
        self._worker, self._slots = parts.worker, parts.slots
        self._lag = LoopLag()
        #: How many writes have failed.
        self.rounds_failed = 0

    async def run(self, source: JobSource) -> None:
        """Insert the row, update it every few seconds, and delete it when cancelled."""
        failing, rounds = False, 0
        try:
            while True:
                now = replace(self._worker, busy=self._slots.busy, loop_lag_s=self._lag.take())
                try:
                    async with asyncio.timeout(_TIMEOUT_S):
                        await source.see(now, is_new=rounds == 0)
                        if rounds % _WITHDRAW_EVERY == _WITHDRAW_EVERY - 1:
                            await source.withdraw(self._worker)
                    rounds += 1
                    failing = False
                except Exception as error:
                    if not failing:
                        why = error if str(error) else "no answer in time"
                        _log.warning("%s works, but cannot be listed as a live worker, retrying: %s", now.name, why)
                    failing = True
                    self.rounds_failed += 1
                await self._measure_lag(EVERY_S)
        finally:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_TIMEOUT_S):
                    await source.leave(self._worker)

    async def _measure_lag(self, seconds: float) -> None:
        """Wait for so long, and measure the event loop meanwhile."""
        while seconds > 0:
            self._lag.ping()
            await asyncio.sleep(min(seconds, PING_EVERY_S))
            seconds -= PING_EVERY_S
