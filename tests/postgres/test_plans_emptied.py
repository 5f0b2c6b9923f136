"""A plan that was made while the table of jobs was empty, and kept, finds each row by its id when it is full again."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest

from tenure.contracts import BUILT_IN
from tenure.jobs.job import Held
from tenure.postgres.bound_contract import BoundContract
from tenure.postgres.connect import engine_dsn
from tenure.postgres.move import Batch
from tenure.postgres.registry import Registry
from tenure.postgres.statement import Statement, run_sync, statement
from tests.harness import Harness
from tests.postgres.test_plans import _FILL, TOKEN, Planner

pytestmark = pytest.mark.pristine  # dead rows and statistics of others would count


@pytest.fixture
def emptied(db: Harness) -> Iterator[Planner]:
    """A table that was full, was emptied, and of which the planner was told so."""
    db.sql(_FILL)
    db.sql("delete from tenure.job")
    db.sql("vacuum analyze tenure.job")
    assert db.value("select reltuples from pg_class where oid = 'tenure.job'::regclass") == 0
    registry = Registry()
    with psycopg.connect(engine_dsn(db.dsn), autocommit=True) as engine:
        run_sync(engine, registry.load())
        yield Planner(engine, registry)


def asked_for(ids: list[int]) -> dict[str, Statement]:
    """Every statement that moves or notes jobs by their ids, for these."""
    machine = BoundContract(BUILT_IN["standard"])
    assert machine.success is not None
    proofs = [Held(job_id, 1, TOKEN, "standard", "1") for job_id in ids]
    batch, turn = Batch(machine, "succeed", ids, proofs), range(len(ids))
    error = '{"type": "Exception", "message": "no"}'
    failed = Batch(machine, "fail", ids, proofs, verdicts=["retry"] * len(ids), errors=[error] * len(ids))
    success = {**machine.success, **batch.leases(turn), "results": [None] * len(ids)}
    return {
        "succeed": statement("succeed", success),
        "succeed_in_one_pass": statement("succeed_in_one_pass", success),
        "finish": statement("finish", {**machine.moves["succeed"], "fenced": True, **batch.values(turn)}),
        "retry": statement("finish", {**machine.moves["fail"], "fenced": True, **failed.values(turn)}),
        "note": statement("note", {**machine.notes["heartbeat"], **batch.values(turn)}, skip_locked=True),
        "compensate": statement(
            "compensate", {**machine.claim, **failed.values(turn), "triggers": ["exhaust"] * len(ids)},
        ),
        "effect": statement(
            "record_effect",
            {**machine.claim, "id": ids[0], "claims": 1, "token": TOKEN, "node": "charge", "compensable": True},
        ),
    }  # fmt: skip


@pytest.mark.parametrize("count", [1, 100])
def test_no_plan_that_was_made_for_an_empty_table_walks_the_whole_of_it(emptied: Planner, count: int) -> None:
    for name, asked in asked_for(list(range(1, count + 1))).items():
        for plan in emptied.plans(asked):
            assert "Seq Scan on job" not in plan, (name, plan)
            lines = plan.splitlines()
            conditions = [
                lines[n + 1] for n, line in enumerate(lines) if re.search(r"Index.* Scan using \w+ on job\b", line)
            ]
            assert conditions, (name, plan)
            assert all("Index Cond: (id = " in line for line in conditions), (name, plan)
