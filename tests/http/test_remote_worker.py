"""The worker of the library through a real dispatcher: without a database, in order, on its leases, and soon."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest

import tenure
from tenure.app import App
from tenure.contracts import BUILT_IN
from tenure.http.client_calls import Calls
from tenure.settings import Settings
from tests.harness import Harness
from tests.http import program
from tests.http.conftest import serving
from tests.worker.processes import QUICK as IN_A_HURRY
from tests.worker.processes import ROOT, end
from tests.worker.working import QUICK, until, working


def through(url: str) -> App:
    """An application that knows a dispatcher alone."""
    return App(dispatcher_url=url, settings=Settings())


def begun(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A command of ours as a process, in an environment that names no database but one that is given."""
    known = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    command = [sys.executable, "-m", "tenure", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env={**known, **environment}, stderr=subprocess.PIPE, text=True)


@pytest.mark.req("S1-14")
async def test_worker_without_a_database_runs_jobs_of_every_contract(dsn: str, db: Harness) -> None:
    others = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    with ExitStack() as processes:
        serve = begun("serve", "--port", "0", "--database-url", dsn, "--log-level", "warning", **IN_A_HURRY)
        processes.callback(end, serve)
        assert serve.stderr is not None
        url = serve.stderr.readline().split()[-1]
        far = begun("worker", "tests.http.program:app", "--dispatcher", url, "--name", "far")
        processes.callback(end, far)
        async with through(url) as app:
            ids = await _jobs_of_every_contract(app, far.pid)
        assert db.value(others) > 0
        serve.kill()
        await until(lambda: db.value(others) == 0)  # the dispatcher is gone, and the worker has no connection
        assert far.poll() is None
        far.terminate()
        assert far.wait(20) == 0
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
        told = await app.result(job_id, timeout=20)
        assert told == {"loaded": ["httpx2"], "DATABASE_URL": None, "pid": pid}
    for job_id in unlucky:
        assert await app.result(job_id, timeout=20) == "ü {'amount': 7}"
    made = await app.result(elsewhere, timeout=20)
    assert await app.result(made, timeout=20) == 2
    with pytest.raises(tenure.JobFailed, match="out of stock"):
        await app.result(order, timeout=20)
    return [*seen, *unlucky, elsewhere, order, made]


@pytest.mark.req("S1-16", "S1-42")
async def test_a_job_three_leases_long_is_claimed_run_kept_and_completed_in_this_order(
    dsn: str, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    ask = Calls.ask

    async def spied(self: Calls, method: Any, path: str, *rest: Any, **options: Any) -> Any:
        told = await ask(self, method, path, *rest, **options)
        if path.endswith(("heartbeats", "finishes")) or (path.endswith("claims") and told):
            log.append(path.rpartition("/")[2])
        return told

    monkeypatch.setattr(Calls, "ask", spied)
    with serving(dsn, numbers=QUICK) as url:
        async with through(url) as app:

            @app.task(contract="dispatcher")
            async def work() -> str:
                log.append("runs")
                await asyncio.sleep(6.2)  # its lease is two seconds
                return "done"

            async with working(app):
                ticket = await work.enqueue()
                assert await app.result(ticket, timeout=20) == "done"
    counts = Counter(log)
    assert log == ["claims", "runs", *["heartbeats"] * counts["heartbeats"], "finishes"]
    assert counts["heartbeats"] >= 6
    assert db.hops(ticket.id) == ["Queued->Running", "Running->Completed"]
    assert db.row(ticket.id)["claims"] == 1


async def test_a_soft_cancel_and_a_new_job_are_heard_of_at_once(url: str) -> None:
    began = asyncio.Event()
    async with through(url) as app:

        @app.task
        async def work(ctx: tenure.Context) -> tenure.Cancel:
            began.set()
            while not ctx.cancelled:  # noqa: ASYNC110 (a handler looks when it comes to it)
                await asyncio.sleep(0.01)
            return tenure.Cancel("asked to")

        async with working(app, poll=60) as worker:  # and the lease is thirty seconds: nobody would look before long
            await until(lambda: worker._fetch is not None and worker._service._ready.is_set())
            await asyncio.sleep(0.3)
            asked = time.monotonic()
            ticket = await work.enqueue()
            await asyncio.wait_for(began.wait(), 5)
            assert time.monotonic() - asked < 2
            asked = time.monotonic()
            await app.cancel(ticket, reason="not needed")
            with pytest.raises(tenure.JobFailed, match="cancelled"):
                await app.result(ticket, timeout=10)
            assert time.monotonic() - asked < 2


async def test_a_key_that_may_not_work_is_said_to_be_one(dsn: str) -> None:
    with serving(dsn, admin_key="tenure_of_somebody_else") as url:
        async with through(url) as app:

            @app.task
            async def work() -> None: ...

            with pytest.raises(tenure.TenureError, match="asks for a key") as raised:
                await app.worker().run(until_idle=True)
    assert getattr(raised.value, "reason_code", None) == "AUTH_REQUIRED"


async def test_synchronous_code_reaches_a_dispatcher_too(url: str) -> None:
    async with through(url) as app:

        @app.task
        def double(n: int) -> int:
            return 2 * n

        def use() -> int:
            return int(app.result_sync(double.enqueue_sync(21), timeout=10))

        async with working(app):
            assert await asyncio.to_thread(use) == 42


async def test_a_worker_that_begins_before_its_dispatcher_waits_for_it(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    async with through(f"http://127.0.0.1:{port}") as app:

        @app.task
        async def work() -> str:
            return "done"

        async with working(app, name="early"):
            await until(lambda: "early waits: the dispatcher at" in caplog.text)
            with serving(dsn, port=port):
                assert await app.result(await work.enqueue(), timeout=10) == "done"
        assert caplog.text.count("waits") == 1
        async with working(app) as late:
            await until(lambda: caplog.text.count("waits") == 2)
        assert late.counts == {}  # told to stop while it waits, it stops


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (
            ["--dispatcher", "http://localhost:9", "--database-url", "postgresql://h/d"],
            "E-BAD-INPUT: --database-url and",
        ),
        (["--key", "tenure_x"], "E-BAD-INPUT: --key is shown"),
        (["--dispatcher", "localhost:9"], "E-BAD-INPUT: TENURE_DISPATCHER_URL must be"),
        (
            ["--until-idle", "--dispatcher", "http://127.0.0.1:9"],
            "E-CANNOT-CONNECT: the dispatcher at http://127.0.0.1:9 cannot be",
        ),
    ],
)
def test_worker_that_cannot_set_out_says_why(arguments: list[str], code: str) -> None:
    process = begun("worker", "tests.http.program:app", "--log-level", "error", *arguments)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert said.startswith(code)
