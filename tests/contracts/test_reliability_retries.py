"""Document 002, failures: which errors are tried again and when, and what the dead letters of the others say."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import pairwise
from statistics import mean

import psycopg
import pytest

from tenure.errors import (
    LeaseConflictError,
    NotDue,
    PermanentError,
    Refused,
    TaskError,
    TenureError,
    TransientError,
    ValidationError,
)
from tenure.jobs.job import Failure
from tenure.jobs.outcome import Moved
from tenure.postgres.store import Store
from tests.contracts.reliability import (
    INVALID,
    TRANSIENT,
    events,
    letters,
    make,
    running,
    shown,
    types,
)
from tests.harness import Harness
from tests.holder_calls import calls

FIELDS = {"reason_code", "last_error", "attempts", "last_owner", "last_lease_expires_at", "correlation_id"}


def raised(error: type[TaskError]) -> Failure:
    """What a handler that raises this reports."""
    try:
        raise error("it broke")
    except TaskError as caught:
        return Failure(str(caught), type=type(caught).__name__, code=caught.code)


async def fail_until_it_ends(store: Store, db: Harness, job_id: int) -> list[Moved]:
    """Let every run raise a retryable error, without waiting for the backoff; the answers."""
    answers = [await store.fail((await running(store, "w1")).held, TRANSIENT)]
    while answers[-1].will_retry:
        db.due(job_id)
        answers.append(await store.fail((await running(store, f"w{len(answers) + 1}")).held, TRANSIENT))
    return answers


@pytest.mark.req("S2-36")
@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (TransientError, "queued", None),
        (PermanentError, "failed", None),
        (ValidationError, "dead_lettered", "validation_failed"),
    ],
)
async def test_transient_errors_are_retried_permanent_and_validation_errors_are_not(
    store: Store, db: Harness, error: type[TaskError], status: str, reason: str | None
) -> None:
    job_id = await make(store)
    job = await running(store)
    answer = await store.fail(job.held, raised(error))
    assert (answer.state, answer.will_retry) == (status, status == "queued")
    assert shown(db, job_id)["status"] == status
    assert [letter["reason_code"] for letter in letters(db, job_id)] == ([reason] if reason else [])
    assert shown(db, job_id)["last_error"]["type"] == error.__name__
    # The fourth class: ownership is lost with the failure, whichever it was.
    if status == "queued":
        with pytest.raises(LeaseConflictError):
            await store.succeed(job.held)
    assert issubclass(LeaseConflictError, TenureError)


async def test_an_error_of_an_unknown_class_is_retried_unless_it_says_not_to(store: Store) -> None:
    await make(store)
    assert (await store.fail((await running(store)).held, Failure("?", type="OSError"))).will_retry
    await make(store)
    refused = Failure("?", type="OSError", retryable=False)
    assert (await store.fail((await running(store)).held, refused)).state == "failed"


@pytest.mark.req("S2-37")
@pytest.mark.parametrize(("error", "status"), [(PermanentError, "failed"), (ValidationError, "dead_lettered")])
async def test_a_non_retryable_error_ends_the_job_on_its_first_attempt(
    store: Store, db: Harness, error: type[TaskError], status: str
) -> None:
    job_id = await make(store, max_attempts=10)
    await store.fail((await running(store)).held, raised(error))
    row = shown(db, job_id)
    assert (row["status"], row["attempts"], row["finished_at"]) == (status, 1, row["updated_at"])
    assert types(db, job_id) == ["job_claimed", "job_started", f"job_{status}"]
    assert await store.claim("reliability", worker="w2") == []


@pytest.mark.req("S2-33")
async def test_retries_back_off_exponentially_with_jitter_up_to_the_configured_maximum(
    store: Store, db: Harness, dsn: str
) -> None:
    job_id = await make(store, max_attempts=4)
    for centre in (500, 1000, 2000):
        answer = await store.fail((await running(store)).held, TRANSIENT)
        assert answer.delay_ms is not None
        assert centre / 2 <= answer.delay_ms <= centre * 1.5
        assert answer.due_at == answer.at + timedelta(milliseconds=answer.delay_ms)
        assert shown(db, job_id)["due_at"] == answer.due_at
        before = db.fingerprint(job_id)
        assert await store.claim("reliability", worker="w2") == []
        (refused,) = await store.claim_by_id([job_id], worker="w2", contract="reliability")
        assert isinstance(refused, NotDue)
        assert db.fingerprint(job_id) == before
        db.due(job_id)
    async with Store.open(dsn, numbers={"reliability": {"backoff_cap_ms": 2_000}}) as capped:
        await capped.succeed((await running(capped)).held)
        capped_id = await make(capped, max_attempts=12)
        delays = [answer.delay_ms or 0 for answer in await fail_until_it_ends(capped, db, capped_id)]
    assert max(delays) == 2_000  # eight delays around or above it, and none beyond
    assert all(delay >= 1_000 for delay in delays[2:-1])


@pytest.mark.req("S2-34")
async def test_the_default_backoff_is_500_ms_doubling_up_to_60_s(store: Store, db: Harness) -> None:
    job_ids = [await make(store, max_attempts=10) for _ in range(60)]
    for n in range(9):
        centre = min(60_000, 500 * 2**n)
        jobs = await store.claim("reliability", worker="w1", limit=100)
        await store.report("start", calls([job.held for job in jobs]))
        answers = await store.report("fail", calls([job.held for job in jobs], failures=[TRANSIENT] * len(jobs)))
        delays = [answer.delay_ms or 0 for answer in answers if isinstance(answer, Moved)]
        assert len(delays) == 60
        assert all(centre / 2 <= delay <= min(60_000, centre * 1.5) for delay in delays)
        assert len(set(delays)) > 20
        if centre <= 32_000:  # above, the cap cuts the spread
            assert mean(delays) == pytest.approx(centre, rel=0.15)
        db.due(*job_ids)
    assert max(delays) == 60_000


@pytest.mark.req("S2-63")
async def test_a_job_that_always_fails_makes_nine_transitions_and_nine_events(store: Store, db: Harness) -> None:
    db.spy()
    job_id = await make(store)
    answers = await fail_until_it_ends(store, db, job_id)
    assert [answer.state for answer in answers] == ["queued", "queued", "dead_lettered"]
    cycle = [("queued", "assigned"), ("assigned", "running")]
    transitions = [*cycle, ("running", "queued")] * 2 + [*cycle, ("running", "dead_lettered")]
    assert [(hop.old, hop.new) for hop in db.seen(job_id)] == transitions
    assert len(transitions) == 9
    told = events(db, job_id)
    assert [(event["payload"]["from"], event["payload"]["to"]) for event in told] == transitions
    assert Counter(event["type"] for event in told) == {
        "job_claimed": 3, "job_started": 3, "job_requeued": 2, "job_dead_lettered": 1,
    }  # fmt: skip
    assert [event["payload"]["reason"] for event in told if event["type"] == "job_requeued"] == ["retry", "retry"]
    low_high = [(250, 750), (500, 1500)]
    delays = [event["payload"]["delay_ms"] for event in told if event["type"] == "job_requeued"]
    assert all(low <= delay <= high for delay, (low, high) in zip(delays, low_high, strict=True))
    row = shown(db, job_id)
    assert (row["status"], row["attempts"], len(letters(db, job_id))) == ("dead_lettered", 3, 1)
    db.log_is_sound(job_id)
    # And the way of a job that succeeds: three and three.
    other = await make(store)
    await store.succeed((await running(store)).held)
    assert types(db, other) == ["job_claimed", "job_started", "job_succeeded"]
    assert [(hop.old, hop.new) for hop in db.seen(other)] == [*cycle, ("running", "succeeded")]


@pytest.mark.req("S2-42")
@pytest.mark.parametrize("reason", ["exhausted_retries", "validation_failed", "timeout"])
async def test_every_dead_letter_has_the_required_fields(store: Store, db: Harness, reason: str) -> None:
    job_id = await make(store, max_attempts=2, correlation_id="order-7", payload={"n": 1})
    await store.fail((await running(store, "first")).held, TRANSIENT)
    db.due(job_id)
    job = await running(store, "last")
    ended_at = db.value("select clock_timestamp()")
    if reason == "timeout":
        db.expire(job_id)
        expired_at = shown(db, job_id)["lease_expires_at"]
        await store.reap("reliability")
    else:
        expired_at = job.lease_expires_at
        await store.fail(job.held, TRANSIENT if reason == "exhausted_retries" else INVALID)
    (letter,) = letters(db, job_id)
    assert set(letter) >= FIELDS
    assert letter["reason_code"] == reason
    assert (letter["attempts"], letter["last_owner"]) == (2, "last")
    assert letter["last_lease_expires_at"] == expired_at
    assert (letter["correlation_id"], letter["payload"], letter["type"]) == ("order-7", {"n": 1}, "index")
    assert letter["last_error"]["message"] == shown(db, job_id)["last_error"]["message"]
    assert letter["last_error"]["attempt"] == 2
    assert letter["status"] == "open"
    assert letter["created_at"] >= ended_at


async def test_a_job_without_a_correlation_id_shares_a_made_one_with_its_letter_and_events(
    store: Store, db: Harness
) -> None:
    job_id = await make(store)
    await store.fail((await running(store)).held, INVALID)
    (letter,) = letters(db, job_id)
    correlations = {letter["correlation_id"], shown(db, job_id)["correlation_id"]}
    correlations |= {event["correlation_id"] for event in events(db, job_id)}
    assert correlations == {(await store.jobs([job_id]))[0].correlation_id}


@pytest.mark.req("S2-44")
@pytest.mark.parametrize("end", ["a final failure", "an expiry at the limit"])
async def test_a_job_is_not_dead_lettered_when_its_letter_cannot_be_written(
    store: Store, db: Harness, end: str
) -> None:
    job_id = await make(store, max_attempts=1)
    job = await running(store)
    db.sql(
        "create function public.no() returns trigger language plpgsql as $$ begin raise 'no paper'; end $$; "
        "create trigger no before insert on tenure.dead_letter for each row execute function public.no()"
    )
    at_limit = end == "an expiry at the limit"
    if at_limit:
        db.expire(job_id)
    before = db.fingerprint(job_id)

    async def finish() -> None:
        for outcome in await store.reap("reliability") if at_limit else [await store.fail(job.held, TRANSIENT)]:
            if isinstance(outcome, Refused):
                raise outcome

    with pytest.raises((psycopg.errors.RaiseException, Refused), match="no paper"):
        await finish()
    assert db.fingerprint(job_id) == before
    assert shown(db, job_id)["status"] == "running"
    db.sql("drop trigger no on tenure.dead_letter")
    await finish()
    assert (shown(db, job_id)["status"], len(letters(db, job_id))) == ("dead_lettered", 1)
    # Both were written by one transaction.
    row, letter = (
        db.value(f"select xmin::text from tenure.{table} where {column} = %s", job_id)
        for table, column in (("job_done", "id"), ("dead_letter", "job_id"))
    )
    assert row == letter
    assert all(before["ts"] < after["ts"] for before, after in pairwise(events(db, job_id)))
