"""Sample tasks for `tenure dev` and `tenure demo`, and examples to copy."""

from __future__ import annotations

import asyncio
import random
import time

from tenure.app import App
from tenure.context import Cancel, Context, Snooze
from tenure.errors import PermanentError, TransientError

app = App()


@app.task
async def greet(name: str = "world") -> str:
    """The smallest task."""
    return f"hello, {name}"


@app.task
async def work(seconds: float = 0.1) -> float:
    """Sleep for some seconds."""
    await asyncio.sleep(seconds)
    return seconds


@app.task
async def flaky(luck: float = 0.5) -> str:
    """Fails at random; its contract decides how often it is retried."""
    await asyncio.sleep(0.02)
    if random.random() > luck:
        raise TransientError("no luck this time")
    return "lucky"


@app.task(timeout=30)
def count_words(text: str) -> int:
    """A plain function: it runs in a thread."""
    time.sleep(0.02)
    return len(text.split())


@app.task
async def long_report(ctx: Context, pages: int = 20) -> str | Cancel:
    """Reports progress, saves a checkpoint when it is asked to stop, and continues from the last checkpoint."""
    done = ctx.last_checkpoint or 0
    while done < pages:
        if ctx.cancelled:
            await ctx.checkpoint(done)
            return Cancel(f"asked to stop after {done} pages")
        await asyncio.sleep(0.1)
        done += 1
        await ctx.progress({"page": done, "of": pages})
    return f"{pages} pages"


@app.task
async def wait_for(moment: float) -> str | Snooze:
    """Snoozes until a time (seconds since the epoch); a snooze spends no attempt."""
    remaining = moment - time.time()
    return Snooze(remaining) if remaining > 0 else "it has come"


@app.task(contract="reliability")
async def order(ctx: Context, amount: int, in_stock: bool = True) -> str:
    """Charges once over all attempts, and refunds when the item is not in stock."""
    receipt = await ctx.effect("charge", lambda: f"receipt for {amount}")
    if not in_stock:
        raise PermanentError("not in stock")
    return receipt


@order.compensate("charge")
async def refund(receipt: str) -> None:
    """Compensate the charge."""
    await asyncio.sleep(0.01)
