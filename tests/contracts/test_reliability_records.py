"""Document 002, what a transition keeps: time, actor, reason and correlation id, stored on its own log row."""

from __future__ import annotations

import pytest

from tenure.errors import InvalidTransition, Refused, StaleLease
from tenure.jobs.job import Job, NewJob
from tenure.postgres.store import Store
from tenure.postgres.views import view_statements
from tests.contracts.reliability import (
    INVALID,
    PERMANENT,
    RELIABILITY,
    TRANSIENT,
    assigned,
    events,
    make,
    running,
    shown,
)
from tests.harness import Harness


async def every_kind_of_transition(store: Store, db: Harness) -> list[int]:
    """Jobs whose logs have every trigger of the contract, by every caller: holders, operators, upkeep and claims."""
    ids = []

    async def new() -> Job:
        job = await running(store)
        ids.append(job.id)
        return job

    await make(store, correlation_id="order 7")
    await store.succeed((await new()).held)
    await make(store)
    await store.fail((await new()).held, PERMANENT)
    await make(store)
    await store.fail((await new()).held, INVALID)
    await make(store)
    await store.cancelled((await new()).held, None)
    retried = await make(store, max_attempts=2)
    await store.fail((await new()).held, TRANSIENT)
    db.due(retried)
    await store.fail((await new()).held, TRANSIENT)  # its last attempt
    lost = await make(store, max_attempts=2)
    for _ in range(2):
        await new()
        db.expire(lost)
        await store.reap("reliability")
    undone = await make(store)
    job = await new()
    await store.effect(job.held, "charge", compensable=True)
    await store.fail(job.held, PERMANENT)
    await store.compensation_failed(job.held, TRANSIENT)
    for end in ("cancelled", "dead_lettered"):
        waiting = await make(store)
        ids.append(waiting)
        await store.transition(waiting, end, actor="ada")
    named = await make(store)
    (by_id,) = await store.claim_by_id([named], worker="w1", contract="reliability")
    assert isinstance(by_id, Job)
    ids.append(named)
    await store.heartbeat(by_id.held)
    (shared,) = await store.enqueue_many([NewJob("index", contract="reliability")])
    assert not isinstance(shared, Exception)
    ids.append(shared.job_id)
    await assigned(store, "w1")
    assert undone in ids
    return list(dict.fromkeys(ids))


@pytest.mark.req("S2-25")
async def test_every_transition_stores_its_time_actor_reason_and_correlation_id(store: Store, db: Harness) -> None:
    ids = await every_kind_of_transition(store, db)
    hops = db.sql(
        "select job_id, trigger, ts, actor, reason, correlation_id from tenure.event where hop order by job_id, seq"
    )
    # As stored, and not as a view might make it up.
    assert {row["trigger"] for row in hops} >= {
        "claim", "start", "succeed", "fatal", "dead_letter", "cancel", "retry", "exhaust", "expire", "expire_at_cap",
        "compensation_failed",
    }  # fmt: skip
    assert [row for row in hops if any(value is None or value == "" for value in row.values())] == []
    for job_id in ids:
        told = [event for event in events(db, job_id) if event["type"] not in ("job_heartbeat", "job_lease_renewed")]
        stored = [row for row in hops if row["job_id"] == job_id]
        assert [
            (event["ts"], event["actor"], event["payload"]["reason"], event["correlation_id"]) for event in told
        ] == [(row["ts"], row["actor"], row["reason"], row["correlation_id"]) for row in stored]
    assert {row["reason"] for row in hops if row["trigger"] in ("expire", "expire_at_cap")} == {"lease_expired"}
    # The words of a reason that was given are kept; where none was, what happened is the reason.
    assert {row["reason"] for row in hops if row["trigger"] == "claim"} == {"claim"}


@pytest.mark.req("S2-25")
async def test_the_view_shows_the_reason_that_is_stored_and_makes_none_up(store: Store, db: Harness) -> None:
    job_id = await make(store)
    job = await running(store)
    await store.cancel(job_id, mode="hard", reason="the customer left", actor="ada")
    assert job.id == job_id
    told = [(event["actor"], event["payload"]["reason"]) for event in events(db, job_id)]
    assert told == [("w1", "claim"), ("w1", "start"), ("ada", "the customer left")]
    # A row without one would be seen as such: write it past the engine.
    db.sql(
        "insert into tenure.event (job_id, ts, seq, claims, counter, max_attempts, contract, trigger, from_state, "
        "to_state, actor, type, correlation_id) select job_id, now(), 99, 1, 1, 3, contract, 'start', 'assigned', "
        "'running', 'me', 'job_started', 'c' from tenure.event where job_id = %s and seq = 1", job_id,
    )  # fmt: skip
    assert events(db, job_id)[-1]["payload"]["reason"] is None
    (text,) = [sql for name, sql in view_statements(RELIABILITY) if name.endswith('"job_events"')]
    assert "e.reason" in text


@pytest.mark.req("S2-23")
@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled", "dead_lettered"])
async def test_nothing_makes_a_finished_job_running_again(store: Store, db: Harness, end: str) -> None:
    job_id = await make(store)
    held = (await running(store)).held
    if end == "succeeded":
        await store.succeed(held, {"n": 1})
    elif end == "cancelled":
        await store.cancelled(held, "asked to")
    else:
        await store.fail(held, PERMANENT if end == "failed" else INVALID)
    assert shown(db, job_id)["status"] == end
    before = db.fingerprint(job_id)
    for to in ("running", "assigned", "queued"):
        with pytest.raises(InvalidTransition) as refused:
            await store.transition(job_id, to, reason="again", actor="ada")
        assert refused.value.state == end
    with pytest.raises(InvalidTransition) as refused:
        await store.start(held)
    assert (refused.value.trigger, refused.value.state) == ("start", end)
    assert await store.claim("reliability", worker="w2") == []
    (by_id,) = await store.claim_by_id([job_id], worker="w2", contract="reliability")
    assert isinstance(by_id, InvalidTransition)
    assert await store.claim_one_job("w2") is None
    with pytest.raises(InvalidTransition):
        await store.claim_one_job("w2", job_id=job_id)
    # Nor does the key of the claim that ran it give it back.
    with pytest.raises(StaleLease):
        await store.claim("reliability", worker="w1", claim_key=held.token)
    with pytest.raises(Refused):
        await store.heartbeat(held)
    assert (await store.reap("reliability"), await store.promote("reliability")) == ([], [])
    assert db.fingerprint(job_id) == before
    # Running it again is another job; this one stays as it ended.
    again = await store.requeue(job_id, actor="ada")
    assert again != job_id
    assert (shown(db, again)["status"], shown(db, job_id)["status"]) == ("queued", end)
