"""Contract `phase27`: what a failure leaves behind, how long a retry waits, and when the budget is spent."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from tenure.jobs.job import Failure, Job, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres.store import Store
from tests.clock import MOMENT, TICK, StoppedClock
from tests.contracts.phase27 import (
    BOOM,
    RUN,
    Boom,
    centre_of,
    claimed,
    events,
    fail_once,
    fail_times,
    made,
    pattern,
    payloads,
    take,
    task,
    work,
)
from tests.harness import Harness
from tests.holder_calls import calls

pytestmark = pytest.mark.core

FAILED = {*RUN, "max_attempts", "terminal", "error"}
REQUIRED = {"ts", "message", "attempt", "max_attempts", "terminal"}
RETRY = {"backoff_ms", "next_available_at"}


@pytest.mark.req("S0-04")
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
async def test_an_always_failing_task_runs_max_attempts_times(store: Store, db: Harness, limit: int) -> None:
    task_id = await made(store, max_attempts=limit)
    ran: list[int] = []

    def handler(job: Job) -> None:
        ran.append(job.counter)
        assert job.counter <= limit
        raise Boom("again")

    await work(store, db, handler)
    assert ran == list(range(1, limit + 1))
    row = task(db, task_id)
    assert (row["status"], row["attempt"]) == ("failed", limit)
    still_alive = [hop for hop in db.log(task_id) if hop["to_state"] == "queued" and hop["counter"] >= limit]
    assert still_alive == []


@pytest.mark.req("S0-38", "S0-46", "S0-53")
@pytest.mark.parametrize(
    ("failure", "known"),
    [
        (Failure("boom"), set()),
        (Failure("boom", type="KeyError", code="E1"), {"code"}),
        (Failure("boom", stack="line 1"), {"stack"}),
        (Failure("", code="E1", stack="line 1", stage="exec", retryable=True), {"code", "stack"}),
    ],
    ids=["bare", "code", "stack", "everything"],
)
async def test_last_error_has_exactly_the_keys_that_are_known(
    store: Store, db: Harness, failure: Failure, known: set[str]
) -> None:
    task_id = await made(store, max_attempts=2)
    await fail_once(store, failure)
    first = task(db, task_id)["last_error"]
    assert first.keys() == REQUIRED | RETRY | known
    assert first["terminal"] is False
    db.due(task_id)
    await fail_once(store, failure)
    last = task(db, task_id)["last_error"]
    assert last.keys() == REQUIRED | known
    assert last["terminal"] is True
    for error, attempt in ((first, 1), (last, 2)):
        assert (error["message"], error["attempt"], error["max_attempts"]) == (failure.message, attempt, 2)
        assert error["ts"] == payloads(db, task_id, "task.failed")[attempt - 1]["ts"]
        assert {name: error[name] for name in known} == {name: getattr(failure, name) for name in known}


@pytest.mark.req("S0-39")
@pytest.mark.parametrize(
    "failure",
    [
        Failure("bad value", type="ValueError"),
        Failure("no key", type="KeyError"),
        Failure("ours", type="Boom"),
        Failure("for ever", type="PermanentError", retryable=False),
        Failure("input", type="ValidationError"),
    ],
    ids=lambda failure: failure.type,
)
async def test_every_exception_is_retried_while_budget_remains(store: Store, db: Harness, failure: Failure) -> None:
    task_id = await made(store, max_attempts=2)
    answer = await fail_once(store, failure)
    assert (answer.trigger, answer.state, answer.will_retry) == ("retry", "queued", True)
    db.due(task_id)
    answer = await fail_once(store, failure)
    assert (answer.trigger, answer.state, answer.will_retry) == ("exhaust", "failed", False)


@pytest.mark.req("S0-40")
async def test_of_two_attempts_the_first_retries_and_the_second_is_terminal(store: Store, db: Harness) -> None:
    task_id = await made(store, max_attempts=2)
    await fail_once(store)
    assert (task(db, task_id)["status"], task(db, task_id)["attempt"]) == ("queued", 1)
    db.due(task_id)
    await fail_once(store)
    assert (task(db, task_id)["status"], task(db, task_id)["attempt"]) == ("failed", 2)
    assert [payload["terminal"] for payload in payloads(db, task_id, "task.failed")] == [False, True]


@pytest.mark.req("S0-41")
async def test_the_delay_doubles_from_1500_with_every_attempt(store: Store, db: Harness) -> None:
    for _ in range(5):
        task_id = await made(store)
        await fail_times(store, db, task_id, 5)
        delays = [payload for payload in payloads(db, task_id, "task.failed") if not payload["terminal"]]
        for payload, centre in zip(delays, (1500, 3000, 6000, 12000), strict=True):
            assert 0.7 * centre <= payload["backoff_ms"] <= 1.3 * centre
            assert centre_of(task_id, payload["attempt"], payload["backoff_ms"]) == pytest.approx(centre, abs=1)


@pytest.mark.req("S0-42")
async def test_jitter_spreads_400_first_delays_over_the_whole_interval(store: Store, db: Harness) -> None:
    await store.enqueue_many([NewJob("t", contract="phase27")] * 400)
    jobs = await store.claim("phase27", worker="w1", limit=400)
    answers = await store.report("fail", calls([job.held for job in jobs], failures=[BOOM] * 400))
    shown = db.sql(
        "select (payload ->> 'backoff_ms')::int as ms from tenure_phase27.task_events where kind = 'task.failed'"
    )
    delays = sorted(row["ms"] for row in shown)
    assert len(delays) == 400
    assert delays == sorted(answer.delay_ms for answer in answers if isinstance(answer, Moved) and answer.delay_ms)
    assert min(delays) >= 1050
    assert max(delays) <= 1950
    assert min(delays) < 1150
    assert max(delays) > 1850
    assert len(set(delays)) > 100
    # Uniform: about a quarter in each quarter of the interval, so on both sides of the centre.
    quarters = [sum(low <= delay < low + 225 for delay in delays) for low in (1050, 1275, 1500, 1725)]
    assert all(60 <= quarter <= 140 for quarter in quarters), quarters


@pytest.mark.req("S0-43")
async def test_the_centre_is_capped_and_the_jitter_stands_above_it(store: Store, db: Harness) -> None:
    ids = [await made(store, max_attempts=12) for _ in range(6)]
    for _ in range(11):
        jobs = await store.claim("phase27", worker="w1", limit=10)
        await store.report("fail", calls([job.held for job in jobs], failures=[BOOM] * len(jobs)))
        db.due(*ids)
    capped = [
        (task_id, payload)
        for task_id in ids
        for payload in payloads(db, task_id, "task.failed")
        if payload["attempt"] >= 7
    ]
    assert [payload["attempt"] for _, payload in capped] == [7, 8, 9, 10, 11] * len(ids)
    for task_id, payload in capped:
        assert 42_000 <= payload["backoff_ms"] <= 78_000
        assert centre_of(task_id, payload["attempt"], payload["backoff_ms"]) == pytest.approx(60_000, abs=1)
    assert max(payload["backoff_ms"] for _, payload in capped) > 60_000, "jitter comes after the cap"


@pytest.mark.req("S0-43")
async def test_attempt_200_does_not_overflow(store: Store, db: Harness) -> None:
    task_id = await made(store, max_attempts=1000)
    db.sql("update tenure.job set claims = 199, counter = 199 where id = %s", task_id)
    answer = await fail_once(store)
    assert (answer.counter, answer.state) == (200, "queued")
    assert answer.delay_ms is not None
    assert 42_000 <= answer.delay_ms <= 78_000


@pytest.mark.req("S0-44")
async def test_a_retry_goes_from_running_to_queued_directly(store: Store, db: Harness) -> None:
    task_id = await made(store)
    db.spy()
    await fail_once(store)
    assert [(hop.old, hop.new) for hop in db.seen(task_id)] == [("queued", "running"), ("running", "queued")]
    assert db.hops(task_id) == ["queued->running", "running->queued"]


@pytest.mark.req("S0-45", "S0-47")
async def test_a_retry_is_available_after_exactly_its_backoff_and_unlocked(store: Store, db: Harness) -> None:
    task_id = await made(store)
    earliest = db.value("select clock_timestamp()")
    answer = await fail_once(store)
    row = task(db, task_id)
    (failed,), (requeued,) = payloads(db, task_id, "task.failed"), payloads(db, task_id, "task.requeued")
    failed_at = datetime.fromisoformat(failed["ts"])
    assert earliest < failed_at < db.value("select clock_timestamp()")
    assert row["available_at"] - failed_at == timedelta(milliseconds=failed["backoff_ms"])
    assert row["available_at"] == datetime.fromisoformat(requeued["available_at"]) == answer.due_at
    assert requeued["available_at"] == row["last_error"]["next_available_at"]
    assert failed["backoff_ms"] == row["last_error"]["backoff_ms"] == answer.delay_ms
    assert (row["status"], row["locked_by"], row["lock_expires_at"]) == ("queued", None, None)


@pytest.mark.req("S0-48", "S0-49", "S0-55")
@pytest.mark.parametrize("code", [None, "E_CODE"])
async def test_failure_events_have_exactly_their_keys(store: Store, db: Harness, code: str | None) -> None:
    task_id = await made(store, max_attempts=3)
    for _ in range(3):
        await fail_once(store, Failure("boom", code=code, stack="line 1"))
        db.due(task_id)
    *retried, last = payloads(db, task_id, "task.failed")
    assert [payload.keys() for payload in retried] == [{*FAILED, "backoff_ms"}] * 2
    assert last.keys() == FAILED
    assert [payload["terminal"] for payload in (*retried, last)] == [False, False, True]
    error = {"message": "boom"} if code is None else {"message": "boom", "code": code}
    assert [payload["error"] for payload in (*retried, last)] == [error] * 3
    requeued = payloads(db, task_id, "task.requeued")
    assert [payload.keys() for payload in requeued] == [{*RUN, "max_attempts", "available_at"}] * 2
    for payload in (*retried, last, *requeued):
        assert (payload["task_id"], payload["actor"], payload["max_attempts"]) == (str(task_id), "w1", 3)


@pytest.mark.req("S0-50")
async def test_each_retry_is_a_failed_then_a_requeued_in_one_transaction(store: Store, db: Harness) -> None:
    task_id = await made(store)
    for _ in range(2):
        await fail_once(store)
        wrote = db.one(
            "select j.xmin::text as row, e.xmin::text as event from tenure.job j "
            "join tenure.event e on e.job_id = j.id and e.seq = j.seq where j.id = %s",
            task_id,
        )
        assert wrote["row"] == wrote["event"]
        db.due(task_id)
    await store.succeed((await take(store)).held)
    assert pattern(db, task_id) == [
        ("running", 1), ("failed", 1), ("requeued", 1),
        ("running", 2), ("failed", 2), ("requeued", 2),
        ("running", 3), ("completed", 3),
    ]  # fmt: skip


@pytest.mark.req("S0-51")
async def test_a_retry_is_not_claimable_before_its_available_at(clock: StoppedClock, db: Harness) -> None:
    async with Store.open(clock.dsn) as store:
        task_id = await made(store)
        answer = await fail_once(store)
        available = task(db, task_id)["available_at"]
        assert MOMENT < available == answer.due_at
        assert await claimed(store) == []
        clock.set(available - TICK)
        assert await claimed(store) == []
        clock.set(available)
        assert await claimed(store) == [task_id]
    assert payloads(db, task_id, "task.running")[-1]["attempt"] == 2
    assert events(db, task_id)[-1]["ts"] == available


@pytest.mark.req("S0-52", "S0-54", "S0-53", "S0-55")
async def test_the_last_failure_is_terminal_and_releases_the_task(store: Store, db: Harness) -> None:
    task_id = await made(store)
    await fail_times(store, db, task_id, 5)
    row = task(db, task_id)
    assert (row["status"], row["attempt"], row["completed_at"]) == ("failed", 5, None)
    assert row["last_error"]["terminal"] is True
    assert (row["locked_by"], row["lock_expires_at"]) == (None, None)
    assert len(payloads(db, task_id, "task.requeued")) == 4
    assert pattern(db, task_id)[-2:] == [("running", 5), ("failed", 5)]


@pytest.mark.req("S0-56")
async def test_a_limit_lowered_below_the_attempt_ends_the_task(store: Store, db: Harness) -> None:
    task_id = await made(store)
    await fail_times(store, db, task_id, 2)
    held = (await take(store)).held
    db.sql("update tenure.job set max_attempts = 1 where id = %s", task_id)
    answer = await store.fail(held, BOOM)
    row = task(db, task_id)
    assert (answer.state, row["status"], row["attempt"], row["max_attempts"]) == ("failed", "failed", 3, 1)
    assert (row["last_error"]["terminal"], pattern(db, task_id)[-1]) == (True, ("failed", 3))
