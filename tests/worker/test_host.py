"""A worker inside of another program: it ends when it is cancelled, and leaves the host's signals alone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from tenure.app import App
from tenure.client.direct import DirectClient
from tenure.contracts.declaration import Contract
from tenure.errors import BadInput
from tenure.jobs.holder_call import HolderCall
from tenure.jobs.wakeup import JOB_CHANGED
from tenure.worker import Worker
from tests.harness import Harness
from tests.worker.processes import ROOT, STEADY, end, says
from tests.worker.working import until, working


async def cancelled(run: asyncio.Task[None]) -> None:
    """Cancel a worker's task and see it end so."""
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(run), 60)
    assert run.cancelled()


async def test_cancelling_a_worker_ends_its_handlers_and_hands_back_their_jobs(app: App, db: Harness) -> None:
    log: list[str] = []
    go = asyncio.Event()

    @app.task(max_attempts=1)
    async def work() -> str:
        log.append("begins")
        try:
            await go.wait()
        except asyncio.CancelledError:
            log.append("is cancelled")
            raise
        log.append("ends")
        return "done"

    ticket = await work.enqueue()
    run = asyncio.create_task(app.worker(poll=0.05).run())
    await until(lambda: log == ["begins"])
    await cancelled(run)
    assert log == ["begins", "is cancelled"]
    row = db.row(ticket.id)
    assert (row["state"], row["lease_token"]) == ("queued", None)
    assert row["claims"] == row["raises"] > 0  # a claim under way may have won it again; neither cost an attempt
    go.set()
    async with working(app):
        assert await app.result(ticket, timeout=60) == "done"
    assert log == ["begins", "is cancelled", "begins", "ends"]


async def test_a_worker_that_is_cancelled_again_while_it_ends_still_hands_back_its_jobs(app: App, db: Harness) -> None:
    begun = asyncio.Event()

    @app.task(max_attempts=1)
    async def work() -> None:
        begun.set()
        await asyncio.sleep(600)

    ticket = await work.enqueue()
    run = asyncio.create_task(app.worker(poll=0.05).run())
    await begun.wait()
    while not run.done():  # as cancel scopes of other libraries do it
        run.cancel()
        await asyncio.sleep(0)
    assert run.cancelled()
    row = db.row(ticket.id)
    assert (row["state"], row["lease_token"]) == ("queued", None)
    assert row["claims"] == row["raises"] > 0  # a claim under way may have won it again; neither cost an attempt


async def test_a_worker_that_is_cancelled_again_while_it_claims_hands_back_what_it_wins(
    app: App, dsn: str, db: Harness
) -> None:
    @app.task(max_attempts=1)
    async def work() -> None:
        raise AssertionError("its worker was cancelled before")

    ticket = await work.enqueue()
    waiting = (  # the databases of other tests have the same oids of tables
        "select count(*) from pg_locks where not granted and relation = 'tenure.claim'::regclass "
        "and database = (select oid from pg_database where datname = current_database())"
    )
    with psycopg.connect(dsn) as other:
        other.execute("lock table tenure.claim in exclusive mode")  # where a claim enters its key
        run = asyncio.create_task(app.worker(poll=0.05).run())
        await until(lambda: db.value(waiting) == 1)
        for _ in range(50):
            run.cancel()
            await asyncio.sleep(0)
    await asyncio.wait([run])
    assert run.cancelled()
    row = db.row(ticket.id)
    assert (row["state"], row["lease_token"]) == ("queued", None)
    assert row["claims"] == row["raises"] > 0  # a claim under way may have won it again; neither cost an attempt


def was_alive_after(db: Harness, worker: Worker, job_id: int, at: datetime) -> bool:
    """Ask for a heartbeat soon; whether the job had one after this time."""
    worker.wake_up(JOB_CHANGED, str(job_id))
    last: datetime | None = db.row(job_id)["last_heartbeat_at"]
    return last is not None and last > at


@pytest.mark.parametrize("cancels", [1, 50])
async def test_a_cancelled_worker_lets_a_handler_in_a_thread_end_before_it_hands_back(
    app: App, db: Harness, cancels: int
) -> None:
    begun, go = threading.Event(), threading.Event()

    @app.task(max_attempts=1)
    def work() -> str:
        begun.set()
        go.wait(60)
        return "done"

    ticket = await work.enqueue()
    worker = app.worker(poll=0.05)
    run = asyncio.create_task(worker.run())
    await until(begun.is_set)
    for n in range(50):
        if n < cancels:
            run.cancel()
        await asyncio.sleep(0)
    for _ in range(5):  # the job is kept alive while its handler runs
        before = db.value("select clock_timestamp()")
        await until(partial(was_alive_after, db, worker, ticket.id, before))
    assert db.row(ticket.id)["state"] == "running"  # nobody else begins it
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert db.row(ticket.id)["state"] == "succeeded"


async def test_a_worker_that_is_cancelled_when_it_has_just_connected_closes_its_connections(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[DirectClient] = []
    real = DirectClient.contracts

    async def just_before_the_cancel(self: DirectClient) -> Mapping[str, Contract]:
        contracts = await real(self)
        found.append(self)
        asyncio.get_running_loop().call_soon(run.cancel)  # runs before the worker hears that it is connected
        return contracts

    monkeypatch.setattr(DirectClient, "contracts", just_before_the_cancel)
    run = asyncio.create_task(app.worker().run())
    with pytest.raises(asyncio.CancelledError):
        await run
    (source,) = found
    with pytest.raises(BadInput, match="this store is closed"):
        await source.store.contracts()


def test_two_workers_of_one_process_have_names_of_their_own(app: App) -> None:
    assert app.worker().name != app.worker().name


async def test_what_a_claim_has_won_when_its_worker_is_cancelled_is_handed_back(
    app: App, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    claimed, go = asyncio.Event(), asyncio.Event()
    real = DirectClient.claim

    async def slowly(self: DirectClient, *args: object, **options: object) -> object:
        jobs = await real(self, *args, **options)  # type: ignore[arg-type]
        claimed.set()
        await go.wait()  # the answer is on its way
        return jobs

    @app.task(max_attempts=1)
    async def work() -> None:
        ran.append(1)

    ticket = await work.enqueue()
    monkeypatch.setattr(DirectClient, "claim", slowly)
    run = asyncio.create_task(app.worker(poll=0.05).run())
    await claimed.wait()
    run.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert ran == []
    assert (db.row(ticket.id)["state"], db.row(ticket.id)["raises"]) == ("queued", 1)


async def test_result_of_a_handler_that_has_ended_is_stored_although_its_worker_is_cancelled(
    app: App, db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, go = asyncio.Event(), asyncio.Event()
    real = DirectClient.report

    async def slowly(self: DirectClient, verb: str, calls: Sequence[HolderCall]) -> list[Any]:
        if verb == "succeed":
            told.set()
            await go.wait()
        return await real(self, verb, calls)

    monkeypatch.setattr(DirectClient, "report", slowly)

    @app.task
    async def work() -> str:
        return "done"

    ticket = await work.enqueue()
    run = asyncio.create_task(app.worker(poll=0.05).run())
    await told.wait()
    run.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert db.row(ticket.id)["state"] == "succeeded"


async def test_signal_handlers_of_the_host_come_back(app: App) -> None:
    @app.task
    async def work() -> str:
        return "done"

    seen: list[int] = []
    loop = asyncio.get_running_loop()
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    loop.add_signal_handler(signal.SIGINT, seen.append, signal.SIGINT)
    try:
        ours = signal.getsignal(signal.SIGTERM)
        async with working(app):
            assert await app.result(await work.enqueue(), timeout=60) == "done"
            assert signal.getsignal(signal.SIGTERM) is not ours
        assert signal.getsignal(signal.SIGTERM) is ours
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: sorted(seen) == [signal.SIGINT, signal.SIGTERM])
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGTERM, before)


async def test_worker_that_is_not_to_handle_signals_leaves_them_to_the_host(app: App) -> None:
    @app.task
    async def work() -> str:
        return "done"

    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        worker = app.worker(poll=0.05)
        run = asyncio.create_task(worker.run(handle_signals=False))
        assert await app.result(await work.enqueue(), timeout=60) == "done"
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: seen == [signal.SIGTERM])
        assert not worker.stopping
        worker.stop()
        await run
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_signal_reaches_every_worker_of_a_process(app: App) -> None:
    @app.task
    async def work() -> None: ...

    workers = [app.worker(poll=0.05, name=name) for name in ("one", "two")]
    runs = [asyncio.create_task(worker.run()) for worker in workers]
    await until(lambda: all(worker._claim_loop is not None for worker in workers))
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(asyncio.gather(*runs), 60)


@contextmanager
def served(dsn: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The FastAPI application of host.py under uvicorn, in a process of its own, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "tests.worker.host:api", "--fd", str(listening.fileno())],
            cwd=ROOT, env={**os.environ, **STEADY, **environment, "DATABASE_URL": dsn}, stderr=subprocess.PIPE,
            text=True, pass_fds=[listening.fileno()],
        )  # fmt: skip
        try:
            yield process, f"http://127.0.0.1:{port}"
        finally:
            end(process)


@pytest.mark.parametrize("grace", ["60", "0.1"])
async def test_worker_in_the_lifespan_of_fastapi_ends_with_it(
    dsn: str, db: Harness, tmp_path: Path, grace: str
) -> None:
    gate = tmp_path / "gate"
    with served(dsn, GRACE=grace) as (process, url):
        async with httpx2.AsyncClient() as client:
            answer = await client.post(f"{url}/hold", params={"gate": str(gate)}, timeout=60)
        await until(Path(f"{gate}.began").exists)
        process.send_signal(signal.SIGTERM)
        if grace == "60":  # it has the time to end
            await says(process, "Shutting down")
            gate.touch()
        assert process.wait(60) in (0, -signal.SIGTERM)
    row = db.row(answer.json()["id"])
    assert (row["state"], row["claims"]) == ("succeeded" if grace == "60" else "queued", 1)
