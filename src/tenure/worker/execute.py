"""Run a claimed job's handler: here, in a thread, or in a process that can be killed."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from tenure.context import Context, stage_of
from tenure.contract import Contract
from tenure.job import Failure, Job
from tenure.middleware import Middleware
from tenure.task import LONGEST_RUN_S, TIMEOUT, Task
from tenure.worker.child import PROCESS_DIED, Child, ProcessDied
from tenure.worker.handle import Verdict, failure_of, handle
from tenure.worker.port import SourcePort
from tenure.worker.running import Running
from tenure.worker.slots import Slots
from tenure.worker.source import JobSource

_log = logging.getLogger("tenure.worker")

#: So many processes wait for the next job; the rest end when theirs is done.
_KEPT_CHILDREN = 4
#: So many jobs at once run alone because their last worker died; a dead worker may have left hundreds.
_ALONE_AT_ONCE = 8
#: A payload without this says nothing of how long its job may run.
MAY_SAY_TIMEOUT = f'"{TIMEOUT}"'


class Executor:
    """Runs handlers; a thread that could not be ended with its job keeps its slot."""

    def __init__(
        self,
        source: JobSource,
        contracts: Mapping[str, Contract],
        middleware: Sequence[Middleware],
        threads: ThreadPoolExecutor,
        slots: Slots,
    ) -> None:
        self._source = source
        self._compensating = {name for name, contract in contracts.items() if contract.compensates}
        self._middleware = middleware
        self._threads = threads
        self._slots = slots
        self._loop = asyncio.get_running_loop()
        self._children: list[Child] = []
        self._quarantine = asyncio.Semaphore(_ALONE_AT_ONCE)
        #: Threads that still run a handler whose job is no longer ours.
        self.left_behind = 0

    async def run(self, running: Running, task: Task[..., Any], *, alone: bool) -> Verdict | None:
        """Run it to its end, whatever that is; None when the job is no longer this worker's to speak of."""
        job, runner = running.job, running.runner
        assert runner is not None
        port = SourcePort(self._source, running, compensates=job.contract in self._compensating)
        running.ctx = Context(job, port, self._loop)
        if running.why is not None:
            return None
        if job.pending_json is not None:  # it has failed already; what is left is to undo what it did
            return _failed_before(job.pending)
        try:
            if task.isolation == "process" and task._is_findable():
                return await self._elsewhere(running, task, port)
            if alone and task._is_findable():
                running.until = math.inf  # it keeps its lease until it is its turn
                async with self._quarantine:
                    return None if running.was_ended() else await self._elsewhere(running, task, port)
            running.begins(runner.cancel)
            return await handle(task, running.ctx, self._middleware, self._threads, self._leave_behind)
        except asyncio.CancelledError as error:
            return self._interrupted(running, error)
        except ProcessDied as error:
            if running.why is not None:
                return None
            return _too_long(running) if running.is_late else failure_of(error, stage=running.stage)
        except BaseException as error:  # SystemExit too is only what this handler did
            return failure_of(error, running.ctx)
        finally:
            running.returns()
            if running.is_late or running.was_ended():
                while runner.cancelling():  # whatever the handler made of it, it is over
                    runner.uncancel()

    def close(self) -> None:
        """Let the waiting processes go."""
        for child in self._children:
            child.close()
        self._children.clear()

    def _interrupted(self, running: Running, error: asyncio.CancelledError) -> Verdict | None:
        task = asyncio.current_task()
        assert task is not None
        if running.why is not None or running.is_late:
            return None if running.why is not None else _too_long(running, error)
        if task.cancelling():
            raise error  # the worker itself is being torn down
        return failure_of(error, running.ctx)

    async def _elsewhere(self, running: Running, task: Task[..., Any], port: SourcePort) -> Verdict:
        child = self._child()
        running.ask_to_stop = child.ask_to_stop
        running.begins(child.kill)
        kept = False
        try:
            assert task.home is not None
            verdict = await child.run(task.home, running.job, partial(_say, port), port.at_stage)
            kept = len(self._children) < _KEPT_CHILDREN
            return verdict
        finally:
            if kept:
                self._children.append(child)
            else:
                child.close()

    def _child(self) -> Child:
        """A process that waits for a job, or a new one."""
        while self._children:
            child = self._children.pop()
            if child.is_alive():
                return child
            child.close()
        return Child()

    def _leave_behind(self, thread: Future[Any]) -> None:
        """A thread cannot be ended: it keeps its slot until it has ended by itself."""
        if thread.done():
            return
        loop = asyncio.get_running_loop()
        self.left_behind += 1
        self._slots.take(1)
        if self._slots.free <= 0:
            _log.warning("every slot is taken, %d of them by threads that could not be ended", self.left_behind)

        def ended() -> None:
            self.left_behind -= 1
            self._slots.give()

        def when_done(_: Future[Any]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(ended)

        thread.add_done_callback(when_done)


async def _say(port: SourcePort, verb: str, values: tuple[Any, ...]) -> Any:
    return await getattr(port, verb)(*values)


def longest(job: Job, otherwise: float) -> float:
    """How long this job's handler may run, in seconds: as its payload says, or else."""
    try:
        payload = job.payload
    except (ValueError, RecursionError):  # it is refused before it runs
        return otherwise
    given = payload.get(TIMEOUT) if isinstance(payload, dict) else None
    return float(given) if isinstance(given, (int, float)) and 0 < given <= LONGEST_RUN_S else otherwise


def _too_long(running: Running, error: BaseException | None = None) -> Failure:
    raised = stage_of(running.ctx, error) if running.ctx is not None and error is not None else None
    return Failure(
        f"ran longer than {running.longest_s:g} s", "TimeoutError", code="TIMEOUT", retryable=True,
        stage=raised or running.stage,
    )  # fmt: skip


def _failed_before(pending: Any) -> Failure:
    known = pending if isinstance(pending, dict) else {}
    return Failure(str(known.get("message", "failed before")), str(known.get("type", "Exception")))


def was_lost(last_error: Any, lease_error: str) -> bool:
    """Whether the attempt before this one took its worker, or its process, with it."""
    return isinstance(last_error, dict) and (
        last_error.get("type") == lease_error or last_error.get("code") == PROCESS_DIED
    )
