"""`tenure serve` as a process: how it begins, stops, drains, and what it says while its database is away."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tenure.errors import BadInput, TenureError
from tenure.http.authentication import Keyring
from tenure.http.dispatcher import Dispatcher
from tenure.postgres.store import Store
from tenure.settings import Settings
from tests.harness import Harness, lock_out
from tests.http.conftest import Caller, proof
from tests.http.processes import dispatching
from tests.worker.working import until

#: How many wait for a lock in this database.
HINDERED = """
select count(*) from pg_locks as l join pg_database as d on d.oid = l.database
where not l.granted and d.datname = current_database()
"""


def test_it_begins_says_where_it_is_and_ends_in_order(dsn: str) -> None:
    with dispatching(dsn, "--no-upkeep") as (serving, url):
        assert httpx2.get(f"{url}/healthz", timeout=30).json() == {"status": "ok"}
        asyncio.run(until(lambda: httpx2.get(f"{url}/readyz", timeout=30).json() == {"status": "ok"}))
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(30) == 0


async def test_what_was_heard_is_answered_and_who_waits_is_let_go_when_it_stops(dsn: str, db: Harness) -> None:
    with dispatching(dsn, "--no-upkeep") as (serving, url):
        async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
            asked = [{"worker_id": "w", "wait_seconds": 50, "queues": [name]} for name in "abc"]
            with db.connection.transaction():
                db.sql("lock table tenure.job")  # so that it can be seen that all three were heard
                waiting = asyncio.gather(*(client.post("/api/v1/claims", json=body) for body in asked))
                await until(lambda: db.value(HINDERED) == 3, 60)
            # Another claim is answered later than what those three asked the database: from here they wait for jobs.
            await client.post("/api/v1/claims", json={"worker_id": "w"})
            serving.send_signal(signal.SIGTERM)
            answers = await waiting
        # Who is not let go is cut off when the time to drain is over.
        assert [(answer.status_code, answer.json()) for answer in answers] == [(200, {"claims": []})] * 3
        assert serving.wait(30) == 0


async def test_it_says_what_it_waits_for_when_it_stops(dsn: str, db: Harness, caplog: pytest.LogCaptureFixture) -> None:
    ready = asyncio.Event()
    dispatcher = Dispatcher(dsn, Settings())
    running = asyncio.create_task(dispatcher.run(lambda *_: ready.set(), signals=False))
    await ready.wait()
    async with httpx2.AsyncClient(base_url=dispatcher.url, timeout=60) as client:
        with db.connection.transaction():
            db.sql("lock table tenure.job")
            asked = asyncio.create_task(client.post("/api/v1/claims", json={"worker_id": "w"}))
            await until(lambda: db.value(HINDERED) == 1, 60)
            dispatcher.stop()
            await until(lambda: "the dispatcher stops: 1 requests are being answered" in caplog.text)
        assert (await asked).status_code == 200
    await running
    (record,) = [one for one in caplog.records if one.getMessage().startswith("the dispatcher stops")]
    assert record.levelno == logging.WARNING


def refused(dsn: str, host: str = "127.0.0.1", port: int = 0) -> str:
    """The words of a dispatcher that does not begin."""
    with pytest.raises(TenureError) as error:
        asyncio.run(Dispatcher(dsn, Settings(), host=host, port=port).run(signals=False))
    return str(error.value)


def test_it_refuses_what_it_cannot_be(dsn: str, empty_dsn: str) -> None:
    assert "tenure keys create" in refused(dsn, "0.0.0.0")
    assert "no address to listen on" in refused(dsn, "no.such.host.invalid")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "choose another port" in refused(dsn, port=taken.getsockname()[1])
    assert "tenure migrate" in refused(empty_dsn)


async def test_a_dispatcher_that_is_cancelled_when_it_has_just_connected_closes_its_connections(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Store] = []
    real = Keyring.is_open

    async def just_before_the_cancel(self: Keyring) -> bool:
        is_open = await real(self)
        found.append(self._store)
        asyncio.get_running_loop().call_soon(run.cancel)  # runs before the dispatcher hears that it is connected
        return is_open

    monkeypatch.setattr(Keyring, "is_open", just_before_the_cancel)
    run = asyncio.create_task(Dispatcher(dsn, Settings()).run(signals=False))
    with pytest.raises(asyncio.CancelledError):
        await run
    (store,) = found
    with pytest.raises(BadInput, match="this store is closed"):
        await store.contracts()


def test_with_an_admin_key_it_listens_everywhere_and_asks_everybody(dsn: str) -> None:
    key = "an admin's key, long enough"
    with dispatching(dsn, "--host", "0.0.0.0", "--no-upkeep", TENURE_ADMIN_KEY=key) as (_, url):
        jobs = f"{url.replace('0.0.0.0', '127.0.0.1')}/api/v1/jobs"
        assert httpx2.get(jobs, timeout=30).status_code == 401
        answer = httpx2.get(jobs, headers={"Authorization": f"Bearer {key}"}, timeout=30)
        assert (answer.status_code, answer.json()["jobs"]) == (200, [])


def test_while_the_database_is_away_the_answer_is_503_and_when_to_come_back(url: str, http: Caller, dsn: str) -> None:
    job_id = http.enqueued()
    (claim,) = http.claimed()
    lock_out(dsn, out=True)
    try:
        # One after the other, each would wait for a connection in vain.
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(httpx2.get, f"{url}/api/v1/jobs/{job_id}", timeout=30) for _ in range(2)]
            asked.append(pool.submit(httpx2.get, f"{url}/readyz", timeout=30))
            end = f"{url}/api/v1/jobs/{job_id}/succeed"
            asked.append(pool.submit(httpx2.post, end, json=proof(claim), timeout=30))
            answers = [one.result() for one in asked]
        for answer in answers:
            assert answer.status_code == 503, answer.text
            assert int(answer.headers["retry-after"]) > 0
            error: dict[str, Any] = json.loads(answer.text)["error"]
            assert error["retryable"] is True
            assert error["code"] in ("E-CANNOT-CONNECT", "E-CONNECTION-LOST", "E-UNAVAILABLE")
        assert httpx2.get(f"{url}/healthz", timeout=30).status_code == 200
    finally:
        lock_out(dsn, out=False)
    give_up = time.monotonic() + 60
    while httpx2.get(f"{url}/readyz", timeout=30).status_code != 200:
        assert time.monotonic() < give_up
    assert http.post(f"/api/v1/jobs/{job_id}/succeed", proof(claim))["state"] == "succeeded"
