"""How much the statements about wake-ups and fires read of tables that are full of rows for later."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tenure.postgres.connect import engine_dsn
from tenure.postgres.statement import statement
from tests.harness import Harness

pytestmark = pytest.mark.pristine  # dead rows and statistics of others would count

ROWS = 30_000
#: Pages of the whole table and of each of its indexes: more than a hundred.
MOST_PAGES = 60

#: Wake-ups of two queues that are not due, and published ones that are not checked and not deleted yet.
_WAKEUPS = f"""
insert into tenure.published_queue (queue, url, fill_end)
values ('mail', 'https://queue.example/1', 0), ('reports', 'https://queue.example/2', 0);
insert into tenure.outbox (job_id, contract, queue, publish_at, due_at, published_at, check_at)
select n, 'dispatcher', case when n % 4 < 2 then 'mail' else 'reports' end, at, at, published, check_at
from (
    select n, now() + interval '1 day' as at, case when n % 2 = 0 then now() end as published,
           case when n % 2 = 0 then now() + interval '1 day' end as check_at
    from generate_series(1, {ROWS}) as n
) as made;
"""
#: Ready jobs, one for each wake-up.
_JOBS = f"""
insert into tenure.job (contract, version, state, role, max_attempts, type, queue)
select 'dispatcher', '1', 'Queued', 'ready', 5, 't', 'mail' from generate_series(1, {ROWS})
"""
#: Fires that are kept, each with a newer one.
_FIRES = f"""
insert into tenure.schedule (application, name, tenant_id, fingerprint, declaration, in_code)
values ('mail', 'often', 'default', '', '{{}}', false);
insert into tenure.schedule_fire (schedule_id, fire_at, last_at, at, result)
select id, now() - n * interval '1 second', now(), now(), 'skipped'
from tenure.schedule, generate_series(1, {ROWS}) as n;
"""


@pytest.fixture(params=["never analyzed", "analyzed"])
def full(request: pytest.FixtureRequest, db: Harness) -> Harness:
    """An outbox that is full of rows for later, of which the planner knows all or nothing."""
    db.sql("alter table tenure.outbox set (autovacuum_enabled = false)")
    db.sql(_WAKEUPS)
    if request.param == "analyzed":
        db.sql("analyze tenure.outbox")
    return db


@pytest.fixture
def engine(full: Harness) -> Iterator[psycopg.Connection[Any]]:
    """A connection with the engine's own planner settings."""
    with psycopg.connect(engine_dsn(full.dsn), autocommit=True) as connection:
        yield connection


def pages(engine: psycopg.Connection[Any], name: str, **values: Any) -> int:
    """The most pages that a statement reads, with a plan for these values and for any; nothing that it does stays."""
    asked, most = statement(name, values), 0
    given = sql.SQL(", ").join(map(sql.Literal, asked.values))
    for mode in ("custom", "generic"):
        with engine.transaction(force_rollback=True):
            engine.execute(f"set local plan_cache_mode = force_{mode}_plan".encode())
            engine.execute(b"prepare asked as " + asked.query.text.encode())
            explain = sql.SQL("explain (analyze, buffers, format json) execute asked ({})").format(given)
            ((found,),) = engine.execute(explain).fetchall()
            engine.execute("deallocate asked")
        plan = found[0]["Plan"]
        most = max(most, plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    return most


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("take_wakeups", {"queues": ["mail", "reports", "none"], "limit": 100, "hold_s": 60.0}),
        ("renew_wakeups", {"check_ms": 60_000, "limit": 1_000}),
        ("delete_old_wakeups", {"age_s": 3_600.0, "limit": 10_000}),
        ("delete_unpublished_wakeups", {"limit": 10_000}),
        ("list_published_queues", {"bound": 10_000}),
    ],
)
def test_wake_ups_for_later_are_not_read(engine: psycopg.Connection[Any], name: str, values: dict[str, Any]) -> None:
    assert pages(engine, name, **values) < MOST_PAGES


def test_due_wake_ups_of_a_queue_are_found_among_those_of_others(
    engine: psycopg.Connection[Any], full: Harness
) -> None:
    full.sql("update tenure.outbox set publish_at = now() - interval '1 day' where queue = 'reports' and id < 20000")
    full.sql("update tenure.outbox set publish_at = now() where id = 1")
    assert pages(engine, "take_wakeups", queues=["mail"], limit=100, hold_s=60.0) < MOST_PAGES


def test_no_other_job_is_read_to_see_whether_a_few_still_wait(engine: psycopg.Connection[Any], full: Harness) -> None:
    full.sql("alter table tenure.job set (autovacuum_enabled = false)")
    full.sql("analyze tenure.job, tenure.queue, tenure.published_queue")  # empty, as far as the planner knows
    full.sql(_JOBS)
    full.sql("update tenure.outbox set check_at = now() where id in (2, 1002, 2002)")
    assert pages(engine, "renew_wakeups", check_ms=60_000, limit=1_000) < 3 * MOST_PAGES


def test_fires_that_are_kept_are_not_read(engine: psycopg.Connection[Any], full: Harness) -> None:
    full.sql(_FIRES)
    assert pages(engine, "delete_old_fires", keep_sec=3_600.0, limit=1_000) < MOST_PAGES
