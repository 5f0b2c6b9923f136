"""The numbers of a claim: written on the row by the claimer, read by whoever judges the job until the next claim."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput
from tenure.jobs.job import Job
from tenure.jobs.job_type import JobType
from tenure.postgres.store import Store
from tests.contracts.job_types import TRANSIENT, beat, left, make, take, take_by_id
from tests.harness import Harness

OWN = JobType(
    "mail", "reliability", lease_ttl_sec=120, heartbeat_sec=30, backoff_base_ms=500_000, backoff_cap_ms=600_000
)


async def test_another_process_judges_a_job_by_the_numbers_of_its_claim(store: Store, db: Harness, dsn: str) -> None:
    settings = {"reliability": {"lease_ms": 120_000, "heartbeat_ms": 30_000}}
    async with Store.open(dsn, numbers=settings) as claimer:
        await make(store, "reliability", "mail")
        job = await take(claimer, "reliability", "mail")
    beat(db, job.id, 35)  # more than two beats of the process that reaps, and not two of the one that claimed
    assert await store.reap("reliability") == []
    beat(db, job.id, 0)
    left(db, job.id, 5)
    await store.heartbeat(job.held)
    row = db.row(job.id)
    assert (row["lease_expires_at"] - row["last_heartbeat_at"]).total_seconds() == 120


@pytest.mark.parametrize("by_id", [False, True])
async def test_what_is_stored_after_the_claim_does_not_change_how_the_job_is_judged(
    store: Store, db: Harness, by_id: bool
) -> None:
    await store.types.declare([OWN])
    job_id = await make(store, "reliability", "mail")
    job = await (take_by_id(store, "reliability", job_id) if by_id else take(store, "reliability", "mail"))
    await store.types.declare([JobType("mail", "reliability", heartbeat_sec=10, backoff_base_ms=1, backoff_cap_ms=1)])
    beat(db, job.id, 35)
    assert await store.reap("reliability") == []
    moved = await store.fail(job.held, TRANSIENT)
    assert moved.delay_ms is not None
    assert moved.delay_ms > 300_000


@pytest.mark.parametrize("by_id", [False, True])
async def test_where_a_job_ends_is_the_claims_to_say_whatever_is_stored_at_the_failure(
    store: Store, by_id: bool
) -> None:
    ends = {"failed": "dead_lettered", "dead_lettered": "failed", None: "failed"}
    for at_the_claim, at_the_failure in ends.items():
        await store.types.declare([JobType("mail", "reliability", max_attempts=1, on_exhausted=at_the_claim)])
        job_id = await make(store, "reliability", "mail")
        job = await (take_by_id(store, "reliability", job_id) if by_id else take(store, "reliability", "mail"))
        await store.types.declare([JobType("mail", "reliability", max_attempts=1, on_exhausted=at_the_failure)])
        assert (await store.fail(job.held, TRANSIENT)).state == (at_the_claim or "dead_lettered")


async def test_a_claimers_own_end_wins_over_the_stored_one(store: Store) -> None:
    stored = JobType("mail", "reliability", max_attempts=1, on_exhausted="failed")
    await store.types.declare([stored])
    expected: list[tuple[list[JobType] | None, str]] = [
        (None, "failed"),
        ([stored], "failed"),
        ([JobType("mail", "reliability", on_exhausted="dead_lettered")], "dead_lettered"),
        ([JobType("mail", "reliability")], "dead_lettered"),
        ([], "dead_lettered"),
    ]
    for options, end in expected:
        await make(store, "reliability", "mail")
        job = await take(store, "reliability", "mail", declared=options)
        assert (await store.fail(job.held, TRANSIENT)).state == end


@pytest.mark.parametrize("contract", BUILT_IN)
async def test_a_claimers_own_options_win_over_the_stored_ones(store: Store, db: Harness, contract: str) -> None:
    stored, own = (JobType("mail", contract, lease_ttl_sec=s, backoff_base_ms=n, backoff_cap_ms=n)
                   for s, n in ((100, 500_000), (50, 1_000)))  # fmt: skip
    await store.types.declare([stored])
    plain = BUILT_IN[contract]
    expected: list[tuple[list[JobType] | None, tuple[int, int, int]]] = [
        (None, (100_000, 500_000, 500_000)),
        ([own], (50_000, 1_000, 1_000)),
        ([], (plain.lease.default_ms, plain.backoff.base_ms, plain.backoff.cap_ms)),
        ([JobType("other", contract)], (plain.lease.default_ms, plain.backoff.base_ms, plain.backoff.cap_ms)),
    ]
    for options, numbers in expected:
        job_id = await make(store, contract, "mail")
        (job,) = await store.claim(contract, ["mail"], worker="w", declared=options)
        row = db.row(job_id)
        assert (row["lease_ms"], row["backoff_base_ms"], row["backoff_cap_ms"]) == numbers
        assert job.lease_expires_at is not None
        assert job.started_at is not None
        assert round((job.lease_expires_at - job.started_at).total_seconds() * 1000) == numbers[0]


async def test_whether_beats_renew_is_the_claims_to_say(store: Store, db: Harness) -> None:
    async def claimed(*options: JobType) -> Job:
        await make(store, "standard", "mail")
        (job,) = await store.claim("standard", ["mail"], worker="w", declared=options)
        left(db, job.id, 5)
        return job

    still, steady = JobType("mail", renews=False), JobType("mail")
    await store.types.declare([steady])
    job = await claimed(still)
    assert not (await store.heartbeat(job.held)).renewed
    await store.types.declare([still])
    job = await claimed(steady)
    assert (await store.heartbeat(job.held)).renewed


async def test_options_that_the_contract_cannot_honour_are_refused_and_nothing_is_claimed(
    store: Store, db: Harness
) -> None:
    job_id = await make(store, "reliability", "mail")
    bad: Any
    for bad in (JobType("mail", "reliability", lease_ttl_sec=1), JobType("mail", "reliability", heartbeat_sec=1)):
        with pytest.raises(BadInput):
            await store.claim("reliability", ["mail"], worker="w", declared=[bad])
    assert db.row(job_id)["claims"] == 0
