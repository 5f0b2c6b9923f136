"""Looking at a job and listing dead letters: of one moment, and by index however full the tables are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tenure.errors import Busy, JobNotFound
from tenure.jobs.job import NewJob
from tenure.postgres import connect, read
from tenure.postgres.connect import engine_dsn
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Plan, statement
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.postgres.test_plans import Planner

_FILL = """
insert into tenure.job (contract, version, state, role, max_attempts, type, due_at, priority)
select 'standard', '1', 'queued', 'ready', 5, 't',
       case when n % 2 = 0 then now() + interval '1 day' when n % 3 = 0 then null else now() - n * interval '1 ms' end,
       case when n % 2 = 0 then 0 else 5 end
from generate_series(1, 20000) as n;
insert into tenure.dead_letter (job_id, contract, tenant_id, type, reason_code, last_error, counter, claims,
                                correlation_id, trace_id, payload, status, failed_at)
select n, case when n % 3 = 0 then 'gate_b2' else 'standard' end, 't' || n % 50, 't', 'operator', '{}', 1, 1, 'c', 't',
       '{}', case when n < 400 then 'open' else 'requeued' end, now()
from generate_series(1, 20000) as n;
"""


@pytest.fixture(params=["never analyzed", "analyzed"])
def planner(request: pytest.FixtureRequest, db: Harness) -> Iterator[Planner]:
    """The engine's planner on full tables, of which it knows all or nothing."""
    db.sql(_FILL)
    if request.param == "analyzed":
        db.sql("analyze tenure.job, tenure.dead_letter")
    with psycopg.connect(engine_dsn(db.dsn), autocommit=True) as engine:
        yield Planner(engine, Registry())


def rows_read(plan: str, table: str) -> int:
    """How many rows of a table, or of one of its indexes, a plan has looked at."""
    read = re.findall(rf"Scan [\w ]*on {table}\b.*?actual rows=([\d.]+) loops=(\d+)", plan)
    assert read, plan
    return round(sum(float(rows) * int(loops) for rows, loops in read))


def test_a_look_counts_its_neighbours_by_index_and_no_further_than_its_bound(planner: Planner, db: Harness) -> None:
    ids = [row["id"] for row in db.sql("select id from tenure.job where priority = 5 order by id")]
    for job_id in (ids[0], ids[len(ids) // 2], ids[-1]):
        asked = statement("read_job_details", {"id": job_id, "bound": 101})
        for plan in planner.plans(asked, "analyze", "timing off", "summary off"):
            assert "Seq Scan on job" not in plan
            assert "Index Scan using job_ready on job" in plan
            # The plan shows the mean of a lane, which older servers round.
            assert rows_read(plan, "job") <= 101 + 10, plan
            assert "Rows Removed by Filter" not in plan, plan


def test_one_tenants_open_letters_are_walked_by_their_own_index(planner: Planner) -> None:
    mine = {"contract": "standard", "tenant": "t7", "status": "open", "limit": 51}
    for plan in planner.plans(statement("list_dead_letters", mine), "analyze", "timing off", "summary off"):
        assert "Scan Backward using dead_letter_open on dead_letter" in plan
        assert rows_read(plan, "dead_letter") <= 2 * 51, plan


def test_a_page_of_letters_is_walked_in_the_order_of_their_ids(planner: Planner) -> None:
    ways: list[dict[str, Any]] = [{}, {"after": 9000}, {"contract": "gate_b2"}, {"status": "requeued"}]
    for which in ways:
        asked = statement("list_dead_letters", {"limit": 51, **which})
        for plan in planner.plans(asked, "analyze", "timing off", "summary off"):
            assert "Scan Backward using dead_letter_pkey on dead_letter" in plan
            assert "Seq Scan" not in plan
            # Several processes may look at once, each at a page; nobody looks at all.
            assert rows_read(plan, "dead_letter") <= 8 * 51, plan


async def test_a_look_is_of_one_moment(store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = (await store.enqueue(NewJob("t"))).job_id

    read_details = read._job_details

    def meddled(job_id: int, registry: Registry) -> Plan[Any]:
        """The same plan, while the job goes away right after its row was read."""
        plan = read_details(job_id, registry)
        answer = yield next(plan)
        db.sql("delete from tenure.job where id = %s", job_id)
        while True:
            try:
                step = plan.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = yield step

    monkeypatch.setattr(read, "_job_details", meddled)
    seen = await store.details(job_id)
    assert seen.record is not None
    assert (seen.job.id, seen.record["id"], seen.situation.ahead) == (job_id, str(job_id), 0)
    with pytest.raises(JobNotFound):
        await store.details(job_id)


async def test_a_look_writes_nothing_and_says_when_it_cannot_read(
    store: Store, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = (await store.enqueue(NewJob("t"))).job_id
    before = db.fingerprint(job_id)
    await store.details(job_id)
    assert db.fingerprint(job_id) == before
    monkeypatch.setattr(connect, "LOCK_TIMEOUT_MS", 50)
    async with Store.open(db.dsn) as hasty:
        with db.connection.transaction():
            db.sql("lock table tenure.job")
            with pytest.raises(Busy):
                await hasty.details(job_id)
