"""Cancelling, under every contract: at once, by asking the holder to stop, or refused in the contract's own words."""

from __future__ import annotations

import itertools

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import BadInput, InvalidTransition, JobNotFound, Refused, StaleLease
from tenure.jobs.job import Failure, Job, NewJob
from tenure.jobs.outcome import Enqueued, Moved, Noted
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.holder_calls import calls

pytestmark = pytest.mark.core

#: Where a contract cancels: its name, and the state in which a cancelled job is.
CANCELLED = {"standard": "cancelled", "dispatcher": "Canceled", "reliability": "cancelled", "simple": "CANCELLED"}
cancelling = pytest.mark.parametrize("contract", CANCELLED)


async def held(store: Store, contract: str, **options: int) -> Job:
    """A job in the hands of its handler."""
    await store.enqueue(NewJob("t", contract=contract, **options))  # type: ignore[arg-type]
    (job,) = await store.claim(contract, worker="w1")
    await store.start(job.held)
    return job


@cancelling
async def test_a_job_that_nobody_holds_is_cancelled_at_once_and_never_runs(
    store: Store, db: Harness, contract: str
) -> None:
    made = await store.enqueue(NewJob("t", contract=contract))
    moved = await store.cancel(made.job_id, reason="not needed", actor="ada")
    assert isinstance(moved, Moved)
    assert (moved.state, moved.role) == (CANCELLED[contract], "done")
    assert await store.claim(contract, worker="w1") == []
    (event,) = db.log(made.job_id)
    assert (event["trigger"], event["actor"], event["reason"]) == ("cancel", "ada", "not needed")


@cancelling
async def test_a_soft_cancel_asks_the_holder_and_changes_no_state(store: Store, db: Harness, contract: str) -> None:
    job = await held(store, contract)
    before = db.hops(job.id)
    asked = await store.cancel(job.id, reason="enough", actor="ada")
    assert isinstance(asked, Noted)
    assert asked.cancel_requested
    assert (db.row(job.id)["role"], db.hops(job.id)) == ("active", before)
    assert (await store.heartbeat(job.held)).cancel_requested
    fingerprint = db.fingerprint(job.id)
    assert isinstance(await store.cancel(job.id, reason="again", actor="bob"), Noted)
    assert db.fingerprint(job.id) == fingerprint, "a second request changes nothing"
    assert (await store.cancelled(job.held)).state == CANCELLED[contract]
    db.log_is_sound(job.id)


@cancelling
@pytest.mark.parametrize("way", ["fail", "expire", "hand back"])
async def test_after_a_soft_cancel_every_way_back_leads_to_cancelled(
    store: Store, db: Harness, contract: str, way: str
) -> None:
    job = await held(store, contract)
    await store.cancel(job.id, actor="ada")
    if way == "fail":
        await store.fail(job.held, Failure("boom", retryable=True))
    elif way == "hand back":
        await store.hand_back(job.held)
    else:
        db.expire(job.id)
        await store.reap(contract)
    assert db.row(job.id)["state"] == CANCELLED[contract]
    db.log_is_sound(job.id)


@cancelling
async def test_a_success_that_arrives_after_a_soft_cancel_still_wins(store: Store, db: Harness, contract: str) -> None:
    job = await held(store, contract)
    await store.cancel(job.id, actor="ada")
    moved = await store.succeed(job.held, {"done": True})
    assert (moved.trigger, db.row(job.id)["result"]) == ("succeed", {"done": True})


@pytest.mark.req("S2-39")
@pytest.mark.parametrize("contract", ["standard", "dispatcher", "reliability"])
async def test_a_hard_cancel_ends_the_job_now_and_its_holder_is_refused(
    store: Store, db: Harness, contract: str
) -> None:
    job = await held(store, contract)
    moved = await store.cancel(job.id, mode="hard", actor="ada")
    assert isinstance(moved, Moved)
    assert moved.state == CANCELLED[contract]
    before = db.fingerprint(job.id)
    for call in (store.succeed(job.held), store.heartbeat(job.held), store.fail(job.held, Failure("late"))):
        with pytest.raises(StaleLease):
            await call
    assert db.fingerprint(job.id) == before


@pytest.mark.req("S2-40")
@pytest.mark.parametrize("mode", ["soft", "hard"])
@pytest.mark.parametrize("state", ["queued", "assigned"])
async def test_a_reliability_job_that_has_not_started_is_cancelled_at_once_and_never_runs(
    store: Store, db: Harness, state: str, mode: str
) -> None:
    made = await store.enqueue(NewJob("t", contract="reliability"))
    claimed = await store.claim("reliability", worker="w1") if state == "assigned" else []
    moved = await store.cancel(made.job_id, mode=mode, reason="not needed", actor="ada")
    assert isinstance(moved, Moved)
    assert (moved.trigger, moved.from_state, moved.state, moved.role) == ("cancel", state, "cancelled", "done")
    assert db.hops(made.job_id)[-1] == f"{state}->cancelled"
    (event,) = db.sql("select * from tenure_reliability.job_events where type = 'job_cancelled'")
    assert (event["actor"], event["payload"]["from"], event["payload"]["reason"]) == ("ada", state, "not needed")
    before = db.fingerprint(made.job_id)
    for job in claimed:
        for call in (store.start(job.held), store.heartbeat(job.held), store.succeed(job.held)):
            with pytest.raises(StaleLease):
                await call
    assert await store.claim("reliability", worker="w2") == []
    assert await store.reap("reliability") == []
    assert db.fingerprint(made.job_id) == before
    db.log_is_sound(made.job_id)


@pytest.mark.req("S2-40", "S2-50")
async def test_a_soft_cancel_of_an_assigned_job_waits_only_for_effects_that_must_be_undone(
    store: Store, db: Harness
) -> None:
    made = await store.enqueue(NewJob("t", contract="reliability"))
    (job,) = await store.claim("reliability", worker="w1")
    await store.effect(job.held, "charge", {"receipt": 1}, compensable=True)
    asked = await store.cancel(job.id, mode="soft", actor="ada")
    assert isinstance(asked, Noted)
    assert (asked.cancel_requested, db.row(job.id)["state"]) == (True, "assigned")
    assert (await store.cancelled(job.held)).compensate == ("charge",)
    assert db.row(job.id)["state"] == "assigned"
    assert (await store.compensated(job.held)).state == "cancelled"
    assert db.hops(made.job_id) == ["queued->assigned", "assigned->cancelled"]


@pytest.mark.req("S0-62", "S4-58")
@pytest.mark.parametrize(
    ("contract", "code"), [("phase27", "INVALID_TRANSITION"), ("gate_b2", "WF_STATE_TRANSITION_INVALID")]
)
@pytest.mark.parametrize("mode", ["soft", "hard"])
async def test_a_contract_without_cancel_refuses_it_in_its_own_words(
    store: Store, db: Harness, contract: str, code: str, mode: str
) -> None:
    waiting = await store.enqueue(NewJob("t", contract=contract, queue="other"))
    job = await held(store, contract)
    before = db.fingerprint(job.id, waiting.job_id)
    for job_id in (waiting.job_id, job.id):
        with pytest.raises(InvalidTransition) as refusal:
            await store.cancel(job_id, mode=mode, actor="ada")
        assert refusal.value.reason_code == code
    assert db.fingerprint(job.id, waiting.job_id) == before
    kinds = {row["kind"] for row in db.sql("select distinct kind from tenure_phase27.task_events")}
    assert kinds <= {"task.running", "task.completed", "task.failed", "task.requeued"}


@pytest.mark.req("S1-36", "S3-28", "S2-08")
@cancelling
async def test_a_cancelled_or_finished_job_is_neither_claimed_nor_cancelled(
    store: Store, db: Harness, contract: str
) -> None:
    done, gone = await held(store, contract), await store.enqueue(NewJob("t", contract=contract, queue="q"))
    await store.succeed(done.held)
    await store.cancel(gone.job_id, actor="ada")
    states = [db.row(job_id)["state"] for job_id in (done.id, gone.job_id)]
    assert states == [BUILT_IN[contract].path("succeed").hops[-1].state, CANCELLED[contract]]  # type: ignore[union-attr]
    before = db.fingerprint(done.id, gone.job_id)
    for job_id in (done.id, gone.job_id):
        for mode in BUILT_IN[contract].cancel_modes:
            with pytest.raises(InvalidTransition):
                await store.cancel(job_id, mode=mode, actor="ada")
        (refusal,) = await store.claim_by_id([job_id], worker="w2", contract=contract)
        assert isinstance(refusal, InvalidTransition)
        assert refusal.state == db.row(job_id)["state"]
    assert await store.claim(contract, ["default", "q"], worker="w2", limit=10) == []
    assert db.fingerprint(done.id, gone.job_id) == before


def status(db: Harness, task_id: int) -> str:
    """A task's status, as document 001's view shows it."""
    return str(db.value("select status from tenure_dispatcher.tasks where task_id = %s", task_id))


@pytest.mark.req("S1-23")
@pytest.mark.parametrize("way", ["queued", "running, hard", "running, soft", "waiting"])
async def test_a_task_that_was_cancelled_on_purpose_is_canceled(store: Store, db: Harness, way: str) -> None:
    made = await store.enqueue(NewJob("t", contract="dispatcher"))
    if way != "queued":
        (job,) = await store.claim("dispatcher", worker="w1")
    if way == "waiting":
        await store.fail(job.held, Failure("boom"))
    assert status(db, made.job_id) == {"queued": "Queued", "waiting": "Failed"}.get(way, "Running")
    await store.cancel(made.job_id, mode="hard" if way == "running, hard" else "soft", reason="rollback", actor="ada")
    if way == "running, soft":
        assert status(db, made.job_id) == "Running"
        await store.cancelled(job.held)
    assert status(db, made.job_id) == "Canceled"
    ends = [event for event in db.log(made.job_id) if event["to_state"] == "Canceled"]
    assert [event["trigger"] for event in ends] == ["cancel"]
    assert [event["actor"] for event in ends] == ["w1" if way == "running, soft" else "ada"]


#: How an attempt may end without anybody asking for a cancel.
ENDINGS = ("fail", "fail for good", "expire", "hand back")


@pytest.mark.req("S1-23")
async def test_whatever_happens_without_a_cancel_call_no_task_is_ever_canceled(store: Store, db: Harness) -> None:
    """Every sequence of three endings, of which the last exhausts the budget, beside tasks that complete in the end."""
    db.spy()
    stories = [*itertools.product(ENDINGS, repeat=3), *itertools.product(ENDINGS, repeat=2)]
    made = await store.enqueue_many([NewJob("t", contract="dispatcher", max_attempts=3)] * len(stories))
    story = {one.job_id: parts for one, parts in zip(made, stories, strict=True) if isinstance(one, Enqueued)}
    for turn in range(3):
        jobs = await store.claim("dispatcher", worker="w1", limit=len(story))
        assert {job.id for job in jobs} == set(story)
        await store.report("heartbeat", calls([job.held for job in jobs]))
        endings: dict[str, list[Job]] = {ending: [] for ending in (*ENDINGS, "complete")}
        for job in jobs:
            endings[dict(enumerate(story[job.id])).get(turn, "complete")].append(job)
        await _end(store, db, endings)
        late = await store.report("succeed", calls([job.held for job in jobs if job not in endings["complete"]]))
        assert all(isinstance(answer, Refused) for answer in late)
        db.due(*story)
        await store.promote("dispatcher", limit=len(story))
    shown = {row["task_id"]: row["status"] for row in db.sql("select task_id, status from tenure_dispatcher.tasks")}
    assert shown == {job_id: "Failed" if len(parts) == 3 else "Completed" for job_id, parts in story.items()}
    assert db.value("select count(*) from public.spy where 'Canceled' in (old, new)") == 0
    assert db.value("select count(*) from tenure.event where 'Canceled' in (from_state, to_state)") == 0
    assert db.value("select count(*) from tenure.event where trigger like '%%cancel%%'") == 0


async def _end(store: Store, db: Harness, endings: dict[str, list[Job]]) -> None:
    """End these attempts so."""
    proofs = {ending: [job.held for job in jobs] for ending, jobs in endings.items()}
    await store.report("succeed", calls(proofs["complete"]))
    await store.report("fail", calls(proofs["fail"], failures=[Failure("boom", retryable=True)] * len(proofs["fail"])))
    final = Failure("no", type="PermanentError", retryable=False)
    await store.report("fail", calls(proofs["fail for good"], failures=[final] * len(proofs["fail for good"])))
    await store.report("hand_back", calls(proofs["hand back"]))
    db.expire(*[held.id for held in proofs["expire"]])
    await store.reap("dispatcher", limit=1_000)


async def test_jobs_of_several_contracts_are_cancelled_in_one_call(store: Store) -> None:
    made = [(await store.enqueue(NewJob("t", contract=contract))).job_id for contract in CANCELLED]
    answers = await store.cancel_many([*made, 999_999], actor="ada")
    assert [answer.state for answer in answers[:-1] if isinstance(answer, Moved)] == list(CANCELLED.values())
    assert isinstance(answers[-1], JobNotFound)


async def test_a_mode_that_is_none_or_that_the_contract_lacks_is_refused(store: Store, db: Harness) -> None:
    job = await held(store, "simple")
    before = db.fingerprint(job.id)
    with pytest.raises(Refused, match="cancels soft only"):
        await store.cancel(job.id, mode="hard", actor="ada")
    with pytest.raises(BadInput, match="soft or hard"):
        await store.cancel(job.id, mode="gently", actor="ada")
    assert db.fingerprint(job.id) == before
