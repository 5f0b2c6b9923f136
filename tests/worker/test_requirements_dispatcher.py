"""Document 001 through the real worker, as far as its tasks need neither HTTP nor SQS."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tenure.app import App
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.worker import program
from tests.worker.killing import run_and_kill
from tests.worker.processes import steady_worker
from tests.worker.working import steady, until, working


@pytest.mark.req("S1-07")
async def test_two_handlers_of_one_task_never_overlap_while_leases_are_renewed(dsn: str, db: Harness) -> None:
    contended: list[int] = []
    async with steady(dsn) as first, steady(dsn) as second:

        def work(n: int) -> int:
            with psycopg.connect(dsn, autocommit=True) as connection:
                (row,) = connection.execute("select pg_try_advisory_lock(7, %s)", [n]).fetchall()
                if not row[0]:
                    contended.append(n)
                connection.execute("select pg_sleep(6.5)")  # the lease is two seconds
            return n

        tasks = [app.task(name="work", contract="dispatcher")(work) for app in (first, second)]
        async with working(first, concurrency=5), working(second, concurrency=5):
            tickets = [await tasks[0].enqueue(n) for n in range(8)]
            # All run; whoever could take one of them a second time has the slots for it.
            assert await asyncio.gather(*(first.result(ticket, timeout=60) for ticket in tickets)) == list(range(8))
    assert contended == []
    assert {db.row(ticket.id)["claims"] for ticket in tickets} == {1}


#: Some have ended, and others have only just begun.
JUST_BEGUN = """
select (select count(*) from tenure.job_done) >= 4 and exists (
    select from tenure.job where role = 'active' and started_at > clock_timestamp() - interval '100 milliseconds')
"""


@pytest.mark.req("S1-01")
async def test_everything_goes_on_from_the_database_alone(app: App, dsn: str, store: Store, db: Harness) -> None:
    await store.publish(True)
    naps = [await app._enqueue(program.nap.options(contract="dispatcher").call(0.3).job) for _ in range(20)]
    later = await app._enqueue(program.nap.options(contract="dispatcher", delay=1.0).call(0.0).job)
    with steady_worker(dsn, "--concurrency", "4") as process:
        await until(lambda: db.value(JUST_BEGUN))
        process.kill()
        process.wait()
    await app.close()
    assert db.value("select count(*) from tenure.outbox") >= 21
    # What a queue outside of the database would have held is gone with everything that was in memory.
    db.sql("delete from tenure.outbox")
    held = db.sql("select id from tenure.job where role = 'active'")
    assert held
    with steady_worker(dsn):
        await until(lambda: db.value("select count(*) from tenure.job") == 0, 40)
    ids = [ticket.id for ticket in (*naps, later)]
    ended = db.sql("select status, attempt from tenure_dispatcher.tasks where task_id = any(%s)", ids)
    assert {row["status"] for row in ended} == {"Completed"}
    assert sorted(row["attempt"] for row in ended) == [1] * (21 - len(held)) + [2] * len(held)
    db.log_is_sound(*ids)


async def test_killed_workers_task_is_queued_again_by_the_reconciler_with_a_fresh_pointer(
    app: App, dsn: str, store: Store, db: Harness
) -> None:
    """S1-59 but for the publishing, which needs SQS."""
    await store.publish(True)
    ticket = await app._enqueue(program.nap.options(contract="dispatcher").call(0.5).job)
    await run_and_kill(dsn, db, ticket.id, times=1)
    with steady_worker(dsn):
        assert await app.result(ticket, timeout=60) == "rested"
    again = ["Running->Failed", "Failed->Queued", "Queued->Running"]
    assert db.hops(ticket.id) == ["Queued->Running", *again, "Running->Completed"]
    pointers = db.sql("select body from tenure_dispatcher.outbox where task_id = %s order by id", ticket.id)
    assert [row["body"] for row in pointers] == [{"task_id": str(ticket.id)}] * 2


@pytest.mark.req("S1-60")
async def test_workers_alone_retry_nothing(app: App, db: Harness) -> None:
    ran: list[int] = []

    @app.task(contract="dispatcher")
    async def fail() -> None:
        ran.append(1)
        raise ValueError("odd")

    async with working(app, upkeep=False) as worker:
        ticket = await fail.enqueue()
        await until(lambda: worker.counts["retried"] == 1)
        db.due(ticket.id)
        await asyncio.sleep(0.3)  # several polls
    assert db.row(ticket.id)["state"] == "Failed"
    assert len(ran) == 1
    async with working(app):  # with upkeep, which is the reconciler
        await until(lambda: db.row(ticket.id)["role"] == "done")
    assert len(ran) == 3
