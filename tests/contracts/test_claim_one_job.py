"""Document 002's `claim_one_job`: one queued job under a row lock and a lease, the same for the same request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tenure.errors import BadInput, InvalidTransition, JobNotFound, LeaseConflictError, NotDue
from tenure.jobs.job import Failure, Job, NewJob
from tenure.postgres.store import Store
from tests.contracts.reliability import PERMANENT, make, running, shown, stores, types
from tests.harness import Harness
from tests.races.sessions import Session, now

by_name_or_not = pytest.mark.parametrize("named", [False, True], ids=["whatever is due", "by id"])


@pytest.fixture
def other(dsn: str) -> Iterator[Harness]:
    """A second session."""
    with Harness(dsn) as harness:
        yield harness


async def claimed(store: Store, worker: str = "w1", **options: Any) -> Job:
    job = await store.claim_one_job(worker, **options)
    assert job is not None
    return job


def lock(other: Harness, job_id: int) -> None:
    """What a second session does that wants the row and will not wait for it."""
    with other.connection.transaction(force_rollback=True):
        other.sql("select from tenure.job where id = %s for update nowait", job_id)


@pytest.mark.req("S2-51")
@by_name_or_not
async def test_the_row_is_locked_until_the_claims_transaction_ends(
    store: Store, dsn: str, other: Harness, named: bool
) -> None:
    job_id = await make(store)
    lock(other, job_id)  # nobody has it yet
    with Session(dsn, "claimer") as claimer:
        claimer.begin()
        job = now(claimer.store.claim_one_job("w1", job_id=job_id if named else None))
        assert job is not None
        assert job.id == job_id
        with pytest.raises(psycopg.errors.LockNotAvailable):
            lock(other, job_id)
        granted = other.value(
            "select count(*) from pg_locks where pid = %s and granted and relation = 'tenure.job'::regclass "
            "and mode = 'RowExclusiveLock'",
            claimer.pid,
        )
        assert granted == 1
        # A second claimer is not held up by the lock: it has nothing to claim.
        assert await store.claim_one_job("w2") is None
        claimer.end("commit")
    lock(other, job_id)
    assert shown(other, job_id)["owner"] == "w1"


@pytest.mark.req("S2-51")
async def test_a_claim_that_was_rolled_back_locks_nothing_and_took_nothing(
    store: Store, dsn: str, other: Harness
) -> None:
    job_id = await make(store)
    before = other.fingerprint(job_id)
    with Session(dsn, "claimer") as claimer:
        claimer.begin()
        assert now(claimer.store.claim_one_job("w1")) is not None
        claimer.end("rollback")
    lock(other, job_id)
    assert other.fingerprint(job_id) == before
    assert (await claimed(store, "w2")).id == job_id


@pytest.mark.req("S2-53")
@by_name_or_not
async def test_owner_and_lease_are_set_with_the_state_in_one_transaction(
    store: Store, db: Harness, named: bool
) -> None:
    db.spy()
    job_id = await make(store)
    job = await claimed(store, "w7", job_id=job_id if named else None)
    row = shown(db, job_id)
    assert (job.state, job.lease_owner, job.claims) == ("assigned", "w7", 1)
    assert (row["status"], row["owner"], row["lease_expires_at"]) == ("assigned", "w7", job.lease_expires_at)
    assert [(hop.old, hop.new) for hop in db.seen(job_id)] == [("queued", "assigned")]
    assert types(db, job_id) == ["job_claimed"]
    written = db.one(
        "select j.xmin::text as row, e.xmin::text as event from tenure.job j join tenure.event e on e.job_id = j.id "
        "where j.id = %s",
        job_id,
    )
    assert written["row"] == written["event"]


@pytest.mark.req("S2-52")
async def test_only_a_queued_job_is_claimed(store: Store, db: Harness) -> None:
    succeeded, failed, cancelled, dead, started, held = [await make(store) for _ in range(6)]
    for job_id in (succeeded, failed, started, held):
        await claimed(store, job_id=job_id)
    for job_id, failure in ((succeeded, None), (failed, PERMANENT)):
        (job,) = await store.jobs([job_id])
        await store.start(job.held)
        await (store.fail(job.held, failure) if failure else store.succeed(job.held))
    await store.start((await store.jobs([started]))[0].held)
    await store.cancel(cancelled)
    await store.dead_letter(dead, reason_code="policy_violation")
    six = (succeeded, failed, cancelled, dead, started, held)
    assert [shown(db, job_id)["status"] for job_id in six] == [
        "succeeded", "failed", "cancelled", "dead_lettered", "running", "assigned"
    ]  # fmt: skip
    before = db.fingerprint(*six)
    assert await store.claim_one_job("w2") is None
    for job_id in six:
        with pytest.raises(InvalidTransition):
            await store.claim_one_job("w2", job_id=job_id)
    assert db.fingerprint(*six) == before


async def test_a_named_job_that_cannot_be_had_says_why(store: Store, db: Harness) -> None:
    later = await make(store, delay_ms=60_000)
    before = db.fingerprint(later)
    with pytest.raises(NotDue):
        await store.claim_one_job("w1", job_id=later)
    with pytest.raises(JobNotFound):
        await store.claim_one_job("w1", job_id=later + 1)
    with pytest.raises(BadInput):
        await store.claim_one_job("w1", claim_key="request-1")
    assert db.fingerprint(later) == before


@pytest.mark.req("S2-54")
@by_name_or_not
async def test_the_same_request_of_the_same_worker_gets_the_same_job_and_lease(
    db: Harness, dsn: str, named: bool
) -> None:
    key = uuid4()
    async with stores(dsn, 8) as eight:
        made = await eight[0].enqueue_many([NewJob("index", contract="reliability") for _ in range(100)])
        wanted = made[40].job_id if named else None
        answers = await asyncio.gather(*(each.claim_one_job("w1", claim_key=key, job_id=wanted) for each in eight))
    first = answers[0]
    assert first is not None
    assert answers == [first] * 8
    assert (first.lease_token, first.lease_owner) == (key, "w1")
    assert db.value("select count(*) from tenure_reliability.jobs where status <> 'queued'") == 1
    assert db.value("select count(*) from tenure_reliability.job_events") == 1


async def ended(store: Store, db: Harness, job: Job, how: str) -> None:
    """Let the lease be over."""
    if how == "expired":
        db.expire(job.id)
        return
    await store.start(job.held)
    await (store.succeed(job.held) if how == "succeeded" else store.fail(job.held, Failure("no", "TransientError")))


@pytest.mark.req("S2-54")
@by_name_or_not
@pytest.mark.parametrize("how", ["expired", "succeeded", "retried"])
async def test_a_request_whose_lease_is_over_is_a_lease_conflict_and_wins_nothing_else(
    store: Store, db: Harness, how: str, named: bool
) -> None:
    first_id, second_id = await make(store), await make(store)
    key = uuid4()
    options: dict[str, Any] = {"claim_key": key, "job_id": first_id if named else None}
    job = await claimed(store, **options)
    assert job.id == first_id
    await ended(store, db, job, how)
    for _ in range(2):
        with pytest.raises(LeaseConflictError):
            await store.claim_one_job("w1", **options)
    assert shown(db, second_id)["status"] == "queued"
    assert types(db, first_id).count("job_claimed") == 1


@by_name_or_not
async def test_a_request_is_one_workers_own(store: Store, db: Harness, named: bool) -> None:
    job_id = await make(store)
    options: dict[str, Any] = {"claim_key": uuid4(), "job_id": job_id if named else None}
    await claimed(store, "w1", **options)
    before = db.fingerprint(job_id)
    with pytest.raises(LeaseConflictError, match="held by w1") as refusal:
        await store.claim_one_job("w2", **options)
    assert (refusal.value.job_id, refusal.value.held_by) == (job_id, "w1")
    assert db.fingerprint(job_id) == before


async def test_a_key_that_won_one_job_does_not_name_another(store: Store, db: Harness) -> None:
    first_id, second_id = await make(store), await make(store)
    key: UUID = uuid4()
    await claimed(store, claim_key=key, job_id=first_id)
    before = db.fingerprint(first_id, second_id)
    with pytest.raises(LeaseConflictError):
        await store.claim_one_job("w1", claim_key=key, job_id=second_id)
    assert db.fingerprint(first_id, second_id) == before


async def test_queues_are_taken_in_the_order_given_and_other_contracts_on_request(store: Store) -> None:
    for queue in ("mail", "default"):
        await make(store, queue=queue)
    assert (await claimed(store, queues=["default", "mail"])).queue == "default"
    assert (await claimed(store, queues=["default", "mail"])).queue == "mail"
    await store.enqueue(NewJob("t"))
    assert await store.claim_one_job("w1") is None
    assert (await claimed(store, contract="standard")).state == "running"


async def test_an_expired_lease_is_closed_before_the_job_is_claimed_again(store: Store, db: Harness) -> None:
    job_id = await make(store)
    await running(store)
    db.expire(job_id)
    job = await claimed(store, "w2")
    assert (job.id, job.claims, job.lease_owner) == (job_id, 2, "w2")
    assert types(db, job_id) == ["job_claimed", "job_started", "job_requeued", "job_claimed"]
