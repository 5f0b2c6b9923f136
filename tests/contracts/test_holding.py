"""What a holder may say while it works: beats, progress, checkpoints; and how it lets go without an end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import Busy, InvalidTransition, JobNotFound, StaleLease
from tenure.jobs.job import Held, Job, NewJob
from tenure.jobs.outcome import Moved
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.holder_calls import calls

pytestmark = pytest.mark.core

every_contract = pytest.mark.parametrize("contract", BUILT_IN)


async def held(store: Store, contract: str) -> Job:
    """A job in the hands of its handler."""
    await store.enqueue(NewJob("t", contract=contract))
    (job,) = await store.claim(contract, worker="w1")
    await store.start(job.held)
    return job


def shorten(db: Harness, job: Job, seconds: float) -> None:
    """Let so many seconds of the lease be left."""
    db.sql("update tenure.job set lease_expires_at = now() + make_interval(secs => %s) where id = %s", seconds, job.id)


@every_contract
async def test_a_beat_renews_once_half_of_the_lease_is_gone(store: Store, db: Harness, contract: str) -> None:
    job = await held(store, contract)
    lease = timedelta(milliseconds=BUILT_IN[contract].lease.default_ms)
    shorten(db, job, lease.total_seconds() * 0.75)
    early = await store.heartbeat(job.held)
    assert early.renewed == (contract == "dispatcher"), "only document 001 extends at every beat"
    shorten(db, job, lease.total_seconds() * 0.4)
    late = await store.heartbeat(job.held)
    row = db.row(job.id)
    assert late.renewed
    assert late.lease_expires_at == row["lease_expires_at"] == row["last_heartbeat_at"] + lease


@pytest.mark.req("S1-43")
async def test_a_beat_extends_the_lease_of_document_001_and_never_shortens_it(store: Store, db: Harness) -> None:
    job = await held(store, "dispatcher")
    first = (await store.heartbeat(job.held)).lease_expires_at
    second = (await store.heartbeat(job.held)).lease_expires_at
    assert first is not None
    assert second is not None
    assert job.lease_expires_at is not None
    assert job.lease_expires_at < first < second
    shorten(db, job, 3_600)
    before = db.row(job.id)["lease_expires_at"]
    assert (await store.heartbeat(job.held)).lease_expires_at == before


@pytest.mark.req("S1-44")
@every_contract
async def test_a_beat_with_a_wrong_proof_has_no_effect(store: Store, db: Harness, contract: str) -> None:
    job, other = await held(store, contract), await held(store, contract)
    before = db.fingerprint(job.id)
    for claims, token in ((job.claims + 1, job.held.token), (job.claims, other.held.token)):
        with pytest.raises(StaleLease):
            await store.heartbeat(Held(job.id, claims, token, job.contract, job.version))
    assert db.fingerprint(job.id) == before
    await store.succeed(job.held)
    with pytest.raises(InvalidTransition):
        await store.heartbeat(job.held)
    with pytest.raises(JobNotFound):
        await store.heartbeat(Held(999_999, 1, job.held.token, job.contract, job.version))


@pytest.mark.req("S1-45")
@every_contract
async def test_after_expiry_a_beat_counts_until_the_lease_is_taken_unless_expiry_forfeits(
    store: Store, db: Harness, contract: str
) -> None:
    job, taken = await held(store, contract), await held(store, contract)
    db.expire(job.id, taken.id)
    if BUILT_IN[contract].lease.after_expiry == "forfeited":
        with pytest.raises(StaleLease):
            await store.heartbeat(job.held)
    else:
        assert (await store.heartbeat(job.held)).renewed
    await store.reap(contract)
    await store.claim(contract, worker="w2", limit=10)
    before = db.fingerprint(taken.id)
    with pytest.raises(StaleLease):
        await store.heartbeat(taken.held)
    assert db.fingerprint(taken.id) == before


async def test_beats_are_logged_only_where_the_contract_declares_them(store: Store, db: Harness) -> None:
    for contract in BUILT_IN:
        job = await held(store, contract)
        hops = len(db.log(job.id))
        shorten(db, job, 1)
        await store.heartbeat(job.held)
        facts = [event["type"] for event in db.log(job.id)[hops:]]
        assert facts == (["job_heartbeat", "job_lease_renewed"] if contract == "reliability" else [])
        assert not any(event["hop"] for event in db.log(job.id)[hops:])
        await store.succeed(job.held)
        db.log_is_sound(job.id)


async def test_a_beat_skips_a_row_that_somebody_moves_and_says_busy(store: Store, db: Harness) -> None:
    job, other = await held(store, "standard"), await held(store, "standard")
    with db.connection.transaction():
        db.sql("select from tenure.job where id = %s for update", job.id)
        answers = await store.report("heartbeat", calls([job.held, other.held]))
    assert isinstance(answers[0], Busy)
    assert not isinstance(answers[1], Busy)


@every_contract
async def test_progress_and_checkpoint_are_kept_and_the_next_attempt_sees_the_checkpoint(
    store: Store, db: Harness, contract: str
) -> None:
    job = await held(store, contract)
    hops = len(db.log(job.id))
    await store.progress(job.held, {"done": 3})
    await store.checkpoint(job.held, {"page": 7})
    assert (db.row(job.id)["progress"], db.row(job.id)["checkpoint"]) == ({"done": 3}, {"page": 7})
    assert len(db.log(job.id)) == hops
    db.expire(job.id)
    await store.reap(contract)
    db.due(job.id)
    await store.promote(contract)
    (again,) = await store.claim(contract, worker="w2")
    assert again.checkpoint == {"page": 7}
    with pytest.raises(StaleLease):
        await store.checkpoint(job.held, {"page": 1})
    assert db.row(job.id)["checkpoint"] == {"page": 7}


async def test_a_snooze_costs_nothing_and_the_backoff_does_not_grow(store: Store, db: Harness) -> None:
    made = await store.enqueue(NewJob("t", max_attempts=1))
    for n in range(1, 4):
        (job,) = await store.claim(worker="w1")
        moved = await store.snooze(job.held, 60_000)
        assert (moved.trigger, moved.delay_ms, moved.claims) == ("snooze", 60_000, n)
        assert db.row(made.job_id)["raises"] == n
        assert await store.claim(worker="w1") == []
        db.due(made.job_id)
    (job,) = await store.claim(worker="w1")
    assert (await store.succeed(job.held)).state == "succeeded"
    db.log_is_sound(made.job_id)


@every_contract
async def test_a_job_handed_back_can_be_claimed_again_and_claims_never_fall(
    store: Store, db: Harness, contract: str
) -> None:
    job = await held(store, contract)
    answer = await store.hand_back(job.held)
    db.due(job.id)
    await store.promote(contract)
    (again,) = await store.claim(contract, worker="w2")
    assert (again.id, again.claims) == (job.id, 2)
    with pytest.raises(StaleLease):
        await store.succeed(job.held)
    trigger = answer.trigger if isinstance(answer, Moved) else "let go"
    assert trigger == {"standard": "hand_back", "phase27": "let go"}.get(contract, "expire")
    db.log_is_sound(job.id)


async def test_a_job_set_aside_by_an_operator_keeps_its_reason_and_who_held_it(store: Store, db: Harness) -> None:
    for contract, state in (("standard", "dead"), ("reliability", "dead_lettered"), ("gate_b2", "failed")):
        job = await held(store, contract)
        moved = await store.dead_letter(job.id, reason_code="policy_violation", stage="input", actor="ada")
        assert moved.state == state
        letter = db.one("select * from tenure.dead_letter where job_id = %s", job.id)
        assert letter["last_owner"] == "w1"
        assert letter["last_error"]["code"] == "policy_violation"
        with pytest.raises(StaleLease):
            await store.succeed(job.held)
        db.log_is_sound(job.id)
