"""`simple`, document 003, through `AsyncTaskQueue`: fail_task alone decides, and an ended task has one result."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from tenure import AsyncTaskQueue
from tenure.contracts.simple import SIMPLE
from tenure.errors import (
    BadInput,
    InvalidTransition,
    JobNotFound,
    PermanentError,
    Refused,
    StaleLease,
    TransientError,
)
from tenure.jobs.job import Failure
from tenure.queue import Decision, TaskResult, TaskRow
from tests.harness import Harness


@pytest.fixture
async def queue(dsn: str) -> AsyncIterator[AsyncTaskQueue]:
    """The queue of document 003 on this test's database."""
    async with AsyncTaskQueue(dsn) as opened:
        yield opened


async def taken(queue: AsyncTaskQueue) -> TaskRow:
    """The task that is due, RUNNING."""
    task = await queue.dequeue("w1")
    assert task is not None
    return task


async def fail_to_the_end(queue: AsyncTaskQueue, db: Harness, task_id: int, **options: Any) -> list[Decision]:
    """Dequeue and fail this task until the queue says that it is over; what it said each time."""
    said: list[Decision] = []
    while not said or said[-1].will_retry:
        db.due(task_id)
        said.append(await queue.fail_task(await taken(queue), ValueError("boom"), **options))
    return said


def row(db: Harness, task_id: int) -> dict[str, Any]:
    return db.one("select * from tenure_simple.tasks where id = %s", task_id)


def results(db: Harness, task_id: int) -> list[dict[str, Any]]:
    return db.sql("select * from tenure_simple.task_results where task_id = %s", task_id)


@pytest.mark.req("S3-12", "S3-13")
async def test_a_task_is_enqueued_with_no_attempts_and_dequeued_running_with_one(
    queue: AsyncTaskQueue, db: Harness
) -> None:
    task_id = await queue.enqueue("send", {"to": "ada"}, priority=2, max_retries=4, tenant_id="acme", trace_id="t-1")
    before = await queue.get_task(task_id)
    assert (before.status, before.attempts, before.held, before.last_attempt_at) == ("PENDING", 0, None, None)
    task = await queue.dequeue("w1", lease=timedelta(seconds=90))
    assert task is not None
    assert (task.id, task.status, task.attempts, task.worker) == (task_id, "RUNNING", 1, "w1")
    assert (task.type, task.payload, task.priority, task.max_retries) == ("send", {"to": "ada"}, 2, 4)
    assert task.last_attempt_at is not None
    assert task.lease_expires_at is not None
    assert timedelta(seconds=89) < task.lease_expires_at - task.last_attempt_at <= timedelta(seconds=90)
    assert await queue.get_task(task_id) == task
    shown = row(db, task_id)
    assert {name: getattr(task, name) for name in shown} == shown
    assert await queue.dequeue("w2") is None


@pytest.mark.req("S3-08", "S3-30")
async def test_a_task_with_an_eta_is_not_dequeued_before_it(queue: AsyncTaskQueue, db: Harness) -> None:
    now = db.value("select clock_timestamp()")
    given = await queue.enqueue("send", eta=now + timedelta(hours=1))
    delayed = await queue.enqueue("send", delay=timedelta(hours=1))
    past = await queue.enqueue("send", eta=now - timedelta(hours=1))
    assert (await queue.get_task(given)).eta == now + timedelta(hours=1)
    eta = (await queue.get_task(delayed)).eta
    assert eta is not None
    assert timedelta(hours=1) <= eta - now < timedelta(hours=1, minutes=1)
    assert [task.id for task in await queue.dequeue_many(10, "w1")] == [past]
    db.due(given, delayed)
    assert {task.id for task in await queue.dequeue_many(10, "w1")} == {given, delayed}


@pytest.mark.req("S3-22", "S3-23")
async def test_fail_task_answers_the_eta_that_the_row_has_to_the_microsecond(
    queue: AsyncTaskQueue, db: Harness
) -> None:
    task_id = await queue.enqueue("send")
    asked = db.value("select clock_timestamp()")
    said = await queue.fail_task(await taken(queue), TransientError("no answer"))
    answered = db.value("select clock_timestamp()")
    assert (said.task_id, said.will_retry, said.attempts, said.status) == (task_id, True, 1, "PENDING")
    assert said.delay_ms is not None
    assert asked < said.failed_at < answered
    assert said.eta == said.failed_at + timedelta(milliseconds=said.delay_ms)
    assert (row(db, task_id)["eta"], (await queue.get_task(task_id)).eta) == (said.eta, said.eta)
    assert db.log(task_id)[1]["facts"]["due_at"] == f"{said.eta:%Y-%m-%dT%H:%M:%S.%fZ}"
    assert await queue.dequeue("w1") is None


async def test_the_queues_policy_and_nobody_elses_makes_the_eta(dsn: str, db: Harness) -> None:
    policy = {"backoff_base_ms": 777_000, "backoff_cap_ms": 777_000}
    async with AsyncTaskQueue(dsn, numbers={"simple": policy}) as slow:
        for _ in range(20):
            await slow.enqueue("send")
        spread = SIMPLE.backoff.jitter
        for task in await slow.dequeue_many(20, "w1"):
            said = await slow.fail_task(task, "boom")
            assert said.delay_ms is not None
            assert 777_000 * spread.low <= said.delay_ms <= 777_000 * spread.high
            assert row(db, task.id)["eta"] == said.eta


@pytest.mark.req("S3-27")
@pytest.mark.parametrize("max_retries", [0, 1, 3])
@pytest.mark.parametrize("retry", [True, False, None])
async def test_the_worker_may_say_what_it_knows_of_the_error_but_the_budget_is_the_queues(
    queue: AsyncTaskQueue, db: Harness, max_retries: int, retry: bool | None
) -> None:
    task_id = await queue.enqueue("send", max_retries=max_retries)
    said = await fail_to_the_end(queue, db, task_id, retry=retry)
    executions = max(1, max_retries)
    assert [answer.attempts for answer in said] == list(range(1, executions + 1))
    last = said[-1]
    assert (last.will_retry, last.eta, last.delay_ms, last.status) == (False, None, None, "FAILED")
    assert (row(db, task_id)["status"], row(db, task_id)["attempts"]) == ("FAILED", executions)
    # What the worker said is on record, beside what the queue decided.
    assert [fact["facts"]["error"].get("retryable") for fact in db.log(task_id) if fact["facts"]] == [
        retry for _ in said
    ]
    assert await queue.dequeue("w1") is None


@pytest.mark.req("S3-19")
async def test_what_fail_task_says_is_what_the_row_does_for_every_count_and_limit(
    queue: AsyncTaskQueue, db: Harness
) -> None:
    grid = {
        await queue.enqueue("send", max_retries=limit): (earlier, limit) for earlier in range(6) for limit in range(7)
    }
    for task_id, (earlier, _) in grid.items():
        db.sql("update tenure.job set claims = %s, counter = %s where id = %s", earlier, earlier, task_id)
    tasks = await queue.dequeue_many(len(grid), "w1")
    assert len(tasks) == len(grid)
    for task in tasks:
        attempts, limit = grid[task.id][0] + 1, grid[task.id][1]
        said = await queue.fail_task(task, "boom")
        shown = row(db, task.id)
        assert (said.attempts, shown["attempts"], shown["max_retries"]) == (attempts, attempts, limit)
        assert (said.will_retry, said.eta is not None) == (attempts < limit, attempts < limit)
        assert (said.status, shown["status"]) == (("PENDING",) * 2 if attempts < limit else ("FAILED",) * 2)
        assert (await queue.get_result(task.id) is None) is said.will_retry


@pytest.mark.req("S3-11")
async def test_there_is_no_result_before_the_end_and_then_the_value(queue: AsyncTaskQueue, db: Harness) -> None:
    task_id = await queue.enqueue("send")
    assert await queue.get_result(task_id) is None
    task = await taken(queue)
    assert await queue.get_result(task) is None
    await queue.complete_task(task, {"sent": ["ä", 1, None]})
    result = await queue.get_result(task_id)
    assert result is not None
    assert (result.status, result.result, result.error) == ("SUCCESS", {"sent": ["ä", 1, None]}, None)
    (shown,) = results(db, task_id)
    assert dataclasses.asdict(result) == shown


@pytest.mark.req("S3-02")
async def test_a_failure_that_will_be_retried_is_readable_and_is_no_result(queue: AsyncTaskQueue, db: Harness) -> None:
    task_id = await queue.enqueue("send")
    said = await queue.fail_task(await taken(queue), KeyError("ada"))
    waiting = await queue.get_task(task_id)
    assert waiting.status == "PENDING"
    assert waiting.error is not None
    assert (waiting.error["type"], waiting.error["message"], waiting.error["attempt"]) == ("KeyError", "'ada'", 1)
    assert waiting.error["ts"] == f"{said.failed_at:%Y-%m-%dT%H:%M:%S.%fZ}"
    assert (await queue.get_result(task_id), results(db, task_id)) == (None, [])
    db.due(task_id)
    await queue.complete_task(await taken(queue), 7)
    result = await queue.get_result(task_id)
    assert result is not None
    assert (result.status, result.result, result.attempts) == ("SUCCESS", 7, 2)
    assert result.error is None, "the first attempt's failure did not end the task"


@pytest.mark.req("S3-09", "S3-10")
async def test_the_last_failure_leaves_one_result_that_stays_as_it_is(queue: AsyncTaskQueue, db: Harness) -> None:
    task_id = await queue.enqueue("send", max_retries=2)
    said = await fail_to_the_end(queue, db, task_id)
    assert [answer.will_retry for answer in said] == [True, False]
    result = await queue.get_result(task_id)
    assert result is not None
    assert (result.status, result.attempts, result.finished_at) == ("FAILED", 2, said[-1].failed_at)
    assert result.error is not None
    assert (result.error["message"], result.error["type"]) == ("boom", "ValueError")
    (shown,) = results(db, task_id)
    assert dataclasses.asdict(result) == shown
    db.due(task_id)
    assert await queue.dequeue("w1") is None
    assert (await queue.get_result(task_id), len(results(db, task_id))) == (result, 1)


@pytest.mark.req("S3-32")
async def test_fail_task_twice_schedules_one_retry(queue: AsyncTaskQueue, db: Harness) -> None:
    task_id = await queue.enqueue("send")
    task = await taken(queue)
    calls = [queue.fail_task(task, "boom") for _ in range(8)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    (said,) = [answer for answer in answers if isinstance(answer, Decision)]
    assert sorted(type(answer).__name__ for answer in answers) == ["Decision", *["StaleLease"] * 7]
    before = db.fingerprint(task_id)
    with pytest.raises(StaleLease):
        await queue.fail_task(task, "boom")
    assert db.fingerprint(task_id) == before
    assert row(db, task_id)["eta"] == said.eta
    assert db.hops(task_id) == ["PENDING->RUNNING", "RUNNING->FAILED", "FAILED->PENDING"]


@pytest.mark.req("S3-28")
async def test_a_cancelled_task_is_never_dequeued_and_its_result_says_so(queue: AsyncTaskQueue, db: Harness) -> None:
    task_id = await queue.enqueue("send")
    assert await queue.cancel_task(task_id, reason="not wanted", actor="ada") is True
    assert await queue.dequeue("w1") is None
    result = await queue.get_result(task_id)
    assert result == TaskResult(task_id, "CANCELLED", None, None, row(db, task_id)["updated_at"], 0, None)
    (event,) = db.log(task_id)
    assert (event["actor"], event["reason"], db.hops(task_id)) == ("ada", "not wanted", ["PENDING->CANCELLED"])


async def test_the_holder_of_a_task_is_asked_to_stop_and_its_failure_then_cancels(
    queue: AsyncTaskQueue, db: Harness
) -> None:
    task_id = await queue.enqueue("send")
    task = await taken(queue)
    assert not (await queue.heartbeat(task)).cancel_requested
    assert await queue.cancel_task(task_id) is False
    assert row(db, task_id)["status"] == "RUNNING"
    assert (await queue.heartbeat(task)).cancel_requested
    said = await queue.fail_task(task, asyncio.CancelledError())
    assert (said.will_retry, said.eta, said.status) == (False, None, "CANCELLED")
    assert db.hops(task_id) == ["PENDING->RUNNING", "RUNNING->CANCELLED"]
    assert len(results(db, task_id)) == 1


@pytest.mark.req("S3-29")
async def test_an_ended_task_refuses_every_call_without_effect(queue: AsyncTaskQueue, db: Harness) -> None:
    ids = [await queue.enqueue("send", max_retries=1) for _ in range(3)]
    succeeded, failed = await queue.dequeue_many(2, "w1")
    await queue.complete_task(succeeded)
    await queue.fail_task(failed, PermanentError("no"))
    await queue.cancel_task(ids[2])
    before = db.fingerprint(*ids)
    for task in (succeeded, failed):
        for call in (queue.complete_task(task), queue.fail_task(task, "late")):
            with pytest.raises(InvalidTransition):
                await call
    for task_id in ids:
        with pytest.raises(InvalidTransition):
            await queue.cancel_task(task_id)
    assert await queue.dequeue_many(5, "w1") == []
    assert db.fingerprint(*ids) == before


async def test_no_method_but_fail_task_brings_a_task_to_failed(queue: AsyncTaskQueue, db: Harness) -> None:
    task_id = await queue.enqueue("send", max_retries=1)
    task = await taken(queue)
    await queue.heartbeat(task)
    await queue.get_result(task_id)
    await queue.get_task(task_id)
    await queue.cancel_task(task_id)
    await queue.enqueue("send", key="other")
    assert row(db, task_id)["status"] == "RUNNING"
    await queue.complete_task(task)
    assert "FAILED" not in {event["to_state"] for event in db.sql("select to_state from tenure.event")}


async def test_unknown_tasks_and_tasks_of_nobody_are_refused_by_type(queue: AsyncTaskQueue, db: Harness) -> None:
    for call in (queue.get_result(999), queue.get_task(999), queue.cancel_task(999)):
        with pytest.raises(JobNotFound):
            await call
    waiting = await queue.get_task(await queue.enqueue("send"))
    before = db.fingerprint(waiting.id)
    for refused in (queue.complete_task(waiting), queue.fail_task(waiting, "boom"), queue.heartbeat(waiting)):
        with pytest.raises(BadInput, match="as dequeue gave it"):
            await refused
    assert db.fingerprint(waiting.id) == before


async def test_a_key_makes_one_task(queue: AsyncTaskQueue, db: Harness) -> None:
    first = await queue.enqueue("send", {"n": 1}, key="order-7")
    assert await queue.enqueue("send", {"n": 1}, key="order-7") == first
    with pytest.raises(Refused, match="used before with another body"):
        await queue.enqueue("send", {"n": 2}, key="order-7")
    assert db.value("select count(*) from tenure_simple.tasks") == 1


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("bad"), "ValueError", "bad"),
        (Failure("away", type="Timeout", code="T"), "Timeout", "away"),
        ("in words", "Exception", "in words"),
    ],
)
async def test_an_error_may_be_an_exception_a_failure_or_words(
    queue: AsyncTaskQueue, error: Any, kind: str, message: str
) -> None:
    task_id = await queue.enqueue("send", max_retries=1)
    await queue.fail_task(await taken(queue), error)
    result = await queue.get_result(task_id)
    assert result is not None
    assert result.error is not None
    assert (result.error["type"], result.error["message"]) == (kind, message)


async def test_a_task_that_failed_first_and_then_succeeded_shows_no_error_in_its_result(
    queue: AsyncTaskQueue, db: Harness
) -> None:
    task_id = await queue.enqueue("send")
    await queue.fail_task(await taken(queue), ValueError("boom"))
    db.due(task_id)
    await queue.complete_task(await taken(queue), {"sent": True})
    (result,) = results(db, task_id)
    assert (result["status"], result["error"]) == ("SUCCESS", None)
    ended = await queue.get_result(task_id)
    assert ended is not None
    assert (ended.status, ended.error) == ("SUCCESS", None)
    assert row(db, task_id)["error"]["message"] == "boom"
