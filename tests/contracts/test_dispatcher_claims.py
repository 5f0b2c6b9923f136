"""`dispatcher`, document 001: states, the lease on the task's row, and who may claim what."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg
import pytest

from tenure.errors import InvalidTransition, JobNotFound, Refused
from tenure.jobs.job import Failure, Job, NewJob
from tenure.postgres.store import Store
from tests.harness import Harness

pytestmark = pytest.mark.core

STATES = {"Queued", "Running", "Completed", "Failed", "Canceled"}
LEASE_FIELDS = ("lease_token", "lease_expires_at", "worker_id")


async def enqueued(store: Store, max_attempts: int | None = None) -> int:
    made = await store.enqueue(NewJob("extract", contract="dispatcher", max_attempts=max_attempts))
    return made.job_id


async def asked(store: Store, job_id: int, worker: str = "w1", lease_ms: int | None = None) -> Job | Refused:
    """The answer to a claim of this task."""
    (answer,) = await store.claim_by_id([job_id], worker=worker, contract="dispatcher", lease_ms=lease_ms)
    return answer


async def claimed(store: Store, job_id: int, worker: str = "w1", lease_ms: int | None = None) -> Job:
    answer = await asked(store, job_id, worker, lease_ms)
    assert isinstance(answer, Job), answer
    return answer


async def requeued(store: Store, db: Harness, job: Job) -> None:
    """Fail a held task and let the reconciler queue its next attempt."""
    await store.fail(job.held, Failure("boom"))
    db.due(job.id)
    assert len(await store.promote("dispatcher")) == 1


async def refused_without_effect(store: Store, db: Harness, job_id: int) -> Refused:
    """Why a claim of this task is refused; asserts that it changed nothing, also for a claim of whatever is due."""
    before = db.fingerprint(job_id), db.value("select count(*) from tenure.claim")
    answer = await asked(store, job_id, "w2")
    assert isinstance(answer, Refused)
    assert await store.claim("dispatcher", worker="w2") == []
    assert (db.fingerprint(job_id), db.value("select count(*) from tenure.claim")) == before
    return answer


async def standing_behind_a_lock(db: Harness, count: int) -> int:
    """How many connections to this database wait for a lock, as soon as there are this many, or after a minute."""
    waiting = 0
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        waiting = db.value(
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        if waiting >= count:
            break
        await asyncio.sleep(0.01)
    return waiting


def task(db: Harness, job_id: int) -> dict[str, Any]:
    return db.one("select * from tenure_dispatcher.tasks where task_id = %s", job_id)


@pytest.mark.req("S1-12")
async def test_tasks_attempts_leases_and_retries_are_explained_by_sql_alone(store: Store, db: Harness) -> None:
    queued, running, waiting, ended = [await enqueued(store) for _ in range(4)]
    await claimed(store, running, "w-running")
    await store.fail((await claimed(store, waiting)).held, Failure("disk full"))
    await store.succeed((await claimed(store, ended)).held, {"rows": 3})
    seen = {row["task_id"]: row for row in db.sql("select * from tenure_dispatcher.tasks")}
    assert {job_id: row["status"] for job_id, row in seen.items()} == {
        queued: "Queued", running: "Running", waiting: "Failed", ended: "Completed"
    }  # fmt: skip
    assert {row["attempt"] for row in seen.values()} == {1}
    assert {row["max_attempts"] for row in seen.values()} == {3}
    assert (seen[running]["worker_id"], seen[running]["lease_token"]) == ("w-running", db.row(running)["lease_token"])
    assert seen[running]["lease_expires_at"] > seen[running]["started_at"] > seen[running]["created_at"]
    assert seen[waiting]["next_retry_at"] == db.row(waiting)["due_at"]
    assert seen[waiting]["error_message"] == "disk full"
    assert seen[ended]["completed_at"] is not None
    assert [seen[job_id]["next_retry_at"] for job_id in (queued, running, ended)] == [None, None, None]


@pytest.mark.req("S1-18")
async def test_the_database_knows_exactly_the_five_states(store: Store, db: Harness) -> None:
    job_id = await enqueued(store)
    for state in sorted(STATES):
        db.sql("update tenure.job set seq = 1, state = %s where id = %s", state, job_id)
        assert task(db, job_id)["status"] == state
    for state in ("queued", "Cancelled", "CANCELED", "Retrying", "TimedOut", "succeeded", ""):
        with pytest.raises(psycopg.errors.CheckViolation):
            db.sql("update tenure.job set seq = 1, state = %s where id = %s", state, job_id)


@pytest.mark.req("S1-18")
async def test_a_finished_task_cannot_get_an_unknown_state_either(store: Store, db: Harness) -> None:
    job_id = await enqueued(store)
    await store.succeed((await claimed(store, job_id)).held)
    with pytest.raises(psycopg.errors.CheckViolation):
        db.sql("update tenure.job_done set state = 'Done' where id = %s", job_id)
    assert task(db, job_id)["status"] == "Completed"


@pytest.mark.req("S1-19", "S1-66")
async def test_a_queued_task_can_be_claimed_by_id_and_as_the_next_and_its_first_attempt_is_1(
    store: Store, db: Harness
) -> None:
    by_id, next_one = await enqueued(store), await enqueued(store)
    assert [task(db, job_id)["status"] for job_id in (by_id, next_one)] == ["Queued", "Queued"]
    first = await claimed(store, by_id)
    (second,) = await store.claim("dispatcher", worker="w2")
    assert [(job.id, job.counter, job.state) for job in (first, second)] == [
        (by_id, 1, "Running"),
        (next_one, 1, "Running"),
    ]
    assert [task(db, job_id)["attempt"] for job_id in (by_id, next_one)] == [1, 1]


@pytest.mark.req("S1-25", "S1-28")
async def test_a_lease_is_time_bounded(store: Store, db: Harness) -> None:
    usual, short = await enqueued(store), await enqueued(store)
    await claimed(store, usual)
    held = (await claimed(store, short, lease_ms=5_000)).held
    lengths = db.sql(
        "select extract(epoch from lease_expires_at - started_at)::float as s "
        "from tenure_dispatcher.tasks order by task_id"
    )
    assert [row["s"] for row in lengths] == [120.0, 5.0]
    db.expire(short)
    assert [moved.job_id for moved in await store.reap("dispatcher")] == [short]
    with pytest.raises(Refused):
        await store.succeed(held)
    assert (task(db, usual)["status"], task(db, short)["status"]) == ("Running", "Failed")


@pytest.mark.req("S1-26", "S1-29")
async def test_the_lease_and_its_holder_live_on_the_tasks_row(store: Store, db: Harness) -> None:
    job_id = await enqueued(store)
    assert [task(db, job_id)[field] for field in LEASE_FIELDS] == [None, None, None]
    job = await claimed(store, job_id, "worker-7")
    row, shown = db.row(job_id), task(db, job_id)
    assert (row["lease_token"], row["lease_expires_at"], row["lease_owner"]) == tuple(shown[f] for f in LEASE_FIELDS)
    assert shown["worker_id"] == "worker-7"
    assert (job.lease_token, job.lease_expires_at) == (shown["lease_token"], shown["lease_expires_at"])
    await store.succeed(job.held)
    assert [task(db, job_id)[field] for field in LEASE_FIELDS] == [None, None, None]


@pytest.mark.req("S1-27")
async def test_a_thousand_claims_give_a_thousand_random_uuids(store: Store, db: Harness) -> None:
    types = db.sql(
        "select data_type from information_schema.columns where column_name = 'lease_token' and "
        "(table_schema, table_name) in (('tenure', 'job'), ('tenure_dispatcher', 'tasks'))"
    )
    assert [row["data_type"] for row in types] == ["uuid", "uuid"]
    await store.enqueue_many([NewJob("extract", contract="dispatcher")] * 1000)
    await asyncio.gather(*(store.claim("dispatcher", worker="w1") for _ in range(1000)))
    tokens = [row["lease_token"] for row in db.sql("select lease_token from tenure_dispatcher.tasks")]
    assert len(set(tokens)) == 1000
    assert {token.version for token in tokens} == {4}


@pytest.mark.req("S1-31")
async def test_of_64_claims_of_one_task_at_once_one_gets_it(dsn: str, store: Store, db: Harness) -> None:
    job_id = await enqueued(store)
    db.spy()
    async with Store.open(dsn, connections=64) as many:
        # The row is locked until all 64 stand behind it, so that they are truly released together.
        with psycopg.connect(dsn) as gate:
            gate.execute("select from tenure.job where id = %s for update", (job_id,))
            calls = [asyncio.create_task(asked(many, job_id, f"w{n}")) for n in range(64)]
            assert await standing_behind_a_lock(db, 64) == 64
        answers = await asyncio.gather(*calls)
    won = [answer for answer in answers if isinstance(answer, Job)]
    assert len(won) == 1
    assert all(
        isinstance(answer, InvalidTransition) and answer.state == "Running" for answer in answers if answer not in won
    )
    assert [(hop.old, hop.new) for hop in db.seen(job_id)] == [("Queued", "Running")]
    shown = task(db, job_id)
    assert (shown["worker_id"], shown["lease_token"]) == (won[0].lease_owner, won[0].lease_token)
    db.log_is_sound(job_id)


@pytest.mark.req("S1-32", "S1-33", "S1-39")
async def test_every_claim_sets_token_expiry_worker_and_start_and_leaves_the_attempt(store: Store, db: Harness) -> None:
    job_id = await enqueued(store)
    runs = []
    for worker in ("w1", "w2"):
        before = task(db, job_id)
        job = await claimed(store, job_id, worker)
        runs.append(task(db, job_id))
        assert (before["status"], runs[-1]["status"]) == ("Queued", "Running")
        assert before["attempt"] == runs[-1]["attempt"] == job.counter
        if worker == "w1":
            await requeued(store, db, job)
    first, second = runs
    assert [first["attempt"], second["attempt"]] == [1, 2]
    assert [first["worker_id"], second["worker_id"]] == ["w1", "w2"]
    assert None not in (first["lease_token"], second["lease_token"])
    assert first["lease_token"] != second["lease_token"]
    assert second["started_at"] > first["started_at"]
    assert second["lease_expires_at"] > first["lease_expires_at"]


@pytest.mark.req("S1-34")
async def test_a_running_task_with_a_valid_lease_cannot_be_claimed(store: Store, db: Harness) -> None:
    job_id = await enqueued(store)
    await claimed(store, job_id)
    answer = await refused_without_effect(store, db, job_id)
    assert isinstance(answer, InvalidTransition)
    assert answer.state == "Running"


@pytest.mark.req("S1-35")
async def test_a_completed_task_cannot_be_claimed(store: Store, db: Harness) -> None:
    job_id = await enqueued(store)
    await store.succeed((await claimed(store, job_id)).held)
    answer = await refused_without_effect(store, db, job_id)
    assert isinstance(answer, InvalidTransition)
    assert answer.state == "Completed"


@pytest.mark.req("S1-37")
async def test_a_failed_task_cannot_be_claimed_until_the_reconciler_queued_it(store: Store, db: Harness) -> None:
    job_id = await enqueued(store, max_attempts=2)
    await store.fail((await claimed(store, job_id)).held, Failure("boom"))
    db.due(job_id)
    waiting = await refused_without_effect(store, db, job_id)
    assert isinstance(waiting, InvalidTransition)
    assert waiting.state == "Failed"
    await store.promote("dispatcher")
    await store.fail((await claimed(store, job_id)).held, Failure("boom"))
    assert task(db, job_id)["next_retry_at"] is None
    final = await refused_without_effect(store, db, job_id)
    assert isinstance(final, InvalidTransition)
    assert final.state == "Failed"


@pytest.mark.req("S1-37")
async def test_an_unknown_task_cannot_be_claimed(store: Store, db: Harness) -> None:
    answer = await refused_without_effect(store, db, 4711)
    assert isinstance(answer, JobNotFound)
    assert db.value("select count(*) from tenure_dispatcher.tasks") == 0


@pytest.mark.req("S1-38")
async def test_a_running_task_with_an_expired_lease_is_refused_until_the_reaper_closed_it(
    store: Store, db: Harness
) -> None:
    job_id = await enqueued(store)
    first = await claimed(store, job_id)
    db.expire(job_id)
    answer = await refused_without_effect(store, db, job_id)
    assert isinstance(answer, InvalidTransition)
    assert answer.state == "Running"
    await store.reap("dispatcher")
    db.due(job_id)
    await store.promote("dispatcher")
    second = await claimed(store, job_id, "w2")
    assert (first.counter, second.counter) == (1, 2)
    assert first.lease_token != second.lease_token
    assert db.hops(job_id) == ["Queued->Running", "Running->Failed", "Failed->Queued", "Queued->Running"]
