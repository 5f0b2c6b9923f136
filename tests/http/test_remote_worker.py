"""The worker of the library through a real dispatcher: without a database, in order, on its leases, and soon."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

import tenure
from tenure.app import App
from tenure.client.dispatcher_requests import DispatcherRequests
from tenure.contracts import BUILT_IN
from tenure.postgres.store import Store
from tenure.settings import Settings
from tests.harness import Harness
from tests.http import program
from tests.http.conftest import Clock, serving
from tests.http.processes import begun, dispatching
from tests.worker.processes import QUICK as IN_A_HURRY
from tests.worker.processes import end
from tests.worker.working import QUICK, until, working

#: Leases for which no machine is too slow.
LEASE_S = 120
UNHURRIED = {**IN_A_HURRY, **{name: f"{LEASE_S}000" for name in IN_A_HURRY if name.endswith("LEASE_MS")}}


def through(url: str) -> App:
    """An application that knows a dispatcher alone."""
    return App(dispatcher_url=url, settings=Settings())


@asynccontextmanager
async def reaping(dsn: str, contract: str) -> AsyncIterator[None]:
    """Somebody who closes every lease of a contract that ran out, again and again, for as long as a block lasts."""
    async with Store.open(dsn, numbers=QUICK, connections=1) as store:

        async def reap() -> None:
            while True:
                await store.reap(contract)
                await asyncio.sleep(0.05)

        reaper = asyncio.create_task(reap())
        try:
            yield
            assert not reaper.done()
        finally:
            reaper.cancel()
            await asyncio.gather(reaper, return_exceptions=True)


@pytest.mark.req("S1-14")
async def test_worker_without_a_database_runs_jobs_of_every_contract(dsn: str, db: Harness) -> None:
    others = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    with dispatching(dsn, "--log-level", "warning", **UNHURRIED) as (serve, url), ExitStack() as processes:
        far = begun("worker", "tests.http.program:app", "--dispatcher", url, "--name", "far")
        processes.callback(end, far)
        async with through(url) as app:
            ids = await _jobs_of_every_contract(app, far.pid)
        assert db.value(others) > 0
        serve.kill()
        await until(lambda: db.value(others) == 0, 60)  # the dispatcher is gone, and the worker has no connection
        assert far.poll() is None
        far.terminate()
        assert far.wait(60) == 0
        assert far.stderr is not None
        assert "refused" not in far.stderr.read()
    db.log_is_sound(*ids)
    assert {row["actor"] for row in db.sql("select actor from tenure.event where trigger = 'claim'")} == {"far"}


async def _jobs_of_every_contract(app: App, pid: int) -> list[int]:
    """Run all kinds of jobs; their ids."""
    seen = await app.enqueue_many(program.seen.options(contract=name).call() for name in BUILT_IN)
    unlucky = await app.enqueue_many(program.unlucky.options(contract=name).call() for name in BUILT_IN)
    (elsewhere, order) = await app.enqueue_many([program.elsewhere.call(), program.order.call()])
    for job_id in seen:
        told = await app.result(job_id, timeout=60)
        assert told == {"loaded": ["httpx2"], "DATABASE_URL": None, "pid": pid}
    for job_id in unlucky:
        assert await app.result(job_id, timeout=60) == "ü {'amount': 7}"
    made = await app.result(elsewhere, timeout=60)
    assert await app.result(made, timeout=60) == 2
    with pytest.raises(tenure.JobFailed, match="out of stock"):
        await app.result(order, timeout=60)
    return [*seen, *unlucky, elsewhere, order, made]


@pytest.mark.req("S1-16", "S1-42")
async def test_a_job_three_leases_long_is_claimed_run_kept_and_completed_in_this_order(
    dsn: str, db: Harness, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    is_over = asyncio.Event()
    ask = DispatcherRequests.send

    async def spied(self: DispatcherRequests, method: Any, path: str, *rest: Any, **options: Any) -> Any:
        told = await ask(self, method, path, *rest, **options)
        if path.endswith(("heartbeats", "finishes")) or (path.endswith("claims") and told):
            log.append(path.rpartition("/")[2])
        return told

    monkeypatch.setattr(DispatcherRequests, "send", spied)
    with serving(dsn, numbers={"dispatcher": {"lease_ms": 1_000 * LEASE_S}}) as url:
        async with through(url) as app:

            @app.task(contract="dispatcher")
            async def work() -> str:
                log.append("runs")
                await is_over.wait()
                return "done"

            async with reaping(dsn, "dispatcher"), working(app) as worker:
                ticket = await work.enqueue()
                await until(lambda: "runs" in log, 60)
                for _ in range(12):  # a quarter of its lease each time: three leases
                    db.sql("update tenure.job set lease_expires_at = lease_expires_at - interval '30 s'")
                    clock.ahead += LEASE_S / 4
                    await until(lambda: all(one.heartbeat_at > clock.now() for one in worker._heartbeats.held), 60)
                is_over.set()
                assert await app.result(ticket, timeout=60) == "done"
    beats = log.count("heartbeats")
    assert log == ["claims", "runs", *["heartbeats"] * beats, "finishes"]
    assert beats >= 6  # two in each lease
    assert db.hops(ticket.id) == ["Queued->Running", "Running->Completed"]
    assert db.row(ticket.id)["claims"] == 1


async def test_a_soft_cancel_and_a_new_job_are_heard_of_though_nobody_looks(dsn: str) -> None:
    began = asyncio.Event()
    # Neither a poll nor a beat comes within the time that is waited here.
    with serving(dsn, numbers={"standard": {"lease_ms": 3_600_000}}) as url:
        async with through(url) as app:

            @app.task
            async def work(ctx: tenure.Context) -> tenure.Cancel:
                began.set()
                while not ctx.cancelled:  # noqa: ASYNC110 (a handler looks when it comes to it)
                    await asyncio.sleep(0.01)
                return tenure.Cancel("asked to")

            async with working(app, poll=3_600):
                for _ in range(2):  # the first may be found because the worker has just begun
                    ticket = await work.enqueue()
                    await asyncio.wait_for(began.wait(), 60)
                    began.clear()
                    await app.cancel(ticket, reason="not needed")
                    with pytest.raises(tenure.JobFailed, match="cancelled"):
                        await app.result(ticket, timeout=60)


async def test_a_key_that_may_not_work_is_said_to_be_one(dsn: str) -> None:
    with serving(dsn, admin_key="tenure_of_somebody_else") as url:
        async with through(url) as app:

            @app.task
            async def work() -> None: ...

            with pytest.raises(tenure.TenureError, match="needs a key") as raised:
                await app.worker().run(until_idle=True)
    assert getattr(raised.value, "reason_code", None) == "AUTH_REQUIRED"


async def test_synchronous_code_reaches_a_dispatcher_too(url: str) -> None:
    async with through(url) as app:

        @app.task
        def double(n: int) -> int:
            return 2 * n

        def use() -> int:
            return int(app.result_sync(double.enqueue_sync(21), timeout=60))

        async with working(app):
            assert await asyncio.to_thread(use) == 42


async def test_a_worker_that_begins_before_its_dispatcher_waits_for_it(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as kept:  # so that nobody else gets this port; a dispatcher does, because it shares it as well
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        port = kept.getsockname()[1]
        async with through(f"http://127.0.0.1:{port}") as app:

            @app.task
            async def work() -> str:
                return "done"

            async with working(app, name="early"):
                await until(lambda: "early cannot connect, retrying: the dispatcher at" in caplog.text, 60)
                with serving(dsn, port=port):
                    assert await app.result(await work.enqueue(), timeout=60) == "done"
            assert caplog.text.count("cannot connect, retrying") == 1
            async with working(app) as late:
                await until(lambda: caplog.text.count("cannot connect, retrying") == 2, 60)
            assert late.counts == {}  # told to stop while it waits, it stops


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (
            ["--dispatcher", "http://localhost:9", "--database-url", "postgresql://h/d"],
            "E-BAD-INPUT: --database-url and",
        ),
        (["--key", "tenure_x"], "E-BAD-INPUT: --key is shown"),
        (["--dispatcher", "localhost:9"], "E-BAD-INPUT: --dispatcher must be"),
        (["--sqs", "http://localhost:9/1/q"], "E-BAD-INPUT: --sqs names tasks that a dispatcher has"),
        (["--sqs", "localhost:9"], "E-BAD-INPUT: --sqs must be the address"),
        (["--sqs", "http://q/1/q", "--contracts", "dispatcher"], "E-BAD-INPUT: --sqs and --contracts exclude"),
        (
            ["--until-idle", "--dispatcher", "http://127.0.0.1:9"],
            "E-CANNOT-CONNECT: the dispatcher at http://127.0.0.1:9 cannot be",
        ),
    ],
)
def test_worker_that_cannot_set_out_says_why(arguments: list[str], code: str) -> None:
    process = begun("worker", "tests.http.program:app", "--log-level", "error", *arguments)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.startswith(code)
