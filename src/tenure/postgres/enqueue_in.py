"""Enqueue in the caller's own transaction: the job exists when the caller commits; a rollback removes it.

The connection belongs to the caller: nothing is set on it, and only the caller commits on it. On a connection in
autocommit, outside of a transaction, the job exists at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from tenure.errors import BadInput, Busy, Refused
from tenure.jobs import validation
from tenure.jobs.job import NewJob
from tenure.jobs.outcome import Enqueued
from tenure.postgres.connect import translate_errors
from tenure.postgres.enqueue import JobGroup, enqueue_plan
from tenure.postgres.notify import Overflow, notify, queues_to_wake
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Plan, run, run_sync, statement


class TransactionEnqueue:
    """Enqueues jobs on the caller's connections."""

    def __init__(self, registry: Registry, max_bytes: int, *, wake: bool) -> None:
        self._wake = wake
        self._overflow = Overflow()
        self._registry = registry
        self._max_bytes = max_bytes

    def make(self, connection: psycopg.Connection[Any], job: NewJob) -> Enqueued:
        """Enqueue a job on a synchronous connection."""
        with translate_errors(), _locks_as_busy():
            return run_sync(connection, self._plan(connection, job))

    async def make_async(self, connection: psycopg.AsyncConnection[Any], job: NewJob) -> Enqueued:
        """Enqueue a job on an asynchronous connection."""
        with translate_errors(), _locks_as_busy():
            return await run(connection, self._plan(connection, job))

    def _plan(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], job: NewJob) -> Plan[Enqueued]:
        if connection.pgconn.pipeline_status != PipelineStatus.OFF:
            raise BadInput("enqueue_in cannot use a connection in pipeline mode. Next: leave the pipeline")
        if not connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
            # Begin the caller's transaction: without it an Atomic step would begin and commit its own.
            yield statement("begin_transaction", {})
        bound = yield from self._registry.bound_contract(job.contract, job.version)
        payload = validation.check_new_job(bound.contract, job, self._max_bytes)
        ((made,),) = yield from enqueue_plan([JobGroup(bound, [job], [payload])], None, in_transaction=True)
        if isinstance(made, Refused):
            raise made
        wanted = queues_to_wake([job]) if self._wake else ()
        if wanted and not (yield from notify(wanted)):  # sent when the caller commits
            self._overflow.noted()
        return made


@contextmanager
def _locks_as_busy() -> Iterator[None]:
    """Raise Busy when the caller's lock timeout ends the wait for another transaction with the same key or scope."""
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise Busy(None) from error


def is_async(connection: object) -> bool:
    """Whether a connection is asynchronous; refuses any other object."""
    if isinstance(connection, psycopg.AsyncConnection):
        return True
    if isinstance(connection, psycopg.Connection):
        return False
    raise BadInput(
        f"enqueue_in needs a psycopg connection, synchronous or asynchronous; got {connection!r}. "
        "Next: pass the connection of your transaction first, then the arguments"
    )
