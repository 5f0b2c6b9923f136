"""Tasks that a process of their own can find by name."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from pathlib import Path
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
def hangs(began: str) -> None:
    """Write a file, and hang in this thread."""
    Path(began).touch()
    time.sleep(600)


@app.task(isolation="process")
async def waits(began: str) -> None:
    """Write a file, and wait for ever, without blocking the loop."""
    asyncio.get_running_loop().call_soon(Path(began).touch)  # in the loop's next turn, when this waits
    await asyncio.Event().wait()


@app.task(isolation="process")
async def blocks(began: str) -> None:
    """Write a file, and block the loop of this process."""
    hangs.function(began)


@app.task(isolation="process")
def stops_itself(began: str) -> None:
    """Write the process's id into a file, and stop it, so that it can say nothing from then on."""
    Path(began).write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)


@app.task(isolation="process")
def poisonous() -> None:
    """Take the process down."""
    os._exit(7)


@app.task(isolation="process")
def talkative(words: str) -> None:
    """Log from a process of its own, in the main thread's logger tree and with what only this process can read."""
    logging.getLogger("shop.mail").info("said %s", words, extra={"pid": os.getpid(), "odd": object()})
    logging.getLogger("shop.mail").debug("nobody asked for this")


@app.task(isolation="process")
def handled() -> None:
    """Log with a logger that has a handler of its own in this process, and with one that has none."""
    own = logging.getLogger("shop.own")
    own.propagate = False
    own.handlers = [logging.NullHandler()]
    own.warning("written here")
    logging.getLogger("shop").warning("written by the worker")
