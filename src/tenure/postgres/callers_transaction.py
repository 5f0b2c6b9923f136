"""Verbs in the caller's own transaction: what they do exists when the caller commits; a rollback removes it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg

from tenure.errors import BadInput, Busy, Refused
from tenure.jobs import validation
from tenure.jobs.flow import FlowMade, NewFlow, check_flow
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import NewJob
from tenure.jobs.outcome import Enqueued
from tenure.postgres.asyncpg_statement import run_asyncpg
from tenure.postgres.callers_connection import open_async_connection, open_connection
from tenure.postgres.connect import translate_errors
from tenure.postgres.datasets.outputs import prepare_additions, store_additions
from tenure.postgres.enqueue import JobGroup, check_jobs, enqueue_plan, group_places
from tenure.postgres.flow_creation import PreparedFlow, create_plan, hash_flow, prepare_flow
from tenure.postgres.move import Batch, move
from tenure.postgres.notify import Overflow, notify, queues_to_wake
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Plan, run, run_sync

T = TypeVar("T")


class CallersTransaction:
    """Plans for the connections of callers, and the runners of these plans."""

    def __init__(self, registry: Registry, max_bytes: int, *, wake: bool) -> None:
        self._wake = wake
        self._overflow = Overflow()
        self._registry = registry
        self._max_bytes = max_bytes

    def run(self, connection: Any, plan: Plan[T], verb: str) -> T:
        """Run a plan on a synchronous connection."""
        with translate_errors(), _locks_as_busy():
            return run_sync(open_connection(connection, verb), plan)

    async def run_async(self, connection: Any, plan: Plan[T], verb: str) -> T:
        """Run a plan on an asynchronous connection."""
        with translate_errors(), _locks_as_busy():
            opened = await open_async_connection(connection, verb)
            if isinstance(opened, psycopg.AsyncConnection):
                return await run(opened, plan)
        try:
            with translate_errors(), _locks_as_busy():
                return await run_asyncpg(opened, plan)
        except psycopg.Error as error:
            raise error.__cause__ or error from None  # asyncpg's own error, which its user expects

    def enqueue(self, jobs: Sequence[NewJob]) -> Plan[list[Enqueued]]:
        """Enqueue jobs, all or none of them bad; a key that stands for other work raises its conflict."""
        alike = validation.differ_only_in_payload(jobs)
        places_by_contract = group_places(jobs)
        groups = []
        for (contract, version), places in places_by_contract.items():
            bound = yield from self._registry.bound_contract(contract, version)
            payloads = check_jobs(bound.contract, jobs, places, self._max_bytes, alike=alike)
            groups.append(JobGroup(bound, [jobs[n] for n in places], payloads, alike))
        made: dict[int, Enqueued] = {}
        refusals: list[Refused] = []
        answered = yield from enqueue_plan(groups, None, in_transaction=True)
        for places, answers in zip(places_by_contract.values(), answered, strict=True):
            for n, answer in zip(places, answers, strict=True):
                if isinstance(answer, Refused):
                    refusals.append(answer)
                else:
                    made[n] = answer
        if refusals:
            if made:
                refusals[0].add_note(f"{len(made)} other jobs of this batch are in the transaction")
            raise refusals[0]
        yield from self._notify(queues_to_wake(job for n, job in enumerate(jobs) if made[n].made))
        return [made[n] for n in range(len(jobs))]

    def create_flow(self, flow: NewFlow, created_by: str) -> Plan[FlowMade]:
        """Create a flow, with the jobs of the nodes that need no other."""
        nodes = check_flow(flow)
        payloads = yield from prepare_flow(self._registry, flow, nodes, self._max_bytes)
        prepared = PreparedFlow(flow, nodes, payloads, hash_flow(flow), created_by)
        made, queues = yield from create_plan(self._registry, prepared, self._max_bytes)
        yield from self._notify(queues)
        return made

    def _notify(self, queues: Collection[tuple[str, str]]) -> Plan[None]:
        """Wake the workers of these queues when the caller commits."""
        if self._wake and queues and not (yield from notify(queues)):
            self._overflow.noted()

    def succeed(self, call: HolderCall) -> Plan[None]:
        """End a held job as succeeded, with its result; raises the refusal, which is to end the transaction."""
        held = call.held
        additions = prepare_additions(call, self._max_bytes)
        result = None if call.result is None else validation.to_json("result", call.result, self._max_bytes)
        bound = yield from self._registry.bound_contract(held.contract, held.version)
        if not bound.contract.workers_see_database:
            raise BadInput(
                f"workers of contract {bound.contract.name} never see the database: complete_in cannot end its jobs. "
                "Next: return the result from the handler"
            )
        # Not the short statement: this one says in one step why it refuses. What follows a commit point is upkeep's.
        (outcome,) = yield from move(Batch(bound, "succeed", [held.id], [held], results=[result]), is_atomic=True)
        if isinstance(outcome, Refused):
            raise outcome
        if additions is not None:
            yield from store_additions(held, outcome, additions)


@contextmanager
def _locks_as_busy() -> Iterator[None]:
    """Raise Busy when the caller's lock timeout ends the wait for another transaction with the same key or scope."""
    try:
        yield
    except psycopg.errors.LockNotAvailable as error:
        raise Busy(None) from error
