"""`migrate` brings any database to this release: once, whoever else runs it, and never half of a step."""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tenure.contracts import BUILT_IN
from tenure.contracts.declaration import Contract
from tenure.embedded import find_binaries
from tenure.errors import MigrationChanged, SchemaMissing, SchemaTooNew
from tenure.jobs.job import Failure, NewJob
from tenure.postgres.migrate import MigrationReport, migrate, migrations, render_sql
from tenure.postgres.store import Store
from tests.harness import Harness, at_once

pytestmark = pytest.mark.core

_EVERYTHING = """
select 'relation' as kind, n.nspname || '.' || c.relname as name, c.relkind::text || coalesce(pg_get_viewdef(
    case when c.relkind = 'v' then c.oid end), '') as detail
from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname like 'tenure%'
union all select 'constraint', conrelid::regclass || ' ' || conname, pg_get_constraintdef(oid)
from pg_constraint where connamespace = 'tenure'::regnamespace and contype = 'c'
union all select 'contract', name || ' ' || version, digest from tenure.contract
union all select 'migration', name, checksum from tenure.migration
order by 1, 2, 3
"""


def everything(dsn: str) -> list[dict[str, Any]]:
    """Every relation, CHECK, registered contract and applied migration of a database."""
    with Harness(dsn) as db:
        return db.sql(_EVERYTHING)


async def live(dsn: str, contract: str = "standard") -> list[str]:
    """Let one job fail once, then succeed; the states it went through."""
    async with Store.open(dsn) as store:
        made = await store.enqueue(NewJob("walk", contract=contract, queue=f"q_{contract}"))
        for last in (False, True):
            (job,) = await store.claim(contract, [f"q_{contract}"], worker="w")
            await store.start(job.held)
            if last:
                await store.succeed(job.held, {"ok": True})
                break
            await store.fail(job.held, Failure("once", retryable=True))
            with Harness(dsn) as db:
                db.due(made.job_id)
            await store.promote(contract)
        return [event.to_state for event in await store.events(made.job_id)]


def test_fresh_database_gets_everything(empty_dsn: str) -> None:
    report = migrate(empty_dsn)
    assert report.applied == [migration.name for migration in migrations()]
    assert report.registered == [f"{contract.name} {contract.version}" for contract in BUILT_IN.values()]
    views = [f"view tenure_{contract.name}.{view.name}" for contract in BUILT_IN.values() for view in contract.views]
    assert report.rebuilt == ["CHECK on tenure.job", "CHECK on tenure.job_done", "CHECK on tenure.dead_letter", *views]


def test_second_run_does_nothing(dsn: str) -> None:
    before = everything(dsn)
    assert migrate(dsn) == MigrationReport()
    assert everything(dsn) == before


def test_four_at_once_on_a_fresh_database_apply_everything_once(empty_dsn: str) -> None:
    reports = at_once(4, lambda _: migrate(empty_dsn))
    (worked,) = (report for report in reports if report.applied)
    assert [report for report in reports if report is not worked] == [MigrationReport()] * 3
    with Harness(empty_dsn) as db:
        assert db.value("select count(*) from tenure.migration") == len(migrations())
        assert db.value("select count(*) from tenure.contract") == len(BUILT_IN)


def run_by_psql(dsn: str, sql: str) -> None:
    """Execute a script as an operator would."""
    psql = find_binaries() / "psql"
    subprocess.run(
        [psql, "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file=-", dsn],
        input=sql, text=True, check=True, capture_output=True,
    )  # fmt: skip


async def test_printed_sql_makes_a_database_that_works(empty_dsn: str) -> None:
    run_by_psql(empty_dsn, render_sql())
    for contract in BUILT_IN.values():
        assert (await live(empty_dsn, contract.name))[-1] in contract.successes()


def test_migrate_finds_nothing_to_do_after_the_printed_sql(empty_dsn: str, dsn: str) -> None:
    run_by_psql(empty_dsn, render_sql())
    assert everything(empty_dsn) == everything(dsn)
    assert migrate(empty_dsn) == MigrationReport()


def test_printed_grants_give_everything_to_the_owner(empty_dsn: str) -> None:
    run_by_psql(empty_dsn, render_sql(grants=True))
    with Harness(empty_dsn) as db:
        others = (
            "select oid::regclass::text from pg_class where relnamespace::regnamespace::text ~ '^tenure' "
            "and relowner <> 'tenure_owner'::regrole"
        )
        assert db.sql(others) == []
        assert db.value("select proowner::regrole::text from pg_proc where proname = 'extend_ranges'") == "tenure_owner"
    assert migrate(empty_dsn, grants=True).applied == []


def test_database_of_a_newer_release_is_refused(dsn: str, db: Harness) -> None:
    db.sql("insert into tenure.migration (number, name, checksum) values (9999, '9999_later', 'x')")
    before = everything(dsn)
    with pytest.raises(SchemaTooNew, match=r"9999.*Next: upgrade tenure"):
        migrate(dsn, {"errand": errand("1")})
    assert everything(dsn) == before


def test_changed_migration_is_refused(dsn: str, db: Harness) -> None:
    db.sql("update tenure.migration set checksum = 'x' where number = 1")
    before = everything(dsn)
    with pytest.raises(MigrationChanged, match=r"0001_schema.*Next: install the release that made this database"):
        migrate(dsn, {"errand": errand("1")})
    assert everything(dsn) == before


def errand(version: str) -> Contract:
    """A copy of phase27 by another name."""
    return replace(BUILT_IN["phase27"], name="errand", version=version)


async def test_store_on_a_database_without_schema_says_what_to_run(empty_dsn: str) -> None:
    async with Store.open(empty_dsn) as store:
        calls: list[Awaitable[object]] = [store.enqueue(NewJob("walk")), store.claim(worker="w"), store.jobs([1])]
        for call in [*calls, store.events(1), store.extend_ranges(), store.reap("standard")]:
            with pytest.raises(SchemaMissing, match="tenure migrate"):
                await call


def acting_as(dsn: str, role: str) -> str:
    """The same database, in another role."""
    return make_conninfo(dsn, options=f"-c role={role}")


def test_grants_make_three_roles_and_can_be_repeated(dsn: str, db: Harness) -> None:
    migrate(dsn, grants=True)
    migrate(dsn, grants=True)
    roles = db.sql("select rolname, rolcanlogin, rolsuper from pg_roles where rolname like 'tenure\\_%' order by 1")
    assert [tuple(role.values()) for role in roles] == [
        ("tenure_app", False, False),
        ("tenure_owner", False, False),
        ("tenure_read", False, False),
    ]


def test_a_database_that_was_restored_is_migrated_although_its_owner_lost_a_right(dsn: str, db: Harness) -> None:
    migrate(dsn, grants=True)
    name = db.value("select current_database()")
    db.sql(f'revoke create on database "{name}" from tenure_owner')
    assert migrate(dsn).applied == []
    assert db.value("select has_database_privilege('tenure_owner', current_database(), 'create')")


async def test_app_role_runs_a_whole_life_under_every_contract(dsn: str) -> None:
    migrate(dsn, grants=True)
    app = acting_as(dsn, "tenure_app")
    async with Store.open(app) as store:
        for contract in BUILT_IN:
            assert (await live(app, contract)) == (await live(dsn, contract))
            await store.enqueue(NewJob("walk", contract=contract, key=f"k_{contract}"))
            (job,) = await store.claim(contract, worker="w")
            await store.start(job.held)
            await store.fail(job.held, Failure("no", type="PermanentError", retryable=False))
            for upkeep in (store.reap, store.promote, store.settle):
                assert await upkeep(contract) == []
        assert await store.extend_ranges(6) == 2


FORBIDDEN = (
    "delete from tenure.event",
    "delete from tenure.event_0",
    "update tenure.event set actor = 'nobody'",
    "truncate tenure.event",
    "update tenure.job_done set state = 'queued'",
    "delete from tenure.job_done",
    "delete from tenure.contract",
    "delete from tenure.migration",
    "drop table tenure.job",
    "alter table tenure.job drop constraint job_valid",
    "alter domain tenure.valid_job drop constraint job_state",
    "create table tenure.mine (id int)",
)


async def test_app_role_cannot_rewrite_history_nor_change_the_schema(dsn: str) -> None:
    migrate(dsn, grants=True)
    await live(dsn)
    before = everything(dsn)
    with psycopg.connect(acting_as(dsn, "tenure_app"), autocommit=True) as app:
        for change in FORBIDDEN:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                app.execute(change.encode())
    assert everything(dsn) == before


async def test_read_role_reads_every_view_and_writes_nothing(dsn: str, db: Harness) -> None:
    migrate(dsn, grants=True)
    await live(dsn)
    with psycopg.connect(acting_as(dsn, "tenure_read"), autocommit=True) as reader:
        for contract in BUILT_IN.values():
            for view in contract.views:
                reader.execute(f"select * from tenure_{contract.name}.{view.name}".encode())
        assert reader.execute("select state from tenure_standard.jobs").fetchall() == [("succeeded",)]
        tables = db.sql("select tablename from pg_tables where schemaname = 'tenure' order by 1")
        for (table,) in (tuple(row.values()) for row in tables):
            for change in ("delete from", "insert into {} default values --", "drop table", "truncate"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    reader.execute(f"{change.format(f'tenure.{table}')} tenure.{table}".encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.execute("select tenure.extend_ranges(9)")


async def test_not_even_the_owner_deletes_or_rewrites_the_log(dsn: str, db: Harness) -> None:
    await live(dsn)
    before = db.sql("select * from tenure.event")
    for table in ("event", "event_0"):
        for change in (f"delete from tenure.{table}", f"update tenure.{table} set ts = now()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="the log only grows"):
                db.sql(change)
    assert db.sql("select * from tenure.event") == before
    assert any(event["facts"] for event in before)
    db.sql("update tenure.event set facts = null")
    assert db.value("select count(*) from tenure.event where facts is not null") == 0
