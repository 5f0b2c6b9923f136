"""`dispatcher`, document 001: while publishing is on, whatever makes a task Queued writes its wake-up with it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import IdempotencyConflict
from tenure.jobs.job import Failure, NewJob
from tenure.jobs.outcome import Enqueued
from tenure.postgres.store import Store
from tests.harness import Harness

BOOM = Failure("boom", "OperatorError", retryable=True)


@pytest.fixture
async def publishing(store: Store) -> Store:
    """The store, with publishing on."""
    await store.outbox.publish({"default": "https://queue.example/1/default"})
    return store


def outbox(db: Harness) -> list[str]:
    """The tasks that wake-ups are for, in the order written."""
    rows = db.sql("select task_id, body, published_at from tenure_dispatcher.outbox order by id")
    assert all(row["body"] == {"task_id": str(row["task_id"])} and row["published_at"] is None for row in rows)
    return [row["body"]["task_id"] for row in rows]


def task(db: Harness, task_id: int) -> dict[str, Any]:
    """A task in the document's own words."""
    return db.one("select * from tenure_dispatcher.tasks where task_id = %s", task_id)


async def make(store: Store, **given: Any) -> int:
    """A new task."""
    return (await store.enqueue(NewJob("extract", contract="dispatcher", **given))).job_id


async def failed(store: Store, *ids: int) -> None:
    """Let each of these tasks, which alone are due, fail."""
    jobs = await store.claim("dispatcher", worker="w", limit=100)
    assert sorted(job.id for job in jobs) == sorted(ids)
    for job in jobs:
        await store.fail(job.held, BOOM)


async def test_a_new_task_is_queued_with_its_wake_up(publishing: Store, db: Harness) -> None:
    made = await make(publishing)
    shown = task(db, made)
    assert (shown["status"], shown["attempt"], shown["lease_token"]) == ("Queued", 1, None)
    row = db.one("select * from tenure_dispatcher.outbox")
    assert (row["task_id"], row["body"], row["published_at"]) == (made, {"task_id": str(made)}, None)
    assert db.one("select contract, publish_at <= clock_timestamp() as now from tenure.outbox") == {
        "contract": "dispatcher", "now": True,
    }  # fmt: skip


async def test_every_task_of_a_batch_has_its_own_wake_up(publishing: Store, db: Harness) -> None:
    jobs = [NewJob("extract", contract="dispatcher", key=f"k{n}" if n % 2 else None) for n in range(6)]
    others = [NewJob("t"), NewJob("t", contract="phase27"), NewJob("t", contract="dispatcher", key="k1")]
    answers = await publishing.enqueue_many([*jobs, *others])
    ids = {one.job_id for one in answers[:6] if isinstance(one, Enqueued)}
    assert isinstance(answers[-1], IdempotencyConflict)
    assert len(ids) == 6
    assert sorted(outbox(db), key=int) == [str(each) for each in sorted(ids)]


async def test_a_duplicate_request_makes_one_task_and_one_wake_up(publishing: Store, db: Harness, dsn: str) -> None:
    stores = [await Store.connect(dsn, connections=1) for _ in range(4)]
    made = await asyncio.gather(*(make(each, key="upstream-7") for each in stores))
    for each in stores:
        await each.close()
    assert len(set(made)) == 1
    assert await make(publishing, key="upstream-7") == made[0]
    assert outbox(db) == [str(made[0])]
    assert db.value("select count(*) from tenure_dispatcher.tasks where dedupe_key = 'upstream-7'") == 1


async def test_a_delayed_task_is_woken_when_it_is_due(publishing: Store, db: Harness) -> None:
    delayed = await make(publishing, delay_ms=60_000)
    at = datetime.now(UTC) + timedelta(hours=1)
    planned = await make(publishing, run_at=at)
    due = (
        "select job_id, publish_at, job.due_at from tenure.outbox join tenure.job on job.id = job_id order by outbox.id"
    )
    first, second = db.sql(due)
    assert (first["job_id"], first["publish_at"]) == (delayed, first["due_at"])
    assert (second["job_id"], second["publish_at"]) == (planned, at)


async def test_a_batch_that_is_rolled_back_leaves_no_wake_up(publishing: Store, db: Harness) -> None:
    db.sql("""
        create function public.no_wake() returns trigger language plpgsql as $$ begin raise 'no wake-up today'; end $$;
        create trigger no_wake before insert on tenure.outbox for each row when (new.job_id % 3 = 0)
            execute function public.no_wake()
    """)
    mixed = [NewJob("t"), *(NewJob("t", contract="dispatcher", key=f"k{n}") for n in range(4))]
    with pytest.raises(Exception, match="no wake-up today"):
        await publishing.enqueue_many(mixed)
    counts = "select (select count(*) from tenure.job) as jobs, (select count(*) from tenure.key) as keys"
    assert db.one(counts) == {"jobs": 0, "keys": 0}
    assert outbox(db) == []
    db.sql("drop function public.no_wake() cascade")
    assert len([one for one in await publishing.enqueue_many(mixed) if isinstance(one, Enqueued) and one.made]) == 5
    assert len(outbox(db)) == 4


@pytest.mark.req("S1-70")
async def test_one_tick_queues_what_is_due_with_the_next_attempt_and_its_wake_up(
    publishing: Store, db: Harness
) -> None:
    due, later, ended = await make(publishing), await make(publishing), await make(publishing, max_attempts=1)
    await failed(publishing, due, later, ended)
    assert task(db, ended)["next_retry_at"] is None
    db.due(due)
    untouched, told = db.fingerprint(later, ended)[:-1], outbox(db)
    (moved,) = await publishing.promote("dispatcher")
    assert moved.job_id == due
    shown = task(db, due)
    assert (shown["status"], shown["attempt"], shown["next_retry_at"]) == ("Queued", 2, None)
    assert outbox(db) == [*told, str(due)]
    assert db.fingerprint(later, ended)[:-1] == untouched
    assert db.value("select bool_and(publish_at <= clock_timestamp()) from tenure.outbox")
    assert await publishing.promote("dispatcher") == []
    assert outbox(db) == [*told, str(due)], "once"
    (job,) = await publishing.claim("dispatcher", worker="w")
    assert (job.id, job.counter) == (due, 2)


async def test_two_reconcilers_write_one_wake_up_for_each_task(publishing: Store, db: Harness, dsn: str) -> None:
    jobs = [NewJob("extract", contract="dispatcher")] * 100
    ids = [one.job_id for one in await publishing.enqueue_many(jobs) if isinstance(one, Enqueued)]
    await failed(publishing, *ids)
    db.due(*ids)
    db.sql("delete from tenure.outbox")
    async with Store.open(dsn) as other:
        await asyncio.gather(*(each.promote("dispatcher", 30) for each in [publishing, other] * 4))
    await publishing.promote("dispatcher")
    assert sorted(map(int, outbox(db))) == ids
    assert db.value("select count(*) from tenure_dispatcher.tasks where status = 'Queued' and attempt = 2") == 100


async def test_a_timed_out_task_is_woken_when_its_retry_is_due_and_not_before(publishing: Store, db: Harness) -> None:
    made = await make(publishing)
    await publishing.claim("dispatcher", worker="w")
    db.expire(made)
    await publishing.reap("dispatcher")
    assert outbox(db) == [str(made)], "only its creation"
    db.due(made)
    await publishing.promote("dispatcher")
    assert outbox(db) == [str(made)] * 2


async def test_an_operator_who_queues_a_failed_task_wakes_a_worker(publishing: Store, db: Harness) -> None:
    made = await make(publishing)
    await failed(publishing, made)
    db.due(made)
    await publishing.transition(made, "Queued", actor="ada", reason="now")
    assert (task(db, made)["status"], outbox(db)) == ("Queued", [str(made)] * 2)


async def test_what_does_not_queue_a_task_writes_no_wake_up(publishing: Store, db: Harness) -> None:
    ids = [await make(publishing) for _ in range(4)]
    won = await publishing.claim("dispatcher", worker="w", limit=3)
    await publishing.heartbeat(won[0].held)
    await publishing.succeed(won[0].held)
    await publishing.fail(won[1].held, BOOM)
    await publishing.hand_back(won[2].held)
    for job_id in ids[1:]:
        await publishing.cancel(job_id, mode="hard", actor="ada")
    assert outbox(db) == [str(job_id) for job_id in ids]


async def test_with_publishing_off_no_wake_up_is_written(store: Store, db: Harness, dsn: str) -> None:
    async def life() -> None:
        made = await make(store, max_attempts=3)
        await failed(store, made)
        db.due(made)
        await store.promote("dispatcher")
        (job,) = await store.claim("dispatcher", worker="w")
        await store.succeed(job.held)
        await store.requeue(made, actor="ada")
        (again,) = await store.claim("dispatcher", worker="w")
        await store.succeed(again.held)

    await life()
    assert outbox(db) == [], "off is how a database begins"
    async with Store.open(dsn) as other:  # whoever says so, says it to all
        await other.outbox.publish({"default": "https://queue.example/1/default"})
        await life()
        assert len(outbox(db)) == 3
        await other.outbox.unpublish()
        await life()
        assert outbox(db) == [], "nobody would publish them"


@pytest.mark.parametrize("contract", [name for name in BUILT_IN if name != "dispatcher"])
async def test_other_contracts_write_no_wake_ups(publishing: Store, db: Harness, contract: str) -> None:
    await publishing.enqueue_many([NewJob("t", contract=contract), NewJob("t", contract=contract, key="k")])
    for _ in range(2):
        for job in await publishing.claim(contract, worker="w", limit=2):
            await publishing.start(job.held)
            await publishing.fail(job.held, BOOM)
            db.due(job.id)
        await publishing.promote(contract)
    (job, _) = await publishing.claim(contract, worker="w", limit=2)
    await publishing.start(job.held)
    await publishing.succeed(job.held)
    await publishing.requeue(job.id, actor="ada")
    assert db.value("select count(*) from tenure.outbox") == 0
