"""A real standby: it follows the primary, refuses to write, and takes the primary's place when that is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.embedded import Cluster, find_binaries
from tenure.errors import CannotConnect, ConnectionLost
from tenure.jobs.job import NewJob
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tests.conftest import OwnCluster
from tests.faults.test_read_only_session import both
from tests.harness import Harness
from tests.worker.working import quick, until, working

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]

_SETTINGS = {"fsync": "off", "max_connections": "50", "shared_buffers": "64MB"}


@pytest.fixture
def primary(own_cluster: OwnCluster) -> Iterator[Cluster]:
    """A server with a schema, which a test may stop."""
    with own_cluster(**_SETTINGS) as cluster:
        migrate(cluster.dsn)
        yield cluster


@pytest.fixture
def standby(primary: Cluster) -> Iterator[Cluster]:
    """A copy of it that follows it."""
    with tempfile.TemporaryDirectory(dir=primary.directory.parent.parent) as made:
        place = Path(made, "cluster")
        copy = [find_binaries() / "pg_basebackup", "-d", primary.dsn, "-D", place / "data", "-R", "-X", "stream"]
        subprocess.run([*map(str, copy), "--checkpoint=fast", "--no-sync"], check=True)
        (place / "data" / ".s.PGSQL.5432.lock").unlink(missing_ok=True)  # the primary's
        with Cluster(place, settings=_SETTINGS) as cluster:
            yield cluster


def crash(server: Cluster) -> None:
    """End it at once, without a word to those who follow it."""
    os.kill(int((server.directory / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)


def promote(standby: Harness) -> None:
    """Let it take the primary's place; comes back when it writes."""
    assert standby.value("select pg_promote(wait_seconds => 120)")


async def test_worker_goes_on_with_a_standby_that_was_promoted(primary: Cluster, standby: Cluster) -> None:
    with Harness(standby.dsn) as db, Harness(primary.dsn) as first:
        address = both(db, first)  # the standby is named first, and is not the one that is meant
        async with quick(address) as app:

            @app.task
            async def work(n: int) -> int:
                return 2 * n

            async with working(app):
                assert await app.result(await work.enqueue(1), timeout=60) == 2
                left = await work.options(delay=3_600).enqueue(2)
                await until(lambda: db.value("select exists (select from tenure.job where id = %s)", left.id))
                crash(primary)
                promote(db)
                db.due(left.id)
                assert await app.result(left, timeout=60) == 4
                ticket = None
                while ticket is None:  # for a moment nobody asks again
                    try:
                        ticket = await work.enqueue(3)
                    except (CannotConnect, ConnectionLost):
                        await asyncio.sleep(0.05)
                assert await app.result(ticket, timeout=60) == 6
        assert db.value("select count(*) from tenure.job_done") == 3


async def test_store_on_a_standby_says_that_it_may_not_write_and_goes_on_when_it_is_promoted(
    primary: Cluster, standby: Cluster
) -> None:
    async with Store.open(standby.dsn, wake=False) as store:
        with pytest.raises(CannotConnect, match="all sessions are read-only"):
            await store.enqueue(NewJob("t"))
        with Harness(standby.dsn) as db:
            promote(db)
            made = None
            while made is None:
                try:
                    made = await store.enqueue(NewJob("t"))
                except CannotConnect:
                    await asyncio.sleep(0.05)
            assert db.row(made.job_id)["state"] == "queued"
