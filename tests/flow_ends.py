"""The ways in which the job of a node can end, each by another part of Tenure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from tenure.jobs.flow import NewNode
from tenure.jobs.job import Failure, Held, NewJob
from tenure.postgres.store import Store
from tests.harness import Harness

FATAL = Failure("broken for good", type="ValidationError", code="BROKEN", retryable=False)


@dataclass(frozen=True)
class Parent:
    """A job that is about to end; `held` where a worker holds it, `url` of a dispatcher."""

    job_id: int
    held: Held | None
    url: str = ""

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

    def node_of(self, name: str) -> NewNode:
        """A node that can end so."""
        expires = None if self.is_held else 3_600_000
        attempts = 1 if self.contract == "standard" else None
        return NewNode(name, NewJob("t", {}, self.contract, max_attempts=attempts, expires_ms=expires))

    def prepare(self, db: Harness, parent: Parent) -> None:
        """Let it be possible now."""
        if self.sql is not None:
            db.sql(self.sql, parent.job_id)


async def _ended(store: Store, parent: Parent) -> bool:
    (job,) = await store.jobs([parent.job_id])
    return job.role == "done"


def _rounds(one: Callable[[Store], Awaitable[Any]]) -> Callable[[Store, Parent], Awaitable[None]]:
    """Upkeep that goes round until the job has ended, by this caller or another."""

    async def call(store: Store, parent: Parent) -> None:
        while not await _ended(store, parent):
            await one(store)

    return call


async def _succeed(store: Store, parent: Parent) -> None:
    await store.succeed(parent.lease, {"n": parent.job_id})


async def _fail(store: Store, parent: Parent) -> None:
    await store.fail(parent.lease, FATAL)


async def _cancel(store: Store, parent: Parent) -> None:
    await store.cancel(parent.job_id, mode="hard", actor="ada")


async def _over_http(_: Store, parent: Parent) -> None:
    proof = {"claims": parent.lease.claims, "lease_token": str(parent.lease.token), "result": {"n": parent.job_id}}
    answer = httpx2.post(f"{parent.url}/api/v1/jobs/{parent.job_id}/succeed", json=proof, timeout=60)
    assert answer.status_code == 200, answer.text


WAYS = {
    "success": Way(_succeed, "succeeded"),
    "failure": Way(_fail, "failed"),
    "failure in two transactions": Way(_fail, "failed", "gate_b2"),
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
