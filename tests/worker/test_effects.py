"""Effects once over all attempts, undone in reverse order when a job fails for good; traces carried on."""

from __future__ import annotations

import pytest

import tenure
from tenure.app import App
from tests.harness import Harness
from tests.worker.working import working


async def test_effect_that_is_on_record_is_not_had_again_on_a_later_attempt(app: App) -> None:
    charged: list[str] = []

    async def charge(amount: int) -> str:
        charged.append(f"receipt {amount}")
        return charged[-1]

    @app.task(max_attempts=3)
    async def order(ctx: tenure.Context, amount: int) -> str:
        receipt = await ctx.effect("charge", charge, amount)
        if ctx.attempt < 3:
            raise ValueError("the printer is out of paper")
        return receipt

    async with working(app):
        assert await app.result(await order.enqueue(5), timeout=60) == "receipt 5"
    assert charged == ["receipt 5"]


async def test_plain_function_has_its_effects_once_too(app: App) -> None:
    charged: list[int] = []

    @app.task(max_attempts=2)
    def order(ctx: tenure.Context, amount: int) -> int:
        ctx.effect_sync("charge", charged.append, amount)
        if ctx.attempt == 1:
            raise ValueError("again")
        return amount

    async with working(app):
        assert await app.result(await order.enqueue(5), timeout=60) == 5
    assert charged == [5]


async def test_effects_are_undone_newest_first_before_the_job_ends(app: App, db: Harness) -> None:
    undone: list[tuple[str, str]] = []

    @app.task(contract="reliability")
    async def order(ctx: tenure.Context) -> None:
        await ctx.effect("charge", lambda: "receipt")
        await ctx.effect("reserve", lambda: "shelf 3")
        raise tenure.PermanentError("no such address")

    @order.compensate("charge")
    async def refund(result: str) -> None:
        undone.append(("charge", result))

    @order.compensate("reserve")
    def put_back(ctx: tenure.Context, result: str) -> None:
        undone.append(("reserve", result))

    async with working(app):
        ticket = await order.enqueue()
        with pytest.raises(tenure.JobFailed, match="ended failed"):
            await app.result(ticket, timeout=60)
    assert undone == [("reserve", "shelf 3"), ("charge", "receipt")]
    assert [row["trigger"] for row in db.log(ticket.id)] == ["claim", "start", "compensating", "compensated", "fatal"]


async def test_effect_that_cannot_be_undone_sets_the_job_aside(app: App, db: Harness) -> None:
    @app.task(contract="reliability")
    async def order(ctx: tenure.Context) -> None:
        await ctx.effect("charge", lambda: "receipt")
        raise tenure.PermanentError("no such address")

    @order.compensate("charge")
    async def refund(result: str) -> None:
        raise ConnectionError("the bank is closed")

    async with working(app):
        ticket = await order.enqueue()
        with pytest.raises(tenure.JobFailed, match="ended dead_lettered"):
            await app.result(ticket, timeout=60)
    assert db.value("select reason_code from tenure_reliability.dead_letters where job_id = %s", ticket.id) == (
        "compensation_failed"
    )


async def test_trace_and_correlation_go_from_the_enqueue_to_the_handler_and_what_it_enqueues(
    app: App, db: Harness
) -> None:
    @app.task
    async def inner(ctx: tenure.Context) -> dict[str, str]:
        return ctx.headers()

    @app.task
    async def outer(ctx: tenure.Context) -> int:
        return (await inner.enqueue()).id

    async with working(app):
        trace = "0af7651916cd43dd8448eb211c80319c"
        ticket = await outer.options(correlation_id="order 7", trace_id=trace).enqueue()
        followed = await app.result(ticket, timeout=60)
        headers = await app.result(followed, timeout=60)
    assert headers["X-Correlation-Id"] == "order 7"
    assert headers["traceparent"].startswith(f"00-{trace}-")
    assert db.row(followed)["trace_id"] == trace


async def test_execution_key_is_the_job_and_its_retry_count(app: App) -> None:
    keys: list[str] = []

    @app.task(contract="gate_b2")
    async def work(ctx: tenure.Context) -> None:
        keys.append(ctx.execution_key)
        if len(keys) < 3:
            raise tenure.TransientError("busy")

    async with working(app):
        ticket = await work.enqueue()
        await app.result(ticket, timeout=60)
    assert keys == [f"{ticket.id}:0", f"{ticket.id}:1", f"{ticket.id}:2"]
