"""A holder's request made again, under every contract: with its key it gets its first answer, without it a refusal.

Nothing is ever done twice: "nothing" is every row of every table, with the transaction that wrote it.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import IdempotencyConflict, InvalidTransition, LeaseConflictError, StaleLease
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.job import NewJob
from tenure.jobs.outcome import Moved, Noted
from tenure.postgres.store import Store
from tests.contracts.gate_b2 import DEAD, PERMANENT, left_pending
from tests.contracts.repeats import (
    ENDS,
    FATAL,
    GIVES_BACK,
    KEYED,
    TRANSIENT,
    everything,
    hold,
    next_holder,
    refusal_of,
    say,
)
from tests.harness import Harness

every_contract = pytest.mark.parametrize("contract", BUILT_IN)


@every_contract
async def test_the_same_request_again_gets_the_first_answer_and_nothing_is_done(
    store: Store, db: Harness, contract: str
) -> None:
    for verb in KEYED[contract]:
        job = await hold(store, contract, verb)
        first = await say(store, verb, job.held, "k")
        before = everything(db)
        for _ in range(2):
            assert await say(store, verb, job.held, "k") == first
        assert everything(db) == before
        db.log_is_sound(job.id)


@pytest.mark.req("S2-20")
async def test_every_step_of_a_reliability_job_said_twice_is_one_step(store: Store, db: Harness) -> None:
    db.spy()
    made = await store.enqueue(NewJob("t", contract="reliability", key="k"))
    claim_key = uuid4()
    claimed = [await store.claim("reliability", worker="w1", claim_key=claim_key) for _ in range(2)]
    assert claimed[0] == claimed[1]
    held = claimed[0][0].held
    for key, verb in (("start", "start"), ("beat", "heartbeat")):
        answers = [await say(store, verb, held, key) for _ in range(2)]
        assert answers[0] == answers[1]
    db.wear(made.job_id)
    renewals = [await store.heartbeat(held, key="renewal") for _ in range(2)]
    assert renewals[0] == renewals[1]
    assert renewals[0].renewed
    failures = [await store.fail(held, TRANSIENT, key="failure") for _ in range(2)]
    assert failures[0] == failures[1]
    assert failures[0].will_retry
    db.due(made.job_id)
    (second,) = await store.claim("reliability", worker="w2")
    await store.start(second.held)
    ends = [await store.succeed(second.held, {"n": 1}, key="end") for _ in range(2)]
    assert ends[0] == ends[1]
    facts = [event["type"] for event in db.sql("select type from tenure_reliability.job_events order by ts, id")]
    assert facts == [
        "job_claimed", "job_started", "job_heartbeat", "job_heartbeat", "job_lease_renewed", "job_requeued",
        "job_claimed", "job_started", "job_succeeded",
    ]  # fmt: skip
    assert [hop.new for hop in db.seen(made.job_id)] == [
        "assigned", "running", "queued", "assigned", "running", "succeeded",
    ]  # fmt: skip
    db.log_is_sound(made.job_id)


@pytest.mark.req("S2-20")
async def test_a_reliability_key_with_another_body_or_transition_is_a_conflict(store: Store, db: Harness) -> None:
    job = await hold(store, "reliability", "start")
    await store.start(job.held, key="k")
    await store.heartbeat(job.held, key="beat")
    before = everything(db)
    for verb, key in (("heartbeat", "k"), ("succeed", "k"), ("end", "k"), ("cancelled", "k"), ("fail", "beat")):
        refusal = await refusal_of(say(store, verb, job.held, key))
        assert isinstance(refusal, IdempotencyConflict), verb
        assert (refusal.key, refusal.job_id, refusal.reason_code) == (key, job.id, "IDEMPOTENCY_CONFLICT")
    assert everything(db) == before
    await store.fail(job.held, TRANSIENT, key="failure")
    before = everything(db)
    for call in (store.fail(job.held, FATAL, key="failure"), store.succeed(job.held, key="failure")):
        assert isinstance(await refusal_of(call), IdempotencyConflict)
    assert everything(db) == before


@every_contract
async def test_the_key_of_another_body_or_verb_is_a_conflict_and_nothing_is_done(
    store: Store, db: Harness, contract: str
) -> None:
    for verb in KEYED[contract]:
        job = await hold(store, contract, verb)
        await say(store, verb, job.held, "k")
        before = everything(db)
        if verb not in ("start", "heartbeat", "compensated"):  # these have no body
            assert isinstance(await refusal_of(say(store, verb, job.held, "k", other=True)), IdempotencyConflict)
        others = {"succeed": "fail", "end": "succeed", "fail": "succeed"}
        assert isinstance(await refusal_of(say(store, others.get(verb, "succeed"), job.held, "k")), IdempotencyConflict)
        assert everything(db) == before


@every_contract
async def test_the_old_holder_is_answered_by_its_key_after_another_took_the_job_and_after_its_end(
    store: Store, db: Harness, contract: str
) -> None:
    for verb in GIVES_BACK[contract]:
        job = await hold(store, contract, verb)
        first = await say(store, verb, job.held, "k")
        taken = await next_holder(store, db, job)
        before = everything(db)
        assert await say(store, verb, job.held, "k") == first
        for key in (None, "another"):
            refusal = await refusal_of(say(store, verb, job.held, key))
            assert isinstance(refusal, StaleLease)
            assert refusal.held_by == "w2"
        assert everything(db) == before
        await store.succeed(taken.held, key="the end")
        before = everything(db)
        assert await say(store, verb, job.held, "k") == first
        for key in (None, "another"):
            assert isinstance(await refusal_of(say(store, verb, job.held, key)), StaleLease)
        assert isinstance(await refusal_of(store.succeed(job.held, key="the end")), IdempotencyConflict)
        assert everything(db) == before
        db.log_is_sound(job.id)


@every_contract
async def test_a_second_terminal_write_without_the_key_is_refused_and_logs_nothing(
    store: Store, db: Harness, contract: str
) -> None:
    for verb in ENDS[contract]:
        job = await hold(store, contract, verb)
        first = await say(store, verb, job.held, "k")
        assert first.role == "done"
        before = everything(db)
        for second in ENDS[contract]:
            for key in (None, "another"):
                refusal = await refusal_of(say(store, second, job.held, key))
                assert isinstance(refusal, InvalidTransition)
                assert refusal.reason_code == BUILT_IN[contract].invalid_transition
                assert refusal.state == first.state
        assert everything(db) == before
        assert await say(store, verb, job.held, "k") == first, "a refused call has not spent its key, nor this one's"
        db.log_is_sound(job.id)


async def test_the_end_of_a_gate_b2_job_told_twice_is_failed_both_times_with_one_item(
    store: Store, db: Harness
) -> None:
    job = await hold(store, "gate_b2")
    first = await store.fail(job.held, PERMANENT, key="k")
    assert (first.trigger, first.state, first.role) == ("fatal", "failed", "done")
    before = everything(db)
    assert await store.fail(job.held, PERMANENT, key="k") == first
    assert everything(db) == before
    assert db.hops(job.id)[-3:] == DEAD
    assert db.value("select count(*) from tenure_gate_b2.dlq_items where job_id = %s", job.id) == 1


async def test_a_gate_b2_job_left_at_its_commit_point_is_told_as_failed_once_it_is(store: Store, db: Harness) -> None:
    new = await store.enqueue(NewJob("t", contract="gate_b2"))
    (held,) = await left_pending(store, db, new.job_id, key="k")
    await store.settle("gate_b2")
    before = everything(db)
    told = await store.fail(held, PERMANENT, key="k")
    assert (told.trigger, told.from_state, told.state, told.role) == ("fatal", "running", "failed", "done")
    assert everything(db) == before
    assert isinstance(await refusal_of(store.fail(held, PERMANENT)), InvalidTransition)


@every_contract
async def test_a_later_holder_with_the_same_key_gets_a_conflict_not_the_earlier_holders_answer(
    store: Store, db: Harness, contract: str
) -> None:
    for verb in GIVES_BACK[contract]:
        job = await hold(store, contract, verb)
        await say(store, verb, job.held, "k")
        later = await next_holder(store, db, job)
        before = everything(db)
        assert isinstance(await refusal_of(say(store, verb, later.held, "k")), IdempotencyConflict)
        assert everything(db) == before
        answer = await say(store, verb, later.held, "k of my own")
        assert answer.claims == later.claims
        db.log_is_sound(job.id)


@every_contract
async def test_a_wrong_proof_is_refused_with_any_key_and_spends_none(store: Store, db: Harness, contract: str) -> None:
    for verb in KEYED[contract]:
        job, stranger = await hold(store, contract, verb), await hold(store, contract, verb)
        wrong = (
            replace(job.held, token=stranger.held.token),
            replace(job.held, claims=job.claims + 1),
            replace(stranger.held, id=job.id),
        )
        before = everything(db)
        for proof in wrong:
            assert isinstance(await refusal_of(say(store, verb, proof, "k")), LeaseConflictError)
        assert everything(db) == before
        first = await say(store, verb, job.held, "k")
        before = everything(db)
        for proof in wrong:  # whoever cannot show the proof is not told what the holder was told
            assert isinstance(await refusal_of(say(store, verb, proof, "k")), IdempotencyConflict)
        assert everything(db) == before
        assert await say(store, verb, job.held, "k") == first


async def test_an_equal_result_is_the_same_body_in_whatever_order_its_keys_were_written(store: Store) -> None:
    job = await hold(store, "standard")
    first = await store.succeed(job.held, {"a": 1, "b": [{"c": 2, "d": 3}]}, key="k")
    assert await store.succeed(job.held, {"b": [{"d": 3, "c": 2}], "a": 1}, key="k") == first
    assert isinstance(await refusal_of(store.succeed(job.held, {"a": 1}, key="k")), IdempotencyConflict)


@every_contract
async def test_a_holders_key_is_its_jobs_own_and_no_enqueues_or_operators(
    store: Store, db: Harness, contract: str
) -> None:
    jobs = [await hold(store, contract, key="k"), await hold(store, contract, tenant_id="other", key="k")]
    for job in jobs:
        assert (await store.succeed(job.held, key="k")).job_id == job.id
    again = await store.requeue(jobs[0].id, actor="ada", key="requeue")
    assert db.row(again)["state"] == BUILT_IN[contract].initial
    assert db.value("select count(*) from tenure.key where key = 'k' and verb = 'enqueue'") == 2


async def test_beats_are_answered_by_their_key_after_the_lease_was_lost_and_the_job_ended(
    store: Store, db: Harness
) -> None:
    job = await hold(store, "reliability")
    first = await store.heartbeat(job.held, key="k")
    taken = await next_holder(store, db, job)
    before = everything(db)
    assert await store.heartbeat(job.held, key="k") == first
    assert isinstance(await refusal_of(store.heartbeat(job.held)), LeaseConflictError)
    assert isinstance(await refusal_of(store.heartbeat(taken.held, key="k")), IdempotencyConflict)
    assert everything(db) == before
    await store.succeed(taken.held)
    before = everything(db)
    assert await store.heartbeat(job.held, key="k") == first
    assert everything(db) == before


async def test_a_failure_that_waits_for_its_compensation_may_be_told_again_and_again(store: Store, db: Harness) -> None:
    job = await hold(store, "reliability")
    await store.effect(job.held, "charge", compensable=True)
    await store.effect(job.held, "mail", compensable=True)
    first = await store.fail(job.held, FATAL, key="failure")
    logged = db.log(job.id)
    again = await store.fail(job.held, FATAL, key="failure")
    assert isinstance(again, Moved)
    assert again.compensate == first.compensate == ("mail", "charge")
    assert db.log(job.id) == logged
    end = await store.compensated(job.held, key="undone")
    assert (end.trigger, end.state) == ("fatal", "failed")
    before = everything(db)
    assert await store.compensated(job.held, key="undone") == end
    assert isinstance(await refusal_of(store.fail(job.held, FATAL, key="undone")), IdempotencyConflict)
    assert everything(db) == before


async def test_a_failure_that_waits_for_its_compensation_has_spent_its_key(store: Store, db: Harness) -> None:
    job = await hold(store, "reliability")
    await store.effect(job.held, "charge", compensable=True)
    first = await store.fail(job.held, FATAL, key="k")
    before = everything(db)
    assert await store.fail(job.held, FATAL, key="k") == first
    for verb in ("fail", "succeed", "compensated"):
        assert isinstance(await refusal_of(say(store, verb, job.held, "k")), IdempotencyConflict), verb
    assert everything(db) == before


async def test_a_phase27_job_let_go_twice_is_let_go_once_for_the_next_claim(store: Store, db: Harness) -> None:
    job = await hold(store, "phase27")
    logged = db.log(job.id)
    for _ in range(2):
        assert isinstance(await store.hand_back(job.held, key="k"), Noted)
    assert db.log(job.id) == logged
    taken = await next_holder(store, db, job)
    before = everything(db)
    for key in (None, "another"):
        assert isinstance(await refusal_of(store.hand_back(job.held, key=key)), StaleLease)
    assert everything(db) == before
    assert (await store.succeed(taken.held)).claims == 2


async def test_a_report_with_a_key_that_another_verb_used_is_a_conflict(store: Store, db: Harness) -> None:
    await store.enqueue(NewJob("t", contract="reliability"))
    (job,) = await store.claim("reliability", worker="w")
    await store.start(job.held, key="k")
    before = everything(db)
    (answer,) = await store.report("succeed", [HolderCall(job.held, "k", events=[{"seen": 1}])])
    assert isinstance(answer, IdempotencyConflict)
    assert everything(db) == before
