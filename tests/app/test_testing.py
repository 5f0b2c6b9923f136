"""The tools for users' own tests: run what is due, move time, and see what was enqueued."""

from __future__ import annotations

import pytest

import tenure
from tenure import testing
from tests.worker.working import quick


async def test_drain_runs_what_is_due_and_what_that_enqueues(dsn: str) -> None:
    async with tenure.App(dsn) as app:

        @app.task
        async def outer(n: int) -> None:
            for _ in range(n):
                await inner.enqueue()

        @app.task
        async def inner() -> str:
            return "done"

        await outer.enqueue(3)
        later = await inner.options(delay=3_600).enqueue()
        counts = await testing.drain(app)
        assert (counts["claimed"], counts["succeeded"]) == (4, 4)
        assert (await app.job(later)).role == "ready"
        await testing.advance(app, hours=1)
        assert (await testing.drain(app))["succeeded"] == 1
        assert await app.result(later) == "done"


async def test_time_is_moved_past_retries(dsn: str) -> None:
    app = tenure.App(dsn)

    @app.task(max_attempts=3)
    async def flaky(ctx: tenure.Context) -> int:
        if ctx.attempt < 3:
            raise tenure.TransientError("again")
        return ctx.attempt

    ticket = await flaky.enqueue()
    for _ in range(3):
        await testing.drain(app)
        await testing.advance(app, minutes=11)
    assert await app.result(ticket, timeout=60) == 3
    await app.close()


async def test_what_was_enqueued_is_found_or_what_is_there_is_said(dsn: str) -> None:
    async with quick(dsn) as app:

        @app.task
        async def send(to: str, *, subject: str = "hello") -> None: ...

        with pytest.raises(AssertionError, match="none at all"):
            await testing.assert_enqueued(app, send, "a@b.c")
        ticket = await send.enqueue("a@b.c", subject="hi")
        assert (await testing.assert_enqueued(app, send, "a@b.c", subject="hi")).id == ticket.id
        with pytest.raises(AssertionError, match="'subject': 'hi'"):
            await testing.assert_enqueued(app, send, "a@b.c")
        assert [job.id for job in await testing.enqueued(app)] == [ticket.id]
