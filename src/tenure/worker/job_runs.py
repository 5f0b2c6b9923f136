"""The jobs that a worker holds: from the claim until the database has answered the last call about each.

    ClaimLoop ─▶ start          hold every job of the claim, so that it gets heartbeats
                  └▶ _run_job   run one job (`executor`), and pass its outcome on (`reports`)
                       └▶ _release   forget the job: no more heartbeats

The slot is free as soon as the handler has ended. The job is released when its outcome is reported.

Many short jobs run in few asyncio tasks: jobs that await nothing share a task, a job that waits keeps its own.

    task 1 ─▶ job, job, job … waits ──────────────────▶ the rest of that job, then task 1 ends
    task 2 ◀── takes over in the loop's next turn ─▶ job, job …

A task for each job would cost more than a short job does. So one task runs job after job for as long as none of them
awaits anything. In the loop's next turn `_check_current` sees that a job waits. From then on the task belongs to that
job alone, its time limit counts, and another task takes over, so all claimed jobs start at once. Every job finds its
task as if it were new: after a job that left a context variable or a cancellation behind, the task runs no other job.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context

from tenure.errors import Refused
from tenure.jobs.job import Job
from tenure.task import MAX_RUN_S, TIMEOUT
from tenure.worker.executor import Executor
from tenure.worker.reports import Reports, call_hook, log_unreported
from tenure.worker.running_job import RunLimits, RunningJob, seconds_to_heartbeat
from tenure.worker.shared_parts import SharedParts

#: Only a payload that contains this text can set the time limit of its job.
_TIMEOUT_TEXT = f'"{TIMEOUT}"'
#: At most this many tasks start in one turn of the event loop.
_MAX_STARTING = 256


class JobRuns:
    """Starts jobs, and keeps their tasks until they have ended; `on_ended` is called at the end of each job."""

    def __init__(self, parts: SharedParts, on_ended: Callable[[], None] | None) -> None:
        self._parts = parts
        self._slots, self._heartbeats = parts.slots, parts.heartbeats
        self._on_ended = on_ended
        self.reports = Reports(parts, self._release)
        self.executor = Executor(parts, self.reports)
        self.running = parts.heartbeats.held
        #: Set when no job may start any more: jobs that are claimed from then on are handed back.
        self.is_ending = False
        self._loop = asyncio.get_running_loop()
        #: The context variables with which every job starts.
        self._context = copy_context()
        self._values = list(self._context.items())
        self._waiting: deque[RunningJob] = deque()
        #: The job that has started and has not been seen to wait.
        self._current: RunningJob | None = None
        #: Tasks that were created and have not started; and how many may be, which doubles while jobs are seen to wait.
        self._starting, self._may_start = 0, 1
        self._is_check_planned = False
        self._runners: set[asyncio.Task[None]] = set()

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """All asyncio tasks under way for these jobs."""
        return self._runners | self.reports.tasks

    def start(self, jobs: list[Job], claimed_at: float) -> None:
        """Hold every job of a claim, then start them; hand them back where this worker ends."""
        limits: dict[str, RunLimits] = {}
        started = []
        for job in jobs:
            shared = limits.get(job.type) or limits.setdefault(job.type, self._limits_of(job))
            in_payload = _TIMEOUT_TEXT in job.payload_json
            timeout_s = _timeout_in_payload(job, shared.timeout_s) if in_payload else shared.timeout_s
            started.append(RunningJob(job, shared, claimed_at, timeout_s))
        if self.is_ending:
            for _ in started:
                self._slots.release()
            self.reports.start_task(self.reports.hand_back(started))
            return
        self.running.update(started)
        self._heartbeats.unstarted.update(started)
        if self._parts.middleware:
            self.reports.start_task(self._start_after_hooks(jobs, started))
        else:
            self._start(started)

    async def wait(self, seconds: float) -> None:
        """Wait until no task is under way, at most this long."""
        end = time.monotonic() + seconds
        while self.tasks and (left := end - time.monotonic()) > 0:
            await asyncio.wait(self.tasks, timeout=left)

    async def _start_after_hooks(self, jobs: list[Job], started: list[RunningJob]) -> None:
        for middleware in self._parts.middleware:
            await call_hook(middleware.claim(jobs))
        self._start(started)

    def _limits_of(self, job: Job) -> RunLimits:
        """The limits that the jobs of this claim and type have in common."""
        contract, task = self._parts.contracts[job.contract], self._parts.tasks.get(job.type)
        lease_s = shortest = contract.lease.minimum_ms / 1_000
        if job.lease_expires_at is not None and job.started_at is not None:
            # Both by the database's clock, which may have stepped back in between.
            lease_s = max(shortest, (job.lease_expires_at - job.started_at).total_seconds())
        heartbeat = contract.lease.heartbeat
        # As the claim has written it: the interval that the code declares under this contract, else the contract's.
        own = task.type.heartbeat_sec if task and task.type and task.type.contract == job.contract else None
        heartbeat_s = (own or heartbeat.default_ms / 1_000) if heartbeat else None
        timeout_s = (task.given.timeout if task else None) or MAX_RUN_S
        limits = RunLimits(task, contract, lease_s, contract.path("start") is not None, heartbeat_s, timeout_s)
        return limits._replace(first_heartbeat_s=seconds_to_heartbeat(lease_s, limits))

    def _start(self, jobs: Iterable[RunningJob]) -> None:
        """Start these jobs, in this order, in the loop's next turn."""
        self._waiting.extend(jobs)
        self._create_runners()

    def _create_runners(self) -> None:
        while self._starting < min(self._may_start, len(self._waiting)):
            self._starting += 1
            task = self._loop.create_task(self._run_waiting(), context=self._context.copy())
            self._runners.add(task)
            task.add_done_callback(self._runners.discard)

    async def _run_waiting(self) -> None:
        """Run one waiting job after the other, until one of them awaits something."""
        self._starting -= 1
        task = asyncio.current_task()
        assert task is not None
        while self._waiting:
            if self._current is not None:  # another task's job, which has let the loop go on: it waits
                self._current.note_wait()
            running = self._current = self._waiting.popleft()
            running.runner = task
            if not self._is_check_planned:
                self._is_check_planned = True
                self._loop.call_soon(self._check_current)
            await self._run_job(running)
            if running.has_waited:
                return  # other tasks have taken over
            self._current, self._may_start = None, 1
            if task.cancelling() or getattr(task, "_must_cancel", False) or not self._is_context_unchanged():
                break
        self._create_runners()

    def _is_context_unchanged(self) -> bool:
        found = copy_context()
        return len(found) == len(self._values) and all(found.get(each, found) is value for each, value in self._values)

    def _check_current(self) -> None:
        """In the turn after a job started: a job that has not ended by now waits."""
        self._is_check_planned = False
        running, self._current = self._current, None
        if running is not None:
            running.note_wait()
            self._may_start = min(2 * self._may_start, _MAX_STARTING)
        self._create_runners()

    async def _run_job(self, running: RunningJob) -> None:
        """Run one job until its handler has ended, and pass the outcome on to be reported."""
        try:
            try:
                outcome = await self.executor.run(running)
            finally:
                self._slots.release()
            if outcome is not None:
                self.reports.submit(running, outcome)
                return
            if running.stop_reason == "lost":
                await self.reports.explain_lost_lease(running)
        except Refused as refused:
            if running.stop_reason != "handed back":
                self.reports.finish(running, None, refused)
                return
        except Exception:
            log_unreported(running.job)
        except BaseException:  # this worker is cancelled
            self._release(running)
            raise
        self._release(running)

    def _release(self, running: RunningJob) -> None:
        """Forget a job: no more heartbeats. Cut its reference cycles, so that the garbage collector finds none."""
        self.running.discard(running)
        self._heartbeats.unstarted.discard(running)
        running.ctx = running.runner = None
        if self._on_ended is not None:
            self._on_ended()


def _timeout_in_payload(job: Job, default: float) -> float:
    """How many seconds this job's handler may run: the payload's limit where it has a valid one, else `default`."""
    try:
        payload = job.payload
    except (ValueError, RecursionError):  # the job is refused before its handler runs
        return default
    limit = payload.get(TIMEOUT) if isinstance(payload, dict) else None
    return float(limit) if isinstance(limit, (int, float)) and 0 < limit <= MAX_RUN_S else default
