"""`tenure serve` as a process: how it begins, stops, drains, and what it says while its database is away."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from tenure.errors import TenureError
from tenure.http.serve import Dispatcher
from tenure.settings import Settings
from tests.harness import lock_out
from tests.http.conftest import Caller, proof


@contextmanager
def process(dsn: str, *arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A dispatcher that is a process of its own, and its address."""
    command = [sys.executable, "-m", "tenure", "serve", "--port", "0", *arguments]
    variables = {**os.environ, "DATABASE_URL": dsn, **environment}
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stderr is not None
            said = ""
            while (found := re.search(r"the dispatcher is at (\S+)", said)) is None:
                line = serving.stderr.readline()
                assert line, f"it ended: {said}"
                said += line
            threading.Thread(target=serving.stderr.read, daemon=True).start()
            yield serving, found[1]
        finally:
            serving.kill()


def test_it_begins_says_where_it_is_and_ends_in_order(dsn: str) -> None:
    with process(dsn, "--no-upkeep") as (serving, url):
        assert httpx2.get(f"{url}/healthz").json() == {"status": "ok"}
        assert httpx2.get(f"{url}/readyz").json() == {"status": "ok"}
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(10) == 0


def test_what_was_heard_is_answered_and_who_waits_is_let_go_when_it_stops(dsn: str) -> None:
    with process(dsn, "--no-upkeep") as (serving, url):
        answers: list[httpx2.Response] = []

        def wait() -> None:
            body = {"worker_id": "w", "wait_seconds": 50}
            answers.append(httpx2.post(f"{url}/api/v1/claims", json=body, timeout=60))

        waiting = [threading.Thread(target=wait) for _ in range(3)]
        for thread in waiting:
            thread.start()
        time.sleep(0.5)
        began = time.monotonic()
        serving.send_signal(signal.SIGTERM)
        for thread in waiting:
            thread.join(20)
        assert [(answer.status_code, answer.json()) for answer in answers] == [(200, {"claims": []})] * 3
        assert serving.wait(10) == 0
        assert time.monotonic() - began < 10


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


def test_with_an_admin_key_it_listens_everywhere_and_asks_everybody(dsn: str) -> None:
    key = "an admin's key, long enough"
    with process(dsn, "--host", "0.0.0.0", "--no-upkeep", TENURE_ADMIN_KEY=key) as (_, url):
        here = url.replace("0.0.0.0", "127.0.0.1")
        assert httpx2.get(f"{here}/api/v1/jobs").status_code == 401
        answer = httpx2.get(f"{here}/api/v1/jobs", headers={"Authorization": f"Bearer {key}"})
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
        assert httpx2.get(f"{url}/healthz").status_code == 200
    finally:
        lock_out(dsn, out=False)
    give_up = time.monotonic() + 15
    while httpx2.get(f"{url}/readyz", timeout=30).status_code != 200:
        assert time.monotonic() < give_up
    assert http.post(f"/api/v1/jobs/{job_id}/succeed", proof(claim))["state"] == "succeeded"


@pytest.mark.req("S4-55")
def test_refusals_have_the_codes_and_statuses_of_document_004s_neighbours(http: Caller) -> None:
    job_id = http.enqueued("gate_b2", idempotency_key="k")
    http.refused(
        "/api/v1/jobs", {"type": "other", "contract": "gate_b2", "idempotency_key": "k"}, 409, "IDEMPOTENCY_CONFLICT"
    )
    http.refused(f"/api/v1/jobs/{job_id}/cancel", {}, 409, "WF_STATE_TRANSITION_INVALID")
    http.refused("/api/v1/jobs/999999/cancel", {}, 404, "JOB_NOT_FOUND")
    http.post(f"/api/v1/internal/jobs/{job_id}/run?force_fail=true")
    (item,) = http.get("/api/v1/dlq/items", contract="gate_b2")["items"]
    path = f"/api/v1/dlq/items/{item['dlq_id']}"
    http.refused(f"{path}/approve", {"person": "Ada"}, 409, "APPROVAL_REQUIRED")
    http.post(f"{path}/discard", {"reason": "a test", "person": "Ada"})
    http.refused(f"{path}/approve", {"person": " ada "}, 409, "APPROVAL_REQUIRED")
    again = http.post(f"{path}/requeue")
    assert (again["dlq_id"], again["status"]) == (item["dlq_id"], "queued")
    assert http.get(f"/api/v1/jobs/{again['job_id']}")["origin_letter"] == item["dlq_id"]
    http.refused(f"{path}/requeue", None, 409, "DLQ_REQUEUE_CONFLICT")
    http.refused(f"{path}/discard", {"reason": "late", "person": "Bob"}, 409, "DLQ_DISCARD_CONFLICT")
    http.refused("/api/v1/dlq/items/999999/requeue", None, 404, "DLQ_ITEM_NOT_FOUND")
