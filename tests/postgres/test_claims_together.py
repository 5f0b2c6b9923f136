"""Claims of several callers at the same time: one statement, and each gets what it would have got alone."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from tenure.errors import InvalidTransition, StaleLease
from tenure.jobs.job import Job, NewJob
from tenure.postgres.claim import Claimer
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.holder_calls import calls

pytestmark = pytest.mark.core


async def made(store: Store, count: int, contract: str = "standard", tenant: str = "default") -> list[int]:
    jobs = [NewJob("t", contract=contract, tenant_id=tenant) for _ in range(count)]
    return [one.job_id for one in await store.enqueue_many(jobs) if not isinstance(one, Exception)]


def claimers(*limits: int) -> list[Claimer]:
    return [Claimer(f"w{n}", limit, uuid4()) for n, limit in enumerate(limits)]


def keys(db: Harness) -> set[UUID]:
    return {row["key"] for row in db.sql("select key from tenure.claim")}


@pytest.mark.parametrize("contract", ["standard", "phase27", "reliability", "dispatcher"])
async def test_jobs_are_dealt_out_in_the_order_of_the_claimers(store: Store, db: Harness, contract: str) -> None:
    ids = await made(store, 7, contract)
    asked = claimers(2, 3, 1, 5, 2)
    dealt = await store.claim_for_many(contract, ["default"], asked)
    won = [part for part in dealt if isinstance(part, list)]
    assert [len(part) for part in won] == [2, 3, 1, 1, 0]
    assert [job.id for part in won for job in part] == ids
    for claimer, part in zip(asked, won, strict=True):
        assert {(job.lease_owner, job.lease_token) for job in part} <= {(claimer.worker, claimer.key)}
        for job in part:
            row = db.row(job.id)
            assert (row["lease_owner"], row["lease_token"], row["claims"]) == (claimer.worker, claimer.key, 1)
            assert db.log(job.id)[-1]["actor"] == claimer.worker
    # A key that won nothing is not spent: its caller may go on asking with it.
    assert keys(db) == {claimer.key for claimer in asked[:4]}
    db.log_is_sound(*ids)


async def test_a_repeat_among_others_gets_what_it_won_and_takes_nothing_from_them(store: Store, db: Harness) -> None:
    await made(store, 6)
    first, second, third = claimers(2, 2, 1)
    (before,) = await store.claim_for_many("standard", ["default"], [first])
    dealt = await store.claim_for_many("standard", ["default"], [first, second, third])
    assert isinstance(before, list)
    assert isinstance(dealt[0], list)
    assert [job.id for job in dealt[0]] == [job.id for job in before]
    assert db.value("select count(*) from tenure.job where lease_token = %s", first.key) == 2
    await store.report("succeed", calls([job.held for job in before]))
    again = await store.claim_for_many("standard", ["default"], [first, Claimer("w9", 1, uuid4())])
    assert isinstance(again[0], StaleLease)
    assert isinstance(again[1], list)


async def test_a_tenants_claim_takes_its_own_jobs_alone(store: Store) -> None:
    await made(store, 3, tenant="acme")
    theirs = await made(store, 2, tenant="blue")
    assert [job.id for job in await store.claim(worker="w", limit=10, tenant="blue")] == theirs
    assert await store.claim(worker="w", limit=10, tenant="blue") == []
    await made(store, 2, "phase27", "acme")
    mine = await made(store, 1, "phase27", "blue")
    taken = await store.claim("phase27", worker="w", limit=10, tenant="blue")
    assert [job.id for job in taken] == mine


async def test_claimers_of_one_job_at_the_same_time_and_one_gets_it(store: Store, db: Harness) -> None:
    first, second = await made(store, 2, "dispatcher")
    asked = claimers(*[1] * 9)
    answers = await store.claim_ids_for_many("dispatcher", [first] * 8 + [second], asked)
    assert [type(answer) for answer in answers] == [Job, *[InvalidTransition] * 7, Job]
    assert [db.row(job_id)["lease_owner"] for job_id in (first, second)] == ["w0", "w8"]
    assert keys(db) == {asked[0].key, asked[8].key}
    again = await store.claim_ids_for_many("dispatcher", [first, second], [asked[0], asked[8]])
    assert again == [answers[0], answers[8]]


@pytest.mark.serial
async def test_shared_claims_on_many_connections_take_every_job_once(dsn: str, store: Store, db: Harness) -> None:
    await made(store, 300)
    async with Store.open(dsn, connections=6) as many:

        async def claim(n: int) -> list[int]:
            dealt = await many.claim_for_many("standard", ["default"], claimers(3, 1, 4))
            return [job.id for part in dealt if isinstance(part, list) for job in part]

        won = [job_id for part in await asyncio.gather(*map(claim, range(36))) for job_id in part]
    assert len(won) == len(set(won)) == db.value("select count(*) from tenure.job where claims = 1")
    assert len(won) >= 280  # of 288; a claim skips what another is taking just now
