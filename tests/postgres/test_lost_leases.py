"""A claim that closes a lease, or takes a job over whose lease ran out, logs the lost attempt once."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure.jobs.formats import FAILURE_LOGGER
from tenure.jobs.job import Job, NewJob
from tenure.postgres.claim import Claimer
from tenure.postgres.store import Store
from tenure.upkeep import once
from tests.harness import Harness

Claim = Callable[[Store, str, int], Awaitable[Any]]


async def next_due(store: Store, contract: str, _: int) -> Any:
    return await store.claim(contract, worker="w2")


async def together(store: Store, contract: str, _: int) -> Any:
    return await store.claim_for_many(contract, ["default"], [Claimer("w2"), Claimer("w3")])


async def by_id(store: Store, contract: str, job_id: int) -> Any:
    return await store.claim_by_id([job_id], worker="w2", contract=contract)


def lost(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """The records of failed attempts."""
    return [record for record in caplog.records if record.name == FAILURE_LOGGER]


async def held(store: Store, contract: str, limit: int) -> Job:
    """A job that a worker holds."""
    await store.enqueue(NewJob("send", contract=contract, max_attempts=limit))
    (job,) = await store.claim(contract, worker="w1")
    return job


@pytest.mark.parametrize("claim", [next_due, together, by_id])
@pytest.mark.parametrize("contract", ["reliability", "phase27"])
async def test_a_claim_logs_the_lost_attempt_of_a_job_that_it_takes_once(
    store: Store, db: Harness, caplog: pytest.LogCaptureFixture, contract: str, claim: Claim
) -> None:
    job = await held(store, contract, 3)
    db.expire(job.id)
    await claim(store, contract, job.id)
    assert db.row(job.id)["lease_owner"] == "w2"
    await once(store)
    (record,) = lost(caplog)
    assert (record.levelno, record.decision) == (logging.WARNING, "retry")
    assert (record.job_id, record.task, record.attempt, record.contract) == (job.id, "send", 1, contract)
    assert record.getMessage().startswith(f"job {job.id} of send, attempt 1 failed, retry in 0 ms, at ")
    assert record.eta == db.log(job.id)[1]["ts"]


async def test_a_claim_that_ends_a_lost_job_logs_an_error(
    store: Store, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    job = await held(store, "reliability", 1)
    db.expire(job.id)
    assert await store.claim("reliability", worker="w2") == []
    (record,) = lost(caplog)
    assert (record.levelno, record.decision, record.attempt) == (logging.ERROR, "dead_lettered", 1)


async def test_a_claim_of_a_job_whose_attempt_failed_logs_no_lost_lease(
    store: Store, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    job = await held(store, "phase27", 3)
    await store.fail(job.held, ValueError("odd"))
    db.due(job.id)
    (again,) = await store.claim("phase27", worker="w2")
    assert (again.claims, lost(caplog)) == (2, [])
