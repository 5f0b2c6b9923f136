"""The store: every verb of the kernel on a pool of connections.

Batch verbs answer per job with what became of it or a refusal; their single forms raise the refusal. A verb that met a
deadlock is run again; a batch that met a lock timeout is tried job by job, so nobody's open transaction stalls its
neighbours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import UUID, uuid4

import psycopg
from psycopg_pool import AsyncConnectionPool

from tenure import intake
from tenure.contract import Contract
from tenure.errors import BadInput, Busy, ConnectionLost, Refused, TenureError
from tenure.event import Logged
from tenure.job import Failure, Held, Job, NewJob
from tenure.outcome import Enqueued, Moved, Outcome
from tenure.postgres import verbs
from tenure.postgres.connect import connecting, engine_dsn, our_errors
from tenure.postgres.enqueue import Order, enqueue
from tenure.postgres.gate import Batch, of
from tenure.postgres.machine import Machine
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Atomic, Plan, Row, run, statement
from tenure.postgres.verbs import Taking

T = TypeVar("T")
Pool = AsyncConnectionPool[psycopg.AsyncConnection[Any]]
_DEADLOCK_TRIES = 5


class Store:
    """The kernel's verbs; made by `Store.connect` or, around a block, `Store.open`."""

    def __init__(self, pool: Pool, registry: Registry, max_bytes: int = intake.MAX_BYTES) -> None:
        self._pool = pool
        self._registry = registry
        self._max_bytes = max_bytes

    @classmethod
    async def connect(
        cls,
        dsn: str,
        *,
        numbers: Mapping[str, Mapping[str, int]] | None = None,
        max_bytes: int = intake.MAX_BYTES,
        connections: int = 4,
    ) -> Store:
        """Connect, or say why not; `numbers` are this process's settings per contract. Close it when done."""
        address = engine_dsn(dsn)
        with connecting():  # a pool would try for long, and not say why
            await (await psycopg.AsyncConnection.connect(address)).close()
        pool: Pool = AsyncConnectionPool(
            address, min_size=1, max_size=connections, open=False, timeout=10, kwargs={"autocommit": True}
        )
        await pool.open()
        return cls(pool, Registry(numbers), max_bytes)

    async def close(self) -> None:
        """Close the connections."""
        await self._pool.close()

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
        if created_by is not None:
            intake.name("created_by", created_by)
        groups: dict[tuple[str, str | None], list[int]] = {}
        for n, job in enumerate(jobs):
            if not isinstance(job, NewJob):
                raise BadInput(f"job {n + 1} of {len(jobs)}: give a NewJob, not {job!r}")
            groups.setdefault((job.contract, job.version), []).append(n)
        orders = []
        for group, places in groups.items():  # every job is checked before any is written
            machine = await self._machine(*group)
            checked = [self._checked(machine.contract, jobs, n) for n in places]
            orders.append(Order(machine, [jobs[n] for n in places], checked))
        answers: list[Any] = [None] * len(jobs)
        made = await self._extending(lambda: enqueue(orders, created_by)) if orders else []
        for places, part in zip(groups.values(), made, strict=True):
            for n, answer in zip(places, part, strict=True):
                answers[n] = answer
        return answers

    def _checked(self, contract: Contract, jobs: Sequence[NewJob], n: int) -> tuple[str, int]:
        try:
            return intake.new_job(contract, jobs[n], self._max_bytes)
        except BadInput as error:
            if len(jobs) == 1:
                raise
            raise type(error)(f"job {n + 1} of {len(jobs)}: {error}") from None

    async def _extending(self, plan: Callable[[], Plan[T]]) -> T:
        """No id exists beyond the ranges: at their end, make more, then ask again."""
        try:
            return await self._run(plan)
        except psycopg.errors.SequenceGeneratorLimitExceeded:
            await self.extend_ranges()
            return await self._run(plan)

    async def claim(
        self,
        contract: str = "standard",
        queues: Sequence[str] = ("default",),
        *,
        worker: str,
        limit: int = 1,
        claim_key: UUID | str | None = None,
        lease_ms: int | None = None,
    ) -> list[Job]:
        """Take due jobs. The same claim key again: the same jobs, while they are held, else a stale lease."""
        if isinstance(queues, str) or not queues:
            raise BadInput(f"name at least one queue, in a list of queues, not {queues!r}")
        for queue in queues:
            intake.name("queue", queue)
        intake.whole("limit", limit, 1, intake.MAX_BATCH)
        versions, taking = await self._taking(contract, worker, claim_key, lease_ms)
        return await self._run(lambda: verbs.claim(versions, queues, limit, taking, self._job))

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
        intake.whole("number of ids", len(ids), 0, intake.MAX_BATCH)
        for job_id in ids:
            intake.whole("id", job_id, 1, intake.MAX_ID)
        versions, taking = await self._taking(contract, worker, claim_key, lease_ms)
        return await self._run(lambda: verbs.claim_by_id(versions, ids, taking, self._job))

    async def _taking(
        self, contract: str, worker: str, claim_key: UUID | str | None, lease_ms: int | None
    ) -> tuple[list[Machine], Taking]:
        machine = await self._machine(contract)
        taking = Taking(
            key=uuid4() if claim_key is None else intake.token(claim_key),
            worker=intake.name("worker", worker),
            lease_ms=intake.lease_ms(machine.contract, lease_ms),
            repeatable=claim_key is not None,
        )
        return self._registry.versions(contract), taking

    async def start(self, held: Held) -> Moved | None:
        """Say that the handler begins; None under a contract without that step."""
        outcome = (await self.start_many([held]))[0]
        return outcome if outcome is None else _raised(outcome)

    async def start_many(self, held: Sequence[Held]) -> list[Outcome | None]:
        """Say that these handlers begin."""

        async def start(machine: Machine, part: Sequence[int]) -> Sequence[Outcome | None]:
            if machine.contract.path("start") is None:
                return [None] * len(part)
            return await self._finish(machine, "start", of([held[n] for n in part]))

        return await self._by_contract(held, start)

    async def succeed(self, held: Held, result: Any = None) -> Moved:
        """End a job well, with its result."""
        return _only(await self.succeed_many([held], [result]))

    async def succeed_many(self, held: Sequence[Held], results: Sequence[Any] | None = None) -> list[Outcome]:
        """End jobs well."""
        _same_length(held, results, "results")
        texts = None if results is None else [self._result(result) for result in results]

        async def succeed(machine: Machine, part: Sequence[int]) -> list[Outcome]:
            batch = of([held[n] for n in part])
            batch.results = None if texts is None else [texts[n] for n in part]
            return await self._finish(machine, "succeed", batch)

        return await self._by_contract(held, succeed)

    async def fail(self, held: Held, failure: Failure | BaseException) -> Moved:
        """Report a failure; the answer says whether and when the job runs again."""
        return _only(await self.fail_many([held], [failure]))

    async def fail_many(self, held: Sequence[Held], failures: Sequence[Failure | BaseException]) -> list[Outcome]:
        """Report failures, as such or as the exceptions that were raised."""
        _same_length(held, failures, "failures")
        facts = [_failure(failure) for failure in failures]

        async def fail(machine: Machine, part: Sequence[int]) -> list[Outcome]:
            mine, told = [held[n] for n in part], [facts[n] for n in part]
            return await self._finish(machine, "fail", verbs.failures(machine, mine, told, self._max_bytes))

        return await self._by_contract(held, fail)

    async def reap(self, contract: str, limit: int = 1000) -> list[Outcome]:
        """Close the leases of this contract that ran out."""
        return await self._upkeep(contract, limit, verbs.reap)

    async def promote(self, contract: str, limit: int = 1000) -> list[Outcome]:
        """Make this contract's waiting jobs ready whose time has come."""
        return await self._upkeep(contract, limit, verbs.promote)

    async def settle(self, contract: str, limit: int = 1000) -> list[Outcome]:
        """End this contract's jobs that a crash left at a commit point."""
        return await self._upkeep(contract, limit, verbs.settle)

    async def extend_ranges(self, ahead: int = 4) -> int:
        """Make id ranges ahead; how many were made."""
        rows = await self._run(lambda: _ask("extend_ranges", {"ahead": ahead}))
        return int(rows[0][0])

    async def jobs(self, ids: Sequence[int]) -> list[Job]:
        """These jobs as they are now, live or finished; unknown ids are left out."""
        if not self._registry.installation:
            await self._run(self._registry.load)
        return [self._job(row) for row in await self._run(lambda: _ask("jobs", {"ids": list(ids)}))]

    async def events(self, job_id: int) -> list[Logged]:
        """The log of one job, in order."""
        intake.whole("id", job_id, 1, intake.MAX_ID)
        return [Logged(*row) for row in await self._run(lambda: _ask("events", {"id": job_id}))]

    async def agreement(self) -> tuple[int, int, int, int]:
        """How many jobs and hops there are, how many links of the log are broken, how many rows disagree with it."""
        ((jobs, hops, broken, disagreeing),) = await self._run(_agreement)
        return jobs, hops, broken, disagreeing

    async def _upkeep(
        self, contract: str, limit: int, plan: Callable[[Machine, int], Plan[list[Outcome]]]
    ) -> list[Outcome]:
        """Run a round for every version of a contract, also for one that was registered a moment ago."""
        intake.whole("limit", limit, 1, intake.MAX_BATCH)
        await self._run(self._registry.load)
        await self._machine(contract)
        outcomes: list[Outcome] = []
        for machine in self._registry.versions(contract):
            outcomes += await self._run(lambda machine=machine: plan(machine, limit))  # type: ignore[misc]
        return outcomes

    async def _finish(self, machine: Machine, verb: str, batch: Batch) -> list[Outcome]:
        try:
            return await self._run(lambda: verbs.finish(machine, verb, batch))
        except Busy:
            # Somebody's open transaction keeps a row: go on without it, so that its neighbours need not wait.
            return await self._run(lambda: verbs.finish(machine, verb, batch, skip_locked=True))

    async def _by_contract(
        self, held: Sequence[Held], finish: Callable[[Machine, Sequence[int]], Awaitable[Sequence[Any]]]
    ) -> list[Any]:
        """Send each contract's jobs in a batch of their own; answers in the order asked."""
        intake.whole("number of jobs", len(held), 0, intake.MAX_BATCH)
        groups: dict[tuple[str, str], list[int]] = {}
        for n, one in enumerate(held):
            if not isinstance(one, Held):
                raise BadInput(f"give what a claim gave, job.held, not a {type(one).__name__}")
            if not (type(one.token) is UUID and 0 < one.id <= intake.MAX_ID and 0 <= one.claims <= intake.MAX_CLAIMS):
                intake.held(one)
            groups.setdefault((one.contract, one.version), []).append(n)
        answers: list[Any] = [None] * len(held)
        for (name, version), part in groups.items():
            for n, answer in zip(part, await finish(await self._machine(name, version), part), strict=True):
                answers[n] = answer
        return answers

    def _result(self, value: Any) -> str | None:
        return None if value is None else intake.document("result", value, self._max_bytes)

    async def _machine(self, name: str, version: str | None = None) -> Machine:
        found = self._registry.find(name, version)
        return found if found is not None else await self._run(lambda: self._registry.machine(name, version))

    async def _run(self, plan: Callable[[], Plan[T]]) -> T:
        for turn in range(_DEADLOCK_TRIES):
            try:
                with our_errors():
                    async with self._pool.connection() as connection:
                        return await run(connection, plan())
            except ConnectionLost:
                await self._pool.check()  # its neighbours were lost with it: each would cost a caller the same error
                raise
            except psycopg.errors.LockNotAvailable as error:
                raise Busy(None) from error
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
                if turn == _DEADLOCK_TRIES - 1:
                    raise Busy(None) from error
        raise AssertionError("unreachable")

    def _job(self, row: Row) -> Job:
        return Job._make((*row, self._registry.installation))


def _failure(given: Any) -> Failure:
    if isinstance(given, BaseException):
        return Failure.of(given)
    if not isinstance(given, Failure):
        raise BadInput(f"give a Failure or the exception that was raised, not {given!r}")
    return given


def _same_length(held: Sequence[Held], values: Sequence[Any] | None, what: str) -> None:
    if values is not None and len(values) != len(held):
        raise BadInput(f"{len(held)} jobs with {len(values)} {what}: give one for each")


def _agreement() -> Plan[list[Row]]:
    def steps() -> Plan[list[Row]]:
        yield statement("plan_freely", {})
        return (yield from _ask("agreement", {}))

    rows: list[Row] = yield Atomic(steps())
    return rows


def _ask(name: str, values: Mapping[str, Any]) -> Plan[list[Row]]:
    rows: list[Row] = yield statement(name, values)
    return rows


def _only(outcomes: Iterable[T | Refused]) -> T:
    return _raised(next(iter(outcomes)))


def _raised(outcome: T | Refused) -> T:
    if isinstance(outcome, TenureError):
        raise outcome
    return outcome
