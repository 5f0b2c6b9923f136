"""The audit on a database at work: it finds nothing wrong, nobody waits for it, and `since` reads only what changed."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tenure.contracts import BUILT_IN
from tenure.jobs.job import Failure, NewJob
from tenure.postgres.connect import engine_dsn
from tenure.postgres.statement import statement
from tenure.postgres.store import Store
from tenure.proof import audit
from tests.faults.workload import Client, History
from tests.harness import Harness
from tests.proof.conftest import World
from tests.proof.histories import Player
from tests.worker.working import until

_WAITS = """
select waits.pid, waits.query from pg_stat_activity as waits
where waits.datname = current_database() and waits.wait_event_type = 'Lock' and exists (
    select from pg_stat_activity as audit
    where audit.application_name = 'audit' and audit.pid = any (pg_blocking_pids(waits.pid)))
"""
_COUNT = "select (select count(*) from tenure.job) + (select count(*) from tenure.job_done)"
_HURRY = """
update tenure.job set due_at = now(), lease_expires_at = lease_expires_at - interval '10 minutes'
where id in (select id from tenure.job where id % 3 = 0 for update skip locked)
"""


async def test_since_reads_only_what_changed(store: Store, db: Harness) -> None:
    player = Player(store, db)
    old = await player.live("standard", "claim succeed")
    moment = db.value("select clock_timestamp()")
    new = [
        await player.live("reliability", "claim* undoable:pay break compensated"),
        await player.live("simple", "claim"),
    ]
    db.sql("set session_replication_role = replica")
    db.sql("update tenure.job_done set counter = 9 where id = any (%s)", [old, new[0]])
    db.sql("update tenure.event set ts = ts - interval '1 hour' where job_id = %s", old)
    db.sql("insert into tenure.effect values (%s, 'pay', 7, now()), (%s, 'ship', 7, now())", old, new[1])
    whole, part = await audit(store), await audit(store, moment)
    assert {violation.job_id for violation in whole.violations} == {old, *new}
    assert (whole.jobs, whole.events) == (3, 8)
    assert (part.jobs, part.live, part.events) == (2, 1, 6)
    assert sorted((one.promise, one.job_id) for one in part.violations) == [
        ("no stale commit", new[1]), ("row and log", new[0])
    ]  # fmt: skip


async def test_since_a_span_goes_by_the_databases_clock(store: Store, db: Harness) -> None:
    player = Player(store, db)
    await player.live("standard", "claim succeed")
    await player.live("standard", "")
    db.sql("set session_replication_role = replica")
    db.sql("update tenure.job_done set updated_at = now() - interval '2 hours'")
    db.sql("update tenure.event set ts = ts - interval '2 hours'")
    assert (await audit(store, timedelta(hours=1))).jobs == 1
    assert (await audit(store, timedelta(hours=3))).jobs == 2
    assert (await audit(store, timedelta(0))).jobs == 0


@asynccontextmanager
async def at_work(dsn: str, history: History) -> AsyncIterator[None]:
    """Four workers, upkeep, and somebody who lets leases run out and due times come, until the block ends."""
    enough = asyncio.Event()

    async def upkeep(store: Store) -> None:
        with Harness(dsn) as db:
            while not enough.is_set():
                db.sql(_HURRY)
                for contract in BUILT_IN:
                    await store.reap(contract)
                    await store.promote(contract)
                    await store.settle(contract)
                await asyncio.sleep(0.01)

    async with Store.open(dsn, connections=5) as store:
        clients = [
            Client(contract, history, random.Random(seed))
            for seed, contract in enumerate(("standard", "phase27", "simple", "gate_b2"))
        ]
        async with asyncio.TaskGroup() as tasks:
            for client in clients:
                tasks.create_task(client.work(store, enough))
            tasks.create_task(upkeep(store))
            try:
                yield
            finally:
                enough.set()


@pytest.mark.core
async def test_an_audit_of_a_database_at_work_finds_nothing_wrong_and_stops_nobody(
    dsn: str, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["tenure.proof.audit"], "PAGE", 50)  # many pages, each of its own moment
    history, waits = History(), []
    jobs: set[int] = set()

    def look(report: Any) -> None:
        waits.extend(db.sql(_WAITS))

    async with at_work(dsn, history), Store.open(make_conninfo(dsn, application_name="audit")) as auditor:
        for _ in range(3):
            most = max(jobs, default=0)
            await until(lambda most=most: db.value(_COUNT) > most, 60)  # type: ignore[misc]
            report = await audit(auditor, on_page=look)
            assert report.violations == []
            jobs.add(report.jobs)
        done = {"enqueue", "claim", "succeed", "fail"}
        await until(lambda: done <= {verb for verb, told in history.calls if told == "ok"}, 60)
    assert waits == []
    assert len(jobs) == 3, "the database did change between the audits"
    async with Store.open(dsn) as store:
        assert (await audit(store)).violations == []


async def test_a_page_takes_only_locks_that_nobody_waits_for(own_world: World) -> None:
    world = own_world  # ranges are made in it
    store = await Store.connect(make_conninfo(world.dsn, options="-c lock_timeout=200"))
    with psycopg.connect(engine_dsn(world.dsn)) as reader, Harness(world.dsn) as db:
        spans = {"lows": [0], "highs": [2**62], "after": 0, "limit": 5_000, "rows": 50_000, "since": None}
        names = ("jobs", "events", "dead_letters", "effects", "keys", "dropping_ranges")
        for name in ("begin_snapshot", *(f"audit_{one}" for one in names)):
            one = statement(name, spans)
            psycopg.RawCursor(reader).execute(one.query.text.encode(), one.values)
        pid = reader.info.backend_pid
        locks = db.sql("select distinct locktype, mode from pg_locks where pid = %s", pid)
        modes = {row["mode"] for row in locks if row["locktype"] != "virtualxid"}
        assert modes == {"AccessShareLock"}, "which nothing waits for but the dropping of a table"
        # Its moment is still open; everybody goes on, and it does not see that.
        player = Player(store, db)
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: player.live("standard", "claim fail claim succeed", key="while it reads"),
            lambda: player.live("reliability", "claim* undoable:pay beat break compensated"),
            lambda: player.live("gate_b2", "claim fail claim lose claim break"),
            lambda: store.requeue(world.lived["standard: fatal"], actor="ada"),
            lambda: store.history.forget_claims(60),
            lambda: store.extend_ranges(9),
        ]
        for call in calls:
            await call()
    await store.close()


async def test_a_stale_write_that_slipped_through_is_found(store: Store, db: Harness) -> None:
    """What a missing fence would do: a worker whose claim is over records an effect under it."""
    made = await store.enqueue(NewJob("t"))
    (job,) = await store.claim(worker="w1")
    await store.fail(job.held, Failure("no"))
    db.sql("insert into tenure.effect values (%s, 'pay', %s, clock_timestamp())", made.job_id, job.claims)
    (found,) = (await audit(store)).violations
    assert (found.promise, found.job_id) == ("no stale commit", made.job_id)


async def test_a_log_too_long_to_keep_is_folded_too(store: Store, db: Harness) -> None:
    job_id = await Player(store, db).live("reliability", f"claim* {'beat ' * 40} succeed")
    assert ((await audit(store)).events, (await audit(store)).violations) == (43, [])
    db.sql("set session_replication_role = replica")
    db.sql("update tenure.event set from_state = 'queued', to_state = 'queued' where job_id = %s and seq = 41", job_id)
    (found,) = (await audit(store)).violations
    assert found == ("the contract", job_id, "log row 41: heartbeat was logged in queued, and the job was running")
