"""The engine on sessions that it shares: connections of the caller's own pool, or those behind a pooler like PgBouncer.

Session settings would follow the connection back into the pool, and the planner settings of the engine are poison for
other people's queries. So each step of a plan runs in a transaction of its own that begins by setting them for itself
alone; nothing of it is left when the connection goes back, even if the caller is cancelled in between.

It costs three short round trips a step, and is the same whether or not the caller's connections are in autocommit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool

from tenure.errors import BadInput
from tenure.postgres.connect import settings
from tenure.postgres.statement import Atomic, Bounded, Plan, Statement, Step, statement

T = TypeVar("T")
P = TypeVar("P", bound=AsyncConnectionPool[Any])


def lend(pool: P) -> P:
    """A pool that the engine can stand on; refuses what is none."""
    if not isinstance(pool, AsyncConnectionPool):
        raise BadInput(f"give the address of a database or a psycopg_pool.AsyncConnectionPool, not {pool!r}")
    return pool


def borrowed(connection: psycopg.AsyncConnection[Any], plan: Plan[T]) -> Plan[T]:
    """The same plan, each step in a transaction of its own under the engine's settings."""
    # Inside somebody's transaction no step could commit before the next: a commit point would be none.
    if connection.info.transaction_status is not TransactionStatus.IDLE:
        raise BadInput(
            "the pool gave a connection that is inside a transaction. Next: end it in the pool's configure or check"
        )
    return (yield from _each(plan, lambda step: Atomic(_under_settings(step), _is_steady(step))))


def pooled(plan: Plan[T]) -> Plan[T]:
    """The same plan through a pooler, which gives each transaction whatever session is free."""
    return (yield from _each(plan, _with_settings))


def _each(plan: Plan[T], made: Callable[[Step], Step]) -> Plan[T]:
    """The same plan, with each step made into another."""
    try:
        step = next(plan)
        while True:
            try:
                answer: Any = yield made(step)
            except psycopg.Error as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]


def locally() -> Statement:
    """Let the transaction that this begins run under the engine's settings."""
    ours = settings()
    return statement("set_locally", {"names": list(ours), "settings": list(ours.values())})


def _with_settings(step: Step) -> Step:
    if isinstance(step, Statement) and step.alone:
        return Bounded(step, int(settings()[step.alone]) / 1_000)
    return Atomic(_under_settings(step), _is_steady(step))


def _is_steady(step: Step) -> bool:
    return isinstance(step, Atomic) and step.steady


def _under_settings(step: Step) -> Plan[Any]:
    ((_, isolation, read_only),) = yield locally()
    if _is_steady(step):
        isolation, read_only = "read committed", "off"  # it is to read only, and of one moment
    if read_only == "on":
        raise BadInput("the pool's connections only read. Next: give a pool on the primary that may write")
    if isolation != "read committed":
        raise BadInput(
            f"the pool's connections run at {isolation}, and Tenure needs read committed, at which a row that was "
            "waited for is seen as it is. Next: leave the isolation level of the pool as PostgreSQL has it"
        )
    if isinstance(step, Atomic):
        return (yield from step.plan)
    return (yield step)
