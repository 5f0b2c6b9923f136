"""`simple`, document 003: the queue alone decides retries; every failure passes through FAILED in one transaction."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tenure.contracts.numbers import Jitter
from tenure.contracts.simple import SIMPLE
from tenure.errors import Refused, Unsound
from tenure.jobs.job import Failure, Job, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.holder_calls import calls

RETRY = ["PENDING->RUNNING", "RUNNING->FAILED", "FAILED->PENDING"]
ALWAYS_FAILING = [*RETRY, *RETRY, "PENDING->RUNNING", "RUNNING->FAILED"]

# Refuses the log row of one hop, as a fault between two hops of one path would.
_BREAK_THE_LOG = """
create function public.break_the_log() returns trigger language plpgsql as
$$ begin raise exception 'no log row for this hop'; end $$;
create trigger break_the_log before insert on tenure.event for each row
when (new.from_state = %s and new.to_state = %s) execute function public.break_the_log();
"""

# Keeps every version that a live row ever had.
_KEEP_VERSIONS = """
create table public.version (n bigint generated always as identity, id bigint, status text, eta timestamptz);
create function public.keep_version() returns trigger language plpgsql as
$$ begin insert into public.version (id, status, eta) values (new.id, new.state, new.due_at); return null; end $$;
create trigger keep_version after insert or update on tenure.job for each row execute function public.keep_version();
"""

End = Callable[[Store, Harness, Job], Awaitable[Moved]]


async def failed(store: Store, db: Harness, job: Job) -> Moved:
    """Execution raised an error."""
    return await store.fail(job.held, Failure("boom", "KeyError"))


async def reaped(store: Store, db: Harness, job: Job) -> Moved:
    """The lease had run out, and the reaper came."""
    (outcome,) = await store.reap("simple")
    if isinstance(outcome, Refused):
        raise outcome
    assert isinstance(outcome, Moved), outcome
    return outcome


async def crashed(store: Store, db: Harness, job: Job) -> Moved:
    """The worker died and its lease ran out."""
    db.expire(job.id)
    return await reaped(store, db, job)


failed_or_crashed = pytest.mark.parametrize("end", [failed, crashed])


async def enqueued(store: Store, max_retries: int | None = None) -> int:
    return (await store.enqueue(NewJob("send", contract="simple", max_attempts=max_retries))).job_id


async def dequeued(store: Store) -> Job:
    (job,) = await store.claim("simple", worker="w1")
    return job


async def run_to_the_end(store: Store, db: Harness, job_id: int, end: End) -> list[Moved]:
    """Claim and fail this task until it is not retried any more; what each failure was answered."""
    answers: list[Moved] = []
    while not answers or answers[-1].will_retry:
        db.due(job_id)
        answers.append(await end(store, db, await dequeued(store)))
    return answers


def task(db: Harness, job_id: int) -> dict[str, Any]:
    return db.one("select * from tenure_simple.tasks where id = %s", job_id)


def results(db: Harness, job_id: int) -> list[dict[str, Any]]:
    return db.sql("select * from tenure_simple.task_results where task_id = %s", job_id)


def break_the_log(db: Harness, source: str, target: str) -> None:
    db.sql(_BREAK_THE_LOG.replace("%s", f"'{source}'", 1).replace("%s", f"'{target}'", 1))


@pytest.mark.req("S3-34")
@failed_or_crashed
async def test_an_always_failing_task_makes_eight_transitions_and_one_result(
    store: Store, db: Harness, end: End
) -> None:
    job_id = await enqueued(store)
    answers = await run_to_the_end(store, db, job_id, end)
    assert db.hops(job_id) == ALWAYS_FAILING
    first, second = [answer.delay_ms or 0 for answer in answers if answer.will_retry]
    assert 750 <= first <= 1250
    assert 1500 <= second <= 2500
    assert (task(db, job_id)["status"], task(db, job_id)["attempts"]) == ("FAILED", 3)
    assert [(row["status"], row["attempts"]) for row in results(db, job_id)] == [("FAILED", 3)]
    db.log_is_sound(job_id)


@pytest.mark.req("S3-02")
async def test_the_failure_is_readable_while_the_task_waits_for_its_retry(store: Store, db: Harness) -> None:
    job_id = await enqueued(store)
    answer = await failed(store, db, await dequeued(store))
    shown = task(db, job_id)
    assert shown["status"] == "PENDING"
    error = shown["error"]
    assert (error["message"], error["type"], error["attempt"]) == ("boom", "KeyError", 1)
    assert error["ts"] == f"{answer.at:%Y-%m-%dT%H:%M:%S.%fZ}"
    assert results(db, job_id) == [], "a result is for the end"
    hop = db.log(job_id)[1]
    assert (hop["to_state"], hop["facts"]["error"]["message"]) == ("FAILED", "boom")


@pytest.mark.req("S3-03", "S3-05")
async def test_a_retry_passes_through_failed_and_is_never_pending_with_its_old_eta(store: Store, db: Harness) -> None:
    job_id = await enqueued(store)
    db.spy()
    db.sql(_KEEP_VERSIONS)
    answer = await failed(store, db, await dequeued(store))
    assert db.hops(job_id) == RETRY
    # The spy sees the row's one change; the log's two hops fill exactly that gap.
    assert [(hop.old, hop.new) for hop in db.seen(job_id)] == [("PENDING", "RUNNING"), ("RUNNING", "PENDING")]
    versions = db.sql("select status, eta from public.version where id = %s order by n", job_id)
    assert [row["status"] for row in versions] == ["RUNNING", "PENDING"]
    assert versions[1]["eta"] == answer.due_at
    assert versions[1]["eta"] > versions[0]["eta"]


@pytest.mark.req("S3-04")
@pytest.mark.parametrize("base_ms", [1, 1_000, 20_000])
async def test_the_eta_is_in_the_future_and_follows_the_configured_policy(dsn: str, db: Harness, base_ms: int) -> None:
    async with Store.open(dsn, numbers={"simple": {"backoff_base_ms": base_ms}}) as own:
        await own.enqueue_many([NewJob("send", contract="simple")] * 60)
        held = [job.held for job in await own.claim("simple", worker="w1", limit=60)]
        answers = await own.report("fail", calls(held, failures=[Failure("boom")] * 60))
    delays = []
    for answer in answers:
        assert isinstance(answer, Moved)
        assert answer.due_at is not None
        assert answer.due_at > answer.at
        delays.append((answer.due_at - answer.at) / timedelta(milliseconds=1))
    assert max(1, 0.75 * base_ms) <= min(delays)
    assert max(delays) <= max(1, 1.25 * base_ms)
    assert base_ms == 1 or len(set(delays)) > 30, "the jitter spreads"


@pytest.mark.req("S3-04")
async def test_a_policy_without_any_delay_is_refused(dsn: str) -> None:
    with pytest.raises(Unsound, match="backoff_base_ms is 0"):
        await Store.connect(dsn, numbers={"simple": {"backoff_base_ms": 0}})


@pytest.mark.req("S3-07")
@pytest.mark.parametrize("end", [failed, reaped])
@pytest.mark.parametrize("hop", [("RUNNING", "FAILED"), ("FAILED", "PENDING")], ids="->".join)
async def test_a_fault_between_the_hops_of_a_retry_leaves_no_half_of_it(
    store: Store, db: Harness, end: End, hop: tuple[str, str]
) -> None:
    job_id = await enqueued(store)
    job = await dequeued(store)
    db.expire(job_id)
    break_the_log(db, *hop)
    before = db.fingerprint(job_id)
    with pytest.raises((psycopg.errors.RaiseException, Refused), match="no log row for this hop"):
        await end(store, db, job)
    assert db.fingerprint(job_id) == before
    assert task(db, job_id)["status"] == "RUNNING"
    db.sql("drop trigger break_the_log on tenure.event")
    assert (await end(store, db, job)).will_retry
    assert db.hops(job_id) == RETRY


@pytest.mark.req("S3-09")
@failed_or_crashed
async def test_the_last_failure_ends_the_task_and_writes_its_result_in_one_transaction(
    store: Store, db: Harness, end: End
) -> None:
    job_id = await enqueued(store, 1)
    job = await dequeued(store)
    break_the_log(db, "RUNNING", "FAILED")
    with pytest.raises((psycopg.errors.RaiseException, Refused), match="no log row for this hop"):
        await end(store, db, job)
    assert (task(db, job_id)["status"], results(db, job_id)) == ("RUNNING", [])
    db.sql("drop trigger break_the_log on tenure.event")
    answer = await end(store, db, job)
    assert (answer.state, answer.will_retry, answer.due_at) == ("FAILED", False, None)
    (result,) = results(db, job_id)
    message = "boom" if end is failed else "worker lost"
    assert (result["status"], result["error"]["message"], result["result"]) == ("FAILED", message, None)
    assert (result["attempts"], result["finished_at"]) == (1, answer.at)
    one_transaction = (
        "select (select xmin::text from tenure.job_done where id = %s) = "
        "(select xmin::text from tenure.event where job_id = %s order by seq desc limit 1)"
    )
    assert db.value(one_transaction, job_id, job_id)


@pytest.mark.req("S3-10")
@failed_or_crashed
async def test_after_the_last_failure_nothing_is_scheduled(store: Store, db: Harness, end: End) -> None:
    job_id = await enqueued(store, 2)
    await run_to_the_end(store, db, job_id, end)
    before = db.fingerprint(job_id)
    assert task(db, job_id)["eta"] <= db.value("select clock_timestamp()")
    db.due(job_id)
    db.expire(job_id)
    for loop in (store.reap, store.promote, store.settle):
        assert await loop("simple") == []
    assert await store.claim("simple", worker="w2") == []
    assert db.fingerprint(job_id) == before


@pytest.mark.req("S3-17", "S3-18")
@failed_or_crashed
async def test_with_max_retries_3_attempt_2_is_retried_and_attempt_3_is_the_last(
    store: Store, db: Harness, end: End
) -> None:
    job_id = await enqueued(store, 3)
    answers = await run_to_the_end(store, db, job_id, end)
    assert [(answer.counter, answer.will_retry) for answer in answers] == [(1, True), (2, True), (3, False)]
    assert (task(db, job_id)["attempts"], task(db, job_id)["max_retries"]) == (3, 3)


@pytest.mark.req("S3-19")
@failed_or_crashed
async def test_answer_and_row_agree_on_the_budget_for_every_count_and_limit(
    store: Store, db: Harness, end: End
) -> None:
    grid = [(attempts, max_retries) for attempts in range(7) for max_retries in range(7)]
    made = await store.enqueue_many([NewJob("send", contract="simple", max_attempts=limit) for _, limit in grid])
    cases = dict(zip((answer.job_id for answer in made), grid, strict=True))
    for job_id, (attempts, _) in cases.items():
        earlier = max(0, attempts - 1)
        db.sql("update tenure.job set claims = %s, counter = %s where id = %s", earlier, earlier, job_id)
    for job in await store.claim("simple", worker="w1", limit=len(grid)):
        # A task that was never claimed cannot fail; its first execution is allowed by every limit, also 0.
        attempts, max_retries = cases.pop(job.id)
        attempts = max(1, attempts)
        answer = await end(store, db, job)
        shown = task(db, job.id)
        assert (shown["attempts"], shown["max_retries"], answer.counter) == (attempts, max_retries, attempts)
        assert answer.will_retry is (attempts < max_retries), (attempts, max_retries)
        assert shown["status"] == ("PENDING" if attempts < max_retries else "FAILED")
        assert len(results(db, job.id)) == (attempts >= max_retries)
        assert (attempts < SIMPLE.budget.executions(max_retries)) is answer.will_retry
    assert cases == {}


@pytest.mark.req("S3-20")
async def test_what_a_worker_says_of_a_failure_does_not_decide_its_retry(store: Store, db: Harness) -> None:
    assert {field.name for field in dataclasses.fields(Failure)} == {
        "message", "type", "code", "stack", "stage", "retryable", "release"
    }  # fmt: skip
    opinions = [Failure("a", retryable=False), Failure("b", "PermanentError"), Failure("c", retryable=True)]
    await store.enqueue_many([NewJob("send", contract="simple", max_attempts=2)] * 3)
    for will_retry in (True, False):
        db.due(1, 2, 3)
        held = [job.held for job in await store.claim("simple", worker="w1", limit=3)]
        answers = await store.report("fail", calls(held, failures=opinions))
        assert [isinstance(answer, Moved) and answer.will_retry for answer in answers] == [will_retry] * 3
        assert [isinstance(answer, Moved) and answer.due_at is not None for answer in answers] == [will_retry] * 3


@pytest.mark.req("S3-21")
async def test_delays_double_until_the_cap_when_nothing_spreads_them(dsn: str, db: Harness) -> None:
    plain = dataclasses.replace(
        SIMPLE,
        version="2",
        backoff=dataclasses.replace(SIMPLE.backoff, jitter=Jitter(form="multiply", low=1.0, high=1.0)),
    )
    migrate(dsn, {"simple": plain})
    async with Store.open(dsn) as own:
        answers = await run_to_the_end(own, db, await enqueued(own, 9), failed)
    delays = [answer.delay_ms for answer in answers if answer.will_retry]
    assert delays == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


@pytest.mark.req("S3-22", "S3-23")
@failed_or_crashed
async def test_the_eta_is_now_plus_the_reported_delay_and_the_row_has_it(store: Store, db: Harness, end: End) -> None:
    job_id = await enqueued(store)
    asked = db.value("select clock_timestamp()")
    answer = await end(store, db, await dequeued(store))
    answered = db.value("select clock_timestamp()")
    assert answer.delay_ms is not None
    assert asked < answer.at < answered
    assert answer.due_at == answer.at + timedelta(milliseconds=answer.delay_ms)
    shown = task(db, job_id)
    assert (shown["status"], shown["eta"]) == ("PENDING", answer.due_at)


@pytest.mark.req("S3-31")
async def test_a_lost_worker_is_a_failure_like_any_other(store: Store, db: Harness) -> None:
    job_id = await enqueued(store, 2)
    assert await store.reap("simple") == []
    first = await crashed(store, db, await dequeued(store))
    shown = task(db, job_id)
    assert (shown["status"], shown["attempts"], shown["eta"]) == ("PENDING", 1, first.due_at)
    assert (shown["error"]["message"], shown["error"]["code"]) == ("worker lost", "WORKER_LOST")
    assert first.due_at is not None
    assert timedelta(milliseconds=750) <= first.due_at - first.at <= timedelta(milliseconds=1250)
    assert db.hops(job_id) == RETRY
    db.due(job_id)
    await crashed(store, db, await dequeued(store))
    assert db.hops(job_id) == [*RETRY, "PENDING->RUNNING", "RUNNING->FAILED"]
    (result,) = results(db, job_id)
    assert (result["status"], result["attempts"], result["error"]["message"]) == ("FAILED", 2, "worker lost")
