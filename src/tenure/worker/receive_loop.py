"""The receive loop: receives messages for the free slots and claims the tasks that they name.

    receive ─┬ no pointer ───────────────────────────────────────────▶ delete, with a warning
             └ claim by id ─┬ Claimed ───────────────────────────────▶ start the job; its completion deletes the message
                            ├ its work is done, or it does not exist ▶ delete
                            └ another worker has it, no answer, … ───▶ leave: the queue shows the message again

Nothing runs without a successful claim, and a message is nothing but a reason to ask for one. From its receipt until
the completion is answered, the service thread keeps a message hidden (`keep_messages`), so that other workers do not
receive it in vain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from uuid import UUID, uuid4

from tenure.client.job_source import JobSource, MessageSource
from tenure.client.retry import RetryDelay
from tenure.errors import TenureError, Unavailable
from tenure.jobs.job import Job
from tenure.sqs.inbox import KeptMessage, read_task_id
from tenure.sqs.message_queue import Message
from tenure.worker.reports import hand_back
from tenure.worker.running_job import TICK_S
from tenure.worker.shared_parts import SharedParts

_log = logging.getLogger("tenure.worker")
T = TypeVar("T")

#: How long a receive waits for a message, in seconds; and that of a worker that ends when it is idle.
WAIT_S, WAIT_UNTIL_IDLE_S = 20, 1
#: The answers to a claim after which nobody needs the message. A retry, the start of a node and the
#: end of a queue's pause have their own.
_DELETED = frozenset({"Completed", "Canceled", "Failed", "NotFound", "NotDue", "WaitingForParents", "QueuePaused"})
#: A queue that hides messages for minutes is asked to keep them seldom, and shows a dead worker's messages soon.
_USUAL_VISIBILITY_S = range(60, 901)
#: How long a stopping worker waits for the answers to its claims, in seconds.
_LAST_CLAIMS_S = 5.0
#: At most so many characters of a message are logged.
_LOGGED = 200
_NOT_SERVED = "this worker does not serve the contract of this task"


class ReceiveLoop:
    """Gives the jobs that it claims to `start_jobs`, with the monotonic time at which the claim was sent."""

    def __init__(
        self, parts: SharedParts, source: MessageSource, start_jobs: Callable[[list[Job], float], None], wait_s: int
    ) -> None:
        self._source, self._worker, self._slots = source, parts.worker, parts.slots
        self._contracts, self._heartbeats = parts.contracts, parts.heartbeats
        self._start_jobs, self._wait_s = start_jobs, wait_s
        #: Claims under way. The caller that takes one out owns the job that it wins.
        self._under_way: dict[UUID, KeptMessage] = {}
        self._claiming: set[asyncio.Task[None]] = set()
        self._is_lost = self._claims_fail = False
        self.stopping = False

    def wake_up(self, contract: str) -> None:
        """Do nothing: messages wake this worker."""

    def poll_soon(self) -> None:
        """Check soon whether the worker is idle."""
        self._slots.changed.set()

    async def run(self, is_idle: Callable[[], bool]) -> None:
        """Receive until `stopping` is set, or until `is_idle` and no message comes."""
        try:
            await self._run(is_idle)
            if self._claiming:
                await asyncio.wait(self._claiming, timeout=_LAST_CLAIMS_S)
        finally:
            for task in self._claiming:
                task.cancel()

    async def _run(self, is_idle: Callable[[], bool]) -> None:
        delay = RetryDelay(longest_s=5.0)
        await self._check_queue(delay)
        while not self.stopping:
            if self._claims_fail:
                await self._until_stopped(delay.wait())
            # A task is claimed only where it can start at once; one at a time while no claim is answered.
            free = (1 if self._claims_fail else self._slots.free) - len(self._claiming)
            if min(free, self._slots.free) <= 0:
                await self._wait()
                continue
            try:
                messages = await self._receive(free)
            except Unavailable as error:
                await self._note_lost(error, delay)
                continue
            self._note_found()
            if not self._claims_fail:
                delay.reset()
            for message in messages:
                self._start_claim(message)
            if not messages and not self._claiming and is_idle():
                return

    async def _check_queue(self, delay: RetryDelay) -> None:
        """Read the queue's visibility as soon as it can be reached, and warn of an unusual one."""
        visibility_s: int | None = None
        while visibility_s is None and not self.stopping:
            try:
                visibility_s = await self._until_stopped(self._source.read_visibility())
            except Unavailable as error:
                await self._note_lost(error, delay)
        if visibility_s is None:
            return
        url = self._source.inbox.url
        _log.info("%s receives messages from %s, hidden for %d s", self._worker.name, url, visibility_s)
        if visibility_s not in _USUAL_VISIBILITY_S:
            _log.warning(
                "the queue %s hides a received message for %d s. Jobs are safe, but messages come too often or, after "
                "a crash, too late. Next: set its visibility timeout to between %d and %d s",
                url, visibility_s, _USUAL_VISIBILITY_S[0], _USUAL_VISIBILITY_S[-1],
            )  # fmt: skip
        self._note_found()

    async def _receive(self, limit: int) -> list[Message]:
        """Receive messages, at most until the worker stops; those that come too late are given back."""
        messages = await self._until_stopped(self._source.receive(limit, self._wait_s)) or []
        if self.stopping:
            for message in messages:
                self._source.give_back(message)
            return []
        return messages

    async def _until_stopped(self, call: Coroutine[Any, Any, T]) -> T | None:
        """Make a call; None if the worker stops before it is answered."""
        calling = asyncio.create_task(call)
        try:
            while not calling.done() and not self.stopping:
                await self._wait(calling)
        finally:
            if not calling.done():
                calling.cancel()
                await asyncio.wait([calling])
        return None if calling.cancelled() else calling.result()

    async def _wait(self, task: asyncio.Task[Any] | None = None) -> None:
        """Wait until this task ends, a slot is free or the worker stops."""
        self._slots.changed.clear()
        if self.stopping:
            return
        changed = asyncio.create_task(self._slots.changed.wait())
        await asyncio.wait([changed, *([task] if task else ())], return_when="FIRST_COMPLETED")
        changed.cancel()

    def _start_claim(self, message: Message) -> None:
        """Claim the task that a message names, beside the next receive; delete a message that names none."""
        try:
            task_id = read_task_id(message.body)
        except ValueError as why:
            self._log_deleted(message, str(why))
            self._source.delete(message)
            return
        token, now = uuid4(), time.monotonic()
        kept = self._source.inbox.add(token, task_id, message, now)
        self._under_way[token] = kept
        task = asyncio.create_task(self._claim(kept, now))
        self._claiming.add(task)
        task.add_done_callback(self._on_claim_ended)

    def _on_claim_ended(self, task: asyncio.Task[None]) -> None:
        self._claiming.discard(task)
        self._slots.changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a claim ended with an error of this worker's own; its lease will end", exc_info=error)

    async def _claim(self, kept: KeptMessage, claimed_at: float) -> None:
        answer: Job | str | None = None
        try:
            answer = await self._source.claim_task(kept, self._worker)
            self._claims_fail = False
        except Exception as error:
            if not self._claims_fail:
                log = _log.warning if isinstance(error, TenureError) else _log.exception
                log(
                    "%s cannot claim task %s, its message stays in the queue: %s",
                    self._worker.name,
                    kept.task_id,
                    error,
                )
            self._claims_fail = True
        finally:
            is_owner = self._under_way.pop(kept.token, None) is not None
            if not isinstance(answer, Job) or not is_owner:
                kept.is_claimed = True
        if isinstance(answer, str):
            self._settle(kept, answer)
        elif answer is not None and (not is_owner or answer.contract not in self._contracts):
            # The watchdog repeated this claim while the loop was blocked; or nobody here knows that contract.
            reason = _NOT_SERVED if is_owner else None
            try:
                self._slots.counts.update(await hand_back(self._source, [answer], _LAST_CLAIMS_S, 0, reason))
            finally:
                kept.is_claimed = True
        elif answer is not None:
            self._slots.counts["claimed"] += 1
            self._slots.take(1)
            self._start_jobs([answer], claimed_at)
            kept.is_claimed = True

    def _settle(self, kept: KeptMessage, reason: str) -> None:
        """Delete the message of a task that cannot be claimed, or leave it."""
        message = self._source.inbox.take(kept.token)
        if message is None:
            return
        if reason == "NotFound":
            self._log_deleted(message, "there is no such task")
        if reason in _DELETED:
            self._source.delete(message)
        _log.debug("task %s is not claimed: %s", kept.task_id, reason)

    def _log_deleted(self, message: Message, why: str) -> None:
        body = message.body if len(message.body) <= _LOGGED else f"{message.body[:_LOGGED]}…"
        _log.warning("%s deletes a message from %s: %s: %r", self._worker.name, self._source.inbox.url, why, body)

    async def _note_lost(self, error: Unavailable, delay: RetryDelay) -> None:
        """Log once that the queue cannot be used, and wait."""
        if not self._is_lost:
            _log.warning("%s cannot receive messages, retrying: %s", self._worker.name, error)
        self._is_lost = True
        await self._until_stopped(delay.wait())

    def _note_found(self) -> None:
        if self._is_lost:
            _log.info("%s receives messages again", self._worker.name)
        self._is_lost = False

    def leases_under_way(self) -> list[float]:
        """For each claim under way, the shortest lease that it may get in seconds; from any thread."""
        shortest = min((one.lease.default_ms for one in self._contracts.values()), default=0) / 1_000
        return [shortest] * len(self._under_way)

    async def take_over(self, source: JobSource) -> list[Job]:
        """Repeat the claims under way and take their jobs, from another thread: the same token gets the same job."""
        jobs: list[Job] = []
        for kept in list(self._under_way.values()):
            if self._under_way.pop(kept.token, None) is not None:
                with contextlib.suppress(TenureError):  # nothing was won, or the lease ends by itself
                    assert isinstance(source, MessageSource)
                    answer = await source.claim_task(kept, self._worker)
                    jobs += [answer] if isinstance(answer, Job) else []
        return jobs

    async def keep_messages(self, source: JobSource) -> None:
        """Keep the messages of all claims and held jobs hidden until cancelled; failures are logged once."""
        assert isinstance(source, MessageSource)
        is_lost = False
        while True:
            now = time.monotonic()
            due = source.inbox.due(now, self._held)
            answers = await asyncio.gather(*(source.keep(kept) for kept in due), return_exceptions=True)
            for kept, answer in zip(due, answers, strict=True):
                if answer is None:
                    kept.keep_at = source.inbox.next_keep(now)
                    continue
                if not isinstance(answer, TenureError):
                    raise answer
                kept.keep_at = time.monotonic() + source.inbox.extension_s / 10
                if not is_lost and source.inbox.get(kept.token) is not None:  # else its task has ended meanwhile
                    _log.warning("a message cannot be kept hidden, retrying; its job is safe: %s", answer)
            is_lost = any(answers) if due else is_lost
            await asyncio.sleep(TICK_S)

    def _held(self) -> dict[UUID, bool]:
        """The leases of the held jobs, and whether each is still renewed."""
        now = time.monotonic()
        return {one.held.token: now < one.heartbeats_until for one in list(self._heartbeats.held)}
