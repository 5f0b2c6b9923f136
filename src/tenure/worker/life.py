"""The life of a claimed job in this worker: held, run, settled; from its claim until the database has heard."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import Context, copy_context
from typing import Any

from tenure.contract import Contract
from tenure.errors import Busy, Refused, TenureError, ValidationError
from tenure.job import Failure, Job
from tenure.middleware import Middleware
from tenure.outcome import Moved
from tenure.queue import Decision
from tenure.stranger import UNKNOWN_TASK, WAITS_S, unknown
from tenure.task import LONGEST_RUN_S, Task
from tenure.worker.execute import MAY_SAY_TIMEOUT, Executor, longest, was_lost
from tenure.worker.fetch import say_stranger
from tenure.worker.finish import Finisher
from tenure.worker.handle import Done, Verdict, arguments, failure_of
from tenure.worker.heart import Heart
from tenure.worker.relay import Relay
from tenure.worker.running import Running, Terms
from tenure.worker.settle import insisting, ours, settle
from tenure.worker.slots import Slots
from tenure.worker.source import JobSource

_log = logging.getLogger("tenure.worker")

#: A job of a task that nobody here knows is handed back for so long.
_UNKNOWN_S = 15.0
#: A success whose row somebody else has is told of again after so long.
_BUSY_S = 0.2


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
        self._starting = {name for name, contract in contracts.items() if contract.path("start") is not None}
        self._tasks = tasks
        self._slots = slots
        self._heart = heart
        self._executor = executor
        self._middleware = middleware
        self._ended = ended
        self._relay = Relay(self._life)
        self._finisher = Finisher(source, self._answered)
        self._others: set[asyncio.Task[None]] = set()
        self.running = heart.held

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """Everything that is under way for these jobs."""
        return self._relay.tasks | self._finisher.tasks | self._others

    def begin(self, jobs: list[Job], asked: float) -> None:
        """Hold every job of a claim at once, whatever the first of them then does, and let each live."""
        terms: dict[str, Terms] = {}
        lives = []
        for job in jobs:
            shared = terms.get(job.type) or terms.setdefault(job.type, self._terms(job))
            longest_s = longest(job, shared.longest_s) if MAY_SAY_TIMEOUT in job.payload_json else shared.longest_s
            lives.append(Running(job, shared, asked, longest_s))
        self.running.update(lives)
        if self._middleware:
            self._spawn(self._tell_and_begin(jobs, lives))
        else:
            self._relay.begin(lives)

    async def rest(self, seconds: float) -> None:
        """Wait until nothing is under way any more, so long at the most."""
        end = time.monotonic() + seconds
        while self.tasks and (left := end - time.monotonic()) > 0:
            await asyncio.wait(self.tasks, timeout=left)

    def act(self, running: Running, act: Callable[[Running], None]) -> None:
        """Do something to a job, if it is still running here."""
        if running in self.running:
            act(running)

    async def hand_back(self, these: Sequence[Running], delay_ms: int = 0, reason: str | None = None) -> None:
        """Give jobs back unfinished, each its contract's way."""
        for running in these:
            running.until = 0.0
        try:
            answers = await self._source.hand_back([running.held for running in these], delay_ms, reason)
        except TenureError as error:  # their leases run out, which comes to the same
            _log.warning("%d jobs could not be handed back: %s", len(these), error)
        else:
            for answer in answers:
                self._slots.counts["refused" if isinstance(answer, TenureError) else "handed back"] += 1

    async def _tell_and_begin(self, jobs: list[Job], lives: list[Running]) -> None:
        for middleware in self._middleware:
            await told(middleware.claim(jobs))
        self._relay.begin(lives)

    def _spawn(self, what: Coroutine[Any, Any, None], context: Context | None = None) -> None:
        task = asyncio.create_task(what, context=context)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    async def _life(self, running: Running) -> None:
        """From the claim to what the handler says of it. A success is told of by the finisher, the rest here."""
        verdict: Verdict | None = None
        try:
            try:
                verdict = await self._verdict(running)
            finally:
                self._slots.give()
            if verdict is not None:
                running.is_ended = True
                if running.longest_s < LONGEST_RUN_S:  # being heard, or undoing effects, may take its time too
                    running.until = time.monotonic() + LONGEST_RUN_S
                if type(verdict) is Done:
                    if self._middleware:
                        running.context = copy_context()
                    self._slots.unsettled += 1
                    self._finisher.add(running, verdict)
                    return
                await self._settle(running, verdict)
            elif running.why == "lost":
                self._slots.counts["lost"] += 1
        except Refused as refused:
            self._refused(running, refused)
        except Exception:
            _could_not_say(running)
        except BaseException:  # the worker itself is being torn down
            self._let_go(running)
            raise
        self._let_go(running)
        self._ended()

    def _answered(self, group: Sequence[tuple[Running, Done]], answers: Sequence[Moved | Exception]) -> None:
        """What the database made of successes, from the finisher."""
        plain = busy = 0
        for (running, done), answer in zip(group, answers, strict=True):
            if type(answer) is Moved and not self._middleware:
                plain += 1
                self._let_go(running)
            elif isinstance(answer, Busy):  # somebody else's transaction has its row: it is told of again
                busy += 1
                self._spawn(self._again(running, done))
            else:
                self._spawn(self._end(running, done, answer), running.context)
        self._slots.settled(len(group) - busy)
        self._slots.counts["succeeded"] += plain
        self._ended()

    async def _again(self, running: Running, done: Done) -> None:
        await asyncio.sleep(_BUSY_S)
        self._finisher.add(running, done)

    async def _end(self, running: Running, done: Done, answer: Moved | Exception) -> None:
        """See a success to its end that was not plainly accepted, or that others are to hear of."""
        try:
            if isinstance(answer, Moved):
                await self._became(running, done, answer)
            elif isinstance(answer, Refused):
                await self._became(running, done, await ours(self._source, running, answer))
            else:  # one of its group is at fault, or nobody knows what was heard of it
                running.answer_lost = True
                await self._settle(running, done)
        except Exception:
            _could_not_say(running)
        self._let_go(running)
        self._ended()

    def _let_go(self, running: Running) -> None:
        self.running.discard(running)
        running.ctx = running.runner = None  # which know it too: nothing is left for the garbage collector to find

    def _terms(self, job: Job) -> Terms:
        """What is common to the jobs of this one's claim and type."""
        contract, task = self._contracts[job.contract], self._tasks.get(job.type)
        length = shortest = contract.lease.minimum_ms / 1_000
        if job.lease_expires_at is not None and job.started_at is not None:
            # Both by the database's clock, which may have stepped back since the log's last time.
            length = max(shortest, (job.lease_expires_at - job.started_at).total_seconds())
        beat = contract.lease.heartbeat
        declared = task.type.heartbeat_sec if task and task.type else None
        interval = (declared or beat.default_ms / 1_000) if beat else None
        return Terms(task, length, interval, (task.given.timeout if task else None) or LONGEST_RUN_S)

    async def _verdict(self, running: Running) -> Verdict | None:
        if time.monotonic() >= running.asked + running.terms.lease_s and await self._is_lost(running):
            running.end("lost")
            return None
        if running.task is None:
            return await self._unknown(running)
        if running.job.contract in self._starting:
            if (unfit := self._unfit(running, running.task)) is not None:
                return unfit
            await insisting(lambda: self._source.start(running.held))
        alone = running.job.claims > 1 and await self._is_alone(running)
        return await self._executor.run(running, running.task, alone=alone)

    def _unfit(self, running: Running, task: Task[..., Any]) -> Failure | None:
        """Why a job does not start: its arguments do not fit, and its contract ends it from where it stands."""
        job, contract = running.job, self._contracts[running.job.contract]
        if job.pending_json is not None:  # its failure is known; what is left is to undo its effects
            return None
        try:
            arguments(task, job)
        except ValidationError as error:
            failure = failure_of(error)
            verdict = contract.retryable.verdict(failure.facts())
            return failure if contract.path(verdict.trigger, job.state) is not None else None
        return None

    async def _is_lost(self, running: Running) -> bool:
        """Whether a job that had to wait for a blocked loop longer than its lease is somebody else's by now."""
        (answer,) = await insisting(lambda: self._source.heartbeat([running.held]))
        return isinstance(answer, Refused)

    async def _is_alone(self, running: Running) -> bool:
        """Whether the job's last lease expired: it may be what killed its worker, and must not kill this one."""
        job, contract = running.job, self._contracts[running.job.contract]
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
        contract = self._contracts[running.job.contract]
        await self._became(running, verdict, await settle(self._source, contract, running, verdict))

    async def _became(self, running: Running, verdict: Verdict, became: Moved | Decision | Refused) -> None:
        counts = self._slots.counts
        if isinstance(became, Refused):
            self._refused(running, became, logged=isinstance(verdict, Failure))
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

    def _refused(self, running: Running, refused: Refused, *, logged: bool = False) -> None:
        self._slots.counts["refused"] += 1
        if logged:  # with the failure that was to be reported
            return
        _log.warning("job %d of %s: what became of it was refused: %s", running.job.id, running.job.type, refused)


def _could_not_say(running: Running) -> None:
    _log.exception("job %d of %s: the worker could not say what became of it", running.job.id, running.job.type)


async def told(said: Awaitable[None]) -> None:
    """A hook that tells of something which has happened cannot undo it by raising."""
    try:
        await said
    except Exception:
        _log.exception("a middleware raised")
