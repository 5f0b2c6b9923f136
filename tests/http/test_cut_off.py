"""A worker whose dispatcher gives no job, or is gone: no handler runs without a claim, none goes on without a lease."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import tenure
from tenure.app import App
from tenure.contracts import BUILT_IN
from tenure.http import client_calls
from tenure.rendered import iso
from tests.http.stub import HANG, RESET, Asked, Cut, refused, stub
from tests.worker.working import until, working

TOKEN = "0b0e7f0a-5f0e-4f57-9d0c-3f3f6f1a2b4c"
STANDARD = {"name": "standard", "version": "1", "declaration": BUILT_IN["standard"].describe()}


def claimed(lease_s: float = 2.0) -> dict[str, Any]:
    """A job of the task `work`, as its claim is answered."""
    now = datetime.now(UTC)
    expires = iso(now + timedelta(seconds=lease_s))
    job = {
        "id": "42", "contract": "standard", "version": "1", "state": "running", "role": "active", "queue": "default",
        "type": "work", "tenant_id": "default", "priority": 5, "claims": 1, "raises": 0, "counter": 1,
        "max_attempts": 5, "payload": {}, "lease_owner": "w", "lease_expires_at": expires, "due_at": None,
        "created_at": iso(now), "updated_at": iso(now), "started_at": iso(now), "finished_at": None,
        "cancel_requested_at": None, "trace_id": "t", "correlation_id": "c", "idempotency_key": None,
        "origin_letter": None, "last_error": None, "result": None, "checkpoint": None, "pending": None,
    }  # fmt: skip
    return {"job": job, "claims": 1, "lease_token": TOKEN, "lease_expires_at": expires, "execution_key": "42:1"}


def by_path(**answers: Any) -> Callable[[Asked], Any]:
    """A dispatcher with something due; the last part of a path says what it answers."""
    known = {
        "contracts": {"contracts": [STANDARD]}, "due": {"contracts": ["standard"]}, "strangers": {"jobs": []},
        "wakeups": HANG, "events": {"events": []}, **answers,
    }  # fmt: skip

    def answer(asked: Asked) -> Any:
        told = known[asked.path.rpartition("/")[2]]
        return told(asked) if callable(told) else told

    return answer


@pytest.mark.req("S1-40")
@pytest.mark.parametrize(
    ("told", "is_repeated"),
    [
        ({"claims": []}, False),
        ((409, refused("LEASE_CONFLICT")), False),
        ({"status": "NotClaimed", "reason": "AlreadyRunning"}, True),
        (HANG, True),
        (RESET, True),
        ((500, b"oops"), True),
        (Cut({"claims": [claimed()]}), True),
    ],
    ids=["nothing", "conflict", "not claimed", "timeout", "reset", "500", "cut short"],
)
async def test_no_handler_runs_that_was_not_claimed(
    told: Any, is_repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if told is HANG:
        monkeypatch.setattr(client_calls, "READ_S", 0.2)
    calls: list[int] = []
    async with stub(by_path(claims=told)) as dispatcher, App(dispatcher_url=dispatcher.url) as app:

        @app.task
        async def work() -> None:
            calls.append(1)

        async with working(app):
            await until(lambda: len(dispatcher.of("/api/v1/claims")) >= 3)
    assert calls == []
    keys = [asked.body["claim_key"] for asked in dispatcher.of("/api/v1/claims")]
    assert len(set(keys[:3])) == (1 if is_repeated else 3)  # what was perhaps won is asked for again


@pytest.mark.parametrize("away", [HANG, RESET], ids=["silent", "gone"])
async def test_a_lease_that_ran_out_while_the_dispatcher_was_away_ends_the_handler(away: Any) -> None:
    claims = [{"claims": [claimed()]}]
    looked: list[float] = []
    ended: list[float] = []

    def due(_: Asked) -> Any:
        looked.extend([time.monotonic()] if claims else [])
        return {"contracts": ["standard"]}

    said = by_path(claims=lambda _: claims.pop() if claims else {"claims": []}, due=due, heartbeats=away, finishes=away)
    async with stub(said) as dispatcher, App(dispatcher_url=dispatcher.url) as app:

        @app.task
        async def work() -> None:
            try:
                await asyncio.sleep(30)
            finally:
                ended.append(time.monotonic())

        async with working(app) as worker:
            await until(lambda: worker.counts["lost"] == 1, 10)
        assert ended[0] - looked[-1] >= 2  # the lease was two seconds, and asked for after this look
    assert dispatcher.of("/api/v1/heartbeats")
    assert not dispatcher.of("/api/v1/finishes")


async def test_a_beat_that_is_answered_before_the_lease_is_over_keeps_the_job() -> None:
    claims = [{"claims": [claimed()]}]
    note = {"id": "42", "moved": False, "lease_expires_at": None, "cancel_requested": False, "renewed": True}
    move = {
        "id": "42", "moved": True, "trigger": "succeed", "from_state": "running", "state": "succeeded", "role": "done",
        "claims": 1, "counter": 1, "at": iso(datetime.now(UTC)), "due_at": None, "delay_ms": None,
        "will_retry": False, "compensate": [],
    }  # fmt: skip

    def beat(_: Asked) -> Any:
        return RESET if time.monotonic() < fails_until else {"answers": [note]}

    said = by_path(
        claims=lambda _: claims.pop() if claims else {"claims": []}, heartbeats=beat, finishes={"answers": [move]},
        progress=note,
    )  # fmt: skip
    fails_until = time.monotonic() + 60
    async with stub(said) as dispatcher, App(dispatcher_url=dispatcher.url) as app:

        @app.task
        async def work(ctx: tenure.Context) -> None:
            nonlocal fails_until
            await ctx.progress(1)
            await until(lambda: bool(dispatcher.of("/api/v1/heartbeats")))
            fails_until = time.monotonic()
            await asyncio.sleep(2)

        async with working(app) as worker:
            await until(lambda: worker.counts["succeeded"] == 1, 10)
            assert worker.counts["lost"] == 0
    (progress,) = dispatcher.of("/api/v1/jobs/42/progress")
    assert (progress.headers["x-trace-id"], progress.headers["x-correlation-id"]) == ("t", "c")
    assert "x-trace-id" not in dispatcher.of("/api/v1/finishes")[0].headers  # which speaks of many
