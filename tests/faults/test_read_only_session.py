"""A server that only reads, because it was demoted: its sessions are left, and the one that writes is found."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tenure.errors import CannotConnect
from tenure.jobs.job import NewJob
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tests.conftest import OwnCluster
from tests.faults.test_idle_connections_cut import cut
from tests.harness import Harness
from tests.postgres.listening import listening
from tests.worker.working import quick, until, working

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]

_LISTENERS = "select count(*) from pg_stat_activity where application_name = 'tenure listener'"
_SETTINGS = {"fsync": "off", "max_connections": "50", "shared_buffers": "64MB"}


@pytest.fixture
def two(own_cluster: OwnCluster) -> Iterator[tuple[Harness, Harness]]:
    """Two servers with a schema each, as if one had just followed the other."""
    with own_cluster(**_SETTINGS) as first, own_cluster(**_SETTINGS) as second:
        for cluster in (first, second):
            migrate(cluster.dsn)
        with Harness(first.dsn) as one, Harness(second.dsn) as other:
            yield one, other


def both(*servers: Harness) -> str:
    """The address of either."""
    hosts = [str(conninfo_to_dict(server.dsn)["host"]) for server in servers]
    ports = [str(conninfo_to_dict(server.dsn)["port"]) for server in servers]
    return make_conninfo(servers[0].dsn, host=",".join(hosts), port=",".join(ports))


def demote(server: Harness, *, is_over: bool = False) -> None:
    """Let this server refuse to write from now on, in sessions that are open too."""
    server.sql("set default_transaction_read_only = off")
    if is_over:
        server.sql("alter system reset default_transaction_read_only")
    else:
        server.sql("alter system set default_transaction_read_only = on")
    server.sql("select pg_reload_conf()")


async def reloaded(server: Harness, *, only_reads: bool) -> None:
    """Wait until new sessions have heard of it."""

    def shown() -> bool:
        with psycopg.connect(server.dsn) as connection:
            row = connection.execute("show default_transaction_read_only").fetchone()
        return row == ("on" if only_reads else "off",)

    await until(shown)


async def test_store_leaves_a_demoted_primary_and_finds_the_new_one(two: tuple[Harness, Harness]) -> None:
    first, second = two
    async with Store.open(both(first, second), connections=3) as store:
        made = await store.enqueue(NewJob("t"))
        assert first.row(made.job_id)["state"] == "queued"
        demote(first)
        await reloaded(first, only_reads=True)
        await store.enqueue(NewJob("t", {"n": 2}))
        assert second.value("select payload from tenure.job") == {"n": 2}
        assert first.value("select count(*) from tenure.job") == 1


async def test_store_that_only_reads_leaves_a_demoted_primary_too(two: tuple[Harness, Harness]) -> None:
    first, second = two
    async with Store.open(both(first, second), connections=1) as store, Store.open(second.dsn) as elsewhere:
        made = await elsewhere.enqueue(NewJob("t"))
        assert not await store.jobs([made.job_id])
        demote(first)
        await reloaded(first, only_reads=True)
        give_up = time.monotonic() + 60
        while not await store.jobs([made.job_id]):  # the first answer after it brings the news along
            assert time.monotonic() < give_up, "it stays with the demoted primary"
            await asyncio.sleep(0.01)


async def test_worker_goes_on_with_the_new_primary(two: tuple[Harness, Harness]) -> None:
    first, second = two
    async with quick(both(first, second)) as app:

        @app.task
        async def work(n: int) -> int:
            return 2 * n

        async with working(app):
            assert await app.result(await work.enqueue(1), timeout=60) == 2
            demote(first)
            await reloaded(first, only_reads=True)
            assert await app.result(await work.enqueue(2), timeout=60) == 4
    assert second.value("select count(*) from tenure.job_done") == 1


async def test_listener_leaves_a_demoted_primary_and_hears_the_new_one(
    two: tuple[Harness, Harness], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = two
    async with listening(both(first, second), probe=0.05) as (listener, heard), Store.open(second.dsn) as store:
        assert first.value(_LISTENERS) == 1
        demote(first)
        await until(lambda: len(heard.names) > 1)  # it says so after each connect
        await until(lambda: listener.is_listening)
        assert (first.value(_LISTENERS), second.value(_LISTENERS)) == (0, 1)
        await store.enqueue(NewJob("t", queue="mail"))
        await until(lambda: ("standard", "mail") in heard.names)
    (said,) = [record.getMessage() for record in caplog.records if record.name == "tenure.listen"][:1]
    assert "the server is read-only" in said
    assert "Next: name every server in the address" in said


async def test_store_that_finds_no_server_that_writes_says_so_and_goes_on_when_there_is_one(
    dsn: str, db: Harness
) -> None:
    name = db.value("select current_database()")
    async with Store.open(dsn) as store:
        await store.enqueue(NewJob("t"))
        db.sql(f"alter database {name} set default_transaction_read_only = on")
        await cut(db, "by the administrator")
        with pytest.raises(CannotConnect, match=r"all sessions are read-only.*Next: name every server"):
            await store.enqueue(NewJob("t"))
        db.sql("set default_transaction_read_only = off")
        db.sql(f"alter database {name} reset default_transaction_read_only")
        made = None
        while made is None:  # for a moment nobody asks again
            try:
                made = await store.enqueue(NewJob("t", {"n": 3}))
            except CannotConnect:
                await asyncio.sleep(0.05)
        assert db.row(made.job_id)["payload"] == {"n": 3}
