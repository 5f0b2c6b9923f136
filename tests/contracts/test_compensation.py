"""Compensation, document 002: what a job has done is undone, newest first, before the job ends badly."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, IdempotencyConflict, InvalidTransition, Refused, StaleLease
from tenure.jobs.job import Failure, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres.store import Store
from tests.contracts.compensation import (
    ENDINGS,
    REFUND_REFUSED,
    Ending,
    compensating,
    ended_badly,
    everything,
    undone,
    worked,
)
from tests.contracts.reliability import INVALID, PERMANENT, TRANSIENT, letters, make, running, shown, types
from tests.harness import Harness
from tests.holder_calls import calls

every_ending = pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
BEGUN = ["job_claimed", "job_started"]


@pytest.mark.req("S2-50")
@every_ending
async def test_a_job_that_fails_at_its_second_step_is_compensated_and_then_ends(
    store: Store, db: Harness, ending: Ending
) -> None:
    db.spy()
    job = await worked(store, max_attempts=ending.max_attempts)
    if ending.asked:
        await store.cancel(job.id, actor="ada")
    before = shown(db, job.id)
    answer = await store.fail(job.held, ending.failure)
    before["updated_at"] = answer.at  # the log tells that the failure waits
    # Nothing moves yet: the lease is kept, and the holder is told what to undo.
    assert (answer.compensate, answer.trigger, answer.state) == (("ship", "charge"), "compensate", "running")
    assert (answer.will_retry, answer.delay_ms) == (False, None)
    assert shown(db, job.id) == before
    assert (types(db, job.id), letters(db, job.id)) == (BEGUN, [])
    moved = await store.compensated(job.held)
    row = shown(db, job.id)
    assert (moved.state, moved.role, moved.compensate) == (ending.state, "done", ())
    assert (row["status"], row["last_error"]["message"]) == (ending.state, ending.failure.message)
    assert types(db, job.id) == [*BEGUN, "job_compensated", f"job_{ending.state}"]
    assert [letter["reason_code"] for letter in letters(db, job.id)] == ([ending.reason] if ending.reason else [])
    assert undone(db, job.id) == {"charge": True, "ship": True}
    assert [hop.new for hop in db.seen(job.id)] == ["assigned", "running", ending.state]
    db.log_is_sound(job.id)


@pytest.mark.req("S2-50")
@every_ending
async def test_a_compensation_that_fails_sets_the_job_aside_with_both_failures(
    store: Store, db: Harness, ending: Ending
) -> None:
    job = await ended_badly(store, ending)
    moved = await store.compensation_failed(job.held, REFUND_REFUSED)
    assert (moved.state, moved.role) == ("dead_lettered", "done")
    assert types(db, job.id) == [*BEGUN, "job_dead_lettered"]
    (letter,) = letters(db, job.id)
    assert (letter["reason_code"], letter["stage"], letter["last_owner"]) == ("compensation_failed", "commit", "w1")
    assert letter["last_error"]["message"] == "the bank refused the refund"
    assert letter["last_error"]["failure"] == dict(ending.failure.facts())
    assert shown(db, job.id)["last_error"] == letter["last_error"]
    assert undone(db, job.id) == {"charge": False, "ship": False}
    db.log_is_sound(job.id)


@pytest.mark.req("S2-50")
@pytest.mark.parametrize("asked", [True, False], ids=["asked to stop", "of its own will"])
async def test_a_holder_that_cancels_its_job_undoes_it_first(store: Store, db: Harness, asked: bool) -> None:
    job = await worked(store)
    if asked:
        await store.cancel(job.id, actor="ada")
    answer = await store.cancelled(job.held, "enough")
    assert (answer.compensate, shown(db, job.id)["status"]) == (("ship", "charge"), "running")
    assert (await store.compensated(job.held)).state == "cancelled"
    assert types(db, job.id) == [*BEGUN, "job_compensated", "job_cancelled"]
    assert db.log(job.id)[-1]["reason"] == "enough"
    assert letters(db, job.id) == []


@pytest.mark.parametrize("way", ["fail", "cancelled", "hand_back"])
async def test_after_a_soft_cancel_every_way_out_of_the_holders_hands_undoes_first(
    store: Store, db: Harness, way: str
) -> None:
    job = await worked(store)
    await store.cancel(job.id, actor="ada")
    calls: dict[str, Any] = {
        "fail": lambda: store.fail(job.held, TRANSIENT),
        "cancelled": lambda: store.cancelled(job.held),
        "hand_back": lambda: store.hand_back(job.held),
    }
    assert (await calls[way]()).compensate == ("ship", "charge")
    assert (await store.compensated(job.held)).state == "cancelled"
    assert types(db, job.id) == [*BEGUN, "job_compensated", "job_cancelled"]


async def test_a_last_claim_that_is_handed_back_is_undone_first_and_then_ends(store: Store, db: Harness) -> None:
    job = await worked(store, max_attempts=1)
    answer = await store.hand_back(job.held)
    assert isinstance(answer, Moved)
    assert answer.compensate == ("ship", "charge")
    assert (await store.compensated(job.held)).state == "dead_lettered"
    assert types(db, job.id) == [*BEGUN, "job_compensated", "job_dead_lettered"]


async def test_effects_are_undone_newest_first_over_all_attempts(store: Store, db: Harness) -> None:
    job = await worked(store, "reserve", "pack", "charge", max_attempts=2)
    await store.fail(job.held, TRANSIENT)
    db.due(job.id)
    again = await running(store, "w2")
    assert not (await store.effect(again.held, "pack", compensable=True)).recorded, "had before, and no newer for it"
    await store.effect(again.held, "apply", compensable=True)
    assert (await store.fail(again.held, TRANSIENT)).compensate == ("apply", "charge", "pack", "reserve")


async def test_only_effects_that_can_be_undone_and_are_not_yet_are_named(store: Store, db: Harness) -> None:
    job = await worked(store, "charge", "ship", "label")
    await store.effect(job.held, "mail", compensable=False)
    db.sql("update tenure.effect set compensated_at = now() where node = 'ship'")
    assert (await store.fail(job.held, PERMANENT)).compensate == ("label", "charge")
    await store.compensated(job.held)
    assert undone(db, job.id) == {"charge": True, "ship": True, "label": True, "mail": False}


async def test_a_job_with_nothing_to_undo_ends_at_once(store: Store, db: Harness) -> None:
    await make(store)
    job = await running(store)
    await store.effect(job.held, "mail")
    answer = await store.fail(job.held, PERMANENT)
    assert (answer.state, answer.compensate) == ("failed", ())
    assert types(db, job.id) == [*BEGUN, "job_failed"]


async def test_a_failure_that_is_tried_again_undoes_nothing_and_neither_does_a_success(
    store: Store, db: Harness
) -> None:
    job = await worked(store, max_attempts=4)
    for way in ("fail", "hand back", "expire"):
        if way == "fail":
            answer = await store.fail(job.held, TRANSIENT)
            assert (answer.will_retry, answer.compensate) == (True, ())
            db.due(job.id)
        elif way == "hand back":
            given = await store.hand_back(job.held)
            assert isinstance(given, Moved)
            assert given.compensate == ()
        else:
            db.expire(job.id)
        job = await running(store)
        assert job.pending is None
    assert (await store.succeed(job.held, {"ok": True})).state == "succeeded"
    assert undone(db, job.id) == {"charge": False, "ship": False}
    assert "job_compensated" not in types(db, job.id)


async def test_a_hard_cancel_revokes_the_lease_at_once_and_undoes_nothing(store: Store, db: Harness) -> None:
    for job in (await worked(store), await compensating(store)):
        await store.cancel(job.id, mode="hard", actor="ada")
        assert (shown(db, job.id)["status"], types(db, job.id)) == ("cancelled", [*BEGUN, "job_cancelled"])
        before = everything(db, job.id)
        for call in (store.compensated(job.held), store.compensation_failed(job.held, REFUND_REFUSED)):
            with pytest.raises(StaleLease):
                await call
        assert everything(db, job.id) == before
        assert undone(db, job.id) == {"charge": False, "ship": False}


@pytest.mark.parametrize("contract", [name for name in BUILT_IN if name != "reliability"])
async def test_a_contract_that_undoes_nothing_refuses_effects_that_expect_it(store: Store, contract: str) -> None:
    await store.enqueue(NewJob("t", contract=contract))
    (job,) = await store.claim(contract, worker="w1")
    with pytest.raises(BadInput, match=f"contract {contract} undoes no effects"):
        await store.effect(job.held, "charge", compensable=True)
    assert await store.effects(job.id) == {}
    assert (await store.effect(job.held, "charge")).recorded
    with pytest.raises(Refused):
        await store.compensated(job.held)
    with pytest.raises(Refused):
        await store.compensation_failed(job.held, REFUND_REFUSED)
    assert (await store.succeed(job.held)).role == "done"


async def test_while_effects_are_undone_the_job_can_neither_succeed_nor_wait_nor_do_more(
    store: Store, db: Harness
) -> None:
    job = await compensating(store)
    before = everything(db, job.id)
    for call in (store.succeed(job.held, {"n": 1}), store.effect(job.held, "mail"), store.effect(job.held, "charge")):
        with pytest.raises(Refused) as refusal:
            await call
        assert refusal.value.reason_code == "COMPENSATING"
    for other in (store.snooze(job.held, 1000), store.start(job.held)):
        with pytest.raises(Refused):
            await other
    assert everything(db, job.id) == before
    # The holder is still at work, and its lease still its own to keep.
    db.wear(job.id)
    assert (await store.heartbeat(job.held)).renewed
    await store.progress(job.held, {"undone": 1})
    assert (await store.compensated(job.held)).state == "failed"


async def test_no_request_makes_a_success_of_a_job_that_is_being_undone(store: Store, db: Harness) -> None:
    job = await compensating(store)
    before = everything(db, job.id)
    with pytest.raises(Refused):
        await store.transition(job.id, "succeeded", actor="ada")
    assert everything(db, job.id) == before


async def test_nothing_is_compensated_that_no_failure_asked_for(store: Store, db: Harness) -> None:
    job = await worked(store)
    before = everything(db, job.id)
    for call in (store.compensated(job.held), store.compensation_failed(job.held, REFUND_REFUSED)):
        with pytest.raises(InvalidTransition):
            await call
    assert everything(db, job.id) == before


@pytest.mark.parametrize("second", [PERMANENT, INVALID, TRANSIENT, Failure("the undoing broke", type="OSError")])
async def test_a_second_failure_names_the_same_effects_and_the_first_one_stands(
    store: Store, db: Harness, second: Failure
) -> None:
    job = await compensating(store, Failure("no such account", type="PermanentError", code="FIRST"))
    before = everything(db, job.id)
    answer = await store.fail(job.held, second)
    assert (answer.compensate, answer.state) == (("ship", "charge"), "running")
    assert db.row(job.id)["pending"]["error"]["code"] == "FIRST"
    assert everything(db, job.id)[1:] == before[1:], "no event, no letter, no effect"
    assert (await store.compensated(job.held)).state == "failed"
    assert shown(db, job.id)["last_error"]["code"] == "FIRST"
    assert types(db, job.id) == [*BEGUN, "job_compensated", "job_failed"]


async def test_in_a_batch_each_job_has_its_own_answer(store: Store, db: Harness) -> None:
    plain_id = await make(store)
    plain = await running(store)
    undoing = await worked(store)
    held = [undoing.held, plain.held, undoing.held]
    answers = await store.report("fail", calls(held, failures=[PERMANENT, PERMANENT, INVALID]))
    assert [getattr(each, "compensate", None) for each in answers] == [("ship", "charge"), (), ("ship", "charge")]
    assert shown(db, plain_id)["status"] == "failed"
    assert (await store.compensated(undoing.held)).state == "failed"


@pytest.mark.parametrize("verb", ["compensated", "compensation_failed"])
async def test_a_repeat_with_its_key_gets_the_first_answer_and_one_without_is_refused(
    store: Store, db: Harness, verb: str
) -> None:
    job = await compensating(store)

    async def say(key: str | None, failure: Failure = REFUND_REFUSED) -> Moved:
        if verb == "compensated":
            return await store.compensated(job.held, key=key)
        return await store.compensation_failed(job.held, failure, key=key)

    first = await say("end-7")
    before = everything(db, job.id)
    assert await say("end-7") == first
    with pytest.raises(InvalidTransition):
        await say(None)
    with pytest.raises(InvalidTransition):
        await say("another")
    with pytest.raises(IdempotencyConflict):
        await store.succeed(job.held, key="end-7")
    assert everything(db, job.id) == before


async def test_a_key_that_cannot_be_kept_is_bad_input_and_nothing_is_written(store: Store, db: Harness) -> None:
    job = await compensating(store)
    before = everything(db, job.id)
    for bad in ("", " ", "x" * 256, "a\x00b", "\ud800"):
        for call in (
            store.compensation_failed(job.held, REFUND_REFUSED, key=bad),
            store.fail(job.held, PERMANENT, key=bad),
            store.compensated(job.held, key=bad),
        ):
            with pytest.raises(BadInput):
                await call
    assert everything(db, job.id) == before
