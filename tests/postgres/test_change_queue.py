"""Another queue for a job: only while nobody holds it, with one log row, and under every contract."""

from __future__ import annotations

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, IdempotencyConflict, InvalidTransition, JobNotFound
from tenure.jobs.job import NewJob
from tenure.jobs.outcome import Enqueued, QueueChange
from tenure.postgres.store import Store
from tenure.proof.audit import audit
from tests.harness import Harness


@pytest.mark.parametrize("contract", BUILT_IN)
async def test_a_waiting_job_goes_to_another_queue_with_one_log_row_and_is_claimed_there(
    store: Store, db: Harness, dsn: str, contract: str
) -> None:
    made = await store.enqueue(NewJob("send", contract=contract, queue="mial", priority=3))
    before = db.row(made.job_id)
    (answer,) = await store.change_queue([made.job_id], "mail", actor="ada", reason="misspelt")
    assert answer == QueueChange(made.job_id, "mail", "mial")
    after = db.row(made.job_id)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"queue", "seq", "updated_at", "hidden"}
    (row,) = db.log(made.job_id)
    assert (row["trigger"], row["hop"], row["actor"], row["seq"]) == ("queue_changed", False, "ada", 1)
    assert (row["facts"], row["reason"]) == ({"from": "mial", "to": "mail"}, "from queue mial to mail: misspelt")
    assert await store.claim(contract, ["mial"], worker="w") == []
    (job,) = await store.claim(contract, ["mail"], worker="w")
    assert job.id == made.job_id
    assert (await audit(store)).violations == []


async def test_a_held_and_a_finished_job_stay_and_say_so(store: Store, db: Harness) -> None:
    held, done = [(await store.enqueue(NewJob("send", queue="mial"))).job_id for _ in range(2)]
    jobs = await store.claim(queues=["mial"], worker="w", limit=2)
    await store.succeed(next(job.held for job in jobs if job.id == done))
    answers = await store.change_queue([held, done, 10**9], "mail", actor="ada")
    assert [type(answer) for answer in answers] == [InvalidTransition, InvalidTransition, JobNotFound]
    assert db.row(held)["queue"] == db.row(done)["queue"] == "mial"
    assert [row["trigger"] for row in db.log(held)] == ["claim"]


async def test_a_job_that_is_there_already_is_left_alone(store: Store, db: Harness) -> None:
    made = await store.enqueue(NewJob("send", queue="mail"))
    (answer,) = await store.change_queue([made.job_id], "mail", actor="ada")
    assert isinstance(answer, QueueChange)
    assert not answer.changed
    assert db.log(made.job_id) == []


async def test_a_repeat_with_its_key_does_nothing_and_another_body_is_a_conflict(store: Store, db: Harness) -> None:
    made = await store.enqueue(NewJob("send", queue="mial"))
    for _ in range(2):
        (answer,) = await store.change_queue([made.job_id], "mail", actor="ada", key="k1")
        assert answer == QueueChange(made.job_id, "mail", "mial")
    (other,) = await store.change_queue([made.job_id], "post", actor="ada", key="k1")
    assert isinstance(other, IdempotencyConflict)
    assert len(db.log(made.job_id)) == 1


async def test_a_bad_queue_or_actor_is_refused_before_anything_is_asked(store: Store) -> None:
    made = await store.enqueue(NewJob("send", queue="mial"))
    for queue, actor in (("", "ada"), ("x" * 101, "ada"), ("mail", "")):
        with pytest.raises(BadInput):
            await store.change_queue([made.job_id], queue, actor=actor)


async def test_many_jobs_go_in_one_statement_each_with_its_row(store: Store, db: Harness) -> None:
    made = await store.enqueue_many([NewJob("send", queue="mial")] * 300)
    ids = [one.job_id for one in made if isinstance(one, Enqueued)]
    answers = await store.change_queue(ids, "mail", actor="ada")
    assert all(isinstance(answer, QueueChange) and answer.changed for answer in answers)
    assert db.value("select count(*) from tenure.event where trigger = 'queue_changed'") == 300
    assert db.value("select count(*) from tenure.job where queue = 'mail' and seq = 1") == 300
