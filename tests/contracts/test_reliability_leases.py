"""Document 002, leases: their bounds, what their end means, and that nobody keeps one that ran out or was orphaned."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from tenure.errors import BadInput, LeaseConflictError
from tenure.jobs.outcome import Moved
from tenure.postgres.store import Store
from tenure.settings import Settings
from tests.contracts.reliability import (
    TRANSIENT,
    assigned,
    events,
    letters,
    make,
    running,
    shown,
    types,
)
from tests.harness import Harness


@pytest.fixture
async def beating(dsn: str) -> AsyncIterator[Store]:
    """A store whose holders beat every 30 s under leases of 120 s."""
    async with Store.open(dsn, numbers={"reliability": {"heartbeat_ms": 30_000, "lease_ms": 120_000}}) as opened:
        yield opened


def beat(db: Harness, job_id: int, seconds_ago: int) -> None:
    """Let the holder's last beat be so long ago."""
    db.sql(
        "update tenure.job set last_heartbeat_at = now() - %s * interval '1 second' where id = %s",
        seconds_ago,
        job_id,
    )


@pytest.mark.req("S2-26")
async def test_a_lease_lasts_30_to_120_seconds_and_no_other_length_is_taken(
    store: Store, db: Harness, dsn: str
) -> None:
    ids = [await make(store) for _ in range(4)]
    before = db.fingerprint(*ids)
    for length in (29_000, 29_999, 120_001, 121_000, 0, -1):
        with pytest.raises(BadInput, match="lease_ms"):
            await store.claim("reliability", worker="w1", lease_ms=length)
        with pytest.raises(BadInput, match="lease_ms"):
            await store.claim_by_id(ids, worker="w1", contract="reliability", lease_ms=length)
        with pytest.raises(BadInput, match="TENURE_RELIABILITY_LEASE_MS"):
            Settings.load({"TENURE_RELIABILITY_LEASE_MS": str(length)})
    assert db.fingerprint(*ids) == before
    for length in (30_000, 120_000):
        await assigned(store, lease_ms=length)
    chosen = Settings.load({"TENURE_RELIABILITY_LEASE_MS": "30000"})
    async with Store.open(dsn, numbers=chosen.numbers) as configured:
        await assigned(configured)
    await assigned(store)
    lengths = [shown(db, job_id)["lease_expires_at"] - events(db, job_id)[0]["ts"] for job_id in ids]
    assert lengths == [timedelta(seconds=seconds) for seconds in (30, 120, 30, 60)]


@pytest.mark.req("S2-28")
def test_a_heartbeat_interval_is_10_to_30_seconds_and_no_other_is_taken() -> None:
    name = "TENURE_RELIABILITY_HEARTBEAT_MS"
    for length in (9_000, 9_999, 30_001, 31_000, 0):
        with pytest.raises(BadInput, match=name):
            Settings.load({name: str(length)})
    for length in (10_000, 30_000):
        assert Settings.load({name: str(length)}).numbers == {"reliability": {"heartbeat_ms": length}}


@pytest.mark.req("S2-21")
@pytest.mark.parametrize("verb", ["start", "succeed", "fail", "repeat the claim"])
async def test_after_expiry_every_call_of_the_owner_is_refused_though_no_reaper_ran(
    store: Store, db: Harness, verb: str
) -> None:
    job_id = await make(store)
    key = "4ab6ef8e-7d55-4b40-8f2b-d3f0dbb1dd16"
    job = await assigned(store, claim_key=key)
    if verb in ("succeed", "fail"):
        await store.start(job.held)
    db.expire(job_id)
    before = db.fingerprint(job_id)
    calls: dict[str, Any] = {
        "start": lambda: store.start(job.held),
        "succeed": lambda: store.succeed(job.held, {"n": 1}),
        "fail": lambda: store.fail(job.held, TRANSIENT),
        # The queue named is another one, so that the claim itself finds nothing of this one to close.
        "repeat the claim": lambda: store.claim("reliability", ["other"], worker="w1", claim_key=key),
    }
    with pytest.raises(LeaseConflictError):
        await calls[verb]()
    assert db.fingerprint(job_id) == before


@pytest.mark.req("S2-29")
async def test_two_missed_beats_orphan_a_job_although_its_lease_has_time_left(beating: Store, db: Harness) -> None:
    job_id = await make(beating)
    old = await running(beating, "w1")
    beat(db, job_id, 31)
    before = db.fingerprint(job_id)
    assert (await beating.reap("reliability"), await beating.claim("reliability", worker="w2")) == ([], [])
    assert db.fingerprint(job_id) == before
    beat(db, job_id, 61)
    assert shown(db, job_id)["lease_expires_at"] - timedelta(seconds=90) > db.value("select now()")
    new = await assigned(beating, "w2")
    assert (new.id, new.claims, new.lease_owner) == (job_id, 2, "w2")
    # The old lease is revoked, and the log says why: orphaned is a reason, not a state.
    assert types(db, job_id) == ["job_claimed", "job_started", "job_requeued", "job_claimed"]
    assert events(db, job_id)[2]["payload"]["reason"] == "orphaned"
    before = db.fingerprint(job_id)
    with pytest.raises(LeaseConflictError) as refused:
        await beating.succeed(old.held)
    assert refused.value.held_by == "w2"
    assert db.fingerprint(job_id) == before
    assert shown(db, job_id)["owner"] == "w2"


async def test_an_orphans_own_calls_are_refused_before_anybody_took_it(beating: Store, db: Harness) -> None:
    job_id = await make(beating)
    job = await running(beating)
    beat(db, job_id, 61)
    before = db.fingerprint(job_id)
    with pytest.raises(LeaseConflictError):
        await beating.succeed(job.held)
    assert db.fingerprint(job_id) == before
    beat(db, job_id, 31)
    assert (await beating.succeed(job.held)).state == "succeeded"


async def test_an_assigned_job_that_never_beat_is_no_orphan(beating: Store, db: Harness) -> None:
    job_id = await make(beating)
    await assigned(beating)
    db.sql("update tenure.job set lease_expires_at = now() + interval '40 seconds' where id = %s", job_id)
    assert await beating.reap("reliability") == []
    assert shown(db, job_id)["status"] == "assigned"


@pytest.mark.req("S2-30")
@pytest.mark.parametrize("standing", ["assigned", "running"])
async def test_an_expired_lease_returns_the_job_to_queued_and_at_the_limit_to_the_dead_letters(
    store: Store, db: Harness, standing: str
) -> None:
    job_id = await make(store, max_attempts=2)
    take = {"assigned": assigned, "running": running}[standing]
    await take(store, "w1")
    db.expire(job_id)
    logged = len(db.log(job_id))
    (outcome,) = await store.reap("reliability")
    assert isinstance(outcome, Moved)
    assert (outcome.trigger, outcome.from_state, outcome.state) == ("expire", standing, "queued")
    row = shown(db, job_id)
    assert (row["status"], row["attempts"], row["owner"], row["lease_expires_at"]) == ("queued", 1, None, None)
    assert types(db, job_id)[logged:] == ["job_requeued"]
    assert events(db, job_id)[-1]["payload"]["reason"] == "lease_expired"
    assert await store.reap("reliability") == []
    # Claimable at once, and only that claim counts.
    await take(store, "w2")
    assert shown(db, job_id)["attempts"] == 2
    db.expire(job_id)
    logged = len(db.log(job_id))
    await store.reap("reliability")
    assert (shown(db, job_id)["status"], types(db, job_id)[logged:]) == ("dead_lettered", ["job_dead_lettered"])
    (letter,) = letters(db, job_id)
    assert (letter["reason_code"], letter["attempts"], letter["last_owner"]) == ("timeout", 2, "w2")
    db.log_is_sound(job_id)


@pytest.mark.parametrize("standing", ["assigned", "running"])
async def test_a_job_whose_worker_always_dies_is_dead_lettered_after_three_leases(
    store: Store, db: Harness, standing: str
) -> None:
    db.spy()
    job_id = await make(store)
    leases: list[object] = []
    # Nobody but the claims themselves closes what the dead left behind.
    while jobs := await store.claim("reliability", worker=f"w{len(leases) + 1}"):
        leases.append(jobs[0].lease_token)
        if standing == "running":
            await store.start(jobs[0].held)
        db.expire(job_id)
    assert len(set(leases)) == len(leases) == 3
    cycle = ["job_claimed", "job_started"] if standing == "running" else ["job_claimed"]
    assert types(db, job_id) == [*cycle, "job_requeued"] * 2 + [*cycle, "job_dead_lettered"]
    assert len(db.seen(job_id)) == len(db.log(job_id))
    row = shown(db, job_id)
    assert (row["status"], row["attempts"]) == ("dead_lettered", 3)
    (letter,) = letters(db, job_id)
    assert (letter["reason_code"], letter["last_owner"]) == ("timeout", "w3")
    db.log_is_sound(job_id)
