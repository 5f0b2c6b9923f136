"""Upkeep warns of types that no live worker takes, once while it lasts, and forgets dead workers."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from tenure.jobs.job import NewJob
from tenure.jobs.live_worker import LiveWorker
from tenure.postgres.store import Store
from tenure.upkeep import Upkeep
from tests.harness import Harness
from tests.upkeep.running import QUICK, Observed, running, until

WORKER = LiveWorker("w1", ("mail",), ("standard",), ("send",))
PERIODS = replace(QUICK, workers=0.1)


def told(caplog: pytest.LogCaptureFixture, kind: str) -> list[str]:
    """What was warned of this type."""
    return [record.getMessage() for record in caplog.records if f"type {kind}" in record.getMessage()]


def waits(db: Harness, seconds: int) -> None:
    """Let every job be due for so long."""
    db.sql("update tenure.job set due_at = now() - make_interval(secs => %s)", seconds)


async def test_a_type_that_no_live_worker_knows_is_warned_of_once(
    store: Store, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    await store.workers.enter([WORKER])
    await store.enqueue_many([NewJob("sned", queue="mail"), NewJob("send", queue="mail")])
    waits(db, 60)
    with caplog.at_level(logging.WARNING, "tenure.upkeep"):
        loops = Observed(store, periods=PERIODS)
        async with running(loops):
            await until(lambda: loops.reported["workers"] >= 5)
    (said,) = told(caplog, "sned")
    assert said.startswith("no live worker knows type sned (seen workers: w1): 1 or more jobs wait in queue mail")
    assert told(caplog, "send ") == []


async def test_it_is_said_again_while_it_lasts_and_anew_when_it_comes_back(
    store: Store, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    made = await store.enqueue(NewJob("sned", queue="mail"))
    waits(db, 60)
    upkeep = Upkeep(store, periods=replace(PERIODS, warn_again=0.0))
    with caplog.at_level(logging.WARNING, "tenure.upkeep"):
        await upkeep._check_workers()
        await upkeep._check_workers()
        assert len(told(caplog, "sned")) == 2, "the time between two warnings is over"
        patient = Upkeep(store, periods=PERIODS)
        for _ in range(3):
            await patient._check_workers()
        assert len(told(caplog, "sned")) == 3
        await store.workers.enter([replace(WORKER, types=("sned",))])
        await patient._check_workers()
        db.sql("delete from tenure.worker")
        await patient._check_workers()
        assert len(told(caplog, "sned")) == 4, "a worker came and went"
    assert db.row(made.job_id)["state"] == "queued"


async def test_nothing_is_said_of_what_waits_since_a_moment_of_paused_queues_and_of_what_somebody_works_on(
    store: Store, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    for kind, queue in (("fresh", "a"), ("paused", "b"), ("held", "c"), ("held", "c"), ("any", "d")):
        await store.enqueue(NewJob(kind, queue=queue))
    waits(db, 60)
    db.sql("update tenure.job set due_at = now() where type = 'fresh'")
    await store.queues.pause("b", actor="ada")
    await store.claim(queues=["c"], worker="of an earlier release")
    await store.workers.enter([replace(WORKER, queues=("d",), types=None)])
    with caplog.at_level(logging.WARNING, "tenure.upkeep"):
        await Upkeep(store, periods=PERIODS)._check_workers()
    assert caplog.records == []
    assert [one.type for one in await store.workers.unserved()] == ["fresh"]


async def test_what_no_worker_takes_is_found_behind_delayed_jobs_and_jobs_of_others(store: Store) -> None:
    await store.workers.enter([WORKER])
    await store.enqueue_many([NewJob("send", queue="mail", priority=0, delay_ms=600_000)] * 1_500)
    await store.enqueue_many([NewJob("send", queue="mail", priority=3)] * 500)
    await store.enqueue_many([NewJob("sned", queue="mail")] * 2)
    await store.enqueue(NewJob("later", queue="mail", delay_ms=600_000))  # nobody could take it yet
    (found,) = await store.workers.unserved()
    assert (found.queue, found.type, found.jobs, found.takers) == ("mail", "sned", 2, ["w1"])


async def test_a_lease_that_is_over_does_not_show_that_somebody_takes_a_type(store: Store, db: Harness) -> None:
    for contract in ("standard", "phase27"):
        await store.enqueue_many([NewJob("t", contract=contract, queue=contract)] * 2)
        (held,) = await store.claim(contract, [contract], worker="of an earlier release")
        assert [one.queue for one in await store.workers.unserved()] == []
        assert await store.workers.why_unserved(contract, contract, "t") is None
        db.expire(held.id)
        # What a claim takes where it stands is counted; upkeep makes the other one ready first.
        (found,) = await store.workers.unserved()
        assert (found.queue, found.jobs) == (contract, 2 if contract == "phase27" else 1)
        assert await store.workers.why_unserved(contract, contract, "t") is not None
        db.sql("delete from tenure.job")


async def test_a_lost_job_that_no_claim_takes_does_not_wait_for_a_worker(store: Store, db: Harness) -> None:
    for change in ("claims = max_attempts", "cancel_requested_at = now()", "quarantined_at = now()"):
        await store.enqueue(NewJob("t", contract="phase27"))
        (held,) = await store.claim("phase27", worker="dead")
        db.expire(held.id)
        assert [one.jobs for one in await store.workers.unserved()] == [1]
        db.sql(f"update tenure.job set {change}")
        assert await store.workers.unserved() == []
        (queue,) = await store.queues.list()
        assert (queue.ready, queue.held) == (0, 1)
        db.sql("delete from tenure.job")


async def test_upkeep_forgets_dead_workers(store: Store, db: Harness) -> None:
    await store.workers.enter([WORKER, replace(WORKER, name="dead")])
    db.sql("update tenure.worker set last_seen_at = now() - interval '3 minutes' where name = 'dead'")
    loops = Observed(store, periods=PERIODS)
    async with running(loops):
        await until(lambda: loops.counts.get("workers") == 1)
    assert [row["name"] for row in db.sql("select name from tenure.worker")] == ["w1"]
