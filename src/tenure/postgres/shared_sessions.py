"""The engine on shared sessions: connections of the caller's own pool, or those behind a pooler like PgBouncer.

Session settings would stay on the connection when it returns to the pool, and the engine's planner settings slow down
other queries. So each step of a plan runs in its own transaction, which first sets them for itself alone. Nothing is
left when the connection goes back, even if the caller is cancelled.

This costs three short round trips per step, whether or not the caller's connections are in autocommit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool

from tenure.errors import BadInput
from tenure.postgres.statement import Atomic, Plan, Statement, Step, statement

P = TypeVar("P", bound=AsyncConnectionPool[Any])


def check_pool(pool: P) -> P:
    """Return a pool that the engine can use; refuses any other object."""
    if not isinstance(pool, AsyncConnectionPool):
        raise BadInput(f"expected a database address or a psycopg_pool.AsyncConnectionPool, not {pool!r}")
    return pool


def refuse_open_transaction(connection: psycopg.AsyncConnection[Any]) -> None:
    """Refuse a caller's connection that is inside a transaction: a commit point would not commit."""
    if connection.info.transaction_status is not TransactionStatus.IDLE:
        raise BadInput(
            "the pool returned a connection that is inside a transaction. Next: end it in the pool's configure or check"
        )


def with_settings(step: Step, settings: Mapping[str, str], *, is_borrowed: bool) -> Step:
    """Return the step in a transaction of its own that first applies these settings."""
    if isinstance(step, Statement) and step.alone:
        return replace(step, timeout_s=int(settings[step.alone]) / 1_000)
    atomic = step if isinstance(step, Atomic) else Atomic(_only(step))
    return replace(atomic, plan=_apply_and_run(atomic, settings, is_borrowed=is_borrowed))


def _only(step: Step) -> Plan[Any]:
    return (yield step)


def _apply_and_run(atomic: Atomic, settings: Mapping[str, str], *, is_borrowed: bool) -> Plan[Any]:
    """Apply the settings to the open transaction, refuse an unsuitable one, and run the steps in it."""
    values = {"names": list(settings), "settings": list(settings.values())}
    ((_, isolation, read_only),) = yield statement("apply_settings", values)
    if read_only == "on" and not atomic.snapshot:  # a snapshot only reads
        if is_borrowed:
            raise BadInput("the pool's connections are read-only. Next: give a pool on the primary that may write")
        raise psycopg.errors.ReadOnlySqlTransaction("the session behind the pooler is read-only")
    if isolation != "read committed" and not atomic.snapshot:
        raise BadInput(
            f"the pool's connections run at {isolation}, and Tenure needs read committed, at which a row that was "
            "waited for is seen as it is. Next: leave the isolation level of the pool as PostgreSQL has it"
        )
    return (yield from atomic.plan)
