"""The store: every verb of the kernel on a pool of connections.

Batch verbs answer per job with what became of it or a refusal; their single forms raise the refusal. A verb that met a
deadlock is run again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID, uuid4

from tenure import intake
from tenure.contract import Contract
from tenure.errors import Refused, StaleLease, TenureError
from tenure.event import Logged
from tenure.job import Failure, Held, Job, NewJob
from tenure.marks import Marks
from tenure.outcome import Effect, Enqueued, Moved, Noted, Outcome
from tenure.postgres import claiming, holding, operators, verbs
from tenure.postgres.audit import Audit
from tenure.postgres.claiming import Claimer, Stranger, Working
from tenure.postgres.engine import Engine, ask
from tenure.postgres.history import History
from tenure.postgres.holding import Keys, one_key
from tenure.postgres.keys import Keys as ApiKeys
from tenure.postgres.letters import Letters
from tenure.postgres.listing import Page, find, tally
from tenure.postgres.machine import Machine
from tenure.postgres.making import Prepared, make, prepare
from tenure.postgres.queues import Queues
from tenure.postgres.reading import Look, looked, records, steadily
from tenure.postgres.statement import Plan
from tenure.postgres.types import Types
from tenure.postgres.watch import Watch
from tenure.search import Search

T = TypeVar("T")


class Store:
    """The kernel's verbs; made by `Store.connect` or, around a block, `Store.open`."""

    def __init__(self, engine: Engine, max_bytes: int = intake.MAX_BYTES) -> None:
        self._engine = engine
        self._max_bytes = max_bytes
        self.letters = Letters(engine)
        self.keys = ApiKeys(engine)
        self.types = Types(engine)
        self.queues = Queues(engine)
        self.history = History(engine)
        self.audit = Audit(engine)
        self.watch = Watch(engine)

    @classmethod
    async def connect(
        cls,
        dsn: str,
        *,
        numbers: Mapping[str, Mapping[str, int]] | None = None,
        max_bytes: int = intake.MAX_BYTES,
        connections: int = 4,
        wake: bool = True,
        patience_s: float = 10.0,
    ) -> Store:
        """Connect, or say why not; `numbers` are this process's settings per contract. Close it when done.

        With `wake`, listeners are told of jobs that can be claimed, after they are committed. A call waits so long for
        a connection at the most.
        """
        return cls(await Engine.connect(dsn, numbers, connections, wake=wake, patience_s=patience_s), max_bytes)

    async def close(self) -> None:
        """Close the connections."""
        await self._engine.close()

    def abandon(self) -> None:
        """Close the connections without their event loop, which is closed."""
        self._engine.abandon()

    @classmethod
    @asynccontextmanager
    async def open(cls, dsn: str, **options: Any) -> AsyncIterator[Store]:
        """`connect` and `close` around a block."""
        store = await cls.connect(dsn, **options)
        try:
            yield store
        finally:
            await store.close()

    async def enqueue(self, job: NewJob, *, created_by: str | None = None) -> Enqueued:
        """Make a job; with a key, at most once."""
        return _only(await self.enqueue_many([job], created_by=created_by))

    async def enqueue_many(self, jobs: Sequence[NewJob], *, created_by: str | None = None) -> list[Enqueued | Refused]:
        """Make jobs, a statement per contract; answers in the order asked."""
        return await self.make(await self.prepare(jobs, created_by=created_by))

    async def prepare(self, jobs: Sequence[NewJob], *, created_by: str | None = None) -> Prepared:
        """Check jobs and write them out, so that `make` has nothing left to do but to make them."""
        return await prepare(self._engine, jobs, self._max_bytes, created_by)

    async def make(self, prepared: Prepared) -> list[Enqueued | Refused]:
        """Make the jobs that were prepared, once; answers in the order asked."""
        return await make(self._engine, prepared)

    async def due(self, contracts: Sequence[str], queues: Sequence[str], *, tenant: str | None = None) -> list[str]:
        """Which of these contracts have something to claim from these queues now; a hint, which locks nothing."""
        return await claiming.due(self._engine, contracts, queues, tenant)

    async def strangers(self, contracts: Sequence[str], queues: Sequence[str], known: Sequence[str]) -> list[Stranger]:
        """Jobs of these contracts and queues that are due, of other types than these; locks nothing."""
        return await claiming.strangers(self._engine, contracts, queues, known)

    async def claim(
        self,
        contract: str = "standard",
        queues: Sequence[str] = ("default",),
        *,
        worker: str,
        limit: int = 1,
        claim_key: UUID | str | None = None,
        lease_ms: int | None = None,
        types: Sequence[str] | None = None,
        tenant: str | None = None,
        marks: Marks | None = None,
    ) -> list[Job]:
        """Take due jobs, of these types or of any; with marks, which are one caller's, beginning where it last ended.

        The same claim key again: the same jobs, while they are held, else a stale lease.
        """
        claimer = Claimer(worker, limit, claim_key)
        return _only(
            await claiming.claim(
                self._engine, contract, queues, [claimer], types=types, tenant=tenant, lease_ms=lease_ms, marks=marks
            )
        )

    async def claim_together(
        self,
        contract: str,
        queues: Sequence[str],
        claimers: Sequence[Claimer],
        *,
        types: Sequence[str] | None = None,
        tenant: str | None = None,
        marks: Marks | None = None,
    ) -> list[list[Job] | Refused]:
        """Take due jobs for callers who ask at the same time, with keys that differ; what each of them got."""
        return await claiming.claim(self._engine, contract, queues, claimers, types=types, tenant=tenant, marks=marks)

    async def claim_by_id(
        self,
        ids: Sequence[int],
        *,
        worker: str,
        contract: str = "standard",
        claim_key: UUID | str | None = None,
        lease_ms: int | None = None,
    ) -> list[Job | Refused]:
        """Take these jobs, or say of each why not."""
        claimers = [Claimer(worker, 1, uuid4() if claim_key is None else claim_key, claim_key is not None)] * len(ids)
        return await claiming.claim_by_id(self._engine, contract, ids, claimers, lease_ms=lease_ms)

    async def claim_each(
        self, contract: str, ids: Sequence[int], claimers: Sequence[Claimer], *, skip_locked: bool = False
    ) -> list[Job | Refused]:
        """Take these jobs, each for a claimer of its own, or say of each why not; locked ones can be skipped: Busy."""
        return await claiming.claim_by_id(self._engine, contract, ids, claimers, skip_locked=skip_locked)

    async def claim_one_job(
        self,
        worker: str,
        *,
        queues: Sequence[str] = ("default",),
        contract: str = "reliability",
        claim_key: UUID | str | None = None,
        job_id: int | None = None,
    ) -> Job | None:
        """Take one job that is due, or this one; None when none is. The same worker and key again: the same job."""
        if job_id is None:
            jobs = await self.claim(contract, queues, worker=worker, claim_key=claim_key)
        else:
            jobs = [_only(await self.claim_by_id([job_id], worker=worker, contract=contract, claim_key=claim_key))]
        for job in jobs:
            if job.lease_owner != worker:  # the key is another worker's, and so is what it won
                raise StaleLease(job.id, held_by=job.lease_owner, since=job.started_at)
        return jobs[0] if jobs else None

    async def start(self, held: Held, *, key: str | None = None) -> Moved | None:
        """Say that the handler begins; None under a contract without that step."""
        return _raised((await self.start_many([held], keys=one_key(key)))[0])

    async def start_many(self, held: Sequence[Held], *, keys: Keys = None) -> list[Outcome | None]:
        """Say that these handlers begin."""
        return await holding.start(self._engine, held, keys)

    async def succeed(self, held: Held, result: Any = None, *, key: str | None = None) -> Moved:
        """End a job well, with its result."""
        return _only(await self.succeed_many([held], [result], keys=one_key(key)))

    async def succeed_many(
        self, held: Sequence[Held], results: Sequence[Any] | None = None, *, keys: Keys = None
    ) -> list[Outcome]:
        """End jobs well."""
        return await holding.succeed(self._engine, held, results, keys, self._max_bytes)

    async def fail(self, held: Held, failure: Failure | BaseException, *, key: str | None = None) -> Moved:
        """Report a failure; the answer says whether and when the job runs again, or which effects to undo first."""
        return _only(await self.fail_many([held], [failure], keys=one_key(key)))

    async def fail_many(
        self, held: Sequence[Held], failures: Sequence[Failure | BaseException], *, keys: Keys = None
    ) -> list[Outcome]:
        """Report failures, as such or as the exceptions that were raised."""
        return await holding.fail(self._engine, held, failures, keys, self._max_bytes)

    async def report(
        self,
        verb: str,
        held: Held,
        events: Sequence[Any],
        *,
        result: Any = None,
        failure: Failure | None = None,
        key: str | None = None,
    ) -> Moved:
        """End a held job by succeed, fail or cancel, and keep the events that its holder reports: both, or neither."""
        outcomes = await holding.report(
            self._engine, verb, held, events, result=result, failure=failure, key=key, max_bytes=self._max_bytes
        )
        return _only(outcomes)

    async def compensated(self, held: Held, *, key: str | None = None) -> Moved:
        """The effects that a failure named are undone: the job ends as it failed."""
        return _only(await holding.compensated(self._engine, held, key))

    async def compensation_failed(
        self, held: Held, failure: Failure | BaseException, *, key: str | None = None
    ) -> Moved:
        """The effects could not be undone: the job is set aside for a person to look at."""
        return _only(await holding.compensation_failed(self._engine, held, failure, key, self._max_bytes))

    async def heartbeat(self, held: Held, *, key: str | None = None) -> Noted:
        """Say that the work goes on; the lease is renewed when half of it is gone. Says whether to stop."""
        return _only(await holding.note(self._engine, "heartbeat", [held], keys=one_key(key), skip_locked=True))

    async def heartbeat_many(self, held: Sequence[Held]) -> list[Noted | Refused]:
        """Say that the work goes on; a job that somebody is moving right now is Busy, not lost."""
        return await holding.note(self._engine, "heartbeat", held, skip_locked=True)

    async def progress(self, held: Held, value: Any) -> Noted:
        """Show how far the work is."""
        text = intake.document("progress", value, self._max_bytes)
        return _only(await holding.note(self._engine, "progress", [held], [text]))

    async def checkpoint(self, held: Held, value: Any) -> Noted:
        """Save what the next attempt shall begin with."""
        text = intake.document("checkpoint", value, self._max_bytes)
        return _only(await holding.note(self._engine, "checkpoint", [held], [text]))

    async def effect(self, held: Held, node: str, result: Any = None, *, compensable: bool = False) -> Effect:
        """Record that a node has had its effect, under the lease: once per job, over all attempts."""
        return _only(
            await holding.effect(self._engine, held, node, result, compensable=compensable, max_bytes=self._max_bytes)
        )

    async def undone(self, held: Held, node: str) -> None:
        """Record that a node's effect is undone; whoever goes on after a crash is not told of it again."""
        _only(await holding.undone(self._engine, held, node))

    async def effects(self, job_id: int) -> dict[str, Any]:
        """The nodes of a job that have had their effect, newest first, with what came of each."""
        return await holding.effects(self._engine, job_id)

    async def snooze(self, held: Held, delay_ms: int, *, key: str | None = None) -> Moved:
        """Put the job off, at no cost to its budget."""
        return _only(await self.snooze_many([held], [delay_ms], keys=one_key(key)))

    async def snooze_many(self, held: Sequence[Held], delays_ms: Sequence[int], *, keys: Keys = None) -> list[Outcome]:
        """Put jobs off."""
        return await holding.snooze(self._engine, held, delays_ms, keys)

    async def hand_back(
        self, held: Held, delay_ms: int = 0, *, reason: str | None = None, key: str | None = None
    ) -> Moved | Noted:
        """Give the job back unfinished, the contract's way."""
        (answer,) = await self.hand_back_many([held], [delay_ms], [reason], keys=one_key(key))
        return _either(answer)

    async def hand_back_many(
        self,
        held: Sequence[Held],
        delays_ms: Sequence[int] | None = None,
        reasons: Sequence[str | None] | None = None,
        *,
        keys: Keys = None,
    ) -> list[Moved | Noted | Refused]:
        """Give jobs back: by the contract's own path, with the reason, else as if their leases had run out."""
        delays, why = delays_ms or [0] * len(held), reasons or [None] * len(held)
        return await holding.hand_back(self._engine, held, delays, why, keys)

    async def cancelled(self, held: Held, reason: str | None = None, *, key: str | None = None) -> Moved:
        """End the job as cancelled, by its holder: because it was asked to stop, or chose to."""
        return _only(await self.cancelled_many([held], [reason], keys=one_key(key)))

    async def cancelled_many(
        self, held: Sequence[Held], reasons: Sequence[str | None] | None = None, *, keys: Keys = None
    ) -> list[Outcome]:
        """End jobs as cancelled, by their holders."""
        return await holding.cancelled(self._engine, held, reasons or [None] * len(held), keys)

    async def cancel(
        self,
        job_id: int,
        *,
        mode: str = "soft",
        reason: str | None = None,
        actor: str = "unknown",
        key: str | None = None,
    ) -> Moved | Noted:
        """Cancel a job: hard at once; soft at once too unless it has started, then its holder is asked to stop."""
        (answer,) = await operators.cancel(self._engine, [job_id], mode=mode, reason=reason, actor=actor, key=key)
        return _either(answer)

    async def cancel_many(
        self, ids: Sequence[int], *, mode: str = "soft", reason: str | None = None, actor: str = "unknown"
    ) -> list[Moved | Noted | Refused]:
        """Cancel jobs of any contracts."""
        return await operators.cancel(self._engine, ids, mode=mode, reason=reason, actor=actor)

    async def transition(
        self, job_id: int, to: str, *, reason: str | None = None, actor: str = "unknown", key: str | None = None
    ) -> Moved | Job:
        """Make the hop to a state by its trigger's own path and guards; refused where the contract has none."""
        return await operators.transition(
            self._engine, job_id, to, reason=reason, actor=actor, key=key, claim=self.claim_by_id
        )

    async def dead_letter(
        self,
        job_id: int,
        *,
        reason_code: str,
        stage: str | None = None,
        message: str = "",
        actor: str = "unknown",
        key: str | None = None,
    ) -> Moved:
        """Set a job aside, by an operator or a policy, with its reason."""
        return _only(
            await operators.dead_letter(
                self._engine, job_id, reason_code=reason_code, stage=stage, message=message, actor=actor, key=key,
                max_bytes=self._max_bytes,
            )
        )  # fmt: skip

    async def hasten(self, job_id: int) -> None:
        """Make a ready job due now, whatever it waits for."""
        intake.whole("id", job_id, 1, intake.MAX_ID)
        await self._engine.run(lambda: ask("hasten", {"id": job_id}))

    async def requeue(self, job_id: int, *, actor: str, key: str | None = None) -> int:
        """Run a finished job again as a new one, linked both ways: the new job's id."""
        return await operators.requeue(self._engine, self.letters, job_id, actor=actor, key=key)

    async def reruns(self, job_id: int) -> tuple[int | None, int | None]:
        """Which job this one was run again as, and which one it runs again."""
        intake.whole("id", job_id, 1, intake.MAX_ID)
        ((again, origin),) = await self._engine.run(lambda: ask("reruns", {"id": job_id}))
        return again, origin

    async def publish(self, on: bool) -> None:
        """Whether jobs of contracts that wake workers write their wake-ups to the outbox, from now on, everywhere."""
        await self._engine.run(lambda: ask("publishing", {"on": on}))

    async def reap(
        self, contract: str, limit: int = 1000, *, until: datetime | None = None, jumped: datetime | None = None
    ) -> list[Outcome]:
        """Close leases that ran out; none once the clock is past `until`, nor in the first lease after it `jumped`."""
        return await self._upkeep(
            contract, limit, lambda machine, limit: verbs.reap(machine, limit, until=until, jumped=jumped)
        )

    async def promote(self, contract: str, limit: int = 1000) -> list[Outcome]:
        """Make this contract's waiting jobs ready whose time has come."""
        outcomes = await self._upkeep(contract, limit, verbs.promote)
        if any(isinstance(outcome, Moved) and outcome.role == "ready" for outcome in outcomes):
            self._engine.wakeups.want([(contract, "")])
        return outcomes

    async def settle(self, contract: str, limit: int = 1000) -> list[Outcome]:
        """End this contract's jobs that a crash left at a commit point, all of them, so many at a time."""
        return await self._upkeep(contract, limit, verbs.settle)

    async def contracts(self) -> list[str]:
        """The names of the registered contracts."""
        await self._engine.run(self._engine.registry.load)
        return [contract.name for contract in self._engine.registry.contracts()]

    async def contract(self, name: str, version: str | None = None) -> Contract:
        """A registered contract, by default its newest version, with this process's numbers."""
        return (await self._engine.machine(name, version)).contract

    async def kinds(self, ids: Sequence[int]) -> list[tuple[int, str, str, str]]:
        """Of each of these jobs, live or finished, what never changes: id, contract, version, tenant."""
        rows = await self._engine.run(lambda: ask("contracts_of", {"ids": list(ids)}))
        return [(job_id, contract, version, tenant) for job_id, contract, version, tenant in rows]

    async def extend_ranges(self, ahead: int = 4) -> int:
        """Make id ranges ahead; how many were made."""
        return await self._engine.extend_ranges(intake.whole("ahead", ahead, 1, 64))

    async def jobs(self, ids: Sequence[int]) -> list[Job]:
        """These jobs as they are now, live or finished; unknown ids are left out."""
        if not self._engine.registry.installation:
            await self._engine.run(self._engine.registry.load)
        return [self._engine.job(row) for row in await self._engine.run(lambda: ask("jobs", {"ids": list(ids)}))]

    async def look(self, job_id: int) -> Look:
        """A job and what there is to know about it, all of one moment."""
        intake.whole("id", job_id, 1, intake.MAX_ID)
        return await self._engine.run(lambda: steadily(looked(job_id, self._engine.registry)))

    async def records(self, contract: str, ids: Sequence[int]) -> dict[int, Mapping[str, Any]]:
        """The rows of these jobs in their contract's own view; none where it shows no jobs."""
        machine = await self._engine.machine(contract)
        return await self._engine.run(lambda: records(machine.contract, ids))

    async def tally(self) -> list[tuple[str, str, str, int]]:
        """How many jobs there are: contract, state, role, number. It reads every job, so it is for small databases."""
        return await tally(self._engine)

    async def find(
        self,
        *,
        state: str | None = None,
        type: str | None = None,
        queue: str | None = None,
        tenant_id: str | None = None,
        contract: str | None = None,
        older_s: float | None = None,
        younger_s: float | None = None,
        limit: int = 50,
        after: int | None = None,
    ) -> Page:
        """Jobs that match, live or finished, newest first; `after` is where an earlier page ended."""
        wanted = Search(state, type, queue, tenant_id, contract, older_s, younger_s)
        return await find(self._engine, wanted, limit=limit, after=after)

    async def workers(self, limit: int = 1_000) -> list[Working]:
        """Who holds jobs now, by name."""
        rows = await self._engine.run(lambda: ask("workers", {"limit": limit}))
        return [Working._make(row) for row in rows]

    async def events(self, job_id: int, *, after: int = 0, limit: int | None = None) -> list[Logged]:
        """The log of one job, in order; of a long one a part, after the row of this number."""
        intake.whole("id", job_id, 1, intake.MAX_ID)
        rows = await self._engine.run(lambda: ask("events", {"id": job_id, "after": after, "limit": limit}))
        return [Logged(*row) for row in rows]

    async def _upkeep(
        self, contract: str, limit: int, plan: Callable[[Machine, int], Plan[list[Outcome]]]
    ) -> list[Outcome]:
        """Run a round for every version of a contract, also for one that was registered a moment ago."""
        intake.whole("limit", limit, 1, intake.MAX_BATCH)
        await self._engine.run(self._engine.registry.load)
        await self._engine.machine(contract)
        outcomes: list[Outcome] = []
        for machine in self._engine.registry.versions(contract):
            outcomes += await self._engine.run(lambda machine=machine: plan(machine, limit))  # type: ignore[misc]
        return outcomes


def _only(outcomes: Iterable[T | Refused]) -> T:
    return _raised(next(iter(outcomes)))


def _raised(outcome: T | Refused) -> T:
    if isinstance(outcome, TenureError):
        raise outcome
    return outcome


def _either(answer: Moved | Noted | Refused) -> Moved | Noted:
    if isinstance(answer, Refused):
        raise answer
    return answer
