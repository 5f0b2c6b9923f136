"""Heartbeats keep a job; a lost lease ends its handler, and its late result is refused."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import tenure
from tenure.app import App
from tenure.postgres.store import Store
from tests.harness import Harness
from tests.worker.working import until, working


async def test_handler_that_needs_several_leases_is_never_reaped(app: App, db: Harness) -> None:
    @app.task
    async def long() -> str:
        await asyncio.sleep(5)  # the lease is two seconds
        return "done"

    async with working(app):
        ticket = await long.enqueue()
        assert await app.result(ticket, timeout=20) == "done"
    assert db.row(ticket.id)["claims"] == 1


async def test_blocked_event_loop_is_not_a_dead_worker(app: App, db: Harness) -> None:
    @app.task
    async def block() -> str:
        time.sleep(5)  # noqa: ASYNC251 (that is the fault)
        return "done"

    async with working(app):
        ticket = await block.enqueue()
        assert await app.result(ticket, timeout=20) == "done"
    assert [row["trigger"] for row in db.log(ticket.id)] == ["claim", "succeed"]


async def test_lost_lease_ends_the_handler_and_stores_nothing(app: App, store: Store, db: Harness) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> str:
        began.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.set()
            raise
        return "late"

    async with working(app, queues=["default"]) as worker:
        ticket = await work.enqueue()
        await began.wait()
        db.sql("update tenure.job set queue = 'elsewhere' where id = %s", ticket.id)  # nobody takes it again
        db.expire(ticket.id)
        await store.reap("standard")  # unless the worker's own upkeep was faster
        await asyncio.wait_for(ended.wait(), 10)
        await until(lambda: worker.counts["lost"] == 1)
    assert [row["trigger"] for row in db.log(ticket.id)] == ["claim", "expire"]


async def test_late_result_of_a_thread_is_refused_and_counted(app: App, db: Harness) -> None:
    began, go = threading.Event(), threading.Event()

    @app.task
    def work() -> str:
        began.set()
        go.wait(20)
        return "late"

    async with working(app) as worker:
        ticket = await work.enqueue()
        await until(began.is_set)
        await app.cancel(ticket, mode="hard")
        await until(lambda: worker.counts["lost"] == 1)
        go.set()
    assert db.row(ticket.id)["state"] == "cancelled"
    assert db.row(ticket.id)["result"] is None


async def test_soft_cancel_is_seen_within_a_heartbeat_and_leaves_time_to_checkpoint(app: App, db: Harness) -> None:
    began = asyncio.Event()

    @app.task
    async def work(ctx: tenure.Context) -> tenure.Cancel:
        began.set()
        while not ctx.cancelled:  # noqa: ASYNC110 (a handler looks when it comes to it)
            await asyncio.sleep(0.02)
        await ctx.checkpoint({"page": 7})
        return tenure.Cancel("asked to")

    async with working(app):
        ticket = await work.enqueue()
        await began.wait()
        await app.cancel(ticket, reason="not needed")
        assert db.row(ticket.id)["state"] == "running"
        with pytest.raises(tenure.JobFailed, match="cancelled"):
            await app.result(ticket, timeout=10)
    assert db.row(ticket.id)["checkpoint"] == {"page": 7}


async def test_success_that_arrives_after_a_soft_cancel_wins(app: App) -> None:
    began = asyncio.Event()

    @app.task
    async def work() -> str:
        began.set()
        await asyncio.sleep(1.5)
        return "done"

    async with working(app):
        ticket = await work.enqueue()
        await began.wait()
        await app.cancel(ticket)
        assert await app.result(ticket, timeout=10) == "done"
