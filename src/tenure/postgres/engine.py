"""The engine: connection pools, the registered contracts, and the execution of plans on them.

    calls        the pool of all calls: one connection is always open, the others are opened on demand
    heartbeats   one connection for heartbeats: open from the start, so that a heartbeat does not wait for one

The engine runs a plan again after a deadlock or a serialization failure, and also when PostgreSQL refused it before it
began or rolled it back: the session was idle for too long, is read-only, or this process was frozen. It does not run a
plan again of which a part was committed: the caller gets ConnectionLost, as after every lost connection, and the pools
check their other connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, TypeVar
from weakref import WeakSet

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool

from tenure.errors import BadInput, Busy, CannotConnect, ConnectionLost, Refused, TenureError, Unavailable
from tenure.jobs import validation
from tenure.postgres.bound_contract import BoundContract
from tenure.postgres.connect import SESSION_ENDED, first_line, parse_dsn, probe_dsn, session_settings, translate_errors
from tenure.postgres.connection_health import idle_seconds, is_ended, is_read_only, note_use, responds, watch
from tenure.postgres.notify import Wakeups
from tenure.postgres.refusals import Refusals
from tenure.postgres.registry import ContractNumbers, Registry
from tenure.postgres.shared_sessions import check_pool, refuse_open_transaction, with_settings
from tenure.postgres.statement import Plan, Query, Row, Step, run, statement

T = TypeVar("T")
Pool = AsyncConnectionPool[psycopg.AsyncConnection[Any]]
_DEADLOCK_TRIES = 5
_RECONNECT_S = 0.5
#: Seconds for which the pool tries to reconnect the heartbeat connection, about once a second, before it starts again.
_HEARTBEAT_RECONNECT_S = 2.0
#: After a failed wait for a connection, all calls fail at once for this many seconds.
_UNAVAILABLE_S = 0.3
#: Seconds between two reads of the registered contracts in a process that claims.
_REGISTRY_S = 30.0
#: A connection that was idle for this many seconds is tested before use: a firewall may have dropped it.
_IDLE_S = 30.0
_log = logging.getLogger("tenure")


class _SessionEnded(Exception):
    """PostgreSQL ended the session before the last step was done. The plan can run again unless `partly_done`.

    `partly_done`: an earlier step was committed. A second run would be refused because of the first.
    """

    def __init__(self, error: psycopg.Error, *, partly_done: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.partly_done = partly_done


@dataclass(slots=True)
class _LimitedPool:
    """A pool, and a semaphore with one slot per connection."""

    pool: Pool
    #: Calls wait here, not in the pool: a long queue of calls is no outage. None: the pool belongs to the caller.
    slots: asyncio.Semaphore | None = None
    unavailable_until: float = 0.0


class Engine:
    """Runs plans on connection pools."""

    def __init__(
        self,
        pool: Pool,
        registry: Registry,
        *,
        borrowed_pool: bool = False,
        shared_settings: Mapping[str, str] | None = None,
        wake: bool = False,
    ) -> None:
        self._calls = self._heartbeats = _LimitedPool(pool)
        #: True: the pool belongs to the caller.
        self._borrowed_pool = borrowed_pool
        #: Behind a pooler, and on a caller's pool: the settings that each transaction sets for itself.
        self._shared_settings = shared_settings
        #: The connections that this engine opened itself.
        self._opened: WeakSet[psycopg.AsyncConnection[Any]] = WeakSet()
        self._next_registry_read = monotonic() + _REGISTRY_S
        #: True: the address asks for the primary, so a read-only connection is replaced.
        self._requires_primary = False
        #: The address it was connected by; None on a caller's pool.
        self.dsn: str | None = None
        self.registry = registry
        self.wakeups = Wakeups(self.run, on=wake)
        self.refusals = Refusals(self.run)

    @classmethod
    async def connect(
        cls,
        dsn: str,
        numbers: ContractNumbers | None,
        connections: int,
        *,
        wake: bool = False,
        patience_s: float = 10.0,
        statement_ms: int | None = None,
        heartbeats: bool = False,
    ) -> Engine:
        """Connect, or raise; with `wake`, send a NOTIFY for jobs that can be claimed.

        A statement takes at most `statement_ms`. With `heartbeats`, one of the connections is reserved for heartbeats
        and is open when this returns.
        """
        opened: WeakSet[psycopg.AsyncConnection[Any]] = WeakSet()

        async def configure(connection: psycopg.AsyncConnection[Any]) -> None:
            opened.add(connection)
            await watch(connection)

        registry = Registry(numbers)  # refuses bad values before connecting
        address, behind_pooler = await probe_dsn(dsn, statement_ms)  # a pool would retry for long without the reason
        kwargs: dict[str, Any] = {"autocommit": True}
        if behind_pooler:
            kwargs["prepare_threshold"] = None
        common: dict[str, Any] = {"open": False, "timeout": patience_s, "kwargs": kwargs, "configure": configure}
        slots = connections - heartbeats
        pool: Pool = AsyncConnectionPool(
            address, min_size=1, max_size=slots, reconnect_timeout=_RECONNECT_S, reconnect_failed=_reconnect_if_awaited,
            **common,
        )  # fmt: skip
        settings = session_settings(statement_ms) if behind_pooler else None
        engine = cls(pool, registry, shared_settings=settings, wake=wake)
        engine.dsn, engine._opened = dsn, opened
        engine._calls.slots = asyncio.Semaphore(slots)
        if heartbeats:
            # Never replaced because of its age: on a full server another client might take its place.
            heartbeat_pool: Pool = AsyncConnectionPool(
                address, min_size=1, max_size=1, max_lifetime=float("inf"), reconnect_timeout=_HEARTBEAT_RECONNECT_S,
                reconnect_failed=_reconnect, **common,
            )  # fmt: skip
            engine._heartbeats = _LimitedPool(heartbeat_pool, asyncio.Semaphore(1))
            with translate_errors():
                await heartbeat_pool.open(wait=True, timeout=patience_s)
        await pool.open()
        engine._requires_primary = parse_dsn(address).get("target_session_attrs") == "read-write"
        return engine

    @classmethod
    def on_pool(cls, pool: Pool, numbers: ContractNumbers | None = None) -> Engine:
        """Use a pool of the caller, who opens and closes it; sends no NOTIFY."""
        return cls(check_pool(pool), Registry(numbers), borrowed_pool=True, shared_settings=session_settings())

    def require_own_pool(self, action: str) -> None:
        """Refuse an action that PostgreSQL forbids in a transaction: on a caller's pool each step is in one."""
        if self._borrowed_pool:
            raise BadInput(f"a store on a caller's pool cannot {action}. Next: use a store that connects by address")

    async def close(self) -> None:
        """Close the connections, unless the pool belongs to the caller."""
        if not self._borrowed_pool:
            await self.wakeups.close()
            await self.refusals.close()
            for pool in self._pools():
                await pool.close()

    def abandon(self) -> None:
        """Close the connections when their event loop is closed already."""
        for connection in list(self._opened):
            connection.pgconn.finish()

    def _pools(self) -> list[Pool]:
        return [self._calls.pool] if self._heartbeats is self._calls else [self._calls.pool, self._heartbeats.pool]

    async def run(self, plan: Callable[[], Plan[T]], *, beat: bool = False) -> T:
        """Run a plan, created anew for each attempt. `beat`: on the heartbeat connection."""
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        answer = await self._run(plan, self._heartbeats if beat else self._calls)
        if task and task.cancelling() > before:  # before Python 3.12 `wait_for` loses a cancel together with an answer
            raise asyncio.CancelledError
        return answer

    async def _run(self, plan: Callable[[], Plan[T]], limited: _LimitedPool) -> T:
        if self._borrowed_pool and limited.pool.closed:
            raise BadInput("the caller's pool is not open. Next: open it before use, close it afterwards")
        for attempt in range(_DEADLOCK_TRIES):
            try:
                if limited.slots is None:
                    return await self._run_once(plan, limited.pool)
                async with limited.slots:
                    if monotonic() < limited.unavailable_until:
                        raise CannotConnect("the database is unavailable; nothing was done. Next: try again")
                    try:
                        return await self._run_once(plan, limited.pool)
                    except CannotConnect:
                        # The calls that wait for a slot fail now, and not one after the other.
                        limited.unavailable_until = monotonic() + _UNAVAILABLE_S
                        raise
            except ConnectionLost:
                # The other connections are probably lost too, and each would fail one more call.
                await asyncio.shield(asyncio.gather(*(pool.check() for pool in self._pools())))
                raise
            except _SessionEnded as ended:
                read_only = isinstance(ended.error, psycopg.errors.ReadOnlySqlTransaction)
                await self._raise_or_retry(ended, is_last=attempt >= (1 if read_only else _DEADLOCK_TRIES - 1))
            except psycopg.errors.LockNotAvailable as error:
                raise Busy(None) from error
            except psycopg.errors.UniqueViolation:
                # Another call with the same key came first: the next attempt finds its answer.
                if attempt == _DEADLOCK_TRIES - 1:
                    raise
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
                if attempt == _DEADLOCK_TRIES - 1:
                    raise Busy(None) from error
        raise AssertionError("unreachable")

    async def _run_once(self, plan: Callable[[], Plan[T]], pool: Pool) -> T:
        with translate_errors():
            while True:
                async with pool.connection() as connection:
                    if await self._close_if_unusable(connection):
                        if pool is not self._heartbeats.pool:  # check it too: it is unused until there is a job
                            await asyncio.shield(self._heartbeats.pool.check())
                        continue  # the pool discards the connection
                    done: list[Query] = []
                    try:
                        return await run(connection, plan(), done, adapt=self._adapt(connection))
                    except SESSION_ENDED as error:
                        await connection.close()
                        raise _SessionEnded(error, partly_done=any(query.changes for query in done)) from error
                    finally:
                        note_use(connection)

    async def _close_if_unusable(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        """Close a connection that ended while it was idle, or whose server is read-only now; returns whether it did."""
        is_usable = not await is_ended(connection) and not (self._requires_primary and is_read_only(connection))
        # A connection that its owner left in a transaction is not tried: `refuse_open_transaction` says what is wrong.
        is_tried = idle_seconds(connection) >= _IDLE_S and connection.info.transaction_status is TransactionStatus.IDLE
        if is_usable and (not is_tried or await responds(connection)):
            return False
        await connection.close()
        return True

    async def _raise_or_retry(self, ended: _SessionEnded, *, is_last: bool) -> None:
        """Return if the plan can run again after its session ended; else raise the reason."""
        error = ended.error
        reason = first_line(error)
        read_only = isinstance(error, psycopg.errors.ReadOnlySqlTransaction)
        if read_only and not self._borrowed_pool:
            # The other connections go to the same server.
            await asyncio.shield(asyncio.gather(*(pool.drain() for pool in self._pools())))
        if isinstance(error, psycopg.errors.IdleInTransactionSessionTimeout):
            _log.warning(
                "PostgreSQL ended a transaction that was idle for too long%s: this process was frozen, or its event "
                "loop was blocked. Next: find what stopped it",
                "" if ended.partly_done else "; it runs again",
            )
        if ended.partly_done:
            raise ConnectionLost(
                f"PostgreSQL ended the session ({reason}) after a part of the call was done; the rest may or may not "
                "have happened. Next: repeat it with the same key"
            ) from error
        if is_last and read_only:
            raise CannotConnect(
                f"all sessions are read-only ({reason}); nothing was done. Next: name every server in the address of "
                "the database, so that the primary is found"
            ) from error
        if is_last:
            raise Unavailable(f"PostgreSQL ended the session ({reason}); nothing was done. Next: try again") from error

    def _adapt(self, connection: psycopg.AsyncConnection[Any]) -> Callable[[Step], Step] | None:
        """How steps are adapted to sessions that the engine shares with others: a caller's pool, or a pooler."""
        if self._borrowed_pool:
            refuse_open_transaction(connection)
        if self._shared_settings is None:
            return None
        return partial(with_settings, settings=self._shared_settings, is_borrowed=self._borrowed_pool)

    async def run_and_extend_ranges(self, plan: Callable[[], Plan[T]]) -> T:
        """Run a plan that inserts jobs; when the id ranges are used up, create more and run it again."""
        try:
            return await self.run(plan)
        except psycopg.errors.SequenceGeneratorLimitExceeded:
            await self.extend_ranges(4)
            return await self.run(plan)

    async def ask(self, query: str, /, **values: Any) -> list[Row]:
        """Run one statement, `queries/QUERY.sql`; returns its rows."""
        return await self.run(lambda: ask(query, values))

    async def extend_ranges(self, ahead: int) -> int:
        """Create id ranges in advance; returns how many."""
        ((made,),) = await self.ask("extend_ranges", ahead=ahead)
        return int(made)

    async def refresh(self) -> None:
        """Read the registered contracts every 30 s at most: jobs of an unknown version cannot be claimed."""
        now = monotonic()
        if now >= self._next_registry_read or not self.registry.contracts():
            self._next_registry_read = now + _REGISTRY_S
            await self.run(self.registry.load)

    async def bound_contract(self, name: str, version: str | None = None, *, beat: bool = False) -> BoundContract:
        """A registered contract, by default its newest version; reads the registry if this process does not know it."""
        if (found := self.registry.find(name, version)) is not None:
            return found
        return await self.run(lambda: self.registry.bound_contract(name, version), beat=beat)


class EngineUser:
    """Operations on an engine. `max_bytes`: the longest payload, result or error as JSON."""

    def __init__(self, engine: Engine, max_bytes: int = validation.MAX_BYTES) -> None:
        self._engine = engine
        self._max_bytes = max_bytes


def check_ids(ids: Sequence[int]) -> None:
    """Refuse ids that no job can have, and more than one batch of them."""
    validation.check_integer("number of ids", len(ids), 0, validation.MAX_BATCH)
    for job_id in ids:
        validation.check_integer("id", job_id, 1, validation.MAX_ID)


def only_answer(answers: Iterable[T | Refused]) -> T:
    """The answer of a call about one job; raises its refusal."""
    (answer,) = answers
    if isinstance(answer, TenureError):
        raise answer
    return answer


async def _reconnect(pool: Pool) -> None:
    """Go on reconnecting although no call waits: the next call must find a connection."""
    if not pool.closed:
        await pool.check()


async def _reconnect_if_awaited(pool: Pool) -> None:
    """Go on reconnecting while calls wait: by itself a pool doubles its pause after each failure, up to minutes."""
    if pool.get_stats().get("requests_waiting"):
        await pool.check()


def ask(name: str, values: Mapping[str, Any]) -> Plan[list[Row]]:
    """A plan of one statement; returns its rows."""
    rows: list[Row] = yield statement(name, values)
    return rows
