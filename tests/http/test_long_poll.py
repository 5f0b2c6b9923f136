"""Claims that wait: repeated, abandoned, with another tenant's key, behind a locked row."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import httpx2

from tenure.errors import PayloadTooLarge
from tenure.http.authentication import Caller as Who
from tenure.http.job_calls import JobCalls
from tenure.http.long_poll import ClaimFilter, ClaimGroup
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import Failure, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres.claim import Claimer
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.http.conftest import Caller, new_key, serving
from tests.worker.working import until

ANYBODY = Who("w", frozenset({"admin"}))
MAIL = ClaimFilter("standard", ("default",))


async def never() -> bool:
    return False


async def test_a_waiting_claim_and_its_repeat_elsewhere_are_told_the_same(
    store: Store, dsn: str, waited: list[ClaimGroup]
) -> None:
    here, key = JobCalls(store), uuid4()
    async with Store.open(dsn) as other:
        there = JobCalls(other)
        asked = (desk.claim(MAIL, Claimer("w1", 1, key), 60, never) for desk in (here, there, here))
        claims = asyncio.gather(*asked)
        await until(lambda: len(waited) == 3)
        made = await store.enqueue(NewJob("t"))
        for desk in (here, there):
            desk.wakeups.publish("standard", "default")
        answers = await asyncio.wait_for(claims, 50)
    assert [[job.id for job in jobs] for jobs in answers] == [[made.job_id]] * 3


async def test_who_left_while_they_waited_takes_no_job(store: Store, db: Harness, waited: list[ClaimGroup]) -> None:
    desk, has_left = JobCalls(store), False

    async def is_gone() -> bool:
        return has_left

    claim = asyncio.create_task(desk.claim(MAIL, Claimer("gone", 1, uuid4()), 60, is_gone))
    await until(lambda: bool(waited))
    has_left = True
    made = await store.enqueue(NewJob("t"))
    desk.wakeups.publish("standard", "default")
    assert await asyncio.wait_for(claim, 50) == []
    assert (db.hops(made.job_id), db.row(made.job_id)["claims"]) == ([], 0)


async def test_who_waits_with_a_spent_key_takes_no_job_from_others(store: Store) -> None:
    desk, key = JobCalls(store), uuid4()
    await store.enqueue(NewJob("t"))
    (first,) = await desk.claim(MAIL, Claimer("w1", 1, key), 0, never)
    await store.enqueue(NewJob("t"))
    claims = asyncio.gather(
        desk.claim(MAIL, Claimer("w1", 1, key), 60, never), desk.claim(MAIL, Claimer("w2", 1, uuid4()), 60, never)
    )
    again, other = await asyncio.wait_for(claims, 50)
    assert ([job.id for job in again], len(other)) == ([first.id], 1)


def test_a_claim_key_of_another_tenant_or_worker_tells_nothing(dsn: str, http: Caller, store: Store) -> None:
    http.enqueued(tenant_id="beta", payload={"iban": "DE12"})
    key = str(uuid4())
    http.claimed(claim_key=key)
    asked = {"contract": "standard", "worker_id": "w2", "claim_key": key}
    http.refused("/api/v1/claims", asked, 409, "LEASE_CONFLICT")
    with serving(dsn, admin_key="an admin's key, long enough") as url:
        made = new_key(dsn, "acme", "work", tenant="acme")
        answer = httpx2.post(
            f"{url}/api/v1/claims", json={**asked, "worker_id": "w1"}, headers={"Authorization": f"Bearer {made}"},
            timeout=30,
        )  # fmt: skip
    assert (answer.status_code, "DE12" in answer.text) == (403, False)


async def test_one_locked_row_stalls_no_other_claim_by_id(patient_store: Store, db: Harness) -> None:
    desk = JobCalls(patient_store)
    ids = [(await patient_store.enqueue(NewJob("t", contract="dispatcher"))).job_id for _ in range(3)]
    with db.connection.transaction():
        db.sql("select from tenure.job where id = %s for update", ids[0])
        asked = [asyncio.ensure_future(desk.claim_by_id(n, Claimer(f"w{n}"), ANYBODY)) for n in ids]
        others = await asyncio.wait_for(asyncio.gather(*asked[1:]), 60)  # a lock is waited for longer
        assert not asked[0].done()
    assert [job.id for job in [await asked[0], *others]] == ids


async def test_what_is_wrong_with_one_word_is_not_told_to_its_neighbours(dsn: str, db: Harness) -> None:
    # Failures are weighed by the store alone, when those that are said together have joined one batch.
    failures = [Failure("one"), Failure("two", stack="x" * 20_000), Failure("three")]
    async with Store.open(dsn, max_bytes=10_000) as store:
        desk = JobCalls(store, 10_000)
        await store.enqueue_many([NewJob("t")] * 3)
        jobs = await store.claim(worker="w", limit=3)
        said = [desk.report("fail", HolderCall(job.held, failure=why)) for job, why in zip(jobs, failures, strict=True)]
        answers = await asyncio.gather(*said, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Moved, PayloadTooLarge, Moved]
    assert [db.row(job.id)["state"] for job in jobs] == ["queued", "running", "queued"]
    db.log_is_sound(*(job.id for job in jobs))
