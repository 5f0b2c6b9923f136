"""Run a claimed job's handler: on the event loop, in a thread, or in a process that can be killed.

    is it still ours? ─▶ report the start ─▶ make the context ─▶ choose the place ─▶ take the job ─▶ run ─▶ outcome
                                                │
                                                ├ isolation="process"              a child process
                                                ├ its last worker or process died, a child process, at most 8 such jobs
                                                │ or it blocked an event loop      at a time
                                                └ otherwise                        here; a plain function in a thread

`run` gives the outcome of the handler, or None where the job no longer belongs to this worker: its lease was lost, it
was handed back, or the worker stops.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tenure.context import Context, stage_of
from tenure.errors import Refused, ValidationError
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Failure
from tenure.task import Task
from tenure.worker.child_process import PROCESS_DIED, Child, ProcessDied
from tenure.worker.context_port import SourcePort
from tenure.worker.handler import HandlerOutcome, arguments, failure_of, handle, stack_when_interrupted
from tenure.worker.reports import Reports, retry_until_answered
from tenure.worker.running_job import RunningJob
from tenure.worker.shared_parts import SharedParts

_log = logging.getLogger("tenure.worker")

#: At most this many idle child processes are kept for the next job.
_KEPT_CHILDREN = 4
#: At most this many jobs run alone, in a process of their own, at a time: a dead worker may have left hundreds of them.
_ALONE_AT_ONCE = 8


class Executor:
    """Runs handlers, for the worker whose task makes it. A thread that outlives its job keeps a slot until it ends."""

    def __init__(self, parts: SharedParts, reports: Reports) -> None:
        self._source, self._slots, self._heartbeats = parts.source, parts.slots, parts.heartbeats
        self._middleware = parts.middleware
        self._reports = reports
        self._threads = ThreadPoolExecutor(parts.slots.concurrency, "tenure-handler")
        self._loop, self._worker_task = asyncio.get_running_loop(), asyncio.current_task()
        self._cancels_before = self._worker_task.cancelling() if self._worker_task else 0
        #: Set when the worker cancels the tasks of all its jobs.
        self.cancels_all = False
        self._children: list[Child] = []
        self._alone = asyncio.Semaphore(_ALONE_AT_ONCE)
        #: How many threads still run a handler whose job no longer belongs to this worker.
        self.left_behind = 0

    async def run(self, running: RunningJob) -> HandlerOutcome | None:
        """Run the handler of a job to its end; None where the job no longer belongs to this worker."""
        if running.is_stopped():  # handed back before it could start
            return None
        if time.monotonic() >= running.claimed_at + running.limits.lease_s and await self._has_lost_lease(running):
            running.stop("lost")
            return None
        if running.task is None:  # the dispatcher gave a job of a type that the claim did not name
            if self._heartbeats.take(running):
                await self._reports.hand_back([running])
            return None
        if running.limits.reports_start:
            if (unfit := self._check_arguments(running, running.task)) is not None:
                return unfit if self._heartbeats.take(running) else None
            await self._reports.start(running)
        must_run_alone = running.job.claims > 1 and await self._must_run_alone(running)
        return await self._run_handler(running, running.task, must_run_alone=must_run_alone)

    def close(self) -> None:
        """End the idle child processes, and the threads that are idle."""
        for child in self._children:
            child.close()
        self._children.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _has_lost_lease(self, running: RunningJob) -> bool:
        """Whether the lease of a job that waited longer than that for a blocked loop is lost."""
        (answer,) = await retry_until_answered(lambda: self._source.report("heartbeat", [HolderCall(running.held)]))
        return isinstance(answer, Refused)

    def _check_arguments(self, running: RunningJob, task: Task[..., Any]) -> Failure | None:
        """The failure of a job whose arguments do not fit, where its contract ends such a job before the start."""
        job, contract = running.job, running.contract
        if job.pending_json is not None:  # it has failed already; only its effects are left to undo
            return None
        try:
            arguments(task, job)
        except ValidationError as error:
            failure = failure_of(error)
            trigger = contract.retryable.verdict(failure.facts()).trigger
            return failure if contract.path(trigger, job.state) is not None else None
        return None

    async def _must_run_alone(self, running: RunningJob) -> bool:
        """Whether an earlier attempt lost its lease, killed its process or blocked a loop: it must not do that here."""
        job, contract, last_error = running.job, running.contract, running.job.last_error
        if job.blocked_at is not None:
            return True
        if isinstance(last_error, dict) and (
            last_error.get("type") == contract.lease.error["type"] or last_error.get("code") == PROCESS_DIED
        ):
            return True
        # Where jobs are reclaimed in place, only the log tells a lost lease from a failure.
        return contract.path("reclaim") is not None and (await self._reports.read_log(job))[-1].trigger == "reclaim"

    async def _run_handler(
        self, running: RunningJob, task: Task[..., Any], *, must_run_alone: bool
    ) -> HandlerOutcome | None:
        job, runner = running.job, running.runner
        assert runner is not None
        port = SourcePort(self._source, running)
        running.ctx = Context(job, port, self._loop)
        if running.stop_reason is not None:
            return None
        if job.pending_json is not None:  # it has failed already; only its effects are left to undo
            return _recorded_failure(job.pending) if self._heartbeats.take(running) else None
        try:
            if task.isolation != "process" and must_run_alone and task._is_findable():
                return await self._run_alone(running, task, port)
            if not self._heartbeats.take(running):
                return None
            if task.isolation == "process" and task._is_findable():
                return await self._run_in_child(running, task, port)
            running.start_handler(runner.cancel)
            return await handle(task, running.ctx, self._middleware, self._threads, self._keep_slot)
        except asyncio.CancelledError as error:
            return self._after_cancel(running, error)
        except ProcessDied as error:
            if running.stop_reason is not None:
                return None
            return _timeout(running, error) if running.timed_out else failure_of(error, stage=running.stage)
        except BaseException as error:  # SystemExit too is a failure of this handler alone
            return failure_of(error, running.ctx)
        finally:
            running.end_handler()
            if running.timed_out or running.is_stopped():
                while runner.cancelling():  # the interruption ends here, though the handler may have caught it
                    runner.uncancel()

    async def _run_alone(self, running: RunningJob, task: Task[..., Any], port: SourcePort) -> HandlerOutcome | None:
        """Run the handler in a child process when one of the few places is free.

        A job waits for that half of its lease and is then handed back. It keeps its lease and waits on where handing it
        back would end it: nobody else could run it.
        """
        job, contract = running.job, running.contract
        assert running.runner is not None
        running.interrupt = running.runner.cancel
        is_last = job.claims >= contract.budget.executions(job.max_attempts, job.raises)
        if contract.path("hand_back") is None and is_last:
            running.heartbeats_until = math.inf
        else:
            running.waits_for_process = True
        async with self._alone:
            running.interrupt, running.waits_for_process = None, False
            if running.is_stopped() or not self._heartbeats.take(running):
                return None
            return await self._run_in_child(running, task, port)

    async def _run_in_child(self, running: RunningJob, task: Task[..., Any], port: SourcePort) -> HandlerOutcome:
        child = self._idle_or_new_child()
        running.ask_to_stop = child.request_cancel
        running.start_handler(lambda: child.kill_after_stack() if running.timed_out else child.kill())
        is_kept = False
        try:
            assert task.home is not None
            outcome = await child.run(task.home, running.job, port)
            # A child that timed out is about to be killed.
            is_kept = not running.timed_out and len(self._children) < _KEPT_CHILDREN
            return outcome
        finally:
            if is_kept:
                self._children.append(child)
            else:
                child.close()

    def _idle_or_new_child(self) -> Child:
        while self._children:
            child = self._children.pop()
            if child.is_alive():
                return child
            child.close()
        return Child()

    def _after_cancel(self, running: RunningJob, error: asyncio.CancelledError) -> HandlerOutcome | None:
        """The outcome after a cancel: of this job by the worker, of the whole worker, or by the handler itself."""
        if running.stop_reason is not None:
            return None
        if running.timed_out:
            return _timeout(running, error)
        worker = self._worker_task
        if self.cancels_all or worker is None or worker.cancelling() > self._cancels_before:
            raise error
        return failure_of(error, running.ctx)  # the handler cancelled its own task

    def _keep_slot(self, thread: Future[Any]) -> None:
        """Let a thread that cannot be stopped keep a slot until it has ended."""
        if thread.done():
            return
        self.left_behind += 1
        self._slots.take(1)
        if self._slots.free <= 0:
            _log.warning(
                "no slot is free: %d slots are kept by handlers in threads that were stopped and still run. "
                'Next: give slow tasks isolation="process", which can be killed',
                self.left_behind,
            )

        def release() -> None:
            self.left_behind -= 1
            self._slots.release()

        thread.add_done_callback(lambda _: self._heartbeats.call_in_loop(release))


def _timeout(running: RunningJob, error: BaseException) -> Failure:
    """The failure of a handler that was stopped because it ran too long, with the place where it was."""
    raised = stage_of(running.ctx, error) if running.ctx is not None else None
    message = f"ran longer than {running.timeout_s:g} s"
    place = error.stack if isinstance(error, ProcessDied) else stack_when_interrupted(error)
    if not place:
        place = ["  (its process was killed before it could report where the handler was)\n"]
    return Failure(
        message, "TimeoutError", code="TIMEOUT", retryable=True, stage=raised or running.stage,
        stack="".join(["Traceback (most recent call last):\n", *place, f"TimeoutError: {message}\n"]),
    )  # fmt: skip


def _recorded_failure(pending: Any) -> Failure:
    known = pending if isinstance(pending, dict) else {}
    return Failure(str(known.get("message", "failed before")), str(known.get("type", "Exception")))
