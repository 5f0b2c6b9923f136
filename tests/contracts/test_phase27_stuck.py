"""A task of document 000 whose worker died and that no worker knows any more: it waits, and a person may end it."""

from __future__ import annotations

import logging

import pytest

from tenure.errors import InvalidTransition
from tenure.jobs.job import NewJob
from tenure.jobs.live_worker import LiveWorker
from tenure.jobs.why import explain_job, next_commands
from tenure.postgres.store import Store
from tenure.upkeep import Upkeep
from tenure.upkeep.rounds import once
from tenure.upkeep.unknown_types import UnknownTypes
from tests.contracts.phase27 import events, task
from tests.harness import Harness


async def lost(store: Store, db: Harness, max_attempts: int) -> int:
    """A task whose only worker died while it ran."""
    made = await store.enqueue(NewJob("forgotten", contract="phase27", max_attempts=max_attempts))
    await store.claim("phase27", worker="dead")
    db.expire(made.job_id)
    return made.job_id


@pytest.mark.req("S0-22")
@pytest.mark.parametrize("max_attempts", [1, 5])
async def test_upkeep_writes_no_failure_below_the_cap_and_ends_it_at_the_cap(
    store: Store, db: Harness, max_attempts: int
) -> None:
    task_id = await lost(store, db, max_attempts)
    await once(store)
    assert await store.claim("phase27", worker="w", types=["known"]) == []
    if max_attempts == 1:
        assert (task(db, task_id)["status"], task(db, task_id)["last_error"]["terminal"]) == ("failed", True)
        return
    assert (task(db, task_id)["status"], task(db, task_id)["attempt"]) == ("running", 1)
    assert [event["kind"] for event in events(db, task_id)] == ["task.running"]


async def test_it_waits_for_a_worker_and_everybody_who_looks_is_told_so(
    store: Store, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    task_id = await lost(store, db, 5)
    await store.workers.enter([LiveWorker("w1", ("default",), ("phase27",), ("known",))])
    db.sql("update tenure.job set lease_expires_at = now() - interval '1 minute'")
    unknown = "no live worker knows type forgotten (seen workers: w1)"
    seen = await store.details(task_id)
    said = explain_job(seen.job, seen.log, seen.contract, seen.now, seen.situation)
    assert said[-1] == f"N{unknown[1:]}: it stays as it is until one comes that does."
    assert not any("next claim" in sentence for sentence in said)
    assert next_commands(seen.job, seen.contract, seen.situation)[0] == "tenure workers list"
    (queue,) = await store.queues.list()
    assert (queue.held, queue.ready, [one.sentence() for one in queue.unserved]) == (0, 1, [unknown])
    assert queue.oldest == db.row(task_id)["lease_expires_at"]
    with caplog.at_level(logging.WARNING, "tenure.upkeep"):
        await Upkeep(store)._check_workers()
    assert f"{unknown}: 1 or more jobs wait in queue default, the oldest for 6" in caplog.text
    await store.workers.enter([LiveWorker("w2", ("default",), ("phase27",), ("forgotten",))])
    seen = await store.details(task_id)
    assert "takes it where it stands" in explain_job(seen.job, seen.log, seen.contract, seen.now, seen.situation)[-1]
    assert await store.workers.unserved() == []


async def test_it_does_not_make_other_tasks_of_its_type_look_taken(store: Store, db: Harness) -> None:
    await lost(store, db, 5)
    made = await store.enqueue(NewJob("forgotten", contract="phase27"))
    seen = await store.details(made.job_id)
    assert seen.situation.unserved == "no live worker knows type forgotten (no worker is seen at all)"
    assert [(one.type, one.jobs) for one in await store.workers.unserved()] == [("forgotten", 2)]
    assert len(await store.watch.unknown_types()) == 1


async def test_where_unknown_tasks_are_ended_it_is_not(store: Store, db: Harness) -> None:
    task_id = await lost(store, db, 5)
    made = await store.enqueue(NewJob("forgotten", contract="phase27"))
    db.sql("update tenure.job set due_at = now() - interval '2 hours', created_at = now() - interval '2 hours'")
    moment = 1_000.0
    unknown = UnknownTypes(store, 60.0, lambda: moment)
    await unknown.end_expired()
    moment += 60.0
    assert await unknown.end_expired() == 1
    assert db.row(made.job_id)["last_error"]["code"] == "UNKNOWN_TASK"
    assert (task(db, task_id)["status"], task(db, task_id)["attempt"]) == ("running", 1)


async def test_an_operator_may_end_it(store: Store, db: Harness) -> None:
    task_id = await lost(store, db, 5)
    seen = await store.details(task_id)
    assert f"tenure jobs transition {task_id} failed --reason TEXT" in next_commands(
        seen.job, seen.contract, seen.situation
    )
    with pytest.raises(InvalidTransition):
        await store.cancel(task_id, actor="ann")
    moved = await store.transition(task_id, "failed", reason="its code is gone", actor="ann")
    assert (moved.state, moved.role) == ("failed", "done")
    row, last = task(db, task_id), events(db, task_id)[-1]
    assert (row["status"], row["last_error"]["message"], row["last_error"]["terminal"]) == (
        "failed", "its code is gone", True,
    )  # fmt: skip
    assert (last["kind"], last["actor"]) == ("task.failed", "ann")


async def test_a_task_that_waits_for_its_retry_cannot_be_failed_by_request(store: Store, db: Harness) -> None:
    made = await store.enqueue(NewJob("t", contract="phase27"))
    with pytest.raises(InvalidTransition):
        await store.transition(made.job_id, "failed", actor="ann")
    assert task(db, made.job_id)["status"] == "queued"
