"""The client of a worker that a message queue wakes: document 001's own calls, through a dispatcher.

    receive ─▶ task-claim ─▶ heartbeat … ─▶ task-complete ─▶ delete the message

Progress, checkpoints, effects, hand-backs and the log go through the ordinary routes of `RemoteClient`. Every call may
be repeated after its answer was lost: a claim has its lease token as key, and the same completion gets the same answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any

from tenure.client import dispatcher_responses as responses
from tenure.client.dispatcher_responses import Body
from tenure.client.remote import RemoteClient
from tenure.client.retry import retry
from tenure.contracts.declaration import Contract
from tenure.errors import Busy, CannotConnect, ConnectionLost, NotPermitted, Refused, TenureError, Unavailable
from tenure.jobs import validation
from tenure.jobs.holder_call import HOLDER_VERBS, HolderCall
from tenure.jobs.job import Failure, Job
from tenure.jobs.live_worker import LiveWorker
from tenure.jobs.outcome import Moved, Noted
from tenure.sqs.inbox import Inbox, KeptMessage
from tenure.sqs.message_queue import Message, MessageQueues

_log = logging.getLogger("tenure.worker")

#: The document's status for each verb that completes a task.
_STATUSES = {"succeed": "Completed", "fail": "Failed", "cancelled": "Canceled"}
#: How often a claim or a delete is sent, over a few seconds, while it is not answered.
_TRIES = 6
#: How long closing waits for messages to be deleted and given back, in seconds.
_LAST_CALLS_S = 5.0
#: How long a call to the queue that keeps a message may take, in seconds.
_KEEP_S = 5.0
#: A heartbeat that takes longer than this, in seconds, keeps the answers to the others waiting no longer.
_HEARTBEAT_S = 2.0
_RETRIED = (ConnectionLost, CannotConnect, Unavailable)
#: The document takes no longer error_message; the whole text is in `error`.
_LONGEST_MESSAGE = 8_000


class SqsSource(RemoteClient):
    """The calls of one event loop; the inbox is shared with the worker's other loop."""

    def __init__(self, url: str, key: str | None, inbox: Inbox, *, max_bytes: int = validation.MAX_BYTES) -> None:
        super().__init__(url, key, max_bytes=max_bytes)
        self.inbox = inbox
        self._stack = AsyncExitStack()
        self._queues: MessageQueues
        #: The contracts whose holders report by document 001's own routes.
        self._document_001: set[str] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._settling_fails = False

    async def open(self) -> None:
        """Make the client of the message queue."""
        self._queues = await self._stack.enter_async_context(MessageQueues.open())

    async def close(self) -> None:
        """Wait until every call is answered, then close the connections."""
        await super().close()
        if self._settling:
            await asyncio.wait(self._settling, timeout=_LAST_CALLS_S)
        for task in self._settling:
            task.cancel()
        await self._stack.aclose()

    async def contracts(self) -> Mapping[str, Contract]:
        """Every registered contract in its newest version, with the dispatcher's settings."""
        found = await super().contracts()
        # The document's completion has no way to ask for the undoing of effects.
        self._document_001 = {
            name for name, one in found.items() if one.wakeup == "pointer" and one.path("compensated") is None
        }
        return found

    async def read_visibility(self) -> int:
        """For how many seconds the queue hides a message that was received; the inbox knows it from now on."""
        self.inbox.visibility_s = await self._queues.visibility_s(self.inbox.url)
        return self.inbox.visibility_s

    async def receive(self, limit: int, wait_s: int) -> list[Message]:
        """Receive messages, waiting for the first."""
        return await self._queues.receive(self.inbox.url, limit=limit, wait_s=wait_s)

    async def keep(self, kept: KeptMessage) -> None:
        """Hide a message for the queue's visibility from now on; give up a call without an answer."""
        url = self.inbox.url
        try:
            async with asyncio.timeout(_KEEP_S):
                await self._queues.keep(url, kept.message.handle, self.inbox.extension_s)
        except TimeoutError:
            raise Unavailable(f"queue {url} did not answer for {_KEEP_S:g} s") from None

    def give_back(self, message: Message) -> None:
        """Make a message visible again at once; in the background."""
        self._settle("give back", partial(self._queues.keep, self.inbox.url, message.handle, 0))

    def delete(self, message: Message) -> None:
        """Delete a message; in the background."""
        self._settle("delete", partial(self._queues.delete, self.inbox.url, message.handle))

    async def claim_task(self, kept: KeptMessage, worker: LiveWorker) -> Job | str:
        """Claim a task by its id: the job, or why it cannot be claimed; repeated while it is not answered."""
        request = {"task_id": kept.task_id, "worker_id": worker.name, "types": worker.types}
        body = validation.to_json("claim", {**request, "job": True, "datasets": False})

        def read(answer: Body) -> Job | str:
            if answer["status"] != "Claimed":
                return str(answer["reason"])
            return responses.claimed(answer)

        claimed = await retry(
            lambda: self._requests.send("POST", "/internal/task-claim", body, read, key=kept.token),
            _RETRIED, attempts=_TRIES, on_error=_raise_if_not_permitted,
        )  # fmt: skip
        if isinstance(claimed, Job):
            kept.lease_expires_at = claimed.lease_expires_at
            kept.attempt = claimed.counter if claimed.contract in self._document_001 else None
        return claimed

    def call(self, verb: str, call: HolderCall) -> Awaitable[Any]:
        """Report a holder's verb for one job; Moved, Noted or None, or a refusal."""
        return self._call(verb, call)

    async def report(self, verb: str, calls: Sequence[HolderCall]) -> list[Any]:
        """Report a holder's verb for many jobs; an answer or an error for each, in order."""
        by_document = [call for call in calls if verb in (*_STATUSES, "heartbeat") and self._kept(call) is not None]
        if not by_document:
            answers: list[Any] = await super().report(verb, calls)
            if HOLDER_VERBS[verb].ends_hold:
                self._end_messages(zip(calls, answers, strict=True))
            return answers
        tasks = [asyncio.create_task(self._call(verb, call)) for call in calls]
        try:
            await asyncio.wait(tasks, timeout=_HEARTBEAT_S if verb == "heartbeat" else None)
        finally:
            for task in tasks:
                task.cancel()
        answers = [_answer_of(answer) for answer in await asyncio.gather(*tasks, return_exceptions=True)]
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, TenureError):
                raise answer
        unanswered = [one for one in answers if isinstance(one, TenureError) and not isinstance(one, Refused)]
        if unanswered and len(unanswered) == len(answers):
            raise unanswered[0]
        if verb == "heartbeat":  # nobody knows whether these arrived: they are sent again
            return [Busy(call.held.id) if one in unanswered else one for call, one in zip(calls, answers, strict=True)]
        return answers

    async def _call(self, verb: str, call: HolderCall) -> Any:
        kept = self._kept(call)
        if kept is not None and verb == "heartbeat" and not call.blocks:
            return await self._heartbeat_task(kept, call)
        # The document's outputs are the result; what is for datasets goes by the ordinary route.
        if kept is not None and verb in _STATUSES and not (call.outputs or call.dataset_events):
            answer = await self._complete(kept, verb, call)
        elif verb == "heartbeat":
            (answer,) = await super().report(verb, [call])
            if isinstance(answer, Exception):
                raise answer
        else:
            answer = await super().call(verb, call)
        if HOLDER_VERBS[verb].ends_hold or verb in ("compensated", "compensation_failed"):
            self._end_messages([(call, answer)])
        return answer

    def _kept(self, call: HolderCall) -> KeptMessage | None:
        """The message of a task that is reported by the document's own routes."""
        kept = self.inbox.get(call.held.token)
        return None if kept is None or kept.attempt is None else kept

    async def _heartbeat_task(self, kept: KeptMessage, call: HolderCall) -> Noted:
        def read(answer: Body) -> Noted:
            ends_at, before = responses.moment(answer["lease_expires_at"]), kept.lease_expires_at
            kept.lease_expires_at = ends_at
            renewed = ends_at is not None and (before is None or ends_at > before)
            return Noted(call.held.id, ends_at, answer["cancel_requested"], renewed)

        body = validation.to_json("heartbeat", _proof(kept))
        return await self._requests.send("POST", "/internal/heartbeat", body, read, about=call.held.id)

    async def _complete(self, kept: KeptMessage, verb: str, call: HolderCall) -> Moved:
        """Complete the attempt. The same completion again gets the same answer."""
        request: dict[str, Any] = {**_proof(kept), "status": _STATUSES[verb], "events": list(call.events)}
        if isinstance(call.failure, Failure):
            request["error"] = dict(call.failure.facts())
            request["error_message"] = call.failure.message[:_LONGEST_MESSAGE]
        outputs = validation.to_json("result", call.result, self._max_bytes)
        body = f'{validation.to_json("completion", request)[:-1]},"outputs":{outputs}}}'

        def read(answer: Body) -> Moved:
            due_at = responses.moment(answer["next_retry_at"])
            trigger = "cancel" if answer["status"] == "Canceled" else "succeed"
            if answer["status"] == "Failed":
                trigger = "exhaust" if due_at is None else "retry"
            held, role = call.held, "done" if due_at is None else "waiting"
            assert kept.attempt is not None
            now = datetime.now(UTC)
            return Moved(held.id, trigger, "Running", answer["status"], role, held.claims, kept.attempt, now, due_at)

        return await self._requests.send("POST", "/internal/task-complete", body, read, about=call.held.id)

    def _end_messages(self, answered: Iterable[tuple[HolderCall, Any]]) -> None:
        """Delete the messages of tasks whose holder's part has ended; a task that is due at once keeps its message."""
        for call, answer in answered:
            if isinstance(answer, Moved) and not answer.compensate:
                message = self.inbox.take(call.held.token)
                if message is not None and answer.role == "ready":
                    self.give_back(message)
                elif message is not None:
                    self.delete(message)

    def _settle(self, what: str, call: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.create_task(self._try_settling(what, call))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _try_settling(self, what: str, call: Callable[[], Awaitable[None]]) -> None:
        try:
            await retry(call, (Unavailable,), attempts=_TRIES)
            self._settling_fails = False
        except Unavailable as error:
            if not self._settling_fails:
                _log.warning("cannot %s messages; they are received again later, which does no harm: %s", what, error)
            self._settling_fails = True


def _answer_of(answer: Any) -> Any:
    """The answer to a call; of one that was given up, that it may have arrived."""
    if isinstance(answer, asyncio.CancelledError):
        return ConnectionLost(f"the dispatcher did not answer a heartbeat for {_HEARTBEAT_S:g} s")
    return answer


def _proof(kept: KeptMessage) -> dict[str, Any]:
    """The proof of a lease in the document's words."""
    return {"task_id": kept.task_id, "attempt": kept.attempt, "lease_token": str(kept.token)}


def _raise_if_not_permitted(error: TenureError, _: int) -> None:
    if isinstance(error, NotPermitted):
        raise error
