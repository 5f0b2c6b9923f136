"""A worker: its slots, its two loops, and how it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tenure import intake
from tenure.contract import Contract
from tenure.errors import BadInput
from tenure.middleware import Middleware
from tenure.patience import once_there
from tenure.task import Task
from tenure.wakeup import ABOUT_A_JOB
from tenure.worker.execute import Executor
from tenure.worker.fetch import Fetch
from tenure.worker.heart import Heart
from tenure.worker.life import Lives, told
from tenure.worker.running import Running
from tenure.worker.service import Service, ServiceThread
from tenure.worker.slots import Slots
from tenure.worker.source import JobSource

_log = logging.getLogger("tenure.worker")

#: How long a stopping worker waits for the database to hear its last words.
_LAST_WORDS_S = 5.0
#: A signal that comes twice within this time came from a whole process group, and is one.
_ONE_SIGNAL_S = 1.0


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
        self.name = intake.name("worker", name or f"{socket.gethostname()}:{os.getpid()}")
        if not 0.01 <= poll <= 3_600:
            raise BadInput(f"poll is the seconds between two looks for jobs, 0.01 to 3600, not {poll!r}")
        self._slots = Slots(intake.whole("concurrency", concurrency, 1, 10_000))
        self._only = contracts
        self._poll_s, self._grace_s = poll, grace
        self._middleware = tuple(middleware)
        self._open_source = open_source
        self._heart = Heart(
            lambda running: self._act(running, lambda running: running.end("lost")),
            lambda running: self._act(running, Running.cancel_requested),
        )
        self._service = ServiceThread(open_service_source or open_source, [self._heart.run, *services])
        self._loop: asyncio.AbstractEventLoop | None = None
        self._finding: asyncio.Task[tuple[JobSource, Mapping[str, Contract]] | None] | None = None
        self._fetch: Fetch | None = None
        self._lives: Lives | None = None
        self._executor: Executor | None = None
        self._signalled = 0.0
        self.stopping = False

    @property
    def counts(self) -> Counter[str]:
        """What happened to this worker's jobs: claimed, succeeded, failed, retried, refused, lost, …"""
        return self._slots.counts

    @property
    def left_behind(self) -> int:
        """How many threads still run handlers that could not be ended; they keep the process alive."""
        return self._executor.left_behind if self._executor else 0

    async def run(self, *, until_idle: bool = False) -> None:
        """Work until told to stop, by a signal or `stop()`; or until nothing is due, where that is asked."""
        if self._loop is not None:
            raise BadInput("a worker runs once. Next: make another one")
        self._loop = asyncio.get_running_loop()
        signals = self._on_signals(self._loop)
        threads = ThreadPoolExecutor(self._slots.concurrency, "tenure-handler")
        source: JobSource | None = None
        begun = False
        try:
            found = await self._found() if until_idle else await self._found_in_time()
            if found is None:  # told to stop before
                return
            source, known = found
            if unknown := set(self._only or ()) - set(known):
                raise BadInput(f"no contract {sorted(unknown)[0]!r} is registered; registered are: {', '.join(known)}")
            contracts = {name: one for name, one in known.items() if self._only is None or name in self._only}
            self._executor = Executor(source, contracts, self._middleware, threads, self._slots)
            self._lives = lives = Lives(
                source, contracts, self.tasks, self._slots, self._heart, self._executor, self._middleware,
                lambda: fetch.look_again() if until_idle else None,
            )  # fmt: skip
            fetch = self._fetch = Fetch(
                source, contracts, self.queues, self._slots,
                worker=self.name, poll_s=self._poll_s, known=list(self.tasks), begin=lives.begin,
            )  # fmt: skip
            fetch.stopping = self.stopping
            await self._service.start(lambda: self.stopping)  # nothing is claimed before somebody can beat for it
            _log.info("%s works on %s, %d at a time", self.name, ", ".join(self.queues), self._slots.concurrency)
            begun = True
            await fetch.run(lambda: until_idle and not lives.running)
            await self._let_end(lives)
        finally:
            await self._close(source, threads)
            if begun:  # one that could not set out has an error to tell, or was told to stop while it waited
                counted = ", ".join(f"{count} {what}" for what, count in self.counts.items()) or "no job came"
                _log.info("%s stopped: %s", self.name, counted)
            for number in signals:
                self._loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Stop claiming, from any thread; what runs may end, for as long as the grace lasts."""
        self.stopping = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop)

    def heard(self, contract: str, queue: str) -> None:
        """A wake-up, from any thread: there may be jobs of this contract and queue, or something was done to a job."""
        if contract == ABOUT_A_JOB:
            self._heart.soon(int(queue))
        elif self._loop is not None and self._fetch is not None and (not queue or queue in self.queues):
            self._loop.call_soon_threadsafe(self._fetch.look, contract)

    def _stop(self) -> None:
        if self._finding is not None:
            self._finding.cancel()
        if self._fetch is not None and not self._fetch.stopping:
            self._fetch.stopping = True
            _log.info("%s stops: %d jobs are running", self.name, self._slots.busy)
        self._slots.changed.set()

    def _on_signals(self, loop: asyncio.AbstractEventLoop) -> list[int]:
        numbers = [signal.SIGTERM, signal.SIGINT]
        try:
            for number in numbers:
                loop.add_signal_handler(number, self._signal, number)
        except (ValueError, RuntimeError, NotImplementedError):
            return []  # not the main thread: whoever runs us there calls stop()
        return [int(number) for number in numbers]

    def _signal(self, number: int) -> None:
        """The first stops the worker; a second one, later, ends it at once."""
        now = time.monotonic()
        if self.stopping and now - self._signalled > _ONE_SIGNAL_S:
            os._exit(128 + number)
        if not self.stopping:
            self._signalled = now
        self.stop()

    def _act(self, running: Running, act: Callable[[Running], None]) -> None:
        """Do something to a running job, from any thread."""
        if self._loop is not None and self._lives is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._lives.act, running, act)

    async def _let_end(self, lives: Lives) -> None:
        """Let what runs end, and hand back what does not."""
        await lives.rest(self._grace_s)
        rest = [running for running in lives.running if not running.is_ended]
        for running in rest:
            running.end("stopping")
        if rest:
            _log.warning("%s hands back %d jobs that did not end in time", self.name, len(rest))
            await lives.hand_back(rest)
        await lives.rest(_LAST_WORDS_S)
        for task in lives.tasks:  # the database does not hear: their leases run out, which comes to the same
            task.cancel()

    async def _found_in_time(self) -> tuple[JobSource, Mapping[str, Contract]] | None:
        """The same, as soon as somebody is there; None where it is told to stop before."""
        waiting = once_there(self._found, who=self.name, is_stopping=lambda: self.stopping)
        self._finding = finding = asyncio.create_task(waiting)
        try:
            await asyncio.wait([finding])
        finally:
            finding.cancel()
        return None if finding.cancelled() else finding.result()

    async def _found(self) -> tuple[JobSource, Mapping[str, Contract]]:
        """Where jobs come from, and the contracts they have there."""
        source = await self._open_source()
        try:
            return source, await source.contracts()
        except BaseException:
            await source.close()
            raise

    async def _close(self, source: JobSource | None, threads: ThreadPoolExecutor) -> None:
        await self._service.stop()
        for middleware in self._middleware:
            await told(middleware.shutdown())
        if self._executor is not None:
            self._executor.close()
        threads.shutdown(wait=False, cancel_futures=True)
        if source is not None:
            await source.close()
