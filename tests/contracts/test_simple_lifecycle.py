"""`simple`, document 003: five statuses, atomic claims, attempts that only rise, and a TaskResult at the end."""

from __future__ import annotations

import asyncio
import random
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from tenure.contracts.simple import SIMPLE
from tenure.errors import InvalidTransition, Refused, StaleLease
from tenure.jobs.job import Failure, Held, Job, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres.store import Store
from tests.clock import MOMENT, TICK, StoppedClock
from tests.harness import Harness
from tests.holder_calls import calls

pytestmark = pytest.mark.core

STATUSES = {"PENDING", "RUNNING", "SUCCESS", "FAILED", "CANCELLED"}


async def enqueued(store: Store, max_retries: int | None = None, run_at: datetime | None = None) -> int:
    made = await store.enqueue(NewJob("send", contract="simple", max_attempts=max_retries, run_at=run_at))
    return made.job_id


async def dequeued(store: Store) -> Job:
    (job,) = await store.claim("simple", worker="w1")
    return job


async def dequeued_at_once(dsn: str, db: Harness, count: int) -> list[Job]:
    """What this many dequeues get that were released together."""
    waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    async with Store.open(dsn, connections=count) as many:
        await many.claim("simple", ["warming up"], worker="w")
        with psycopg.connect(dsn) as gate:
            gate.execute("lock table tenure.job in access exclusive mode")
            calls = [asyncio.create_task(many.claim("simple", worker=f"w{n}")) for n in range(count)]
            while db.value(waiting) < count:
                assert not any(call.done() for call in calls)
                await asyncio.sleep(0.01)
        return [job for won in await asyncio.gather(*calls) for job in won]


def task(db: Harness, job_id: int) -> dict[str, Any]:
    return db.one("select * from tenure_simple.tasks where id = %s", job_id)


def results(db: Harness, job_id: int) -> list[dict[str, Any]]:
    return db.sql("select * from tenure_simple.task_results where task_id = %s", job_id)


@pytest.mark.req("S3-01")
async def test_the_database_knows_exactly_the_five_statuses(store: Store, db: Harness) -> None:
    job_id = await enqueued(store)
    for status in sorted(STATUSES):
        db.sql("update tenure.job set seq = 1, state = %s where id = %s", status, job_id)
        assert task(db, job_id)["status"] == status
    for status in ("RETRYING", "pending", "CANCELED", "Success", "DEAD", ""):
        with pytest.raises(psycopg.errors.CheckViolation):
            db.sql("update tenure.job set seq = 1, state = %s where id = %s", status, job_id)
    assert set(SIMPLE.states) == STATUSES


@pytest.mark.req("S3-11")
async def test_success_leaves_a_task_result_with_the_value_and_none_before(store: Store, db: Harness) -> None:
    db.spy()
    job_id = await enqueued(store)
    assert results(db, job_id) == []
    job = await dequeued(store)
    assert results(db, job_id) == []
    await store.succeed(job.held, {"sent": ["ä", 1, None]})
    (result,) = results(db, job_id)
    assert (result["status"], result["result"], result["error"]) == ("SUCCESS", {"sent": ["ä", 1, None]}, None)
    assert (result["attempts"], result["last_attempt_at"]) == (1, job.started_at)
    assert result["finished_at"] == db.log(job_id)[-1]["ts"]
    assert [(hop.old, hop.new) for hop in db.seen(job_id)] == [("PENDING", "RUNNING"), ("RUNNING", "SUCCESS")]
    assert db.hops(job_id) == ["PENDING->RUNNING", "RUNNING->SUCCESS"]


@pytest.mark.req("S3-12", "S3-13")
async def test_attempts_is_0_on_enqueue_and_1_when_dequeued(store: Store, db: Harness) -> None:
    job_id = await enqueued(store)
    assert (task(db, job_id)["status"], task(db, job_id)["attempts"]) == ("PENDING", 0)
    job = await dequeued(store)
    assert job.counter == 1
    assert (task(db, job_id)["status"], task(db, job_id)["attempts"]) == ("RUNNING", 1)


@pytest.mark.req("S3-30")
async def test_a_task_is_due_when_its_eta_is_past_or_missing_and_not_when_it_is_in_the_future(
    store: Store, db: Harness
) -> None:
    now = db.value("select clock_timestamp()")
    future = await enqueued(store, run_at=now + timedelta(hours=1))
    past = await enqueued(store, run_at=now - timedelta(hours=1))
    at_once = await enqueued(store)
    without = await enqueued(store)
    db.sql("update tenure.job set due_at = null where id = %s", without)
    assert task(db, future)["eta"] == now + timedelta(hours=1)
    assert task(db, without)["eta"] is None
    won = await store.claim("simple", worker="w1", limit=10)
    assert {job.id for job in won} == {past, at_once, without}
    assert (task(db, future)["status"], task(db, future)["attempts"]) == ("PENDING", 0)
    db.due(future)
    assert (await dequeued(store)).id == future


@pytest.mark.req("S3-33")
async def test_of_64_dequeues_at_once_one_gets_the_task(dsn: str, store: Store, db: Harness) -> None:
    job_id = await enqueued(store)
    db.spy()
    (won,) = await dequeued_at_once(dsn, db, 64)
    assert [(hop.old, hop.new, hop.counter) for hop in db.seen(job_id)] == [("PENDING", "RUNNING", 1)]
    assert (task(db, job_id)["status"], task(db, job_id)["attempts"]) == ("RUNNING", 1)
    assert (db.row(job_id)["lease_token"], db.row(job_id)["lease_owner"]) == (won.lease_token, won.lease_owner)
    db.log_is_sound(job_id)


@pytest.mark.req("S3-08")
async def test_of_32_dequeues_at_once_before_the_eta_none_gets_the_task(dsn: str, store: Store, db: Harness) -> None:
    job_id = await enqueued(store)
    await store.fail((await dequeued(store)).held, Failure("boom"))
    db.sql("update tenure.job set due_at = due_at + interval '1 minute' where id = %s", job_id)
    before = db.fingerprint(job_id)
    assert await dequeued_at_once(dsn, db, 32) == []
    assert db.fingerprint(job_id) == before


@pytest.mark.req("S3-08")
async def test_a_dequeue_gets_a_retried_task_at_its_eta_and_not_before(clock: StoppedClock, db: Harness) -> None:
    async with Store.open(clock.dsn) as store:
        job_id = await enqueued(store)
        answer = await store.fail((await dequeued(store)).held, Failure("boom"))
        assert answer.due_at is not None
        for early in (MOMENT, answer.due_at - TICK):
            clock.set(early)
            assert await store.claim("simple", worker="w2") == []
        clock.set(answer.due_at)
        (job,) = await store.claim("simple", worker="w2")
    assert job.id == job_id
    assert db.log(job_id)[-1]["ts"] == job.started_at == answer.due_at


async def finished_three_ways(store: Store, db: Harness) -> list[Held]:
    """The holders of a task that ended in SUCCESS, one in FAILED and one in CANCELLED."""
    await store.enqueue_many([NewJob("send", contract="simple", max_attempts=1)] * 3)
    succeeded, failed, cancelled = [job.held for job in await store.claim("simple", worker="w1", limit=3)]
    await store.succeed(succeeded, "value")
    # A cancel that was asked for while the task ran: its failure takes the cancel path.
    db.sql("update tenure.job set cancel_requested_at = clock_timestamp() where id = %s", cancelled.id)
    await store.report("fail", calls([failed, cancelled], failures=[Failure("boom")] * 2))
    assert [task(db, held.id)["status"] for held in (succeeded, failed, cancelled)] == [
        "SUCCESS",
        "FAILED",
        "CANCELLED",
    ]
    return [succeeded, failed, cancelled]


@pytest.mark.req("S3-29")
async def test_calls_on_an_ended_task_are_rejected_without_effect(store: Store, db: Harness) -> None:
    holders = await finished_three_ways(store, db)
    ids = [held.id for held in holders]
    before = db.fingerprint(*ids)
    late = [
        *await store.report("succeed", calls(holders, results=["other"] * 3)),
        *await store.report("fail", calls(holders, failures=[Failure("late")] * 3)),
    ]
    assert [isinstance(answer, InvalidTransition) and answer.state for answer in late] == [
        "SUCCESS", "FAILED", "CANCELLED"
    ] * 2  # fmt: skip
    claims = await store.claim_by_id(ids, worker="w2", contract="simple")
    assert [isinstance(answer, InvalidTransition) for answer in claims] == [True] * 3
    db.expire(*ids)
    db.due(*ids)
    for loop in (store.reap, store.promote, store.settle):
        assert await loop("simple") == []
    assert await store.claim("simple", worker="w2", limit=5) == []
    assert db.fingerprint(*ids) == before


async def a_busy_hour(store: Store, db: Harness, seed: int) -> list[int]:
    """Claims, successes, failures, crashes and late calls in random order over 30 tasks."""
    chance, holders = random.Random(seed), list[Held]()
    made = await store.enqueue_many([NewJob("send", contract="simple", max_attempts=n % 5) for n in range(30)])
    ids = [answer.job_id for answer in made if answer.job_id is not None]
    for _ in range(60):
        some = chance.sample(holders, min(len(holders), chance.randint(1, 6)))
        match chance.choice(("claim", "claim", "succeed", "fail", "fail", "crash")):
            case "claim":
                db.due(*chance.sample(ids, 15))
                holders.extend(job.held for job in await store.claim("simple", worker="w", limit=chance.randint(1, 8)))
            case "succeed":
                await store.report("succeed", calls(some[:1]))
            case "fail":
                await store.report("fail", calls(some, failures=[Failure("boom")] * len(some)))
            case _:
                running = db.sql("select id from tenure_simple.tasks where status = 'RUNNING'")
                db.expire(*(row["id"] for row in running if chance.random() < 0.4))
                await store.reap("simple")
    assert len({held.id for held in holders}) > 20
    return ids


@pytest.mark.req("S3-14", "S3-15", "S3-16")
async def test_attempts_counts_claims_and_changes_with_nothing_else(store: Store, db: Harness) -> None:
    db.spy()
    ids = await a_busy_hour(store, db, seed=1)
    for job_id in ids:
        seen = db.seen(job_id)
        claims = sum((hop.old, hop.new) == ("PENDING", "RUNNING") for hop in seen)
        assert task(db, job_id)["attempts"] == claims
        counts = [0, *(hop.counter for hop in seen)]
        rises = [after - before for before, after in pairwise(counts)]
        assert rises == [int((hop.old, hop.new) == ("PENDING", "RUNNING")) for hop in seen]
    db.log_is_sound(*ids)


@pytest.mark.req("S3-06")
async def test_a_running_task_never_goes_straight_back_to_pending(store: Store, db: Harness) -> None:
    db.spy()
    ids = await a_busy_hour(store, db, seed=3)
    retries = 0
    for job_id in ids:
        # One change of the row may be two hops: the log fills exactly that gap.
        expected: list[str] = []
        for hop in db.seen(job_id):
            back = (hop.old, hop.new) == ("RUNNING", "PENDING")
            retries += back
            expected += ["RUNNING->FAILED", "FAILED->PENDING"] if back else [f"{hop.old}->{hop.new}"]
        assert db.hops(job_id) == expected
    assert retries > 10
    assert ("RUNNING", "PENDING") not in SIMPLE.edges()


@pytest.mark.req("S3-32")
async def test_a_second_failure_of_the_same_attempt_schedules_nothing(store: Store, db: Harness) -> None:
    job_id = await enqueued(store)
    held = (await dequeued(store)).held
    first = await store.fail(held, Failure("boom"))
    before = db.fingerprint(job_id)
    with pytest.raises(StaleLease):
        await store.fail(held, Failure("boom"))
    assert db.fingerprint(job_id) == before
    assert task(db, job_id)["eta"] == first.due_at
    db.due(job_id)
    await dequeued(store)
    running = db.fingerprint(job_id)
    with pytest.raises(StaleLease):
        await store.fail(held, Failure("boom"))
    assert db.fingerprint(job_id) == running
    assert db.hops(job_id).count("FAILED->PENDING") == 1


@pytest.mark.req("S3-32")
async def test_the_same_failure_twice_in_one_batch_schedules_one_retry(store: Store, db: Harness) -> None:
    job_id = await enqueued(store)
    held = (await dequeued(store)).held
    first, second = await store.report("fail", calls([held, held], failures=[Failure("boom"), Failure("boom")]))
    assert isinstance(first, Moved)
    assert isinstance(second, Refused)
    assert task(db, job_id)["eta"] == first.due_at
    assert db.hops(job_id) == ["PENDING->RUNNING", "RUNNING->FAILED", "FAILED->PENDING"]
