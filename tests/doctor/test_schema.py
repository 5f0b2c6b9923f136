"""Doctor finds what is wrong with the schema: missing, too new, without rights, indexes, guards or partitions."""

from __future__ import annotations

from uuid import uuid4

import pytest
from psycopg.conninfo import make_conninfo

from tenure.jobs.job import NewJob
from tenure.postgres.doctor.limits import Limits
from tenure.postgres.store import Store
from tests.doctor.conftest import Examined, look
from tests.harness import Harness

#: Statements that stage a fault, with the finding and a part of its text.
STAGED = {
    "index-missing": ("drop index tenure.job_held", "job_held"),
    "index-invalid": (
        "update pg_index set indisvalid = false where indexrelid = 'tenure.key_job'::regclass",
        "key_job",
    ),
    "log-unprotected": ("alter table tenure.event disable trigger keep_the_log", "keep_the_log"),
    "unlogged-table": ("alter table tenure.claim set unlogged", "claim"),
    "autovacuum-off": ("alter table tenure.job set (autovacuum_enabled = off)", "table job"),
    "partition-missing": ("alter table tenure.event detach partition tenure.event_1", "from 1,048,576 on"),
    "ranges-running-out": ("select setval('tenure.job_id_seq', 5242776)", "103 job ids are left, and 0 empty"),
    "migration-changed": ("update tenure.migration set checksum = 'x' where number = 2", "0002_outbox"),
    "contract-not-registered": ("delete from tenure.contract where name = 'simple'", "contract simple"),
    "contract-unreadable": ("update tenure.contract set declaration = '{}' where name = 'simple'", "contract simple"),
}


async def test_a_fresh_database_has_nothing_wrong_but_the_servers_fsync(examined: Examined) -> None:
    assert set(await examined()) <= {"fsync-off", "too-few-connections"}  # as tests have it


@pytest.mark.pristine
@pytest.mark.parametrize("code", STAGED)
async def test_a_damaged_schema_is_found(examined: Examined, db: Harness, code: str) -> None:
    change, named = STAGED[code]
    assert code not in await examined()
    db.sql(change)
    found = (await examined())[code]
    assert named in found.summary


async def test_a_database_without_schema_is_found(empty_dsn: str) -> None:
    found = await look(empty_dsn)
    assert found["schema-missing"].next == "tenure migrate"
    assert "check-failed" not in found


@pytest.mark.pristine
async def test_missing_and_newer_migrations_are_found(examined: Examined, db: Harness) -> None:
    db.sql("insert into tenure.migration values (9999, '9999_later', 'x', now())")
    found = await examined()
    assert found["database-newer"].next == "upgrade tenure here"
    db.sql("delete from tenure.migration where number in (7, 8)")
    found = await examined()
    assert "0007_flows, 0008_datasets" in found["migration-missing"].summary
    assert found["migration-missing"].next == "tenure migrate"
    assert "check-failed" not in found, "the tables may be missing too"


async def test_jobs_of_a_version_that_is_not_registered_are_found(
    examined: Examined, store: Store, db: Harness
) -> None:
    made = await store.enqueue(NewJob("t"))
    assert "contract-unknown" not in await examined()
    for role in ("ready", "waiting", "active"):
        db.sql("update tenure.job set version = '99', seq = 1, role = %s", role)
        findings = await examined()
        assert "contract-unknown" in findings, role
        found = findings["contract-unknown"]
        assert f"standard 99, which is not registered: no process can move job {made.job_id}" in found.summary


async def test_a_role_without_rights_is_found(dsn: str, db: Harness) -> None:
    name = f"person_{uuid4().hex[:12]}"
    db.sql(f"create role {name} login password 'x'")
    own = make_conninfo(dsn, user=name, password="x")
    try:
        assert "may not use the schema" in (await look(own))["rights-missing"].summary
        db.sql(f"grant usage on schema tenure to {name}; grant select on all tables in schema tenure to {name}")
        db.sql(f"grant insert, update on all tables in schema tenure to {name}")
        found = await look(own)
        assert found["rights-missing"].details["rights"]["job"] == ["delete"]
        assert "tenure migrate --grants" in found["rights-missing"].next
        assert found["not-owner"].severity == "note"
        assert found["sessions-hidden"].next == f"grant pg_monitor to {name}"
    finally:
        db.sql(f"drop owned by {name}; drop role {name}")


@pytest.mark.pristine
async def test_a_half_detached_partition_is_found(examined: Examined, db: Harness) -> None:
    db.sql("update pg_inherits set inhdetachpending = true where inhrelid = 'tenure.event_0'::regclass")
    assert (await examined())["detach-unfinished"].details["partitions"] == 1


async def test_a_lock_table_that_is_too_small_for_all_partitions_is_found(examined: Examined) -> None:
    found = await examined(Limits(lock_share=0.001))
    assert "alter system set max_locks_per_transaction" in found["locks-too-few"].next


async def test_dead_rows_of_a_hot_table_are_found(examined: Examined, db: Harness) -> None:
    db.sql("alter table tenure.worker set (autovacuum_enabled = off)")
    db.sql("insert into tenure.worker (name, queues, contracts) select n, '{}', '{}' from generate_series(1, 50) as n")
    db.sql("delete from tenure.worker; select pg_stat_force_next_flush()")
    found = await examined(Limits(dead_rows=40))
    assert found["dead-rows"].details["table"] == "worker"
    assert "vacuum tenure.worker" in found["dead-rows"].next
    assert "dead-rows" not in await examined(Limits(dead_rows=60))
