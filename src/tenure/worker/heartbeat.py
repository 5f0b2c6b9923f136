"""Heartbeats: sent from the service thread on its own connection, so that a blocked event loop keeps its leases.

A heartbeat is due when half of the remaining lease is gone (at least one second from now), or at the contract's
interval where it has one. After a failed heartbeat the next one is due at half of what is left. Times are this
process's monotonic clock, counted from before the call that gave the lease, so they can only be early. The database
alone decides whether a lease is valid. Where other workers can go on while this one is cut off (through a dispatcher),
a lease that ends before a heartbeat is answered counts as lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from tenure.client.job_source import JobSource
from tenure.errors import BadInput, Busy, Refused, TenureError
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.outcome import Noted
from tenure.worker.job_history import find_own_end
from tenure.worker.running_job import TICK_S, RunningJob

_log = logging.getLogger("tenure.worker")

#: At most this many jobs go in one heartbeat call.
_LARGEST = 1_000
#: How long a call may take at most, and how long it may take however soon a lease ends, in seconds.
_TIMEOUT_S, _SHORTEST_TIMEOUT_S = 5.0, 1.0


class HeartbeatLoop:
    """The jobs that this worker holds, and the loop that sends their heartbeats."""

    def __init__(self) -> None:
        #: The event loop in which the handlers run; None before the worker runs.
        self.loop: asyncio.AbstractEventLoop | None = None
        #: The jobs of this worker, from their claim until the database has answered their last call.
        self.held: set[RunningJob] = set()
        #: Those of them whose handler has not started. The caller that takes a job out owns it (see `take`).
        self.unstarted: set[RunningJob] = set()
        #: How many heartbeats were answered.
        self.sent = 0

    def call_in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the handlers' event loop as soon as that runs, from any thread."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(function, *arguments)

    def take(self, running: RunningJob) -> bool:
        """Take a job that has not started, to start it or to hand it back: from any thread, and only one gets it."""
        try:
            self.unstarted.remove(running)
        except KeyError:
            return False
        return True

    def is_overdue(self, running: RunningJob, now: float) -> bool:
        """Whether a job waits to start for more than half of its lease: it gets no heartbeat and is handed back."""
        waits = running.runner is None or running.waits_for_process
        return waits and now - running.claimed_at > running.limits.lease_s / 2 and running in self.unstarted

    def check_soon(self, job_id: int) -> None:
        """Send the next heartbeat of this job at once, because a wake-up says that something happened to it."""
        for running in list(self.held):
            if running.job.id == job_id:
                running.heartbeat_at = 0.0

    async def run(self, source: JobSource) -> None:
        """Send heartbeats until cancelled; failed ones are logged once and retried."""
        failing = False
        while True:
            now = time.monotonic()
            due = [
                one
                for one in list(self.held)
                if one.heartbeat_at <= now < one.heartbeats_until and not self.is_overdue(one, now)
            ]
            error: TenureError | TimeoutError | None = None
            for first in range(0, len(due), _LARGEST):
                error = await self._try(source, due[first : first + _LARGEST]) or error
            if error is not None and not failing:
                why = error if str(error) else "no answer in time"
                _log.warning("heartbeat failed for %d jobs, retrying until their leases end: %s", len(due), why)
            elif error is None and failing and due:
                _log.info("heartbeats succeed again")
            failing = error is not None or (failing and not due)
            await asyncio.sleep(TICK_S)

    async def _try(self, source: JobSource, due: list[RunningJob]) -> TenureError | TimeoutError | None:
        """Send one batch; the error where it failed. A lease that ended meanwhile is lost where others may take it."""
        timeout_s = _TIMEOUT_S  # a connection that went silent must not cost a lease
        if source.leases_run_on:
            left = min(one.lease_ends_at for one in due) - time.monotonic()
            timeout_s = min(timeout_s, max(_SHORTEST_TIMEOUT_S, left))
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(source, due)
        except (TenureError, TimeoutError) as error:
            now = time.monotonic()
            for running in due:
                running.plan_heartbeat(now)
                if isinstance(error, BadInput):  # another release of the dispatcher does not know that field
                    running.blocks_loop = False
                if source.leases_run_on and now >= running.lease_ends_at:
                    self._lose(running)
            return error
        return None

    async def _send(self, source: JobSource, due: list[RunningJob]) -> None:
        sent_at = time.monotonic()
        blocked = [running.job.id for running in due if running.blocks_loop]
        calls = [HolderCall(running.held, blocks=running.blocks_loop) for running in due]
        answers = await source.report("heartbeat", calls)
        self.sent += len(due)
        unclear: list[RunningJob] = []
        for running, answer in zip(due, answers, strict=True):
            if isinstance(answer, Noted):
                running.blocks_loop = running.blocks_loop and running.job.id not in blocked
                if answer.renewed:
                    running.lease_ends_at = sent_at + running.limits.lease_s
                if answer.cancel_requested:
                    self.call_in_loop(self._apply, running, RunningJob.request_cancel)
            elif isinstance(answer, Busy):  # the row is locked right now: the next heartbeat asks again
                pass
            elif running.ends_in_transaction:
                unclear.append(running)
            else:
                self._lose(running)
            running.plan_heartbeat(time.monotonic())
        for running in unclear:
            await self._lose_unless_ended(source, running)

    async def _lose_unless_ended(self, source: JobSource, running: RunningJob) -> None:
        """Stop a handler that has called `ctx.complete_in`, unless its own commit ended the job: then it may go on."""
        try:
            log = await source.log(running.job.id)
        except Refused:  # the job was deleted
            log = []
        if find_own_end(log, running.job) is None:
            self._lose(running)
        else:
            running.heartbeats_until = 0.0

    def _lose(self, running: RunningJob) -> None:
        running.heartbeats_until = 0.0
        self.call_in_loop(self._apply, running, lambda running: running.stop("lost"))

    def _apply(self, running: RunningJob, action: Callable[[RunningJob], None]) -> None:
        """Do something to a job, if this worker still holds it."""
        if running in self.held:
            action(running)
