"""The engine's statements find their rows by index, whatever the planner knows of the table.

The table here is neither empty nor tidy: 20,000 rows, one in twenty held, urgent jobs that are not due before the ones
that are. Statistics are missing or fresh, plans are made for the values or for any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from tenure.contracts import BUILT_IN
from tenure.errors import PermanentError
from tenure.jobs.claim_cursor import MAX_CLAIM_BYTES
from tenure.jobs.job import Held, NewJob
from tenure.postgres import claim
from tenure.postgres.bound_contract import BoundContract, move_statement
from tenure.postgres.connect import engine_dsn
from tenure.postgres.move import Batch
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Statement, run_sync, statement
from tenure.postgres.store import Store
from tests.harness import Harness

pytestmark = pytest.mark.pristine  # dead rows and statistics of others would count

TOKEN = UUID("11111111-1111-4111-8111-111111111111")
ROWS = 20_000

_FILL = f"""
alter table tenure.job set (autovacuum_enabled = false);
insert into tenure.job (contract, version, state, role, max_attempts, type, due_at, priority, lease_token,
                        lease_expires_at, lease_owner, claims, seq)
select contract, '1', case when held then 'running' else 'queued' end, case when held then 'active' else 'ready' end, 5,
       't', now() + interval '1 day' * case when urgent then 1 else -1 end, case when urgent then 0 else 5 end,
       case when held then '{TOKEN}'::uuid end, case when held then now() + interval '1 hour' end,
       case when held then 'w' end, held::integer, held::integer
from (select n % 20 = 0 as held, n % 2 = 0 as urgent, case when n % 3 = 0 then 'phase27' else 'standard' end as contract
      from generate_series(1, {ROWS}) as n) as made;
"""


@dataclass
class Planner:
    """An engine's connection that explains instead of answering."""

    engine: psycopg.Connection[Any]
    registry: Registry

    def plans(self, asked: Statement, *options: str) -> list[str]:
        """The plans of a statement, for these values and for any."""
        return [self.explain(asked, f"force_{kind}_plan", *options) for kind in ("custom", "generic")]

    def explain(self, asked: Statement, mode: str, *options: str) -> str:
        """One plan of a statement; nothing that it does stays."""
        values = sql.SQL(", ").join(map(sql.Literal, asked.values))
        how = sql.SQL(", ").join(map(sql.SQL, options or ("costs off",)))
        with self.engine.transaction(force_rollback=True):
            self.engine.execute(f"set local plan_cache_mode = {mode}".encode())
            self.engine.execute(b"prepare asked as " + asked.query.text.encode())
            given = sql.SQL("({})").format(values) if asked.values else sql.SQL("")
            rows = self.engine.execute(sql.SQL("explain ({}) execute asked {}").format(how, given)).fetchall()
            self.engine.execute("deallocate asked")
        return "\n".join(row[0] for row in rows)

    def claim(self, contract: str, limit: int, types: list[str] | None = None, *, is_whole: bool = False) -> Statement:
        """A claim by a worker; `is_whole`: not by the short statement."""
        machine = self.registry.find(contract)
        assert machine is not None
        taking = {
            "claim_key": uuid4(),
            "owner": "w",
            "lease_ms": 30_000,
            **claim.lanes([machine], ["default"], types),
            "limit": limit,
            "positions": {},
            "heaviest": MAX_CLAIM_BYTES,
        }
        if machine.plain_claim is not None and not is_whole:
            return statement(claim.PLAIN, {**machine.claim, **machine.plain_claim, **taking})
        return statement(claim.claim_statement(machine, None), {**machine.claim, **taking})

    def move(self, verb: str, ids: list[int]) -> Statement:
        """A holder's move, or upkeep's."""
        machine = self.registry.find("standard")
        assert machine is not None
        batch = Batch(machine, verb, ids, [Held(job_id, 1, TOKEN, "standard", "1") for job_id in ids])
        name = move_statement(verb, fenced=verb != "expire")
        return statement(name, {**machine.moves[verb], **batch.values(range(len(ids)))})

    def claims(self, limit: int) -> list[Statement]:
        """A claim under `standard` by each of the two statements."""
        return [self.claim("standard", limit, is_whole=is_whole) for is_whole in (False, True)]

    def succeed(self, ids: list[int], name: str) -> Statement:
        """The short way to a good end, by one of its statements."""
        machine = self.registry.find("standard")
        assert machine is not None
        assert machine.success is not None
        batch = Batch(machine, "succeed", ids, [Held(job_id, 1, TOKEN, "standard", "1") for job_id in ids])
        return statement(name, {**machine.success, **batch.leases(range(len(ids))), "results": [None] * len(ids)})

    def upkeep(self, picker: str, **values: Any) -> Statement:
        """What upkeep looks for."""
        machine = self.registry.find("standard")
        assert machine is not None
        return statement(picker, {**machine.claim, "limit": 500, **values})


@pytest.fixture(params=["never analyzed", "analyzed"])
def full(request: pytest.FixtureRequest, db: Harness) -> Harness:
    """A full table, of which the planner knows all or nothing."""
    db.sql(_FILL)
    if request.param == "analyzed":
        db.sql("analyze tenure.job")
    assert (db.value("select count(*) from pg_stats where tablename = 'job'") > 0) == (request.param == "analyzed")
    return db


@pytest.fixture
def planner(full: Harness) -> Iterator[Planner]:
    """The engine's own planner settings on a full table."""
    registry = Registry()
    with psycopg.connect(engine_dsn(full.dsn), autocommit=True) as engine:
        run_sync(engine, registry.load())
        yield Planner(engine, registry)


def scans(plan: str) -> set[str]:
    """How a plan reads the table of live jobs; the rows that a move found by their place count as no reading."""
    return set(re.findall(r"(?:->|^)\s*(\w[\w ]*?) on job\b", plan, re.MULTILINE)) - {"Update", "Delete", "Tid Scan"}


def held(db: Harness) -> list[int]:
    """Jobs that are held, in order."""
    rows = db.sql("select id from tenure.job where role = 'active' and contract = 'standard' order by id limit 100")
    return [row["id"] for row in rows]


def test_claim_walks_the_ready_index(planner: Planner) -> None:
    for claims in (planner.claims, lambda limit: [planner.claim("phase27", limit)]):
        for plan in [plan for limit in (1, 500) for asked in claims(limit) for plan in planner.plans(asked)]:
            assert "Seq Scan on job" not in plan
            assert {"Index Scan using job_ready", "Index Scan using job_held"} >= scans(plan), plan
            assert "Index Scan using job_ready on job" in plan


def test_moves_find_their_rows_by_id(planner: Planner, full: Harness) -> None:
    short = ("succeed", "succeed_in_one_pass")
    for verb in (*(f"by {name}.sql" for name in short), "succeed", "fail", "expire"):
        for ids in (held(full)[:1], held(full)):
            name = verb.removeprefix("by ").removesuffix(".sql") if verb.startswith("by ") else None
            for plan in planner.plans(planner.succeed(ids, name) if name else planner.move(verb, ids)):
                assert "Seq Scan on job" not in plan
                assert scans(plan) == {"Index Scan using job_pkey"}, plan


def test_upkeep_walks_the_small_sets(planner: Planner) -> None:
    for asked, index in (
        (planner.upkeep("find_expired"), "job_held"),
        (planner.upkeep("find_expired", queues=["default"]), "job_held"),
        (planner.upkeep("find_settling"), "job_held"),
        (planner.upkeep("find_promotable"), "job_waiting"),
    ):
        for plan in planner.plans(asked):
            assert scans(plan) == {f"Index Scan using {index}"}, plan
            assert "Sort" not in plan


def test_counting_queues_walks_the_small_sets_and_short_ranges(planner: Planner) -> None:
    for plan in planner.plans(statement("list_queues", {"bound": 10_000, "rows": 60_000, "queues": 1_000})):
        assert "Seq Scan on job" not in plan
        indexes = {found for scan in scans(plan) for found in re.findall(r"using (\w+)", scan)}
        assert indexes == {"job_ready", "job_held", "job_waiting", "job_quarantined"}, plan


def test_a_claim_looks_once_for_paused_queues(planner: Planner, full: Harness) -> None:
    full.sql("insert into tenure.queue (name, paused_at, paused_by) values ('mail', now(), 'ada')")
    options = ("costs off", "analyze", "timing off", "summary off")
    for plan in [plan for asked in planner.claims(10) for plan in planner.plans(asked, *options)]:
        (loops,) = re.findall(r"on queue \(actual rows=[\d.]+ loops=(\d+)\)", plan)
        assert loops == "1", plan


def test_claim_reads_no_more_rows_than_it_takes(planner: Planner) -> None:
    options = ("costs off", "analyze", "timing off", "summary off")
    for plan in [plan for asked in planner.claims(10) for plan in planner.plans(asked, *options)]:
        read = re.findall(r"Index Scan using job_ready on job.*?actual rows=([\d.]+) loops=(\d+)", plan)
        # The plan shows the mean of a lane, which older servers round.
        assert 1 <= sum(float(rows) * int(loops) for rows, loops in read) <= 20, plan
        # Ten thousand urgent jobs that are not due are not looked at.
        assert all(int(count) <= 10 for count in re.findall(r"Rows Removed by Filter: (\d+)", plan)), plan


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("limit", [1, 1_000])
def test_a_plan_for_any_claim_looks_no_dearer_than_one_for_this_claim(
    planner: Planner, limit: int, is_whole: bool
) -> None:
    """Else PostgreSQL plans every claim anew, which takes longer than the claim."""
    planner.engine.execute("update pg_class set reltuples = 100 * reltuples where oid = 'tenure.job'::regclass")
    asked = planner.claim("standard", limit, is_whole=is_whole)
    custom, generic = (
        float(re.findall(r"cost=[\d.]+\.\.([\d.]+)", planner.explain(asked, f"force_{kind}_plan", "costs on"))[0])
        for kind in ("custom", "generic")
    )
    assert generic <= custom + 25


SHORT_WAY = [name for name, contract in BUILT_IN.items() if BoundContract(contract).success is not None]


@pytest.mark.parametrize(
    ("contract", "statement"),
    [(name, one) for name in BUILT_IN for one in ("finish", "claim", "note_skip_locked")]
    + [(name, "succeed_in_one_pass") for name in SHORT_WAY],
)
async def test_what_moves_a_job_is_not_planned_anew_each_time(dsn: str, contract: str, statement: str) -> None:
    bound = BoundContract(BUILT_IN[contract])
    claim_name = claim.PLAIN if bound.plain_claim is not None else claim.claim_statement(bound, None)
    name = claim_name if statement == "claim" else statement
    async with Store.open(dsn, connections=1) as store:
        for _ in range(12):
            await store.enqueue(NewJob("t", contract=contract))
            (job,) = await store.claim(contract, worker="w", limit=50)
            await store.start(job.held)
            await store.heartbeat(job.held)
            await (store.fail(job.held, PermanentError("no")) if statement == "finish" else store.succeed(job.held))
        async with store._engine._calls.pool.connection() as connection:
            cursor = await connection.execute(
                "select custom_plans, generic_plans from pg_prepared_statements where statement like %s",
                (f"%tenure: {name} %",),
            )
            ((custom, generic),) = await cursor.fetchall()
    assert custom <= 5, "a plan costs more than the move: PostgreSQL must keep the one it made"
    assert generic > 0
