"""Run a claimed job's handler: here, in a thread, or in a process that can be killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from tenure.context import Context
from tenure.directive import Cancel, Snooze
from tenure.job import Failure
from tenure.middleware import Middleware
from tenure.task import LONGEST_RUN_S, TIMEOUT, Task
from tenure.worker.child import PROCESS_DIED, Child, ProcessDied
from tenure.worker.handle import Done, Verdict, failure_of, handle
from tenure.worker.port import SourcePort
from tenure.worker.running import Running, cancels
from tenure.worker.source import JobSource

#: So many processes wait for the next job; the rest end when theirs is done.
_KEPT_CHILDREN = 4


class Executor:
    """Runs handlers; `busy` is told of threads that could not be ended with their job."""

    def __init__(
        self,
        source: JobSource,
        middleware: Sequence[Middleware],
        threads: ThreadPoolExecutor,
        busy: Callable[[int], None],
    ) -> None:
        self._source = source
        self._middleware = middleware
        self._threads = threads
        self._busy = busy
        self._children: list[Child] = []
        #: Threads that still run a handler whose job is no longer ours.
        self.left_behind = 0

    def longest(self, running: Running) -> float:
        """How long this job's handler may run, in seconds."""
        payload = running.job.payload if f'"{TIMEOUT}"' in running.job.payload_json else {}
        given = payload.get(TIMEOUT) if isinstance(payload, dict) else None
        if isinstance(given, (int, float)) and 0 < given <= LONGEST_RUN_S:
            return float(given)
        declared = running.task.given.timeout if running.task else None
        return declared or LONGEST_RUN_S

    async def run(self, running: Running, task: Task[..., Any], *, alone: bool) -> Verdict | None:
        """Run it to its end, whatever that is; None when the job is no longer this worker's to speak of."""
        running.ctx = Context(running.job, SourcePort(self._source, running), asyncio.get_running_loop())
        if running.was_ended():
            return None
        if running.job.pending is not None:  # it has failed already; what is left is to undo what it did
            return _failed_before(running.job.pending)
        seconds = self.longest(running)
        where = self._elsewhere if task.home and (alone or task.isolation == "process") else self._here
        try:
            async with asyncio.timeout(seconds) as limit:
                return await where(running, task)
        except TimeoutError as error:
            if not limit.expired():
                return failure_of(error)
            return Failure(f"ran longer than {seconds:g} s", "TimeoutError", code="TIMEOUT", retryable=True)
        except asyncio.CancelledError as error:
            return self._interrupted(running, error)
        except ProcessDied as error:
            return None if running.was_ended() else failure_of(error)
        except BaseException as error:  # SystemExit too is only what this handler did
            return failure_of(error)

    def close(self) -> None:
        """Let the waiting processes go."""
        for child in self._children:
            child.close()
        self._children.clear()

    def _interrupted(self, running: Running, error: asyncio.CancelledError) -> Verdict | None:
        task = asyncio.current_task()
        if running.why is not None:
            if task is not None:
                task.uncancel()
            return None
        if task is not None and task.cancelling():
            raise error  # the worker itself is being torn down
        return failure_of(error)

    async def _here(self, running: Running, task: Task[..., Any]) -> Done | Snooze | Cancel:
        me = asyncio.current_task()
        assert me is not None
        assert running.ctx is not None
        running.interrupt = cancels(me)
        try:
            return await handle(task, running.ctx, self._middleware, self._threads, self._leave_behind)
        finally:
            running.interrupt = None

    async def _elsewhere(self, running: Running, task: Task[..., Any]) -> Verdict:
        child = self._children.pop() if self._children else Child()
        port = SourcePort(self._source, running)
        running.interrupt, running.ask_to_stop = child.kill, child.ask_to_stop
        kept = False
        try:
            assert task.home is not None
            verdict = await child.run(task.home, running.job, partial(_say, port))
            kept = len(self._children) < _KEPT_CHILDREN
            return verdict
        finally:
            running.interrupt = running.ask_to_stop = None
            if kept:
                self._children.append(child)
            else:
                child.close()

    def _leave_behind(self, thread: Future[Any]) -> None:
        """A thread cannot be ended: it keeps its slot until it has ended by itself."""
        if thread.done():
            return
        loop = asyncio.get_running_loop()
        self.left_behind += 1
        self._busy(1)

        def ended() -> None:
            self.left_behind -= 1
            self._busy(-1)

        def when_done(_: Future[Any]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(ended)

        thread.add_done_callback(when_done)


async def _say(port: SourcePort, verb: str, values: tuple[Any, ...]) -> Any:
    return await getattr(port, verb)(*values)


def _failed_before(pending: Any) -> Failure:
    known = pending if isinstance(pending, dict) else {}
    return Failure(str(known.get("message", "failed before")), str(known.get("type", "Exception")))


def was_lost(last_error: Any, lease_error: str) -> bool:
    """Whether the attempt before this one took its worker, or its process, with it."""
    return isinstance(last_error, dict) and (
        last_error.get("type") == lease_error or last_error.get("code") == PROCESS_DIED
    )
