"""Heartbeats: on a thread and a connection of their own, so that a blocked event loop is not a dead worker.

A job beats at its contract's interval where that has one, and always when half of what remains of its lease is gone (at
least a second from now): after a beat that failed, half of the rest. Times are this process's monotonic clock, counted
from before the call that gave the lease, so they can only be early; the database alone says whether a lease lives.
Where others can go on while we are cut off from it, a lease that ran out before a beat was answered counts as lost.
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
#: How long a beat may take, and how short a time it always gets.
_PATIENCE_S, _SHORTEST_S = 5.0, 1.0


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
        """Beat until cancelled. That nobody answers is no reason to stop."""
        failing = False
        while True:
            now = time.monotonic()
            due = [running for running in list(self.held) if running.next_beat <= now < running.until]
            why: TenureError | TimeoutError | None = None
            for first in range(0, len(due), _LARGEST):
                why = await self._try(source, due[first : first + _LARGEST]) or why
            if why is not None and not failing:
                said = why if str(why) else "no answer in time"
                _log.warning("heartbeats are not answered, and go on: %s", said)
            elif why is None and failing and due:
                _log.info("heartbeats are answered again")
            failing = why is not None or (failing and not due)
            await asyncio.sleep(TICK_S)

    async def _try(self, source: JobSource, due: list[Running]) -> TenureError | TimeoutError | None:
        """Beat for these; why it was in vain. A lease that ran out meanwhile is lost, if others may take it."""
        patience_s = _PATIENCE_S  # a connection that went silent must not cost a lease
        if source.leases_run_on:
            patience_s = min(patience_s, max(_SHORTEST_S, min(one.expires for one in due) - time.monotonic()))
        try:
            async with asyncio.timeout(patience_s):
                await self._beat(source, due)
        except (TenureError, TimeoutError) as error:
            now = time.monotonic()
            for running in due:
                running.plan_beat(now)
                if source.leases_run_on and now >= running.expires:
                    running.until = 0.0
                    self._lost(running)
            return error
        return None

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
