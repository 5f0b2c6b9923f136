"""The client beside the database: calls of the application and its workers, gathered into batches for the store.

There is one client for each event loop, because connections belong to the loop that opened them. Concurrent calls go in
one statement. Failures go through `AsyncTaskQueue.fail_task`, which alone decides whether and when a job runs again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tenure.client.batching import Batcher
from tenure.client.retry import retry
from tenure.contracts.declaration import Contract
from tenure.errors import ConnectionLost, JobNotFound, Refused, WaitingForParents
from tenure.jobs.claim_cursor import ClaimCursor
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Job, NewJob
from tenure.jobs.job_type import JobType
from tenure.jobs.live_worker import LiveWorker
from tenure.jobs.outcome import Enqueued, Moved
from tenure.queue import HolderReports

if TYPE_CHECKING:
    from tenure.postgres.store import Store


class DirectClient:
    """The calls of one event loop, on its own store; it listens for wake-ups at `direct_url`."""

    #: While the database is away, no process can take a lease over.
    leases_run_on = False

    def __init__(self, store: Store, direct_url: str = "") -> None:
        self.store, self.schedules, self.flows = store, store.schedules, store.flows
        self.datasets = store.datasets
        self._direct_url = direct_url
        self._plain: Batcher[NewJob, Enqueued] = Batcher(store.enqueue_many)
        # Apart from those without a key: an enqueue waits for another one with the same key.
        self._keyed: Batcher[NewJob, Enqueued] = Batcher(store.enqueue_many, at_once=4)
        # Each alone, because it may wait for another transaction; few, because each wait takes a connection.
        self._unique: Batcher[NewJob, Enqueued] = Batcher(store.enqueue_many, largest=1, at_once=4)
        self._reports = HolderReports(store)
        # Calls that the store answers as they are.
        self.cancel, self.effects, self.effect, self.undone = store.cancel, store.effects, store.effect, store.undone
        self.log, self.leave, self.takers = store.events, store.workers.leave, store.workers.takers
        self._cursors: dict[tuple[str, tuple[str, ...]], ClaimCursor] = {}

    async def close(self) -> None:
        """Wait until every call is answered, then close the connections."""
        for calls in (self._plain, self._keyed, self._unique, self._reports):
            await calls.flush()
        await self.store.close()

    def abandon(self) -> None:
        """Close the connections after their event loop was closed."""
        self.store.abandon()

    def enqueue(self, job: NewJob) -> Awaitable[Enqueued]:
        """Make a job, in one batch with concurrent enqueues; a unique job alone."""
        if job.unique is not None:
            return self._unique.ask(job)
        # A job with datasets may wait for a rollback too.
        return (self._plain if job.key is None and not job.uses_datasets else self._keyed).ask(job)

    async def prepare(self, jobs: Sequence[NewJob]) -> Callable[[], Awaitable[Sequence[Enqueued | Exception]]]:
        """Check jobs and encode them; call the result to make them: an `Enqueued` or an error for each."""
        prepared = await self.store.prepare(jobs)
        return lambda: self.store.insert_prepared(prepared)

    async def job(self, job_id: int) -> Job:
        """A job as it is now, live or finished; a node of a flow that has not started is WaitingForParents."""
        for _ in range(2):  # a node may start between the two reads
            found = await retry(lambda: self.store.jobs([job_id]), (ConnectionLost,), attempts=2)  # may be repeated
            if found:
                return found[0]
            if (waiting := await self.store.flows.find_waiting(job_id)) is not None:
                raise WaitingForParents(job_id, waiting.flow_id, waiting.node.name, waiting.node.state)
        raise JobNotFound(job_id)

    async def transition(self, job_id: int, to: str, *, reason: str | None, actor: str) -> Moved:
        """Move a job to a state of its contract, which no claim leads to."""
        moved = await self.store.transition(job_id, to, reason=reason, actor=actor)
        assert isinstance(moved, Moved)
        return moved

    async def may_work(self) -> None:
        """A process with a connection to the database may work."""

    async def declare(self, types: Sequence[JobType], *, application: str | None = None, by: str | None = None) -> bool:
        """Store the options of job types; True: a process with a connection to the database may."""
        await self.store.types.declare(types, application=application, by=by)
        return True

    async def see(self, worker: LiveWorker, *, is_new: bool) -> None:
        """Renew the row of a live worker; write it anew if `is_new` or if it is gone."""
        if is_new or await self.store.workers.see([worker]):
            await self.store.workers.enter([worker])

    async def withdraw(self, worker: LiveWorker) -> None:
        """End the stored options and schedules of the worker's application that no live worker declares."""
        if worker.application is not None:
            await self.store.types.withdraw(worker.application, worker.declares)
            await self.store.schedules.withdraw(worker.application, worker.schedules)

    async def listen(self, on_wakeup: Callable[[str, str], None]) -> None:
        """Listen for wake-ups until cancelled."""
        from tenure.postgres.listener import Listener

        await Listener(self._direct_url, on_wakeup).run()

    async def contracts(self) -> Mapping[str, Contract]:
        """Every registered contract in its newest version, with this process's numbers."""
        registered = await self.store.audit.contracts()
        return {name: contract for (name, _), contract in registered.items()}

    async def registered(self, contract: Contract) -> Mapping[str, str]:
        """Version → digest of every registered version of a contract."""
        rows = await self.store.audit.registered()
        return {version: digest for name, version, digest, _ in rows if name == contract.name}

    async def due(self, contracts: Sequence[str], worker: LiveWorker) -> list[str]:
        """Those of these contracts that have a due job of the worker's queues and types."""
        found = await self.store.due(contracts, worker.queues, types=worker.types)
        for contract in found:
            if (cursor := self._cursors.get((contract, worker.queues))) is not None:
                cursor.restart()
        return found

    async def catch_up_flows(self, until: datetime | None) -> datetime | None:
        """Go on with flows whose jobs have ended; returns None, or a time for the next call: others go on with some."""
        return await self.store.flows.catch_up(until)

    async def claim(
        self, contract: str, worker: LiveWorker, *, limit: int, claim_key: UUID, is_repeat: bool = False
    ) -> list[Job]:
        """Claim due jobs of the worker's queues and types; the same claim key again gets the same jobs."""
        from tenure.postgres.claim import Claimer

        cursor = self._cursors.setdefault((contract, worker.queues), ClaimCursor())
        declared = [one for one in worker.declares if one.contract == contract]
        # A new key has won nothing before: then a claim that finds no job writes nothing.
        claimer = Claimer(worker.name, limit, claim_key, repeats=is_repeat)
        (won,) = await self.store.claim_for_many(
            contract, worker.queues, [claimer], types=worker.types, cursor=cursor, declared=declared
        )
        if isinstance(won, Refused):
            raise won
        return won

    def call(self, verb: str, call: HolderCall) -> Awaitable[Any]:
        """Report a holder's verb for one job, in a batch with concurrent calls; failures by `fail_task`."""
        return self._reports.report(verb, call)

    async def report(self, verb: str, calls: Sequence[HolderCall]) -> list[Any]:
        """Report a holder's verb for many jobs; an answer or an error for each, in order."""
        if verb == "fail":
            return await asyncio.gather(*(self._reports.report(verb, call) for call in calls), return_exceptions=True)
        return await self.store.report(verb, calls)
