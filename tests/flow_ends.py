"""The ways in which the job of a node can end, each by another part of Tenure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import psycopg

from tenure.jobs.flow import NewNode
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Failure, Held, NewJob
from tenure.postgres.callers_transaction import CallersTransaction
from tenure.postgres.store import Store
from tests.harness import Harness

FATAL = Failure("broken for good", type="ValidationError", code="BROKEN", retryable=False)


@dataclass(frozen=True)
class Parent:
    """A job that is about to end; `held` where a worker holds it. And a client of a dispatcher, and the database."""

    job_id: int
    held: Held | None
    dispatcher: httpx2.Client
    dsn: str

    @property
    def lease(self) -> Held:
        """The lease on the job."""
        assert self.held is not None
        return self.held


@dataclass(frozen=True)
class Way:
    """A way to end: the job's contract and options, what must be so before, and the call that ends it."""

    call: Callable[[Store, Parent], Awaitable[Any]]
    #: The state of the node after it.
    node: str
    contract: str = "standard"
    is_held: bool = True
    #: What makes it possible, just before the call.
    sql: str | None = None
    before: Callable[[Store, Harness, Parent], Awaitable[Any]] | None = None

    def node_of(self, name: str) -> NewNode:
        """A node that can end so."""
        expires = None if self.is_held else 3_600_000
        attempts = 1 if self.contract == "standard" else None
        return NewNode(name, NewJob("t", {}, self.contract, max_attempts=attempts, expires_ms=expires))

    async def prepare(self, store: Store, db: Harness, parent: Parent) -> None:
        """Let it be possible now."""
        if self.sql is not None:
            db.sql(self.sql, parent.job_id)
        if self.before is not None:
            await self.before(store, db, parent)


async def _ended(store: Store, parent: Parent) -> bool:
    (job,) = await store.jobs([parent.job_id])
    return job.role == "done"


def _rounds(one: Callable[[Store], Awaitable[Any]]) -> Callable[[Store, Parent], Awaitable[bool]]:
    """Upkeep that goes round until the job has ended, by this caller or another; whether this one ended any job."""

    async def call(store: Store, parent: Parent) -> bool:
        has_ended = False
        while not await _ended(store, parent):
            has_ended = bool(await one(store)) or has_ended
        return has_ended

    return call


async def _succeed(store: Store, parent: Parent) -> None:
    await store.succeed(parent.lease, {"n": parent.job_id})


async def _succeed_with_a_key(store: Store, parent: Parent) -> None:
    await store.succeed(parent.lease, {"n": parent.job_id}, key=f"end of {parent.job_id}")


async def _succeed_in_a_transaction(store: Store, parent: Parent) -> None:
    """End the job in a transaction of its handler; upkeep advances the flow after the commit."""
    transaction = CallersTransaction(store._engine.registry, 1_000_000, wake=False)
    async with await psycopg.AsyncConnection.connect(parent.dsn) as connection:
        plan = transaction.succeed(HolderCall(parent.lease, result={"n": parent.job_id}))
        await transaction.run_async(connection, plan, "complete_in")
    await store.flows.advance()


_NO_LETTERS = """
create function public.no_letters() returns trigger language plpgsql as $$
begin raise exception 'no dead letter today'; end $$;
create trigger no_letters before insert on tenure.dead_letter for each row execute function public.no_letters();
"""


async def _fail_without_a_record(store: Store, db: Harness, parent: Parent) -> None:
    db.sql(_NO_LETTERS)
    try:
        assert (await store.fail(parent.lease, FATAL)).state == "dlq_pending"
    finally:
        db.sql("drop function public.no_letters() cascade")


async def _fail_with_an_effect(store: Store, _: Harness, parent: Parent) -> None:
    await store.effect(parent.lease, "charge", compensable=True)
    assert (await store.fail(parent.lease, FATAL)).compensate


async def _compensated(store: Store, parent: Parent) -> None:
    await store.compensated(parent.lease)


async def _fail(store: Store, parent: Parent) -> None:
    await store.fail(parent.lease, FATAL)


async def _cancel(store: Store, parent: Parent) -> None:
    await store.cancel(parent.job_id, mode="hard", actor="ada")


async def _over_http(_: Store, parent: Parent) -> None:
    proof = {"claims": parent.lease.claims, "lease_token": str(parent.lease.token), "result": {"n": parent.job_id}}
    answer = parent.dispatcher.post(f"/api/v1/jobs/{parent.job_id}/succeed", json=proof)
    assert answer.status_code == 200, answer.text


WAYS = {
    "success": Way(_succeed, "succeeded"),
    "success with a key": Way(_succeed_with_a_key, "succeeded"),
    "success in a transaction": Way(_succeed_in_a_transaction, "succeeded"),
    "failure": Way(_fail, "failed"),
    "failure in two transactions": Way(_fail, "failed", "gate_b2"),
    "failure that upkeep records": Way(
        _rounds(lambda store: store.settle("gate_b2")), "failed", "gate_b2", before=_fail_without_a_record
    ),
    "effects undone": Way(_compensated, "failed", "reliability", before=_fail_with_an_effect),
    "lost lease": Way(
        _rounds(lambda store: store.reap("standard")), "failed",
        sql="update tenure.job set lease_expires_at = now() - interval '1 second' where id = %s",
    ),
    "expired before it began": Way(
        _rounds(lambda store: store.cancel_expired()), "cancelled", is_held=False,
        sql="update tenure.job set expires_at = now() - interval '1 second' where id = %s",
    ),
    "cancel": Way(_cancel, "cancelled", "dispatcher"),
    "HTTP": Way(_over_http, "succeeded", "dispatcher"),
}  # fmt: skip
