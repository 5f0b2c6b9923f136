"""Document 001 through the real worker, as far as its tasks need neither HTTP nor SQS."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import psycopg
import pytest

from tenure.app import App
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.worker import program
from tests.worker.killing import run_and_kill
from tests.worker.processes import steady_worker
from tests.worker.rounds import Pulse
from tests.worker.working import steady, until, working


@pytest.mark.req("S1-07")
async def test_two_handlers_of_one_task_never_overlap_while_leases_are_renewed(
    dsn: str, store: Store, db: Harness, pulse: Pulse
) -> None:
    contended, go = list[int](), threading.Event()
    pulse.hearts = 2
    async with steady(dsn) as first, steady(dsn) as second:

        def work(n: int) -> int:
            with psycopg.connect(dsn, autocommit=True) as connection:
                (row,) = connection.execute("select pg_try_advisory_lock(7, %s)", [n]).fetchall()
                if not row[0]:
                    contended.append(n)
                go.wait(100)
            return n

        tasks = [app.task(name="work", contract="dispatcher")(work) for app in (first, second)]
        async with working(first, concurrency=5), working(second, concurrency=5):
            tickets = [await tasks[0].enqueue(n) for n in range(8)]
            ids = [ticket.id for ticket in tickets]
            await until(lambda: db.value("select count(*) from tenure.job where role = 'active'") == 8)
            # All run; whoever could take one of them a second time has the slots for it.
            for _ in range(6):
                await pulse.half_a_lease(db, ids)
                assert await store.reap("dispatcher") == []
            go.set()
            assert await asyncio.gather(*(first.result(ticket, timeout=60) for ticket in tickets)) == list(range(8))
    assert contended == []
    assert {db.row(job_id)["claims"] for job_id in ids} == {1}


#: Some have ended, and as many as a worker has slots have begun.
HALFWAY = """
select (select count(*) from tenure.job_done) = 8
   and (select count(*) from tenure.job where role = 'active') = 4
"""


@pytest.mark.req("S1-01")
async def test_everything_goes_on_from_the_database_alone(
    app: App, dsn: str, store: Store, db: Harness, tmp_path: Path
) -> None:
    await store.outbox.publish({"default": "https://queue.example/1/default"})
    gate, short, long = tmp_path / "gate", program.nap.options(contract="dispatcher"), program.hold
    calls = [short.call(0.0) for _ in range(8)]
    calls += [long.options(contract="dispatcher").call(str(gate)) for _ in range(12)]
    calls += [program.nap.options(contract="dispatcher", delay=3_600).call(0.0)]
    ids = [(await app._enqueue(call.job)).id for call in calls]
    with steady_worker(dsn, "--concurrency", "4") as process:
        await until(lambda: db.value(HALFWAY))
        process.kill()
        process.wait()
    await app.close()
    assert db.value("select count(*) from tenure.outbox") >= 21
    # What a queue outside of the database would have held is gone with everything that was in memory.
    db.sql("delete from tenure.outbox")
    held = [row["id"] for row in db.sql("select id from tenure.job where role = 'active'")]
    assert len(held) == 4
    db.expire(*held)
    db.due(ids[-1])
    gate.touch()
    with steady_worker(dsn):
        await until(lambda: db.value("select count(*) from tenure.job") == 0)
    ended = db.sql("select status, attempt from tenure_dispatcher.tasks where task_id = any(%s)", ids)
    assert {row["status"] for row in ended} == {"Completed"}
    assert sorted(row["attempt"] for row in ended) == [1] * 17 + [2] * 4
    db.log_is_sound(*ids)


async def test_killed_workers_task_is_queued_again_by_the_reconciler_with_a_fresh_pointer(
    app: App, dsn: str, store: Store, db: Harness, tmp_path: Path
) -> None:
    """With real messages: `tests/faults/test_messages_lost.py`."""
    await store.outbox.publish({"default": "https://queue.example/1/default"})
    gate = tmp_path / "gate"
    ticket = await app._enqueue(program.hold.options(contract="dispatcher").call(str(gate)).job)
    await run_and_kill(dsn, db, ticket.id, times=1)
    gate.touch()
    with steady_worker(dsn):
        assert await app.result(ticket, timeout=60) == "let go"
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

    @app.task(contract="dispatcher")
    async def other() -> str:
        return "ran"

    async with working(app, upkeep=False) as worker:
        ticket = await fail.enqueue()
        await until(lambda: worker.counts["retried"] == 1)
        db.due(ticket.id)
        # It came later, so the claim that took it would have taken the first one again.
        assert await app.result(await other.enqueue(), timeout=60) == "ran"
    assert db.row(ticket.id)["state"] == "Failed"
    assert len(ran) == 1
    async with working(app):  # with upkeep, which is the reconciler
        await until(lambda: db.row(ticket.id)["role"] == "done")
    assert len(ran) == 3
