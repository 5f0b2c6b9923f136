"""An application for a worker without a database: `tenure worker tests.http.program:app --dispatcher URL`."""

from __future__ import annotations

import os
import sys

import tenure

app = tenure.App()


@app.task
async def seen() -> dict[str, object]:
    """What this process has loaded, and what it was told of a database."""
    loaded = [name for name in ("psycopg", "psycopg_pool", "fastapi", "httpx2") if name in sys.modules]
    return {"loaded": loaded, "DATABASE_URL": os.environ.get("DATABASE_URL"), "pid": os.getpid()}


@app.task
def in_a_thread(n: int) -> int:
    """Work in a thread."""
    return 2 * n


@app.task(isolation="process")
async def elsewhere(ctx: tenure.Context) -> int:
    """Work in a process of its own, and make a job from there."""
    await ctx.progress({"at": 1})
    return (await in_a_thread.enqueue(ctx.attempt)).id


@app.task(lease=60)
async def unlucky(ctx: tenure.Context) -> str:
    """Fail once, with a checkpoint and an effect."""
    await ctx.effect("charge", lambda: {"amount": 7})
    if ctx.attempt == 1:
        await ctx.checkpoint({"at": "ü"})
        raise tenure.TransientError("not yet")
    return f"{ctx.last_checkpoint['at']} {await ctx.effect('charge', lambda: None)}"


@app.task(contract="reliability", max_attempts=1)
async def order(ctx: tenure.Context) -> None:
    """Charge, fail, and be undone."""
    await ctx.effect("charge", lambda: 7)
    raise tenure.PermanentError("out of stock")


@order.compensate("charge")
async def refund(amount: int) -> None:
    """Undo it."""
    assert amount == 7
