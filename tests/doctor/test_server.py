"""Doctor finds settings that lose data or cut off work, sessions that hold others up, and a server without room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tenure.embedded import Cluster
from tenure.postgres.doctor import server
from tenure.postgres.doctor.limits import Limits
from tenure.postgres.migrate import migrate
from tests.conftest import OwnCluster, own_database
from tests.doctor.conftest import Examined, look
from tests.harness import Harness

#: Settings of a database that stage a fault, with the finding.
STAGED = {
    "synchronous-commit-off": "synchronous_commit = off",
    "read-only-server": "default_transaction_read_only = on",
    "isolation-level": "default_transaction_isolation = 'repeatable read'",
    "statement-timeout-short": "statement_timeout = '1s'",
    "lock-timeout-short": "lock_timeout = '50ms'",
    "idle-in-transaction-timeout-short": "idle_in_transaction_session_timeout = '500ms'",
    "idle-session-timeout-short": "idle_session_timeout = '30s'",
    "transaction-timeout-short": "transaction_timeout = '90s'",
    "track-counts-off": "track_counts = off",
}
#: Settings of the server that stage a fault without a restart.
SERVER_WIDE = {
    "full-page-writes-off": "full_page_writes = off",
    "autovacuum-off": "autovacuum = off",
    "no-synchronous-standby": "synchronous_standby_names = 'nobody'",
}
_SETTINGS = {
    "fsync": "on", "max_connections": "60", "shared_buffers": "32MB", "max_notify_queue_pages": "64",
    "max_prepared_transactions": "5", "wal_level": "logical", "max_wal_senders": "2",
}  # fmt: skip


@pytest.fixture(scope="module")
def small(own_cluster: OwnCluster) -> Iterator[Cluster]:
    """A healthy server of this file's own."""
    with own_cluster(**_SETTINGS) as own:
        migrate(own.dsn)
        yield own


@pytest.mark.parametrize("code", STAGED)
async def test_a_setting_of_the_database_is_found(examined: Examined, db: Harness, code: str) -> None:
    name = db.value("select current_database()")
    assert code not in await examined()
    db.sql(f"alter database {name} set {STAGED[code]}")
    assert code in await examined()
    assert "check-failed" not in await examined()


async def test_a_healthy_server_has_no_finding(small: Cluster) -> None:
    assert await look(small.dsn) == {}


@pytest.mark.parametrize("code", SERVER_WIDE)
async def test_a_setting_of_the_server_is_found(small: Cluster, code: str) -> None:
    name = SERVER_WIDE[code].split()[0]
    with Harness(small.dsn) as db:
        db.sql(f"alter system set {SERVER_WIDE[code]}")
        try:
            reload(db, name)
            found = await look(small.dsn)
        finally:
            db.sql(f"alter system reset {name}")
            reload(db, name)
    assert found[code].severity in ("critical", "warning")
    assert f"alter system {'reset' if code == 'no-synchronous-standby' else 'set'} {name}" in found[code].next
    assert code not in await look(small.dsn)


def reload(db: Harness, name: str) -> None:
    """Let the server read its settings again, and wait until new sessions have this one."""
    wanted = db.value(
        "select coalesce((select setting from pg_file_settings where name = boot.name order by seqno desc limit 1), "
        "boot_val) from pg_settings as boot where name = %s", name,
    )  # fmt: skip
    db.sql("select pg_reload_conf()")
    for _ in range(1_000):
        with Harness(db.dsn) as other:
            if other.value("select setting from pg_settings where name = %s", name) == wanted:
                return
    raise AssertionError(f"{name} did not become {wanted}")


@pytest.mark.skipif("TENURE_TEST_DATABASE_URL" in os.environ, reason="that server has its own setting")
async def test_a_server_without_fsync_is_found(examined: Examined) -> None:
    found = (await examined())["fsync-off"]  # this run's server has it off; test_a_healthy_server_has_no_finding
    assert (found.severity, found.next) == ("critical", "alter system set fsync = on; select pg_reload_conf()")


async def test_an_old_server_is_found(examined: Examined, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MIN_VERSION", 990_000)
    assert "Tenure needs 99 or newer" in (await examined())["old-postgresql"].summary


async def test_another_encoding_is_found(server: str) -> None:
    with own_database(server, "template template0 encoding 'LATIN1' locale 'C'") as dsn:
        assert "LATIN1" in (await look(dsn))["encoding-not-utf8"].summary


async def test_too_few_connections_are_found(examined: Examined, db: Harness) -> None:
    name = db.value("select current_database()")
    db.sql(f"alter database {name} connection limit 10")
    found = (await examined())["too-few-connections"]
    assert "the limit of this database leaves" in found.summary
    assert found.details["limit"] == 10


async def test_a_server_that_cannot_be_reached_is_a_finding(dsn: str) -> None:
    for wrong, text in (
        ({"host": "127.0.0.1", "port": "1"}, "cannot be reached"),
        ({"dbname": "no_such_database"}, "login is refused"),
    ):
        found = await look(make_conninfo(dsn, connect_timeout="5", **wrong))
        assert set(found) == {"cannot-connect"}
        assert text in found["cannot-connect"].summary


async def test_a_transaction_that_pins_rows_is_found_with_its_pid(examined: Examined, dsn: str) -> None:
    limits = Limits(snapshot_s=0.0)
    with psycopg.connect(make_conninfo(dsn, application_name="report")) as idle:
        idle.execute("set transaction isolation level repeatable read")
        idle.execute("select 1")
        found = (await examined(limits))["xmin-pinned"]
        assert found.next == f"select pg_terminate_backend({idle.info.backend_pid})"
        assert f"report (pid {idle.info.backend_pid}, role" in found.summary
        assert found.severity == "warning"
        assert (await examined(Limits(snapshot_s=0.0, snapshot_critical_s=0.0)))["xmin-pinned"].severity == "critical"
        assert "xmin-pinned" not in await examined()
    assert "xmin-pinned" not in await examined(limits)


async def test_a_session_that_waits_for_a_lock_is_found_with_its_blocker(examined: Examined, dsn: str) -> None:
    with psycopg.connect(dsn) as blocker, psycopg.connect(dsn, autocommit=True) as waiting:
        blocker.execute("lock table tenure.queue in access exclusive mode")
        waiting.pgconn.send_query(b"/* tenure: x */ select * from tenure.queue")
        while not (found := await examined(Limits(blocked_s=0.0))).get("session-blocked"):
            pass
        assert found["session-blocked"].next == f"select pg_terminate_backend({blocker.info.backend_pid})"
        # It did not wait for the lock itself, and says which part it left out.
        assert found["check-failed"].details["part"] in ("outbox", "queues", "unserved")
        waiting.close()


async def test_a_prepared_transaction_is_found(small: Cluster) -> None:
    with psycopg.connect(small.dsn, autocommit=True) as connection:
        connection.execute("begin")
        connection.execute("select txid_current()")
        connection.execute("prepare transaction 'it''s left'")
        found = await look(small.dsn, Limits(prepared_s=0.0))
        connection.execute("rollback prepared 'it''s left'")
    assert found["transaction-prepared"].next == "rollback prepared 'it''s left' (or commit prepared)"
    assert "transaction-prepared" not in await look(small.dsn, Limits(prepared_s=0.0))


async def test_replication_slots_that_hold_rows_and_wal_are_found(small: Cluster) -> None:
    limits = Limits(slot_transactions=0, slot_bytes=0)
    with psycopg.connect(small.dsn, autocommit=True) as connection:
        assert not {"slot-holds-rows", "slot-holds-wal"} & set(await look(small.dsn, limits))
        connection.execute("select pg_create_logical_replication_slot('forgotten', 'pgoutput')")
        found = await look(small.dsn, limits)
        assert "slot-holds-wal" not in await look(small.dsn)
        connection.execute("select pg_drop_replication_slot('forgotten')")
    for code in ("slot-holds-rows", "slot-holds-wal"):
        assert "pg_drop_replication_slot('forgotten')" in found[code].next


async def test_a_full_queue_of_notifications_is_found(small: Cluster) -> None:
    with psycopg.connect(small.dsn) as idle, psycopg.connect(small.dsn, autocommit=True) as writer:
        idle.execute("listen anything")
        idle.commit()
        idle.execute("select 1")
        while writer.execute("select pg_notification_queue_usage()").fetchone() < (0.4,):  # type: ignore[operator]
            writer.execute("select pg_notify('anything', n || repeat('x', 7900)) from generate_series(1, 5) as n")
        found = await look(small.dsn)
    assert "% full" in found["notifications-full"].summary


async def test_a_disk_that_is_nearly_full_is_found(small: Cluster) -> None:
    found = await look(small.dsn, Limits(disk_share=1.0))
    assert found["disk-nearly-full"].next.startswith(f"make room: df -h {Path(small.directory, 'data')}")


async def test_old_transaction_ids_are_found(examined: Examined) -> None:
    assert (await examined(Limits(xid_age=1)))["wraparound-near"].severity == "critical"


async def test_a_direct_address_that_leads_elsewhere_is_found(dsn: str, small: Cluster, examined: Examined) -> None:
    assert "direct-address-wrong" not in await examined(direct_url=dsn)
    found = await examined(direct_url=small.dsn)
    assert found["direct-address-wrong"].summary == "TENURE_DIRECT_URL leads to another database"
    found = await examined(direct_url=make_conninfo(dsn, port="1", host="127.0.0.1"))
    assert "cannot be reached" in found["direct-address-wrong"].summary


def restart_as_standby(server: Cluster) -> None:
    """Let it follow a primary that does not exist."""
    Path(server.directory, "data", "standby.signal").touch()
    server.release()
    server.acquire()


async def test_a_standby_is_found(small: Cluster) -> None:
    """The last test of the file: the server stays a standby of nobody."""
    restart_as_standby(small)
    found = await look(small.dsn)
    assert "the server is a standby" in found["read-only-server"].summary
    assert "check-failed" not in found, "everything else can be read there"
