"""The life of a claimed job in this worker: held, run, settled; from its claim until the database has heard."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from tenure.contract import Contract
from tenure.errors import Refused, TenureError
from tenure.job import Held, Job
from tenure.middleware import Middleware
from tenure.queue import Decision
from tenure.stranger import UNKNOWN_TASK, WAITS_S, unknown
from tenure.task import LONGEST_RUN_S, Task
from tenure.worker.execute import Executor, was_lost
from tenure.worker.fetch import say_stranger
from tenure.worker.handle import Done, Verdict
from tenure.worker.heart import Heart
from tenure.worker.running import Running
from tenure.worker.settle import insisting, settle
from tenure.worker.slots import Slots
from tenure.worker.source import JobSource

_log = logging.getLogger("tenure.worker")

#: A job of a task that nobody here knows is handed back for so long.
_UNKNOWN_S = 15.0


class Lives:
    """The jobs that this worker holds, each in a task of its own."""

    def __init__(
        self,
        source: JobSource,
        contracts: Mapping[str, Contract],
        tasks: Mapping[str, Task[..., Any]],
        slots: Slots,
        heart: Heart,
        executor: Executor,
        middleware: Sequence[Middleware],
        ended: Callable[[], None],
    ) -> None:
        self._source = source
        self._contracts = contracts
        self._tasks = tasks
        self._slots = slots
        self._heart = heart
        self._executor = executor
        self._middleware = middleware
        self._ended = ended
        self.running: dict[tuple[int, int], Running] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    def begin(self, jobs: list[Job], asked: float) -> None:
        """Hold every job of a claim at once, whatever the first of them then does, and let each live."""
        lives = [Running(job, self._tasks.get(job.type), asked) for job in jobs]
        for running in lives:
            self.running[running.job.id, running.job.claims] = running
            self._hold(running)
        told = asyncio.create_task(self._tell_of_claim(jobs)) if self._middleware else None
        for running in lives:
            task = asyncio.create_task(self._life(running, told))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def act(self, held: Held, act: Callable[[Running], None]) -> None:
        """Do something to a job, if it is still running here."""
        if (running := self.running.get((held.id, held.claims))) is not None:
            act(running)

    async def hand_back(self, these: Sequence[Running], delay_ms: int = 0, reason: str | None = None) -> None:
        """Give jobs back unfinished, each its contract's way."""
        for running in these:
            self._heart.release(running.held)
        try:
            answers = await self._source.hand_back([running.held for running in these], delay_ms, reason)
        except TenureError as error:  # their leases run out, which comes to the same
            _log.warning("%d jobs could not be handed back: %s", len(these), error)
        else:
            for answer in answers:
                self._slots.counts["refused" if isinstance(answer, Refused) else "handed back"] += 1

    async def _tell_of_claim(self, jobs: list[Job]) -> None:
        for middleware in self._middleware:
            await told(middleware.claim(jobs))

    async def _life(self, running: Running, claim_told: asyncio.Task[None] | None) -> None:
        job = running.job
        try:
            try:
                if claim_told is not None:
                    await asyncio.shield(claim_told)
                verdict = await self._verdict(running)
            finally:
                self._slots.give()
            if verdict is not None:
                running.is_ended = True
                self._heart.go_on(running.held, LONGEST_RUN_S)  # undoing effects may take its time too
                await self._settle(running, verdict)
            elif running.why == "lost":
                self._slots.counts["lost"] += 1
        except Refused as refused:
            self._refused(running, refused)
        except Exception:
            _log.exception("job %d of %s: the worker could not say what became of it", job.id, job.type)
        finally:
            self._heart.release(running.held)
            self.running.pop((job.id, job.claims), None)
            self._ended()

    def _hold(self, running: Running) -> None:
        job, contract = running.job, self._contracts[running.job.contract]
        length = shortest = contract.lease.minimum_ms / 1_000
        if job.lease_expires_at is not None and job.started_at is not None:
            # Both by the database's clock, which may have stepped back since the log's last time.
            length = max(shortest, (job.lease_expires_at - job.started_at).total_seconds())
        beat = contract.lease.heartbeat
        declared = running.task.type.heartbeat_sec if running.task and running.task.type else None
        interval = (declared or beat.default_ms / 1_000) if beat else None
        running.lease_s = length
        longest = self._executor.longest(running) + length
        self._heart.hold(running.held, length_s=length, interval_s=interval, since=running.asked, longest_s=longest)

    async def _verdict(self, running: Running) -> Verdict | None:
        if time.monotonic() >= running.asked + running.lease_s and await self._is_lost(running):
            running.end("lost")
            return None
        if running.task is None:
            return await self._unknown(running)
        if self._contracts[running.job.contract].path("start") is not None:
            await insisting(lambda: self._source.start(running.held))
        return await self._executor.run(running, running.task, alone=await self._is_alone(running))

    async def _is_lost(self, running: Running) -> bool:
        """Whether a job that had to wait for a blocked loop longer than its lease is somebody else's by now."""
        (answer,) = await insisting(lambda: self._source.heartbeat([running.held]))
        return isinstance(answer, Refused)

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
        job, since = running.job, running.job.started_at
        for row in reversed(await insisting(lambda: self._source.log(job.id))):
            if row.trigger == "hand_back" and row.reason == UNKNOWN_TASK:
                since = row.ts
            elif row.trigger != "claim":
                break
        if job.started_at and since and (job.started_at - since).total_seconds() > WAITS_S:
            return unknown(job.type)
        say_stranger(job.id, job.type)
        await self.hand_back([running], round(_UNKNOWN_S * 1_000), UNKNOWN_TASK)
        self._slots.counts["unknown"] += 1
        return None

    async def _settle(self, running: Running, verdict: Verdict) -> None:
        counts = self._slots.counts
        became = await settle(self._source, self._contracts[running.job.contract], running, verdict)
        if isinstance(became, Refused):
            self._refused(running, became)
        elif isinstance(became, Decision):
            counts["retried" if became.will_retry else "failed"] += 1
        elif isinstance(verdict, Done):
            counts["succeeded"] += 1
        elif became.trigger == "snooze":
            counts["snoozed"] += 1
        elif became.trigger == "cancel":
            counts["cancelled"] += 1
        else:
            counts["failed"] += 1
        for middleware in self._middleware:
            await told(middleware.finish(running.job, became))

    def _refused(self, running: Running, refused: Refused) -> None:
        self._slots.counts["refused"] += 1
        _log.warning("job %d of %s: what became of it was refused: %s", running.job.id, running.job.type, refused)


async def told(said: Awaitable[None]) -> None:
    """A hook that tells of something which has happened cannot undo it by raising."""
    try:
        await said
    except Exception:
        _log.exception("a middleware raised")
