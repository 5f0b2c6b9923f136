"""What is past leaves: verbose payloads fade, keys lapse with their jobs, claim keys with what they held."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import pytest

from tenure.errors import BadInput, StaleLease
from tenure.jobs.job import Failure, Job, NewJob
from tenure.postgres import retention
from tenure.postgres.store import Store
from tenure.proof import audit
from tests.contracts.reliability import events
from tests.harness import Harness
from tests.holder_calls import calls
from tests.postgres.retiring import WIDTH, full

_DAY = 86_400.0
_VERBOSE = ("job_heartbeat", "job_lease_renewed")


async def beating(store: Store, db: Harness, beats: int) -> Job:
    """A reliability job in the hands of a worker that says so often; every beat also renews its lease."""
    await store.enqueue(NewJob("index", contract="reliability"))
    (job,) = await store.claim("reliability", worker="w1")
    await store.start(job.held)
    for _ in range(beats):
        db.wear(job.id)
        assert (await store.heartbeat(job.held)).renewed
    return job


def aged(db: Harness, job_id: int, seconds: int) -> None:
    """Let the log of a job be so much older. The log refuses such a change, so its guard looks away."""
    with db.connection.transaction():
        db.sql("set local session_replication_role = replica")
        db.sql("update tenure.event set ts = ts - %s * interval '1 second' where job_id = %s", seconds, job_id)
        for table in ("job", "job_done"):
            db.sql(
                f"update tenure.{table} set updated_at = updated_at - %s * interval '1 second' where id = %s",
                seconds,
                job_id,
            )


def verbose(db: Harness, job_id: int) -> list[dict[str, Any] | None]:
    """The verbose payloads of a job as the document's own view shows them."""
    return [event["payload"] for event in events(db, job_id) if event["type"] in _VERBOSE]


def facts(db: Harness) -> int:
    """How many log rows that are no hops still have their payload."""
    return int(db.value("select count(*) from tenure.event where not hop and facts is not null"))


@pytest.mark.req("S2-48")
async def test_verbose_payloads_are_forgotten_when_their_time_is_up(store: Store, db: Harness) -> None:
    job = await beating(store, db, 3)
    await store.fail(job.held, Failure("no such account", type="PermanentError", code="NO_ACCOUNT"))
    before = events(db, job.id)
    assert [payload is not None for payload in verbose(db, job.id)] == [True] * 6
    assert await store.history.forget_payloads(1) == 0, "nothing is older than a second"
    assert events(db, job.id) == before

    aged(db, job.id, 2)
    assert await store.history.forget_payloads(1) == 6
    after = events(db, job.id)
    assert verbose(db, job.id) == [None] * 6
    assert len(after) == len(before) == 9
    kept = [event["payload"] for event in after if event["type"] not in _VERBOSE]
    assert kept == [event["payload"] for event in before if event["type"] not in _VERBOSE]
    (failed,) = (event for event in after if event["type"] == "job_failed")
    assert failed["payload"]["error"] == {"message": "no such account", "code": "NO_ACCOUNT"}
    db.log_is_sound(job.id)
    report = await audit(store)
    assert (report.jobs, report.violations) == (1, [])
    assert await store.history.forget_payloads(1) == 0, "what is forgotten is not found again"


async def test_payloads_of_live_jobs_and_young_ones_are_told_apart_by_age_alone(store: Store, db: Harness) -> None:
    old = await beating(store, db, 1)
    aged(db, old.id, 8 * int(_DAY))
    young = await beating(store, db, 1)
    aged(db, young.id, 6 * int(_DAY))
    assert await store.history.forget_payloads() == 2, "a week is the default"
    assert verbose(db, old.id) == [None, None]
    assert None not in verbose(db, young.id)
    await store.succeed(old.held)
    db.log_is_sound(old.id, young.id)


async def test_a_fact_that_does_not_fade_stays(store: Store, db: Harness) -> None:
    job = await beating(store, db, 1)
    await store.effect(job.held, "charge", compensable=True)
    await store.fail(job.held, Failure("no such account", type="PermanentError"))
    await store.compensated(job.held)
    aged(db, job.id, 60)
    with db.connection.transaction():
        db.sql("set local session_replication_role = replica")
        db.sql("update tenure.event set facts = '{\"undone\": 1}' where trigger in ('compensating', 'compensated')")
    assert await store.history.forget_payloads(1) == 2
    kept = db.sql("select trigger, facts from tenure.event where not hop and facts is not null order by seq")
    assert kept == [{"trigger": trigger, "facts": {"undone": 1}} for trigger in ("compensating", "compensated")]
    db.log_is_sound(job.id)


async def test_more_than_a_page_is_forgotten_in_one_call(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_PAGE", 4)
    jobs = [await beating(store, db, 5) for _ in range(2)]
    for job in jobs:
        aged(db, job.id, 60)
    before = db.value("select count(*) from tenure.event")
    assert await store.history.forget_payloads(1) == 20, "five pages, the last of them full"
    assert (facts(db), db.value("select count(*) from tenure.event")) == (0, before)


async def twice(dsn: str, call: Callable[[Store], Awaitable[int]]) -> int:
    """What two processes did that were at it at once, together."""
    async with Store.open(dsn) as one, Store.open(dsn) as other:
        return sum(await asyncio.gather(call(one), call(other)))


async def test_two_processes_share_what_there_is_to_forget(
    store: Store, db: Harness, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_PAGE", 3)
    first_range_left(db)
    job = await beating(store, db, 20)
    aged(db, job.id, 60)
    old_key(db, *(f"k{n}" for n in range(30)), job_id=7)
    old_claim(db, *(uuid4() for _ in range(30)))
    # Each skips what the other is at, and may take that for the end: what is left is the next round's.
    done = await twice(dsn, lambda each: each.history.forget_payloads(1))
    assert done + await store.history.forget_payloads(1) == 40
    done = await twice(dsn, lambda each: each.history.forget_keys(1))
    assert done + await store.history.forget_keys(1) == 30
    done = await twice(dsn, lambda each: each.history.forget_claims(60))
    assert done + await store.history.forget_claims(60) == 30
    assert facts(db) == 0
    assert (keys(db), claims(db)) == ([], {job.lease_token}), "what holds the job stays"
    db.log_is_sound(job.id)


def first_range_left(db: Harness) -> None:
    """As if the first range of ids had been used up, and dropped."""
    full(db)
    db.sql("delete from tenure.range where low = 0")


def old_key(db: Harness, *keys: str, job_id: int, days: int = 31) -> None:
    """Keys that were used so long ago."""
    for key in keys:
        db.sql(
            "insert into tenure.key (tenant_id, key, verb, hash, job_id, created_at) "
            "values ('default', %s, 'enqueue', 'h', %s, now() - %s * interval '1 day')", key, job_id, days,
        )  # fmt: skip


def keys(db: Harness) -> list[str]:
    """The idempotency keys that are known."""
    return [row["key"] for row in db.sql("select key from tenure.key order by key")]


async def test_keys_go_when_they_are_old_and_their_jobs_have_left(store: Store, db: Harness) -> None:
    first_range_left(db)
    first = await store.enqueue(NewJob("t", key="of-a-job"))
    assert first.job_id == WIDTH + 1
    db.sql("update tenure.key set created_at = now() - interval '1 year'")
    old_key(db, "old", job_id=7)
    old_key(db, "old, the last of its range", job_id=WIDTH - 1)
    old_key(db, "old, the first of the next", job_id=WIDTH)
    old_key(db, "young", job_id=7, days=29)
    assert await store.history.forget_keys() == 2
    assert keys(db) == ["of-a-job", "old, the first of the next", "young"]
    assert (await store.enqueue(NewJob("t", key="of-a-job"))) == first._replace(made=False)


async def test_a_key_is_kept_as_long_as_its_finished_job(store: Store, db: Harness) -> None:
    made = await store.enqueue(NewJob("t", key="k"))
    (job,) = await store.claim(worker="w")
    await store.succeed(job.held)
    db.sql("update tenure.key set created_at = now() - interval '1 year'")
    assert await store.history.forget_keys(0) == 0
    assert (await store.enqueue(NewJob("t", key="k"))).job_id == made.job_id


async def test_a_forgotten_key_makes_a_new_job(store: Store, db: Harness) -> None:
    old_key(db, "k", job_id=7)
    assert await store.history.forget_keys() == 0
    first_range_left(db)
    assert await store.history.forget_keys() == 1
    again = await store.enqueue(NewJob("t", key="k"))
    assert again.made
    assert keys(db) == ["k"]


def old_claim(db: Harness, *tokens: UUID) -> None:
    """Claim keys that were used two hours ago."""
    for token in tokens:
        db.sql("insert into tenure.claim (key, at) values (%s, now() - interval '2 hours')", token)


def claims(db: Harness) -> set[UUID]:
    """The claim keys that are known."""
    return {row["key"] for row in db.sql("select key from tenure.claim")}


@pytest.mark.parametrize("contract", ["standard", "reliability", "gate_b2"])
async def test_claim_keys_go_when_they_are_old_and_hold_nothing(store: Store, db: Harness, contract: str) -> None:
    holding, done, young = uuid4(), uuid4(), uuid4()
    for token in (holding, done):
        await store.enqueue(NewJob("t", contract=contract))
        (job,) = await store.claim(contract, worker="w", claim_key=token, lease_ms=60_000)
    await store.start(job.held)
    await store.succeed(job.held)
    db.sql("update tenure.claim set at = now() - interval '2 hours'")
    old_claim(db, uuid4())
    db.sql("insert into tenure.claim (key) values (%s)", young)
    assert await store.history.forget_claims() == 2
    assert claims(db) == {holding, young}
    (again,) = await store.claim(contract, worker="w", claim_key=holding)
    assert again.lease_token == holding


async def test_a_repeat_with_a_forgotten_claim_key_is_a_new_claim(store: Store, db: Harness) -> None:
    token = uuid4()
    await store.enqueue(NewJob("t"))
    (first,) = await store.claim(worker="w", claim_key=token)
    db.expire(first.id)
    await store.reap("standard")
    with pytest.raises(StaleLease):
        await store.claim(worker="w", queues=["elsewhere"], claim_key=token)
    db.sql("update tenure.claim set at = now() - interval '2 hours'")
    assert await store.history.forget_claims() == 1
    assert await store.claim(worker="w", queues=["elsewhere"], claim_key=token) == [], "nothing there, and no key spent"
    (second,) = await store.claim(worker="w", claim_key=token)
    assert (second.id, second.claims, second.lease_token) == (first.id, 2, token)
    with pytest.raises(StaleLease):  # the same token again, but another claim: the first holder is fenced off
        await store.succeed(first.held)
    await store.succeed(second.held)
    db.log_is_sound(first.id)


@pytest.mark.parametrize(
    ("verb", "least"), [("forget_payloads", 0), ("forget_keys", 0), ("forget_claims", 60), ("retire_ranges", 60)]
)
async def test_a_time_that_makes_no_sense_is_refused(store: Store, verb: str, least: int) -> None:
    for given in (least - 1, True, "7", None, float("nan"), float("inf")):
        with pytest.raises(BadInput, match=f"keep_sec is .*; it must be at least {least} seconds"):
            await getattr(store.history, verb)(given)


@pytest.mark.parametrize("mode", ["access exclusive", "row exclusive"])
async def test_vacuum_waits_for_nobody(store: Store, dsn: str, mode: str) -> None:
    with Harness(dsn) as other, other.connection.transaction():
        other.sql(f"lock table tenure.job, tenure.claim in {mode} mode")
        assert await asyncio.wait_for(store.history.vacuum(), 60)


async def test_vacuum_takes_away_what_is_dead(db: Harness, dsn: str) -> None:
    async with Store.open(dsn, connections=1) as store:
        await store.enqueue_many([NewJob("t") for _ in range(50)])
        await store.report("succeed", calls([job.held for job in await store.claim(worker="w", limit=50)]))
        pages = db.value("select pg_relation_size('tenure.job')")
        for _ in range(8):  # a statement that is run often becomes a prepared one
            assert await store.history.vacuum()
        assert db.value("select pg_relation_size('tenure.job')") == pages, "the table is not truncated"
        vacuumed = "select vacuum_count from pg_stat_user_tables where relid = 'tenure.job'::regclass"
        db.sql("select pg_stat_clear_snapshot()")
        assert db.value(vacuumed) >= 1
