"""Enqueue in the caller's own transaction: its commit makes the job, its rollback makes none.

The connection is the caller's, and so is everything about it: nothing is set on it, and nothing is committed on it that
the caller did not commit. One that is in autocommit, outside of a transaction, makes the job at once.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from tenure import intake
from tenure.errors import BadInput, Refused
from tenure.job import NewJob
from tenure.outcome import Enqueued
from tenure.postgres.connect import our_errors
from tenure.postgres.enqueue import Order, enqueue
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Plan, run, run_sync, statement
from tenure.postgres.wake import due, notify


class Joining:
    """Makes jobs on connections that it is given."""

    def __init__(self, registry: Registry, max_bytes: int, *, wake: bool) -> None:
        self._wake = wake
        self._registry = registry
        self._max_bytes = max_bytes

    def make(self, connection: psycopg.Connection[Any], job: NewJob) -> Enqueued:
        """Make a job on a synchronous connection."""
        with our_errors():
            return run_sync(connection, self._plan(connection, job))

    async def make_async(self, connection: psycopg.AsyncConnection[Any], job: NewJob) -> Enqueued:
        """Make a job on an asynchronous connection."""
        with our_errors():
            return await run(connection, self._plan(connection, job))

    def _plan(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], job: NewJob) -> Plan[Enqueued]:
        if connection.pgconn.pipeline_status != PipelineStatus.OFF:
            raise BadInput(
                "enqueue_in needs its answer at once, and this connection is in pipeline mode. Next: leave it"
            )
        if not connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
            # Begins the caller's transaction. Steps that belong together would otherwise begin, and end, their own.
            yield statement("steps_in", {})
        machine = yield from self._registry.machine(job.contract, job.version)
        payload = intake.new_job(machine.contract, job, self._max_bytes)
        ((made,),) = yield from enqueue([Order(machine, [job], [payload])], None)
        if isinstance(made, Refused):
            raise made
        if self._wake:  # heard when the caller commits
            yield from notify(due([job]))
        return made


def is_async(connection: object) -> bool:
    """Whether this connection is to be awaited; refuses what is no connection."""
    if isinstance(connection, psycopg.AsyncConnection):
        return True
    if isinstance(connection, psycopg.Connection):
        return False
    raise BadInput(
        f"enqueue_in takes a psycopg connection, synchronous or asynchronous, not {connection!r}. "
        "Next: give the connection of your transaction first, then the arguments"
    )
