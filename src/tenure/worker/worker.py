"""Fetch, run, settle."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

from tenure import intake
from tenure.contract import Contract
from tenure.errors import BadInput, ConnectionLost, Refused, StaleLease, TenureError
from tenure.job import Failure, Held, Job
from tenure.middleware import Middleware
from tenure.patience import Patience
from tenure.queue import Decision
from tenure.task import Task
from tenure.wakeup import ABOUT_A_JOB
from tenure.worker.execute import Executor, was_lost
from tenure.worker.handle import Done, Verdict
from tenure.worker.heart import Heart
from tenure.worker.running import Running
from tenure.worker.service import Service, ServiceThread
from tenure.worker.settle import insisting, settle
from tenure.worker.source import JobSource

_log = logging.getLogger("tenure.worker")

#: A task type that nobody here knows is handed back for so long, and is dead after an hour of that.
_UNKNOWN_S, _UNKNOWN_FOR_S = 15.0, 3_600.0
#: How long a nearly full worker waits for more free slots before it claims for those that it has.
_GATHER_S = 0.002
#: How long a stopping worker waits for the database to hear its last words.
_LAST_WORDS_S = 5.0


class Worker:
    """Runs the jobs of some queues, so many at a time."""

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
    ) -> None:
        self.tasks = tasks
        self.queues = tuple(queues or dict.fromkeys(task.given.queue for task in tasks.values())) or ("default",)
        for queue in self.queues:
            intake.name("queue", queue)
        self.concurrency = intake.whole("concurrency", concurrency, 1, 10_000)
        self.name = intake.name("worker", name or f"{socket.gethostname()}:{os.getpid()}")
        if not 0.01 <= poll <= 3_600:
            raise BadInput(f"poll is the seconds between two looks for jobs, 0.01 to 3600, not {poll!r}")
        #: What happened to this worker's jobs: claimed, succeeded, failed, retried, refused, …
        self.counts: Counter[str] = Counter()
        self._only = contracts
        self._poll_s, self._grace_s = poll, grace
        self._middleware = tuple(middleware)
        self._open_source = open_source
        self._heart = Heart(self._when_lost, self._when_asked_to_stop)
        self._service = ServiceThread(open_service_source or open_source, [self._heart.run, *services])
        self._running: dict[tuple[int, int], Running] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy = 0
        #: The contracts that may have something due, in the order in which they are asked.
        self._hot: dict[str, None] = {}
        self._next_poll = 0.0
        #: contract → the key of a claim whose answer was lost: asked again, the jobs that it won are not.
        self._unanswered: dict[str, UUID] = {}
        self._contracts: Mapping[str, Contract] = {}
        self.stopping = False
        self._until_idle = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()

    async def run(self, *, until_idle: bool = False) -> None:
        """Work until told to stop, by a signal or `stop()`; or until nothing is due, where that is asked."""
        self._loop = asyncio.get_running_loop()
        self._until_idle = until_idle
        self._threads = ThreadPoolExecutor(self.concurrency, "tenure-handler")
        signals = self._on_signals(self._loop)
        self._source = await self._open_source()
        self._executor = Executor(self._source, self._middleware, self._threads, self._is_busy)
        try:
            self._contracts = await insisting(self._source.contracts)
            self._service.start()
            _log.info("%s works on %s, %d at a time", self.name, ", ".join(self.queues), self.concurrency)
            await self._fetch()
        finally:
            await self._end()
            for number in signals:
                self._loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Stop claiming; what runs may end, for as long as the grace lasts. The second time: end at once."""
        if self.stopping:
            os._exit(128 + signal.SIGTERM)
        self.stopping = True
        _log.info("%s stops: %d jobs are running", self.name, self._busy)
        self._woken.set()

    def heard(self, contract: str, queue: str) -> None:
        """A wake-up, from any thread: there may be jobs of this contract and queue, or something was done to a job."""
        if contract == ABOUT_A_JOB:
            self._heart.soon(int(queue))
        elif self._loop is not None and (not queue or queue in self.queues):
            self._loop.call_soon_threadsafe(self._look, contract)

    def _look(self, contract: str) -> None:
        served = self._served()
        self._hot = (
            dict.fromkeys([contract] if contract in served else served) | self._hot
        )  # before those that polls found
        self._woken.set()

    def _served(self) -> list[str]:
        return [name for name in self._contracts if self._only is None or name in self._only]

    def _on_signals(self, loop: asyncio.AbstractEventLoop) -> list[int]:
        numbers = [signal.SIGTERM, signal.SIGINT]
        try:
            for number in numbers:
                loop.add_signal_handler(number, self.stop)
        except (ValueError, RuntimeError, NotImplementedError):
            return []  # not the main thread: whoever runs us there calls stop()
        return [int(number) for number in numbers]

    # ── fetch ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _fetch(self) -> None:
        """Claim for the free slots, contract by contract, while there is something to claim."""
        patience = Patience()
        while not self.stopping:
            if time.monotonic() >= self._next_poll:
                await self._poll()
            if self._busy >= self.concurrency or not self._hot:
                if self._until_idle and not self._hot and not self._tasks:
                    return
                await self._rest()
                continue
            if self._busy > 3 * self.concurrency // 4:
                await asyncio.sleep(_GATHER_S)  # short jobs end together: let some of them, and claim for all
            contract = next(iter(self._hot))
            del self._hot[contract]
            free = self.concurrency - self._busy
            try:
                if await self._claim(contract, free) == free:
                    self._hot[contract] = None  # behind the others
                patience.reset()
            except TenureError as error:
                _log.warning("%s cannot claim: %s", self.name, error)
                self._hot[contract] = None
                await patience.wait()

    async def _poll(self) -> None:
        """Ask from time to time which contracts have something due, never in step with other workers."""
        spread = 0.75 + time.monotonic_ns() // 1_000 % 500 / 1_000
        self._next_poll = time.monotonic() + self._poll_s * spread
        try:
            self._hot |= dict.fromkeys(await self._source.due(self._served(), self.queues))
        except TenureError as error:
            _log.debug("%s cannot look for jobs: %s", self.name, error)

    async def _rest(self) -> None:
        """Wait for a free slot, a wake-up, or the time to look again."""
        self._woken.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._next_poll - time.monotonic())):
                await self._woken.wait()

    async def _claim(self, contract: str, free: int) -> int:
        key, asked = self._unanswered.pop(contract, None) or uuid4(), time.monotonic()
        try:
            jobs = await self._source.claim(contract, self.queues, worker=self.name, limit=free, claim_key=key)
        except ConnectionLost:
            self._unanswered[contract] = key
            raise
        except StaleLease:  # the answer was lost, and meanwhile the jobs were too
            return 0
        if not jobs:
            return 0
        self.counts["claimed"] += len(jobs)
        self._busy += len(jobs)
        for middleware in self._middleware:
            await _told(middleware.claim(jobs))
        for job in jobs:
            task = asyncio.create_task(self._life(job, asked))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return len(jobs)

    # ── run and settle ───────────────────────────────────────────────────────────────────────────────────────────

    async def _life(self, job: Job, asked: float) -> None:
        """One job, from its claim until the database has heard what became of it."""
        running = Running(job, self.tasks.get(job.type))
        self._running[job.id, job.claims] = running
        self._hold(running, asked)
        try:
            try:
                verdict = await self._verdict(running)
            finally:
                self._is_busy(-1)
            if verdict is not None:
                running.is_ended = True
                await self._settle(running, verdict)
            elif running.why == "lost":
                self.counts["lost"] += 1
        except Refused as refused:
            self._refused(running, refused)
        except Exception:
            _log.exception("job %d of %s: the worker could not say what became of it", job.id, job.type)
        finally:
            self._heart.release(running.held)
            self._running.pop((job.id, job.claims), None)

    def _hold(self, running: Running, asked: float) -> None:
        job, contract = running.job, self._contracts[running.job.contract]
        length = contract.lease.default_ms / 1_000
        if job.lease_expires_at is not None and job.started_at is not None:
            length = (job.lease_expires_at - job.started_at).total_seconds()  # both by the database's clock
        beat = contract.lease.heartbeat
        declared = running.task.type.heartbeat_sec if running.task and running.task.type else None
        interval = (declared or beat.default_ms / 1_000) if beat else None
        longest = self._executor.longest(running) + length
        self._heart.hold(running.held, length_s=length, interval_s=interval, since=asked, longest_s=longest)

    def _is_busy(self, more: int) -> None:
        self._busy += more
        if more < 0:
            self._woken.set()

    async def _verdict(self, running: Running) -> Verdict | None:
        if running.task is None:
            return await self._unknown(running)
        if self._contracts[running.job.contract].path("start") is not None:
            await insisting(lambda: self._source.start(running.held))
        return await self._executor.run(running, running.task, alone=await self._is_alone(running))

    async def _is_alone(self, running: Running) -> bool:
        """Whether the job's last lease expired: it may be what killed its worker, and must not kill this one."""
        job, contract = running.job, self._contracts[running.job.contract]
        if job.claims == 1:
            return False
        if was_lost(job.last_error, str(contract.lease.error["type"])):
            return True
        if contract.path("reclaim") is None:
            return False
        # Taken in place: the row does not tell a lost lease from a failure, the log does.
        return (await insisting(lambda: self._source.log(job.id)))[-1].trigger == "reclaim"

    async def _unknown(self, running: Running) -> Verdict | None:
        """Hand back what another release may know; after an hour of nobody knowing it, it is dead."""
        job = running.job
        log = await insisting(lambda: self._source.log(job.id))
        first = next((row.ts for row in log if row.trigger == "hand_back"), job.started_at)
        if job.started_at and first and (job.started_at - first).total_seconds() > _UNKNOWN_FOR_S:
            return Failure(
                f"no worker knew the task {job.type!r} for an hour",
                "PermanentError",
                code="UNKNOWN_TASK",
                retryable=False,
            )
        _log.error(
            "job %d is of task %r, which this worker does not know; it is handed back for %g s. "
            "Next: deploy a worker that has the task, or tenure jobs cancel %d", job.id, job.type, _UNKNOWN_S, job.id,
        )  # fmt: skip
        await self._hand_back([running], round(_UNKNOWN_S * 1_000))
        self.counts["unknown"] += 1
        return None

    async def _settle(self, running: Running, verdict: Verdict) -> None:
        became = await settle(self._source, self._contracts[running.job.contract], running, verdict)
        if isinstance(became, Refused):
            self._refused(running, became)
        elif isinstance(became, Decision):
            self.counts["retried" if became.will_retry else "failed"] += 1
        else:
            self.counts["succeeded" if isinstance(verdict, Done) else "moved"] += 1
        for middleware in self._middleware:
            await _told(middleware.finish(running.job, became))

    def _refused(self, running: Running, refused: Refused) -> None:
        self.counts["refused"] += 1
        _log.warning("job %d of %s: what became of it was refused: %s", running.job.id, running.job.type, refused)

    def _when_lost(self, held: Held) -> None:
        self._on_loop(held, lambda running: running.end("lost"))

    def _when_asked_to_stop(self, held: Held) -> None:
        self._on_loop(held, Running.cancel_requested)

    def _on_loop(self, held: Held, act: Callable[[Running], None]) -> None:
        """Do it on the main loop, if the job is still running there."""

        def find() -> None:
            if (running := self._running.get((held.id, held.claims))) is not None:
                act(running)

        if self._loop is not None:
            self._loop.call_soon_threadsafe(find)

    async def _end(self) -> None:
        """Let what runs end, hand back what does not, then let everything go."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._grace_s)
        rest = [running for running in self._running.values() if not running.is_ended]
        for running in rest:
            running.end("stopping")
        if rest:
            _log.warning("%s hands back %d jobs that did not end in time", self.name, len(rest))
            await self._hand_back(rest, 0)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LAST_WORDS_S)
        for task in self._tasks:  # the database does not hear: their leases run out, which comes to the same
            task.cancel()
        await self._service.stop()
        for middleware in self._middleware:
            await _told(middleware.shutdown())
        self._executor.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._source.close()
        _log.info("%s stopped: %s", self.name, ", ".join(f"{count} {what}" for what, count in self.counts.items()))

    async def _hand_back(self, these: Sequence[Running], delay_ms: int) -> None:
        for running in these:
            self._heart.release(running.held)
        try:
            for answer in await self._source.hand_back([running.held for running in these], delay_ms):
                self.counts["refused" if isinstance(answer, Refused) else "handed back"] += 1
        except TenureError as error:  # their leases run out, which comes to the same
            _log.warning("%s could not hand back %d jobs: %s", self.name, len(these), error)

    @property
    def left_behind(self) -> int:
        """How many threads still run handlers that could not be ended; they keep the process alive."""
        return self._executor.left_behind


async def _told(said: Awaitable[None]) -> None:
    """A hook that tells of something which has happened cannot undo it by raising."""
    try:
        await said
    except Exception:
        _log.exception("a middleware raised")
