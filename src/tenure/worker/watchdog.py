"""The watchdog: checks from the service thread that the event loop runs, and hands back jobs that cannot start.

A handler that blocks the event loop keeps its own job: the heartbeats go on. When the loop has not run for half of a
lease, the jobs that were claimed beside it and have not started are handed back, for other workers. A job that waits to
start for more than half of its lease is handed back too, for example one that waits for a process of its own. The
thread that takes a job out of `HeartbeatLoop.unstarted` owns it: the watchdog hands it back, or the event loop starts
it.

The watchdog logs the job whose handler blocks, with the stack, and the next heartbeat notes it on the job's row: every
later attempt runs in a process of its own, in any worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Sequence

from tenure.client.job_source import JobSource
from tenure.jobs.job import Job
from tenure.worker.claim_loop import ClaimLoop
from tenure.worker.receive_loop import ReceiveLoop
from tenure.worker.reports import hand_back
from tenure.worker.running_job import TICK_S, RunningJob
from tenure.worker.shared_parts import SharedParts

_log = logging.getLogger("tenure.worker")

#: The reasons of these hand-backs in the job's log.
_LOOP_BLOCKED = "the event loop of its worker was blocked"
_NO_PROCESS = "no process of its own was free for it within half of its lease"
#: A job that waited for a process is due again after this time, so that an idle worker can take it before this one.
_NO_PROCESS_DELAY_MS = 1_000
#: A longer step between two checks means that the whole process was stopped; it counts as this long.
_LONGEST_STEP_S = 5 * TICK_S
#: How long handing back may take, in seconds.
_HAND_BACK_S = 5.0


class Watchdog:
    """Watches the event loop in which it is made, for the jobs that the heartbeat loop holds and for claims."""

    def __init__(self, parts: SharedParts, claim_loop: ClaimLoop | ReceiveLoop) -> None:
        self._heartbeats, self._counts = parts.heartbeats, parts.slots.counts
        self._claim_loop = claim_loop
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        #: Set by the event loop when it runs; cleared here, to see whether it is set again.
        self._loop_ran = threading.Event()
        self._loop_ran.set()
        self._silent_s = 0.0
        self._is_blocked = False

    async def run(self, source: JobSource) -> None:
        """Check every 0.1 seconds, until cancelled."""
        last, overdue = time.monotonic(), set[RunningJob]()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            step, last = min(now - last, _LONGEST_STEP_S), now
            if not self._check_loop(list(self._heartbeats.held), step):
                continue
            # Overdue at two checks in a row: a process that was stopped may start it now.
            before, overdue = overdue, self._find_overdue(now)
            await self._hand_back_unstarted(source, before & overdue)
            if self._is_blocked:
                with contextlib.suppress(TimeoutError):  # their leases end, which has the same effect
                    async with asyncio.timeout(_HAND_BACK_S):
                        await self._hand_back(source, await self._claim_loop.take_over(source), 0, _LOOP_BLOCKED)

    def _find_overdue(self, now: float) -> set[RunningJob]:
        """The jobs that should have started. Not a local of `run`, which would keep ended jobs alive while it waits."""
        return {one for one in list(self._heartbeats.unstarted) if self._heartbeats.is_overdue(one, now)}

    def _check_loop(self, held: Sequence[RunningJob], step: float) -> bool:
        """Ping the event loop and measure how long it does not answer; False where there is no lease to protect."""
        leases = [running.limits.lease_s for running in held] + self._claim_loop.leases_under_way()
        if self._loop.is_closed() or not leases:
            self._silent_s = 0.0
            return False
        if self._loop_ran.is_set():
            if self._is_blocked:
                _log.info("the event loop runs again after %.1f s", self._silent_s)
            self._silent_s, self._is_blocked = 0.0, False
            self._loop_ran.clear()
            self._loop.call_soon_threadsafe(self._loop_ran.set)
        else:
            self._silent_s += step
            if not self._is_blocked and self._silent_s > min(leases) / 2:
                self._is_blocked = True
                self._report_block(held)
        return True

    def _report_block(self, held: Sequence[RunningJob]) -> None:
        """Log the code that blocks the loop, and let the next heartbeat note it on the job."""
        frame = sys._current_frames().get(self._thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "no stack\n"
        task = asyncio.current_task(self._loop)
        blocking = next((one for one in held if one.handler_runs and one.runner is task), None)
        culprit, effect = "unknown code", ""
        if blocking is not None:
            culprit = f"job {blocking.job.id} of {blocking.job.type}"
            effect = ", and later attempts of this job run in a process of their own"
            blocking.blocks_loop, blocking.heartbeat_at = True, 0.0
        _log.warning(
            "the event loop has been blocked for %.1f s by %s. Jobs that have not started are handed back%s. "
            'Next: await instead of blocking, use asyncio.to_thread, or give the task isolation="process"\n%s',
            self._silent_s, culprit, effect, stack.rstrip(),
            extra={"job_id": blocking.job.id, "task": blocking.job.type} if blocking is not None else None,
        )  # fmt: skip

    async def _hand_back_unstarted(self, source: JobSource, overdue: set[RunningJob]) -> None:
        """Hand back overdue jobs, or all that have not started while the loop is blocked; their slots become free."""
        waiting = set(self._heartbeats.unstarted) if self._is_blocked else overdue
        taken = [running for running in waiting if self._heartbeats.take(running)]
        for running in taken:
            running.stop_reason, running.heartbeats_until = "handed back", 0.0
        no_process = [running.job for running in taken if running.waits_for_process and not self._is_blocked]
        others = [running.job for running in taken if not running.waits_for_process or self._is_blocked]
        if taken:
            self._heartbeats.call_in_loop(self._end_waits, taken)
        await self._hand_back(source, no_process, _NO_PROCESS_DELAY_MS, _NO_PROCESS)
        await self._hand_back(source, others, 0, _LOOP_BLOCKED)

    async def _hand_back(self, source: JobSource, jobs: Sequence[Job], delay_ms: int, reason: str) -> None:
        if not jobs:
            return
        counts = await hand_back(source, jobs, _HAND_BACK_S, delay_ms, reason)
        if handed_back := counts.total() - counts["refused"]:
            _log.warning("handed back %d jobs that could not start within half of their lease: %s", handed_back, reason)
        self._heartbeats.call_in_loop(self._counts.update, counts)

    @staticmethod
    def _end_waits(taken: Sequence[RunningJob]) -> None:
        """End the wait for a process, so that the slots of these jobs are free."""
        for running in taken:
            if running.interrupt is not None:
                running.interrupt()
