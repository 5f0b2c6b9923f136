"""The whole server is killed, again and again, under work: what was answered stays, the rest happened whole or not."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pytest

from tenure.embedded import Cluster
from tenure.postgres.migrate import migrate
from tenure.postgres.store import Store
from tests.conftest import OwnCluster
from tests.faults.kills import again
from tests.faults.workload import Client, History, drain
from tests.harness import Harness
from tests.races.sessions import CONTRACTS

pytestmark = [pytest.mark.serial, pytest.mark.timeout(600)]

_SETTINGS = {"fsync": "off", "max_connections": "50", "shared_buffers": "64MB"}
_VERBS = {"enqueue", "enqueue_keyed", "claim", "succeed", "fail"}


@pytest.fixture
def cluster(own_cluster: OwnCluster) -> Iterator[Cluster]:
    """A server of this test's own. fsync may be off: processes are killed here, not machines."""
    with own_cluster(**_SETTINGS) as own:
        migrate(own.dsn)
        yield own


def postmaster(cluster: Cluster) -> int:
    """The pid of this test's own server."""
    return int((cluster.directory / "data" / "postmaster.pid").read_text().splitlines()[0])


def kill(cluster: Cluster, how: str) -> None:
    """End the server, or one of its backends, which ends all the others; comes back when the victim is gone."""
    pid = postmaster(cluster)
    if how == "backend":
        with psycopg.connect(cluster.dsn) as connection:
            found = connection.execute(
                "select pid from pg_stat_activity where application_name = 'tenure' limit 1"
            ).fetchone()
        assert found
        pid = found[0]
    # What `pg_ctl stop -m immediate` sends is SIGQUIT.
    os.kill(pid, signal.SIGQUIT if how == "immediate" else signal.SIGKILL)
    give_up = time.monotonic() + 60
    while _lives(pid):
        assert time.monotonic() < give_up, f"{pid} outlived its {how}"
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""  # a zombie has none
    except (FileNotFoundError, ProcessLookupError):
        return False


def up_again(cluster: Cluster) -> None:
    """Start what was killed and wait for its recovery; the first hold stays."""
    cluster.acquire()
    cluster.release()


async def a_round(cluster: Cluster, clients: list[Client], how: str, after: float) -> None:
    """Let the clients work for a moment, kill the server under them, and have it back."""
    async with AsyncExitStack() as stack:
        enough = asyncio.Event()
        stores = [await stack.enter_async_context(Store.open(cluster.dsn, connections=1)) for _ in clients]
        await asyncio.gather(*(store.jobs([1]) for store in stores))  # connected
        working = [
            asyncio.create_task(client.work(store, enough)) for client, store in zip(clients, stores, strict=True)
        ]
        await asyncio.sleep(after)
        await asyncio.to_thread(kill, cluster, how)
        await asyncio.to_thread(up_again, cluster)
        # A gate_b2 failure cut off in its second transaction was answered: that client did not notice.
        enough.set()
        await asyncio.wait_for(asyncio.gather(*working), 60)


@pytest.fixture
async def witness(cluster: Cluster) -> AsyncIterator[Store]:
    """A store that was opened before the first kill and is used after the last."""
    async with Store.open(cluster.dsn, connections=1) as store:
        await store.jobs([1])
        yield store


def assert_nothing_answered_was_lost(db: Harness, history: History) -> list[int]:
    """Compare what the clients were told with what is there; every id that exists."""
    every = "select id, state, idempotency_key as key from tenure."
    rows = db.sql(f"{every}job union all {every}job_done")
    states = {row["id"]: row["state"] for row in rows}
    assert len(states) == len(rows), "a job is both live and finished"
    assert history.made <= states.keys(), "an answered enqueue is lost"
    keyed = [row for row in rows if row["key"] is not None]
    assert len({row["key"] for row in keyed}) == len(keyed), "one key made two jobs"
    assert history.keys.items() <= {row["key"]: row["id"] for row in keyed}.items()
    assert {states[job_id].lower() for job_id in history.succeeded} <= {"succeeded", "success", "completed"}
    reported = {
        (row["job_id"], row["claims"])
        for row in db.sql("select job_id, claims from tenure.event where trigger in ('retry', 'exhaust', 'fatal')")
    }
    assert history.failed <= reported, "an answered failure is not in the log"
    return sorted(states)


@pytest.mark.parametrize("kills", [6, pytest.param(60, marks=pytest.mark.prove)])
async def test_server_killed_under_work_loses_nothing_that_was_answered(
    cluster: Cluster, witness: Store, kills: int
) -> None:
    chance, history = random.Random(kills), History()
    clients = [Client(contract, history, random.Random(n)) for n, contract in enumerate(CONTRACTS)]
    n = 0
    # What the clients come to before a kill depends on the machine: go on until they made every call.
    while n < kills or ((history.unknown() < kills or not history.answered() >= _VERBS) and n < 5 * kills):
        await a_round(cluster, clients, ("postmaster", "immediate", "backend")[n % 3], chance.uniform(0.05, 0.4))
        n += 1
    assert history.unknown() >= kills, "the kills hit no call"
    assert history.answered() >= _VERBS

    with Harness(cluster.dsn) as db:
        ids = assert_nothing_answered_was_lost(db, history)
        db.log_is_sound(*ids)

        def hurry() -> None:
            db.sql("update tenure.job set due_at = now() where due_at > now()")
            db.sql("update tenure.job set lease_expires_at = now() - interval '1 s' where lease_expires_at > now()")

        for contract in CONTRACTS:
            await again(drain, witness, contract, hurry)
        assert db.value("select count(*) from tenure.job") == 0, "not everything came to an end"
        assert assert_nothing_answered_was_lost(db, history) == ids
        db.log_is_sound(*ids)
        twice = """
            select job_id from tenure.event
            where trigger in ('succeed', 'exhaust', 'fatal', 'expire_at_cap') or to_state = 'dlq_recorded'
            group by job_id, to_state = 'dlq_recorded' having count(*) > 1"""
        assert db.sql(twice) == [], "a job ended twice"
