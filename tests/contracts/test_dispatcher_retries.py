"""`dispatcher`, document 001: failures and timeouts wait in Failed; the reconciler and the reaper own every retry."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from datetime import timedelta
from statistics import mean
from threading import Barrier
from typing import Any

import pytest

from tenure.jobs.job import Failure, Job, NewJob
from tenure.jobs.outcome import Moved, Outcome
from tenure.postgres.store import Store
from tests.clock import TICK, StoppedClock
from tests.harness import Harness, at_once
from tests.holder_calls import calls

ALWAYS_FAILING = [
    ("Queued", "Running"), ("Running", "Failed"), ("Failed", "Queued"),
    ("Queued", "Running"), ("Running", "Failed"), ("Failed", "Queued"),
    ("Queued", "Running"), ("Running", "Failed"),
]  # fmt: skip

End = Callable[[Store, Harness, Job], Awaitable[Outcome]]


async def failed(store: Store, db: Harness, job: Job) -> Outcome:
    """The operator's code raised, and the worker said so."""
    return await store.fail(job.held, Failure("boom", "OperatorError"))


async def crashed(store: Store, db: Harness, job: Job) -> Outcome:
    """The worker died: the lease ran out and the reaper came."""
    db.expire(job.id)
    (outcome,) = await store.reap("dispatcher")
    return outcome


failed_or_crashed = pytest.mark.parametrize("end", [failed, crashed])


async def enqueued(store: Store, max_attempts: int | None = None) -> int:
    made = await store.enqueue(NewJob("extract", contract="dispatcher", max_attempts=max_attempts))
    return made.job_id


async def claimed(store: Store) -> Job:
    (job,) = await store.claim("dispatcher", worker="w1")
    return job


async def reconciled(store: Store, db: Harness, *ids: int) -> list[Outcome]:
    """One tick of the reconciler after these tasks became due."""
    db.due(*ids)
    return await store.promote("dispatcher")


async def run_to_the_end(store: Store, db: Harness, job_id: int, end: End) -> list[Moved]:
    """Claim and fail this task until it is not retried any more; what each failure was answered."""
    answers = []
    while True:
        answer = await end(store, db, await claimed(store))
        assert isinstance(answer, Moved), answer
        answers.append(answer)
        if not answer.will_retry:
            return answers
        assert len(await reconciled(store, db, job_id)) == 1


def task(db: Harness, job_id: int) -> dict[str, Any]:
    return db.one("select * from tenure_dispatcher.tasks where task_id = %s", job_id)


def statuses(db: Harness) -> list[tuple[str, int]]:
    return [(row["status"], row["attempt"]) for row in db.sql("select * from tenure_dispatcher.tasks order by task_id")]


@pytest.mark.req("S1-84")
@failed_or_crashed
async def test_an_always_failing_task_makes_eight_transitions_and_ends_at_attempt_3(
    store: Store, db: Harness, end: End
) -> None:
    """The oracle's transitions and attempt; its wake-ups are proven where messages are published."""
    db.spy()
    job_id = await enqueued(store)
    answers = await run_to_the_end(store, db, job_id, end)
    seen = db.seen(job_id)
    assert [(hop.old, hop.new) for hop in seen] == ALWAYS_FAILING
    assert db.hops(job_id) == [f"{old}->{new}" for old, new in ALWAYS_FAILING]
    assert [hop.counter for hop in seen] == [1, 1, 2, 2, 2, 3, 3, 3]
    assert sum(hop.new == "Running" for hop in seen) == len(answers) == 3
    first, second = [answer.delay_ms or 0 for answer in answers if answer.will_retry]
    assert 15_000 <= first <= 45_000
    assert 30_000 <= second <= 90_000
    shown = task(db, job_id)
    assert (shown["status"], shown["attempt"], shown["next_retry_at"]) == ("Failed", 3, None)
    assert (shown["completed_at"], shown["outputs"]) == (None, None)
    db.log_is_sound(job_id)


@pytest.mark.req("S1-67")
@failed_or_crashed
async def test_a_task_runs_max_attempts_times_and_not_once_more(store: Store, db: Harness, end: End) -> None:
    for max_attempts in (1, 2, 3, 4):
        job_id = await enqueued(store, max_attempts)
        answers = await run_to_the_end(store, db, job_id, end)
        assert [answer.will_retry for answer in answers] == [n < max_attempts for n in range(1, max_attempts + 1)]
        shown = task(db, job_id)
        assert (shown["status"], shown["attempt"], shown["next_retry_at"]) == ("Failed", max_attempts, None)


@pytest.mark.req("S1-22")
async def test_failed_with_a_retry_time_is_retried_and_without_one_is_final(store: Store, db: Harness) -> None:
    retried, final = await enqueued(store, 2), await enqueued(store, 1)
    for job in await store.claim("dispatcher", worker="w1", limit=2):
        await failed(store, db, job)
    assert statuses(db) == [("Failed", 1), ("Failed", 1)]
    assert task(db, retried)["next_retry_at"] is not None
    assert task(db, final)["next_retry_at"] is None
    before = db.fingerprint(final)
    assert [moved.job_id for moved in await reconciled(store, db, retried, final)] == [retried]
    assert statuses(db) == [("Queued", 2), ("Failed", 1)]
    assert db.fingerprint(final) == before


@pytest.mark.req("S1-60")
async def test_without_the_dispatchers_loops_nothing_is_retried(store: Store, db: Harness) -> None:
    failing, crashing = await enqueued(store), await enqueued(store)
    first, _ = await store.claim("dispatcher", worker="w1", limit=2)
    await failed(store, db, first)
    db.due(failing)
    db.expire(crashing)
    before = db.fingerprint(failing, crashing)
    assert await store.claim("dispatcher", worker="w2", limit=2) == []
    await store.claim_by_id([failing, crashing], worker="w2", contract="dispatcher")
    assert db.fingerprint(failing, crashing) == before
    await store.reap("dispatcher")
    await reconciled(store, db, failing, crashing)
    assert statuses(db) == [("Queued", 2), ("Queued", 2)]


@pytest.mark.req("S1-60")
async def test_what_a_worker_says_of_a_failure_does_not_decide_its_retry(store: Store, db: Harness) -> None:
    assert {field.name for field in dataclasses.fields(Failure)} == {
        "message", "type", "code", "stack", "stage", "retryable", "release"
    }  # fmt: skip
    opinions = [Failure("a", retryable=False), Failure("b", "PermanentError"), Failure("c", retryable=True)]
    await store.enqueue_many([NewJob("extract", contract="dispatcher")] * len(opinions))
    held = [job.held for job in await store.claim("dispatcher", worker="w1", limit=len(opinions))]
    answers = await store.report("fail", calls(held, failures=opinions))
    assert [isinstance(answer, Moved) and answer.will_retry for answer in answers] == [True] * len(opinions)
    for row in db.sql("select *, next_retry_at - updated_at as wait from tenure_dispatcher.tasks"):
        assert (row["status"], row["attempt"], row["max_attempts"]) == ("Failed", 1, 3)
        assert timedelta(seconds=15) <= row["wait"] <= timedelta(seconds=45)


@pytest.mark.req("S1-61")
async def test_each_task_has_its_own_max_attempts(store: Store, db: Harness) -> None:
    for given in (None, 1, 7):
        await enqueued(store, given)
    shown = db.sql("select max_attempts from tenure_dispatcher.tasks order by task_id")
    assert [row["max_attempts"] for row in shown] == [3, 1, 7]


@pytest.mark.req("S1-62")
async def test_a_failure_waits_in_failed_with_a_backoff_that_doubles_to_its_cap(store: Store, db: Harness) -> None:
    await store.enqueue_many([NewJob("extract", contract="dispatcher", max_attempts=9)] * 100)
    for attempt, centre in enumerate((30, 60, 120, 240, 480, 600, 600), 1):
        held = [job.held for job in await store.claim("dispatcher", worker="w1", limit=100)]
        await store.report("fail", calls(held, failures=[Failure("boom")] * 100))
        rows = db.sql("select *, next_retry_at - updated_at as wait, now() as now from tenure_dispatcher.tasks")
        waits = [row["wait"].total_seconds() for row in rows]
        assert {(row["status"], row["attempt"]) for row in rows} == {("Failed", attempt)}
        assert all(row["next_retry_at"] > row["now"] for row in rows)
        assert all(0.5 * centre <= wait <= 1.5 * centre for wait in waits)
        assert 0.85 * centre < mean(waits) < 1.15 * centre
        assert len(set(waits)) > 90
        await reconciled(store, db, *(row["task_id"] for row in rows))


@pytest.mark.req("S1-63", "S1-73")
async def test_a_timeout_takes_the_path_of_a_failure_and_says_that_it_was_one(store: Store, db: Harness) -> None:
    failing, crashing = await enqueued(store), await enqueued(store)
    first, second = await store.claim("dispatcher", worker="w1", limit=2)
    ends = [await failed(store, db, first), await crashed(store, db, second)]
    assert [isinstance(moved, Moved) and moved.state for moved in ends] == ["Failed", "Failed"]
    by_worker, by_time = task(db, failing), task(db, crashing)
    assert db.hops(failing) == db.hops(crashing) == ["Queued->Running", "Running->Failed"]
    for row in (by_worker, by_time):
        wait = row["next_retry_at"] - row["updated_at"]
        assert timedelta(seconds=15) <= wait <= timedelta(seconds=45)
        assert (row["status"], row["attempt"], row["lease_token"], row["worker_id"]) == ("Failed", 1, None, None)
    assert (by_worker["error_message"], by_worker["error"]["type"]) == ("boom", "OperatorError")
    assert (by_time["error_message"], by_time["error"]["type"], by_time["error"]["code"]) == (
        "timeout", "LeaseExpired", "timeout"
    )  # fmt: skip
    assert (db.log(crashing)[-1]["reason"], db.log(failing)[-1]["reason"]) == ("lease_expired", None)


@pytest.mark.req("S1-65")
async def test_five_retries_are_attempts_of_the_same_row(store: Store, db: Harness) -> None:
    job_id = await enqueued(store, 6)
    for retry in range(1, 6):
        job = await claimed(store)
        assert (job.id, job.counter) == (job_id, retry)
        await failed(store, db, job)
        await reconciled(store, db, job_id)
        assert db.sql("select task_id, attempt from tenure_dispatcher.tasks") == [
            {"task_id": job_id, "attempt": retry + 1}
        ]


@pytest.mark.req("S1-68")
async def test_a_task_is_never_queued_again_before_its_retry_time(clock: StoppedClock, db: Harness) -> None:
    async with Store.open(clock.dsn) as store:
        await store.enqueue_many([NewJob("extract", contract="dispatcher")] * 20)
        held = [job.held for job in await store.claim("dispatcher", worker="w1", limit=20)]
        await store.report("fail", calls(held, failures=[Failure("boom")] * 20))
        due = {row["task_id"]: row["next_retry_at"] for row in db.sql("select * from tenure_dispatcher.tasks")}
        assert len(set(due.values())) > 10, "the jitter spreads them"
        assert await store.promote("dispatcher") == []
        for moment in sorted(set(due.values())):
            clock.set(moment - TICK)
            assert await store.promote("dispatcher") == []
            clock.set(moment)
            moved = {one.job_id for one in await store.promote("dispatcher") if isinstance(one, Moved)}
            assert moved == {job_id for job_id, eligible in due.items() if eligible == moment}
    for job_id, eligible in due.items():
        assert (db.hops(job_id)[-1], db.log(job_id)[-1]["ts"]) == ("Failed->Queued", eligible)


@pytest.mark.req("S1-69")
async def test_the_reconciler_takes_failed_tasks_that_are_due_and_no_other(store: Store, db: Harness) -> None:
    due, early, final, running, queued = [await enqueued(store, 1 if n == 2 else 3) for n in range(5)]
    held = [job.held for job in await store.claim("dispatcher", worker="w1", limit=4)]
    await store.report("fail", calls(held[:3], failures=[Failure("boom")] * 3))
    untouched = db.fingerprint(early, final, running, queued)
    (moved,) = await reconciled(store, db, due)
    assert isinstance(moved, Moved)
    assert (moved.job_id, moved.from_state, moved.state, moved.counter) == (due, "Failed", "Queued", 2)
    assert db.fingerprint(early, final, running, queued) == untouched
    shown = task(db, due)
    assert (shown["status"], shown["attempt"], shown["next_retry_at"]) == ("Queued", 2, None)
    assert await store.promote("dispatcher") == []
    assert (await claimed(store)).id == queued, "the task that was due longest goes first"
    assert (await claimed(store)).id == due


@pytest.mark.req("S1-72")
async def test_the_reaper_leaves_valid_leases_alone(store: Store, db: Harness) -> None:
    expired, valid, queued, waiting = [await enqueued(store) for _ in range(4)]
    (ended, *_) = await store.claim_by_id([waiting, expired, valid], worker="w1", contract="dispatcher")
    assert isinstance(ended, Job)
    await failed(store, db, ended)
    db.expire(expired)
    # A lease that is about to end is still a lease.
    db.sql("update tenure.job set lease_expires_at = clock_timestamp() + interval '60 s' where id = %s", valid)
    untouched = db.fingerprint(valid, queued, waiting)
    assert [moved.job_id for moved in await store.reap("dispatcher")] == [expired]
    assert await store.reap("dispatcher") == []
    assert db.fingerprint(valid, queued, waiting) == untouched


@pytest.mark.req("S1-74")
async def test_a_timeout_of_the_last_attempt_is_a_terminal_failure(store: Store, db: Harness) -> None:
    job_id = await enqueued(store, 2)
    await run_to_the_end(store, db, job_id, crashed)
    shown = task(db, job_id)
    assert (shown["status"], shown["attempt"], shown["next_retry_at"]) == ("Failed", 2, None)
    assert shown["error_message"] == "timeout"
    before = db.fingerprint(job_id)
    assert await reconciled(store, db, job_id) == await store.reap("dispatcher") == []
    assert await store.claim("dispatcher", worker="w2") == []
    assert db.fingerprint(job_id) == before


@pytest.mark.req("S1-75")
@pytest.mark.parametrize("loop", ["reap", "promote"])
async def test_two_dispatchers_at_once_move_each_task_once(dsn: str, store: Store, db: Harness, loop: str) -> None:
    made = await store.enqueue_many([NewJob("extract", contract="dispatcher")] * 500)
    ids = [answer.job_id for answer in made if answer.job_id is not None]
    held = [job.held for job in await store.claim("dispatcher", worker="w1", limit=500)]
    if loop == "reap":
        db.expire(*ids)
    else:
        await store.report("fail", calls(held, failures=[Failure("boom")] * 500))
        db.due(*ids)

    both = Barrier(2)

    async def dispatcher() -> list[int]:
        moved: list[int] = []
        async with Store.open(dsn, connections=1) as own:
            await own.events(1)
            both.wait(60)
            while some := await getattr(own, loop)("dispatcher", limit=20):
                moved += [outcome.job_id for outcome in some if isinstance(outcome, Moved)]
                if len(moved) == len(some):
                    both.wait(60)  # for the other's first share: neither is through before both have one
        return moved

    shares = at_once(2, lambda _: asyncio.run(dispatcher()))
    assert sorted(shares[0] + shares[1]) == sorted(ids)
    assert all(shares), "both took part"
    assert set(statuses(db)) == {("Failed", 1) if loop == "reap" else ("Queued", 2)}
    db.log_is_sound(*ids)
