"""What no other test saw, until a bug was planted there (`tests/mutants`): very moments, a race, ends, numbers."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import uuid4

import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.numbers import Backoff, Jitter
from tenure.errors import NotDue, StaleLease
from tenure.jobs.job import Failure, Held, Job, NewJob
from tenure.jobs.outcome import Moved
from tenure.model.backoff import delay_ms
from tenure.postgres.dead_letters import DeadLetter, DeadLetters
from tenure.postgres.store import Store
from tests.clock import MOMENT, TICK, StoppedClock
from tests.contracts.gate_b2 import left_pending, make
from tests.contracts.reliability import running
from tests.harness import Harness

PERMANENT = Failure("no such account", type="PermanentError", code="NO_ACCOUNT")


async def held(store: Store, contract: str) -> Held:
    """A new job in the hands of its handler."""
    await store.enqueue(NewJob("t", contract=contract))
    if contract == "reliability":
        return (await running(store)).held
    (job,) = await store.claim(contract, worker="w1")
    return job.held


async def test_a_lease_that_ends_at_this_very_moment_is_still_its_holders(clock: StoppedClock, db: Harness) -> None:
    move = "update tenure.job set lease_expires_at = %s where id = %s"
    async with Store.open(clock.dsn) as store:
        proof = await held(store, "reliability")
        db.sql(move, MOMENT, proof.id)
        assert await store.reap("reliability") == []
        assert (await store.succeed(proof)).state == "succeeded"
        proof = await held(store, "reliability")
        db.sql(move, MOMENT - TICK, proof.id)
        with pytest.raises(StaleLease):
            await store.succeed(proof)
        assert [outcome.job_id for outcome in await store.reap("reliability")] == [proof.id]


async def test_a_second_beat_that_is_due_at_this_very_moment_is_not_missed_yet(
    clock: StoppedClock, db: Harness
) -> None:
    move = "update tenure.job set last_heartbeat_at = %s, lease_expires_at = %s where id = %s"
    beats = timedelta(seconds=30)
    async with Store.open(clock.dsn) as store:
        proof = await held(store, "reliability")
        db.sql(move, MOMENT - beats, MOMENT + beats, proof.id)
        assert (await store.succeed(proof)).state == "succeeded"
        proof = await held(store, "reliability")
        db.sql(move, MOMENT - beats - TICK, MOMENT + beats, proof.id)
        with pytest.raises(StaleLease):
            await store.succeed(proof)


@pytest.mark.parametrize("contract", ["standard", "reliability"])
async def test_a_job_is_claimable_by_its_id_at_the_very_moment_of_its_due_time(
    clock: StoppedClock, contract: str
) -> None:
    async with Store.open(clock.dsn) as store:
        equal, after = [
            (await store.enqueue(NewJob("t", contract=contract, run_at=MOMENT + n * TICK))).job_id for n in (0, 1)
        ]
        won, refused = await store.claim_by_id([equal, after], worker="w1", contract=contract)
        assert isinstance(won, Job)
        assert isinstance(refused, NotDue)
        assert (won.id, refused.job_id) == (equal, after)


async def waiting_at(store: Store, db: Harness, *moments: datetime) -> list[int]:
    """Failed tasks of document 001 whose retry times are these."""
    tasks = []
    for moment in moments:
        proof = await held(store, "dispatcher")
        assert (await store.fail(proof, Failure("boom"))).role == "waiting"
        db.sql("update tenure.job set due_at = %s where id = %s", moment, proof.id)
        tasks.append(proof.id)
    return tasks


@pytest.mark.req("S1-69")
async def test_the_reconciler_queues_a_task_at_the_very_moment_of_its_retry_time(
    clock: StoppedClock, db: Harness
) -> None:
    async with Store.open(clock.dsn) as store:
        equal, after, before = await waiting_at(store, db, MOMENT, MOMENT + TICK, MOMENT - TICK)
        untouched = db.fingerprint(after)
        moved = await store.promote("dispatcher")
        assert [(one.job_id, one.state) for one in moved if isinstance(one, Moved)] == [
            (before, "Queued"),
            (equal, "Queued"),
        ]
        assert db.fingerprint(after) == untouched
        assert db.value("select status from tenure_dispatcher.tasks where task_id = %s", after) == "Failed"


@pytest.mark.req("S1-69")
async def test_a_request_may_queue_a_task_at_the_very_moment_of_its_retry_time(
    clock: StoppedClock, db: Harness
) -> None:
    async with Store.open(clock.dsn) as store:
        equal, after = await waiting_at(store, db, MOMENT, MOMENT + TICK)
        moved = await store.transition(equal, "Queued", actor="ada")
        assert isinstance(moved, Moved)
        assert (moved.trigger, moved.state) == ("promote", "Queued")
        with pytest.raises(NotDue):
            await store.transition(after, "Queued", actor="ada")


async def test_no_request_queues_a_failed_task_before_its_retry_time(store: Store, db: Harness) -> None:
    proof = await held(store, "dispatcher")
    await store.fail(proof, Failure("boom"))
    before = db.fingerprint(proof.id)
    with pytest.raises(NotDue):
        await store.transition(proof.id, "Queued", actor="ada")
    assert db.fingerprint(proof.id) == before
    db.due(proof.id)
    moved = await store.transition(proof.id, "Queued", actor="ada")
    assert isinstance(moved, Moved)
    assert (moved.trigger, moved.state) == ("promote", "Queued")


async def test_a_repeated_claim_hands_out_no_lease_that_ran_out_however_few_it_asks_for(
    store: Store, db: Harness
) -> None:
    for _ in range(3):
        await store.enqueue(NewJob("t", contract="reliability"))
    key = uuid4()
    won = await store.claim("reliability", worker="w1", limit=3, claim_key=key)
    db.expire(*[job.id for job in won])
    with pytest.raises(StaleLease):  # it closes one of the three; the others are nobody's either
        await store.claim("reliability", worker="w1", limit=1, claim_key=key)


async def test_a_job_that_gets_its_letter_while_we_look_is_not_run_again_beside_it(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = await held(store, "standard")
    look = DeadLetters.find

    async def look_and_then_it_fails(letters: DeadLetters, job_id: int) -> DeadLetter | None:
        found = await look(letters, job_id)
        if found is None:
            await store.fail(proof, PERMANENT)
        return found

    monkeypatch.setattr(DeadLetters, "find", look_and_then_it_fails)
    again = await store.requeue(proof.id, actor="ada")
    letter = await store.letters.of_job(proof.id)
    assert (letter.status, letter.requeued_as) == ("requeued", again)
    assert db.row(again)["origin_letter"] == letter.id
    assert db.value("select count(*) from tenure.rerun") == 0


async def test_a_job_that_was_put_off_has_its_whole_budget_and_waits_as_after_a_first_failure(
    store: Store, db: Harness
) -> None:
    made = await store.enqueue(NewJob("t", max_attempts=2))
    answers: list[Moved] = []
    for n in range(5):
        db.due(made.job_id)
        (job,) = await store.claim(worker="w1")
        answers.append(await (store.snooze(job.held, 60_000) if n < 3 else store.fail(job.held, Failure("boom"))))
    assert [moved.trigger for moved in answers] == ["snooze"] * 3 + ["retry", "exhaust"]
    base = BUILT_IN["standard"].backoff.base_ms
    assert 0.75 * base <= (answers[3].delay_ms or 0) <= 1.25 * base


async def test_standard_gives_up_on_an_error_that_cannot_get_better(store: Store, db: Harness) -> None:
    for kind, reason in (("PermanentError", "permanent_error"), ("ValidationError", "validation_failed")):
        proof = await held(store, "standard")
        moved = await store.fail(proof, Failure("no", type=kind))
        assert (moved.trigger, moved.state, moved.will_retry) == ("fatal", "dead", False)
        assert (await store.letters.of_job(proof.id)).reason_code == reason
        assert db.hops(proof.id) == ["queued->running", "running->dead"]


@pytest.mark.parametrize("claims", [100, 101, 102, 1000])
def test_the_largest_numbers_that_are_allowed_wait_for_the_cap(db: Harness, claims: int) -> None:
    form = Backoff(base_seconds=86_400, cap_seconds=604_800, jitter=Jitter(form="multiply", low=1, high=1), factor=2)
    query = "select tenure.backoff_ms(7, %s, 0, %s, %s, %s, 'multiply', 1, 1, false)"
    assert db.value(query, claims, form.base_ms, form.factor, form.cap_ms) == form.cap_ms
    assert delay_ms(form, 7, claims) == form.cap_ms


async def test_a_failure_that_leads_to_the_dead_letters_is_terminal_at_once(store: Store, db: Harness) -> None:
    job_id = await make(store)
    await left_pending(store, db, job_id)
    assert (db.row(job_id)["role"], db.row(job_id)["last_error"]["terminal"]) == ("settling", True)
    (settled,) = await store.settle("gate_b2")
    assert isinstance(settled, Moved)
    assert (await store.letters.of_job(job_id)).last_error["terminal"] is True
