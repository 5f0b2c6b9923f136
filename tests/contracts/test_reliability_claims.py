"""Document 002, keys: the same request twice, or eight times at once, is one job and one claim."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import uuid4

import pytest

from tenure.errors import IdempotencyConflict, LeaseConflictError
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tests.contracts.reliability import assigned, events, make, shown, stores, types
from tests.harness import Harness

pytestmark = pytest.mark.core


@pytest.mark.req("S2-24")
async def test_sixteen_enqueues_with_one_key_make_one_job_and_one_claim_key_one_claim(db: Harness, dsn: str) -> None:
    job = NewJob("index", {"n": 1}, contract="reliability", key="order-7")
    async with stores(dsn, 16) as sixteen:
        answers = await asyncio.gather(*(store.enqueue(job) for store in sixteen))
        assert len({answer.job_id for answer in answers}) == 1
        assert [answer.made for answer in answers].count(True) == 1
        assert db.value("select count(*) from tenure_reliability.jobs where idempotency_key = 'order-7'") == 1
        assert not (await sixteen[0].enqueue(job)).made
        with pytest.raises(IdempotencyConflict):
            await sixteen[0].enqueue(replace(job, payload={"n": 2}))
        key = uuid4()
        claims = [await store.claim("reliability", worker="w1", claim_key=key) for store in sixteen[:3]]
    assert claims[0] == claims[1] == claims[2]
    assert len(claims[0]) == 1
    assert types(db, answers[0].job_id) == ["job_claimed"]


async def test_a_key_still_stands_for_its_job_after_the_job_ended(store: Store, db: Harness) -> None:
    job_id = await make(store, key="order-7")
    job = await assigned(store)
    await store.start(job.held)
    await store.succeed(job.held)
    before = db.fingerprint(job_id)
    assert await make(store, key="order-7") == job_id
    assert await store.claim("reliability", worker="w2") == []
    assert db.fingerprint(job_id) == before


@pytest.mark.req("S2-54")
async def test_eight_claims_with_one_key_on_a_hundred_jobs_win_one_job_and_get_equal_answers(
    db: Harness, dsn: str
) -> None:
    key = uuid4()
    async with stores(dsn, 8) as eight:
        await eight[0].enqueue_many([NewJob("index", contract="reliability") for _ in range(100)])
        answers = await asyncio.gather(*(store.claim("reliability", worker="w1", claim_key=key) for store in eight))
        assert all(answer == answers[0] for answer in answers)
        (job,) = answers[0]
        assert job.lease_token == key
        rows = db.sql("select status, count(*) as jobs from tenure_reliability.jobs group by status order by status")
        assert [(row["status"], row["jobs"]) for row in rows] == [("assigned", 1), ("queued", 99)]
        assert types(db, job.id) == ["job_claimed"]
        assert db.value("select count(*) from tenure_reliability.job_events") == 1
        # The key outlives the start, and dies with the lease: it neither revives it nor wins another job.
        await eight[0].start(job.held)
        (again,) = await eight[1].claim("reliability", worker="w1", claim_key=key)
        assert (again.id, again.lease_token, again.state) == (job.id, key, "running")
        db.expire(job.id)
        with pytest.raises(LeaseConflictError):
            await eight[2].claim("reliability", worker="w1", claim_key=key)
    assert shown(db, job.id)["status"] == "queued"
    assert [event["type"] for event in events(db, job.id)] == ["job_claimed", "job_started", "job_requeued"]
    assert db.value("select count(*) from tenure_reliability.jobs where status = 'queued'") == 100


async def test_a_claim_that_is_repeated_gets_the_job_it_won_and_no_other(store: Store, db: Harness) -> None:
    await make(store)
    await make(store)
    key = uuid4()
    (first,) = await store.claim("reliability", worker="w1", claim_key=key)
    (again,) = await store.claim("reliability", worker="w1", claim_key=key)
    assert (again.id, again.claims, again.lease_token) == (first.id, 1, key)
    assert db.value("select count(*) from tenure.job where role = 'leased'") == 1


async def test_a_claim_key_of_a_finished_job_wins_nothing_more(store: Store, db: Harness) -> None:
    first, second = await make(store), await make(store)
    key = uuid4()
    job = await assigned(store, claim_key=key)
    await store.start(job.held)
    await store.succeed(job.held)
    before = db.fingerprint(first, second)
    with pytest.raises(LeaseConflictError):
        await store.claim("reliability", worker="w1", claim_key=key)
    assert db.fingerprint(first, second) == before


async def test_a_key_that_won_nothing_may_be_used_again(store: Store) -> None:
    key = uuid4()
    assert await store.claim("reliability", worker="w1", claim_key=key) == []
    job_id = await make(store)
    assert (await assigned(store, claim_key=key)).id == job_id
