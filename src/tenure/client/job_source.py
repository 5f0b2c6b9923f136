"""What a worker needs of a client: claims, reports of its held jobs, and its row among the live workers."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from uuid import UUID

from tenure.client.dataset_calls import DatasetCalls
from tenure.contracts.declaration import Contract
from tenure.jobs.event import LogEntry
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Held, Job
from tenure.jobs.live_worker import LiveWorker
from tenure.jobs.outcome import Effect

if TYPE_CHECKING:
    from tenure.sqs.inbox import Inbox, KeptMessage
    from tenure.sqs.message_queue import Message


class JobSource(Protocol):
    """The calls of a worker. A refused call raises; a batch has an answer or an error for each job."""

    #: Other processes can take a job over while this source is away: a lease that was not renewed in time is lost.
    leases_run_on: bool

    @property
    def datasets(self) -> DatasetCalls:
        """The calls about datasets."""

    async def contracts(self) -> Mapping[str, Contract]:
        """Every registered contract by name."""

    async def due(self, contracts: Sequence[str], worker: LiveWorker) -> list[str]:
        """Those of these contracts that have a due job of the worker's queues and types."""

    async def catch_up_flows(self, until: datetime | None) -> datetime | None:
        """Go on with flows whose jobs have ended; returns None, or a time for the next call: others go on with some."""

    async def claim(
        self, contract: str, worker: LiveWorker, *, limit: int, claim_key: UUID, is_repeat: bool = False
    ) -> list[Job]:
        """Claim due jobs of the worker's queues and types; the same claim key again gets the same jobs.

        The options that the worker's code declares hold for them, not the stored ones. `is_repeat`: the answer to an
        earlier claim with this key was lost.
        """

    def call(self, verb: str, call: HolderCall) -> Awaitable[Any]:
        """Report a holder's verb for one job, in a batch with concurrent calls; Moved, Noted or None, or a refusal."""

    async def report(self, verb: str, calls: Sequence[HolderCall]) -> Sequence[Any]:
        """Report a holder's verb for many jobs; an answer or an error for each, in order."""

    async def effects(self, job_id: int) -> dict[str, Any]:
        """The nodes that have had their effect, with the result of each."""

    async def effect(self, held: Held, node: str, result: Any, *, compensable: bool) -> Effect:
        """Record the effect of a node."""

    async def undone(self, held: Held, node: str) -> None:
        """Record that the effect of a node is undone."""

    async def log(self, job_id: int) -> list[LogEntry]:
        """The log of a job."""

    async def see(self, worker: LiveWorker, *, is_new: bool) -> None:
        """Renew the row of a live worker; write it anew if `is_new`."""

    async def leave(self, worker: LiveWorker) -> None:
        """Delete the row of a worker that stops."""

    async def withdraw(self, worker: LiveWorker) -> None:
        """End the stored options and schedules of the worker's application that no live worker declares."""

    async def close(self) -> None:
        """Wait until every call is answered, then close the connections."""


@runtime_checkable
class MessageSource(JobSource, Protocol):
    """The calls of a worker that a message queue wakes; it claims the tasks that the messages name."""

    inbox: Inbox

    def read_visibility(self) -> Coroutine[Any, Any, int]:
        """For how many seconds the queue hides a message that was received; the inbox knows it from now on."""

    def receive(self, limit: int, wait_s: int) -> Coroutine[Any, Any, list[Message]]:
        """Receive messages, waiting for the first."""

    async def keep(self, kept: KeptMessage) -> None:
        """Hide a message for the queue's visibility from now on."""

    def give_back(self, message: Message) -> None:
        """Make a message visible again at once; in the background."""

    def delete(self, message: Message) -> None:
        """Delete a message; in the background."""

    async def claim_task(self, kept: KeptMessage, worker: LiveWorker) -> Job | str:
        """Claim a task by its id: the job, or why it cannot be claimed; repeated while it is not answered."""
