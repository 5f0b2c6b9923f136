"""Beside the database: what the application and its workers say to PostgreSQL, gathered into batches.

One for each event loop, because connections belong to the loop that opened them. Whatever is said at the same time goes
in one statement: enqueues, starts, failures. Failures go through `AsyncTaskQueue.fail_task`, which alone
decides whether and when a job runs again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tenure.coalesce import Coalescer
from tenure.contract import Contract
from tenure.errors import ConnectionLost, JobNotFound, Refused
from tenure.event import Logged
from tenure.job import Failure, Held, Job, NewJob
from tenure.job_type import JobType
from tenure.marks import Marks
from tenure.outcome import Effect, Enqueued, Moved, Noted, Outcome
from tenure.queue import Decision, Failures
from tenure.stranger import WAITS_S, unknown

if TYPE_CHECKING:
    from tenure.postgres.store import Store


class Local:
    """The verbs of one event loop, on a store of its own; wake-ups are heard at the database's own address."""

    #: While the database is away nobody takes a lease: it alone says which one is lost.
    leases_run_on = False

    def __init__(self, store: Store, direct_url: str = "") -> None:
        self.store = store
        self._direct_url = direct_url
        self._plain: Coalescer[NewJob, Enqueued] = Coalescer(store.enqueue_many)
        # Apart: a key that two callers share is waited for, and nobody else should.
        self._keyed: Coalescer[NewJob, Enqueued] = Coalescer(store.enqueue_many, at_once=4)
        self._starts: Coalescer[Held, Moved | None] = Coalescer(store.start_many)
        self._snoozes: Coalescer[tuple[Held, int], Moved] = Coalescer(self._snooze)
        self._failures = Failures(store)
        self._marks: dict[tuple[str, tuple[str, ...]], Marks] = {}

    async def close(self) -> None:
        """Let what is under way end, then close the connections."""
        for coalescer in (self._plain, self._keyed, self._starts, self._snoozes):
            await coalescer.rest()
        await self._failures.rest()
        await self.store.close()

    def abandon(self) -> None:
        """Let the connections go without their event loop, which is closed."""
        self.store.abandon()

    def enqueue(self, job: NewJob) -> Awaitable[Enqueued]:
        """Make a job, together with those that are made at the same time."""
        return (self._plain if job.key is None else self._keyed).ask(job)

    async def prepare(self, jobs: Sequence[NewJob]) -> Callable[[], Awaitable[Sequence[Enqueued | Exception]]]:
        """Check jobs and write them out; what makes them: for each an `Enqueued`, or why there is none."""
        prepared = await self.store.prepare(jobs)
        return lambda: self.store.make(prepared)

    async def job(self, job_id: int) -> Job:
        """A job as it is now, live or finished."""
        try:
            found = await self.store.jobs([job_id])
        except ConnectionLost:  # a read may be repeated
            found = await self.store.jobs([job_id])
        if not found:
            raise JobNotFound(job_id)
        return found[0]

    async def cancel(self, job_id: int, *, mode: str, reason: str | None, actor: str) -> Moved | Noted:
        """Cancel a job: hard at once; soft at once too unless it has started, then its holder is asked to stop."""
        return await self.store.cancel(job_id, mode=mode, reason=reason, actor=actor)

    async def may_work(self) -> None:
        """Who has the database may work."""

    async def declare(self, types: Sequence[JobType]) -> bool:
        """Keep what types of jobs want otherwise than their contracts; who has the database may."""
        await self.store.types.declare(types)
        return True

    async def listen(self, heard: Callable[[str, str], None]) -> None:
        """Hear wake-ups until cancelled."""
        from tenure.postgres.listen import Listener

        await Listener(self._direct_url, heard).run()

    async def contracts(self) -> Mapping[str, Contract]:
        """Every registered contract in its newest version, with this process's numbers."""
        registered = await self.store.audit.contracts()
        return {name: contract for (name, _), contract in registered.items()}

    async def due(self, contracts: Sequence[str], queues: Sequence[str]) -> list[str]:
        """Which of these contracts have something to claim from these queues now."""
        found = await self.store.due(contracts, queues)
        for contract in found:
            if (marks := self._marks.get((contract, tuple(queues)))) is not None:
                marks.anew()
        return found

    async def claim(
        self,
        contract: str,
        queues: Sequence[str],
        *,
        worker: str,
        limit: int,
        claim_key: UUID,
        types: Sequence[str] | None = None,
    ) -> list[Job]:
        """Take due jobs, of these types or of any; asked again with the same key, the same ones."""
        marks = self._marks.setdefault((contract, tuple(queues)), Marks())
        return await self.store.claim(
            contract, queues, worker=worker, limit=limit, claim_key=claim_key, types=types, marks=marks
        )

    async def strangers(
        self, contracts: Sequence[str], queues: Sequence[str], known: Sequence[str], *, worker: str
    ) -> list[tuple[int, str]]:
        """Due jobs of types that are not known here, id and type, and that nobody works on.

        Those that waited an hour for somebody are ended.
        """
        found = [one for one in await self.store.strangers(contracts, queues, known) if not one.is_known]
        for one in found:
            if one.waited_s > WAITS_S:
                await self._end_stranger(one.id, one.type, one.contract, worker)
        return [(one.id, one.type) for one in found if one.waited_s <= WAITS_S]

    async def _end_stranger(self, job_id: int, kind: str, contract: str, worker: str) -> None:
        (job,) = await self.store.claim_by_id([job_id], worker=worker, contract=contract)
        if isinstance(job, Job):
            await self.store.start(job.held)
            await self.fail(job.held, unknown(kind))

    def start(self, held: Held) -> Awaitable[Moved | None]:
        """Say that the handler begins; None under a contract without that step."""
        return self._starts.ask(held)

    async def succeed(self, held: Sequence[Held], results: Sequence[Any]) -> list[Outcome]:
        """End jobs well, each with its result."""
        return await self.store.succeed_many(held, results)

    async def fail(self, held: Held, failure: Failure) -> Decision:
        """Report a failure to the queue, which decides."""
        return await self._failures.report(held, failure)

    def snooze(self, held: Held, delay_ms: int) -> Awaitable[Moved]:
        """Put a job off."""
        return self._snoozes.ask((held, delay_ms))

    async def hand_back(self, held: Sequence[Held], delay_ms: int, reason: str | None) -> list[Moved | Noted | Refused]:
        """Give jobs back unfinished, each its contract's way."""
        return await self.store.hand_back_many(held, [delay_ms] * len(held), [reason] * len(held))

    async def cancelled(self, held: Held, reason: str | None) -> Moved:
        """End a job as cancelled."""
        return await self.store.cancelled(held, reason)

    async def heartbeat(self, held: Sequence[Held]) -> list[Noted | Refused]:
        """Say that the work goes on."""
        return await self.store.heartbeat_many(held)

    async def progress(self, held: Held, value: Any) -> Noted:
        """Show how far the work is."""
        return await self.store.progress(held, value)

    async def checkpoint(self, held: Held, value: Any) -> Noted:
        """Save what the next attempt shall begin with."""
        return await self.store.checkpoint(held, value)

    async def effects(self, job_id: int) -> dict[str, Any]:
        """The nodes of a job that have had their effect, with what came of each."""
        return await self.store.effects(job_id)

    async def effect(self, held: Held, node: str, result: Any, *, compensable: bool) -> Effect:
        """Record that a node has had its effect."""
        return await self.store.effect(held, node, result, compensable=compensable)

    async def undone(self, held: Held, node: str) -> None:
        """Record that a node's effect is undone."""
        await self.store.undone(held, node)

    async def compensated(self, held: Held) -> Moved:
        """End a job whose effects are undone."""
        return await self.store.compensated(held)

    async def compensation_failed(self, held: Held, failure: Failure) -> Moved:
        """Set a job aside whose effects could not be undone."""
        return await self.store.compensation_failed(held, failure)

    async def log(self, job_id: int) -> list[Logged]:
        """What happened to a job so far."""
        return await self.store.events(job_id)

    async def _snooze(self, put_off: Sequence[tuple[Held, int]]) -> list[Outcome]:
        return await self.store.snooze_many([held for held, _ in put_off], [delay for _, delay in put_off])
