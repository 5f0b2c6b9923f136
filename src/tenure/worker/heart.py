"""Heartbeats: on a thread and a connection of their own, so that a blocked event loop is not a dead worker.

A job beats at its contract's interval where that has one, and always when half of what remains of its lease is gone (at
least a second from now): after a beat that failed, half of the rest. Times are this process's monotonic clock, counted
from before the call that gave the lease, so they can only be early; the database alone says whether a lease lives.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from tenure.errors import Busy, Refused, TenureError
from tenure.outcome import Noted
from tenure.worker.running import TICK_S, Running
from tenure.worker.source import JobSource

_log = logging.getLogger("tenure.worker")

_LARGEST = 1_000
_PATIENCE_S = 5.0


class Heart:
    """Beats for the jobs that are held until they are let go."""

    def __init__(self, lost: Callable[[Running], None], cancel_requested: Callable[[Running], None]) -> None:
        self._lost = lost
        self._cancel_requested = cancel_requested
        #: The jobs of this worker, from their claim until the database has heard what became of them.
        self.held: set[Running] = set()
        self.beats = 0

    def soon(self, job_id: int) -> None:
        """Somebody says that something happened to this job: look at once."""
        for running in list(self.held):
            if running.job.id == job_id:
                running.next_beat = 0.0

    async def run(self, source: JobSource) -> None:
        """Beat until cancelled. The database being away is no reason to stop."""
        failing = False
        while True:
            now = time.monotonic()
            due = [running for running in list(self.held) if running.next_beat <= now < running.until]
            try:
                for first in range(0, len(due), _LARGEST):
                    async with asyncio.timeout(_PATIENCE_S):  # a connection that went silent must not cost a lease
                        await self._beat(source, due[first : first + _LARGEST])
                if failing and due:
                    failing = False
                    _log.info("heartbeats reach the database again")
            except (TenureError, TimeoutError) as error:
                if not failing:
                    why = error if str(error) else f"no answer within {_PATIENCE_S:g} s"
                    _log.warning("heartbeats do not reach the database, and go on trying: %s", why)
                failing = True
                for running in due:
                    running.plan_beat(time.monotonic())
            await asyncio.sleep(TICK_S)

    async def _beat(self, source: JobSource, due: list[Running]) -> None:
        sent = time.monotonic()
        answers = await source.heartbeat([running.held for running in due])
        self.beats += len(due)
        for running, answer in zip(due, answers, strict=True):
            if isinstance(answer, Noted):
                if answer.renewed:
                    running.expires = sent + running.terms.lease_s
                if answer.cancel_requested:
                    self._cancel_requested(running)
            elif isinstance(answer, Busy):
                pass  # somebody is moving it right now: ask again
            elif isinstance(answer, Refused):
                running.until = 0.0
                self._lost(running)
            running.plan_beat(time.monotonic())
