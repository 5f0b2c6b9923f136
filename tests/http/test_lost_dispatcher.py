"""A worker whose dispatcher is gone: no handler runs without a claim, or goes on without a lease."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import tenure
from tenure.app import App
from tenure.client import dispatcher_requests
from tenure.contracts import BUILT_IN
from tenure.jobs.formats import format_iso
from tenure.worker import Worker, heartbeat
from tests.http.conftest import Clock
from tests.http.stub import HANG, RESET, Asked, Cut, Stub, refused, stub
from tests.worker.working import until, working

TOKEN = "0b0e7f0a-5f0e-4f57-9d0c-3f3f6f1a2b4c"
STANDARD = {"name": "standard", "version": "1", "declaration": BUILT_IN["standard"].describe()}


#: Longer than any machine needs for a test: the test moves the worker's clock.
LEASE_S = 10_000


def claimed() -> dict[str, Any]:
    """A job of the task `work`, as its claim is answered."""
    now = datetime.now(UTC)
    expires = format_iso(now + timedelta(seconds=LEASE_S))
    job = {
        "id": "42", "contract": "standard", "version": "1", "state": "running", "role": "active", "queue": "default",
        "type": "work", "tenant_id": "default", "priority": 5, "claims": 1, "raises": 0, "counter": 1,
        "max_attempts": 5, "payload": {}, "lease_owner": "w", "lease_expires_at": expires, "due_at": None,
        "created_at": format_iso(now), "updated_at": format_iso(now), "started_at": format_iso(now),
        "finished_at": None,
        "cancel_requested_at": None, "trace_id": "t", "correlation_id": "c", "idempotency_key": None,
        "origin_letter": None, "last_error": None, "result": None, "checkpoint": None, "pending": None,
    }  # fmt: skip
    return {"job": job, "claims": 1, "lease_token": TOKEN, "lease_expires_at": expires, "execution_key": "42:1"}


def by_path(**answers: Any) -> Callable[[Asked], Any]:
    """A dispatcher with something due; the last part of a path says what it answers."""
    known = {
        "contracts": {"contracts": [STANDARD]}, "due": {"contracts": ["standard"]},
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
        monkeypatch.setattr(dispatcher_requests, "READ_S", 0.2)
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


async def until_beaten(worker: Worker, dispatcher: Stub, clock: Clock, leases: float) -> None:
    """Move the worker's clock there, and wait until it has sent a heartbeat since, and knows what came of it."""
    beats = len(dispatcher.of("/api/v1/heartbeats"))
    clock.ahead = leases * LEASE_S
    await until(lambda: len(dispatcher.of("/api/v1/heartbeats")) > beats, 60)
    await until(lambda: all(one.heartbeat_at > clock.now() for one in worker._heartbeats.held), 60)


@pytest.mark.parametrize("away", [HANG, RESET], ids=["silent", "gone"])
async def test_a_lease_that_ran_out_while_the_dispatcher_was_away_ends_the_handler(
    away: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "_TIMEOUT_S", 0.5)  # with a dispatcher that is silent
    claims = [{"claims": [claimed()]}]
    log: list[str] = []
    said = by_path(claims=lambda _: claims.pop() if claims else {"claims": []}, heartbeats=away, finishes=away)
    async with stub(said) as dispatcher, App(dispatcher_url=dispatcher.url) as app:

        @app.task
        async def work() -> None:
            log.append("begins")
            try:
                await asyncio.Event().wait()
            finally:
                log.append("ends")

        async with working(app) as worker:
            await until(lambda: log == ["begins"], 60)
            for leases in (0.7, 0.9, 0.97):
                await until_beaten(worker, dispatcher, clock, leases)
            assert log == ["begins"]  # beats in vain, and the lease is not over
            clock.ahead = LEASE_S + 1
            await until(lambda: worker.counts["lost"] == 1, 60)
        assert log == ["begins", "ends"]
    assert not dispatcher.of("/api/v1/finishes")


async def test_a_beat_that_is_answered_before_the_lease_is_over_keeps_the_job(clock: Clock) -> None:
    claims = [{"claims": [claimed()]}]
    note = {"id": "42", "moved": False, "lease_expires_at": None, "cancel_requested": False, "renewed": True}
    move = {
        "id": "42", "moved": True, "trigger": "succeed", "from_state": "running", "state": "succeeded", "role": "done",
        "claims": 1, "counter": 1, "at": format_iso(datetime.now(UTC)), "due_at": None, "delay_ms": None,
        "will_retry": False, "compensate": [],
    }  # fmt: skip
    is_away, is_over = True, asyncio.Event()

    def beat(_: Asked) -> Any:
        return RESET if is_away else {"answers": [note]}

    said = by_path(
        claims=lambda _: claims.pop() if claims else {"claims": []}, heartbeats=beat, finishes={"answers": [move]},
        progress=note,
    )  # fmt: skip
    async with stub(said) as dispatcher, App(dispatcher_url=dispatcher.url) as app:

        @app.task
        async def work(ctx: tenure.Context) -> None:
            await ctx.progress(1)
            await is_over.wait()

        async with working(app) as worker:
            await until(lambda: bool(dispatcher.of("/api/v1/jobs/42/progress")), 60)
            await until_beaten(worker, dispatcher, clock, 0.7)
            is_away = False
            await until_beaten(worker, dispatcher, clock, 0.9)
            is_away = True  # the first lease is over, and of the second more than half is gone
            await until_beaten(worker, dispatcher, clock, 1.6)
            await until_beaten(worker, dispatcher, clock, 1.8)
            is_over.set()
            await until(lambda: worker.counts["succeeded"] == 1, 60)
            assert worker.counts["lost"] == 0
    (progress,) = dispatcher.of("/api/v1/jobs/42/progress")
    assert (progress.headers["x-trace-id"], progress.headers["x-correlation-id"]) == ("t", "c")
    assert "x-trace-id" not in dispatcher.of("/api/v1/finishes")[0].headers  # which speaks of many
