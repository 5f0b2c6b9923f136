"""The engine room: a pool of connections, the registered contracts, and how verbs are run on them.

A verb that met a deadlock or a serialization failure is run again; a lost connection is said to be one, and the pool
looks at its others. What batches have in common is here too: each contract's jobs go together, and answers come in the
order asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg_pool import AsyncConnectionPool

from tenure import intake
from tenure.errors import BadInput, Busy, CannotConnect, ConnectionLost, JobNotFound, TenureError
from tenure.job import Held, Job
from tenure.postgres.borrowed import borrowed, lend, pooled
from tenure.postgres.connect import our_errors, reached
from tenure.postgres.machine import Machine
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Plan, Row, run, statement
from tenure.postgres.wake import Wakeups

T = TypeVar("T")
Pool = AsyncConnectionPool[psycopg.AsyncConnection[Any]]
_DEADLOCK_TRIES = 5
_RECONNECT_S = 0.5
#: After somebody waited for a connection in vain, all are told so at once for so long.
_AWAY_S = 0.3


class Engine:
    """Runs verbs on a pool of connections."""

    def __init__(
        self, pool: Pool, registry: Registry, *, lent: bool = False, behind_pooler: bool = False, wake: bool = False
    ) -> None:
        self._pool = pool
        self._lent = lent
        self._behind_pooler = behind_pooler
        #: Who waits for a turn does not wait for the database: a crowd is no outage. None: the pool is not ours.
        self._turns: asyncio.Semaphore | None = None
        self._away_until = 0.0
        self.registry = registry
        self.wakeups = Wakeups(self.run, on=wake)

    @classmethod
    async def connect(
        cls,
        dsn: str,
        numbers: Mapping[str, Mapping[str, int]] | None,
        connections: int,
        *,
        wake: bool = False,
        patience_s: float = 10.0,
    ) -> Engine:
        """Connect, or say why not; with `wake`, listeners are told of jobs that can be claimed."""
        registry = Registry(numbers)  # what is wrong with the call is said before connecting
        address, behind_pooler = await reached(dsn)  # a pool would try for long, and not say why
        kwargs: dict[str, Any] = {"autocommit": True}
        if behind_pooler:
            kwargs["prepare_threshold"] = None
        pool: Pool = AsyncConnectionPool(
            address, min_size=1, max_size=connections, open=False, timeout=patience_s, kwargs=kwargs,
            reconnect_timeout=_RECONNECT_S, reconnect_failed=_try_again,
        )  # fmt: skip
        await pool.open()
        engine = cls(pool, registry, behind_pooler=behind_pooler, wake=wake)
        engine._turns = asyncio.Semaphore(connections)
        return engine

    @classmethod
    def on(cls, pool: Pool, numbers: Mapping[str, Mapping[str, int]] | None = None) -> Engine:
        """Stand on a pool of the caller's, who also opens and closes it; nobody is woken from there."""
        return cls(lend(pool), Registry(numbers), lent=True)

    def refuse_if_lent(self, what: str) -> None:
        """Refuse what no transaction may contain, on connections whose every step is in one."""
        if self._lent:
            raise BadInput(f"a pool that was given cannot {what}. Next: do it on a store of its own, by address")

    async def close(self) -> None:
        """Close the connections, unless they are the caller's."""
        if not self._lent:
            await self.wakeups.close()
            await self._pool.close()

    def abandon(self) -> None:
        """Close the connections without their event loop, which is closed."""
        for connection in list(self._pool._pool):
            connection.pgconn.finish()

    async def run(self, plan: Callable[[], Plan[T]]) -> T:
        """Run a verb, again if it met a deadlock; the plan is made anew for each try."""
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        answer = await self._run(plan)
        if task and task.cancelling() > before:  # before Python 3.12 `wait_for` swallows a cancel that meets an answer
            raise asyncio.CancelledError
        return answer

    async def _run(self, plan: Callable[[], Plan[T]]) -> T:
        if self._lent and self._pool.closed:
            raise BadInput("the pool that was given is not open. Next: open it before, close it after")
        for turn in range(_DEADLOCK_TRIES):
            try:
                if self._turns is None:
                    return await self._once(plan)
                async with self._turns:
                    if time.monotonic() < self._away_until:
                        raise CannotConnect("the database is away; nothing was done. Next: try again")
                    try:
                        return await self._once(plan)
                    except CannotConnect:
                        # Those who stand behind need not find out one after the other.
                        self._away_until = time.monotonic() + _AWAY_S
                        raise
            except ConnectionLost:
                # Its neighbours were lost with it: each would cost a caller the same error.
                await asyncio.shield(self._pool.check())
                raise
            except psycopg.errors.LockNotAvailable as error:
                raise Busy(None) from error
            except psycopg.errors.UniqueViolation:
                # A twin with the same key came first: asked again, its answer is there.
                if turn == _DEADLOCK_TRIES - 1:
                    raise
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
                if turn == _DEADLOCK_TRIES - 1:
                    raise Busy(None) from error
        raise AssertionError("unreachable")

    async def _once(self, plan: Callable[[], Plan[T]]) -> T:
        with our_errors():
            async with self._pool.connection() as connection:
                return await run(connection, self._shared(connection, plan()))

    def _shared(self, connection: psycopg.AsyncConnection[Any], plan: Plan[T]) -> Plan[T]:
        """The plan as sessions take it that are not the engine's alone."""
        if self._lent:
            return borrowed(connection, plan)
        return pooled(plan) if self._behind_pooler else plan

    async def extending(self, plan: Callable[[], Plan[T]]) -> T:
        """Run a verb that makes jobs. No id exists beyond the ranges: at their end, make more, then ask again."""
        try:
            return await self.run(plan)
        except psycopg.errors.SequenceGeneratorLimitExceeded:
            await self.extend_ranges(4)
            return await self.run(plan)

    async def extend_ranges(self, ahead: int) -> int:
        """Make id ranges ahead; how many were made."""
        ((made,),) = await self.run(lambda: ask("extend_ranges", {"ahead": ahead}))
        return int(made)

    async def machine(self, name: str, version: str | None = None) -> Machine:
        """The machine of a contract, by default its newest version."""
        found = self.registry.find(name, version)
        return found if found is not None else await self.run(lambda: self.registry.machine(name, version))

    async def by_contract(
        self, held: Sequence[Held], finish: Callable[[Machine, Sequence[int]], Awaitable[Sequence[Any]]]
    ) -> list[Any]:
        """Send each contract's jobs in a batch of their own; answers in the order asked.

        What goes wrong with one batch after another was sent is the answer to its jobs: the others are done.
        """
        intake.whole("number of jobs", len(held), 0, intake.MAX_BATCH)
        groups: dict[tuple[str, str], list[int]] = {}
        for n, one in enumerate(held):
            if not isinstance(one, Held):
                raise BadInput(f"give what a claim gave, job.held, not a {type(one).__name__}")
            if not (type(one.token) is UUID and 0 < one.id <= intake.MAX_ID and 0 <= one.claims <= intake.MAX_CLAIMS):
                intake.held(one)
            groups.setdefault((one.contract, one.version), []).append(n)
        answers: list[Any] = [None] * len(held)
        is_first = True
        for (name, version), part in groups.items():
            try:
                became = await finish(await self.machine(name, version), part)
            except TenureError as error:
                if is_first:
                    raise
                became = [error] * len(part)
            is_first = False
            for n, answer in zip(part, became, strict=True):
                answers[n] = answer
        return answers

    async def by_job(
        self, ids: Sequence[int], move: Callable[[Machine, Sequence[int], str], Awaitable[Sequence[Any]]]
    ) -> list[Any]:
        """For callers that know only ids: send each tenant's jobs of a contract together; answers as asked."""
        intake.whole("number of ids", len(ids), 0, intake.MAX_BATCH)
        for job_id in ids:
            intake.whole("id", job_id, 1, intake.MAX_ID)
        # A job never changes its contract, so what is read here cannot be out of date.
        found = await self.run(lambda: ask("contracts_of", {"ids": list(ids)}))
        answers: dict[int, Any] = {job_id: JobNotFound(job_id) for job_id in ids}
        groups: dict[tuple[str, str, str], list[int]] = {}
        for job_id, contract, version, tenant in found:
            groups.setdefault((contract, version, tenant), []).append(job_id)
        for (name, version, tenant), part in groups.items():
            machine = await self.machine(name, version)
            answers |= dict(zip(part, await move(machine, part, tenant), strict=True))
        return [answers[job_id] for job_id in ids]

    def job(self, row: Row) -> Job:
        """A row as a job."""
        return Job._make((*row, self.registry.installation))


async def _try_again(pool: Pool) -> None:
    """Go on connecting for those who wait: left alone, a pool waits twice as long after each failure, for minutes."""
    if pool.get_stats().get("requests_waiting"):
        await pool.check()


def ask(name: str, values: Mapping[str, Any], *, parts: tuple[str, ...] = ()) -> Plan[list[Row]]:
    """A plan of one statement, for its rows."""
    rows: list[Row] = yield statement(name, values, parts=parts)
    return rows
