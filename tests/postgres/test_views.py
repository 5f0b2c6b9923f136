"""Every contract is seen in its document's own words: views with exactly the declared columns, over all its rows."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
import pytest

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import View
from tenure.contracts.view_fields import FIELDS
from tenure.jobs.job import NewJob
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tenure.postgres.views import EVENT, JOB, LETTER, OUTBOX, schema
from tests.harness import Harness

pytestmark = pytest.mark.core

SQL: Mapping[str, Mapping[str, str]] = {
    "jobs": JOB,
    "finished": JOB,
    "events": EVENT,
    "letters": LETTER,
    "outbox": OUTBOX,
}


def test_every_field_has_its_sql_and_every_sql_is_a_field() -> None:
    assert {rows: set(fields) for rows, fields in FIELDS.items()} == {rows: set(fields) for rows, fields in SQL.items()}


def columns(db: Harness, schema_name: str) -> dict[str, list[str]]:
    """The views of a schema with their columns, in order."""
    found: dict[str, list[str]] = {}
    for row in db.sql(
        "select table_name, column_name from information_schema.columns where table_schema = %s "
        "order by ordinal_position",
        schema_name,
    ):
        found.setdefault(row["table_name"], []).append(row["column_name"])
    return found


def test_every_view_has_exactly_the_declared_columns(db: Harness) -> None:
    for contract in BUILT_IN.values():
        declared = {view.name: list(view.columns) for view in contract.views}
        assert columns(db, schema(contract)) == declared, f"views of {contract.name}"


def test_document_names_its_relations(db: Harness) -> None:
    assert {name: sorted(columns(db, f"tenure_{name}")) for name in BUILT_IN} == {
        "phase27": ["task_events", "tasks"],
        "dispatcher": ["outbox", "tasks"],
        "reliability": ["dead_letters", "job_events", "jobs"],
        "simple": ["task_results", "tasks"],
        "gate_b2": ["dlq_items", "jobs", "replay_records"],
        "standard": ["dead_letters", "events", "jobs"],
    }


def test_every_view_runs_with_its_readers_rights(db: Harness) -> None:
    views = db.sql("select oid::regclass::text as name, reloptions from pg_class "
                   "where relkind = 'v' and relnamespace::regnamespace::text like 'tenure%'")  # fmt: skip
    of_tables = {
        "tenure.live_worker",
        "tenure.move_count",
        "tenure.dataset_current_row",
        "tenure.dataset_current_pointer",
    }
    assert {view["name"] for view in views if view["name"].startswith("tenure.")} == of_tables
    assert len(views) == len(of_tables) + sum(len(contract.views) for contract in BUILT_IN.values())
    assert {view["name"]: view["reloptions"] for view in views} == {
        view["name"]: ["security_invoker=true"] for view in views
    }


async def test_reader_of_a_view_alone_does_not_see_the_tables(store: Store, db: Harness) -> None:
    await store.enqueue(NewJob("t"))
    # A role that every cluster has and that may log in nowhere.
    db.sql("grant usage on schema tenure_standard to pg_signal_backend")
    db.sql("grant select on tenure_standard.jobs to pg_signal_backend")
    db.sql("set role pg_signal_backend")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="table job"):
        db.sql("select * from tenure_standard.jobs")


def id_column(view: View) -> str:
    """The column of a view that shows the job's id."""
    wanted = "id" if view.rows in ("jobs", "finished") else "job_id"
    return next(column for column, field in view.columns.items() if field == wanted)


async def test_views_of_jobs_show_live_and_finished_rows(store: Store, db: Harness) -> None:
    for contract in BUILT_IN.values():
        ids = [(await store.enqueue(NewJob("t", contract=contract.name))).job_id for _ in range(2)]
        (job,) = await store.claim(contract.name, worker="w")
        await store.start(job.held)
        await store.succeed(job.held, {"ok": 1})
        assert job.id == ids[0]
        for view in contract.views:
            expected = {"jobs": ids, "finished": ids[:1], "events": ids[:1], "letters": [], "outbox": []}[view.rows]
            shown = db.sql(
                f'select distinct "{id_column(view)}" as id from {schema(contract)}."{view.name}" order by 1'
            )
            if view.rows != "outbox":  # wake-ups are not written by the kernel alone
                assert [row["id"] for row in shown] == expected, f"{contract.name}.{view.name}"


async def test_views_show_no_other_contracts_rows(store: Store, db: Harness) -> None:
    for contract in BUILT_IN.values():
        await store.enqueue(NewJob("t", contract=contract.name))
        await store.claim(contract.name, worker="w")
    for contract in BUILT_IN.values():
        for view in contract.views:
            rows = db.value(f'select count(*) from {schema(contract)}."{view.name}"')
            assert rows <= 1, f"{contract.name}.{view.name} shows {rows} rows of one job"


def test_view_that_was_changed_or_dropped_by_hand_is_made_again(db: Harness, dsn: str) -> None:
    before = columns(db, "tenure_phase27")
    db.sql("drop view tenure_phase27.tasks")
    db.sql("comment on view tenure_phase27.task_events is 'mine'")
    assert migrate(dsn).rebuilt == ["view tenure_phase27.tasks", "view tenure_phase27.task_events"]
    assert columns(db, "tenure_phase27") == before
