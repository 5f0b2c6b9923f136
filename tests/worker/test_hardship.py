"""What could hang, strand or repeat a job, and does not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import tenure
from tenure.app import App
from tenure.client.direct import DirectClient
from tenure.errors import BadInput, SchemaMissing
from tenure.jobs.job import NewJob
from tenure.postgres.store import Store
from tenure.worker import watchdog
from tenure.worker.claim_loop import ClaimLoop
from tests.harness import Harness
from tests.worker import program
from tests.worker.processes import is_frozen, says, steady_worker
from tests.worker.rounds import HALF_S, Polls, Pulse
from tests.worker.working import steady, until, working

_WRITTEN = """
create table public.written (relation text, verb text);
create function public.note() returns trigger language plpgsql as $$
begin insert into public.written values (tg_table_name, tg_op); return null; end $$;
create trigger note after insert or update or delete on tenure.job for each row execute function public.note();
create trigger note after insert or update or delete on tenure.claim for each row execute function public.note();
"""


async def test_neighbours_of_a_handler_that_blocks_the_loop_are_handed_back_after_half_a_lease(
    app: App, db: Harness, pulse: Pulse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "time", pulse)
    returned = "select count(*) from tenure.job where state = 'queued' and raises = 1"

    @app.task
    async def block(ctx: tenure.Context, n: int) -> int:
        if n == 0:
            pulse.passes(HALF_S)
            limit = time.monotonic() + 60
            while db.value(returned) < 9:
                assert time.monotonic() < limit, "nobody handed them back"
                time.sleep(0.01)  # noqa: ASYNC251 (that is the fault)
            pulse.half_a_lease_blocked(db, [ctx.job.id])  # it keeps its own lease
        return n

    first, *others = await app.enqueue_many(block.call(n) for n in range(10))
    async with working(app, wakeups=False) as running:
        await until(lambda: running.counts["succeeded"] == 10)
    assert dict(running.counts) == {"claimed": 19, "handed back": 9, "succeeded": 10}
    assert db.row(first)["claims"] == 1
    for job_id in others:
        assert [row["trigger"] for row in db.log(job_id)] == ["claim", "hand_back", "claim", "succeed"]
        assert db.log(job_id)[1]["reason"] == "the event loop of its worker was blocked"


async def test_what_a_claim_has_won_while_the_loop_was_blocked_is_handed_back(
    app: App, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    second, go, is_blocked = asyncio.Event(), asyncio.Event(), threading.Event()
    real, leases = DirectClient.claim, ClaimLoop.leases_under_way

    async def unread(self: DirectClient, *args: Any, **options: Any) -> Any:
        jobs = await real(self, *args, **options)
        if jobs and jobs[0].type == "work" and not second.is_set():
            second.set()
            await go.wait()  # the loop is blocked before it reads this answer
        return jobs

    def short_while_blocked(self: ClaimLoop) -> list[float]:
        """A tenth of a second of silence is too long then, and half of a long lease at any other time."""
        return [0.2 if is_blocked.is_set() else seconds for seconds in leases(self)]

    monkeypatch.setattr(DirectClient, "claim", unread)
    monkeypatch.setattr(ClaimLoop, "leases_under_way", short_while_blocked)

    @app.task(max_attempts=1)
    async def block() -> None:
        await second.wait()
        is_blocked.set()
        limit = time.monotonic() + 60
        while db.value("select count(*) from tenure.job where type = 'work' and raises = 1") == 0:
            if time.monotonic() > limit:  # nobody handed it back
                break
            time.sleep(0.01)  # noqa: ASYNC251 (that is the fault)
        is_blocked.clear()
        go.set()

    @app.task(max_attempts=1)
    async def work() -> None:
        ran.append("work")

    await block.enqueue()
    async with working(app) as running:
        await until(lambda: running.counts["claimed"] == 1)
        ticket = await work.enqueue()
        await app.result(ticket, timeout=60)
    assert ran == ["work"]
    assert [row["trigger"] for row in db.log(ticket.id)] == ["claim", "hand_back", "claim", "succeed"]


@pytest.mark.parametrize("contract", ["standard", "phase27", "dispatcher", "reliability", "simple", "gate_b2"])
async def test_unknown_task_is_not_claimed_under_any_contract(
    app: App, store: Store, db: Harness, contract: str
) -> None:
    @app.task(contract=contract)
    async def known() -> str:
        return "ran"

    made = await store.enqueue(NewJob("from_the_next_release", contract=contract))
    async with working(app, queues=["default"]):
        # It came later, so the claim that took it has passed the other.
        assert await app.result(await known.enqueue(), timeout=60) == "ran"
    assert db.row(made.job_id)["claims"] == 0


async def test_cancel_after_an_effect_undoes_it(app: App, db: Harness) -> None:
    undone: list[str] = []

    @app.task(contract="reliability", max_attempts=1)
    async def order(ctx: tenure.Context) -> tenure.Cancel:
        await ctx.effect("charge", lambda: "receipt")
        return tenure.Cancel("changed my mind")

    @order.compensate("charge")
    async def refund(result: str) -> None:
        undone.append(result)

    async with working(app):
        with pytest.raises(tenure.JobFailed, match="ended cancelled"):
            await app.result(await order.enqueue(), timeout=60)
    assert undone == ["receipt"]


async def test_undoing_is_refused_under_a_contract_that_undoes_nothing(app: App) -> None:
    @app.task
    async def order() -> None: ...

    with pytest.raises(BadInput, match="compensates no effects"):
        order.compensate("charge")(lambda result: None)


async def test_effect_whose_result_cannot_be_stored_is_on_record_all_the_same(app: App) -> None:
    done: list[int] = []

    def charge() -> object:
        done.append(1)
        return object()

    @app.task(max_attempts=3)
    async def order(ctx: tenure.Context) -> int:
        await ctx.effect("charge", charge)
        if ctx.attempt < 3:
            raise ValueError("again")
        return len(done)

    async with working(app):
        assert await app.result(await order.enqueue(), timeout=60) == 1


async def test_blip_between_a_deed_and_its_record_does_not_repeat_the_deed(app: App, dsn: str, db: Harness) -> None:
    done: list[int] = []

    def deed() -> str:
        done.append(1)
        db.sql(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name = 'tenure'"
        )
        return "receipt"

    @app.task
    async def order(ctx: tenure.Context) -> str:
        return await ctx.effect("charge", deed)

    async with working(app):
        assert await app.result(await order.enqueue(), timeout=60) == "receipt"
    assert done == [1]


@pytest.mark.parametrize("verdict", [tenure.Cancel(""), tenure.Snooze(float("inf")), tenure.Cancel("x" * 2_000)])
async def test_verdict_that_cannot_be_stored_ends_the_job(app: App, verdict: object) -> None:
    @app.task
    async def odd() -> Any:
        return verdict

    async with working(app):
        with pytest.raises(tenure.JobFailed):
            await app.result(await odd.enqueue(), timeout=60)


async def test_plain_handler_that_raises_stop_iteration_fails(app: App) -> None:
    nothing: Iterator[int] = iter([])

    @app.task(max_attempts=1)
    def first() -> int:
        return next(nothing)

    async with working(app):
        with pytest.raises(tenure.JobFailed, match="StopIteration"):
            await app.result(await first.enqueue(), timeout=60)


async def test_server_that_only_reads_for_a_while_does_not_end_the_worker(
    app: App, dsn: str, db: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def work() -> str:
        return "done"

    name = db.value("select current_database()")
    async with working(app) as running:
        db.sql(f"alter database {name} set default_transaction_read_only = on")
        db.sql(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name like 'tenure%%' and pid <> pg_backend_pid()"
        )
        async with Store.open(make_conninfo(dsn, options="-c default_transaction_read_only=off")) as writing:
            waits = await writing.enqueue(NewJob("work"))
        await until(lambda: "cannot claim jobs of contract" in caplog.text)
        db.sql("set default_transaction_read_only = off")
        db.sql(f"alter database {name} reset default_transaction_read_only")
        db.sql(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name like 'tenure%%' and pid <> pg_backend_pid()"
        )
        assert await app.result(await _insisting(work.enqueue), timeout=60) == "done"
        assert await app.result(waits.job_id, timeout=60) == "done"
        assert running.counts["succeeded"] == 2


async def _insisting(enqueue: Any) -> Any:
    for _ in range(300):
        try:
            return await enqueue()
        except tenure.TenureError:
            await asyncio.sleep(0.2)
    raise AssertionError("the database did not come back")


async def test_database_without_a_schema_is_named_and_the_worker_ends(empty_dsn: str) -> None:
    app = steady(empty_dsn)

    @app.task
    async def work() -> None: ...

    with pytest.raises(SchemaMissing):
        await app.worker().run()
    await app.close()


async def test_worker_is_stopped_from_another_thread_without_waiting_for_a_poll(app: App, polls: Polls) -> None:
    @app.task
    async def work() -> None: ...

    running = app.worker(poll=3_600)
    run = asyncio.create_task(running.run())
    await until(lambda: polls.ended >= 1)  # the listener, once connected, asks for another one
    threading.Thread(target=running.stop).start()
    await asyncio.wait_for(run, 60)
    with pytest.raises(BadInput, match="run only once"):
        await running.run()


async def test_idle_worker_writes_nothing(app: App, db: Harness, polls: Polls) -> None:
    @app.task
    async def work() -> None: ...

    db.sql(_WRITTEN)
    async with working(app, upkeep=False, wakeups=False, poll=0.05):
        await until(lambda: polls.ended >= 20)
    assert db.sql("select * from public.written") == []


def test_programs_that_open_a_loop_again_and_again_leak_no_connections(dsn: str, db: Harness) -> None:
    app = steady(dsn)

    @app.task
    async def work() -> None: ...

    for _ in range(6):
        asyncio.run(_enqueued(work))
    count = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'tenure'"
    asyncio.run(until(lambda: db.value(count) <= 4))  # the server is told of those that were closed
    asyncio.run(app.close())


async def _enqueued(work: Any) -> None:
    await work.enqueue()


async def test_enqueue_in_pipeline_mode_is_refused(app: App, dsn: str, db: Harness) -> None:
    @app.task
    async def work() -> None: ...

    with psycopg.connect(dsn) as connection, connection.pipeline(), pytest.raises(BadInput, match="pipeline"):
        work.enqueue_in(connection)
    assert db.value("select count(*) from tenure.job") == 0


async def test_signal_to_a_whole_group_of_processes_is_one_signal(
    dsn: str, app: App, db: Harness, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    ticket = await app._enqueue(program.hold.call(str(gate)).job)
    with steady_worker(dsn) as process:
        await until(Path(f"{gate}.began").exists)
        process.send_signal(signal.SIGSTOP)  # so that both reach it at the same time
        await until(lambda: is_frozen(process))
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        await says(process, "stops: 1 jobs are running")
        gate.touch()
        assert process.wait(60) == 0
    assert db.row(ticket.id)["state"] == "succeeded"


def test_synchronous_program_ends_without_a_word(dsn: str) -> None:
    code = "import tenure\napp = tenure.App()\n@app.task\ndef work() -> None: ...\nwork.enqueue_sync()\n"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "DATABASE_URL": dsn},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")
