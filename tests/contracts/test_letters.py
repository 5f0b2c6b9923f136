"""Dead letters and side effects: run again once as a new job, discarded by two people, had once per node."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import Refused, StaleLease
from tenure.jobs.job import Failure, Job, NewJob
from tenure.postgres.dead_letters import DeadLetter
from tenure.postgres.store import Store
from tests.harness import Harness

keeping = pytest.mark.parametrize("contract", ["standard", "reliability", "gate_b2"])
AGAIN = Failure("not yet", type="TransientError", code="AGAIN", retryable=True)
FATAL = Failure("broken for good", type="ValidationError", code="BROKEN", retryable=False)


async def held(store: Store, contract: str) -> Job:
    """A job in the hands of its handler."""
    await store.enqueue(NewJob("mail", {"n": 7}, contract, queue="q", priority=2, correlation_id="c-1"))
    (job,) = await store.claim(contract, ["q"], worker="w1")
    await store.start(job.held)
    return job


async def letter_of(store: Store, contract: str) -> DeadLetter:
    """The dead letter of a job that failed for good."""
    job = await held(store, contract)
    await store.fail(job.held, FATAL)
    return await store.letters.of_job(job.id)


async def code_of(call: object) -> str:
    """The code with which a call is refused."""
    with pytest.raises(Refused) as refusal:
        await call  # type: ignore[misc]
    return refusal.value.reason_code


@pytest.mark.req("S4-31")
@keeping
async def test_a_letter_is_run_again_as_a_new_job_linked_both_ways(store: Store, db: Harness, contract: str) -> None:
    letter = await letter_of(store, contract)
    before = db.fingerprint(letter.job_id)[:1]
    again = await store.letters.requeue(letter.id, actor="ada")
    row = db.row(again)
    assert again != letter.job_id
    assert (row["state"], row["counter"], row["claims"]) == (BUILT_IN[contract].initial, 0, 0)
    assert (row["payload"], row["queue"], row["priority"], row["correlation_id"]) == ({"n": 7}, "q", 2, "c-1")
    assert (row["origin_letter"], row["created_by"]) == (letter.id, "ada")
    closed = await store.letters.show(letter.id)
    assert (closed.status, closed.requeued_as, closed.requeued_by) == ("requeued", again, "ada")
    assert db.fingerprint(letter.job_id)[:1] == before, "the original stays as it ended"
    (job,) = await store.claim(contract, ["q"], worker="w2")
    await store.start(job.held)
    assert (await store.succeed(job.held)).job_id == again


@keeping
async def test_a_letter_tells_when_the_job_failed_first(store: Store, db: Harness, contract: str) -> None:
    job = await held(store, contract)
    first = await store.fail(job.held, AGAIN)
    assert db.row(job.id)["first_failed_at"] == first.at
    db.sql("update tenure.job set first_failed_at = first_failed_at - interval '5 minutes' where id = %s", job.id)
    for failure in (AGAIN, FATAL):
        db.due(job.id)
        (job,) = await store.claim(contract, ["q"], worker="w1")
        await store.start(job.held)
        await store.fail(job.held, failure)
    assert (await store.letters.of_job(job.id)).failed_at == first.at - timedelta(minutes=5)
    assert db.row(job.id)["first_failed_at"] == first.at - timedelta(minutes=5)


async def test_a_letter_tells_when_the_job_failed_and_not_when_it_was_undone(store: Store, db: Harness) -> None:
    job = await held(store, "reliability")
    await store.effect(job.held, "charge", compensable=True)
    failed = await store.fail(job.held, FATAL)
    assert failed.compensate == ("charge",)
    db.sql("update tenure.job set first_failed_at = first_failed_at - interval '5 minutes' where id = %s", job.id)
    await store.compensated(job.held)
    assert (await store.letters.of_job(job.id)).failed_at == failed.at - timedelta(minutes=5)


@keeping
async def test_of_many_requeues_one_wins(store: Store, db: Harness, contract: str) -> None:
    letter = await letter_of(store, contract)
    answers = await asyncio.gather(
        *(store.letters.requeue(letter.id, actor=f"p{n}") for n in range(6)), return_exceptions=True
    )
    assert sum(isinstance(answer, int) for answer in answers) == 1
    codes = [answer.reason_code for answer in answers if isinstance(answer, Refused)]
    assert codes == ["DLQ_REQUEUE_CONFLICT"] * 5
    assert db.value("select count(*) from tenure.job where origin_letter = %s", letter.id) == 1


@pytest.mark.req("S4-32")
@pytest.mark.parametrize("second", ["ada", " Ada ", "ADA", "\uff41\uff44\uff41", "Ada\u00a0"])
async def test_a_discard_needs_two_people_and_spelling_makes_no_second_one(
    store: Store, db: Harness, second: str
) -> None:
    letter = await letter_of(store, "gate_b2")
    assert await code_of(store.letters.approve_discard(letter.id, person="bob")) == "APPROVAL_REQUIRED"
    asked = await store.letters.request_discard(letter.id, person="Ada", reason="a duplicate")
    assert (asked.status, asked.discard_asked_by, asked.discard_reason) == ("open", "Ada", "a duplicate")
    assert await code_of(store.letters.approve_discard(letter.id, person=second)) == "APPROVAL_REQUIRED"
    assert await code_of(store.letters.request_discard(letter.id, person="bob", reason="me too")) == "APPROVAL_REQUIRED"
    assert (await store.letters.show(letter.id)) == asked, "refusals changed nothing"
    done = await store.letters.approve_discard(letter.id, person="Bob")
    assert (done.status, done.discard_asked_by, done.discard_approved_by) == ("discarded", "Ada", "Bob")
    assert done.discard_asked_at is not None
    assert db.value("select status from tenure_gate_b2.dlq_items where dlq_id = %s", letter.id) == "discarded"


_AUDITED = """
select status, discard_reason, discard_asked_by, discard_asked_at, discard_approved_by, discard_approved_at, updated_at
from tenure.dead_letter where id = %s
"""


@pytest.mark.req("S4-34")
async def test_the_row_of_a_discard_tells_who_asked_and_agreed_why_and_when(store: Store, db: Harness) -> None:
    def clock() -> datetime:
        now = db.value("select clock_timestamp()")
        assert isinstance(now, datetime)
        return now

    letter = await letter_of(store, "gate_b2")
    unasked = db.one(_AUDITED, letter.id)
    assert set(unasked.values()) == {"open", None, unasked["updated_at"]}
    times = [clock()]
    await store.letters.request_discard(letter.id, person="Ada", reason="a duplicate")
    times.append(clock())
    asked = db.one(_AUDITED, letter.id)
    assert (asked["status"], asked["discard_approved_by"], asked["discard_approved_at"]) == ("open", None, None)
    times.append(clock())
    decided = await store.letters.approve_discard(letter.id, person="Bob")
    times.append(clock())
    row = db.one(_AUDITED, letter.id)
    said = {name: row[name] for name in ("status", "discard_reason", "discard_asked_by", "discard_approved_by")}
    assert said == {
        "status": "discarded", "discard_reason": "a duplicate", "discard_asked_by": "Ada", "discard_approved_by": "Bob",
    }  # fmt: skip
    assert [name for name, value in row.items() if value is None] == []
    assert times[0] < row["discard_asked_at"] < times[1], "when it was asked for"
    assert times[2] < row["discard_approved_at"] < times[3], "when it was approved"
    assert row["discard_asked_at"] == asked["discard_asked_at"]
    assert {name: getattr(decided, name) for name in row} == row, "the store tells what the row has"
    # What was decided stays as it was decided.
    codes = [
        await code_of(store.letters.approve_discard(letter.id, person="Cyd")),
        await code_of(store.letters.request_discard(letter.id, person="Cyd", reason="me too")),
        await code_of(store.letters.requeue(letter.id, actor="Cyd")),
    ]
    assert codes == ["DLQ_DISCARD_CONFLICT", "DLQ_DISCARD_CONFLICT", "DLQ_REQUEUE_CONFLICT"]
    assert db.one(_AUDITED, letter.id) == row


@pytest.mark.req("S4-33")
@pytest.mark.parametrize("reason", [None, "", "   "])
async def test_a_discard_without_a_reason_is_refused(store: Store, reason: str) -> None:
    letter = await letter_of(store, "gate_b2")
    with pytest.raises(ValueError, match="reason must be a non-empty string"):
        await store.letters.request_discard(letter.id, person="ada", reason=reason)
    assert await store.letters.show(letter.id) == letter


@pytest.mark.req("S4-35")
async def test_requeue_after_discard_and_discard_after_requeue_are_refused(store: Store) -> None:
    gone, back = await letter_of(store, "gate_b2"), await letter_of(store, "gate_b2")
    await store.letters.request_discard(gone.id, person="ada", reason="no use")
    await store.letters.approve_discard(gone.id, person="bob")
    await store.letters.requeue(back.id, actor="ada")
    assert await code_of(store.letters.requeue(gone.id, actor="ada")) == "DLQ_REQUEUE_CONFLICT"
    assert await code_of(store.letters.request_discard(back.id, person="ada", reason="no")) == "DLQ_DISCARD_CONFLICT"
    assert await code_of(store.letters.requeue(999, actor="ada")) == "DLQ_ITEM_NOT_FOUND"


async def test_where_the_contract_wants_no_second_person_one_is_enough(store: Store) -> None:
    letter = await letter_of(store, "standard")
    assert (await store.letters.request_discard(letter.id, person="ada", reason="no use")).status == "discarded"


@pytest.mark.req("S4-26")
@pytest.mark.parametrize("contract", BUILT_IN)
async def test_a_node_has_its_effect_once_over_all_attempts(store: Store, db: Harness, contract: str) -> None:
    job = await held(store, contract)
    assert (await store.effect(job.held, "charge", {"receipt": 1})).recorded
    again = await store.effect(job.held, "charge", {"receipt": 2})
    assert (again.recorded, again.result_json) == (False, '{"receipt": 1}')
    await store.fail(job.held, Failure("later", retryable=True))
    with pytest.raises(StaleLease):
        await store.effect(job.held, "mail")
    db.due(job.id)
    await store.promote(contract)
    (second,) = await store.claim(contract, ["q"], worker="w2")
    await store.start(second.held)
    assert not (await store.effect(second.held, "charge")).recorded
    assert (await store.effect(second.held, "mail")).recorded
    assert await store.effects(job.id) == {"mail": None, "charge": {"receipt": 1}}
