"""The loops of upkeep while the database goes away under them: they resume by themselves, and say so once."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from tenure.embedded import Cluster
from tenure.postgres.store import Store
from tenure.upkeep import Upkeep
from tests.faults.test_server_killed import cluster, kill, up_again
from tests.harness import Harness
from tests.upkeep.running import QUICK, expired, lines, ready, running, until

__all__ = ["cluster"]

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "away", [0.5, pytest.param(6.0, marks=pytest.mark.prove), pytest.param(45.0, marks=pytest.mark.prove)]
)
@pytest.mark.parametrize("how", ["immediate", "postmaster"])
async def test_the_loops_resume_by_themselves_when_the_server_is_back(
    cluster: Cluster, how: str, away: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tenure.upkeep")
    async with Store.open(cluster.dsn) as store, Store.open(cluster.dsn) as client:
        loops = Upkeep(store)
        async with running(loops):
            with Harness(cluster.dsn) as db:
                ids = await expired(client, db)
                await until(lambda: ready(db, ids), 60)
                left = await expired(client, db, 20)
            await asyncio.to_thread(kill, cluster, how)
            await asyncio.sleep(away)
            await asyncio.to_thread(up_again, cluster)
            begun = time.monotonic()
            with Harness(cluster.dsn) as db:
                await until(lambda: ready(db, left), 60)
                print(f"{how}, {away} s away: resumed {time.monotonic() - begun:.2f} s after the server was ready")
                db.log_is_sound(*ids, *left)
            await until(lambda: loops.troubles == {}, 60)  # each part finds out in a round of its own
    told = lines(caplog, "look")
    if not told and away < 10:
        return  # it was away between two looks, or for less than a look waits for a connection
    assert len(told) == 2, told
    assert told[0].startswith("look: the database is away, trying again (E-")
    assert told[1].startswith("look: works again after ")


async def test_backends_that_are_killed_cost_a_moment(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    kill_all = (
        "select count(pg_terminate_backend(pid)) from pg_stat_activity "
        "where datname = current_database() and pid <> pg_backend_pid() and application_name = 'tenure'"
    )
    slowest = 0.0
    async with Store.open(dsn) as store:
        loops = Upkeep(store, periods=QUICK)
        async with running(loops):
            for _ in range(10):
                with Harness(dsn) as db:
                    async with Store.open(dsn) as client:
                        ids = await expired(client, db, 5)
                    assert db.value(kill_all) >= 1
                    slowest = max(slowest, await until(lambda: ready(db, ids), 60))  # noqa: B023
                    db.log_is_sound(*ids)
        # Of a round whose answer was lost nobody can say what it did; in the log it is all there.
        assert loops.counts["reap"] <= 50
    print(f"ten times killed; reaped at most {slowest:.2f} s after")
    assert not [record for record in caplog.records if record.name == "tenure.upkeep" and record.exc_info]
