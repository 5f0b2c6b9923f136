"""An operator's request made again: by its key it gets its first answer, another body is a conflict.

An operator's key is its tenant's, kept beside the keys of enqueues; "nothing is done" is every row of every table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, IdempotencyConflict, InvalidTransition, Refused
from tenure.jobs.job import Job, NewJob
from tenure.jobs.outcome import Moved, Noted
from tenure.postgres.dead_letters import DeadLetter
from tenure.postgres.store import Store
from tests.contracts.repeats import FATAL, everything, hold, new_job, next_holder, refusal_of
from tests.harness import Harness

CANCELLING = ("standard", "dispatcher", "reliability", "simple")
SETTING_ASIDE = ("standard", "reliability", "gate_b2")
#: A state that a request can bring a running job to, where the contract lets it.
ASKED_FOR = {
    "standard": "succeeded", "phase27": "completed", "dispatcher": "Canceled", "reliability": "failed",
    "simple": "SUCCESS", "gate_b2": "dlq_pending",
}  # fmt: skip

Ask = Callable[[str | None], Awaitable[Any]]


def key_rows(db: Harness) -> list[tuple[str, str, str]]:
    """Every key that was kept: whose, its text, and what for."""
    rows = db.sql("select tenant_id, key, verb from tenure.key order by 1, 2")
    return [(row["tenant_id"], row["key"], row["verb"]) for row in rows]


async def letter_of(store: Store, contract: str = "gate_b2", **given: Any) -> DeadLetter:
    """The dead letter of a job that failed for good."""
    job = await hold(store, contract, **given)
    await store.dead_letter(job.id, reason_code="timeout", actor="policy")
    return await store.letters.of_job(job.id)


async def said_twice(db: Harness, ask: Ask, key: str = "k") -> Any:
    """Make a call and make it again, twice; assert that the repeats did nothing, and give the one answer."""
    first = await ask(key)
    before = everything(db)
    for _ in range(2):
        assert await ask(key) == first
    assert everything(db) == before
    return first


async def conflicts(db: Harness, *calls: Awaitable[Any]) -> None:
    """Assert that each of these calls is a conflict of keys, and that none of them does anything."""
    before = everything(db)
    for call in calls:
        refusal = await refusal_of(call)
        assert isinstance(refusal, IdempotencyConflict), refusal
        assert refusal.reason_code == "IDEMPOTENCY_CONFLICT"
    assert everything(db) == before


@pytest.mark.parametrize("contract", CANCELLING)
async def test_a_cancel_said_twice_is_one_cancel_held_or_not(store: Store, db: Harness, contract: str) -> None:
    waiting, job = await store.enqueue(new_job(contract)), await hold(store, contract)
    at_once = await said_twice(db, lambda key: store.cancel(waiting.job_id, reason="no use", actor="ada", key=key))
    assert isinstance(at_once, Moved)
    assert at_once.role == "done"
    asked = await said_twice(db, lambda key: store.cancel(job.id, actor="ada", key=key), "asked")
    assert isinstance(asked, Noted)
    assert asked.cancel_requested
    # What was answered stays the answer, also when the holder has stopped since.
    await store.cancelled(job.held)
    before = everything(db)
    assert await store.cancel(job.id, actor="ada", key="asked") == asked
    assert isinstance(await refusal_of(store.cancel(job.id, actor="ada", key="another")), InvalidTransition)
    assert everything(db) == before


@pytest.mark.req("S2-20")
@pytest.mark.parametrize("mode", ["soft", "hard"])
async def test_a_reliability_cancel_by_one_key_is_one_event_and_another_body_a_conflict(
    store: Store, db: Harness, mode: str
) -> None:
    job, other = await hold(store, "reliability"), await hold(store, "reliability")
    logged = len(db.log(job.id))
    await said_twice(db, lambda key: store.cancel(job.id, mode=mode, reason="enough", actor="ada", key=key))
    await conflicts(
        db,
        store.cancel(job.id, mode={"soft": "hard", "hard": "soft"}[mode], reason="enough", actor="ada", key="k"),
        store.cancel(job.id, mode=mode, reason="too slow", actor="ada", key="k"),
        store.cancel(job.id, mode=mode, reason="enough", actor="bob", key="k"),
        store.cancel(other.id, mode=mode, reason="enough", actor="ada", key="k"),
        store.dead_letter(job.id, reason_code="timeout", actor="ada", key="k"),
        store.transition(job.id, "cancelled", actor="ada", key="k"),
    )
    assert len(db.log(job.id)) == logged + (mode == "hard")
    db.log_is_sound(job.id)


@pytest.mark.req("S2-20")
async def test_a_reliability_dead_letter_by_one_key_is_one_event_and_another_body_a_conflict(
    store: Store, db: Harness
) -> None:
    job = await hold(store, "reliability")
    ask = {"reason_code": "policy_violation", "stage": "input", "message": "no", "actor": "ada"}
    moved = await said_twice(db, lambda key: store.dead_letter(job.id, **ask, key=key))
    assert moved.state == "dead_lettered"
    changes = ({"reason_code": "timeout"}, {"stage": "exec"}, {"message": "never"}, {"actor": "bob"})
    await conflicts(
        db,
        *(store.dead_letter(job.id, **{**ask, **change}, key="k") for change in changes),
        store.cancel(job.id, actor="ada", key="k"),
    )
    types = [row["type"] for row in db.sql("select type from tenure_reliability.job_events order by ts, id")]
    assert types == ["job_claimed", "job_started", "job_dead_lettered"]
    assert db.value("select count(*) from tenure_reliability.dead_letters") == 1
    refusal = await refusal_of(store.dead_letter(job.id, **ask))
    assert isinstance(refusal, InvalidTransition)


@pytest.mark.parametrize("contract", SETTING_ASIDE)
async def test_a_job_set_aside_twice_by_one_key_has_one_letter_and_one_answer(
    store: Store, db: Harness, contract: str
) -> None:
    job = await hold(store, contract)
    moved = await said_twice(db, lambda key: store.dead_letter(job.id, reason_code="timeout", actor="ada", key=key))
    assert moved.role == "done", "also where the job went on by itself from its commit point"
    assert moved.state == db.row(job.id)["state"]
    assert db.value("select count(*) from tenure.dead_letter where job_id = %s", job.id) == 1
    db.log_is_sound(job.id)


@pytest.mark.parametrize("contract", ASKED_FOR)
async def test_a_transition_said_twice_is_one_transition(store: Store, db: Harness, contract: str) -> None:
    job, to = await hold(store, contract), ASKED_FOR[contract]
    moved = await said_twice(db, lambda key: store.transition(job.id, to, reason="by hand", actor="ada", key=key))
    assert moved.state == db.row(job.id)["state"]
    initial = BUILT_IN[contract].initial
    await conflicts(
        db,
        store.transition(job.id, to, reason="by foot", actor="ada", key="k"),
        store.transition(job.id, to, reason="by hand", actor="bob", key="k"),
        store.transition(job.id, initial, reason="by hand", actor="ada", key="k"),
    )
    refusal = await refusal_of(store.transition(job.id, to, reason="by hand", actor="ada"))
    assert refusal.reason_code == BUILT_IN[contract].invalid_transition
    db.log_is_sound(job.id)


@pytest.mark.parametrize("contract", BUILT_IN)
async def test_a_claim_asked_for_as_a_transition_is_one_claim(store: Store, db: Harness, contract: str) -> None:
    made = await store.enqueue(new_job(contract))
    to = next(path.end.state for path in BUILT_IN[contract].paths if path.trigger == "claim")
    job = await said_twice(db, lambda key: store.transition(made.job_id, to, actor="ada", key=key))
    assert isinstance(job, Job)
    assert (job.id, job.claims, job.lease_owner, job.state) == (made.job_id, 1, "ada", to)
    assert len(db.log(job.id)) == 1


async def test_the_key_of_a_claim_by_transition_serves_no_other_request(store: Store, db: Harness) -> None:
    first, second = [(await store.enqueue(new_job("standard"))).job_id for _ in range(2)]
    await store.transition(first, "running", actor="ada", key="k")
    await conflicts(
        db,
        store.transition(second, "running", actor="ada", key="k"),
        store.transition(first, "running", actor="bob", key="k"),
        store.transition(first, "succeeded", actor="ada", key="k"),
        store.cancel(second, actor="ada", key="k"),
    )


async def test_the_key_of_another_request_makes_no_claim_by_transition(store: Store, db: Harness) -> None:
    first, second = [(await store.enqueue(new_job("standard"))).job_id for _ in range(2)]
    await store.cancel(first, actor="ada", key="k")
    await conflicts(db, store.transition(second, "running", actor="ada", key="k"))


async def test_what_a_contract_never_allows_is_refused_as_such_also_with_a_used_key(store: Store, db: Harness) -> None:
    first, second, third = [
        (await store.enqueue(new_job(name))).job_id for name in ("reliability", "reliability", "simple")
    ]
    await store.cancel(first, actor="ada", key="k")
    before = everything(db)
    with pytest.raises(BadInput, match="reason_code must be one of"):
        await store.dead_letter(second, reason_code="zzz", actor="ada", key="k")
    assert (await refusal_of(store.cancel(third, mode="hard", actor="ada", key="k"))).reason_code == "CANCEL_MODE"
    assert everything(db) == before


@pytest.mark.parametrize("contract", BUILT_IN)
async def test_a_finished_job_is_run_again_once_by_one_key(store: Store, db: Harness, contract: str) -> None:
    done, other = await hold(store, contract), await hold(store, contract)
    await store.succeed(done.held)
    await store.succeed(other.held)
    again = await said_twice(db, lambda key: store.requeue(done.id, actor="ada", key=key))
    assert await store.reruns(done.id) == (again, None)
    await conflicts(db, store.requeue(done.id, actor="bob", key="k"), store.requeue(other.id, actor="ada", key="k"))
    for key in (None, "another"):
        assert (await refusal_of(store.requeue(done.id, actor="ada", key=key))).reason_code == "REQUEUE_CONFLICT"
    assert key_rows(db) == [("default", "k", "requeue")]


@pytest.mark.parametrize("contract", SETTING_ASIDE)
async def test_a_letter_is_run_again_once_by_one_key_through_itself_or_its_job(
    store: Store, db: Harness, contract: str
) -> None:
    letter = await letter_of(store, contract)
    again = await said_twice(db, lambda key: store.letters.requeue(letter.id, actor="ada", key=key))
    assert await store.requeue(letter.job_id, actor="ada", key="k") == again
    assert db.value("select count(*) from tenure.job where origin_letter = %s", letter.id) == 1
    await conflicts(
        db,
        store.letters.requeue(letter.id, actor="bob", key="k"),
        store.letters.request_discard(letter.id, person="ada", reason="no use", key="k"),
    )
    refusal = await refusal_of(store.letters.requeue(letter.id, actor="ada"))
    assert refusal.reason_code == "DLQ_REQUEUE_CONFLICT"


async def test_a_discard_asked_for_and_approved_twice_by_their_keys_is_one_discard(store: Store, db: Harness) -> None:
    letter = await letter_of(store)
    letters = store.letters
    asked = await said_twice(
        db, lambda key: letters.request_discard(letter.id, person="ada", reason="a duplicate", key=key), "asking"
    )
    assert (asked.status, asked.discard_asked_by) == ("open", "ada")
    await conflicts(
        db,
        letters.request_discard(letter.id, person="bob", reason="a duplicate", key="asking"),
        letters.request_discard(letter.id, person="ada", reason="no use", key="asking"),
        letters.approve_discard(letter.id, person="bob", key="asking"),
    )
    # The second person's own key, not spent by the first person's vain attempt.
    assert (await refusal_of(letters.approve_discard(letter.id, person="ada", key="k"))).reason_code == (
        "APPROVAL_REQUIRED"
    )
    gone = await said_twice(db, lambda key: letters.approve_discard(letter.id, person="bob", key=key))
    assert (gone.status, gone.discard_approved_by) == ("discarded", "bob")
    await conflicts(db, letters.approve_discard(letter.id, person="eve", key="k"))
    assert key_rows(db) == [("default", "asking", "request_discard"), ("default", "k", "approve_discard")]


async def test_a_refused_call_leaves_no_key_and_succeeds_with_it_later(store: Store, db: Harness) -> None:
    job, cold = await hold(store, "gate_b2"), await store.enqueue(new_job("dispatcher"))
    letter = await letter_of(store)
    live = await hold(store, "standard")
    asks: list[tuple[str, Ask]] = [
        ("WF_STATE_TRANSITION_INVALID", lambda key: store.cancel(job.id, actor="ada", key=key)),
        ("WF_STATE_TRANSITION_INVALID", lambda key: store.transition(job.id, "dlq_recorded", actor="ada", key=key)),
        ("INVALID_TRANSITION", lambda key: store.dead_letter(cold.job_id, reason_code="x", actor="ada", key=key)),
        ("NOT_FINISHED", lambda key: store.requeue(live.id, actor="ada", key=key)),
        ("APPROVAL_REQUIRED", lambda key: store.letters.approve_discard(letter.id, person="bob", key=key)),
        ("JOB_NOT_FOUND", lambda key: store.cancel(10**9, actor="ada", key=key)),
        ("JOB_NOT_FOUND", lambda key: store.requeue(10**9, actor="ada", key=key)),
        ("DLQ_ITEM_NOT_FOUND", lambda key: store.letters.requeue(10**9, actor="ada", key=key)),
    ]
    before = everything(db)
    for code, ask in asks:
        for _ in range(2):
            assert (await refusal_of(ask("k"))).reason_code == code
    assert everything(db) == before
    await store.succeed(live.held)
    again = await store.requeue(live.id, actor="ada", key="k")
    assert db.row(again)["state"] == "queued"
    await store.letters.request_discard(letter.id, person="ada", reason="no use")
    approved = await store.letters.approve_discard(letter.id, person="bob", key="approval")
    assert approved.status == "discarded"
    assert key_rows(db) == [("default", "approval", "approve_discard"), ("default", "k", "requeue")]


async def test_keys_are_each_tenants_own(store: Store, db: Harness) -> None:
    red, blue = [await hold(store, "standard", tenant_id=tenant) for tenant in ("red", "blue")]
    answers = [await store.cancel(job.id, mode="hard", actor="ada", key="k") for job in (red, blue)]
    assert [answer.job_id for answer in answers] == [red.id, blue.id]
    assert key_rows(db) == [("blue", "k", "cancel"), ("red", "k", "cancel")]
    made = await store.enqueue(NewJob("t", tenant_id="green", key="k"))
    assert made.made
    before = everything(db)
    for job, answer in zip((red, blue), answers, strict=True):
        assert await store.cancel(job.id, mode="hard", actor="ada", key="k") == answer
    assert everything(db) == before


async def test_an_enqueues_key_serves_no_operator_and_an_operators_no_enqueue(store: Store, db: Harness) -> None:
    made = await store.enqueue(NewJob("t", key="enqueued"))
    other = await store.enqueue(NewJob("t"))
    await conflicts(
        db,
        store.cancel(made.job_id, actor="ada", key="enqueued"),
        store.cancel(other.job_id, actor="ada", key="enqueued"),
        store.dead_letter(made.job_id, reason_code="x", actor="ada", key="enqueued"),
    )
    await store.cancel(other.job_id, actor="ada", key="cancelled")
    await conflicts(db, store.enqueue(NewJob("t", key="cancelled")))
    answers = await store.enqueue_many([NewJob("t", key="cancelled"), NewJob("t", key="fresh")])
    assert isinstance(answers[0], IdempotencyConflict)
    assert not isinstance(answers[1], Refused)
    assert await store.enqueue(NewJob("t", key="enqueued")) == made._replace(made=False)


async def test_an_operators_repeat_is_answered_after_the_job_went_on_without_it(store: Store, db: Harness) -> None:
    job = await hold(store, "dispatcher")
    await store.fail(job.held, FATAL)
    db.due(job.id)
    promoted = await store.transition(job.id, "Queued", actor="ada", key="k")
    taken = await next_holder(store, db, job)
    before = everything(db)
    assert await store.transition(job.id, "Queued", actor="ada", key="k") == promoted
    assert everything(db) == before
    await store.succeed(taken.held)
    before = everything(db)
    assert await store.transition(job.id, "Queued", actor="ada", key="k") == promoted
    assert isinstance(await refusal_of(store.transition(job.id, "Queued", actor="ada")), InvalidTransition)
    assert everything(db) == before
