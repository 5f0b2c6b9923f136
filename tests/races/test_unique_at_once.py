"""Unique jobs made by many at once: one is made, and all others get it; batches never deadlock; a claim wins.

64 connections enqueue together, from one process and from four. Two sessions are led by the hand, so that the second is
seen to wait for the first one's transaction.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from tenure.app import App
from tenure.errors import BadInput, Busy, DuplicateJob
from tenure.jobs.job import NewJob
from tenure.jobs.outcome import Enqueued
from tenure.jobs.unique import OnConflict, UniqueOption, unique_rule
from tenure.postgres import connect
from tenure.postgres.statement import Plan, run_sync, statement
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.races.sessions import Session
from tests.worker.working import quick, until

pytestmark = [pytest.mark.serial, pytest.mark.core]

CALLERS = 64

#: A process with 16 connections: each round begins with a line on stdin and ends with a line of answers.
PROCESS = """
import asyncio, json, sys
from tenure.jobs.job import NewJob
from tenure.jobs.unique import Unique
from tenure.postgres import connect
from tenure.postgres.store import Store

connect.LOCK_TIMEOUT_MS = 100_000

async def main():
    async with Store.open(sys.argv[1], connections=16) as store:
        await asyncio.gather(*(store.contracts() for _ in range(16)))
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            job = NewJob("sync", {"customer": int(line)}, unique=Unique("active"))
            answers = await asyncio.gather(*(store.enqueue(job) for _ in range(16)))
            print(json.dumps([[answer.job_id, answer.made] for answer in answers]), flush=True)

asyncio.run(main())
"""


def sync(
    customer: int,
    unique: UniqueOption = "waiting",
    on_conflict: OnConflict | None = None,
    n: int = 0,
    key: str | None = None,
) -> NewJob:
    """A job that is unique by its customer."""
    rule = unique_rule(unique, ("customer",), on_conflict)
    return NewJob("sync", {"customer": customer, "n": n}, unique=rule, key=key)


@pytest.fixture
async def wide(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """A store with a connection for each caller, each of which waits for the others however slow the machine is."""
    monkeypatch.setattr(connect, "LOCK_TIMEOUT_MS", 100_000)
    async with Store.open(dsn, connections=CALLERS) as store:
        await asyncio.gather(*(store.contracts() for _ in range(CALLERS)))
        yield store


@pytest.mark.parametrize("unique", ["waiting", "active", timedelta(hours=1)], ids=["waiting", "active", "period"])
async def test_of_64_callers_one_makes_the_job_and_the_others_get_it(
    wide: Store, db: Harness, unique: UniqueOption
) -> None:
    for customer in range(10):
        answers = await asyncio.gather(*(wide.enqueue(sync(customer, unique)) for _ in range(CALLERS)))
        assert sum(answer.made for answer in answers) == 1
        assert len({answer.job_id for answer in answers}) == 1
    assert db.value("select count(*) from tenure.job") == 10


async def test_of_64_callers_that_want_to_be_refused_63_are(wide: Store) -> None:
    calls = (wide.enqueue(sync(1, on_conflict="refuse")) for _ in range(CALLERS))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    made = [answer for answer in answers if isinstance(answer, Enqueued)]
    refused = [answer for answer in answers if isinstance(answer, DuplicateJob)]
    assert (len(made), len(refused)) == (1, CALLERS - 1)
    assert {one.job_id for one in refused} == {made[0].job_id}


async def test_of_64_callers_with_keys_of_their_own_one_makes_the_job(wide: Store, db: Harness) -> None:
    answers = await asyncio.gather(*(wide.enqueue(sync(1, key=f"k{n}")) for n in range(CALLERS)))
    assert sum(answer.made for answer in answers) == 1
    assert db.value("select count(distinct job_id) from tenure.key") == 1


def test_of_64_callers_in_four_processes_one_makes_the_job(dsn: str, db: Harness) -> None:
    command = [sys.executable, "-c", PROCESS, dsn]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(4)]  # type: ignore[call-overload]
    try:
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 4
        for customer in range(10):
            for process in processes:
                process.stdin.write(f"{customer}\n")
                process.stdin.flush()
            answers = [tuple(one) for process in processes for one in json.loads(process.stdout.readline())]
            assert len(answers) == CALLERS
            assert sum(made for _, made in answers) == 1
            assert len({job_id for job_id, _ in answers}) == 1
    finally:
        for process in processes:
            process.stdin.close()
            process.wait(timeout=30)
    assert db.value("select count(*) from tenure.job") == 10


async def test_batches_in_different_orders_do_not_deadlock(wide: Store, db: Harness) -> None:
    before = db.value("select deadlocks from pg_stat_database where datname = current_database()")
    for round_ in range(5):
        batches = []
        for n in range(16):
            jobs = [sync(100 * round_ + customer, on_conflict="replace", n=n) for customer in range(40)]
            jobs += [sync(100 * round_ + customer, key=f"{round_}:{n}:{customer}") for customer in range(40, 60)]
            jobs += [NewJob("other", {"n": n}, contract="simple", unique=unique_rule("waiting"))]
            random.Random(n).shuffle(jobs)
            batches.append(jobs)
        answers = await asyncio.gather(*map(wide.enqueue_many, batches))
        assert all(isinstance(answer, Enqueued) for part in answers for answer in part)
    assert db.value("select count(*) from tenure.job where type = 'sync'") == 5 * 60
    db.sql("select pg_stat_force_next_flush()")
    assert db.value("select deadlocks from pg_stat_database where datname = current_database()") == before


async def test_a_debounce_under_load_runs_each_payload_at_most_once_and_the_last_one_for_sure(
    wide: Store, db: Harness
) -> None:
    ran: list[int] = []
    sent = 0
    is_over = False

    async def send() -> None:
        nonlocal sent
        for _ in range(25):
            sent += 1
            await wide.enqueue(sync(1, on_conflict="replace", n=sent))

    async def work(name: str) -> None:
        while True:
            stop = is_over
            jobs = await wide.claim(worker=name)
            for job in jobs:
                ran.append(job.payload["n"])
                await wide.succeed(job.held)
            if stop and not jobs:
                return
            await asyncio.sleep(0)

    workers = [asyncio.create_task(work(f"w{n}")) for n in range(4)]
    await asyncio.gather(*(send() for _ in range(16)))
    await wide.enqueue(sync(1, on_conflict="replace", n=-1))
    is_over = True
    await asyncio.gather(*workers)
    assert -1 in ran
    assert len(ran) == len(set(ran))
    replaced = db.value("select count(*) from tenure.event where trigger = 'replaced'")
    assert len(ran) + replaced == 401


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_transaction_that_holds_the_scope_open_is_waited_for(dsn: str, db: Harness, end: str) -> None:
    async with quick(dsn) as app:
        task = _declare(app)
        with psycopg.connect(dsn) as mine, ThreadPoolExecutor(1) as beside:
            first = task.enqueue_in(mine, 7)
            other = beside.submit(task.enqueue_sync, 7)
            await until(lambda: _waits(db))
            assert not other.done()
            mine.commit() if end == "commit" else mine.rollback()
            answer = await asyncio.wrap_future(other)
    assert answer.made == (end == "rollback")
    assert (answer.id == first.id) == (end == "commit")
    assert db.value("select count(*) from tenure.job") == 1


async def test_a_stale_row_is_taken_over_by_one(dsn: str, db: Harness) -> None:
    async with quick(dsn) as app:
        task = _declare(app)
        await task.enqueue(7)
        db.sql("delete from tenure.job")
        with psycopg.connect(dsn) as mine, ThreadPoolExecutor(1) as beside:
            first = task.enqueue_in(mine, 7)
            assert first.made
            other = beside.submit(task.enqueue_sync, 7)
            await until(lambda: _waits(db))
            mine.commit()
            answer = await asyncio.wrap_future(other)
    assert (answer.id, answer.made) == (first.id, False)


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_scope_is_locked_before_it_is_judged_also_where_it_exists(dsn: str, db: Harness, end: str) -> None:
    async with quick(dsn) as app:
        task = _declare(app)
        await task.enqueue(7)
        db.sql("delete from tenure.job")
        (scope,) = db.sql("select contract, tenant_id, type, scope from tenure.unique_job")
        with Session(dsn, "first") as first, ThreadPoolExecutor(1) as beside:
            first.begin()
            run_sync(first.connection, _lock(scope))
            other = beside.submit(task.enqueue_sync, 7)
            await until(lambda: _waits(db) or other.done())
            assert not other.done()
            first.end(end)
            assert (await asyncio.wrap_future(other)).made


async def test_upkeep_leaves_out_a_scope_that_an_enqueue_has_locked(dsn: str, db: Harness, store: Store) -> None:
    async with quick(dsn) as app:
        task = _declare(app)
        await task.enqueue(7)
        db.sql("delete from tenure.job")
        db.sql("update tenure.unique_job set check_at = clock_timestamp()")
        with psycopg.connect(dsn) as mine:
            first = task.enqueue_in(mine, 7)
            assert await store.history.forget_unique() == 0, "and it does not wait"
            mine.commit()
        assert (await task.enqueue(7)).id == first.id


async def test_a_rollback_frees_the_scope(dsn: str, db: Harness) -> None:
    async with quick(dsn) as app:
        task = _declare(app)
        with psycopg.connect(dsn) as mine:
            assert task.enqueue_in(mine, 7).made
            mine.rollback()
            assert task.enqueue_in(mine, 7).made
            assert not task.enqueue_in(mine, 7).made
            mine.commit()
        assert not (await task.enqueue(7)).made


async def test_a_wait_ends_with_the_callers_lock_timeout(dsn: str) -> None:
    async with quick(dsn) as app:
        task = _declare(app)
        with psycopg.connect(dsn) as first, psycopg.connect(dsn) as second:
            task.enqueue_in(first, 7)
            second.execute("set local lock_timeout = '50ms'")
            with pytest.raises(Busy):
                task.enqueue_in(second, 7)
            second.rollback()
            first.commit()
            assert not task.enqueue_in(second, 7).made


async def test_a_job_that_was_returned_in_a_transaction_begins_after_its_commit(
    dsn: str, db: Harness, store: Store
) -> None:
    async with quick(dsn) as app:
        task = _declare(app)
        first = await task.enqueue(7)
        with psycopg.connect(dsn) as mine:
            assert not task.enqueue_in(mine, 7).made
            assert await store.claim(worker="w") == []
            mine.commit()
        assert [job.id for job in await store.claim(worker="w")] == [first.id]


async def test_a_period_holds_only_its_first_job_until_the_commit(dsn: str, db: Harness, store: Store) -> None:
    hour = timedelta(hours=1)
    async with quick(dsn) as app:
        task = _declare(app).options(unique=hour)
        jobs = []
        for _ in range(3):
            jobs.append(await task.enqueue(7))
            db.sql("update tenure.unique_job set made_at = made_at - interval '1 hour'")
        assert [job.made for job in jobs] == [True] * 3
        assert db.value("select earlier from tenure.unique_job") == []
        with psycopg.connect(dsn) as mine:
            last = task.enqueue_in(mine, 7)
            assert last.made
            assert [job.id for job in await store.claim(worker="w", limit=2)] == [job.id for job in jobs[:2]]
            mine.commit()
            assert not task.enqueue_in(mine, 7).made
            assert [job.id for job in await store.claim(worker="w", limit=2)] == [jobs[2].id]
            mine.commit()
        assert [job.id for job in await store.claim(worker="w", limit=2)] == [last.id]


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
async def test_a_transaction_that_sees_old_rows_enqueues_no_unique_job(
    dsn: str, db: Harness, store: Store, level: IsolationLevel
) -> None:
    async with quick(dsn) as app:
        task = _declare(app).options(unique="active")

        @app.task
        async def plain() -> None: ...

        await task.enqueue(7)
        (job,) = await store.claim(worker="w")
        with psycopg.connect(dsn) as mine:
            mine.isolation_level = level
            mine.execute("select count(*) from tenure.job")
            await store.succeed(job.held)
            # By the rows that this transaction sees, the job that has ended runs still.
            with pytest.raises(BadInput, match="isolation level"):
                task.enqueue_in(mine, 7)
            assert plain.enqueue_in(mine).made
            mine.commit()
            mine.isolation_level = IsolationLevel.READ_COMMITTED
            assert task.enqueue_in(mine, 7).made
    assert db.value("select count(*) from tenure.job") == 2


async def test_a_claim_that_was_faster_beats_a_replacement(dsn: str, db: Harness, store: Store) -> None:
    first = await store.enqueue(sync(7))
    with Harness(dsn) as claims:
        with claims.connection.transaction():
            claims.sql("select from tenure.job where id = %s for update", first.job_id)
            waiting = asyncio.create_task(store.enqueue(sync(7, on_conflict="replace", n=1)))
            await until(lambda: _waits(db))
            claims.sql(
                "update tenure.job set role = 'active', state = 'running', claims = 1, seq = 1, lease_owner = 'w', "
                "lease_token = gen_random_uuid(), lease_expires_at = now() + interval '1 h' where id = %s",
                first.job_id,
            )
        answer = await waiting
    assert answer.made
    assert db.row(first.job_id)["payload"] == {"customer": 7, "n": 0}


async def test_upkeep_and_enqueues_agree_about_stale_rows(wide: Store, db: Harness) -> None:
    customers = (CALLERS - 1) // 2  # each enqueued by two: nobody waits for a connection, only for locks
    for _ in range(10):
        await asyncio.gather(*(wide.enqueue(sync(customer)) for customer in range(customers)))
        db.sql("delete from tenure.job")
        db.sql("update tenure.unique_job set check_at = clock_timestamp()")
        calls = [wide.enqueue(sync(customer)) for customer in range(customers) for _ in range(2)]
        deleting = asyncio.create_task(wide.history.forget_unique())
        answers, deleted = await asyncio.gather(*calls), await deleting
        assert sum(answer.made for answer in answers) == customers
        assert db.value("select count(*) from tenure.job") == customers
        assert deleted <= customers
        assert not any(one.made for one in await asyncio.gather(*(wide.enqueue(sync(n)) for n in range(customers))))
        db.sql("delete from tenure.job")


def _declare(app: App):  # type: ignore[no-untyped-def]
    @app.task(unique="waiting", unique_by=("customer",))
    async def sync_customer(customer: int, *, full: bool = False) -> None: ...

    return sync_customer


def _lock(scope: dict[str, Any]) -> Plan[None]:
    arrays = {"tenants": [scope["tenant_id"]], "types": [scope["type"]], "scopes": [scope["scope"]]}
    yield statement("lock_unique_jobs", {"contract": scope["contract"], **arrays})


def _waits(db: Harness) -> bool:
    return bool(
        db.value(
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        )
    )
