"""Jobs that this worker cannot run: of a task it does not know, or with arguments that no longer fit."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

import tenure
from tenure.app import App
from tenure.job import NewJob
from tenure.local import Local
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.worker.working import until, working


async def test_job_of_an_unknown_task_is_handed_back_with_a_delay_and_an_alarm(
    app: App, store: Store, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    made = await store.enqueue(NewJob("from_the_next_release"))
    with caplog.at_level(logging.ERROR, "tenure.worker"):
        async with working(app, queues=["default"]) as worker:
            await until(lambda: worker.counts["unknown"] == 1)
    row = db.row(made.job_id)
    assert (row["state"], row["claims"], row["raises"]) == ("queued", 1, 1)
    handed_back = db.log(made.job_id)[-1]
    assert handed_back["trigger"] == "hand_back"
    assert row["due_at"] - handed_back["ts"] > timedelta(seconds=10)
    assert "which this worker does not know" in caplog.text


async def test_job_that_nobody_knew_for_an_hour_is_dead(app: App, store: Store, db: Harness) -> None:
    made = await store.enqueue(NewJob("from_the_next_release"))
    async with working(app, queues=["default"]) as worker:
        await until(lambda: worker.counts["unknown"] == 1)
        with db.connection.transaction():
            db.sql("set local session_replication_role = replica")
            db.sql("update tenure.event set ts = ts - interval '61 minutes' where job_id = %s", made.job_id)
        db.due(made.job_id)
        with pytest.raises(tenure.JobFailed, match="no worker knew the task"):
            await app.result(made.job_id, timeout=60)


@pytest.mark.parametrize("is_known", [True, False])
async def test_job_that_waits_for_a_busy_worker_is_not_ended_by_one_that_does_not_know_it(
    store: Store, db: Harness, is_known: bool
) -> None:
    made = [await store.enqueue(NewJob("theirs" if n else "other", contract="simple")) for n in (is_known, 1)]
    (held,) = await store.claim("simple", worker="their worker")
    assert held.id == made[0].job_id
    db.sql("update tenure.job set due_at = now() - interval '2 hours', created_at = now() - interval '2 hours'")
    assert await Local(store).strangers(["simple"], ["default"], ["mine"], worker="mine") == []
    assert db.row(made[1].job_id)["claims"] == (0 if is_known else 1)


async def test_job_of_a_paused_queue_waits_for_as_long_as_it_is_paused(store: Store, db: Harness) -> None:
    made = await store.enqueue(NewJob("theirs", contract="reliability"))
    db.sql("update tenure.job set due_at = now() - interval '2 hours', created_at = now() - interval '2 hours'")
    await store.queues.pause("default", actor="ann")
    assert await Local(store).strangers(["reliability"], ["default"], ["mine"], worker="mine") == []
    assert (db.row(made.job_id)["claims"], db.hops(made.job_id)) == (0, [])


@pytest.mark.parametrize(
    ("payload", "reason"), [([1, 2], "parse_error"), ({"n": "three"}, "validation_failed"), ({}, "validation_failed")]
)
async def test_payload_that_no_longer_fits_goes_the_contracts_way(
    app: App, store: Store, db: Harness, payload: object, reason: str
) -> None:
    @app.task(contract="reliability")
    async def double(n: int) -> int:
        return 2 * n

    made = await store.enqueue(NewJob("double", payload, contract="reliability"))
    async with working(app):
        with pytest.raises(tenure.JobFailed, match="dead_lettered"):
            await app.result(made.job_id, timeout=60)
    assert db.value("select reason_code from tenure_reliability.dead_letters where job_id = %s", made.job_id) == reason
