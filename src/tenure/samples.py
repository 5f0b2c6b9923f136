"""Sample tasks: what `tenure dev` and `tenure demo` run, and a place to copy from."""

from __future__ import annotations

import asyncio
import random
import time

from tenure.app import App
from tenure.context import Context
from tenure.directive import Cancel, Snooze
from tenure.errors import PermanentError, TransientError

app = App()


@app.task
async def greet(name: str = "world") -> str:
    """The smallest task."""
    return f"hello, {name}"


@app.task
async def work(seconds: float = 0.1) -> float:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return seconds


@app.task
async def flaky(luck: float = 0.5) -> str:
    """Fails by chance; how often it is tried again is its contract's business."""
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
    """Shows how far it is, saves what it has, stops when it is asked to, and goes on where it was."""
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
    """Puts itself off until a moment has come, at no cost."""
    left = moment - time.time()
    return Snooze(left) if left > 0 else "it has come"


@app.task(contract="reliability")
async def order(ctx: Context, amount: int, in_stock: bool = True) -> str:
    """Charges once over all attempts, and gives the money back when there is nothing to send."""
    receipt = await ctx.effect("charge", lambda: f"receipt for {amount}")
    if not in_stock:
        raise PermanentError("not in stock")
    return receipt


@order.compensate("charge")
async def refund(receipt: str) -> None:
    """What undoes the charge."""
    await asyncio.sleep(0.01)
