"""The statements of operations on many items read about as many rows as their batch has, whatever the planner knows.

There are 20,000 dead letters, as many finished jobs, and as many items of an operation, half of which are done. The
statistics are missing, fresh, or of the time when the tables were empty. With a statement that reads all items for each
batch, an operation on 100,000 takes many minutes instead of seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tenure.postgres.connect import engine_dsn
from tenure.postgres.search import SCAN_DOCUMENTS
from tenure.postgres.statement import query, statement
from tests.harness import Harness

pytestmark = pytest.mark.pristine  # dead rows and statistics of others would count

ROWS, BATCH = 20_000, 500

_FILL = f"""
alter table tenure.dead_letter disable trigger note_dead_letter;
insert into tenure.dead_letter (job_id, contract, tenant_id, type, reason_code, last_error, counter, claims,
                                correlation_id, trace_id, payload, failed_at)
select n, 'gate_b2', 'acme', 't', 'fatal', '{{}}', 1, 1, 'c', 't', '{{}}', now()
from generate_series(1, {ROWS}) as n;
insert into tenure.job_done (id, contract, version, state, role, max_attempts, type, created_at, updated_at,
                             finished_at)
select n, 'standard', '1', 'succeeded', 'done', 5, 't', now(), now(), now()
from generate_series({ROWS} + 1, 2 * {ROWS}) as n;
insert into tenure.dataset_pin (job_id, dataset_id, generation_id, writes)
select n, 1, n, false from generate_series(2 * {ROWS} + 1, 3 * {ROWS}) as n;
insert into tenure.rerun (job_id, as_job_id, actor)
select 3 * {ROWS} + n, 4 * {ROWS} + n, 'ada' from generate_series(1, {ROWS}) as n;
insert into tenure.operation_item (operation_id, item_id, seen, state)
select 1, n, 'open', case when n <= {ROWS} / 2 then 'done' else 'waiting' end from generate_series(1, {ROWS}) as n;
"""
_TABLES = ("dead_letter", "job_done", "operation_item", "dataset_pin", "rerun")

_FIRST = ROWS // 2 + 1
_ITEMS = list(range(_FIRST, _FIRST + BATCH))
_NEW: dict[str, Any] = {
    "version": "1", "state": "queued", "role": "ready", "counter": 0, "actor": "ada", "max_bytes": 1_000_000,
}  # fmt: skip
_SEARCH: dict[str, Any] = {"after": ROWS * 3, "limit": BATCH, "scan": SCAN_DOCUMENTS, "with_documents": False}
#: What is run, and the rows that one item of the batch may read: some statements look at it twice.
_STATEMENTS: dict[str, tuple[dict[str, Any], int]] = {
    "search_dead_letters": ({**_SEARCH, "status": "open", "type": "t"}, 3),
    "take_operation_items": ({"id": 1, "after": 0, "limit": BATCH}, 1),
    "end_operation_items": ({"id": 1, "ids": _ITEMS, "made": _ITEMS, "codes": [None] * BATCH, "whys": [None] * BATCH},
                            1),
    "lock_letters_to_change": ({"ids": _ITEMS}, 1),
    "requeue_dead_letter": ({**_NEW, "ids": _ITEMS}, 2),
    "discard_dead_letter": ({"ids": _ITEMS, "person": "ada", "person_key": "ada", "asks": True, "reason": "r",
                             "reviewers": 2}, 2),
    "find_reruns": ({"ids": [3 * ROWS + item for item in _ITEMS]}, 1),
    "find_newest_runs": ({"ids": [3 * ROWS + item for item in _ITEMS]}, 1),
    "rerun_job": ({**_NEW, "ids": [ROWS + item for item in _ITEMS]}, 1),
}  # fmt: skip


@pytest.fixture(params=["never analyzed", "analyzed", "analyzed when empty"])
def engine(request: pytest.FixtureRequest, db: Harness) -> Iterator[psycopg.Connection[Any]]:
    """The engine's own planner settings on full tables, of which the planner knows all, nothing, or what was."""
    for table in _TABLES:
        if table != "job_done":  # its partitions are what is stored
            db.sql(f"alter table tenure.{table} set (autovacuum_enabled = false)")
        if request.param == "analyzed when empty":
            db.sql(f"vacuum analyze tenure.{table}")
    db.sql(_FILL)
    if request.param == "analyzed":
        for table in _TABLES:
            db.sql(f"analyze tenure.{table}")
    with psycopg.connect(engine_dsn(db.dsn), autocommit=True) as connection:
        yield connection


def rows_read(plan: str) -> int:
    """How many rows of the big tables a plan has read, with those that it did not want."""
    total, mine, loops = 0.0, False, 1
    for line in plan.splitlines():
        if found := re.search(r"(?:->|^)\s*(.*) \((?:actual rows=([\d.]+) loops=(\d+)|never executed)\)", line):
            mine = re.search(rf"Scan.* on ({'|'.join(_TABLES)})\w*\b", found[1]) is not None
            loops = int(found[3] or 0)
            total += float(found[2] or 0) * loops if mine else 0
        elif mine and (removed := re.search(r"Rows Removed by \w[\w ]*: ([\d.]+)", line)):
            total += float(removed[1]) * loops
    return round(total)


def test_a_batch_reads_the_rows_of_its_items_alone(engine: psycopg.Connection[Any]) -> None:
    for name, (values, times) in _STATEMENTS.items():
        asked = statement(name, {**dict.fromkeys(query(name).names), **values})
        given = sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, asked.values)))
        explain = sql.SQL("explain (analyze, costs off, timing off, summary off) execute asked {}").format(given)
        for mode in ("custom", "generic"):
            with engine.transaction(force_rollback=True):
                engine.execute(f"set local plan_cache_mode = force_{mode}_plan".encode())
                engine.execute(b"prepare asked as " + asked.query.text.encode())
                plan = "\n".join(row[0] for row in engine.execute(explain))
                engine.execute("deallocate asked")
            assert BATCH <= rows_read(plan) <= times * BATCH, f"{name}, {mode} plan:\n{plan}"
