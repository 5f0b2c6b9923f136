"""Decisions of people: a job waits without a due time until a request for a state moves it on, or ends it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tenure.errors import BadInput, InvalidTransition
from tenure.jobs.job import Failure, NewJob
from tenure.jobs.outcome import Enqueued, Moved
from tenure.jobs.unique import Unique
from tenure.postgres.store import Store
from tenure.proof.audit import audit
from tests.decisions import PURCHASE, REVIEW, register
from tests.harness import Harness

_SECONDS = 1_000


@pytest.fixture
def own(dsn: str) -> None:
    register(dsn)


pytestmark = pytest.mark.usefixtures("own")


async def made(store: Store, contract: str = "purchase", **options: object) -> int:
    """The id of a new job that waits for its first decision."""
    return (await store.enqueue(NewJob("buy", contract=contract, **options))).job_id  # type: ignore[arg-type]


async def test_a_job_begins_in_the_waiting_state_without_a_due_time(store: Store) -> None:
    (job,) = await store.jobs([await made(store)])
    assert (job.state, job.role, job.due_at) == ("draft", "waiting", None)
    alike = await store.enqueue_many([NewJob("buy", {"n": n}, contract="purchase") for n in range(3)])
    mixed = await store.enqueue_many([NewJob("buy", queue=queue, contract="purchase") for queue in ("one", "two")])
    found = await store.jobs([one.job_id for one in (*alike, *mixed) if isinstance(one, Enqueued)])
    assert len(found) == 5
    assert {(job.role, job.due_at) for job in found} == {("waiting", None)}


async def test_no_claim_and_no_upkeep_touches_an_undecided_job(store: Store, db: Harness) -> None:
    job_id = await made(store)
    assert await store.claim("purchase", worker="w") == []
    assert await store.promote("purchase") == []
    assert not (await store.watch.find_pending()).promote
    assert await store.events(job_id) == []


async def test_upkeep_leaves_an_undecided_job_alone_although_its_time_has_come(store: Store, db: Harness) -> None:
    await made(store, delay_ms=60 * _SECONDS)
    job_id = await made(store, "review", delay_ms=60 * _SECONDS)
    db.sql("update tenure.job set due_at = now() - interval '1 minute'")
    for contract in ("purchase", "review"):
        assert await store.promote(contract) == []  # neither moved nor refused
    assert not (await store.watch.find_pending()).promote
    assert (await store.jobs([job_id]))[0].state == "asked"


async def test_a_replaced_job_still_waits_for_its_decision(store: Store, db: Harness) -> None:
    unique = Unique("waiting", ("item",), "replace")
    job_id = await made(store, payload={"item": 1, "n": 0}, unique=unique)
    assert await made(store, payload={"item": 1, "n": 1}, unique=unique) == job_id
    (job,) = await store.jobs([job_id])
    assert (job.payload, job.state, job.due_at) == ({"item": 1, "n": 1}, "draft", None)
    assert await made(store, payload={"item": 1, "n": 2}, unique=unique, delay_ms=60 * _SECONDS) == job_id
    (job,) = await store.jobs([job_id])
    assert (job.payload["n"], job.due_at is None) == (2, False)
    assert await store.promote("purchase") == []
    assert (await audit(store)).violations == []


async def test_a_job_that_people_decided_about_gets_no_other_payload(store: Store, db: Harness) -> None:
    unique = Unique("waiting", ("item",), "replace")
    job_id = await made(store, payload={"item": 1, "n": 0}, unique=unique)
    for state in ("waiting_approval", "approved"):
        await store.transition(job_id, state, actor="ada")
        before = db.row(job_id)
        assert await made(store, payload={"item": 1, "n": 1}, unique=unique) == job_id
        assert db.row(job_id) == before


async def test_a_decision_is_logged_with_who_and_why_and_makes_the_job_due(store: Store) -> None:
    job_id = await made(store)
    await store.transition(job_id, "waiting_approval", actor="bob")
    moved = await store.transition(job_id, "approved", actor="ada", reason="it is cheap")
    assert (moved.state, moved.role) == ("approved", "ready")
    submit, approve = await store.events(job_id)
    assert (submit.trigger, submit.actor, submit.reason) == ("submit", "bob", None)
    assert (approve.trigger, approve.actor, approve.reason) == ("approve", "ada", "it is cheap")
    (job,) = await store.jobs([job_id])
    assert job.due_at == approve.ts
    assert job.last_error is None
    (held,) = await store.claim("purchase", worker="w")
    assert (await store.succeed(held.held)).state == "done"
    assert (await audit(store)).violations == []


async def test_a_time_that_the_caller_gave_stays_after_the_decision(store: Store) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    job_id = await made(store, run_at=tomorrow)
    await store.transition(job_id, "waiting_approval", actor="bob")
    await store.transition(job_id, "approved", actor="ada")
    assert (await store.jobs([job_id]))[0].due_at == tomorrow
    assert await store.claim("purchase", worker="w") == []


async def test_a_decision_may_end_the_job_and_its_reason_is_the_jobs_error(store: Store) -> None:
    job_id = await made(store)
    await store.transition(job_id, "rejected", actor="ada", reason="too dear")
    (job,) = await store.jobs([job_id])
    assert (job.state, job.role, job.claims) == ("rejected", "done", 0)
    assert job.last_error["message"] == "too dear"
    with pytest.raises(InvalidTransition):
        await store.transition(job_id, "waiting_approval", actor="ada")


async def test_a_decision_that_ends_a_job_may_write_a_dead_letter(store: Store) -> None:
    job_id = await made(store, "review")
    await store.transition(job_id, "refused", actor="ada", reason="no money")
    letter = await store.letters.find(job_id)
    assert letter is not None
    assert letter.reason_code == "refused"


async def test_no_decision_skips_a_state_and_none_is_made_twice(store: Store) -> None:
    job_id = await made(store)
    with pytest.raises(InvalidTransition, match=r"job .* is draft"):
        await store.transition(job_id, "approved", actor="ada")
    await store.transition(job_id, "waiting_approval", actor="ada")
    with pytest.raises(InvalidTransition):
        await store.transition(job_id, "waiting_approval", actor="ada")
    assert len(await store.events(job_id)) == 1


async def test_of_many_people_who_decide_at_once_one_wins(store: Store) -> None:
    job_id = await made(store)
    await store.transition(job_id, "waiting_approval", actor="bob")
    states = ["approved", "rejected"] * 8
    answers = await asyncio.gather(
        *(store.transition(job_id, state, actor=f"judge {n}") for n, state in enumerate(states)), return_exceptions=True
    )
    won = [answer for answer in answers if isinstance(answer, Moved)]
    assert len(won) == 1
    assert all(isinstance(answer, (Moved, InvalidTransition)) for answer in answers)
    assert [entry.to_state for entry in await store.events(job_id)] == ["waiting_approval", won[0].state]


async def test_the_word_of_a_decision_is_answered_with_its_state(store: Store) -> None:
    job_id = await made(store)
    with pytest.raises(BadInput, match="Next: name the state that approve leads to: approved"):
        await store.transition(job_id, "approve", actor="ada")


async def test_a_person_may_decide_before_the_time_does(store: Store, db: Harness) -> None:
    ids = [await made(store, "review") for _ in range(2)]
    for job_id in ids:
        await store.transition(job_id, "queued", actor="ada")
    for job in await store.claim("review", worker="w", limit=2):
        await store.start(job.held)
        assert (await store.fail(job.held, Failure("broken"))).state == "parked"
    early, late = ids
    decided = await store.transition(early, "queued", actor="ada")
    assert isinstance(decided, Moved)
    assert decided.trigger == "again"
    db.due(late)
    assert [moved.job_id for moved in await store.promote("review")] == [late]
    counters = {job.id: job.counter for job in await store.jobs(ids)}
    assert counters == {early: 2, late: 1}, "the contract counts a decision"
    assert (await audit(store)).violations == []


async def test_a_job_that_runs_again_waits_for_its_decision_again(store: Store) -> None:
    job_id = await made(store)
    await store.transition(job_id, "rejected", actor="ada")
    again = await store.requeue(job_id, actor="ada")
    (job,) = await store.jobs([again])
    assert (job.state, job.role, job.due_at) == ("draft", "waiting", None)
    refused = await made(store, "review")
    await store.transition(refused, "refused", actor="ada")
    letter = await store.letters.find(refused)
    assert letter is not None
    (job,) = await store.jobs([await store.letters.requeue(letter.id, actor="ada")])
    assert (job.state, job.role, job.due_at) == ("asked", "waiting", None)


async def test_the_table_refuses_a_job_that_begins_beyond_its_decision(store: Store, db: Harness) -> None:
    job_id = await made(store)
    with pytest.raises(Exception, match="job_state"):
        db.sql("update tenure.job set state = 'approved', role = 'ready' where id = %s", job_id)
    with pytest.raises(Exception, match="job_state"):
        db.sql("update tenure.job set role = 'ready' where id = %s", job_id)


def test_a_decision_is_told_apart_from_a_trigger_of_the_engine() -> None:
    assert PURCHASE.decisions == ("submit", "approve", "reject")
    assert REVIEW.decisions_from("parked") == {"refuse": "refused", "again": "queued", "hold_up": "held_up"}
