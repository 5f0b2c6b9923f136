"""A finished job is run again as a new one: once, linked both ways, and without a change to what has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, IdempotencyConflict, JobNotFound, Refused
from tenure.jobs.job import Failure, Job, NewJob
from tenure.postgres.store import Store
from tests.contracts.reliability import stores
from tests.harness import Harness

FATAL = Failure("broken for good", type="ValidationError", code="BROKEN", retryable=False)
WITHOUT_LETTERS = [name for name, contract in BUILT_IN.items() if contract.dead_letters.mode == "none"]
WITH_LETTERS = [name for name in BUILT_IN if name not in WITHOUT_LETTERS]

plain = pytest.mark.parametrize("contract", WITHOUT_LETTERS)
keeping = pytest.mark.parametrize("contract", WITH_LETTERS)
every = pytest.mark.parametrize("contract", BUILT_IN)

#: What the new job has from the old one.
_CARRIED = ("contract", "queue", "type", "tenant_id", "priority", "max_attempts", "payload")


async def held(store: Store, contract: str, **given: Any) -> Job:
    """A job in the hands of its handler."""
    limit = {} if contract == "gate_b2" else {"max_attempts": 1}
    await store.enqueue(
        NewJob("mail", {"n": 7}, contract, queue="q", tenant_id="acme", priority=2, **{**limit, **given})
    )
    (job,) = await store.claim(contract, ["q"], worker="w1")
    await store.start(job.held)
    return job


async def ended(store: Store, contract: str, *, well: bool = False, **given: Any) -> int:
    """A job that ended, badly unless told otherwise."""
    job = await held(store, contract, **given)
    moved = await (store.succeed(job.held, {"ok": 1}) if well else store.fail(job.held, FATAL))
    assert moved.role == "done"
    return job.id


async def code_of(call: Any) -> str:
    """The code with which a call is refused."""
    with pytest.raises(Refused) as refusal:
        await call
    return refusal.value.reason_code


def carried(db: Harness, job_id: int) -> dict[str, Any]:
    """What a job hands on to the job that runs it again."""
    row = db.row(job_id)
    return {name: row[name] for name in _CARRIED}


def test_three_contracts_keep_no_dead_letters() -> None:
    assert sorted(WITHOUT_LETTERS) == ["dispatcher", "phase27", "simple"]


@plain
@pytest.mark.parametrize("well", [True, False])
async def test_a_finished_job_is_run_again_as_a_new_one_linked_both_ways(
    store: Store, db: Harness, contract: str, well: bool
) -> None:
    old = await ended(store, contract, well=well, correlation_id="c-1", trace_id="t-1")
    before, log = db.fingerprint(old)[:1], db.log(old)
    new = await store.requeue(old, actor="ada")
    row = db.row(new)
    assert new > old
    assert carried(db, new) == carried(db, old)
    assert (row["correlation_id"], row["created_by"], row["origin_letter"]) == ("c-1", "ada", None)
    initial = BUILT_IN[contract].counter.initial
    assert (row["state"], row["role"], row["counter"]) == (BUILT_IN[contract].initial, "ready", initial)
    assert (row["claims"], row["raises"], row["seq"], row["lease_token"], row["last_error"]) == (0, 0, 0, None, None)
    assert (await store.reruns(old), await store.reruns(new)) == ((new, None), (None, old))
    assert db.one("select job_id, as_job_id, actor from tenure.rerun") == {
        "job_id": old, "as_job_id": new, "actor": "ada",
    }  # fmt: skip
    (job,) = await store.claim(contract, ["q"], worker="w2")
    assert (job.id, job.payload, job.claims) == (new, {"n": 7}, 1)
    await store.succeed(job.held)
    assert (db.fingerprint(old)[:1], db.log(old)) == (before, log), "what has ended stays as it ended"
    db.log_is_sound(old, new)


@plain
async def test_the_new_job_has_the_old_ones_correlation_id_also_where_nobody_gave_one(
    store: Store, db: Harness, contract: str
) -> None:
    old = await ended(store, contract)
    new = await store.requeue(old, actor="ada")
    first, second = await store.jobs([old, new])
    assert first.correlation_id == second.correlation_id
    assert first.trace_id != second.trace_id


@plain
async def test_a_rerun_can_be_run_again_in_its_turn(store: Store, contract: str) -> None:
    ids = [await ended(store, contract)]
    for _ in range(2):
        ids.append(await store.requeue(ids[-1], actor="ada"))
        (job,) = await store.claim(contract, ["q"], worker="w")
        await store.start(job.held)
        await store.fail(job.held, FATAL)
    assert await store.reruns(ids[1]) == (ids[2], ids[0])


@every
async def test_a_live_job_is_not_run_again(store: Store, db: Harness, contract: str) -> None:
    await store.enqueue(NewJob("mail", contract=contract, queue="ready"))
    (waiting,) = (row["id"] for row in db.sql("select id from tenure.job"))
    running = await held(store, contract)
    for job_id in (waiting, running.id):
        before = db.fingerprint(waiting, running.id)
        assert await code_of(store.requeue(job_id, actor="ada")) == "NOT_FINISHED"
        assert await store.reruns(job_id) == (None, None)
        assert db.fingerprint(waiting, running.id) == before
    assert db.value("select count(*) from tenure.job") == 2


@plain
async def test_a_second_requeue_is_refused_and_names_the_job_of_the_first(
    store: Store, db: Harness, contract: str
) -> None:
    old = await ended(store, contract)
    new = await store.requeue(old, actor="ada")
    before = db.fingerprint(old, new)
    with pytest.raises(Refused, match=f"already run again as job {new}") as refusal:
        await store.requeue(old, actor="bob")
    assert (refusal.value.reason_code, refusal.value.job_id) == ("REQUEUE_CONFLICT", old)
    assert db.fingerprint(old, new) == before
    assert db.value("select count(*) from tenure.job") == 1


async def test_a_job_that_nobody_knows_is_not_run_again(store: Store, db: Harness) -> None:
    with pytest.raises(JobNotFound):
        await store.requeue(4711, actor="ada")
    assert await store.reruns(4711) == (None, None)
    for bad in (0, -1, True, "7", None):
        with pytest.raises(BadInput):
            await store.requeue(bad, actor="ada")  # type: ignore[arg-type]
        with pytest.raises(BadInput):
            await store.reruns(bad)  # type: ignore[arg-type]
    old = await ended(store, "phase27")
    with pytest.raises(BadInput, match="actor"):
        await store.requeue(old, actor="")
    assert db.value("select count(*) from tenure.job") == 0


@every
async def test_eight_at_once_make_one_new_job(store: Store, db: Harness, dsn: str, contract: str) -> None:
    old = await ended(store, contract)
    before = db.fingerprint(old)[:1]
    async with stores(dsn, 8) as eight:
        answers = await asyncio.gather(*(each.requeue(old, actor="ada") for each in eight), return_exceptions=True)
    made = [answer for answer in answers if isinstance(answer, int)]
    codes = {answer.reason_code for answer in answers if isinstance(answer, Refused)}
    assert (len(made), len(answers)) == (1, 8)
    assert codes == {"REQUEUE_CONFLICT" if contract in WITHOUT_LETTERS else "DLQ_REQUEUE_CONFLICT"}
    assert [row["id"] for row in db.sql("select id from tenure.job")] == made
    assert db.fingerprint(old)[:1] == before


@every
async def test_the_same_key_again_is_the_same_new_job(store: Store, db: Harness, dsn: str, contract: str) -> None:
    old = await ended(store, contract)
    async with stores(dsn, 4) as four:
        answers = await asyncio.gather(*(each.requeue(old, actor="ada", key="again") for each in four))
    assert len(set(answers)) == 1
    assert db.value("select count(*) from tenure.job") == 1
    with pytest.raises(IdempotencyConflict):
        await store.requeue(old, actor="bob", key="again")


@plain
async def test_a_refused_requeue_leaves_no_key(store: Store, db: Harness, contract: str) -> None:
    job = await held(store, contract)
    assert await code_of(store.requeue(job.id, actor="ada", key="again")) == "NOT_FINISHED"
    assert db.value("select count(*) from tenure.key") == 0
    await store.succeed(job.held)
    assert await store.requeue(job.id, actor="ada", key="again") > job.id


@keeping
async def test_a_job_with_a_dead_letter_is_run_again_through_it(store: Store, db: Harness, contract: str) -> None:
    old = await ended(store, contract)
    before = db.fingerprint(old)[:1]
    new = await store.requeue(old, actor="ada")
    letter = await store.letters.of_job(old)
    assert (letter.status, letter.requeued_as, letter.requeued_by) == ("requeued", new, "ada")
    assert carried(db, new) == carried(db, old)
    assert db.row(new)["origin_letter"] == letter.id
    assert await code_of(store.requeue(old, actor="bob")) == "DLQ_REQUEUE_CONFLICT"
    assert await code_of(store.letters.requeue(letter.id, actor="bob")) == "DLQ_REQUEUE_CONFLICT"
    assert db.fingerprint(old)[:1] == before


@keeping
async def test_reruns_tells_of_a_job_that_was_run_again_through_its_letter(store: Store, contract: str) -> None:
    old = await ended(store, contract)
    new = await store.requeue(old, actor="ada")
    assert (await store.reruns(old), await store.reruns(new)) == ((new, None), (None, old))


@keeping
async def test_a_job_that_ended_well_has_no_letter_and_is_run_again_all_the_same(
    store: Store, db: Harness, contract: str
) -> None:
    old = await ended(store, contract, well=True)
    new = await store.requeue(old, actor="ada")
    assert (await store.reruns(old), carried(db, new)) == ((new, None), carried(db, old))
    assert await code_of(store.requeue(old, actor="ada")) == "REQUEUE_CONFLICT"
    assert db.row(old)["result"] == {"ok": 1}


async def test_a_snoozed_jobs_rerun_has_the_limit_that_was_asked_for(store: Store, db: Harness) -> None:
    await store.enqueue(NewJob("t", max_attempts=3))
    (job,) = await store.claim(worker="w")
    await store.snooze(job.held, 0)
    (job,) = await store.claim(worker="w")
    await store.succeed(job.held)
    row = db.row(await store.requeue(job.id, actor="ada"))
    assert (row["max_attempts"], row["raises"]) == (3, 0)


async def test_a_cancelled_job_is_run_again(store: Store, db: Harness) -> None:
    job = await held(store, "simple")
    await store.cancel(job.id, actor="ada")
    await store.cancelled(job.held)
    row = db.row(await store.requeue(job.id, actor="ada"))
    assert (row["state"], row["cancel_requested_at"]) == ("PENDING", None)


async def test_with_publishing_on_a_rerun_is_woken(store: Store, db: Harness) -> None:
    old = await ended(store, "dispatcher")
    await store.outbox.publish({"q": "https://queue.example/1/q"})
    new = await store.requeue(old, actor="ada")
    assert [row["body"] for row in db.sql("select body from tenure_dispatcher.outbox")] == [{"task_id": str(new)}]
