"""`dispatcher`, document 001: a completion counts only with the current attempt and its lease token."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from tenure.errors import InvalidTransition, JobNotFound, Refused, StaleLease
from tenure.jobs.job import Failure, Held, Job, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.holder_calls import calls

OUTPUTS = [
    {"output_index": 0, "dataset_uuid": str(uuid4()), "location": "s3://a/ß", "row_count": 7, "cursor": None},
    {"output_index": 1, "nested": {"deep": [1, 2.5, True, "ü"]}},
]

Finish = Callable[[Store, Held], Awaitable[Moved]]
completed_or_failed = pytest.mark.parametrize(
    "finish",
    [
        lambda store, held: store.succeed(held, {"from": "the wrong caller"}),
        lambda store, held: store.fail(held, Failure("from the wrong caller")),
    ],
    ids=["Completed", "Failed"],
)


async def running(store: Store, worker: str = "w1") -> Job:
    """A new task, claimed."""
    await store.enqueue(NewJob("extract", contract="dispatcher"))
    (job,) = await store.claim("dispatcher", worker=worker)
    return job


async def taken_over(store: Store, db: Harness, job: Job, worker: str) -> Job:
    """The same task after its lease expired, was reaped and its next attempt was claimed."""
    db.expire(job.id)
    await store.reap("dispatcher")
    db.due(job.id)
    await store.promote("dispatcher")
    (again,) = await store.claim("dispatcher", worker=worker)
    assert again.id == job.id
    return again


async def no_effect(db: Harness, job_id: int, call: Awaitable[Moved]) -> Refused:
    """The refusal of this call; asserts that it changed nothing."""
    before = db.fingerprint(job_id)
    with pytest.raises(Refused) as refusal:
        await call
    assert db.fingerprint(job_id) == before
    return refusal.value


def task(db: Harness, job_id: int) -> dict[str, Any]:
    return db.one("select * from tenure_dispatcher.tasks where task_id = %s", job_id)


@pytest.mark.req("S1-06")
@completed_or_failed
async def test_only_the_current_attempt_can_complete(store: Store, db: Harness, finish: Finish) -> None:
    job = await taken_over(store, db, await running(store), "w1")
    held = job.held
    # While a task runs, its number of claims is the document's attempt: the fence and the word agree.
    assert task(db, job.id)["attempt"] == held.claims == 2
    for attempt in (held.claims - 1, held.claims + 1):
        assert isinstance(await no_effect(db, job.id, finish(store, replace(held, claims=attempt))), StaleLease)
    await finish(store, held)
    assert task(db, job.id)["status"] in ("Completed", "Failed")


@pytest.mark.req("S1-47")
@completed_or_failed
async def test_a_completion_with_another_attempt_is_rejected(store: Store, db: Harness, finish: Finish) -> None:
    held = (await running(store)).held
    for attempt in (0, 2, 99):
        assert isinstance(await no_effect(db, held.id, finish(store, replace(held, claims=attempt))), StaleLease)
    assert task(db, held.id)["status"] == "Running"


@pytest.mark.req("S1-48")
@completed_or_failed
async def test_a_completion_with_another_token_is_rejected(store: Store, db: Harness, finish: Finish) -> None:
    held, neighbour = (await running(store)).held, (await running(store)).held
    for token in (uuid4(), neighbour.token):
        assert isinstance(await no_effect(db, held.id, finish(store, replace(held, token=token))), StaleLease)
    assert isinstance(await no_effect(db, held.id, finish(store, replace(held, id=4711))), JobNotFound)
    assert task(db, held.id)["status"] == "Running"


@pytest.mark.req("S1-49")
@completed_or_failed
async def test_a_stale_completion_changes_nothing_while_and_after_the_next_attempt_runs(
    store: Store, db: Harness, finish: Finish
) -> None:
    late = await running(store, "same-worker-name")
    current = await taken_over(store, db, late, "same-worker-name")
    refusal = await no_effect(db, late.id, finish(store, late.held))
    assert isinstance(refusal, StaleLease)
    assert (refusal.held_by, refusal.since) == ("same-worker-name", current.started_at)
    await store.succeed(current.held, OUTPUTS)
    assert isinstance(await no_effect(db, late.id, finish(store, late.held)), StaleLease)
    shown = task(db, late.id)
    assert (shown["status"], shown["attempt"], shown["outputs"]) == ("Completed", 2, OUTPUTS)
    db.log_is_sound(late.id)


@pytest.mark.req("S1-49")
@completed_or_failed
async def test_a_stale_completion_changes_nothing_before_the_next_attempt(
    store: Store, db: Harness, finish: Finish
) -> None:
    late = await running(store)
    db.expire(late.id)
    await store.reap("dispatcher")
    assert isinstance(await no_effect(db, late.id, finish(store, late.held)), StaleLease)
    db.due(late.id)
    await store.promote("dispatcher")
    assert isinstance(await no_effect(db, late.id, finish(store, late.held)), StaleLease)
    assert task(db, late.id)["status"] == "Queued"


@pytest.mark.req("S1-51")
async def test_outputs_of_an_accepted_completion_are_kept(store: Store, db: Harness) -> None:
    several: tuple[Any, ...] = (OUTPUTS, [], {}, 0, "", False)
    for outputs in several:
        job = await running(store)
        assert task(db, job.id)["outputs"] is None
        await store.succeed(job.held, outputs)
        kept = task(db, job.id)["outputs"]
        assert (type(kept), kept) == (type(outputs), outputs)
        (read,) = await store.jobs([job.id])
        assert read.result == outputs


@pytest.mark.req("S1-53")
async def test_a_late_completion_is_accepted_while_the_task_still_runs(store: Store, db: Harness) -> None:
    late, later = await running(store), await running(store)
    db.expire(late.id, later.id)
    answer = await store.succeed(late.held, OUTPUTS)
    assert (answer.from_state, answer.state) == ("Running", "Completed")
    assert (task(db, late.id)["status"], task(db, late.id)["outputs"]) == ("Completed", OUTPUTS)
    assert [moved.job_id for moved in await store.reap("dispatcher")] == [later.id]
    assert isinstance(await no_effect(db, later.id, store.succeed(later.held, OUTPUTS)), StaleLease)


@pytest.mark.req("S1-54")
async def test_a_repeated_completion_has_no_second_effect(store: Store, db: Harness) -> None:
    job = await running(store)
    await store.succeed(job.held, OUTPUTS)
    first = task(db, job.id)
    refusal = await no_effect(db, job.id, store.succeed(job.held, ["other outputs"]))
    # Its own holder is told how the task stands, so that a lost answer is not mistaken for a lost lease.
    assert isinstance(refusal, InvalidTransition)
    assert refusal.state == "Completed"
    assert task(db, job.id) == first
    assert first["outputs"] == OUTPUTS
    assert db.hops(job.id) == ["Queued->Running", "Running->Completed"]


@pytest.mark.req("S1-54")
async def test_a_repeated_failure_schedules_one_retry(store: Store, db: Harness) -> None:
    job = await running(store)
    await store.fail(job.held, Failure("boom"))
    first = task(db, job.id)
    assert isinstance(await no_effect(db, job.id, store.fail(job.held, Failure("boom again"))), StaleLease)
    assert task(db, job.id) == first
    assert db.hops(job.id) == ["Queued->Running", "Running->Failed"]


@pytest.mark.req("S1-21")
async def test_completed_is_the_end(store: Store, db: Harness) -> None:
    job = await running(store)
    await store.succeed(job.held)
    ended = task(db, job.id)
    assert (ended["status"], ended["attempt"], ended["next_retry_at"], ended["error"]) == ("Completed", 1, None, None)
    assert ended["completed_at"] == db.log(job.id)[-1]["ts"]
    assert isinstance(await no_effect(db, job.id, store.fail(job.held, Failure("too late"))), InvalidTransition)
    before = db.fingerprint(job.id)
    assert (await store.reap("dispatcher"), await store.promote("dispatcher")) == ([], [])
    assert await store.claim("dispatcher", worker="w2") == []
    assert db.fingerprint(job.id) == before


async def test_success_on_the_first_run_makes_two_transitions(store: Store, db: Harness) -> None:
    db.spy()
    job = await running(store)
    await store.succeed(job.held)
    assert [(hop.old, hop.new) for hop in db.seen(job.id)] == [("Queued", "Running"), ("Running", "Completed")]
    assert db.hops(job.id) == ["Queued->Running", "Running->Completed"]


async def a_step(store: Store, db: Harness, chance: random.Random, holders: list[Held]) -> None:
    """Something that happens in a busy system; holders keep calling after they lost their lease."""
    recent = holders[-15:]
    some = chance.sample(recent, min(len(recent), chance.randint(1, 6)))
    match chance.choice(("claim", "succeed", "fail", "fail", "crash", "reconcile", "reconcile")):
        case "claim":
            won = await store.claim("dispatcher", worker=f"w{chance.randint(1, 5)}", limit=chance.randint(1, 8))
            holders.extend(job.held for job in won)
        case "succeed":
            await store.report("succeed", calls(some[:2]))
        case "fail":
            await store.report("fail", calls(some, failures=[Failure("boom")] * len(some)))
        case "crash":
            running = db.sql("select task_id from tenure_dispatcher.tasks where status = 'Running'")
            db.expire(*(row["task_id"] for row in running if chance.random() < 0.3))
            await store.reap("dispatcher")
        case _:
            waiting = db.sql("select task_id from tenure_dispatcher.tasks where next_retry_at is not null")
            db.due(*(row["task_id"] for row in waiting if chance.random() < 0.6))
            await store.promote("dispatcher")


@pytest.mark.req("S1-20")
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_task_is_running_exactly_while_it_is_leased(store: Store, db: Harness, seed: int) -> None:
    made = await store.enqueue_many([NewJob("extract", contract="dispatcher")] * 40)
    chance, holders, statuses = random.Random(seed), list[Held](), set[str]()
    for _ in range(70):
        await a_step(store, db, chance, holders)
        for row in db.sql("select * from tenure_dispatcher.tasks"):
            lease = [row["lease_token"], row["lease_expires_at"], row["worker_id"]]
            assert [field is not None for field in lease] == [row["status"] == "Running"] * 3, row
            statuses.add(row["status"])
    assert statuses == {"Queued", "Running", "Completed", "Failed"}
    db.log_is_sound(*(answer.job_id for answer in made if answer.job_id is not None))
