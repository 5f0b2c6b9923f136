"""Document 002, the road of one job: its states, how a claim and a start move it, and what nobody can do to it."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tenure.errors import InvalidTransition, LeaseConflictError
from tenure.jobs.job import Failure, NewJob
from tenure.postgres.store import Store
from tests.contracts.reliability import (
    INVALID,
    PERMANENT,
    RELIABILITY,
    TRANSIENT,
    assigned,
    make,
    running,
    shown,
    types,
)
from tests.harness import Harness
from tests.holder_calls import calls
from tests.races.sessions import Session

pytestmark = pytest.mark.core


@pytest.mark.req("S2-02")
async def test_the_database_knows_exactly_the_seven_states(store: Store, db: Harness) -> None:
    job_id = await make(store)
    seven = {"queued", "assigned", "running", "succeeded", "failed", "cancelled", "dead_lettered"}
    assert set(RELIABILITY.describe()["states"]) == seven
    for table in ("job", "job_done"):
        (check,) = db.sql(
            "select pg_get_constraintdef(oid) as sql from pg_constraint where conname = %s and contypid <> 0",
            f"{table}_state",
        )
        own = re.search(r"WHEN 'reliability'::text THEN \(+VALUE\)\.state = ANY \(ARRAY\[(.*?)\]", check["sql"])
        assert own
        assert set(re.findall(r"'(\w+)'", own[1])) == seven
    for stranger in ("orphaned", "cancelling", "retrying", "completed", "Queued"):
        with pytest.raises(psycopg.errors.CheckViolation):
            db.sql("update tenure.job set state = %s where id = %s", stranger, job_id)
    assert shown(db, job_id)["status"] == "queued"


async def test_each_state_that_the_kernel_reaches_shows_as_its_own_status(store: Store, db: Harness) -> None:
    ids = {await make(store): "succeeded"}
    await store.succeed((await running(store)).held)
    ids[await make(store)] = "failed"
    await store.fail((await running(store)).held, PERMANENT)
    ids[await make(store)] = "dead_lettered"
    await store.fail((await running(store)).held, INVALID)
    ids[await make(store)] = "running"
    await running(store)
    ids[await make(store)] = "assigned"
    await assigned(store)
    ids[await make(store)] = "queued"
    rows = db.sql("select job_id, status from tenure_reliability.jobs")
    assert {row["job_id"]: row["status"] for row in rows} == ids


@pytest.mark.req("S2-03")
async def test_a_job_is_visible_to_claimers_from_its_commit_on(store: Store, db: Harness, dsn: str) -> None:
    with Session(dsn, "scheduler") as scheduler:
        scheduler.begin()
        scheduler.enqueue(NewJob("index", contract="reliability"))
        assert await store.claim("reliability", worker="w1") == []
        scheduler.end("commit")
    assert db.value("select status from tenure_reliability.jobs") == "queued"
    assert (await assigned(store)).state == "assigned"


@pytest.mark.req("S2-10", "S2-53")
async def test_a_claim_moves_queued_to_assigned_and_takes_the_lease_in_one_transaction(
    store: Store, db: Harness
) -> None:
    db.spy()
    job_id = await make(store)
    assert (shown(db, job_id)["owner"], shown(db, job_id)["lease_expires_at"]) == (None, None)
    job = await assigned(store, "w7")
    row = shown(db, job_id)
    assert (job.id, job.state, job.lease_owner) == (job_id, "assigned", "w7")
    assert (row["status"], row["owner"], row["attempts"]) == ("assigned", "w7", 1)
    assert row["lease_expires_at"] == job.lease_expires_at
    assert [(hop.old, hop.new) for hop in db.seen(job_id)] == [("queued", "assigned")]
    assert types(db, job_id) == ["job_claimed"]
    # State, lease and event were written by the same transaction.
    written = db.one(
        "select j.xmin::text as row, e.xmin::text as event, j.lease_token from tenure.job j "
        "join tenure.event e on e.job_id = j.id where j.id = %s",
        job_id,
    )
    assert written["row"] == written["event"]
    assert written["lease_token"] == job.lease_token


@pytest.mark.req("S2-04")
async def test_an_assigned_job_has_a_lease_and_only_its_holders_start_makes_it_running(
    store: Store, db: Harness
) -> None:
    job_id = await make(store)
    job = await assigned(store)
    before = db.fingerprint(job_id)
    assert shown(db, job_id)["status"] == "assigned"
    assert shown(db, job_id)["lease_expires_at"] > job.updated_at
    # Before its start no outcome of a handler is accepted, because none can have run.
    with pytest.raises(InvalidTransition) as refused:
        await store.succeed(job.held)
    assert refused.value.state == "assigned"
    with pytest.raises(InvalidTransition):
        await store.fail(job.held, TRANSIENT)
    assert db.fingerprint(job_id) == before
    moved = await store.start(job.held)
    assert moved is not None
    assert (moved.from_state, moved.state) == ("assigned", "running")
    assert shown(db, job_id)["status"] == "running"


@pytest.mark.req("S2-11")
async def test_the_start_call_is_the_first_heartbeat(store: Store, db: Harness) -> None:
    job_id = await make(store)
    job = await assigned(store)
    assert shown(db, job_id)["last_heartbeat_at"] is None
    before = db.value("select clock_timestamp()")
    await store.start(job.held)
    row = shown(db, job_id)
    assert row["status"] == "running"
    assert before <= row["last_heartbeat_at"] <= db.value("select clock_timestamp()")
    # One event says both: a start is a beat, and no second event says so.
    assert types(db, job_id) == ["job_claimed", "job_started"]
    assert row["lease_expires_at"] == job.lease_expires_at


@pytest.mark.req("S2-05")
async def test_a_start_after_the_lease_expired_is_refused_without_effect(store: Store, db: Harness) -> None:
    job_id = await make(store)
    job = await assigned(store)
    db.expire(job_id)
    before = db.fingerprint(job_id)
    with pytest.raises(LeaseConflictError):
        await store.start(job.held)
    assert db.fingerprint(job_id) == before
    assert shown(db, job_id)["status"] == "assigned"


async def test_a_second_start_is_refused_without_effect(store: Store, db: Harness) -> None:
    job_id = await make(store)
    job = await running(store)
    before = db.fingerprint(job_id)
    with pytest.raises(InvalidTransition) as refused:
        await store.start(job.held)
    assert (refused.value.trigger, refused.value.state) == ("start", "running")
    assert db.fingerprint(job_id) == before


async def test_jobs_are_born_queued_whatever_the_caller_sends(store: Store, db: Harness) -> None:
    ids = [await make(store), await make(store, key="k"), await make(store, delay_ms=60_000, priority=0)]
    assert {shown(db, job_id)["status"] for job_id in ids} == {"queued"}
    assert [db.log(job_id) for job_id in ids] == [[], [], []]
    # The document's relation is for reading: nobody can write a job into the middle of its life.
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        db.sql("insert into tenure_reliability.jobs (status, type) values ('running', 'index')")


@pytest.mark.parametrize("failure", [None, PERMANENT, INVALID], ids=["succeeded", "failed", "dead_lettered"])
async def test_nothing_leaves_a_final_state(store: Store, db: Harness, failure: Failure | None) -> None:
    job_id = await make(store)
    job = await running(store)
    await (store.fail(job.held, failure) if failure else store.succeed(job.held, {"n": 1}))
    end, before = shown(db, job_id)["status"], db.fingerprint(job_id)
    refusals: list[Any] = [
        (await store.report("start", calls([job.held])))[0],
        (await store.report("succeed", calls([job.held])))[0],
        *(await store.report("fail", calls([job.held] * 3, failures=[TRANSIENT, PERMANENT, INVALID]))),
        *(await store.claim_by_id([job_id], worker="w2", contract="reliability")),
    ]
    assert [type(refusal) for refusal in refusals] == [InvalidTransition] * 6
    assert {refusal.state for refusal in refusals} == {end}
    assert (await store.reap("reliability"), await store.claim("reliability", worker="w2")) == ([], [])
    assert db.fingerprint(job_id) == before


@pytest.mark.req("S2-52")
async def test_a_claim_returns_queued_jobs_only(store: Store, db: Harness) -> None:
    for failure in (None, PERMANENT, INVALID):
        await make(store)
        held = (await running(store)).held
        await (store.fail(held, failure) if failure else store.succeed(held))
    await make(store)
    await running(store)
    await make(store)
    await assigned(store)
    gone = await make(store)
    db.sql(
        "with gone as (delete from tenure.job where id = %s returning *) insert into tenure.job_done "
        "select (jsonb_populate_record(null::tenure.job_done, to_jsonb(gone) || %s)).* from gone",
        gone,
        Jsonb({"state": "cancelled", "role": "done"}),
    )
    six = {row["job_id"]: row["status"] for row in db.sql("select job_id, status from tenure_reliability.jobs")}
    assert sorted(six.values()) == ["assigned", "cancelled", "dead_lettered", "failed", "running", "succeeded"]
    before = db.fingerprint(*six)
    assert await store.claim("reliability", worker="w2", limit=100) == []
    answers = await store.claim_by_id(sorted(six), worker="w2", contract="reliability")
    assert [type(answer) for answer in answers] == [InvalidTransition] * 6
    assert db.fingerprint(*six) == before
    queued = await make(store)
    assert [job.id for job in await store.claim("reliability", worker="w2", limit=100)] == [queued]
