"""A worker: connects, claims and runs jobs, and stops in order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tenure import __version__
from tenure.client.job_source import JobSource, MessageSource
from tenure.client.retry import wait_until_available
from tenure.contracts.declaration import Contract
from tenure.errors import BadInput
from tenure.jobs import validation
from tenure.jobs.live_worker import LiveWorker, host_and_pid, process_name
from tenure.jobs.wakeup import JOB_CHANGED
from tenure.middleware import Middleware
from tenure.task import Task
from tenure.worker.claim_loop import ClaimLoop
from tenure.worker.heartbeat import HeartbeatLoop
from tenure.worker.job_runs import JobRuns
from tenure.worker.presence import Presence
from tenure.worker.receive_loop import WAIT_S, WAIT_UNTIL_IDLE_S, ReceiveLoop
from tenure.worker.reports import call_hook, name_some
from tenure.worker.running_job import RunningJob
from tenure.worker.service_thread import Service, ServiceThread
from tenure.worker.shared_parts import SharedParts, Slots
from tenure.worker.signals import SignalRepeats, deliver_signals
from tenure.worker.watchdog import Watchdog

if TYPE_CHECKING:
    from tenure.metrics.worker import WorkerMetrics

_log = logging.getLogger("tenure.worker")

#: How long a stopping worker waits for the database to answer its last calls, in seconds.
_LAST_CALLS_S = 5.0
#: A handler that does not end is cancelled this many times, this many seconds apart, and then left behind.
_CANCELS, _CANCEL_S = 3, 1.0
#: How often a cancelled worker checks whether threads have ended, in seconds.
_CHECK_THREADS_S = 0.02

#: Numbers the workers of this process: the second and later ones have their number in their names.
_worker_numbers = itertools.count(1)


def _default_name() -> str:
    """A name that no other worker has, in this process or in another one."""
    number = next(_worker_numbers)
    return process_name() + (f":{number}" if number > 1 else "")


async def complete(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end although the caller is cancelled meanwhile; raise CancelledError after that."""
    task = asyncio.create_task(coroutine)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


class Worker:
    """Runs the jobs of some queues, up to `concurrency` at a time."""

    def __init__(
        self,
        tasks: Mapping[str, Task[..., Any]],
        open_source: Callable[[], Awaitable[JobSource]],
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 50,
        contracts: Sequence[str] | None = None,
        name: str | None = None,
        poll: float = 1.0,
        grace: float = 30.0,
        middleware: Sequence[Middleware] = (),
        services: Sequence[Service] = (),
        open_service_source: Callable[[], Awaitable[JobSource]] | None = None,
        application: str | None = None,
        schedules: Mapping[str, str] | None = None,
        release: str | None = None,
        metrics: WorkerMetrics | None = None,
    ) -> None:
        self.tasks = tasks
        self.queues = tuple(queues or dict.fromkeys(task.given.queue for task in tasks.values())) or ("default",)
        for queue in self.queues:
            validation.check_name("queue", queue)
        self.name = validation.check_name("worker", name or _default_name())
        if not 0.01 <= poll <= 3_600:
            raise BadInput(f"poll is the number of seconds between two polls for jobs, 0.01 to 3600; got {poll!r}")
        self._slots = Slots(validation.check_integer("concurrency", concurrency, 1, 10_000))
        self._only_contracts = contracts
        self._poll_s, self._grace_s = poll, grace
        self._middleware = tuple(middleware)
        self._open_source = open_source
        self._heartbeats = HeartbeatLoop()
        self._release = release
        self._metrics = metrics
        self._application, self._schedules = application, dict(schedules or {})
        self._services = services
        self._service = ServiceThread(open_service_source or open_source)
        self._presence: Presence | None = None
        self._connecting: asyncio.Task[Any] | None = None
        self._claim_loop: ClaimLoop | ReceiveLoop | None = None
        self._runs: JobRuns | None = None
        self._source: JobSource | None = None
        self._signals = SignalRepeats()
        #: How many handlers went on although they were cancelled.
        self._uncancellable = 0
        self.stopping = False

    @property
    def counts(self) -> Counter[str]:
        """What happened to this worker's jobs: claimed, succeeded, failed, retried, refused, lost, …"""
        return self._slots.counts

    @property
    def left_behind(self) -> int:
        """How many handlers still run that could not be stopped; they keep the process alive."""
        return self._uncancellable + (self._runs.executor.left_behind if self._runs else 0)

    async def run(self, *, until_idle: bool = False, handle_signals: bool = True) -> None:
        """Work until a signal or `stop()`; with `until_idle`, until no job is due.

        Cancelled, it stops its handlers, hands back the jobs that they had not finished, and raises CancelledError.
        With `handle_signals=False` it leaves the signal handlers of the process alone.
        """
        if self._heartbeats.loop is not None:
            raise BadInput("a worker can run only once. Next: make another one")
        self._heartbeats.loop = asyncio.get_running_loop()
        with deliver_signals(self._on_signal if handle_signals else None):
            measuring: asyncio.Task[None] | None = None
            try:
                measuring = self._start_metrics()
                await self._run(until_idle=until_idle)
            finally:
                await complete(self._close())
                if measuring is not None and self._metrics is not None:
                    measuring.cancel()
                    await asyncio.to_thread(self._metrics.stop)

    def _start_metrics(self) -> asyncio.Task[None] | None:
        """Serve the metrics of this worker, and measure its event loop."""
        if self._metrics is None:
            return None
        _log.info("%s shows its metrics at %s", self.name, self._metrics.start(self._slots))
        return asyncio.create_task(self._metrics.measure_loop())

    async def _run(self, *, until_idle: bool) -> None:
        connected = await self._connect() if until_idle else await self._connect_unless_stopped()
        if connected is None:
            return
        source, registered = connected
        only = registered if self._only_contracts is None else self._only_contracts
        if unknown := set(only) - set(registered):
            known = ", ".join(registered)
            raise BadInput(f"no contract {sorted(unknown)[0]!r} is registered; registered are: {known}")
        contracts = {name: one for name, one in registered.items() if name in only}
        host, pid = host_and_pid()
        live_worker = LiveWorker(
            self.name, self.queues, tuple(contracts), tuple(self.tasks), self._application, __version__, host, pid,
            self._slots.concurrency, declares=tuple(task.type for task in self.tasks.values() if task.type is not None),
            schedules=self._schedules, release=self._release,
        )  # fmt: skip
        parts = SharedParts(
            source, live_worker, contracts, self.tasks, self._middleware, self._slots, self._heartbeats, self._release
        )
        self._runs = runs = JobRuns(parts, on_ended=(lambda: claim_loop.poll_soon()) if until_idle else None)
        services = list(self._services)
        claim_loop: ClaimLoop | ReceiveLoop
        if isinstance(source, MessageSource):
            if self._only_contracts is not None:
                raise BadInput("a message may name a task of any contract. Next: leave out contracts, or sqs")
            claim_loop = ReceiveLoop(parts, source, runs.start, WAIT_UNTIL_IDLE_S if until_idle else WAIT_S)
            services.append(claim_loop.keep_messages)
        else:
            claim_loop = ClaimLoop(parts, self._poll_s, runs.start)
        self._claim_loop, claim_loop.stopping = claim_loop, self.stopping
        presence = self._presence = Presence(parts)
        watchdog = Watchdog(parts, claim_loop)
        services = [self._heartbeats.run, watchdog.run, presence.run, *services]
        await self._service.start(services, lambda: self.stopping)  # no claim before heartbeats can be sent
        _log.info("%s works on %s, %d at a time", self.name, ", ".join(self.queues), self._slots.concurrency)
        # A task of its own: when this worker is cancelled, a claim under way still gets its jobs and hands them back.
        claiming = asyncio.create_task(claim_loop.run(lambda: until_idle and not runs.running))
        try:
            await asyncio.wait([claiming])
            claiming.result()
            await runs.wait(self._grace_s)
            await self._end_all(runs)
        except BaseException:
            await complete(self._end_at_once(runs, claim_loop, claiming))
            raise
        finally:
            counts = ", ".join(f"{count} {name}" for name, count in self.counts.items()) or "no jobs"
            _log.info("%s stopped: %s", self.name, counts)

    def stop(self) -> None:
        """Stop claiming, from any thread; running jobs may end within the grace period."""
        self.stopping = True
        self._heartbeats.call_in_loop(self._stop_claiming)

    def wake_up(self, contract: str, queue: str) -> None:
        """Claim soon, from any thread: there may be jobs of this contract and queue, or something happened to a job.

        An empty name stands for any. `tenure.jobs.wakeup.JOB_CHANGED` as contract: `queue` is the id of that job.
        """
        if self._metrics is not None:
            self._metrics.wakeups += 1
        if contract == JOB_CHANGED:
            self._heartbeats.check_soon(int(queue))
        elif self._claim_loop is not None and (not queue or queue in self.queues):
            self._heartbeats.call_in_loop(self._claim_loop.wake_up, contract)

    def _stop_claiming(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._claim_loop is not None and not self._claim_loop.stopping:
            self._claim_loop.stopping = True
            running = [one for one in self._heartbeats.held if not one.handler_ended]
            # At Ctrl-C the user must see why the process waits, also where logging is not set up.
            level = logging.WARNING if running and self._signals.first else logging.INFO
            _log.log(level, "%s stops: %s", self.name, self._describe_wait(running))
        self._slots.changed.set()

    def _describe_wait(self, running: Sequence[RunningJob]) -> str:
        """For which jobs a stopping worker waits, and how long."""
        second = "; a second signal ends it at once" if self._signals.first else ""
        if not running:
            return f"{self._slots.busy} jobs are running{second}"
        wait = f"it waits up to {self._grace_s:g} s for them, then hands them back"
        return f"{len(running)} jobs are running ({name_some(running)}); {wait}{second}"

    def _on_signal(self, number: int) -> None:
        """Stop at the first signal; end the process at the second one, also where the event loop is blocked."""
        if self._signals.is_second(number):
            os._exit(128 + number)
        self.stop()

    async def _end_all(self, runs: JobRuns) -> None:
        """Stop the handlers, hand their jobs back and wait for the last answers; leave behind what does not end."""
        runs.is_ending = True
        await self._interrupt(runs)
        await runs.wait(_LAST_CALLS_S)
        runs.executor.cancels_all = True
        for _ in range(_CANCELS):  # the database does not answer (the leases end), or a handler does not end
            for task in runs.tasks:
                task.cancel()
            await runs.wait(_CANCEL_S)
        for running in [one for one in runs.running if one.handler_runs]:
            self._uncancellable += 1
            _log.error(
                "job %d of %s: its handler was cancelled %d times and still runs; it is left behind, and its job was "
                "handed back. Next: let CancelledError pass in the handler, or give the task isolation=\"process\"",
                running.job.id, running.job.type, _CANCELS,
            )  # fmt: skip

    async def _interrupt(self, runs: JobRuns) -> None:
        """Stop the handlers that run, and hand back their jobs."""
        unfinished = [running for running in runs.running if not running.handler_ended and not running.is_stopped()]
        for running in unfinished:
            running.stop("stopping")
        if unfinished:
            _log.warning("%s hands back %d jobs that did not end in time", self.name, len(unfinished))
            await runs.reports.hand_back(unfinished)

    async def _end_at_once(
        self, runs: JobRuns, claim_loop: ClaimLoop | ReceiveLoop, claiming: asyncio.Task[None]
    ) -> None:
        """End because this worker was cancelled or failed; jobs that a claim wins meanwhile are handed back."""
        self.stopping = claim_loop.stopping = runs.is_ending = True
        self._slots.changed.set()
        await self._wait_for_threads(runs)
        await self._interrupt(runs)
        await asyncio.wait([claiming], timeout=_LAST_CALLS_S)
        claiming.cancel()
        await self._end_all(runs)

    async def _wait_for_threads(self, runs: JobRuns) -> None:
        """Wait for handlers in threads for the grace period: handed back before, their jobs would run twice."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace_s):
                while any(one.handler_runs and one.task and not one.task.is_async for one in runs.running):  # noqa: ASYNC110
                    await asyncio.sleep(_CHECK_THREADS_S)

    async def _connect_unless_stopped(self) -> tuple[JobSource, Mapping[str, Contract]] | None:
        """Connect as soon as the database or the dispatcher is there; None where the worker is stopped before."""
        if self.stopping:
            return None
        connecting = asyncio.create_task(wait_until_available(self._connect, name=self.name))
        self._connecting = connecting
        try:
            await asyncio.wait([connecting])
        finally:
            connecting.cancel()
        return None if connecting.cancelled() else connecting.result()

    async def _connect(self) -> tuple[JobSource, Mapping[str, Contract]]:
        """Open the job source, and read the registered contracts."""
        source = await self._open_source()
        try:
            contracts = await source.contracts()
        except BaseException:
            await source.close()
            raise
        self._source = source  # set here: a worker that is cancelled right now closes it too
        return source, contracts

    async def _close(self) -> None:
        if self._connecting is not None:
            await asyncio.wait([self._connecting])
        await self._service.stop()
        for middleware in self._middleware:
            await call_hook(middleware.shutdown())
        if self._runs is not None:
            self._runs.executor.close()
        if self._source is not None:
            await self._source.close()
