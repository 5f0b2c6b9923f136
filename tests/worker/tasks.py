"""Tasks that a process of their own can find by name."""

from __future__ import annotations

import os
import time
from typing import Any

import tenure

app = tenure.App("postgresql://nowhere")


@app.task(isolation="process")
async def where(ctx: tenure.Context, n: int) -> dict[str, Any]:
    """Say which process this is."""
    await ctx.progress(n)
    return {"pid": os.getpid(), "attempt": ctx.attempt}


@app.task(isolation="process")
def slow(seconds: float) -> None:
    """Take long."""
    time.sleep(seconds)


@app.task(isolation="process")
def poisonous() -> None:
    """Take the process down."""
    os._exit(7)
