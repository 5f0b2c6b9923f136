"""A claim takes only types that its caller knows, in one order, and neither walks over nor locks what others know."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest

from tenure.jobs.claim_cursor import MAX_CLAIM_BYTES, ClaimCursor
from tenure.jobs.job import NewJob
from tenure.postgres import claim
from tenure.postgres.connect import engine_dsn
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Statement, run_sync, statement
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.postgres.test_plans import Planner

KNOWN = [f"k{n:02}" for n in range(50)]
_FILL = """
insert into tenure.job (contract, version, state, role, max_attempts, type, due_at, priority, tenant_id)
select 'standard', '1', 'queued', 'ready', 5, {type}, now() - interval '1 hour' + n * interval '1 millisecond',
       {priority}, {tenant}
from generate_series({first}, {last}) as n
"""


def fill(db: Harness, kind: str, first: int, last: int, priority: str = "5", tenant: str = "'default'") -> None:
    """Make jobs, each due a millisecond after the last; `kind`, `priority` and `tenant` are SQL that may use n."""
    db.sql(_FILL.format(type=kind, priority=priority, tenant=tenant, first=first, last=last))


def first_due(db: Harness, types: list[str] | None, limit: int, tenant: str | None = None) -> list[int]:
    """The ids of the jobs that a claim ought to take, found without any index."""
    rows = db.sql(
        "select id from tenure.job where role = 'ready' and (%s::text[] is null or type = any(%s)) "
        "and (%s::text is null or tenant_id = %s) order by priority, due_at, id limit %s",
        types, types, tenant, tenant, limit,
    )  # fmt: skip
    return [row["id"] for row in rows]


@pytest.mark.parametrize("types", [None, ["b"], ["a", "c", "e"], ["nobody's"], ["a", "b", "c", "d", "e", "f", "g"]])
@pytest.mark.parametrize("tenant", [None, "default", "acme"])
@pytest.mark.parametrize("limit", [1, 7, 60])
async def test_the_order_among_known_types_is_priority_then_due_time_then_id(
    store: Store, db: Harness, types: list[str] | None, tenant: str | None, limit: int
) -> None:
    # Types in turn, in bursts, and one due time for several; of three priorities and two tenants.
    tenants = "case when n % 4 = 0 then 'acme' else 'default' end"
    fill(db, "substr('abcdefg', 1 + n % 7, 1)", 1, 90, "3 * (n % 3)", tenants)
    fill(db, "substr('abcdefg', 1 + n / 20, 1)", 91, 139, "3", tenants)
    db.sql("update tenure.job set due_at = date_trunc('second', due_at) where id % 5 = 0")
    while wanted := first_due(db, types, limit, tenant):
        claimed = await store.claim(worker="w", limit=limit, types=types, tenant=tenant)
        assert [job.id for job in claimed] == wanted
    assert await store.claim(worker="w", limit=limit, types=types, tenant=tenant) == []


@pytest.mark.parametrize("types", [None, KNOWN])
async def test_claims_that_begin_at_marks_take_the_same_jobs(
    store: Store, db: Harness, types: list[str] | None
) -> None:
    fill(db, "'k' || lpad((n % 50)::text, 2, '0')", 1, 500, "5 + n % 2")
    wanted = first_due(db, types, 500)
    cursor, taken = ClaimCursor(lambda: 1_000.0), list[int]()
    while jobs := await store.claim(worker="w", limit=30, types=types, cursor=cursor):
        taken += [job.id for job in jobs]
    assert taken == wanted


async def test_jobs_without_a_due_time_go_first(store: Store, db: Harness) -> None:
    ids = [(await store.enqueue(NewJob("ab"[n % 2]))).job_id for n in range(6)]
    db.sql("update tenure.job set due_at = null where id = any(%s)", ids[4:])
    claimed = await store.claim(worker="w", limit=6, types=["a", "b"])
    assert [job.id for job in claimed] == [ids[4], ids[5], *ids[:4]]


async def test_what_others_have_locked_is_made_up_for_by_what_is_free(store: Store, db: Harness) -> None:
    fill(db, "'k00'", 1, 20)
    fill(db, "'k01'", 21, 40)
    with psycopg.connect(db.dsn) as other:
        other.execute("select from tenure.job where type = 'k00' or id > 38 for update")
        claimed = await store.claim(worker="w", limit=15, types=KNOWN[:5])
        assert {job.type for job in claimed} == {"k01"}, "the other lane goes first, but nothing of it is free"
        assert len(claimed) == 15
        claimed = await store.claim(worker="w", limit=15, types=KNOWN[:5])
    assert len(claimed) == 3, "all that is free"


async def test_a_claim_that_finds_a_few_of_a_lane_free_takes_the_rest_from_others(store: Store, db: Harness) -> None:
    fill(db, "'k00'", 1, 20)
    fill(db, "'k01'", 21, 40)
    with psycopg.connect(db.dsn) as other:
        other.execute("select from tenure.job where id <= 17 for update")
        claimed = await store.claim(worker="w", limit=15, types=KNOWN[:5])
    assert sorted(job.id for job in claimed) == list(range(18, 33))


@pytest.mark.parametrize("types", [None, ["a", "b"]])
@pytest.mark.parametrize("locked", ["'a'", "case n % 2 when 0 then 'a' else 'b' end"])
async def test_a_claim_looks_below_jobs_that_others_have_locked(
    store: Store, db: Harness, dsn: str, types: list[str] | None, locked: str
) -> None:
    fill(db, locked, 1, 2, "0")
    fill(db, "'a'", 3, 7)
    db.sql("update tenure.job set queue = 'second' where id = 7")
    with Harness(dsn) as other, other.connection.transaction(force_rollback=True):
        other.sql("select id from tenure.job where priority = 0 for update")
        assert [job.id for job in await store.claim(worker="w", types=types)] == [3]
        assert [job.id for job in await store.claim(worker="w", limit=2, types=types)] == [4, 5]
        other.sql("select id from tenure.job where queue = 'default' for update")
        queues = ["default", "second"]
        assert [job.id for job in await store.claim(queues=queues, worker="w", types=types)] == [7]
        assert await store.claim(queues=queues, worker="w", types=types) == []
    assert [job.id for job in await store.claim(worker="w", limit=9, types=types)] == [1, 2, 6]


async def test_many_claimers_of_many_types_take_each_job_once(store: Store, db: Harness) -> None:
    fill(db, "'k' || lpad((n % 50)::text, 2, '0')", 1, 600, "n % 3")
    taken = list[int]()

    async def drain(n: int) -> None:
        while jobs := await store.claim(worker=f"w{n}", limit=1 + 7 * n, types=KNOWN):
            taken.extend(job.id for job in jobs)

    await asyncio.gather(*map(drain, range(6)))
    assert len(taken) == len(set(taken)) == 600


@pytest.fixture
def planner(db: Harness) -> Iterator[Planner]:
    """The engine's own planner settings."""
    registry = Registry()
    with psycopg.connect(engine_dsn(db.dsn), autocommit=True) as engine:
        run_sync(engine, registry.load())
        yield Planner(engine, registry)


def asked(planner: Planner, types: list[str] | None, limit: int) -> Statement:
    """A worker's claim."""
    machine = planner.registry.find("standard")
    assert machine is not None
    values = {
        **machine.claim, **claim.lanes([machine], ["default"], types), "limit": limit, "positions": {}, "seen": [],
        "claim_key": uuid4(), "owner": "w", "lease_ms": None, "heaviest": MAX_CLAIM_BYTES,
    }  # fmt: skip
    return statement("claim", values)


def buffers(planner: Planner, types: list[str] | None, limit: int) -> int:
    """The pages that a claim touches; the planner's own are not counted."""
    plan = planner.explain(asked(planner, types, limit), "force_generic_plan", "analyze", "buffers", "timing off")
    return sum(map(int, re.findall(r"Buffers: shared hit=(\d+)", plan)[:1]))


@pytest.mark.parametrize("limit", [1, 10])
@pytest.mark.parametrize("types", [None, KNOWN])
def test_a_claim_of_many_types_locks_at_most_twice_as_many_rows_as_it_takes(
    db: Harness, planner: Planner, types: list[str] | None, limit: int
) -> None:
    fill(db, "'k' || lpad((n % 50)::text, 2, '0')", 1, 2_000, "n % 3")
    claim = asked(planner, types, limit)
    with planner.engine.transaction(force_rollback=True):
        planner.engine.execute(b"prepare asked as " + claim.query.text.encode())
        values = psycopg.sql.SQL(", ").join(map(psycopg.sql.Literal, claim.values))
        taken = planner.engine.execute(psycopg.sql.SQL("execute asked ({})").format(values)).fetchall()
        # What was taken has a new version by now; what was only locked bears our mark.
        count = "select count(*) from tenure.job where xmax = pg_current_xact_id()::xid"
        ((only_locked,),) = planner.engine.execute(count).fetchall()
    assert len(taken) == limit
    assert only_locked <= limit


def test_an_idle_claim_touches_no_more_than_the_ten_lanes_of_a_queue_did(db: Harness, planner: Planner) -> None:
    # 17 pages is what the claim of an earlier release touched here, which looked into each of ten priorities.
    for types in (None, ["k01"], KNOWN):
        for _ in range(3):  # the first ones also read the catalogs
            touched = buffers(planner, types, 1)
        assert touched <= 2 * 17, types


@pytest.mark.pristine
@pytest.mark.parametrize("foreign", [100_000, pytest.param(1_000_000, marks=pytest.mark.prove)])
def test_a_claim_does_not_walk_over_a_backlog_of_foreign_types(db: Harness, planner: Planner, foreign: int) -> None:
    def touched(kind: str) -> list[int]:
        """The pages that claims of one and of fifty jobs touch, after the first ones, which also read the catalogs."""
        db.sql("vacuum analyze tenure.job")
        return [[buffers(planner, [kind], limit) for _ in range(3)][-1] for limit in (1, 50)]

    db.sql("alter table tenure.job set (autovacuum_enabled = false)")  # it would change what is counted
    fill(db, "'mine'", 2_000_001, 2_000_200)
    alone = touched("mine")
    fill(db, "'foreign'", 1, foreign)  # each is due before ours
    beside = touched("mine")
    for before, now in zip(alone, beside, strict=True):
        assert now <= 1.5 * before, f"pages of claims of 1 and of 50 jobs: {alone} alone, {beside} behind foreign jobs"
    assert max(touched("unknown")) <= 40
    fill(db, "'zebra'", 1, 1_000, "0")
    # A jump through the index for the second foreign lane; a walk over it would touch a page for each of its jobs.
    assert touched("mine")[0] < 100
