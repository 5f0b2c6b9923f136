"""Counts of moves: equal to what the log implies, whatever moved the jobs, folded or not, and after kills."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import cycle
from typing import Any

import psycopg
import pytest

from tenure.contracts import BUILT_IN
from tenure.errors import CannotConnect, Refused, TenureError
from tenure.jobs.job import Failure, Job, NewJob
from tenure.jobs.stats import DLQ_COUNT
from tenure.postgres.refusals import Refusals
from tenure.postgres.statement import run_sync, statement
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.postgres.counted import counted_hops, levels, live_jobs, logged_hops

pytestmark = pytest.mark.core

AGAIN = Failure("again", type="TransientError", code="AGAIN", retryable=True)
NEVER = Failure("never", type="PermanentError", code="NEVER", retryable=False)


async def mixed(store: Store, db: Harness, contract: str, count: int = 12) -> None:
    """Jobs of two types and tenants under one contract, ended in every way that it has."""
    jobs = [
        NewJob(f"type-{n % 2}", {"n": n}, contract=contract, queue=f"q{n % 2}", tenant_id=("a", "b")[n % 2])
        for n in range(count)
    ]
    ids = [one.job_id or 0 for one in await store.enqueue_many(jobs)]
    await store.enqueue(NewJob("alone", contract=contract, queue="q0"))
    ways = cycle(["succeed", "again", "never", "expire", "snooze", "hand back", "cancel", "leave"])
    for _ in range(3):
        held = await store.claim(contract, ["q0", "q1"], worker="w", limit=count)
        for job, way in zip(held, ways, strict=False):
            await end(store, db, job, way)
        await store.promote(contract)
        await store.settle(contract)
        db.sql("update tenure.job set due_at = now() where contract = %s and role in ('ready', 'waiting')", contract)
        await store.promote(contract)
    await store.change_queue(ids, "elsewhere", actor="ada")
    for answer in await store.claim_by_id(ids, worker="w", contract=contract):
        if isinstance(answer, Job):
            await end(store, db, answer, "succeed")


async def end(store: Store, db: Harness, job: Job, way: str) -> None:
    try:
        await store.start(job.held)
        if way == "succeed":
            await store.succeed(job.held, {"ok": True})
        elif way in ("again", "never"):
            await store.fail(job.held, AGAIN if way == "again" else NEVER)
        elif way == "expire":
            db.expire(job.id)
            await store.reap(job.contract)
        elif way == "snooze":
            await store.snooze(job.held, 0)
        elif way == "hand back":
            await store.hand_back(job.held)
        elif way == "cancel":
            await store.cancel(job.id, mode="hard", actor="ada")
    except Refused:
        pass  # not every contract has every way


def without_queue(hops: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Of jobs that changed their queue, the log does not say in which one they moved."""
    found: Counter[tuple[Any, ...]] = Counter()
    for key, number in hops.items():
        found[(*key[:3], *key[4:])] += number
    return found


async def test_the_counts_are_what_the_log_and_the_jobs_say_under_every_contract(store: Store, db: Harness) -> None:
    for contract in BUILT_IN:
        await mixed(store, db, contract)
    expected = without_queue(logged_hops(db))
    assert {key[0] for key in expected} == set(BUILT_IN)
    assert {"claim", "succeed", "retry", "start", "expire", "cancel"} <= {key[3] for key in expected}
    assert without_queue(counted_hops(db)) == expected, "before the fold"
    assert levels(db) == live_jobs(db)
    assert await store.counts.fold(limit=7) > 7
    assert db.value("select count(*) from tenure.tally") == 0
    for unit in ("minute", "hour", "ever"):
        assert without_queue(counted_hops(db, unit)) == expected, unit
    assert levels(db) == live_jobs(db)
    assert await store.counts.recount() == 0, "nothing to correct"


#: Every way into the dead letters: what a holder reports, an expired lease, or an operator.
INTO_LETTERS = {
    "standard": ("exhaust", "fatal", "expire_at_cap", "dead_letter"),
    "reliability": ("exhaust", "expire_at_cap", "dead_letter", "compensation_failed"),
    "gate_b2": ("exhaust", "fatal", "expire_at_cap", "dead_letter"),
}


def test_every_way_into_the_dead_letters_is_known_here() -> None:
    for name, contract in BUILT_IN.items():
        staged = contract.dead_letters.mode == "staged"
        ways = {path.trigger for path in contract.paths if (path.end.role == "settling" if staged else path.letter)}
        assert ways - {"settle"} == set(INTO_LETTERS.get(name, ())), name


@pytest.mark.parametrize("contract", INTO_LETTERS)
async def test_a_new_process_counts_each_way_into_the_dead_letters(
    store: Store, db: Harness, dsn: str, contract: str
) -> None:
    for trigger in INTO_LETTERS[contract]:
        await store.enqueue(NewJob(trigger, contract=contract))
        (job,) = await store.claim(contract, ["default"], worker="w")
        await store.start(job.held)
        db.sql("update tenure.job set claims = max_attempts + 1, counter = max_attempts where id = %s", job.id)
        held = replace(job.held, claims=db.row(job.id)["claims"])
        match trigger:
            case "exhaust" | "fatal":
                await store.fail(held, AGAIN if trigger == "exhaust" else NEVER)
            case "compensation_failed":
                await store.effect(held, "charge", compensable=True)
                await store.fail(held, NEVER)
                await store.compensation_failed(held, NEVER)
            case "expire_at_cap":
                db.expire(job.id)
                await store.reap(contract)
            case "dead_letter":
                await store.dead_letter(job.id, reason_code="policy_violation", actor="ada")
        await store.settle(contract)
    async with Store.open(dsn) as fresh:  # it has not read which contracts there are
        found = {one.type: one.counters[DLQ_COUNT] for one in (await fresh.counts.stats()).types}
    assert found == dict.fromkeys(INTO_LETTERS[contract], 1)


async def test_a_fold_that_dies_changes_nothing_and_folds_beside_each_other_count_once(
    store: Store, db: Harness, dsn: str
) -> None:
    await store.enqueue_many([NewJob(f"t{n % 50}") for n in range(500)])
    for n in range(0, 50, 2):
        await store.enqueue(NewJob(f"t{n}"))
    before = levels(db)
    with psycopg.connect(dsn) as dying:
        ((is_mine, folded),) = run_sync(dying, _one(statement("fold_counts", {"limit": 10, "groups": 5_000})))
        assert (is_mine, folded) == (True, 10)
        assert await store.counts.fold() == 0, "another one folds"
        dying.rollback()
    assert levels(db) == before
    async with Store.open(dsn) as other:
        await asyncio.gather(*(one.counts.fold(limit=5) for one in (store, other) * 4))
    while await store.counts.fold():
        pass
    assert levels(db) == before == live_jobs(db)


def _one(step: Any) -> Any:
    rows = yield step
    return rows


async def test_a_transaction_that_is_rolled_back_counts_nothing(store: Store, db: Harness, dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("select tenure.enqueue('t')")
        connection.rollback()
        assert db.value("select count(*) from tenure.tally") == 0
        connection.execute("select tenure.enqueue('t', queue => 'q', tenant_id => 'a')")
    assert levels(db) == {("standard", "t", "a", "q", "queued"): 1} == live_jobs(db)


async def test_durations_are_counted_in_buckets(store: Store, db: Harness) -> None:
    await store.enqueue_many([NewJob("t") for _ in range(3)])
    db.sql("update tenure.job set due_at = now() - interval '40 s', created_at = now() - interval '1 hour'")
    jobs = await store.claim("standard", ["default"], worker="w", limit=3)
    db.sql("update tenure.job set started_at = started_at - interval '3 s'")
    for job in jobs[:2]:
        await store.succeed(job.held)
    await store.fail(jobs[2].held, AGAIN)
    found = db.sql(
        "select trigger, (tenure.duration_bounds())[bucket + 1] as bound, sum(number)::int as number, "
        "round(sum(seconds)) as seconds from tenure.move_count where unit = 'minute' and bucket >= 0 "
        "group by 1, 2 order by 1"
    )
    assert [tuple(row.values()) for row in found] == [
        ("claim", 60.0, 3, 120), ("retry", 5.0, 1, 3), ("succeed", 5.0, 2, 6)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0, 0), (0.001, 0), (0.001001, 1), (1, 9), (1.000001, 10), (86_401, 22)]
)
def test_a_bound_belongs_to_its_bucket(db: Harness, seconds: float, bucket: int) -> None:
    assert db.value("select tenure.duration_bucket(%s)", seconds) == bucket


async def test_past_the_most_groups_new_ones_count_as_one(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.postgres.counts.MOST_GROUPS", 2)
    await store.enqueue_many([NewJob("t", tenant_id=tenant) for tenant in ("a", "b", "c", "d")])
    await store.counts.fold()
    await store.enqueue_many([NewJob("t", tenant_id=tenant) for tenant in ("a", "d", "e")])
    await store.counts.fold()
    assert levels(db) == {
        ("standard", "t", "a", "default", "queued"): 2,
        ("standard", "t", "b", "default", "queued"): 1,
        ("standard", "(other)", "(other)", "(other)", "queued"): 4,
    }


async def test_what_nothing_counted_is_corrected(store: Store, db: Harness) -> None:
    await store.enqueue_many([NewJob("t", queue=queue) for queue in ("a", "a", "b")])
    await store.counts.fold()
    db.sql("update tenure.job set queue = 'c' where queue = 'b'")
    db.sql("delete from tenure.job where id = (select min(id) from tenure.job)")
    assert levels(db) != live_jobs(db)
    assert await store.counts.recount() == 3
    assert levels(db) == live_jobs(db)
    await store.counts.fold()
    assert levels(db) == live_jobs(db)


@pytest.mark.req("S2-56")
async def test_64_claims_of_one_job_are_one_claim_and_63_conflicts(store: Store, db: Harness, dsn: str) -> None:
    job_id = (await store.enqueue(NewJob("t", contract="reliability", tenant_id="a"))).job_id or 0

    async def claim(n: int) -> Job | Refused:
        (answer,) = await store.claim_by_id([job_id], worker=f"w{n}", contract="reliability")
        return answer

    answers = await asyncio.gather(*(claim(n) for n in range(64)))
    assert sum(isinstance(one, Job) for one in answers) == 1
    await store.refusals.flush()
    found = db.sql(
        "select trigger, sum(number)::int as n from tenure.move_count "
        "where unit = 'ever' and type = 't' and tenant_id = 'a' and trigger <> 'enqueue' group by 1 order by 1"
    )
    assert [tuple(row.values()) for row in found] == [("claim", 1), ("refused_conflict", 63)]


async def test_refusals_are_counted_and_timed_apart(store: Store, db: Harness) -> None:
    await store.enqueue(NewJob("t", contract="gate_b2", tenant_id="a", queue="q"))
    (job,) = await store.claim("gate_b2", ["q"], worker="w")
    db.expire(job.id)
    await store.reap("gate_b2")
    with pytest.raises(TenureError):
        await store.succeed(job.held)
    with pytest.raises(TenureError):
        await store.transition(job.id, "succeeded", actor="ada")
    with pytest.raises(TenureError):
        await store.cancel(10**9)
    assert db.value("select count(*) from tenure.refusal") == 0, "no caller waits for it"
    await store.refusals.flush()
    found = db.sql("select contract, type, tenant_id, verb, code, kind from tenure.refusal order by at")
    assert [tuple(row.values()) for row in found] == [
        ("gate_b2", "t", "a", "succeed", "LEASE_CONFLICT", "stale"),
        ("gate_b2", "t", "a", "transition", "WF_STATE_TRANSITION_INVALID", "state"),
        ("(unknown)", "(unknown)", "(unknown)", "cancel", "JOB_NOT_FOUND", "other"),
    ]
    assert levels(db) == live_jobs(db), "a refusal moves nothing"
    assert db.value("select sum(number) from tenure.move_count where unit = 'ever' and trigger = 'refused_stale'") == 1


async def test_old_counts_are_forgotten_and_the_totals_stay(store: Store, db: Harness) -> None:
    await store.enqueue(NewJob("t"))
    await store.counts.fold()
    db.sql("update tenure.rollup set start = start - interval '3 days' where unit <> 'ever'")
    db.sql("insert into tenure.refusal (at, job_id, contract, type, tenant_id, queue, verb, code, kind) "
           "values (now() - interval '2 days', 1, 'c', 't', 'a', 'q', 'v', 'c', 'stale')")  # fmt: skip
    assert await store.counts.forget() == 2
    assert [row["unit"] for row in db.sql("select unit from tenure.rollup order by unit")] == ["ever", "hour"]
    assert levels(db) == live_jobs(db)


async def test_a_flood_of_refusals_is_counted_and_only_a_part_is_stored(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    flooding, other = await store.enqueue_many([NewJob("t", tenant_id="a"), NewJob("t", tenant_id="b")])
    flood = [Refused(flooding.job_id, "no", code="NO")] * 3_000
    store.refusals.note("finish", [*flood, Refused(other.job_id, "no", code="NO")])
    await store.refusals.flush()
    stored = "select tenant_id, count(*) from tenure.refusal group by 1 order by 1"
    assert [tuple(row.values()) for row in db.sql(stored)] == [("a", 100), ("b", 1)]
    counted = "select tenant_id, sum(number)::int from tenure.tally where path = 'finish>NO' group by 1 order by 1"
    assert [tuple(row.values()) for row in db.sql(counted)] == [("a", 3_000), ("b", 1)]
    db.sql("create temporary sequence place; update tenure.refusal set at = at - interval '1 s' * nextval('place')")
    newest = [row["at"] for row in db.sql("select at from tenure.refusal order by at desc limit 7")]
    monkeypatch.setattr("tenure.postgres.counts.MOST_REFUSALS", 7)
    assert await store.counts.forget() == 94
    assert [row["at"] for row in db.sql("select at from tenure.refusal order by at desc")] == newest
    assert await store.counts.forget() == 0


async def test_refusals_wait_while_the_database_is_away(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.postgres.refusals._PAUSE_S", 0.001)
    (made,) = await store.enqueue_many([NewJob("t", {})])
    tries = 0

    async def run(plan: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise CannotConnect("away")
        return await store.counts._engine.run(plan)

    refusals = Refusals(run)
    refusals.note("finish", [Refused(made.job_id, "no", code="NO")])
    assert refusals._sender is not None
    await refusals._sender
    assert db.value("select count(*) from tenure.refusal where code = 'NO'") == 1
    assert db.value("select sum(number) from tenure.tally where path = 'finish>NO'") == 1
