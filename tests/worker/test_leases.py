"""Heartbeats keep a job; a lost lease ends its handler, and its late result is refused."""

from __future__ import annotations

import asyncio
import threading

import pytest

import tenure
from tenure.app import App
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.worker.rounds import HALF_S, Pulse
from tests.worker.working import until, working


async def test_handler_that_needs_several_leases_is_never_reaped(
    app: App, store: Store, db: Harness, pulse: Pulse
) -> None:
    go = asyncio.Event()

    @app.task
    async def long() -> str:
        await go.wait()
        return "done"

    async with working(app):
        ticket = await long.enqueue()
        await until(lambda: db.row(ticket.id)["role"] == "active")
        for _ in range(5):
            await pulse.half_a_lease(db, [ticket.id])
            assert await store.reap("standard") == []
        go.set()
        assert await app.result(ticket, timeout=60) == "done"
    assert db.row(ticket.id)["claims"] == 1


async def test_blocked_event_loop_is_not_a_dead_worker(app: App, db: Harness, pulse: Pulse) -> None:
    @app.task
    async def block(ctx: tenure.Context) -> str:
        for _ in range(5):
            pulse.half_a_lease_blocked(db, [ctx.job.id])  # that is the fault
        return "done"

    async with working(app):
        ticket = await block.enqueue()
        assert await app.result(ticket, timeout=60) == "done"
    assert [row["trigger"] for row in db.log(ticket.id)] == ["claim", "succeed"]


async def test_lost_lease_ends_the_handler_and_stores_nothing(
    app: App, store: Store, db: Harness, pulse: Pulse
) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> str:
        began.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ended.set()
            raise
        return "late"

    async with working(app, queues=["default"], upkeep=False) as worker:
        ticket = await work.enqueue()
        await began.wait()
        db.sql("update tenure.job set queue = 'elsewhere' where id = %s", ticket.id)  # nobody takes it again
        db.expire(ticket.id)
        assert len(await store.reap("standard")) == 1
        pulse.passes(HALF_S)
        await asyncio.wait_for(ended.wait(), 60)
        await until(lambda: worker.counts["lost"] == 1)
    assert [row["trigger"] for row in db.log(ticket.id)] == ["claim", "expire"]


async def test_late_result_of_a_thread_is_refused_and_counted(app: App, db: Harness, pulse: Pulse) -> None:
    began, go = threading.Event(), threading.Event()

    @app.task
    def work() -> str:
        began.set()
        go.wait(100)
        return "late"

    async with working(app) as worker:
        ticket = await work.enqueue()
        await until(began.is_set)
        await app.cancel(ticket, mode="hard")
        pulse.passes(HALF_S)
        await until(lambda: worker.counts["cancelled"] == 1)
        go.set()
    assert db.row(ticket.id)["state"] == "cancelled"
    assert db.row(ticket.id)["result"] is None


async def test_soft_cancel_is_seen_within_a_heartbeat_and_leaves_time_to_checkpoint(
    app: App, db: Harness, pulse: Pulse
) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    @app.task
    async def work(ctx: tenure.Context) -> tenure.Cancel:
        began.set()
        while not ctx.cancelled:  # noqa: ASYNC110 (a handler looks when it comes to it)
            await asyncio.sleep(0.02)
        await go.wait()
        await ctx.checkpoint({"page": 7})
        return tenure.Cancel("asked to")

    async with working(app, wakeups=False):  # the heartbeat alone must bring it
        ticket = await work.enqueue()
        await began.wait()
        await app.cancel(ticket, reason="not needed")
        assert db.row(ticket.id)["state"] == "running"
        go.set()
        pulse.passes(HALF_S)
        with pytest.raises(tenure.JobFailed, match="cancelled"):
            await app.result(ticket, timeout=60)
    assert db.row(ticket.id)["checkpoint"] == {"page": 7}


async def test_success_that_arrives_after_a_soft_cancel_wins(app: App, pulse: Pulse) -> None:
    began, seen = asyncio.Event(), asyncio.Event()

    @app.task
    async def work(ctx: tenure.Context) -> str:
        began.set()
        while not ctx.cancelled:  # noqa: ASYNC110 (a handler looks when it comes to it)
            await asyncio.sleep(0.02)
        seen.set()
        return "done"

    async with working(app):
        ticket = await work.enqueue()
        await began.wait()
        await app.cancel(ticket)
        pulse.passes(HALF_S)
        assert await app.result(ticket, timeout=60) == "done"
    assert seen.is_set()
